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
from jaxpriv.grads.buckets import LengthBuckets

MicrobatchSize = int | Literal["auto"] | None
"""Number of rows processed at a time; None: all; "auto": by the caches of the platform."""


def check_size(microbatch_size: object) -> None:
    """Raises ValueError unless the size is a whole number >= 1, "auto" or None."""
    if microbatch_size not in (None, "auto"):
        _check.positive_int(microbatch_size=microbatch_size)


def check_buckets(buckets: object, microbatch_size: object) -> None:
    """Raises ValueError unless buckets are None, or LengthBuckets without a microbatch_size."""
    if buckets is None:
        return
    if not isinstance(buckets, LengthBuckets):
        raise ValueError(f"Expected LengthBuckets as buckets, got {type(buckets).__name__}.")
    if microbatch_size is not None:
        raise ValueError(
            f"Expected microbatch_size=None with buckets, which have rows={buckets.rows}, "
            f"got microbatch_size={microbatch_size}."
        )


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
    if size >= mask.shape[0]:
        return sum_rows(batch, mask, keys)

    def sum_piece(batch, mask, keys, shapes):
        return jax.lax.cond(mask.any(), sum_rows, lambda *_: _tree.zeros(shapes), batch, mask, keys)

    return _sum_pieces(sum_rows, sum_piece, batch, mask, keys, size)


def accumulate_by_length(
    sum_rows: Callable[[Batch, Bool[Array, " _"], Keys], tuple[PyTree, PyTree]],
    batch: Batch,
    mask: Bool[Array, " b"],
    keys: Keys,
    *,
    buckets: LengthBuckets,
) -> tuple[PyTree, PyTree]:
    """Sums over a batch as `accumulate` does, with each piece cut to the width that it needs.

    Args:
      sum_rows: as for `accumulate`; the sum must not depend on padding.
      batch: pytree with leading axis b.
      mask: which rows are real.
      keys: one for each row.
      buckets: widths, and the number of rows of a piece.

    Returns:
      The sum over the batch, and the entries of all rows in order.
    """
    widths = jnp.array(buckets.widths, jnp.int32)

    def lengths_of(batch, mask):
        return jnp.where(mask, jax.vmap(buckets.length)(batch).astype(jnp.int32), -1)

    def cut_to(width):
        def sum_cut(batch, mask, keys):
            cut = jax.vmap(lambda example: buckets.cut(example, width))(batch)
            return sum_rows(cut, mask, keys)

        return sum_cut

    def sum_piece(batch, mask, keys, shapes):
        branches = [lambda *_: _tree.zeros(shapes), *map(cut_to, buckets.widths), sum_rows]
        fitting = jnp.searchsorted(widths, lengths_of(batch, mask).max())
        index = jnp.where(mask.any(), fitting + 1, 0)
        return jax.lax.switch(index, branches, batch, mask, keys)

    order = jnp.argsort(-lengths_of(batch, mask))
    batch, mask, keys = _tree.take((batch, mask, keys), order)
    size = min(buckets.rows, mask.shape[0])
    total, entries = _sum_pieces(sum_rows, sum_piece, batch, mask, keys, size)
    return total, _tree.take(entries, jnp.argsort(order))


def _sum_pieces(sum_rows, sum_piece, batch, mask, keys, size):
    """Scans over pieces of `size` rows; `sum_piece` also takes the shapes of its result."""
    rows = mask.shape[0]
    count = -(-rows // size)
    # The last piece is filled with rows from the start, which the mask excludes.
    wrapped = jnp.arange(count * size) % rows
    pieces = jax.tree.map(lambda x: x[wrapped].reshape(count, size, *x.shape[1:]), (batch, keys))
    real = (mask[wrapped] & (jnp.arange(count * size) < rows)).reshape(count, size)

    def add(total, piece):
        (batch, keys), mask = piece
        subtotal, entries = sum_piece(batch, mask, keys, shapes)
        return jax.tree.map(jnp.add, total, subtotal), entries

    first = jax.tree.map(lambda x: x[0], (*pieces, real))
    shapes = jax.eval_shape(lambda batch, keys, mask: sum_rows(batch, mask, keys), *first)
    body = _convolutions.for_loops(add)
    total, entries = jax.lax.scan(body, _tree.zeros(shapes[0]), (pieces, real))
    return total, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], entries)
