"""Explicit per-example gradients: always right, and the oracle for everything faster.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxpriv import _tree
from jaxpriv._types import Batch, Keys, Loss, Params, Scalar


class ClippedSum(NamedTuple):
    """The sum of clipped per-example gradients.

    total: like the parameters, float32 or wider; its sensitivity is the clip norm.
    norms: before clipping, 0 at padding, inf where a gradient was not finite. Not private.
    """

    total: PyTree
    norms: Float[Array, " b"]


def clip_weights(
    norms: Float[Array, "*b"], mask: Bool[Array, "*b"], *, clip_norm: Scalar
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Gives each example the weight min(1, C / norm), and 0 where it must not count.

    Args:
      norms: of the per-example gradients; may be NaN or inf.
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
    """Norm over several parts of a gradient, from the norm of each; scaled before squaring.

    Args:
      norms: at least one, each with one entry an example.

    Returns:
      The square root of the sum of squares.
    """
    return jax.vmap(_tree.norm, in_axes=1)(_tree.stack(norms))


def weighted_sum(
    weights: Float[Array, " b"], rows: Float[Array, "b *shape"]
) -> Float[Array, "*shape"]:
    """Contracts rows with their weights; rows of weight 0 may hold anything, even NaN.

    Args:
      weights: one a row.
      rows: any float type.

    Returns:
      sum_i weights[i] rows[i], float32 or wider.
    """
    counted = jnp.expand_dims(weights > 0, range(1, rows.ndim))
    safe = _tree.wide(jnp.where(counted, rows, 0))
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
    """Sums clipped gradients that are all formed: `b` times the memory of the parameters.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves.
      batch: leading axis b.
      mask: which rows are real.
      keys: one for each row.
      clip_norm: C.

    Returns:
      The clipped sum, and the losses.
    """
    one = jax.value_and_grad(loss)
    values, grads = jax.vmap(one, in_axes=(None, 0, 0))(params, batch, keys)
    # The norm and the sum must see the same numbers: XLA may leave out a rounding in one of them.
    grads = jax.lax.optimization_barrier(grads)
    norms = [jax.vmap(_tree.norm)(rows) for rows in jax.tree.leaves(grads)]
    weights, norms = clip_weights(
        total_norms(norms or [jnp.zeros(mask.shape)]), mask, clip_norm=clip_norm
    )
    total = jax.tree.map(lambda rows: weighted_sum(weights, rows), grads)
    return ClippedSum(total, norms), values
