"""The cost model of the ghost norm: which form of a factor, and how many rows at a time.

With t positions, sides i and o, and g groups, one example costs

    outer product  t = 1: |left| |right|, and one product for the total
    gram           t^2 (i + o) for the norm, and t i o for the total, as one large product
    gradient       t i o, multiplied out once for both, but i o numbers are stored and read
"""

import math
from typing import NamedTuple

import jax

from jaxpriv.grads._ghost_factors import Dense, Factor, Lookup


class Rates(NamedTuple):
    """Time of each kind of work, in multiplications of a small batched product.

    total: a multiplication of the one large product of a total.
    entry: a number of a per-example gradient, written once and read twice, in memory.
    cached_entry: the same where the gradients of all rows fit into the caches.
    cache: bytes at which a batch leaves the caches; None: no limit is worthwhile.
    """

    total: float
    entry: float
    cached_entry: float
    cache: int | None


# cpu: measured on two cores, batch 256, t from 2 to 256, sides from 16 to 1024 (README, "What it
# costs"). Accelerators: from the ratio of their bandwidth to their arithmetic; not measured.
_RATES = {"cpu": Rates(0.7, 40.0, 8.0, 2**24)}
_ACCELERATOR = Rates(1.0, 100.0, 100.0, None)
_FEWEST_ROWS = 32
"""Smaller pieces spend more on starting products than the caches save."""


def _rates() -> Rates:
    return _RATES.get(jax.default_backend(), _ACCELERATOR)


def macs(factor: Factor) -> int:
    """Counts the multiplications of one example's norm and total.

    Args:
      factor: of one example; shapes suffice.

    Returns:
      Multiplications and additions, counted as one.
    """
    if isinstance(factor, Dense):
        return 2 * math.prod(factor.grad.shape)
    if isinstance(factor, Lookup):
        t, o = factor.right.shape
        return t * o * min(t, 512) + t * o
    *groups, t, i = factor.left.shape
    o = factor.right.shape[-1]
    gram = t * t * (i + o) if t > 1 else i + o
    return math.prod(groups) * (gram + t * i * o)


def method(factor: Factor, rows: int) -> str:
    """Chooses the form of a factor.

    Args:
      factor: of one example; shapes suffice.
      rows: number of examples that are processed at a time.

    Returns:
      "outer product", "gram", "gradient" or "lookup".
    """
    if isinstance(factor, Dense):
        return "gradient"
    if isinstance(factor, Lookup):
        return "lookup"
    (t, i), o = factor.left.shape[-2:], factor.right.shape[-1]
    if t == 1:
        return "outer product"
    rates = _rates()
    gradients = rows * math.prod(factor.left.shape[:-2]) * i * o * 4
    fits = rates.cache is not None and gradients <= rates.cache
    entry = rates.cached_entry if fits else rates.entry
    gram = t * t * (i + o) + rates.total * t * i * o
    return "gram" if gram < (t + entry) * i * o else "gradient"


def microbatch_size(working_set: int, rows: int) -> int:
    """Chooses how many rows are processed at a time.

    On a CPU a batch whose activations leave the caches is slower than its pieces.

    Args:
      working_set: bytes of activations of one example.
      rows: of the batch.

    Returns:
      A power of two, at least 32, or `rows` if all of them fit.
    """
    cache = _rates().cache
    if cache is None or working_set * rows <= cache:
        return rows
    fitting = max(cache // max(working_set, 1), 1)
    return min(max(2 ** int(math.log2(fitting)), _FEWEST_ROWS), rows)
