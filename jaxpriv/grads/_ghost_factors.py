"""Per-example gradients as sums of products: their norms, and their weighted sums over a batch.

    uses of a source --join along positions--> factors --norm--> weights --total--> clipped sum

A *factor* represents the gradient with respect to one source, a matrix that is formed only where
that is cheaper. Shapes are for one example unless they have a leading `b`: `t` counts positions,
`i` and `o` rows and columns, `g` groups (of a grouped kernel, or layers of a scan), `v` the rows
of a table.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpriv import _tree

PRECISE = jax.lax.Precision.HIGHEST
"""On GPUs and TPUs a default product rounds to 10 bits or fewer; a norm must not."""

_MAX_GRAM = 512
"""Lookups of more positions are sorted by row instead of forming a Gram matrix of t^2 entries."""


class Outer(NamedTuple):
    """The gradient sum_t left[t] (outer) right[t], for every group."""

    left: Float[Array, "*bg t i"]
    right: Float[Array, "*bg t o"]


class Lookup(NamedTuple):
    """The gradient of a table of v rows: right[t] is added to row ids[t], for every t."""

    ids: Int[Array, "*b t"]
    right: Float[Array, "*b t o"]


class Dense(NamedTuple):
    """The gradient itself, multiplied out."""

    grad: Float[Array, "*bg i o"]


Unformed = Outer | Lookup
Factor = Unformed | Dense


def join(factors: Sequence[Unformed]) -> list[Unformed]:
    """Joins the uses of one source along positions, into at most one Outer and one Lookup."""
    result: list[Unformed] = []
    for kind, axis in ((Outer, -2), (Lookup, -1)):
        same = [f for f in factors if isinstance(f, kind)]
        if len(same) > 1:
            first, second = zip(*same, strict=True)
            same = [kind(jnp.concatenate(first, axis), jnp.concatenate(second, -2))]
        result += same
    return result


def multiplied_out(factors: Sequence[Factor], num_rows: int) -> Dense:
    """Forms the gradient of one example, [*g, i, o]; `num_rows` is v, for lookups."""
    grads = []
    for factor in factors:
        right = _tree.at_least_float32(factor[-1])
        if isinstance(factor, Outer):
            left = _tree.at_least_float32(factor.left)
            grads.append(jnp.einsum("...ti,...to->...io", left, right, precision=PRECISE))
        elif isinstance(factor, Lookup):
            grads.append(_scattered(factor.ids, right, num_rows))
    return Dense(_tree.sum_in_widest(grads))


def _scattered(ids: Array, rows: Array, num_rows: int) -> Array:
    return jnp.zeros((num_rows, rows.shape[-1]), rows.dtype).at[ids].add(rows)


def norm(factors: Sequence[Factor]) -> Float[Array, ""]:
    """Computes the norm of the sum of the factors of one source, rounded up, for one example.

    Where positions nearly cancel, a Gram product loses more digits than the gradient itself: its
    error is relative to terms far larger than the result. With too small a norm an example would
    exceed the clip norm, so a bound on the rounding error is added. Sides are scaled before they
    are squared, so the norm is finite if the gradient is. Each side has its own scale, so that
    sources with a common side share its Gram product.
    """
    if isinstance(factors[0], Dense):
        return _tree.norm(factors[0].grad)
    scaled = [_scaled(factor) for factor in factors]
    # After division by the largest, no product of one position is far above 1.
    largest = jnp.max(jnp.concatenate([size.reshape(-1) for _, size in scaled]), initial=0.0)
    divisor = jnp.minimum(largest, _tree.largest_divisor(largest.dtype))
    divisor = jnp.where(largest == 0, 1.0, divisor)
    scaled = [(factor, size / divisor) for factor, size in scaled]
    grams = [_gram(factor, share) for factor, share in scaled]
    total = _tree.sum_in_widest([square for square, _ in grams])
    diagonal = jnp.concatenate([squares.reshape(-1) for _, squares in grams])
    if len(scaled) == 2:
        total = total + 2 * _inner(*scaled)
    if diagonal.shape[0] > 1:
        rounding = jnp.finfo(total.dtype).eps
        total = jnp.maximum(total, 0.0) + rounding * (
            16 * jnp.sum(diagonal) + jnp.square(jnp.sum(jnp.sqrt(diagonal)))
        )
    return divisor * jnp.sqrt(total)


def _scaled(factor: Factor) -> tuple[Factor, Float[Array, "*g t"]]:
    """Scales each position of each side by its largest entry; returns the product of the scales.

    Scales are powers of two, by which division is exact.
    """
    sides = [_tree.at_least_float32(side) for side in _sides(factor)]
    scales = [_tree.power_of_two(jnp.max(jnp.abs(x), axis=-1, initial=0.0)) for x in sides]
    sides = [
        side / jnp.where(scale > 0, scale, 1.0)[..., None]
        for side, scale in zip(sides, scales, strict=True)
    ]
    scaled = Outer(*sides) if len(sides) == 2 else Lookup(factor[0], sides[0])
    return scaled, _product(scales)


def _product(terms: Sequence[Array]) -> Array:
    return terms[0] if len(terms) == 1 else terms[0] * terms[1]


def _sides(factor: Factor) -> Sequence[Array]:
    return factor if isinstance(factor, Outer) else factor[-1:]


def _gram(
    factor: Factor, share: Float[Array, "*g t"]
) -> tuple[Float[Array, ""], Float[Array, "*g t"]]:
    """Computes the squared norm, and that of each position; `share` weights the positions."""
    if factor[-1].shape[-2] == 1 or _is_long(factor):
        squares = _product([jnp.sum(jnp.square(side), axis=-1) for side in _sides(factor)])
        squares = squares * jnp.square(share)
        return (_sorted_square(factor, share) if _is_long(factor) else jnp.sum(squares)), squares
    grams = [
        jnp.einsum("...ti,...si->...ts", side, side, precision=PRECISE) for side in _sides(factor)
    ]
    if isinstance(factor, Lookup):
        grams = [jnp.where(factor.ids[:, None] == factor.ids[None, :], grams[0], 0)]
    gram = _product(grams) * share[..., :, None] * share[..., None, :]
    return jnp.sum(gram), jnp.diagonal(gram, axis1=-2, axis2=-1)


def _is_long(factor: Factor) -> bool:
    return isinstance(factor, Lookup) and factor.ids.shape[0] > _MAX_GRAM


def _sorted_square(lookup: Factor, share: Float[Array, " t"]) -> Float[Array, ""]:
    """Computes the squared norm of a lookup by sorting: rows with equal ids are added first."""
    assert isinstance(lookup, Lookup)
    order = jnp.argsort(lookup.ids)
    ids = lookup.ids[order]
    slot = jnp.cumsum(jnp.diff(ids, prepend=ids[:1] - 1) != 0) - 1
    rows = (lookup.right * share[:, None])[order]
    return jnp.sum(jnp.square(_scattered(slot, rows, ids.shape[0])))


def _inner(outer: tuple[Factor, Array], lookup: tuple[Factor, Array]) -> Float[Array, ""]:
    """Computes the inner product of both kinds of use of a tied table, as [v, o] matrices."""
    (products, product_share), (rows, row_share) = outer, lookup
    assert isinstance(products, Outer)
    assert isinstance(rows, Lookup)
    agreement = jnp.einsum("to,so->ts", rows.right, products.right, precision=PRECISE)
    share = row_share[:, None] * product_share[None, :]
    return jnp.sum(agreement * share * products.left[:, rows.ids].T)


def weighted_total(
    weights: Float[Array, " b"], factors: Sequence[Factor], num_rows: int
) -> Float[Array, "*g i o"]:
    """Computes the weighted sum of the gradients of a batch, by one contraction for each factor.

    Factors of weight 0 are ignored, also if they are NaN; `num_rows` is v, for lookups.
    """
    totals = []
    for factor in factors:
        right = _counted(weights, factor[-1])
        if isinstance(factor, Dense):
            totals.append(jnp.tensordot(weights.astype(right.dtype), right, 1, precision=PRECISE))
            continue
        right = right * jnp.expand_dims(weights.astype(right.dtype), range(1, right.ndim))
        if isinstance(factor, Lookup):
            totals.append(_scattered(factor.ids, right, num_rows))
        else:
            left = _counted(weights, factor.left)
            totals.append(jnp.einsum("b...ti,b...to->...io", left, right, precision=PRECISE))
    return _tree.sum_in_widest(totals)


def _counted(weights: Float[Array, " b"], rows: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """Sets rows of weight 0 to zero, since 0 times inf would be NaN."""
    return _tree.at_least_float32(
        jnp.where(jnp.expand_dims(weights > 0, range(1, rows.ndim)), rows, 0)
    )
