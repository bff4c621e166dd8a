"""Cost model of the ghost norm, for the form of each factor and the rows processed at a time.

The cost of one example with t positions and sides i and o, in multiplications:

                   norm                 share of the total
    outer product  i + o  (t = 1)       i o, in one large product
    gram           t^2 (i + o)          t i o, in one large product
    gradient       t i o                none, but i o entries are written and read
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from jaxpriv.grads import _ghost_jaxpr
from jaxpriv.grads._ghost_factors import Lookup, Outer, Unformed


class Rates(NamedTuple):
    """Speed of a platform; the unit of time is one multiplication of a gradient product.

    loops: whether examples are processed in a loop, whose products stay in the caches.
    gram: time of a multiplication of a Gram product.
    total: time of a multiplication of the large product of a total.
    entry: time to write and read an entry of a gradient.
    cache: bytes beyond which a batch leaves the caches; None if no limit is worthwhile.
    """

    loops: bool
    gram: float
    total: float
    entry: float
    cache: int | None


# cpu: two cores ran 35e9 multiplications of gradients a second in a loop over examples (17e9 in a
# batched product), 25e9 of Gram products (10e9), 57e9 of totals; 256 examples, t = 64, i = 192,
# o = 512. Accelerators: estimates from the ratio of bandwidth to arithmetic, not measured.
_RATES = {"cpu": Rates(True, 1.4, 0.6, 10.0, 2**25)}
_ACCELERATOR = Rates(False, 1.0, 1.0, 100.0, None)
_MIN_ROWS = 32
"""Minimum rows of a piece: smaller ones spend more on starting products than the caches save."""
_MAX_WEIGHTS = 1.5
"""Maximum bytes of weights of a scan, for each byte of activations of the smallest piece.

Recurrent networks were faster in pieces at 1.1, and slower at 1.9.
"""
_MIN_LOOPED_MACS = 2**16
"""Minimum multiplications of an example in a loop: fewer cost less than starting an iteration."""


def _rates() -> Rates:
    return _RATES.get(jax.default_backend(), _ACCELERATOR)


def loops_over_examples(macs: int) -> bool:
    """Returns whether norms that take `macs` multiplications for each example use a loop."""
    return _rates().loops and macs >= _MIN_LOOPED_MACS


def multiply_out(factors: Sequence[Unformed]) -> bool:
    """Returns whether multiplying out gradients is cheaper than Gram products.

    Args:
      factors: factors of one example, or their shapes, of all sources with a common output
        cotangent. The common side needs only one Gram product.

    Returns:
      Whether the gradients should be multiplied out.
    """
    outers = [f for f in factors if isinstance(f, Outer) and f.left.shape[-2] > 1]
    sizes = [(*f.left.shape[-2:], f.right.shape[-1]) for f in outers]
    gram = sum(t * t * (i + o) for t, i, o in sizes)
    for shared, other in ((1, 2), (2, 1)):
        if len({(size[0], size[shared]) for size in sizes}) == 1:
            t = sizes[0][0]
            gram = min(gram, t * t * (sizes[0][shared] + sum(size[other] for size in sizes)))
    rates = _rates()
    product = sum(t * i * o for t, i, o in sizes)
    entries = sum(i * o for _, i, o in sizes)
    return rates.gram * gram + rates.total * product > product + rates.entry * entries


def kind(factor: Unformed) -> str:
    """Returns "outer product", "gram" or "lookup"; shapes suffice."""
    if isinstance(factor, Lookup):
        return "lookup"
    return "outer product" if factor.left.shape[-2] == 1 else "gram"


def norm_macs(factors: Sequence[Unformed], *, multiplied: bool) -> int:
    """Counts the multiplications of one example's norm; shapes suffice."""

    def macs(factor: Unformed) -> int:
        t, o = factor.right.shape[-2:]
        if isinstance(factor, Lookup):
            return t * o * (1 if multiplied else min(t, 512))
        *groups, _, i = factor.left.shape
        gram = t * t * (i + o) if t > 1 else i + o
        return math.prod(groups) * (t * i * o if multiplied else gram)

    return sum(map(macs, factors))


def total_macs(factors: Sequence[Unformed]) -> int:
    """Counts the multiplications of one example's share of the total; shapes suffice."""

    def macs(factor: Unformed) -> int:
        if isinstance(factor, Lookup):
            return math.prod(factor.right.shape)
        return math.prod(factor.left.shape) * factor.right.shape[-1]

    return sum(map(macs, factors))


def working_set(jaxpr: core.Jaxpr, depends: Sequence[bool]) -> int:
    """Estimates the bytes of activations of one example, which a backward pass reads again.

    Counts the outputs of all equations that depend on the example, in a scan once for each
    iteration. Pieces read the weights of a scan more often, so a scan of large weights counts as
    one iteration.

    Args:
      jaxpr: any jaxpr.
      depends: which inputs depend on the example; all others are shared by a batch.

    Returns:
      The number of bytes.
    """
    batched = {v for v, is_batched in zip(jaxpr.invars, depends, strict=True) if is_batched}
    total = 0
    for eqn in jaxpr.eqns:
        inputs = [isinstance(v, core.Var) and v in batched for v in eqn.invars]
        if not any(inputs):
            continue
        batched.update(eqn.outvars)
        for body in _ghost_jaxpr.bodies(eqn):
            first = len(inputs) - len(body.invars)  # a cond has its index before its operands
            inner = [True] * len(body.invars) if first < 0 else inputs[first:]
            if eqn.primitive.name != "scan":
                total += working_set(body, inner)
                continue
            start, carried = eqn.params["num_consts"], eqn.params["num_carry"]
            inner[start : start + carried] = [True] * carried
            iteration = working_set(body, inner)
            weights = sum(_bytes(v) for v, own in zip(body.invars, inner, strict=True) if not own)
            few_weights = weights <= _MAX_WEIGHTS * _MIN_ROWS * iteration
            total += iteration * (eqn.params["length"] if few_weights else 1)
        total += sum(map(_bytes, eqn.outvars))
    return total


def _bytes(variable: Any) -> int:
    """Returns the bytes of a variable's array; a key counts 16."""
    return math.prod(variable.aval.shape) * getattr(variable.aval.dtype, "itemsize", 16)


def microbatch_size(working_set: int, rows: int) -> int:
    """Chooses how many rows are processed at a time.

    On a CPU a batch whose activations leave the caches is slower than its pieces.

    Args:
      working_set: bytes of activations of one example.
      rows: number of rows of the batch.

    Returns:
      A power of two, at least 32, or `rows` if all of them fit.
    """
    cache = _rates().cache
    if cache is None or working_set * rows <= cache:
        return rows
    fitting = max(cache // max(working_set, 1), 1)
    return min(max(2 ** int(math.log2(fitting)), _MIN_ROWS), rows)
