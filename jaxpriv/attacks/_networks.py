"""Shared by attacks that train a network: options, objective, training loop, input checks."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.training import _step


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of the attacks that train a network by Adam.

    steps: number of gradient steps.
    batch_size: number of rows of a step; even, since attacks that learn from members and
      non-members draw half of each.
    learning_rate: learning rate of Adam.

    Raises:
      ValueError: if an option is out of range or batch_size is odd.

    Example:
      >>> Training(steps=500).batch_size
      128
      >>> Training(batch_size=33)
      Traceback (most recent call last):
      ValueError: Expected an even batch_size, got batch_size=33.
    """

    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        _check.positive_int(steps=self.steps, batch_size=self.batch_size)
        _check.positive(learning_rate=self.learning_rate)
        if self.batch_size % 2:
            raise ValueError(f"Expected an even batch_size, got batch_size={self.batch_size}.")


DEFAULT = Training()


def gain(members: Float[Array, " a"], nonmembers: Float[Array, " b"]) -> Float[Array, ""]:
    """Computes the attacker's gain from the log odds of h, the probability of membership.

    E[log h | member] / 2 + E[log(1 - h) | non-member] / 2, which is -log 2 without evidence and 0
    for a perfect attack.
    """
    return (jax.nn.log_sigmoid(members).mean() + jax.nn.log_sigmoid(-nonmembers).mean()) / 2


def minimise(
    key: PRNGKeyArray,
    loss: Callable[[Params, PRNGKeyArray], Float[Array, ""]],
    params: Params,
    *,
    training: Training,
) -> Params:
    """Minimises `loss(params, key)`, which draws its own batch, by Adam. The caller jits."""
    optimizer = optax.adam(training.learning_rate)

    def step(state, step_key):
        grads = jax.grad(loss)(state.params, step_key)
        return _step.apply_gradient(optimizer, state, grads), None

    start = _step.initial_state(optimizer, params)
    end, _ = jax.lax.scan(step, start, jax.random.split(key, training.steps))
    return end.params


def safe_std(values: Float[np.ndarray, "n *d"]) -> Float[np.ndarray, "*d"]:
    """Computes standard deviations over rows, or 1 where nothing varies, for use as divisors."""
    deviation = values.std(axis=0)
    return np.where(deviation > 1e-6 * np.abs(values).max(axis=0), deviation, 1.0)


def as_float64(name: str, values: Shaped[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Returns real numbers in float64; raises ValueError for NaN, not for infinities."""
    return _check.real_array(name, values).astype(np.float64)


def finite_float64(
    name: str, values: Shaped[Array | np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Returns real numbers in float64; raises ValueError for NaN and infinities."""
    array = as_float64(name, values)
    if np.isinf(array).any():
        raise ValueError(f"Expected finite {name}, got {np.isinf(array).sum()} infinite.")
    return array
