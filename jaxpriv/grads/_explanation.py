"""Reports the method, cost and reason for the clipped gradient of each parameter."""

import io
import math
from typing import NamedTuple

import jax
from jaxtyping import PRNGKeyArray

from jaxpriv._types import Example, Params
from jaxpriv.grads import _ghost, _ghost_cost, _ghost_run, _ghost_views
from jaxpriv.grads._ghost_plan import Plan

_SMALL = 0.01
"""Share of all parameters below which explicit gradients need no advice."""


class Choice(NamedTuple):
    """How the clipped gradients of one leaf are summed.

    leaf: path of the leaf in the parameters.
    shape: shape of the leaf.
    method: "outer product", "gram" and "lookup" form no per-example gradient; "gradient"
      multiplies it out from its factors, where that is cheaper; "second pass" takes the norm
      inside a rematerialised region and the sum by another backward pass; "explicit"
      differentiates example by example; "unused" marks a leaf that the loss does not read.
    reason: why gradients are explicit; empty for other methods.
    advice: how to make them fast; empty for other methods.
    num_leaves: number of leaves that share the products, such as the gates of a recurrent cell.
    bytes: memory that those leaves take for the batch.
    explicit_bytes: memory that explicit gradients of those leaves would take.
    macs: multiply-adds of the norm and the sum, for the batch.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxpriv import grads
      >>> grad = grads.clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> args = jnp.zeros(3), jnp.zeros(3), jax.random.key(0)
      >>> grad.explain(*args, batch_size=4).choices[0].method
      'outer product'
    """

    leaf: str
    shape: tuple[int, ...]
    method: str
    reason: str
    advice: str
    num_leaves: int
    bytes: int
    explicit_bytes: int
    macs: int


class Explanation(NamedTuple):
    """One choice for each leaf; prints as a table.

    choices: in the order of the leaves.
    batch_size: number of rows processed at a time.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxpriv import grads
      >>> def decayed(w, x, key):
      ...     return jnp.dot(w, x) + 0.01 * jnp.sum(w**2)
      >>> args = jnp.zeros(3), jnp.zeros(3), jax.random.key(0)
      >>> explanation = grads.clipped_grad(decayed, clip_norm=1.0).explain(*args, batch_size=4)
      >>> explanation.ghost_share, explanation.choices[0].advice
      (0.0, 'put weight decay into the optimiser')
    """

    choices: tuple[Choice, ...]
    batch_size: int

    @property
    def ghost_share(self) -> float:
        """Share of the parameters that have no explicit gradients."""
        sizes = [math.prod(choice.shape) for choice in self.choices]
        explicit = [choice.method == "explicit" for choice in self.choices]
        fast = sum(size for size, slow in zip(sizes, explicit, strict=True) if not slow)
        return fast / max(sum(sizes), 1)

    def __str__(self) -> str:
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, title=f"{self.batch_size} rows at a time")
        for name in ("parameter", "shape", "method", "MB", "MB if explicit", "Mmacs", "note"):
            table.add_column(name, justify="right" if name[0] == "M" else "left", no_wrap=True)
        for c in self.choices:
            method = c.method + (f" (with {c.num_leaves - 1} more)" if c.num_leaves > 1 else "")
            note = "; ".join(filter(None, (c.reason, c.advice)))
            numbers = (c.bytes / 1e6, c.explicit_bytes / 1e6, c.macs / 1e6)
            shape = "x".join(map(str, c.shape))
            table.add_row(c.leaf, shape, method, *(f"{x:.2f}" for x in numbers), note)
        text = io.StringIO()
        Console(file=text, width=1000, markup=False, highlight=False).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()


def explain(
    plan: Plan,
    params: Params,
    example: Example,
    key: PRNGKeyArray,
    *,
    batch_size: int,
    by_factors: bool,
) -> Explanation:
    """Describes the clipped gradients of a batch without computing them.

    Args:
      plan: plan of the loss.
      params: trainable leaves, arrays or shapes.
      example: one row, arrays or shapes.
      key: any PRNG key; not consumed.
      batch_size: number of rows processed at a time.
      by_factors: whether factors are used; otherwise all gradients are explicit.

    Returns:
      One choice for each leaf, in the order of the leaves.
    """
    leaves = jax.tree.leaves(params)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(params)]
    size = sum(leaf.size for leaf in leaves)
    rows = _products(plan, params, example, key, batch_size=batch_size)

    def choice(i: int) -> Choice:
        full = batch_size * _bytes(leaves[i])
        common = (paths[i], tuple(leaves[i].shape))
        if not by_factors:
            return Choice(*common, "explicit", "asked for", "", 1, full, full, 2 * full // 4)
        if i in plan.unused:
            return Choice(*common, "unused", "", "", 1, 0, full, 0)
        if i in plan.explicit:
            reason = plan.explicit[i]
            advice = _advice(reason) if leaves[i].size > _SMALL * size else ""
            macs = 2 * batch_size * leaves[i].size
            return Choice(*common, "explicit", reason, advice, 1, full, full, macs)
        shared = set().union(*(row.leaves for row in rows[i]))
        return Choice(
            *common,
            " + ".join(dict.fromkeys(row.method for row in rows[i])),
            "",
            "",
            len(shared),
            sum(row.stored_bytes for row in rows[i]),
            batch_size * sum(_bytes(leaves[j]) for j in shared),
            sum(row.macs for row in rows[i]),
        )

    return Explanation(tuple(map(choice, range(len(leaves)))), batch_size)


class _Products(NamedTuple):
    """Products of one block of a leaf, for the whole batch.

    leaves: leaves that share them.
    """

    method: str
    leaves: set[int]
    stored_bytes: int
    macs: int


def _products(
    plan: Plan, params: Params, example: Example, key: PRNGKeyArray, *, batch_size: int
) -> dict[int, list[_Products]]:
    """Lists the products of each leaf, one entry for each block that reads it."""
    gradient = jax.eval_shape(
        lambda params, *row: _ghost_run.gradient(
            plan, jax.tree.leaves(params), jax.tree.leaves(row)
        ),
        params,
        example,
        key,
    )
    shapes = _ghost.factor_shapes(plan, gradient.tapes)
    forms = _ghost.choose_forms(plan, shapes)
    rows: dict[int, list[_Products]] = {i: [] for i in range(len(jax.tree.leaves(params)))}
    for k, block in enumerate(plan.blocks):
        sharing = _ghost_views.leaves(block.source)
        if k in shapes:
            is_formed = k in forms.multiplied
            macs = _ghost_cost.norm_macs(shapes[k], multiplied=is_formed)
            macs += 0 if is_formed else _ghost_cost.total_macs(shapes[k])
            method = "gradient" if is_formed else " + ".join(map(_ghost_cost.kind, shapes[k]))
            arrays = shapes[k]
            if k not in forms.looped:
                arrays = jax.eval_shape(lambda f, k=k: _ghost.formed(plan, k, f, forms), arrays)
            stored = batch_size * sum(map(_bytes, jax.tree.leaves(arrays)))
        else:
            method, macs, stored = "second pass", 0, 0
        for i in sharing:
            rows[i].append(_Products(method, sharing, stored, macs * batch_size))
    return rows


_ADVICE = {
    "read by integer_pow": "put weight decay into the optimiser",
    "read by square": "put weight decay into the optimiser",
    "read by mul": "scale the output of the product, or put weight decay into the optimiser",
    "used through two different views": "read it through one slice or reshape only",
    "inside a cond": "take the product outside the cond, and choose between results",
    "inside a while": "use lax.scan, whose bodies are searched for products",
    "carried by a scan": "close over it instead of carrying it",
    "concatenated": "concatenate parameters with parameters only",
    "both operands": "apply the two products to the activation one after the other",
    "meets complex": "use real and imaginary parts",
    "read by stop_gradient": "close over frozen parameters",
}


def _advice(reason: str) -> str:
    return next((advice for start, advice in _ADVICE.items() if reason.startswith(start)), "")


def _bytes(x: jax.Array | jax.ShapeDtypeStruct) -> int:
    return math.prod(x.shape) * x.dtype.itemsize
