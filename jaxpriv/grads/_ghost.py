"""Clipped sums without per-example weight gradients, for any JAX function.

    loss --plan--> sites --one backward pass--> factors --norms--> weights --totals--> sum

On a CPU the backward pass is followed by a loop over examples: the gradient of one example is
multiplied out in the caches, and used for both its norm and the sum. Elsewhere all examples are
one batch.

For y = x W, example i's gradient is x_i (outer) delta_i, so its norm is |x_i| |delta_i| and the
clipped sum is one weighted product. The products are recognised in the jaxpr of the loss, so they
may come from any module library or from plain JAX.

References:
  Goodfellow, Efficient Per-Example Gradient Computations, 2015.
  Li et al., Large Language Models Can Be Strong Differentially Private Learners, 2022.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxpriv import _tree
from jaxpriv._types import Batch, Example, Keys, Loss, Params, Scalar
from jaxpriv.grads import _ghost_cost, _ghost_factors, _ghost_run, _ghost_views
from jaxpriv.grads._ghost_factors import Dense, Factor, Unformed
from jaxpriv.grads._ghost_plan import Block, Plan
from jaxpriv.grads._per_example import ClippedSum, clip_weights, total_norms, weighted_sum

Factors = dict[int, list[Unformed]]
"""Index of a block -> its factors."""


class Forms(NamedTuple):
    """How the norms and totals of the blocks of a plan are computed.

    multiplied: blocks whose per-example gradients are multiplied out.
    looped: blocks whose norms are computed in a loop over examples.
    """

    multiplied: frozenset[int]
    looped: frozenset[int]


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

    Leaves that are read by other primitives get explicit per-example gradients in the same
    backward pass. The result equals `_per_example.explicit_sum` up to rounding.

    Args:
      plan: plan of the loss.
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves.
      batch: pytree with leading axis b.
      mask: which rows are real.
      keys: one for each row.
      clip_norm: C.

    Returns:
      The clipped sum, and the losses.
    """
    leaves, treedef = jax.tree.flatten(params)
    gradient = backward(plan, params, batch, keys)
    # XLA may leave out a rounding to bfloat16 in the norm and not in the sum, or vice versa, and it
    # squares a constant cotangent before it is scaled, which underflows.
    gradient = jax.lax.optimization_barrier(gradient)
    forms = choose_forms(plan, factor_shapes(plan, _of_one(gradient.tapes)))
    factors = jax.vmap(lambda tapes, _: _ghost_run.factors(plan, tapes))(gradient.tapes, mask)
    batched = {
        k: formed(plan, k, f, forms, batched=True)
        for k, f in factors.items()
        if k not in forms.looped
    }
    norms = [jax.vmap(_ghost_factors.norm)(f) for f in batched.values()]
    norms += list(gradient.norms.values())
    norms += [jax.vmap(_tree.norm)(rows) for rows in gradient.explicit.values()]
    norms = norms or [jnp.zeros(mask.shape)]
    matrices = {}
    if forms.looped:
        weights, norms, matrices = _by_loop(plan, forms, gradient.tapes, norms, mask, clip_norm)
    else:
        weights, norms = clip_weights(total_norms(norms), mask, clip_norm=clip_norm)
    if plan.two_passes:
        total = _weighted_gradient(loss, params, batch, keys, weights)
        return ClippedSum(total, norms), gradient.value
    for k, f in factors.items():
        if k not in matrices:
            rows = _num_rows(plan.blocks[k])
            matrices[k] = _ghost_factors.weighted_total(weights, batched.get(k, f), rows)
    totals = [jnp.zeros(leaf.shape, _tree.accumulation_dtype(leaf.dtype)) for leaf in leaves]
    for k, matrix in matrices.items():
        for i, grad in _by_leaf(plan.blocks[k], matrix):
            totals[i] = totals[i] + grad
    for i, rows in gradient.explicit.items():
        totals[i] = weighted_sum(weights, rows)
    return ClippedSum(jax.tree.unflatten(treedef, totals), norms), gradient.value


def one_row(batch: Batch, keys: Keys) -> tuple[Example, PyTree]:
    """Returns the shapes of one example and of its key."""
    return jax.eval_shape(lambda b, k: (_tree.take(b, jnp.int32(0)), k[0]), batch, keys)


def backward(plan: Plan, params: Params, batch: Batch, keys: Keys) -> _ghost_run.Gradient:
    """Runs a batch forwards and backwards.

    Args:
      plan: plan of the loss.
      params: trainable leaves.
      batch: pytree with leading axis b.
      keys: one for each row.

    Returns:
      The gradients in parts, with leading axis b.
    """
    leaves = jax.tree.leaves(params)
    return jax.vmap(lambda *row: _ghost_run.gradient(plan, leaves, jax.tree.leaves(row)))(
        batch, keys
    )


def factor_shapes(plan: Plan, tapes: _ghost_run.Tapes) -> Factors:
    """Returns the shapes of the factors of one example, from the shapes of its tapes."""
    return jax.eval_shape(lambda tapes: _ghost_run.factors(plan, tapes), tapes)


def _of_one(tree: PyTree) -> PyTree:
    """Returns the shapes of one row of a batch, which may be empty."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def choose_forms(plan: Plan, factors: Factors) -> Forms:
    """Chooses the forms of all blocks, from the shapes of the factors of one example.

    Blocks with a common cotangent are chosen together, since they share its Gram product.
    """
    groups: dict[Any, list[int]] = {}
    for k in factors:
        cotangents = tuple((use.path, use.delta) for use in plan.blocks[k].uses)
        groups.setdefault(cotangents, []).append(k)
    multiplied = {
        k
        for members in groups.values()
        if _ghost_cost.multiply_out([f for k in members for f in factors[k]])
        for k in members
    }
    macs = {
        k: _ghost_cost.norm_macs(f, multiplied=k in multiplied)
        for k, f in factors.items()
        if not all(_ghost_cost.kind(factor) == "outer product" for factor in f)
    }
    looped = macs if _ghost_cost.loops_over_examples(sum(macs.values())) else ()
    return Forms(frozenset(multiplied), frozenset(looped))


def formed(
    plan: Plan, k: int, factors: Sequence[Factor], forms: Forms, *, batched: bool = False
) -> list[Factor]:
    """Multiplies out the factors of block k if that is its form.

    Args:
      plan: plan of the loss.
      k: index of the block.
      factors: factors of the block for one example.
      forms: forms of the blocks of the plan.
      batched: whether the factors have leading axis b.

    Returns:
      The gradient as the only factor, or the factors unchanged.
    """
    if k not in forms.multiplied:
        return list(factors)

    def multiplied_out(factors: Sequence[Factor]) -> Factor:
        return _ghost_factors.multiplied_out(factors, _num_rows(plan.blocks[k]))

    return [(jax.vmap(multiplied_out) if batched else multiplied_out)(factors)]


def _by_loop(
    plan: Plan,
    forms: Forms,
    tapes: _ghost_run.Tapes,
    norms: list[Float[Array, " b"]],
    mask: Bool[Array, " b"],
    clip_norm: Scalar,
) -> tuple[Float[Array, " b"], Float[Array, " b"], dict[int, Array]]:
    """Computes norms and totals of the looped blocks in a scan over examples.

    Args:
      plan: plan of the loss.
      forms: forms of the blocks of the plan.
      tapes: records and cotangents, with leading axis b.
      norms: norms of the gradients outside the loop.
      mask: which rows are real.
      clip_norm: C.

    Returns:
      The weights, the norms, and the totals of the blocks whose gradients are multiplied out.
    """

    def factors_of(tapes: _ghost_run.Tapes) -> dict[int, list[Factor]]:
        factors = _ghost_run.factors(plan, tapes, forms.looped)
        return {k: formed(plan, k, f, forms) for k, f in factors.items()}

    def step(totals: dict[int, Array], row: Any) -> tuple[dict[int, Array], Any]:
        tapes, norms, real = row
        factors = factors_of(tapes)
        norms = [_ghost_factors.norm(f) for f in factors.values()] + norms
        weight, norm = clip_weights(
            _tree.norm(_tree.stack_in_widest(norms)), real, clip_norm=clip_norm
        )
        totals = {k: total + _weighted(weight, factors[k]) for k, total in totals.items()}
        return totals, (weight, norm)

    def summed(tapes: _ghost_run.Tapes) -> dict[int, Array]:
        return {k: _dense(f) for k, f in factors_of(tapes).items() if k in forms.multiplied}

    shapes = jax.eval_shape(summed, _of_one(tapes))
    zeros = {} if plan.two_passes else _tree.zeros(shapes)
    totals, (weights, all_norms) = jax.lax.scan(step, zeros, (tapes, norms, mask))
    return weights, all_norms, totals


def _dense(factors: Sequence[Factor]) -> Array:
    (factor,) = factors
    assert isinstance(factor, Dense)
    return factor.grad


def _weighted(weight: Float[Array, ""], factors: Sequence[Factor]) -> Array:
    """Weights a gradient; the result is 0 for weight 0, since 0 times inf would be NaN."""
    grad = _dense(factors)
    return weight.astype(grad.dtype) * jnp.where(weight > 0, grad, 0)


def _num_rows(block: Block) -> int:
    return math.prod(block.source.shape[a] for a in block.layout.rows)


def _by_leaf(block: Block, matrix: Array):
    """Distributes the total of a block to its leaves, in their shapes."""
    total = block.layout.to_source(matrix, block.source.shape)
    return _ghost_views.pull_back(block.source, total, len(block.layout.lead))


def _weighted_gradient(
    loss: Loss, params: Params, batch: Batch, keys: Keys, weights: Float[Array, " b"]
) -> PyTree:
    """Computes the gradient of the weighted sum of losses, by a second backward pass.

    Rows of weight 0 may give NaN, so each is replaced by a row of positive weight.
    """
    counts = weights > 0
    rows = jnp.where(counts, jnp.arange(weights.shape[0]), jnp.argmax(counts))
    batch, keys = _tree.take((batch, keys), rows)

    def weighted(params):
        values = jax.vmap(loss, in_axes=(None, 0, 0))(params, batch, keys)
        return jnp.sum(values * weights.astype(values.dtype))

    total = jax.grad(weighted)(params)
    return jax.tree.map(lambda g: _tree.at_least_float32(jnp.where(counts.any(), g, 0)), total)
