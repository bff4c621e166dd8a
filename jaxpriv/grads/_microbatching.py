"""Sums over a batch in pieces, which bounds memory and on a CPU keeps activations in the caches.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from jaxpriv import _check, _convolutions, _tree
from jaxpriv._types import Batch, Example, Keys, Loss, Params
from jaxpriv.grads import _ghost_cost, _ghost_plan

MicrobatchSize = int | Literal["auto"] | None
"""Number of rows processed at a time; None: all; "auto": by the caches of the platform."""


def check_size(microbatch_size: object) -> None:
    """Raises ValueError unless the size is a whole number >= 1, "auto" or None."""
    if microbatch_size not in (None, "auto"):
        _check.positive_int(microbatch_size=microbatch_size)


def suggested_size(
    loss: Loss, params: Params, example: Example, key: PRNGKeyArray, *, batch_size: int
) -> int:
    """Suggests how many rows to process at a time, from the memory that an example takes.

    Args:
      loss: `loss(params, example, key)` of one example; it is traced, not computed.
      params: trainable leaves, arrays or their shapes.
      example: one record, arrays or shapes.
      key: any PRNG key; not consumed.
      batch_size: number of rows of a batch.

    Returns:
      The number of rows; `batch_size` on an accelerator.
    """
    plan = _ghost_plan.make_plan(loss, params, example, key)
    return _ghost_cost.microbatch_size(plan.working_set, batch_size)


def accumulate(
    sum_rows: Callable[[Batch, Bool[Array, " _"], Keys], tuple[PyTree, PyTree]],
    batch: Batch,
    mask: Bool[Array, " b"],
    keys: Keys,
    *,
    size: int,
) -> tuple[PyTree, PyTree]:
    """Sums over a batch piece by piece, in a scan; a piece without real rows is skipped.

    Args:
      sum_rows: (rows, mask, keys) -> (a sum over the rows that the mask admits, a tree with one
        entry for each row).
      batch: pytree with leading axis b.
      mask: which rows are real.
      keys: one for each row.
      size: number of rows of a piece.

    Returns:
      The sum over the batch, and the entries of all rows in order; 0 in skipped pieces.
    """
    rows = mask.shape[0]
    if size >= rows:
        return sum_rows(batch, mask, keys)
    count = -(-rows // size)
    # The last piece is filled with rows from the start, which the mask excludes.
    wrapped = jnp.arange(count * size) % rows
    pieces = jax.tree.map(lambda x: x[wrapped].reshape(count, size, *x.shape[1:]), (batch, keys))
    real = (mask[wrapped] & (jnp.arange(count * size) < rows)).reshape(count, size)

    def add(total, piece):
        (batch, keys), mask = piece
        subtotal, entries = jax.lax.cond(
            mask.any(), sum_rows, lambda *_: _tree.zeros(shapes), batch, mask, keys
        )
        return jax.tree.map(jnp.add, total, subtotal), entries

    first = jax.tree.map(lambda x: x[0], (*pieces, real))
    shapes = jax.eval_shape(lambda batch, keys, mask: sum_rows(batch, mask, keys), *first)
    body = _convolutions.for_loops(add)
    total, entries = jax.lax.scan(body, _tree.zeros(shapes[0]), (pieces, real))
    return total, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], entries)
