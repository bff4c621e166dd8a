"""Shared by `fit` and `fit_many`: the scan over steps and a warning."""

from typing import Any

import jax
import optax
from jaxtyping import Int, PRNGKeyArray, PyTree

from jaxpriv import _convolutions, _tree
from jaxpriv.training.algorithms import Algorithm


def scan_steps(
    alg: Algorithm,
    length: int,
    key: PRNGKeyArray,
    state: Any,
    data: PyTree,
    num_steps: Int[jax.Array, ""],
    members: Int[jax.Array, " k"] | None,
) -> tuple[Any, PyTree]:
    """Runs steps in a scan; steps from `num_steps` on leave the state as it is.

    Args:
      alg: the algorithm.
      length: number of steps to scan.
      key: PRNG key of the run; step t draws from fold_in(key, t).
      state: state before the first of the steps.
      data: pytree with one row for each record along the leading axis.
      num_steps: total number of steps of the run.
      members: indices of the records that the sampler draws from; None for all.

    Returns:
      The state and the diagnostics, every leaf [length, ...].
    """

    def step(state, _):
        sample_key, update_key = jax.random.split(jax.random.fold_in(key, state.step))
        indices, mask = alg.sampler.sample(sample_key)
        rows = indices if members is None else members[indices]
        new, info = alg.update(update_key, state, _tree.take(data, rows), mask)
        return optax.tree.where(state.step < num_steps, new, state), info

    return jax.lax.scan(_convolutions.for_loops(step), state, length=length)


def nonfinite_warning(dropped: int, rows: int) -> str:
    """Formats the warning about gradients or losses that are not finite."""
    return (
        f"{dropped} of {rows} per-example gradients or losses are NaN or infinite. DP-SGD counts "
        "such a gradient as zero, so training on them follows the noise alone: check the loss, "
        "the learning rate and the data. info.num_nonfinite has the count of each step."
    )
