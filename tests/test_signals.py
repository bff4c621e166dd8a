"""Membership scores of one example from its logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from jaxpriv import signals as scores
from tests import oracles

BOTH = [scores.negative_loss, scores.logit_confidence]


def entropy(logits, label):
    return scores.entropy(logits)


ALL = [
    *BOTH,
    scores.confidence,
    entropy,
    scores.modified_entropy,
    scores.margin,
    scores.correctness,
]
FLOATS = [jnp.float16, jnp.bfloat16, jnp.float32]
any_logit = st.one_of(
    st.floats(-50, 50, width=16),
    st.sampled_from([-np.inf, np.inf, 3.4e38, -3.4e38, 1e30, -1e30]),
)


@pytest.mark.parametrize("dtype", FLOATS)
def test_confidence_is_known_where_the_probability_rounds_to_one(dtype):
    confidence = scores.logit_confidence(jnp.array([20, 0, 0], dtype), 0)
    assert confidence.dtype == jnp.float32
    assert float(confidence) == pytest.approx(20 - np.log(2), abs=2e-6)
    assert float(confidence) == pytest.approx(19.30685, abs=1e-5)


def test_loss_keeps_its_digits_where_the_probability_rounds_to_one():
    loss = scores.negative_loss(jnp.array([20.0, 0.0, 0.0]), 0)
    assert float(loss) == pytest.approx(-np.log1p(2 * np.exp(-20.0)), rel=1e-5)


@pytest.mark.parametrize("size", [2, 6])
@given(st.data())
def test_scores_are_those_of_float64_probabilities(size, data):
    logits = data.draw(st.lists(st.floats(-30, 30, width=16), min_size=size, max_size=size))
    label = data.draw(st.integers(0, size - 1))
    z = np.array(logits)
    log_p = special.log_softmax(z)[label]
    log_odds = z[label] - special.logsumexp(np.delete(z, label))
    given_logits = jnp.array(logits, jnp.float32)
    np.testing.assert_allclose(scores.negative_loss(given_logits, label), log_p, rtol=1e-5)
    np.testing.assert_allclose(
        scores.logit_confidence(given_logits, label), log_odds, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("size", [2, 6])
@given(st.data())
def test_the_other_scores_are_those_of_float64_probabilities(size, data):
    logits = data.draw(st.lists(st.floats(-30, 30, width=16), min_size=size, max_size=size))
    label = data.draw(st.integers(0, size - 1))
    z = np.array(logits)
    p = special.softmax(z)
    # 1 - p by the other classes' sum, as 1 - p would cancel.
    not_p = np.array([np.delete(p, j).sum() for j in range(p.size)])
    others = [j for j in range(p.size) if j != label]
    slow = not_p[label] * np.log(p[label]) + (p[others] * np.log(not_p[others])).sum()
    given_logits = jnp.array(logits, jnp.float32)
    close = {"rtol": 1e-4, "atol": 1e-30}
    np.testing.assert_allclose(scores.confidence(given_logits, label), p[label], **close)
    np.testing.assert_allclose(scores.entropy(given_logits), -stats.entropy(p), **close)
    np.testing.assert_allclose(scores.modified_entropy(given_logits, label), slow, **close)
    assert scores.margin(given_logits, label) == z[label] - np.max(z[others])
    assert scores.correctness(given_logits, label) == float(z[label] > np.max(z[others]))


def test_modified_entropy_tells_right_from_wrong_where_entropy_does_not():
    sure = jnp.array([30.0, 0.0, 0.0])
    assert scores.modified_entropy(sure, 0) > -1e-20
    assert scores.modified_entropy(sure, 1) < -50
    assert scores.entropy(sure) > -1e-10
    assert float(scores.entropy(jnp.zeros(7))) == pytest.approx(-np.log(7))


@pytest.mark.parametrize("score", [score for score in ALL if score is not entropy])
@pytest.mark.parametrize("logits", [[-np.inf, 2.0, 1.0], [-1e30, 2.0, 1.0], [-3.4e38, np.inf, 0.0]])
def test_no_score_ranks_below_that_of_an_impossible_label(score, logits):
    impossible = score(jnp.array(logits, jnp.float32), 0)
    others = jax.random.normal(jax.random.key(0), (50, 3))
    assert (impossible <= jax.vmap(score, (0, None))(others, 0)).all()


@pytest.mark.parametrize("score", ALL)
def test_nan_logits_are_not_hidden(score):
    assert np.isnan(score(jnp.array([np.nan, 1.0, 2.0]), 1))


@pytest.mark.parametrize("score", ALL)
@given(st.data())
def test_no_logits_give_nan(score, data):
    size = data.draw(st.sampled_from([1, 2, 5]))
    logits = data.draw(st.lists(any_logit, min_size=size, max_size=size))
    label = data.draw(st.integers(0, size - 1))
    assert not np.isnan(score(jnp.array(logits, jnp.float32), label))


@pytest.mark.parametrize(
    ("logits", "label", "log_p", "log_odds"),
    [
        ([-np.inf, 0.0], 0, -np.inf, -np.inf),
        ([-np.inf, 0.0], 1, 0.0, np.inf),
        ([-np.inf, 1.0, 1.0], 2, np.log(0.5), 0.0),
        ([np.inf, 0.0], 0, 0.0, np.inf),
        ([np.inf, 0.0], 1, -np.inf, -np.inf),
        ([3e38, -3e38], 0, 0.0, np.inf),
        ([3e38, 3e38], 0, np.log(0.5), 0.0),
        ([-np.inf, -np.inf, -np.inf], 0, np.log(1 / 3), np.log(1 / 2)),
        ([4.0], 0, 0.0, np.inf),
    ],
)
def test_infinite_and_huge_logits_are_limits(logits, label, log_p, log_odds):
    z = jnp.array(logits, jnp.float32)
    np.testing.assert_allclose(scores.negative_loss(z, label), log_p, rtol=2e-3)
    np.testing.assert_allclose(scores.logit_confidence(z, label), log_odds, rtol=2e-3)


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_vmap_and_jit_equal_a_loop(score, dtype, keys):
    logits = jax.random.normal(keys(1)[0], (7, 5)).astype(dtype)
    labels = jnp.arange(7) % 5
    loop = jnp.stack([score(row, label) for row, label in zip(logits, labels, strict=True)])
    np.testing.assert_allclose(jax.vmap(score)(logits, labels), loop, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(score))(logits, labels), loop, rtol=1e-6)


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize("label", [1, np.int64(1), np.uint8(1), jnp.uint8(1)])
def test_labels_may_be_of_any_whole_type(score, label):
    logits = np.array([0.5, 2.0, -1.0], np.float32)
    assert score(logits, label) == score(jnp.asarray(logits), 1)


@pytest.mark.parametrize("score", ALL)
def test_lowers_for_accelerators(score):
    batch = jnp.zeros((4, 3), jnp.bfloat16), jnp.zeros(4, int)
    oracles.assert_lowers(jax.vmap(score), *batch)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, jnp.bfloat16])
def test_probabilities_give_the_scores_of_their_logits(dtype):
    z = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    probabilities = np.asarray(special.softmax(z.astype(np.float64), axis=1)).astype(dtype)
    logits = scores.logits_of(probabilities, tolerance=0.02)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(np.exp(logits.astype(np.float64)).sum(axis=1), 1, rtol=1e-6)
    room = {np.float64: 1e-5, np.float32: 1e-5, np.float16: 1e-2}.get(dtype, 5e-2)
    labels = np.arange(40) % 6
    for score in ALL[:-1]:
        ours, theirs = (jax.vmap(score)(x, labels) for x in (logits, z))
        np.testing.assert_allclose(ours, theirs, atol=room)


def test_probabilities_that_rounded_to_one_tie_and_others_do_not():
    kept = scores.logits_of(np.array([[1.0, 1e-12, 1e-30], [1.0, 1e-13, 1e-30]], np.float32))
    found = jax.vmap(scores.logit_confidence, (0, None))(kept, 0)
    np.testing.assert_allclose(found, [12 * np.log(10), 13 * np.log(10)], rtol=1e-5)
    lost = scores.logits_of(np.array([[1.0, 0.0, 0.0]]))
    assert scores.logit_confidence(lost[0], 0) == np.inf
    assert scores.logit_confidence(lost[0], 1) == -np.inf


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5, np.nan]], "Expected probabilities without NaN, got 1 NaN"),
        ([[1.2, -0.2]], r"Expected probabilities in \[0, 1\], got 1.2"),
        ([[2.0, 0.5]], r"Expected probabilities in \[0, 1\], got 2"),
        ([[0.5, 0.4], [0.5, 0.5]], "Expected rows that sum to 1 within 0.001, got 0.9"),
        ([[0.0, 0.0]], "Expected rows that sum to 1 within 0.001, got 0"),
        ([0.5, 0.5], r"Expected probabilities of shape \[n, c\], got \[2\]"),
    ],
)
def test_refuses_what_are_no_probabilities(rows, message):
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        oracles.unhooked(scores.logits_of)(np.array(rows))
    with pytest.raises(ValueError, match="Expected tolerance > 0"):
        scores.logits_of(np.eye(2), tolerance=0.0)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, jnp.bfloat16])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_labels_of_every_layout_are_class_indices(dtype, array):
    labels = np.array([2, 0, 1, 3, 3])
    one_hot = np.eye(4)[labels]
    for layout in (labels, labels[:, None], one_hot):
        found = scores.labels_of(array(layout.astype(dtype)), num_classes=4)
        assert found.dtype == np.int32
        assert found.tolist() == labels.tolist()
    assert scores.labels_of(array(one_hot.astype(bool)), num_classes=4).tolist() == labels.tolist()
    assert scores.labels_of(array(np.zeros((3, 1), int)), num_classes=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10, 20], "Expected labels in 0..2, got 10; numpy.unique"),
        ([1, 2, 3], "Expected labels in 0..2, got 3; numpy.unique"),
        ([-1, 0, 1], "Expected labels in 0..2, got -1; numpy.unique"),
        ([0.5, 1.0], "Expected labels to be whole numbers, got 0.5"),
        ([np.nan, 1.0], "Expected labels to be whole numbers, got nan"),
        (["cat", "dog"], "Expected labels to be whole numbers, got <U3"),
        ([[1, 1, 0], [0, 0, 1]], "Expected one-hot rows with a single 1, got others"),
        ([[0.2, 0.8, 0.0]], "Expected one-hot rows with a single 1, got others"),
        ([[0, 1], [1, 0]], r"Expected labels of shape \[n\], \[n, 1\] or \[n, 3\], got \[2, 2\]"),
        (1, r"Expected labels of shape \[n\], \[n, 1\] or \[n, 3\], got \[\]"),
    ],
)
def test_refuses_what_are_no_labels(labels, message):
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        scores.labels_of(np.array(labels), num_classes=3)


def test_records_are_scored_under_every_model():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 7, 4)).astype(np.float32), rng.integers(0, 4, 7)
    found = scores.score_records(scores.margin, logits, labels)
    for i in range(3):
        expected = [scores.margin(z, y) for z, y in zip(logits[i], labels, strict=True)]
        np.testing.assert_allclose(found[i], expected, rtol=1e-6)
        np.testing.assert_array_equal(scores.score_records(scores.margin, logits[i], labels), found[i])
