"""The global threshold: chosen on shadows, applied to the target."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from jaxpriv import metrics
from jaxpriv.attacks import threshold
from tests import oracles

score = st.one_of(
    st.integers(-3, 3).map(float), st.sampled_from([np.inf, -np.inf, 1e308, -1e308, 5e-324])
)
pools = st.lists(st.tuples(score, st.booleans()), min_size=2, max_size=40).filter(
    lambda drawn: len({shadow_is_member for _, shadow_is_member in drawn}) == 2
)


@given(pools)
def test_no_threshold_does_better_on_the_shadows(drawn):
    scores = np.array([[s for s, _ in drawn]])
    is_member = np.array([[y for _, y in drawn]])
    fitted = threshold.fit(scores, is_member)
    decisions = threshold.apply(fitted, scores[0]) > 0
    reached = sklearn_metrics.balanced_accuracy_score(is_member[0], decisions)
    best = max(
        sklearn_metrics.balanced_accuracy_score(is_member[0], scores[0] > t) for t in scores[0]
    )
    assert np.isfinite(fitted.threshold)
    assert reached == pytest.approx(max(best, 0.5)) == pytest.approx(fitted.balanced_accuracy)


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_the_threshold_lies_halfway_and_the_sign_decides(array):
    fitted = threshold.fit(
        array([[1.0, 2.0, 4.0], [6.0, 0.0, 2.0]]),
        array([[False, False, True], [True, False, False]]),
    )
    assert fitted[:2] == (3.0, 1.0)
    applied = threshold.apply(fitted, array([3.5, 3.0, 2.5, np.inf, -np.inf]))
    assert applied.tolist() == [0.5, 0.0, -0.5, np.inf, -np.inf]


def test_scores_that_are_equal_say_member_of_nobody():
    fitted = threshold.fit(np.ones((2, 3)), np.array([[1, 0, 1], [0, 1, 1]]))
    assert fitted[:2] == (1.0, 0.5)
    assert not (threshold.apply(fitted, np.ones(3)) > 0).any()


@pytest.mark.parametrize("low", [1.0, np.nextafter(1.0, 2.0)])
def test_neighbouring_floats_are_told_apart(low):
    scores = np.array([[low, np.nextafter(low, 2.0)]])
    fitted = threshold.fit(scores, np.array([[False, True]]))
    assert (threshold.apply(fitted, scores[0]) > 0).tolist() == [False, True]


@pytest.mark.parametrize("end", [np.inf, -np.inf])
def test_infinite_shadow_scores_leave_a_finite_threshold(end):
    fitted = threshold.fit(np.array([[end, 0.0]]), np.array([[end > 0, end < 0]]))
    assert np.isfinite(fitted.threshold)
    assert (threshold.apply(fitted, np.array([end, 0.0])) > 0).tolist() == [end > 0, end < 0]
    assert not np.isnan(threshold.apply(fitted, np.array([np.inf, -np.inf, 1e308, -1e308]))).any()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_small_floats_are_taken_exactly(dtype):
    scores = jnp.array([[0.1, 0.3, 0.2, 0.5]], dtype)
    shadow_is_member = np.array([[0, 1, 0, 1]])
    exact = np.asarray(scores).astype(np.float64)
    assert threshold.fit(scores, shadow_is_member) == threshold.fit(exact, shadow_is_member)
    assert (threshold.apply(threshold.fit(scores, shadow_is_member), scores[0]) > 0).tolist() == [
        False,
        True,
        False,
        True,
    ]


def test_applying_ranks_as_the_scores_do():
    rng = np.random.default_rng(0)
    shadow_is_member = rng.random((4, 500)) < 0.5
    fitted = threshold.fit(rng.normal(size=(4, 500)) + shadow_is_member, shadow_is_member)
    scores, is_member = rng.normal(size=500), rng.random(500) < 0.5
    applied = threshold.apply(fitted, scores)
    assert metrics.membership(applied, is_member).auc == metrics.membership(scores, is_member).auc
    # Two unit Gaussians one apart are best told apart halfway, at accuracy Phi(1/2) = 0.691.
    assert fitted.balanced_accuracy == pytest.approx(0.691, abs=0.04)


@pytest.mark.parametrize(
    ("scores", "shadow_is_member", "message"),
    [
        ([[1.0, np.nan]], [[0, 1]], "Expected shadow_signals without NaN"),
        ([[1.0, 2.0]], [[1, 1]], "Expected members and non-members, got 2 and 0"),
        ([[1.0, 2.0]], [[0, 2]], "Expected only 0 and 1 in is_member, got 2"),
    ],
)
def test_fit_refuses_in_one_line(scores, shadow_is_member, message):
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        threshold.fit(np.array(scores), np.array(shadow_is_member))


def test_apply_refuses_nan():
    with pytest.raises(ValueError, match="Expected signals without NaN, got 1 NaN"):
        threshold.apply(threshold.Fitted(0.0, 0.5), np.array([0.0, np.nan]))


def per_class(seed, *, classes=3, records=600, models=4):
    """Classes whose scores lie 5 apart; within one, members score 2 higher."""
    rng = np.random.default_rng(seed)
    labels, shadow_is_member = (
        rng.integers(classes, size=records),
        rng.random((models, records)) < 0.5,
    )
    return (
        rng.normal(size=shadow_is_member.shape) + 5 * labels + 2 * shadow_is_member,
        shadow_is_member,
        labels,
    )


def test_each_class_has_the_threshold_of_its_records_alone():
    scores, shadow_is_member, labels = per_class(0)
    fitted = threshold.fit_per_class(scores, shadow_is_member, labels, num_classes=3)
    assert not fitted.fell_back.any()
    assert fitted[:2] == threshold.fit(scores, shadow_is_member)[:2]
    for label in range(3):
        of_class = labels == label
        alone = threshold.fit(scores[:, of_class], shadow_is_member[:, of_class])
        assert fitted.by_class[label] == alone.threshold
        np.testing.assert_array_equal(
            threshold.apply(fitted, scores[0], labels)[of_class],
            threshold.apply(alone, scores[0][of_class]),
        )


def test_classes_that_differ_are_attacked_better_one_by_one():
    fitted = threshold.fit_per_class(*per_class(1), num_classes=3)
    scores, shadow_is_member, labels = per_class(2, models=1)
    each = threshold.apply(fitted, scores[0], labels)
    pooled = threshold.apply(fitted._replace(by_class=None), scores[0])
    assert (
        metrics.membership(each, shadow_is_member[0]).auc
        > metrics.membership(pooled, shadow_is_member[0]).auc + 0.2
    )


def test_small_classes_take_the_threshold_for_all():
    scores, shadow_is_member, labels = per_class(3, records=90)
    shadow_is_member[:, labels == 1] = True
    of_class = shadow_is_member[:, labels == 0]
    fewer = int(min(of_class.sum(), (~of_class).sum()))
    fitted = threshold.fit_per_class(
        scores, shadow_is_member, labels, num_classes=5, min_rows=fewer
    )
    assert fitted.fell_back[[0, 1, 3, 4]].tolist() == [False, True, True, True]
    assert (fitted.by_class[[1, 3, 4]] == fitted.threshold).all()
    assert fitted.by_class[0] != fitted.threshold
    more = threshold.fit_per_class(
        scores, shadow_is_member, labels, num_classes=3, min_rows=fewer + 1
    )
    assert more.fell_back[0]
    assert more.by_class[0] == more.threshold


@pytest.mark.parametrize("form", [lambda y: y[:, None], lambda y: np.eye(3)[y], jnp.asarray])
def test_labels_come_in_any_form(form):
    scores, shadow_is_member, labels = per_class(4)
    plain = threshold.fit_per_class(scores, shadow_is_member, labels, num_classes=3)
    other = threshold.fit_per_class(scores, shadow_is_member, form(labels), num_classes=3)
    assert (other.by_class == plain.by_class).all()
    result = threshold.apply(plain, scores[0], form(labels))
    assert (result == threshold.apply(plain, scores[0], labels)).all()


def test_per_class_refuses_in_one_line():
    scores, shadow_is_member, labels = per_class(5)
    fit, apply = map(oracles.unhooked, (threshold.fit_per_class, threshold.apply))
    for call, message in (
        (
            lambda: fit(scores, shadow_is_member, labels + 7, num_classes=3),
            "Expected labels in 0..2",
        ),
        (
            lambda: fit(scores, shadow_is_member, labels[1:], num_classes=3),
            "Expected equal lengths",
        ),
        (
            lambda: fit(scores, shadow_is_member, labels, num_classes=3, min_rows=0),
            "Expected min_rows >= 1",
        ),
        (
            lambda: fit(scores * np.nan, shadow_is_member, labels, num_classes=3),
            "Expected shadow_signals without NaN",
        ),
    ):
        with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
            call()
    fitted = threshold.fit_per_class(scores, shadow_is_member, labels, num_classes=3)
    with pytest.raises(ValueError, match="Expected equal lengths"):
        apply(fitted, scores[0], labels[1:])
    with pytest.raises(ValueError, match="Expected signals without NaN, got 600 NaN"):
        apply(fitted, scores[0] * np.nan, labels)
    with pytest.raises(ValueError, match="Expected labels for a threshold"):
        apply(fitted, scores[0])
    with pytest.raises(ValueError, match="Expected no labels for a threshold"):
        apply(threshold.fit(scores, shadow_is_member), scores[0], labels)
