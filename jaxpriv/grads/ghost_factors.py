"""Per-example gradients that are never multiplied out, and what can be had from them.

A *factor* is one layer's gradient for one example, written as outer products. Shapes are for one
example unless a leading `b` says otherwise: `t` counts positions, `i` and `o` the two sides of a
kernel, `g` the groups of a grouped one, `v` the rows of an embedding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

from jaxpriv import _tree

PRECISE = jax.lax.Precision.HIGHEST
"""On GPUs and TPUs a default product rounds to 10 bits or fewer; a norm must not."""

_LONGEST_GRAM = 512


class Outer(NamedTuple):
    """The gradient sum_t left[t] (outer) right[t], in every group, reshaped to the leaf."""

    left: Float[Array, "*bg t i"]
    right: Float[Array, "*bg t o"]


class Lookup(NamedTuple):
    """The gradient of a table of v rows: right[t] added to row ids[t], for every t."""

    ids: Int[Array, "*b t"] | UInt[Array, "*b t"]
    right: Float[Array, "*b t o"]


class Whole(NamedTuple):
    """The gradient itself, in the shape of the leaf."""

    grad: Float[Array, "..."]


Factor = Outer | Lookup | Whole


def method(factor: Factor) -> str:
    """How the norm of one example's factor is taken: the way with fewer multiplications.

    One position: |left| |right|. Several: the Gram product over pairs of positions, t^2 (i + o),
    or the gradient multiplied out, t i o.

    Args:
      factor: of one example; shapes suffice.

    Returns:
      "outer product", "gram", "gradient" or "lookup".
    """
    if isinstance(factor, Whole):
        return "gradient"
    if isinstance(factor, Lookup):
        return "lookup"
    (t, i), o = factor.left.shape[-2:], factor.right.shape[-1]
    if t == 1:
        return "outer product"
    return "gram" if t * (i + o) < i * o else "gradient"


class Group(NamedTuple):
    """Leaves whose gradients are taken together: the blocks of one matrix, or a single leaf.

    leaves: positions among the leaves of the parameters, row of blocks by row.
    heights: rows of each row of blocks.
    widths: columns of each column of blocks.
    shape: of the whole: that of the single leaf, or (sum of heights, sum of widths).
    """

    leaves: tuple[int, ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    shape: tuple[int, ...]


def grouped(
    uses: dict[int, list[Factor]], shapes: dict[int, tuple[int, ...]]
) -> dict[Group, list[Factor]]:
    """Adds up the uses of each leaf, and joins leaves that share a side of their products.

    A leaf's gradient is the sum over its uses, whose norm is wanted. The gates of a recurrent
    cell share their input, its two kernels the cotangents: one product serves all of them.

    Args:
      uses: of one example; by position of the leaf, one factor a use.
      shapes: of the leaves.

    Returns:
      For each group at most one Outer and one Lookup, or a single Whole.
    """
    concatenated: dict[tuple[int, ...], Array] = {}
    rows: dict[int, dict[int, Outer]] = {}
    groups: dict[Group, list[Factor]] = {}
    for leaf, factors in uses.items():
        parts = _joined(factors, concatenated)
        if len(parts) == 1 and isinstance(parts[0], Outer) and parts[0].left.ndim == 2:
            rows.setdefault(id(parts[0].left), {})[leaf] = parts[0]
        else:
            groups[Group((leaf,), (1,), (1,), shapes[leaf])] = parts
    grids: dict[tuple[int, ...], list[dict[int, Outer]]] = {}
    for row in rows.values():
        grids.setdefault(tuple(id(outer.right) for outer in row.values()), []).append(row)
    for grid in grids.values():
        lefts = [next(iter(row.values())).left for row in grid]
        rights = [outer.right for outer in grid[0].values()]
        heights, widths = (tuple(x.shape[-1] for x in side) for side in (lefts, rights))
        leaves = tuple(leaf for row in grid for leaf in row)
        shape = shapes[leaves[0]] if len(leaves) == 1 else (sum(heights), sum(widths))
        outer = Outer(jnp.concatenate(lefts, axis=-1), jnp.concatenate(rights, axis=-1))
        groups[Group(leaves, heights, widths, shape)] = [outer]
    return {group: _decided(parts, group.shape) for group, parts in groups.items()}


def _joined(factors: list[Factor], concatenated: dict[tuple[int, ...], Array]) -> list[Factor]:
    """Concatenates the positions of all uses; equal left sides stay one array."""

    def join(sides: tuple[Array, ...], axis: int) -> Array:
        ids = tuple(id(side) for side in sides)
        if ids not in concatenated:
            concatenated[ids] = sides[0] if len(sides) == 1 else jnp.concatenate(sides, axis=axis)
        return concatenated[ids]

    result: list[Factor] = []
    outers = [f for f in factors if isinstance(f, Outer)]
    if outers:
        result.append(Outer(*(join(side, -2) for side in zip(*outers, strict=True))))
    lookups = [f for f in factors if isinstance(f, Lookup)]
    if lookups:
        ids, rights = zip(*lookups, strict=True)
        result.append(Lookup(join(ids, -1), join(rights, -2)))
    return result + [f for f in factors if isinstance(f, Whole)]


def _decided(parts: list[Factor], shape: tuple[int, ...]) -> list[Factor]:
    """Multiplies out where that is cheaper, or where a part is multiplied out already."""
    if any(method(part) == "gradient" for part in parts):
        grads = [multiplied_out(part, shape).grad for part in parts]
        return [Whole(sum(grads[1:], grads[0]))]
    return parts


def split(total: Float[Array, "..."], group: Group) -> dict[int, Float[Array, "..."]]:
    """Hands the blocks of a group's matrix to its leaves.

    Args:
      total: of the group's shape.
      group: which leaves.

    Returns:
      By position of the leaf; blocks as [i, o].
    """
    if len(group.leaves) == 1:
        return {group.leaves[0]: total}
    blocks = [
        block
        for row in jnp.split(total, _ends(group.heights))
        for block in jnp.split(row, _ends(group.widths), axis=-1)
    ]
    return dict(zip(group.leaves, blocks, strict=True))


def _ends(sizes: tuple[int, ...]) -> list[int]:
    return [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]


def multiplied_out(factor: Factor, shape: tuple[int, ...]) -> Whole:
    """Forms the gradient of one example.

    Args:
      factor: of one example.
      shape: of the leaf.

    Returns:
      The gradient, float32 or wider.
    """
    if isinstance(factor, Whole):
        return Whole(_tree.wide(factor.grad))
    if isinstance(factor, Lookup):
        rows = _tree.wide(factor.right)
        return Whole(jnp.zeros(shape, rows.dtype).at[factor.ids].add(rows))
    left, right = _tree.wide(factor.left), _tree.wide(factor.right)
    return Whole(as_leaf(jnp.einsum("...ti,...to->...io", left, right, precision=PRECISE), shape))


def as_leaf(product: Float[Array, "*g i o"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Brings [i, o], or [g, i, o] with output channels grouped, to the shape of the leaf."""
    return (product if product.ndim == 2 else jnp.moveaxis(product, 0, 1)).reshape(shape)


def squared_norm(factors: list[Factor]) -> Float[Array, ""]:
    """Squared norm of the sum of a group's factors, for one example; rounded up.

    A Gram product loses to cancellation what the gradient itself does not: where positions nearly
    cancel, its error is that of terms far larger than the result. Too small a norm would let an
    example exceed the clip norm, so what rounding may hide is added.

    Args:
      factors: from `grouped`.

    Returns:
      The squared norm, >= 0.
    """
    if isinstance(factors[0], Whole):
        return jnp.sum(jnp.square(_tree.wide(factors[0].grad)))
    # |left_t| |right_t| of every position of every factor.
    # The barrier keeps XLA from squaring a constant factor by itself, where that underflows.
    sizes = jax.lax.optimization_barrier(jnp.concatenate([_sizes(f) for f in factors]))
    if sizes.shape[0] == 1:
        return jnp.square(sizes[0])
    total = sum((_square(f) for f in factors[1:]), _square(factors[0]))
    outer = next((f for f in factors if isinstance(f, Outer)), None)
    lookup = next((f for f in factors if isinstance(f, Lookup)), None)
    if outer is not None and lookup is not None:
        total = total + 2 * _inner(lookup, outer)
    rounding = jnp.finfo(sizes.dtype).eps
    hidden = rounding * (16 * jnp.sum(jnp.square(sizes)) + jnp.square(jnp.sum(sizes)))
    # Below this a square underflows, and only the triangle inequality is left.
    unsafe = jnp.min(jnp.stack([_largest(side) for f in factors for side in _sides(f)])) < 1e-15
    return jnp.where(unsafe, jnp.square(jnp.sum(sizes)), jnp.maximum(total, 0.0) + hidden)


def _sides(factor: Factor) -> list[Array]:
    """The real-valued sides of the products."""
    return [factor.left, factor.right] if isinstance(factor, Outer) else [factor[-1]]


def _sizes(factor: Factor) -> Float[Array, " t"]:
    """|left_t| |right_t| for every position and group, without squaring a large or small one."""
    norms = [_row_norms(side) for side in _sides(factor)]
    return norms[0].reshape(-1) if len(norms) == 1 else (norms[0] * norms[1]).reshape(-1)


def _row_norms(rows: Float[Array, "*g t i"]) -> Float[Array, "*g t"]:
    rows = _tree.wide(rows)
    largest = _largest(rows)
    scale = jnp.where(largest > 0, largest, 1.0)
    return scale * jnp.sqrt(jnp.sum(jnp.square(rows / scale), axis=-1))


def _largest(side: Array) -> Float[Array, ""]:
    return jnp.max(jnp.abs(_tree.wide(side)), initial=0.0)


def weighted_total(
    weights: Float[Array, " b"], factors: list[Factor], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """Sums the gradients of a batch, each times its weight: one contraction a factor.

    Args:
      weights: 0 where a row must not count; what it holds is then ignored, NaN too.
      factors: of one group, for the whole batch: leading axis b.
      shape: of the group.

    Returns:
      sum_i weights[i] gradient_i in that shape, float32 or wider.
    """
    parts = [_total(weights, factor, shape) for factor in factors]
    return sum(parts[1:], parts[0])


def _square(factor: Factor) -> Float[Array, ""]:
    if isinstance(factor, Lookup):
        return _lookup_square(factor)
    assert isinstance(factor, Outer)
    left, right = _tree.wide(factor.left), _tree.wide(factor.right)
    grams = [jnp.einsum("...ti,...si->...ts", x, x, precision=PRECISE) for x in (left, right)]
    return jnp.sum(grams[0] * grams[1])


def _lookup_square(lookup: Lookup) -> Float[Array, ""]:
    """Equal ids add up before they are squared: by a masked Gram, or by sorting when long."""
    ids, rows = lookup.ids, _tree.wide(lookup.right)
    if ids.shape[0] <= _LONGEST_GRAM:
        gram = jnp.einsum("to,so->ts", rows, rows, precision=PRECISE)
        return jnp.sum(jnp.where(ids[:, None] == ids[None, :], gram, 0))
    order = jnp.argsort(ids)
    is_new = jnp.diff(ids[order], prepend=ids[order][:1] - 1) != 0
    slot = jnp.cumsum(is_new) - 1
    return jnp.sum(jnp.square(jnp.zeros_like(rows).at[slot].add(rows[order])))


def _inner(lookup: Lookup, outer: Outer) -> Float[Array, ""]:
    """Inner product of the two uses of a tied table, as [v, o] matrices."""
    right, left = _tree.wide(outer.right), _tree.wide(outer.left)
    agreement = jnp.einsum("to,so->ts", _tree.wide(lookup.right), right, precision=PRECISE)
    return jnp.sum(agreement * left[:, lookup.ids].T)


def _total(
    weights: Float[Array, " b"], factor: Factor, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    if isinstance(factor, Whole):
        rows = _counted(weights, factor.grad)
        return jnp.tensordot(weights.astype(rows.dtype), rows, axes=1, precision=PRECISE)
    right = _counted(weights, factor.right)
    right = right * jnp.expand_dims(weights.astype(right.dtype), range(1, right.ndim))
    if isinstance(factor, Lookup):
        return jnp.zeros(shape, right.dtype).at[factor.ids].add(right)
    left = _counted(weights, factor.left)
    return as_leaf(jnp.einsum("b...ti,b...to->...io", left, right, precision=PRECISE), shape)


def _counted(weights: Float[Array, " b"], rows: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """Zero where the weight is: weight 0 times inf would be NaN."""
    return _tree.wide(jnp.where(jnp.expand_dims(weights > 0, range(1, rows.ndim)), rows, 0))
