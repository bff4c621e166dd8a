"""The shadow classifier against the Bayes-optimal attack, the null, and bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import metrics
from jaxpriv.attacks import Training, shadow_classifier
from tests import oracles

CLASSES, RECORDS, GAP = 3, 1600, 1.5
BAYES = stats.norm.cdf(GAP / math.sqrt(2))
ERROR = math.sqrt(BAYES * (1 - BAYES) / (RECORDS / 2))


def log_probs(rng, is_member, labels, *, gap):
    """Outputs whose log odds of the label are N(gap [member], 1): all else tells nothing."""
    z = rng.normal(size=(*is_member.shape, CLASSES))
    is_label = np.arange(CLASSES) == labels[:, None]
    log_rest = np.log(np.where(is_label, 0, np.exp(z)).sum(axis=-1))
    odds = rng.normal(gap * is_member)
    z = np.where(is_label, (odds + log_rest)[..., None], z)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def world(seed, *, gap=GAP, share=0.25):
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=RECORDS)
    shadow_is_member, is_member = rng.random((2, RECORDS)) < share, rng.random(RECORDS) < 0.5
    shadows = log_probs(rng, shadow_is_member, labels, gap=gap)
    return (
        (shadows, labels, shadow_is_member),
        log_probs(rng, is_member, labels, gap=gap),
        is_member,
    )


SMALL = {"training": Training(steps=150, batch_size=64)}


def auc(fitted, outputs, labels, is_member):
    return metrics.membership(shadow_classifier.apply(fitted, outputs, labels), is_member).auc


@pytest.mark.parametrize("fit", [shadow_classifier.fit, shadow_classifier.fit_per_class])
def test_comes_close_to_the_best_attack_and_no_farther(fit, keys):
    shadows, outputs, is_member = world(0)
    fitted = fit(keys(1)[0], *shadows, **SMALL)
    result = auc(fitted, outputs, shadows[1], is_member)
    assert BAYES - 0.02 - 4 * ERROR < result < BAYES + 4 * ERROR
    # Log odds at even priors, although only a quarter of the outputs are IN.
    said = shadow_classifier.apply(fitted, outputs, shadows[1]) > 0
    best = stats.norm.cdf(GAP / 2)
    assert abs(metrics.membership(said, is_member).balanced_accuracy - best) < 0.05


@pytest.mark.parametrize("fit", [shadow_classifier.fit, shadow_classifier.fit_per_class])
def test_finds_nothing_where_there_is_nothing(fit, keys):
    shadows, outputs, is_member = world(1, gap=0.0)
    result = auc(fit(keys(1)[0], *shadows, **SMALL), outputs, shadows[1], is_member)
    assert abs(result - 0.5) < 4 * math.sqrt(1 / 6 / RECORDS * 2)


def test_constant_outputs_are_no_evidence(keys):
    (_, labels, shadow_is_member), _, is_member = world(2)
    constant = np.full((2, RECORDS, CLASSES), -math.log(CLASSES))
    fitted = shadow_classifier.fit(keys(1)[0], constant, labels, shadow_is_member, **SMALL)
    result = shadow_classifier.apply(fitted, constant[0], labels)
    assert len(np.unique(result)) <= CLASSES  # the label is all that it sees
    assert abs(metrics.membership(result, is_member).auc - 0.5) < 4 * ERROR


def test_rare_classes_take_the_global_model(keys):
    (outputs, labels, shadow_is_member), target, _ = world(3)
    labels = np.where(labels == 2, np.arange(RECORDS) % 2, labels)
    labels[:4] = 2
    whole_key = jax.random.split(keys(1)[0], 3)[0]
    pooled = shadow_classifier.fit(whole_key, outputs, labels, shadow_is_member, **SMALL)
    by_class = shadow_classifier.fit_per_class(
        keys(1)[0], outputs, labels, shadow_is_member, **SMALL
    )
    assert pooled.fell_back.tolist() == [True, True, True]
    assert by_class.fell_back.tolist() == [False, False, True]
    scores, pooled_scores = (shadow_classifier.apply(f, target, labels) for f in (by_class, pooled))
    np.testing.assert_allclose(
        scores[labels == 2], pooled_scores[labels == 2], rtol=1e-5, atol=1e-6
    )
    assert not np.isclose(scores, pooled_scores, rtol=1e-3)[labels != 2].all()


def test_a_class_is_attacked_by_its_own_model(keys):
    """Members of class 0 are surer, those of class 1 less sure: one sign cannot serve both."""
    rng = np.random.default_rng(4)
    labels, shadow_is_member = np.arange(RECORDS) % 2, rng.random((2, RECORDS)) < 0.25
    outputs = log_probs(
        rng, np.where(labels == 0, shadow_is_member, -1 * shadow_is_member), labels, gap=GAP
    )
    fitted = shadow_classifier.fit_per_class(keys(1)[0], outputs, labels, shadow_is_member, **SMALL)
    assert fitted.fell_back.tolist() == [False, False, True]
    assert auc(fitted, outputs[0], labels, shadow_is_member[0]) > BAYES - 0.05


def test_rows_are_balanced_by_subsampling(keys):
    shadow_is_member, group = np.arange(60) % 4 == 0, np.arange(60) % 3
    sides = shadow_classifier._balanced(keys(1)[0], shadow_is_member, group, 4)
    assert sides.size.tolist() == [5, 5, 5, 0]
    for g in range(3):
        members, nonmembers = sides.members[g, :5], sides.nonmembers[g, :5]
        assert shadow_is_member[members].all()
        assert not shadow_is_member[nonmembers].any()
        assert (group[np.concatenate([members, nonmembers])] == g).all()
        assert len(set(nonmembers)) == 5


def test_equal_keys_give_equal_scores_and_order_does_not_matter(keys):
    (outputs, labels, shadow_is_member), target, _ = world(5)
    first, other = keys(2)
    fitted, again, different = (
        shadow_classifier.fit(key, outputs, labels, shadow_is_member, **SMALL)
        for key in (first, first, other)
    )
    scores = shadow_classifier.apply(fitted, target, labels)
    assert (scores == shadow_classifier.apply(again, target, labels)).all()
    assert not (scores == shadow_classifier.apply(different, target, labels)).all()
    order = np.random.default_rng(0).permutation(RECORDS)
    shuffled = shadow_classifier.apply(fitted, target[order], labels[order])
    np.testing.assert_allclose(shuffled, scores[order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_small_floats_and_zero_probabilities_are_taken(dtype, keys):
    (outputs, labels, shadow_is_member), target, _ = world(6)
    outputs[0, 0, (labels[0] + 1) % CLASSES] = -np.inf
    small = (
        jnp.asarray(outputs, dtype),
        jnp.asarray(labels),
        jnp.asarray(shadow_is_member, jnp.int32),
    )
    fitted = shadow_classifier.fit(keys(1)[0], *small, **SMALL)
    exact = np.asarray(small[0]).astype(np.float64), labels, shadow_is_member
    same = shadow_classifier.fit(keys(1)[0], *exact, **SMALL)
    scores = shadow_classifier.apply(fitted, jnp.asarray(target, dtype), labels)
    assert np.isfinite(scores).all()
    rounded = np.asarray(jnp.asarray(target, dtype)).astype(np.float64)
    assert (scores == shadow_classifier.apply(same, rounded, labels)).all()


BAD = {
    "nan": ({"log_probs": np.full((2, 4, 3), np.nan)}, "Expected log_probs without NaN, got 24"),
    "confidences": ({"log_probs": np.full((2, 4, 3), 0.3)}, "Expected log probabilities <= 0"),
    "label": ({"labels": np.array([0, 1, 2, 3])}, r"Expected labels in 0..2, got 3"),
    "shape": ({"shadow_is_member": np.eye(2, 3, dtype=int)}, r"Expected shapes \[m, n, c\]"),
    "one side": (
        {"shadow_is_member": np.ones((2, 4), int)},
        "Expected IN and OUT outputs, got 8 and 0",
    ),
    "numbers": (
        {"shadow_is_member": np.full((2, 4), 2)},
        "Expected only 0 and 1 in shadow_is_member",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_in_one_line(case, keys):
    change, message = BAD[case]
    arguments = {
        "log_probs": np.full((2, 4, 3), -1.0),
        "labels": np.array([0, 1, 2, 0]),
        "shadow_is_member": np.array([[0, 1, 0, 1], [1, 0, 1, 0]]),
        "training": Training(steps=1, batch_size=2),
    } | change
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        oracles.unhooked(shadow_classifier.fit)(keys(1)[0], **arguments)


def test_apply_refuses_another_number_of_classes():
    fitted = shadow_classifier.Fitted({}, np.zeros(3), np.ones(3), np.ones(3, bool))
    with pytest.raises(ValueError, match="Expected 3 classes, got 2"):
        shadow_classifier.apply(fitted, np.full((4, 2), -1.0), np.zeros(4, int))
    with pytest.raises(ValueError, match="Expected log_probs without NaN, got 6"):
        shadow_classifier.apply(fitted, np.full((2, 3), np.nan), np.zeros(2, int))
