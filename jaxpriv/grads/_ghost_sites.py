"""Sites: primitives that combine a view with an activation, and the factors of their gradients.

    dot_general, convolution:  gradient = sum_t left[t] (outer) right[t]   (`Outer`)
    gather, dynamic_slice:     right[t] is added to row ids[t]             (`Lookup`)

Factors are laid out by the axes of the view's source: a `Layout` lists which axes are rows and
which are columns, so that uses of one source can be added and converted back to its shape. All
shapes are for one example.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxpriv.grads import _ghost_jaxpr
from jaxpriv.grads._ghost_factors import Lookup, Outer, Unformed
from jaxpriv.grads._ghost_views import View


class Layout(NamedTuple):
    """Correspondence between a matrix [*groups, rows, columns] and an array shaped as a source.

    lead: one axis for each enclosing scan that reads another row in each iteration.
    groups, rows, columns: axes of the source; those of size 1 may be missing.
    feature_groups: number of groups of a grouped convolution, in which the last axis is split.
    """

    lead: tuple[int, ...]
    groups: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    feature_groups: int = 1

    def to_source(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Converts a matrix to the shape of the source, with the `lead` axes first."""
        if self.feature_groups > 1:
            matrix = jnp.moveaxis(matrix.reshape(*self.lead, *matrix.shape[-3:]), -3, -2)
        axes = self.groups + self.rows + self.columns
        axes += tuple(a for a in range(len(shape)) if a not in axes)
        full = matrix.reshape(*self.lead, *(shape[a] for a in axes))
        n = len(self.lead)
        return full.transpose(*range(n), *(n + a for a in np.argsort(axes)))


class Site(NamedTuple):
    """A primitive with one view among its operands.

    view: parameter entries that the primitive reads.
    position: position of the view among the operands.
    operand: position of the operand that the gradient needs; None if it needs none.
    layout: layout of the factor.
    factor: (operand, cotangent of the output) -> factor, for one iteration of enclosing scans.
    """

    view: View
    position: int
    operand: int | None
    layout: Layout
    factor: Callable[[Any, Array], Unformed]


def match(eqn: Any, operands: list[View | None]) -> Site | None:
    """Recognises a site.

    Args:
      eqn: an equation with at least one view among its operands.
      operands: a view or None for each operand.

    Returns:
      The site, or None if the gradient of the views must be explicit.
    """
    rule = _RULES.get(eqn.primitive.name)
    if rule is None or sum(view is not None for view in operands) != 1:
        return None
    if not all(_ghost_jaxpr.is_real(v.aval.dtype) for v in eqn.outvars):
        return None
    if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in eqn.invars):
        return None
    return rule(eqn, operands)


def _flat(x: Array, *groups: tuple[int, ...]) -> Array:
    """Transposes to the given groups of axes, and merges each group into one axis."""
    order = [axis for group in groups for axis in group]
    return x.transpose(order).reshape([math.prod(x.shape[a] for a in group) for group in groups])


def _dot_general(eqn: Any, operands: list[View | None]) -> Site | None:
    """out[b, x, w] = sum_c x[b, x, c] w[b, c, w]: rows are contracted axes of the view."""
    contracting, batch = eqn.params["dimension_numbers"]
    at = 0 if operands[0] is not None else 1
    view = operands[at]
    assert view is not None
    view_rows, x_rows = contracting[at], contracting[1 - at]
    view_groups, x_groups = batch[at], batch[1 - at]
    x_ndim = len(eqn.invars[1 - at].aval.shape)
    view_columns = _without(len(view.axes), (*view_rows, *view_groups))
    x_positions = _without(x_ndim, (*x_rows, *x_groups))
    out_groups = tuple(range(len(x_groups)))
    first = len(view_columns) if at == 0 else 0
    out_positions = tuple(len(out_groups) + first + i for i in range(len(x_positions)))
    out_columns = _without(
        len(out_groups) + len(x_positions) + len(view_columns), (*out_groups, *out_positions)
    )
    groups, g = _sorted(view, view_groups)
    rows, r = _sorted(view, view_rows)
    columns, c = _sorted(view, view_columns)
    swap = bool(columns) and (not rows or columns[0] < rows[0])

    def factor(x: Array, delta: Array) -> Unformed:
        left = _flat(x, tuple(x_groups[i] for i in g), x_positions, tuple(x_rows[i] for i in r))
        right = _flat(
            delta, tuple(out_groups[i] for i in g), out_positions, tuple(out_columns[i] for i in c)
        )
        if not view_groups:
            left, right = left[0], right[0]
        return Outer(right, left) if swap else Outer(left, right)

    layout = Layout((), groups, columns, rows) if swap else Layout((), groups, rows, columns)
    return Site(view, at, 1 - at, layout, factor)


def _without(ndim: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in range(ndim) if a not in axes)


def _sorted(view: View, places: tuple[int, ...]) -> tuple[tuple[int, ...], list[int]]:
    """Returns the source's axes (of size > 1) at these places, sorted, and the order of places."""
    order = sorted(
        range(len(places)), key=lambda i: -1 if (a := view.axes[places[i]]) is None else a
    )
    return _source_axes(view, tuple(places[i] for i in order)), order


def _source_axes(view: View, places: tuple[int, ...]) -> tuple[int, ...]:
    axes = [view.axes[place] for place in places if view.shape[place] != 1]
    return tuple(axis for axis in axes if axis is not None)


def _convolution(eqn: Any, operands: list[View | None]) -> Site | None:
    """Treats a convolution as a product with the patches of its input; its batch are positions."""
    view, params = operands[1], eqn.params
    if view is None or params["batch_group_count"] != 1:
        return None
    lhs, rhs, out = params["dimension_numbers"]
    groups = params["feature_group_count"]
    window = tuple(view.shape[a] for a in rhs[2:])
    rows = _source_axes(view, (*rhs[2:], rhs[1]))
    columns = _source_axes(view, rhs[:1])

    def factor(x: Array, delta: Array) -> Unformed:
        images = x.transpose(lhs[0], *lhs[2:], lhs[1])
        delta = delta.transpose(out[0], *out[2:], out[1])
        config = [
            (low, high, d - 1)
            for (low, high), d in zip(params["padding"], params["lhs_dilation"], strict=True)
        ]
        images = jax.lax.pad(images, jnp.zeros((), x.dtype), [(0, 0, 0), *config, (0, 0, 0)])
        patches = _patches(
            images, delta.shape[1:-1], window, params["window_strides"], params["rhs_dilation"]
        )
        t, places, channels = patches.shape
        width, features = channels // groups, delta.shape[-1] // groups
        left = patches.reshape(t, places, groups, width).transpose(2, 0, 1, 3)
        left = left.reshape(groups, t, places * width)
        right = delta.reshape(t, groups, features).transpose(1, 0, 2)
        return Outer(left, right) if groups > 1 else Outer(left[0], right[0])

    return Site(view, 1, 0, Layout((), (), rows, columns, groups), factor)


def _patches(
    images: Array,
    spatial: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Array:
    """[n, *padded, c] -> [t, window, c]: one strided slice for each place in the window."""
    if 0 in spatial:
        return jnp.zeros((0, math.prod(window), images.shape[-1]), images.dtype)
    slices = []
    for place in np.ndindex(*window):
        start = [p * d for p, d in zip(place, dilation, strict=True)]
        stop = [b + (n - 1) * s + 1 for b, n, s in zip(start, spatial, stride, strict=True)]
        slices.append(
            jax.lax.slice(
                images,
                (0, *start, 0),
                (images.shape[0], *stop, images.shape[-1]),
                (1, *stride, 1),
            )
        )
    return jnp.stack(slices, axis=-2).reshape(
        images.shape[0] * math.prod(spatial), len(slices), images.shape[-1]
    )


def _gather(eqn: Any, operands: list[View | None]) -> Site | None:
    """Recognises lookups of complete rows along one axis, with out-of-range ids as in `mode`."""
    view, numbers = operands[0], eqn.params["dimension_numbers"]
    mapped, sizes = numbers.start_index_map, eqn.params["slice_sizes"]
    drops = eqn.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
    if view is None or numbers.operand_batching_dims or (drops and len(mapped) > 1):
        return None
    # Along an axis that is read completely the start can only be 0, unless ids may be dropped.
    axes = mapped if len(mapped) == 1 else [a for a in mapped if sizes[a] != view.shape[a]]
    if len(axes) != 1 or not _whole_rows(view, axes[0], sizes):
        return None
    (axis,), num_rows = axes, view.shape[axes[0]]
    stored = _without(len(view.axes), numbers.collapsed_slice_dims)
    columns, order = _sorted(view, _without(len(view.axes), (axis,)))
    offsets = [numbers.offset_dims[stored.index(a)] for a in _without(len(view.axes), (axis,))]

    def factor(ids: Array, delta: Array) -> Unformed:
        ids = ids[..., mapped.index(axis)].reshape(-1)
        ids = ids.astype(jnp.int32) if ids.dtype.itemsize < 4 else ids
        right = _flat(delta, _without(delta.ndim, tuple(offsets)), tuple(offsets[i] for i in order))
        exists = (ids >= 0) & (ids < num_rows)
        if drops:
            right = jnp.where(exists[:, None], right, jnp.zeros((), right.dtype))
        return Lookup(jnp.clip(ids, 0, num_rows - 1).astype(jnp.int32), right)

    return _lookup(view, axis, columns, 1, factor)


def _dynamic_slice(eqn: Any, operands: list[View | None]) -> Site | None:
    """Recognises a slice of one row at a clamped start; along other axes the start is 0."""
    view, sizes = operands[0], eqn.params["slice_sizes"]
    if view is None:
        return None
    axes = [a for a, size in enumerate(sizes) if size != view.shape[a]]
    if len(axes) != 1 or not _whole_rows(view, axes[0], sizes):
        return None
    (axis,) = axes
    columns, order = _sorted(view, _without(len(view.axes), (axis,)))
    rest, num_rows = _without(len(view.axes), (axis,)), view.shape[axis]

    def factor(start: Array, delta: Array) -> Unformed:
        ids = jnp.clip(start.reshape(1), 0, num_rows - 1).astype(jnp.int32)
        return Lookup(ids, _flat(delta, (axis,), tuple(rest[i] for i in order)))

    return _lookup(view, axis, columns, 1 + axis, factor)


def _whole_rows(view: View, axis: int, sizes: tuple[int, ...]) -> bool:
    return sizes[axis] == 1 and all(
        size == full
        for a, (size, full) in enumerate(zip(sizes, view.shape, strict=True))
        if a != axis
    )


def _lookup(
    view: View, axis: int, columns: tuple[int, ...], operand: int, factor: Callable[..., Unformed]
) -> Site | None:
    row = view.axes[axis]
    # Lookups of columns have another matrix layout than products with the same table.
    if row is None or any(column < row for column in columns):
        return None
    rows = (row,) if view.shape[axis] != 1 else ()
    return Site(view, 0, operand, Layout((), (), rows, columns), factor)


def _bias(eqn: Any, operands: list[View | None]) -> Site | None:
    """Recognises a bias: in a sum or a broadcast, the cotangents of all positions are added."""
    view = next(filter(None, operands))
    shape = eqn.outvars[0].aval.shape
    # vmap adds a scalar to an array without a broadcast.
    places = tuple(eqn.params.get("broadcast_dimensions", range(len(view.shape))))
    if any(n not in (1, shape[p]) for n, p in zip(view.shape, places, strict=True)):
        return None
    inner = [i for i, p in enumerate(places) if view.shape[i] == shape[p]]
    columns, order = _sorted(view, tuple(inner))
    across = tuple(places[inner[i]] for i in order)

    def factor(_: Any, delta: Array) -> Unformed:
        right = _flat(delta, _without(delta.ndim, across), across)
        return Outer(jnp.ones((right.shape[0], 1), right.dtype), right)

    return Site(view, operands.index(view), None, Layout((), (), (), columns), factor)


_RULES: dict[str, Callable[[Any, list[View | None]], Site | None]] = {
    "add": _bias,
    "broadcast_in_dim": _bias,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
}
