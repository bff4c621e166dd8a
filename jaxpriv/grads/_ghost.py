"""Clipped sums without per-example weight gradients, for any JAX function.

    loss --plan--> sites --one backward pass--> factors --norms--> weights --totals--> sum

For y = x W, example i's gradient is x_i (outer) delta_i, so its norm is |x_i| |delta_i| and the
clipped sum is one weighted product. The products are found in the jaxpr of the loss, so it does
not matter which library, or no library, has written them.

References:
  Goodfellow, Efficient Per-Example Gradient Computations, 2015.
  Li et al., Large Language Models Can Be Strong Differentially Private Learners, 2022.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxpriv import _tree
from jaxpriv._types import Batch, Example, Keys, Loss, Params, Scalar
from jaxpriv.grads import _ghost_cost, _ghost_factors, _ghost_run, _ghost_views
from jaxpriv.grads._ghost_factors import Factor
from jaxpriv.grads._ghost_plan import Block, Plan
from jaxpriv.grads._per_example import ClippedSum, clip_weights, total_norms, weighted_sum


def ghost_sum(
    plan: Plan,
    loss: Loss,
    params: Params,
    batch: Batch,
    mask: Bool[Array, " b"],
    keys: Keys,
    *,
    clip_norm: Scalar,
) -> tuple[ClippedSum, Float[Array, " b"]]:
    """Sums clipped gradients from the operands and output cotangents of products.

    Leaves that something else reads get explicit per-example gradients in the same backward pass.
    Equal to `_per_example.explicit_sum` up to rounding.

    Args:
      plan: of the loss.
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves.
      batch: leading axis b.
      mask: which rows are real.
      keys: one for each row.
      clip_norm: C.

    Returns:
      The clipped sum, and the losses.
    """
    leaves, treedef = jax.tree.flatten(params)
    gradient = gradients(plan, params, batch, keys)
    if plan.narrow:
        # XLA may leave out a rounding to bfloat16 in the norm and not in the sum, or vice versa.
        gradient = jax.lax.optimization_barrier(gradient)
    norms = [jax.vmap(_ghost_factors.norm)(f) for f in gradient.factors.values()]
    norms += list(gradient.norms.values())
    norms += [jax.vmap(_tree.norm)(rows) for rows in gradient.explicit.values()]
    weights, norms = clip_weights(
        total_norms(norms or [jnp.zeros(mask.shape)]), mask, clip_norm=clip_norm
    )
    if plan.two_passes:
        total = _weighted_gradient(loss, params, batch, keys, weights)
        return ClippedSum(total, norms), gradient.value
    totals = [jnp.zeros(leaf.shape, _tree.wide_dtype(leaf.dtype)) for leaf in leaves]
    for k, factors in gradient.factors.items():
        for i, part in _block_total(plan.blocks[k], weights, factors):
            totals[i] = totals[i] + part
    for i, rows in gradient.explicit.items():
        totals[i] = weighted_sum(weights, rows)
    return ClippedSum(jax.tree.unflatten(treedef, totals), norms), gradient.value


def one_row(batch: Batch, keys: Keys) -> tuple[Example, PyTree]:
    """Returns the shapes of one example and of its key."""
    return jax.eval_shape(lambda b, k: (_tree.take(b, jnp.int32(0)), k[0]), batch, keys)


def gradients(plan: Plan, params: Params, batch: Batch, keys: Keys) -> _ghost_run.Gradient:
    """Runs a batch forwards and backwards; products are formed where that is cheaper.

    Args:
      plan: of the loss.
      params: trainable leaves.
      batch: leading axis b.
      keys: one for each row.

    Returns:
      The gradients in parts, with leading axis b.
    """
    leaves = jax.tree.leaves(params)

    def one(example, key):
        gradient = _ghost_run.gradient(plan, leaves, jax.tree.leaves((example, key)))
        factors = {
            k: _cheapest(plan.blocks[k], factors, keys.shape[0])
            for k, factors in gradient.factors.items()
        }
        return gradient._replace(factors=factors)

    return jax.vmap(one)(batch, keys)


def _cheapest(block: Block, factors: list[Factor], rows: int) -> list[Factor]:
    if any(_ghost_cost.method(factor, rows) == "gradient" for factor in factors):
        return [_ghost_factors.multiplied_out(factors, _num_rows(block))]
    return factors


def _num_rows(block: Block) -> int:
    return math.prod(block.source.shape[a] for a in block.layout.rows)


def _block_total(block: Block, weights: Float[Array, " b"], factors: list[Factor]):
    """The weighted sum of a block's gradients, leaf by leaf."""
    matrix = _ghost_factors.weighted_total(weights, factors, _num_rows(block))
    total = block.layout.to_source(matrix, block.source.shape)
    return _ghost_views.pull_back(block.source, total, len(block.layout.lead))


def _weighted_gradient(
    loss: Loss, params: Params, batch: Batch, keys: Keys, weights: Float[Array, " b"]
) -> PyTree:
    """The gradient of the weighted sum of losses, by a second backward pass.

    Rows of weight 0 may hold anything, NaN too: a row that counts is put in their place.
    """
    counts = weights > 0
    rows = jnp.where(counts, jnp.arange(weights.shape[0]), jnp.argmax(counts))
    batch, keys = _tree.take((batch, keys), rows)

    def weighted(params):
        values = jax.vmap(loss, in_axes=(None, 0, 0))(params, batch, keys)
        return jnp.sum(values * weights.astype(values.dtype))

    total = jax.grad(weighted)(params)
    return jax.tree.map(lambda g: _tree.wide(jnp.where(counts.any(), g, 0)), total)
