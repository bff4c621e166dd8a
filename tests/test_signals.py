"""Membership scores of one example from its logits."""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from jaxpriv import metrics, signals
from jaxpriv.attacks import lira
from tests import oracles

BOTH = [signals.negative_loss, signals.logit_confidence]


@pytest.fixture
def unchecked():
    """Checks as outside pytest, where only the library checks types and shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def entropy(logits, label):
    return signals.entropy(logits)


ALL = [
    *BOTH,
    signals.confidence,
    entropy,
    signals.modified_entropy,
    signals.margin,
    signals.correctness,
]
FLOATS = [jnp.float16, jnp.bfloat16, jnp.float32]
any_logit = st.one_of(
    st.floats(-50, 50, width=16),
    st.sampled_from([-np.inf, np.inf, 3.4e38, -3.4e38, 1e30, -1e30]),
)


@pytest.mark.parametrize("dtype", FLOATS)
def test_confidence_is_known_where_the_probability_rounds_to_one(dtype):
    confidence = signals.logit_confidence(jnp.array([20, 0, 0], dtype), 0)
    assert confidence.dtype == jnp.float32
    assert float(confidence) == pytest.approx(20 - np.log(2), abs=2e-6)
    assert float(confidence) == pytest.approx(19.30685, abs=1e-5)


def test_loss_keeps_its_digits_where_the_probability_rounds_to_one():
    loss = signals.negative_loss(jnp.array([20.0, 0.0, 0.0]), 0)
    assert float(loss) == pytest.approx(-np.log1p(2 * np.exp(-20.0)), rel=1e-5)


@pytest.mark.parametrize("size", [2, 6])
@given(st.data())
def test_scores_are_those_of_float64_probabilities(size, data):
    logits = data.draw(st.lists(st.floats(-30, 30, width=16), min_size=size, max_size=size))
    label = data.draw(st.integers(0, size - 1))
    z = np.array(logits)
    log_odds = z[label] - special.logsumexp(np.delete(z, label))
    log_p = -np.log1p(np.exp(-log_odds))  # log_softmax cancels near p = 1
    given_logits = jnp.array(logits, jnp.float32)
    np.testing.assert_allclose(signals.negative_loss(given_logits, label), log_p, rtol=1e-5)
    np.testing.assert_allclose(
        signals.logit_confidence(given_logits, label), log_odds, rtol=1e-5, atol=1e-5
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
    competing = [j for j in range(p.size) if j != label]
    # Both logarithms without cancellation where p is near 1, which scipy.stats.entropy has.
    log_p = -np.log1p(not_p / p)
    log_not_p = np.where(p < 0.5, np.log1p(-np.minimum(p, 0.5)), np.log(not_p))
    slow = not_p[label] * log_p[label] + (p[competing] * log_not_p[competing]).sum()
    given_logits = jnp.array(logits, jnp.float32)
    close = {"rtol": 1e-4, "atol": 1e-30}
    np.testing.assert_allclose(signals.confidence(given_logits, label), p[label], **close)
    np.testing.assert_allclose(signals.entropy(given_logits), (p * log_p).sum(), **close)
    np.testing.assert_allclose(signals.modified_entropy(given_logits, label), slow, **close)
    assert signals.margin(given_logits, label) == z[label] - np.max(z[competing])
    assert signals.correctness(given_logits, label) == float(z[label] > np.max(z[competing]))


def test_modified_entropy_tells_right_from_wrong_where_entropy_does_not():
    sure = jnp.array([30.0, 0.0, 0.0])
    assert signals.modified_entropy(sure, 0) > -1e-20
    assert signals.modified_entropy(sure, 1) < -50
    assert signals.entropy(sure) > -1e-10
    assert float(signals.entropy(jnp.zeros(7))) == pytest.approx(-np.log(7))


@pytest.mark.parametrize("score", [score for score in ALL if score is not entropy])
@pytest.mark.parametrize("logits", [[-np.inf, 2.0, 1.0], [-1e30, 2.0, 1.0], [-3.4e38, np.inf, 0.0]])
def test_no_score_ranks_below_that_of_an_impossible_label(score, logits):
    impossible = score(jnp.array(logits, jnp.float32), 0)
    ordinary = jax.random.normal(jax.random.key(0), (50, 3))
    assert (impossible <= jax.vmap(score, (0, None))(ordinary, 0)).all()


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
    np.testing.assert_allclose(signals.negative_loss(z, label), log_p, rtol=2e-3)
    np.testing.assert_allclose(signals.logit_confidence(z, label), log_odds, rtol=2e-3)


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
    traced = jax.jit(jax.vmap(score))(logits[None], jnp.asarray(label)[None])
    np.testing.assert_allclose(traced[0], score(logits, label), rtol=1e-6)


@pytest.mark.parametrize("score", ALL)
def test_lowers_for_accelerators(score):
    batch = jnp.zeros((4, 3), jnp.bfloat16), jnp.zeros(4, int)
    oracles.assert_lowers(jax.vmap(score), *batch)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, jnp.bfloat16])
def test_probabilities_give_the_scores_of_their_logits(dtype):
    z = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    probabilities = np.asarray(special.softmax(z.astype(np.float64), axis=1)).astype(dtype)
    logits = signals.logits_of(probabilities, tolerance=0.02)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(np.exp(logits.astype(np.float64)).sum(axis=1), 1, rtol=1e-6)
    room = {np.float64: 1e-5, np.float32: 1e-5, np.float16: 1e-2}.get(dtype, 5e-2)
    labels = np.arange(40) % 6
    for score in ALL[:-1]:
        actual, expected = (jax.vmap(score)(x, labels) for x in (logits, z))
        np.testing.assert_allclose(actual, expected, atol=room)


def test_probabilities_that_rounded_to_one_tie_and_others_do_not():
    logits = signals.logits_of(np.array([[1.0, 1e-12, 1e-30], [1.0, 1e-13, 1e-30]], np.float32))
    result = jax.vmap(signals.logit_confidence, (0, None))(logits, 0)
    np.testing.assert_allclose(result, [12 * np.log(10), 13 * np.log(10)], rtol=1e-5)
    lost = signals.logits_of(np.array([[1.0, 0.0, 0.0]]))
    assert signals.logit_confidence(lost[0], 0) == np.inf
    assert signals.logit_confidence(lost[0], 1) == -np.inf


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
        oracles.unhooked(signals.logits_of)(np.array(rows))
    with pytest.raises(ValueError, match="Expected tolerance > 0"):
        signals.logits_of(np.eye(2), tolerance=0.0)


def test_records_are_scored_under_every_model():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 7, 4)).astype(np.float32), rng.integers(0, 4, 7)
    result = signals.score_records(signals.margin, logits, labels)
    for i in range(3):
        expected = [signals.margin(z, y) for z, y in zip(logits[i], labels, strict=True)]
        np.testing.assert_allclose(result[i], expected, rtol=1e-6)
        np.testing.assert_array_equal(
            signals.score_records(signals.margin, logits[i], labels), result[i]
        )


@pytest.mark.parametrize(("gap", "expected"), [(80, -160), (90, -180), (110, -220), (200, -400)])
def test_modified_entropy_is_finite_where_one_minus_p_underflows(gap, expected):
    for logits in (np.array([0.0, gap]), jnp.array([0.0, gap])):
        assert float(signals.modified_entropy(logits, 0)) == pytest.approx(expected)
    scored = signals.score_records(signals.modified_entropy, np.array([[0.0, gap]]), np.array([0]))
    assert scored[0] == pytest.approx(expected)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=5),
    st.data(),
)
def test_modified_entropy_is_finite_for_finite_logits(logits, data):
    label = data.draw(st.integers(0, len(logits) - 1))
    assert np.isfinite(signals.modified_entropy(jnp.array(logits, jnp.float32), label))


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble, np.int64])
def test_large_logits_are_shifted_in_their_own_precision(dtype):
    """float32 would round 1e8 + 2 to 1e8."""
    logits = np.array([[1e8 + 2, 1e8, 1e8 - 3], [1e8, 1e8 + 1, 1e8]]).astype(dtype)
    labels = np.zeros(2, int)
    exact = special.log_softmax(logits.astype(np.float64), axis=1)
    loss = oracles.unhooked(signals.score_records)(signals.negative_loss, logits, labels)
    np.testing.assert_allclose(loss, exact[:, 0], rtol=1e-5)
    np.testing.assert_allclose(loss, [-0.1328, -1.5514], atol=1e-4)
    np.testing.assert_allclose(signals.log_probabilities(logits), exact, rtol=1e-5)
    entropy_ = oracles.unhooked(signals.score_records)(signals.entropy, logits)
    np.testing.assert_allclose(entropy_, -stats.entropy(np.exp(exact), axis=1), rtol=1e-5)
    if dtype is np.float64:
        result = [signals.negative_loss(row, 0) for row in logits]
        np.testing.assert_allclose(result, exact[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(4)[[0, 1]], r"labels of shape \[n\], \[n, 1\] or \[n, 3\], got \[2, 4\]"),
        ([0, 10], "labels in 0..2, got 10"),
        ([0, 1.7], "whole numbers in labels, got 1.7"),
        (["cat", "dog"], "class indices in labels, got text"),
        ([0, 1, 2], "2 labels, got 3"),
    ],
)
def test_labels_that_do_not_index_the_logits_are_refused(labels, message):
    with pytest.raises(ValueError, match=rf"^Expected {message}[^\n]*\.$"):
        oracles.unhooked(signals.score_records)(
            signals.negative_loss, np.zeros((2, 3)), np.array(labels)
        )


@pytest.mark.parametrize("score", [score for score in ALL if score is not entropy])
def test_a_single_label_out_of_range_is_refused_and_nan_under_tracing(score):
    logits = jnp.zeros(3)
    for label in (3, -1):
        with pytest.raises(ValueError, match=r"Expected label in 0\.\.2"):
            score(logits, label)
        assert np.isnan(jax.jit(score)(logits, label))


def test_one_hot_labels_and_columns_are_class_indices():
    logits, labels = np.random.default_rng(0).normal(size=(5, 4)), np.array([2, 0, 1, 3, 3])
    plain = signals.score_records(signals.margin, logits, labels)
    for layout in (labels[:, None], np.eye(4)[labels], labels.astype(float)):
        assert (signals.score_records(signals.margin, logits, layout) == plain).all()


def test_nan_logits_of_records_are_refused():
    with pytest.raises(ValueError, match="Expected logits without NaN, got 1 NaN"):
        signals.score_records(signals.entropy, np.array([[0.0, np.nan]]))


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        signals.negative_loss(np.ones(3, np.float32), 0, temperature=temperature)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_temperature_divides_the_logits(temperature):
    rng = np.random.default_rng(0)
    logits, labels = 5 * rng.normal(size=(20, 4)), rng.integers(4, size=20)
    found = [
        float(signals.negative_loss(z.astype(np.float32), label, temperature=temperature))
        for z, label in zip(logits, labels, strict=True)
    ]
    expected = special.log_softmax(logits / temperature, axis=1)[np.arange(20), labels]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_regression_models_are_attacked_by_their_squared_error():
    """Linear regression on noise with 70 features of 100 records, which it overfits."""
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(200, 70)), rng.normal(size=70)
    y = x @ w + rng.normal(size=200)
    half = rng.random((9, 200)) < 0.5
    is_member = np.concatenate([half, ~half])
    score = jax.vmap(signals.negative_squared_error)
    values = []
    for rows in is_member:
        fitted = np.linalg.lstsq(x[rows], y[rows], rcond=None)[0]
        values.append(np.asarray(score(jnp.asarray(x @ fitted), jnp.asarray(y))))
    values = np.array(values)
    others = np.arange(18) % 9 != 0
    scores = lira.online(values[0], values[others], is_member[others])
    assert metrics.membership(scores, is_member[0]).auc > 0.8
    assert (
        metrics.membership(scores, is_member[0]).auc
        > metrics.membership(values[0], is_member[0]).auc
    )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_signals_of_sequences_do_not_add_in_half_precision(dtype):
    """257 tokens: in bfloat16 the length is rounded to 256, and the sum to a multiple of 4."""
    values = jnp.asarray(-np.random.default_rng(0).exponential(2.0, size=300), dtype)
    exact = np.asarray(values, np.float64)[:257]
    lowest = np.sort(exact)[:128]
    for signal, expected in (
        (signals.total_log_probability, exact.sum()),
        (signals.mean_log_probability, exact.mean()),
        (functools.partial(signals.min_k_probability, share=0.5), lowest.mean()),
    ):
        assert float(signal(values, 257)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 20.0])  # 20 per cent is 0.2
def test_min_k_refuses_what_is_no_share(share):
    with pytest.raises(ValueError, match="Expected 0 < share <= 1"):
        signals.min_k_probability(jnp.array([-1.0, -2.0]), 2, share=share)


def test_a_ratio_to_a_reference_does_not_broadcast(unchecked):
    with pytest.raises(ValueError, match=r"equal shapes .* got \[3\] and \[3, 1\]"):
        signals.reference_ratio(np.zeros(3), np.zeros((3, 1)))


def test_a_probability_may_exceed_one_by_rounding():
    row = np.array([[1 + 2**-23, 0.0]], np.float32)
    np.testing.assert_array_equal(signals.logits_of(row), [[0.0, -np.inf]])
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 1.01"):
        signals.logits_of(np.array([[1.01, 0.0]]))


@pytest.mark.parametrize(
    ("prediction", "target", "error"),
    [
        (np.array([200], np.uint8), np.array([210], np.uint8), 100.0),
        (jnp.array([200], jnp.uint8), jnp.array([210], jnp.uint8), 100.0),
        (jnp.array([300.0], jnp.float16), jnp.array([0.0], jnp.float16), 9e4),
        (np.array([1e9 + 0.5]), np.array([1e9]), 0.25),
    ],
)
def test_squared_errors_neither_wrap_round_nor_overflow(unchecked, prediction, target, error):
    assert float(signals.negative_squared_error(prediction, target)) == -error


def test_squared_errors_do_not_broadcast(unchecked):
    with pytest.raises(ValueError, match=r"equal shapes .* got \[3\] and \[3, 1\]"):
        signals.negative_squared_error(np.zeros(3), np.zeros((3, 1)))
