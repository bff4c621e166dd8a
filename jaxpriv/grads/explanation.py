"""Tells which way the gradient of each parameter goes, and what that costs."""

import math
from typing import NamedTuple

import jax
from jaxtyping import PRNGKeyArray, PyTree

from jaxpriv import _check
from jaxpriv._types import Example, Loss, Params
from jaxpriv.grads import ghost, ghost_factors


class Choice(NamedTuple):
    """How one leaf's clipped gradients are summed.

    leaf: its path in the parameters.
    shape: of the leaf.
    way: "outer product", "gram" and "lookup" never form a per-example gradient; "gradient" forms
      it from a layer's factors, because that is cheaper; "explicit" by differentiation, where no
      rule covers every use; "unused" needs nothing.
    together: how many leaves share the work, as the gates of a recurrent cell do.
    bytes: kept for the whole batch by those leaves.
    explicit_bytes: what explicit gradients of those leaves would take.
    """

    leaf: str
    shape: tuple[int, ...]
    way: str
    together: int
    bytes: int
    explicit_bytes: int


class Explanation(NamedTuple):
    """One choice a leaf; prints as a table."""

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        head = ("parameter", "shape", "way", "MB kept", "MB if explicit")
        rows = [
            (
                c.leaf,
                "x".join(map(str, c.shape)),
                c.way + (f" (with {c.together - 1} more)" if c.together > 1 else ""),
                f"{c.bytes / 1e6:.2f}",
                f"{c.explicit_bytes / 1e6:.2f}",
            )
            for c in self.choices
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        ]
        return "\n".join(lines)


def explain(
    loss: Loss,
    params: Params,
    example: Example,
    key: PRNGKeyArray,
    *,
    batch_size: int,
    by_rules: bool,
) -> Explanation:
    """Plans the clipped gradients of a batch without computing anything.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves, arrays or shapes.
      example: one row, arrays or shapes.
      key: any; not consumed.
      batch_size: rows of a batch (of a microbatch, where that is used).
      by_rules: whether layers' rules are used; else all is explicit.

    Returns:
      One choice a leaf, in the order of the leaves.
    """
    _check.positive_int(batch_size=batch_size)
    batch = _stacked(example, batch_size)
    keys = _stacked(key, batch_size)
    factors, explicit = {}, dict(enumerate(jax.tree.leaves(_stacked(params, batch_size))))
    if by_rules:
        plan = ghost.make_plan(loss, params, example, key)

        def program(params: Params, batch: PyTree, keys: PyTree):
            return ghost.per_example_factors(loss, params, batch, keys, plan)

        factors, explicit = jax.eval_shape(program, params, batch, keys)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(params)]
    leaves = jax.tree.leaves(params)

    def choice(i: int, way: str, together: tuple[int, ...], kept: PyTree) -> Choice:
        full = batch_size * sum(_bytes(leaves[j]) for j in together)
        held = sum(_bytes(x) for x in jax.tree.leaves(kept))
        return Choice(paths[i], tuple(leaves[i].shape), way, len(together), held, full)

    chosen = {i: choice(i, "unused", (i,), None) for i in range(len(leaves))}
    chosen |= {i: choice(i, "explicit", (i,), rows) for i, rows in explicit.items()}
    for group, parts in factors.items():
        way = " + ".join(ghost_factors.method(_first(part)) for part in parts)
        chosen |= {i: choice(i, way, group.leaves, parts) for i in group.leaves}
    return Explanation(tuple(chosen[i] for i in range(len(leaves))))


def _stacked(tree: PyTree, rows: int) -> PyTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype), tree)


def _first(part: ghost_factors.Factor) -> ghost_factors.Factor:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), part)


def _bytes(x: jax.Array | jax.ShapeDtypeStruct) -> int:
    return math.prod(x.shape) * x.dtype.itemsize
