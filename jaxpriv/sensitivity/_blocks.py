"""Dissimilarities of all pairs of two sets of records, one block of pairs at a time.

pairs --first pass, every pair--> one number per record --shortlist--> the few records that can
be among the extremes --second pass, in float64--> the extremes

Every pair is evaluated from the differences of its entries. The expansion |x|^2 + |y|^2 - 2 x.y is
one matrix product but cancels: equal records would not have distance 0, and the distance of near
ones would have no correct digit in float32. With differences the first pass has a small relative
error, so the second pass is certain to contain the extremes.

In the shapes below `n` and `m` count records, `a` and `b` the rows of two blocks, `d` entries.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

Measure = Callable[[Array, Array], Array]
"""Dissimilarity of one pair of records."""

Block = Callable[..., Array]
"""Dissimilarities [a, b] of records [a, ...] and [b, ...]."""

_CHUNK = 16
"""Entries per loop iteration: at 8 or 32 XLA's code for the CPU is 2 to 6 times slower."""

_CACHED_BYTES = 2**20
"""Size of a block of sums, which is updated in every iteration and so should stay in the cache."""

_PAIR_BYTES = 2**25
"""Size of one intermediate result, as large as a record, of all pairs of a block."""

_MAX_ENTRY = 1e15
"""Squares up to that of this entry do not overflow in float32; differences < 1e-19 underflow."""

_ROWS = 64
"""Largest number of records of x in a block of the second pass, which is as wide as y."""

_FLOAT64_PRECISION = 1e-10
"""Bound on the relative error of every measure in float64, with a wide margin."""


class Pairs(NamedTuple):
    """All pairs of a record of x and a record of y.

    x, y: the records, both in the type of the first pass.
    block: function that evaluates a block of pairs.
    size: largest number of records of either side of a block.
    second_type: type of the second pass.
    is_symmetric: whether both orders of a pair have the same dissimilarity.
    is_exact: whether the first pass has no rounding error.
    """

    x: Shaped[np.ndarray, "n ..."]
    y: Shaped[np.ndarray, "m ..."]
    block: Block
    size: int
    second_type: np.dtype
    is_symmetric: bool
    is_exact: bool

    @property
    def precision(self) -> float:
        """Bound on the relative error of the first pass, which sums d rounded terms >= 0."""
        unit = float(np.finfo(self.x.dtype).eps) / 2
        return (math.prod(self.x.shape[1:]) + 8) * unit + _FLOAT64_PRECISION

    def first_pass(
        self, rows: Int[np.ndarray, " a"], columns: Int[np.ndarray, " b"]
    ) -> Float[np.ndarray, "a b"]:
        """Evaluates a block of pairs in the type of the first pass."""
        return self._evaluate(rows, columns, min(self.size, len(self.x)), self.x.dtype)

    def second_pass(
        self, rows: Int[np.ndarray, " a"]
    ) -> Iterator[tuple[Int[np.ndarray, " _"], Float[np.ndarray, "_ m"]]]:
        """Evaluates the pairs of some records of x and all of y, a few records at a time."""
        for some in split(rows, min(self.size, _ROWS)):
            height = min(self.size, max(16, 1 << (len(some) - 1).bit_length()))
            blocks = [
                self._evaluate(some, columns, height, self.second_type)
                for columns in split(np.arange(len(self.y)), self.size)
            ]
            yield some, np.concatenate(blocks, axis=1)

    def _evaluate(
        self,
        rows: Int[np.ndarray, " a"],
        columns: Int[np.ndarray, " b"],
        height: int,
        dtype: np.dtype,
    ) -> Float[np.ndarray, "a b"]:
        """Evaluates a block, filled up with repeated records, as every shape is compiled anew."""
        width = min(self.size, len(self.y))
        x = self.x[np.resize(rows, height)].astype(dtype, copy=False)
        y = self.y[np.resize(columns, width)].astype(dtype, copy=False)
        with jax.enable_x64(True) if dtype == np.float64 else contextlib.nullcontext():
            values = np.asarray(self.block(x, y))
        return values[: len(rows), : len(columns)].astype(np.float64)


@functools.partial(jax.jit, static_argnames=("term", "finish"))
def sum_of_terms(
    x: Float[Array, "a d"],
    y: Float[Array, "b d"],
    *,
    term: Callable[[Array, Array], Array],
    finish: Callable[[Array], Array],
) -> Float[Array, "a b"]:
    """Evaluates finish(sum over entries k of term(x_k, y_k)) for all pairs; term(0, 0) is 0."""

    def add(total, entries):
        u, v = entries
        return total + term(u[:, None], v[None, :]).astype(total.dtype), None

    def padded_columns(records):
        return jnp.pad(records, ((0, 0), (0, -records.shape[1] % _CHUNK))).T

    start = jnp.zeros((len(x), len(y)), x.dtype)
    entries = (padded_columns(x), padded_columns(y))
    return finish(jax.lax.scan(add, start, entries, unroll=_CHUNK)[0])


@functools.partial(jax.jit, static_argnames="measure")
def each_pair(
    x: Float[Array, "a ..."], y: Float[Array, "b ..."], *, measure: Measure
) -> Shaped[Array, "a b"]:
    """Evaluates a measure of one pair for all pairs; what depends on x alone is computed once."""
    values = jax.vmap(jax.vmap(measure, in_axes=(None, 0)), in_axes=(0, None))(x, y)
    if (shape := jnp.shape(values)[2:]) != ():
        raise ValueError(f"Expected a number from measure, got shape {list(shape)}.")
    return values


def first_type(*records: Shaped[np.ndarray, "..."]) -> np.dtype:
    """Returns float32 if it represents all records exactly and their squares, else float64."""
    for values in records:
        largest = float(np.abs(values).max())
        if largest > _MAX_ENTRY or (values.astype(np.float32) != values).any():
            return np.dtype(np.float64)
    return np.dtype(np.float32)


def size_for_sums(dtype: np.dtype) -> int:
    """Returns the default block size of `sum_of_terms`."""
    return math.isqrt(_CACHED_BYTES // dtype.itemsize)


def size_for_pairs(record: tuple[int, ...], dtype: np.dtype) -> int:
    """Returns the default block size of `each_pair`."""
    return max(1, math.isqrt(_PAIR_BYTES // (dtype.itemsize * math.prod(record))))


def split(index: Int[np.ndarray, " k"], size: int) -> list[Int[np.ndarray, " _"]]:
    """Splits record indices into blocks."""
    return [index[start : start + size] for start in range(0, len(index), size)]


def first_sums(pairs: Pairs) -> Float[np.ndarray, " n"]:
    """Sums each record's dissimilarities to the other records, by the first pass."""
    sums = np.zeros(len(pairs.x))
    blocks = split(np.arange(len(pairs.x)), pairs.size)
    for i, rows in enumerate(blocks):
        for j, columns in enumerate(blocks):
            if pairs.is_symmetric and j < i:
                continue
            values = pairs.first_pass(rows, columns)
            if i == j:
                np.fill_diagonal(values, 0)
            sums[rows] += values.sum(axis=1)
            if pairs.is_symmetric and j > i:
                sums[columns] += values.sum(axis=0)
    return sums


def first_extremes(
    pairs: Pairs,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Finds each record's smallest and largest dissimilarity to a candidate, by the first pass."""
    lowest, highest = np.full(len(pairs.x), np.inf), np.full(len(pairs.x), -np.inf)
    for rows in split(np.arange(len(pairs.x)), pairs.size):
        for columns in split(np.arange(len(pairs.y)), pairs.size):
            values = pairs.first_pass(rows, columns)
            lowest[rows] = np.minimum(lowest[rows], values.min(axis=1))
            highest[rows] = np.maximum(highest[rows], values.max(axis=1))
    return lowest, highest


def shortlist(
    pairs: Pairs,
    highest: Float[np.ndarray, " n"],
    lowest: Float[np.ndarray, " n"],
    *,
    largest: int,
    smallest: int,
) -> Int[np.ndarray, " r"]:
    """Returns the records that the extremes can belong to.

    The k largest of all pairs belong to records among whose pairs is one of at least the k-th
    largest of the records' own largest, as that one is at most the k-th largest of all pairs.
    """
    if pairs.is_exact:  # then not every record that ties is needed
        first = np.argsort(-highest, kind="stable")[:largest]
        last = np.argsort(-lowest, kind="stable")[::-1][:smallest]
        return np.union1d(first, last)
    is_high = _within_reach(highest, largest, precision=pairs.precision)
    is_low = _within_reach(-lowest, smallest, precision=pairs.precision)
    return np.flatnonzero(is_high | is_low)


def ends(order: Int[np.ndarray, " k"], largest: int, smallest: int) -> Int[np.ndarray, " e"]:
    """Returns the first `largest` and the last `smallest` of an order; all if they overlap."""
    if len(order) <= largest + smallest:
        return order
    return np.concatenate([order[:largest], order[len(order) - smallest :]])


def _within_reach(
    values: Float[np.ndarray, " n"], count: int, *, precision: float
) -> Bool[np.ndarray, " n"]:
    """Returns which values can be among the `count` largest, given their relative precision."""
    if not 0 < count < len(values):
        return np.full(len(values), count > 0)
    slack = precision * np.abs(values)
    threshold = np.partition(values - slack, -count)[-count]
    return values + slack >= threshold
