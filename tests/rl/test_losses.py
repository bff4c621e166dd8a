"""Losses against numbers worked out by hand, and advantages against a double loop."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv.rl import losses


def slow_advantages(rewards, values, next_values, terminated, done, discount, gae_lambda):
    """The defining sum: discounted errors up to the end of the episode."""
    steps = len(rewards)
    result = np.zeros(steps)
    for t in range(steps):
        weight = 1.0
        for s in range(t, steps):
            target = rewards[s] + discount * (0 if terminated[s] else next_values[s])
            result[t] += weight * (target - values[s])
            weight *= discount * gae_lambda
            if done[s]:
                break
    return result


def test_advantages_by_hand():
    """deltas -0.05, 0.6, 1.5 with discount 0.9; the second step ends an episode."""
    no = jnp.zeros(3, bool)
    ends = jnp.array([False, True, False])
    rewards, values = jnp.array([0.0, 1.0, 1.0]), jnp.array([0.5, 0.4, 0.4])
    next_values = jnp.array([0.5, 7.0, 1.0])
    found = losses.advantages(
        rewards, values, next_values, terminated=ends, done=ends, discount=0.9, gae_lambda=0.5
    )
    np.testing.assert_allclose(found, [-0.05 + 0.45 * 0.6, 0.6, 1.5], atol=1e-6)
    cut = losses.advantages(  # cut off but not ended: the value of what follows counts
        rewards, values, next_values, terminated=no, done=ends, discount=0.9, gae_lambda=0.5
    )
    np.testing.assert_allclose(cut, [-0.05 + 0.45 * 6.9, 6.9, 1.5], atol=1e-6)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(0.99, 0.95), (1.0, 1.0), (0.5, 0.0)])
def test_advantages_equal_the_defining_sum(discount, gae_lambda):
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 40)).astype(np.float32)
    done = rng.random(40) < 0.2
    terminated = done & (rng.random(40) < 0.5)
    found = losses.advantages(
        *map(jnp.asarray, (rewards, values, next_values)),
        terminated=jnp.asarray(terminated),
        done=jnp.asarray(done),
        discount=discount,
        gae_lambda=gae_lambda,
    )
    expected = slow_advantages(rewards, values, next_values, terminated, done, discount, gae_lambda)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.1, 2.0, -2.2, -2.0),  # within the clip
        (1.5, 2.0, -2.4, 0.0),  # a good action is not made more likely
        (0.5, 2.0, -1.0, -2.0),  # one that was made less likely is corrected
        (0.5, -2.0, 1.6, 0.0),
        (1.5, -2.0, 3.0, 2.0),
    ],
)
def test_policy_loss_by_hand(ratio, advantage, expected, slope):
    def loss(log_prob):
        return losses.policy_loss(log_prob, jnp.float32(0), jnp.float32(advantage), clip=0.2)

    value, gradient = jax.value_and_grad(loss)(jnp.float32(math.log(ratio)))
    assert float(value) == pytest.approx(expected, abs=1e-6)
    assert float(gradient) == pytest.approx(slope * ratio, abs=1e-5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.1, 0.81), (0.5, 0.64), (1.0, 0.64), (2.5, 2.25), (-1.0, 4.0)],
)
def test_value_loss_by_hand(value, expected):
    """The old value is 0, the target 1 and the clip 0.2."""
    zero, one = jnp.float32(0), jnp.float32(1)
    found = losses.value_loss(jnp.float32(value), zero, one, clip=0.2)
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_entropy_and_log_prob_by_hand():
    logits = jnp.log(jnp.array([0.5, 0.25, 0.25]))
    assert float(losses.entropy(logits)) == pytest.approx(1.5 * math.log(2), abs=1e-6)
    assert float(losses.log_prob(logits, jnp.int32(1))) == pytest.approx(-2 * math.log(2), abs=1e-6)


def test_actions_that_are_not_allowed_add_nothing_to_the_entropy():
    logits = jnp.array([0.0, -jnp.inf, 0.0])
    value, gradient = jax.value_and_grad(losses.entropy)(logits)
    assert float(value) == pytest.approx(math.log(2))
    np.testing.assert_allclose(gradient, 0.0, atol=1e-7)
