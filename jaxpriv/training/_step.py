"""Pieces of a training step: the noisy mean, the step of the optimiser, the diagnostics.

In the shapes below `b` counts the rows of a padded batch.
"""

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxpriv import _check, _tree
from jaxpriv._types import Params, Scalar

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class State(NamedTuple):
    """State of SGD and DP-SGD.

    params: trainable leaves.
    opt_state: state of the optax optimiser.
    step: number of steps done.
    event: hash of the privacy event of a step, 0 without privacy; `fit` continues a state only
      with an algorithm of the same event.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
    event: UInt32[Array, ""]


class DpsgdInfo(NamedTuple):
    """Diagnostics of a DP-SGD step. Not private: do not publish them.

    mean_norm: mean norm of the per-example gradients before clipping, over the finite ones.
    clipped_share: share of the finite gradients with a norm above the clip norm.
    batch_size: number of real rows; 0 is legal.
    num_nonfinite: number of real rows whose gradient is NaN or infinite and counts as zero.
    """

    mean_norm: Float[Array, ""]
    clipped_share: Float[Array, ""]
    batch_size: Int[Array, ""]
    num_nonfinite: Int[Array, ""]


def non_private_event(steps: int) -> "DpEvent":
    """Returns the event of a training without privacy."""
    import dp_accounting

    _check.positive_int(steps=steps)
    return dp_accounting.NonPrivateDpEvent()


def initial_state(
    optimizer: optax.GradientTransformation, params: Params, event: "DpEvent | None" = None
) -> State:
    """Returns the state before the first step.

    Args:
      optimizer: any optax transformation.
      params: initial parameters.
      event: event of a step; None without privacy.

    Returns:
      The state.
    """
    params = jax.tree.map(jnp.asarray, params)
    event_hash = 0 if event is None else zlib.crc32(repr(event).encode())
    return State(params, optimizer.init(params), jnp.int32(0), jnp.uint32(event_hash))


def noisy_mean(key: PRNGKeyArray, total: PyTree, *, std: Scalar, divisor: float) -> PyTree:
    """Adds noise to a sum, then divides it by a public constant.

    Args:
      key: PRNG key.
      total: clipped sum.
      std: standard deviation of the noise on the sum.
      divisor: public constant; it must not depend on the batch that was drawn.

    Returns:
      (total + N(0, std^2 I)) / divisor, float32 or wider.
    """
    noise = _tree.normal_like(key, total, std=std)
    return jax.tree.map(lambda t, n: (t + n) / divisor, total, noise)


def dpsgd_info(norms: Float[Array, " b"], mask: Bool[Array, " b"], clip_norm: Scalar) -> DpsgdInfo:
    """Summarises the gradient norms of one step.

    Args:
      norms: norms of the gradients before clipping; inf where a gradient is not finite.
      mask: which rows are real.
      clip_norm: C.

    Returns:
      The diagnostics of the step.
    """
    is_finite = mask & jnp.isfinite(norms)

    def mean(values):
        count = jnp.maximum(is_finite.sum(), 1).astype(norms.dtype)
        return jnp.where(is_finite, values, 0).sum() / count

    return DpsgdInfo(
        mean_norm=mean(norms),
        clipped_share=mean((norms > clip_norm).astype(norms.dtype)),
        batch_size=mask.sum(),
        num_nonfinite=(mask & ~is_finite).sum(),
    )


def apply_gradient(optimizer: optax.GradientTransformation, state: Any, grads: PyTree) -> Any:
    """Applies one step of the optimiser.

    Args:
      optimizer: any optax transformation.
      state: state before the step, a `State` or another NamedTuple with its fields.
      grads: gradient, shaped like the parameters, of any float type.

    Returns:
      The state after the step; parameters keep their types.
    """
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, state.params)
    # optax's Adam family raises a float to an int32 power.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), state.params, updates)
    return state._replace(params=params, opt_state=opt_state, step=state.step + 1)
