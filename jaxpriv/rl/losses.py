"""Advantages and losses of proximal policy optimisation, for one trajectory or one step.

In the shapes below `t` counts steps and `a` actions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from jaxpriv._types import Scalar

__all__ = ["advantages", "entropy", "log_prob", "policy_loss", "value_loss"]


def advantages(
    rewards: Float[Array, " t"],
    values: Float[Array, " t"],
    next_values: Float[Array, " t"],
    *,
    terminated: Bool[Array, " t"],
    done: Bool[Array, " t"],
    discount: float,
    gae_lambda: float,
) -> Float[Array, " t"]:
    """Estimates the advantage of each action of a trajectory.

    delta_t = r_t + discount (1 - terminated_t) v'_t - v_t, and
    A_t = delta_t + discount lambda (1 - done_t) A_{t+1}, with A = 0 after the last step.

    Args:
      rewards: reward of each step.
      values: value of the observation before each step.
      next_values: value of the observation after each step, v'.
      terminated: whether the step has no successor, so that v' counts as 0.
      done: whether the episode ends with the step, so that the sum ends there.
      discount: gamma, in [0, 1].
      gae_lambda: lambda, in [0, 1].

    Returns:
      The advantages, in units of the reward.

    References:
      Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation,
      2016, equation 16.

    Example:
      >>> no = jnp.zeros(2, bool)
      >>> advantages(
      ...     jnp.array([0.0, 1.0]), jnp.array([0.5, 0.5]), jnp.array([0.5, 1.0]),
      ...     terminated=no, done=no, discount=0.5, gae_lambda=0.5,
      ... ).tolist()
      [0.0, 1.0]
    """
    deltas = rewards + discount * jnp.where(terminated, 0.0, next_values) - values
    decays = discount * gae_lambda * jnp.where(done, 0.0, 1.0)

    def step(later, row):
        delta, decay = row
        advantage = delta + decay * later
        return advantage, advantage

    _, result = jax.lax.scan(step, jnp.zeros_like(deltas[0]), (deltas, decays), reverse=True)
    return result


def log_prob(logits: Float[Array, " a"], action: Integer[Array, ""]) -> Float[Array, ""]:
    """Computes the log probability of an action.

    Args:
      logits: logits of the policy.
      action: index of the action.

    Returns:
      log p(action), in nats.

    Example:
      >>> round(float(log_prob(jnp.zeros(4), jnp.array(1))), 3)  # -log 4
      -1.386
    """
    return jax.nn.log_softmax(logits)[action]


def entropy(logits: Float[Array, " a"]) -> Float[Array, ""]:
    """Computes the entropy of a policy, -sum_a p_a log p_a.

    Args:
      logits: logits of the policy; -inf for an action that is not allowed.

    Returns:
      The entropy, in nats.

    Example:
      >>> round(float(entropy(jnp.zeros(4))), 3)  # log 4
      1.386
    """
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_p) * jnp.where(log_p == -jnp.inf, 0.0, log_p))


def policy_loss(
    log_prob: Float[Array, ""],
    old_log_prob: Float[Array, ""],
    advantage: Float[Array, ""],
    *,
    clip: Scalar,
) -> Float[Array, ""]:
    """Computes the clipped objective of a step, -min(r A, clip(r, 1 - clip, 1 + clip) A).

    r is the ratio of the probabilities of the action under the new and under the old policy.

    Args:
      log_prob: log probability of the action under the current policy.
      old_log_prob: log probability under the policy that drew it.
      advantage: advantage of the action.
      clip: largest change of the ratio that is rewarded; > 0.

    Returns:
      The loss, to be minimised.

    References:
      Schulman et al., Proximal Policy Optimization Algorithms, 2017, equation 7.

    Example:
      >>> half = jnp.log(0.5)
      >>> round(float(policy_loss(jnp.float32(0), half, jnp.float32(3), clip=0.2)), 3)  # ratio 2
      -3.6
    """
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def value_loss(
    value: Float[Array, ""],
    old_value: Float[Array, ""],
    target: Float[Array, ""],
    *,
    clip: Scalar,
) -> Float[Array, ""]:
    """Computes the clipped squared error of a value, max((v - R)^2, (v_clip - R)^2).

    v_clip is v moved into [old v - clip, old v + clip].

    Args:
      value: current value.
      old_value: value when the step was taken.
      target: the return R that it should predict.
      clip: largest change of the value that is rewarded; > 0.

    Returns:
      The loss, to be minimised.

    Example:
      >>> one = jnp.float32(1)
      >>> round(float(value_loss(one, jnp.float32(0), one, clip=0.2)), 3)  # v_clip is 0.2
      0.64
    """
    clipped = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum((value - target) ** 2, (clipped - target) ** 2)
