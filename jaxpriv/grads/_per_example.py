"""Explicit per-example gradients: correct for any loss, and the oracle of the faster forms.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxpriv import _tree
from jaxpriv._types import Batch, Keys, Loss, Params, Scalar

SMALLEST_CLIP_NORM = 1e-12
"""Smallest clip norm: below it, the squares of float32 gradients underflow."""


class ClippedSum(NamedTuple):
    """Sum of the clipped gradients of a batch.

    total: the sum, shaped like the parameters, float32 or wider; its sensitivity is the clip norm.
    norms: norm of each gradient before clipping; 0 at padding, inf where the gradient is not
      finite. Not private.
    """

    total: PyTree
    norms: Float[Array, " b"]


def clip_weights(
    norms: Float[Array, "*b"], mask: Bool[Array, "*b"], *, clip_norm: Scalar
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Computes the weight of each example, min(1, C / norm), or 0 where it must not count.

    Args:
      norms: norms of the per-example gradients; may be NaN or inf.
      mask: which rows are real.
      clip_norm: C.

    Returns:
      The weights (0 at padding and where a gradient is not finite) and the norms (0 at padding,
      inf where a gradient is not finite).
    """
    finite = jnp.isfinite(norms)
    norms = jnp.where(finite, norms, jnp.inf)
    weights = jnp.minimum(1.0, clip_norm / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))
    return jnp.where(mask & finite, weights, 0.0), jnp.where(mask, norms, 0.0)


def total_norms(norms: Sequence[Float[Array, " b"]]) -> Float[Array, " b"]:
    """Computes the norm of each example's gradient from the norms of its parts.

    Args:
      norms: at least one part; each has one norm for every example.

    Returns:
      The square roots of the sums of squares, which are scaled so that they do not overflow.
    """
    return jax.vmap(_tree.norm, in_axes=1)(_tree.stack_in_widest(norms))


def weighted_sum(
    weights: Float[Array, " b"], rows: Float[Array, "b *shape"]
) -> Float[Array, "*shape"]:
    """Contracts rows with their weights; rows of weight 0 may be NaN or infinite.

    Args:
      weights: one for each row.
      rows: gradients, of any float type.

    Returns:
      sum_i weights[i] rows[i], float32 or wider.
    """
    # Weight 0 times inf would be NaN, so such rows are set to 0 first.
    counted = jnp.expand_dims(weights > 0, range(1, rows.ndim))
    safe = _tree.at_least_float32(jnp.where(counted, rows, 0))
    weights = weights.astype(safe.dtype)
    return jnp.tensordot(weights, safe, axes=1, precision=jax.lax.Precision.HIGHEST)


def explicit_sum(
    loss: Loss,
    params: Params,
    batch: Batch,
    mask: Bool[Array, " b"],
    keys: Keys,
    *,
    clip_norm: Scalar,
) -> tuple[ClippedSum, Float[Array, " b"]]:
    """Forms every per-example gradient and sums them clipped; takes b times the parameters' memory.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves.
      batch: pytree with leading axis b.
      mask: which rows are real.
      keys: one for each row.
      clip_norm: C.

    Returns:
      The clipped sum, and the losses.
    """
    per_example = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))
    values, grads = per_example(params, batch, keys)
    # Norm and sum must use the same numbers: XLA may leave out a rounding in one of them.
    grads = jax.lax.optimization_barrier(grads)
    norms = [jax.vmap(_tree.norm)(rows) for rows in jax.tree.leaves(grads)]
    weights, norms = clip_weights(
        total_norms(norms or [jnp.zeros(mask.shape)]), mask, clip_norm=clip_norm
    )
    total = jax.tree.map(lambda rows: weighted_sum(weights, rows), grads)
    return ClippedSum(total, norms), values
