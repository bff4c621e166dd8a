"""Rows of different lengths, cut to few widths after a batch has been drawn.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Array, Int

from jaxpriv import _check
from jaxpriv._types import Example

__all__ = ["LengthBuckets"]


@dataclass(frozen=True, kw_only=True)
class LengthBuckets:
    """Cuts padding off the rows of a batch, so that short rows cost less.

    The rows of a batch are sorted by length and processed a few at a time, each piece at the
    smallest width that its longest row fits. The batch is drawn before and independently of the
    lengths, so amplification by sampling holds as without buckets, and the unit remains the row.
    The width of a row depends on the other rows of the batch, so a guarantee requires that padding
    changes no gradient; the sum is then the same as without buckets. Dropout draws other masks at
    other widths, from the same distribution, which the guarantee allows. The running time depends
    on the lengths and is not private. Batches that are themselves composed by length, as by
    `data.batches_by_length`, have no amplification.

    length: `length(example)`, the number of places that an example needs.
    cut: `cut(example, width)`, the example with `width` places.
    widths: increasing widths; rows that are longer than the last one are not cut.
    rows: number of rows processed at a time.

    Raises:
      ValueError: if the widths are not increasing whole numbers >= 1, or rows is not one.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxpriv import grads
      >>> def loss(w, example, key):
      ...     x, length = example
      ...     return w * jnp.where(jnp.arange(len(x)) < length, x, 0).sum()
      >>> buckets = LengthBuckets(
      ...     length=lambda example: example[1],
      ...     cut=lambda example, width: (example[0][:width], example[1]),
      ...     widths=(2,),
      ...     rows=1,
      ... )
      >>> grad = grads.clipped_grad(loss, clip_norm=5.0, buckets=buckets)
      >>> batch = jnp.array([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]), jnp.array([3, 1])
      >>> grad(jnp.float32(1), batch, jnp.ones(2, bool), jax.random.key(0)).norms.tolist()
      [6.0, 4.0]
    """

    length: Callable[[Example], Int[Array, ""]]
    cut: Callable[[Example, int], Example]
    widths: tuple[int, ...]
    rows: int

    def __post_init__(self) -> None:
        _check.positive_int(rows=self.rows)
        for width in self.widths:
            _check.positive_int(width=width)
        if any(a >= b for a, b in zip(self.widths, self.widths[1:], strict=False)):
            raise ValueError(f"Expected increasing widths, got {self.widths}.")
