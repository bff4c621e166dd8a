"""Membership scores of one example from its logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from jaxpriv.metrics import scores
from tests import oracles

BOTH = [scores.negative_loss, scores.logit_confidence]
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


@given(st.lists(st.floats(-30, 30, width=16), min_size=2, max_size=9), st.data())
def test_scores_are_those_of_float64_probabilities(logits, data):
    label = data.draw(st.integers(0, len(logits) - 1))
    z = np.array(logits)
    log_p = special.log_softmax(z)[label]
    log_odds = z[label] - special.logsumexp(np.delete(z, label))
    given_logits = jnp.array(logits, jnp.float32)
    np.testing.assert_allclose(scores.negative_loss(given_logits, label), log_p, rtol=1e-5)
    np.testing.assert_allclose(
        scores.logit_confidence(given_logits, label), log_odds, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("score", BOTH)
@given(st.lists(any_logit, min_size=1, max_size=6), st.data())
def test_no_logits_give_nan(score, logits, data):
    label = data.draw(st.integers(0, len(logits) - 1))
    assert not np.isnan(score(jnp.array(logits, jnp.float32), label))


@pytest.mark.parametrize(
    ("logits", "label", "log_p", "log_odds"),
    [
        ([-np.inf, 0.0], 0, -np.inf, -np.inf),
        ([-np.inf, 0.0], 1, 0.0, np.inf),
        ([-np.inf, 1.0, 1.0], 2, np.log(0.5), 0.0),
        ([np.inf, 0.0], 0, 0.0, 3.4e38),
        ([np.inf, 0.0], 1, -3.4e38, -3.4e38),
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


@pytest.mark.parametrize("score", BOTH)
@pytest.mark.parametrize("dtype", [*FLOATS, np.float32])
def test_vmap_and_jit_equal_a_loop(score, dtype, keys):
    logits = jax.random.normal(keys(1)[0], (7, 5)).astype(dtype)
    labels = jnp.arange(7) % 5
    loop = jnp.stack([score(row, label) for row, label in zip(logits, labels, strict=True)])
    np.testing.assert_allclose(jax.vmap(score)(logits, labels), loop, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(score))(logits, labels), loop, rtol=1e-6)


@pytest.mark.parametrize("score", BOTH)
@pytest.mark.parametrize("label", [1, np.int64(1), np.uint8(1), jnp.uint8(1)])
def test_labels_may_be_of_any_whole_type(score, label):
    logits = np.array([0.5, 2.0, -1.0], np.float32)
    assert score(logits, label) == score(jnp.asarray(logits), 1)


@pytest.mark.parametrize("score", BOTH)
def test_lowers_for_accelerators(score):
    batch = jnp.zeros((4, 3), jnp.bfloat16), jnp.zeros(4, int)
    oracles.assert_lowers(jax.vmap(score), *batch)
