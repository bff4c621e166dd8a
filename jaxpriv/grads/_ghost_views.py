"""Views: arrays in a loss whose entries are distinct entries of parameter leaves.

    leaves --transpose, slice, concatenate, ...--> view --product with an activation--> output

A gradient with respect to a view is the gradient of its entries in another order, so the norms
are equal. A view has a `source` (the entries that were selected and joined) and `axes` (the order
of the source's axes), so that W and W.T have the same source and their uses can be added. Float
casts are left out, and sums stay in float32 or wider.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import primitives
from jaxtyping import Array

from jaxpriv.grads import _ghost_jaxpr

Box = tuple[tuple[int, int, int], ...]
"""Start, stop and step along each axis."""


class Part(NamedTuple):
    """A box of one leaf."""

    leaf: int
    leaf_shape: tuple[int, ...]
    box: Box

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(range(*axis)) for axis in self.box)


class Derived(NamedTuple):
    """The output of a primitive that rearranges views: concatenate, reshape, rev or slice."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    views: tuple["View", ...]
    shape: tuple[int, ...]


class Row(NamedTuple):
    """Row of a view that each iteration of a scan reads; its gradients have a leading axis."""

    views: tuple["View"]
    scan: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.views[0].shape[1:]


Source = Part | Derived | Row


class View(NamedTuple):
    """A source with its axes permuted.

    axes: axis of the source for each axis of the view; None for an added axis of size 1. Axes of
      the source with size 1 may be missing.
    """

    source: Source
    axes: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(1 if a is None else self.source.shape[a] for a in self.axes)


def of(source: Source) -> View:
    """Returns the source as a view, with its axes in order."""
    return View(source, tuple(range(len(source.shape))))


def of_leaf(leaf: int, shape: tuple[int, ...]) -> View:
    """Returns a view of all entries of a leaf."""
    return of(Part(leaf, shape, tuple((0, size, 1) for size in shape)))


def parts(source: Source) -> Iterator[Part]:
    """Iterates over the boxes of leaves that a source may read."""
    if isinstance(source, Part):
        yield source
    else:
        for view in source.views:
            yield from parts(view.source)


def leaves(source: Source) -> set[int]:
    """Returns the positions of the leaves that a source reads."""
    return {part.leaf for part in parts(source)}


def scans(source: Source) -> tuple[tuple[int, ...], ...]:
    """Returns the paths of the scans that read the source row by row, outermost first."""
    if isinstance(source, Part):
        return ()
    outer = scans(source.views[0].source)
    return (*outer, source.scan) if isinstance(source, Row) else outer


def overlap(first: Source, second: Source) -> bool:
    """Returns whether two sources may share an entry of a leaf; True in case of doubt."""

    def meet(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
        if a[2] == b[2] and (a[0] - b[0]) % a[2]:
            return False
        return max(a[0], b[0]) < min(a[1], b[1])

    return any(
        a.leaf == b.leaf and all(map(meet, a.box, b.box))
        for a in parts(first)
        for b in parts(second)
    )


def pull_back(source: Source, grad: Array, lead: int) -> Iterator[tuple[int, Array]]:
    """Converts a gradient with respect to a source to gradients of its leaves.

    Args:
      source: the source.
      grad: gradient with `lead` axes, one for each enclosing `Row`, outermost first, followed by
        the shape of the source.
      lead: number of leading axes.

    Yields:
      Pairs of a leaf's position and a gradient in the shape of the leaf, to be added up.
    """
    if isinstance(source, Part):
        index = tuple(slice(*axis) for axis in source.box)
        zeros = jnp.zeros(source.leaf_shape, grad.dtype)
        yield source.leaf, grad if grad.shape == zeros.shape else zeros.at[index].set(grad)
        return
    pieces = [grad]
    if isinstance(source, Row):
        lead -= 1
    else:
        shapes = [jax.ShapeDtypeStruct(view.shape, grad.dtype) for view in source.views]
        transpose = jax.linear_transpose(
            lambda *xs: source.primitive.bind(*xs, **dict(source.params)), *shapes
        )
        for _ in range(lead):
            transpose = jax.vmap(transpose)
        pieces = transpose(grad)
    for view, piece in zip(source.views, pieces, strict=True):
        inner, axes = view.source.shape, view.axes
        order = sorted(range(len(axes)), key=lambda i, axes=axes: (axes[i] is None, axes[i] or 0))
        piece = piece.transpose(*range(lead), *(lead + i for i in order))
        yield from pull_back(view.source, piece.reshape(piece.shape[:lead] + inner), lead)


def rearranged(eqn: Any, operands: list[View | None]) -> list[View] | None:
    """Returns the outputs of a primitive as views, or None if it does not only rearrange."""
    name, params, shape = eqn.primitive.name, eqn.params, eqn.outvars[0].aval.shape
    view = operands[0]
    if view is None:
        return None
    match name:
        case "convert_element_type" | "copy" | "copy_p" | "name" | "sharding_constraint":
            return [view] if _ghost_jaxpr.is_real(eqn.outvars[0].aval.dtype) else None
        case "transpose":
            return [View(view.source, tuple(view.axes[p] for p in params["permutation"]))]
        case "squeeze":
            dropped = params["dimensions"]
            return [
                View(view.source, tuple(a for i, a in enumerate(view.axes) if i not in dropped))
            ]
        case "broadcast_in_dim" if math.prod(shape) == math.prod(view.shape):
            places = dict(zip(params["broadcast_dimensions"], view.axes, strict=True))
            return [View(view.source, tuple(map(places.get, range(len(shape)))))]
        case "reshape" if params["dimensions"] is None:
            axes = iter(a for a, n in zip(view.axes, view.shape, strict=True) if n != 1)
            if [n for n in view.shape if n != 1] == [n for n in shape if n != 1]:
                return [View(view.source, tuple(None if n == 1 else next(axes) for n in shape))]
            return [_derived(eqn.primitive, params, (view,), shape)]
        case "rev":
            return [_derived(eqn.primitive, params, (view,), shape)]
        case "concatenate":
            views = tuple(v for v in operands if v is not None)
            if len(views) == len(operands) and _are_distinct(views):
                return [_derived(eqn.primitive, params, views, shape)]
        case "slice" | "split" | "dynamic_slice":
            boxes = _boxes(eqn, view)
            return None if boxes is None else [_cut(view, box) for box in boxes]
    return None


def _derived(primitive: Any, params: Any, views: tuple[View, ...], shape: tuple[int, ...]) -> View:
    return of(Derived(primitive, tuple(sorted(params.items())), views, shape))


def _are_distinct(views: tuple[View, ...]) -> bool:
    sources = [view.source for view in views]
    pairs = ((a, b) for i, a in enumerate(sources) for b in sources[:i])
    return len(set(map(scans, sources))) == 1 and not any(overlap(a, b) for a, b in pairs)


def _boxes(eqn: Any, view: View) -> list[Box] | None:
    """Returns the box of each output, or None if it depends on values at run time."""
    params = eqn.params
    if eqn.primitive.name == "slice":
        steps = params["strides"] or (1,) * len(view.axes)
        return [tuple(zip(params["start_indices"], params["limit_indices"], steps, strict=True))]
    if eqn.primitive.name == "dynamic_slice":
        starts = [_ghost_jaxpr.constant(v) for v in eqn.invars[1:]]
        if any(start is None for start in starts):
            return None
        sizes = zip(starts, view.shape, params["slice_sizes"], strict=True)
        clamped = [(min(max(int(start), 0), n - size), size) for start, n, size in sizes]
        return [tuple((start, start + size, 1) for start, size in clamped)]
    boxes, start = [], 0
    for size in map(int, params["sizes"]):
        box = [(0, n, 1) for n in view.shape]
        box[params["axis"]] = (start, start + size, 1)
        boxes.append(tuple(box))
        start += size
    return boxes


def _cut(view: View, box: Box) -> View:
    pairs = list(zip(view.axes, box, strict=True))
    if not isinstance(view.source, Part) or any(a is None and b != (0, 1, 1) for a, b in pairs):
        starts, stops, steps = zip(*box, strict=True)
        params = {"start_indices": starts, "limit_indices": stops, "strides": steps}
        shape = tuple(len(range(*axis)) for axis in box)
        return _derived(primitives.slice_p, params, (view,), shape)
    inner = list(view.source.box)
    for axis, (start, stop, step) in pairs:
        if axis is not None:
            first, _, stride = inner[axis]
            count = len(range(start, stop, step))
            first, stride = first + start * stride, stride * step
            inner[axis] = (first, first + (count - 1) * stride + 1 if count else first, stride)
    return View(view.source._replace(box=tuple(inner)), view.axes)
