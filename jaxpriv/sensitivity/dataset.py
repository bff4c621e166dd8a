"""Data-set sensitivity: the neighbouring data sets that differ most from a data set.

The neighbours are a heuristic for those with the largest local sensitivity of the gradient:
dissimilar records are expected to have dissimilar gradients. No model is needed, and no bound
follows.

In the shapes below `n` counts the records of the data set, `m` the candidates to replace one,
`k` the neighbours of a ranking; `*record` are the axes of one record.
"""

import functools
import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from jaxpriv import _check, _tree
from jaxpriv.metrics import image
from jaxpriv.sensitivity import _blocks
from jaxpriv.sensitivity._blocks import Measure, Pairs

__all__ = [
    "Removals",
    "Replacements",
    "cosine",
    "euclidean",
    "hamming",
    "manhattan",
    "negative_ssim",
    "removals",
    "replacements",
]


class Removals(NamedTuple):
    """Records whose removal gives a neighbouring data set, by descending dissimilarity.

    records: index of each record in the data set.
    dissimilarities: sum of the record's dissimilarities to all other records.
    """

    records: Int[np.ndarray, " k"]
    dissimilarities: Float[np.ndarray, " k"]


class Replacements(NamedTuple):
    """Pairs whose exchange gives a neighbouring data set, by descending dissimilarity.

    records: index, in the data set, of the record that is replaced.
    candidates: index, in the candidates, of the record that replaces it.
    dissimilarities: dissimilarity of the pair.
    """

    records: Int[np.ndarray, " k"]
    candidates: Int[np.ndarray, " k"]
    dissimilarities: Float[np.ndarray, " k"]


def removals(
    x: Shaped[Array | np.ndarray, "n *record"],
    *,
    measure: Measure,
    largest: int,
    smallest: int,
    block_size: int | None = None,
) -> Removals:
    """Ranks the records of a data set by their dissimilarity to all other records.

    The first record of the ranking is argmax over x1 in D of the sum over all other x2 in D of
    d(x1, x2); D without it is the neighbour for add_or_remove_one.

    O(n^2) time, and memory for a few copies of x. A first pass selects the records that can be
    among the extremes: in float32 if it represents x exactly, in float64 otherwise and for
    `cosine` and `negative_ssim`. A second pass evaluates these in float64, so the ranking is that
    of float64, except for a measure of the user, which has one type.

    Args:
      x: the data set D.
      measure: dissimilarity d(x1, x2) of two records, such as `euclidean`, or a JAX function of
        the user, which must be hashable, is called in JAX's default float type and may be
        asymmetric.
      largest: number of records with the largest sums to return.
      smallest: number of records with the smallest sums to return.
      block_size: number of records on either side of a block; None chooses it by the memory that a
        block takes.

    Returns:
      The `largest` first and the `smallest` last records of the ranking by descending sum, where
      equal sums are in ascending order of index.

    Raises:
      ValueError: if a number is out of range, more records are asked for than x has, x is not
        numeric, has NaN or does not suit the measure, or a dissimilarity is not finite.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Definition 6 and equation 9.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> x = np.array([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0], [1.0, 1.0]])
      >>> jp.sensitivity.removals(x, measure=jp.sensitivity.manhattan, largest=1, smallest=1)
      Removals(records=array([2, 1]), dissimilarities=array([26., 10.]))
    """
    data = _records("x", x)
    _check_counts(largest, smallest, block_size)
    _check_available(largest + smallest, len(data), "records")
    pairs = _pairs(measure, block_size, data)
    sums = _blocks.first_sums(pairs)
    _check_finite(sums)
    rows = _blocks.shortlist(pairs, sums, sums, largest=largest, smallest=smallest)
    exact = np.zeros(len(data))
    for some, values in pairs.second_pass(rows):
        values[np.arange(len(some)), some] = 0  # a record is not compared with itself
        # Exactly rounded sums do not depend on the order of the records, so ties remain ties.
        exact[some] = [math.fsum(row) for row in values]
    order = rows[_blocks.ends(np.argsort(-exact[rows], kind="stable"), largest, smallest)]
    return Removals(order, exact[order])


def replacements(
    x: Shaped[Array | np.ndarray, "n *record"],
    candidates: Shaped[Array | np.ndarray, "m *record"],
    *,
    measure: Measure,
    largest: int,
    smallest: int,
    block_size: int | None = None,
) -> Replacements:
    """Ranks the pairs of a record of a data set and a candidate to replace it.

    The first pair of the ranking is argmax over x in D and x' in U outside D of d(x, x'); D with x'
    in place of x is the neighbour for replace_one. O(n m) time; precision and memory as in
    `removals`.

    Args:
      x: the data set D.
      candidates: the universe U, or a part of it. Candidates equal to a record of x in every entry
        are left out, so U may contain D. Where labels belong to the record, two records that
        differ in the label only are equal in x.
      measure: dissimilarity d(x, x') of two records; see `removals`.
      largest: number of pairs with the largest dissimilarities to return.
      smallest: number of pairs with the smallest dissimilarities to return.
      block_size: number of records on either side of a block; None chooses it by the memory that a
        block takes.

    Returns:
      The `largest` first and the `smallest` last pairs of the ranking by descending dissimilarity,
      where equal ones are in ascending order of the record, then of the candidate.

    Raises:
      ValueError: for the errors of `removals`, records of another shape among the candidates, or no
        candidate outside x.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Definition 6 and equation 11.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> universe = np.array([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0], [1.0, 1.0]])
      >>> jp.sensitivity.replacements(
      ...     universe[:2], universe, measure=jp.sensitivity.manhattan, largest=1, smallest=1
      ... )
      Replacements(records=array([0, 1]), candidates=array([2, 3]), dissimilarities=array([9., 1.]))
    """
    data, universe = _records("x", x), _records("candidates", candidates)
    if data.shape[1:] != universe.shape[1:]:
        raise ValueError(
            f"Expected candidates of shape {list(data.shape[1:])}, "
            f"got shape {list(universe.shape[1:])}."
        )
    _check_counts(largest, smallest, block_size)
    outside = _outside(universe, data)
    _check_available(largest + smallest, len(data) * len(outside), "pairs of x and a candidate")
    pairs = _pairs(measure, block_size, data, universe[outside])
    lowest, highest = _blocks.first_extremes(pairs)
    _check_finite(lowest)
    _check_finite(highest)
    rows = _blocks.shortlist(pairs, highest, lowest, largest=largest, smallest=smallest)
    extremes = []
    for some, values in pairs.second_pass(rows):
        order = _blocks.ends(np.argsort(-values, axis=None, kind="stable"), largest, smallest)
        row, column = np.divmod(order, values.shape[1])
        extremes.append((some[row], column, values[row, column]))
    record, column, value = (np.concatenate(parts) for parts in zip(*extremes, strict=True))
    order = _blocks.ends(np.lexsort((column, record, -value)), largest, smallest)
    return Replacements(record[order], outside[column[order]], value[order])


def negative_ssim(x: Shaped[ArrayLike, "h w c"], y: Shaped[ArrayLike, "h w c"]) -> Float[Array, ""]:
    """Computes the negative structural similarity index of two images, -SSIM(x, y) in [-1, 1].

    See `metrics.image.ssim`.

    Args:
      x: image with values in [0, 1], at least 11 pixels high and wide.
      y: image of the same shape.

    Returns:
      The negative index; -1 for equal images.

    Raises:
      ValueError: if the images are smaller than the window.

    References:
      Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity, 2004,
      equation 13. Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in
      Differentially Private Deep Learning, 2021, section 6.1 (MNIST).

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> image = np.tile(np.linspace(0, 1, 28), (28, 1))[:, :, None]
      >>> print(f"{jp.sensitivity.negative_ssim(image, image):.3f}")
      -1.000
      >>> print(f"{jp.sensitivity.negative_ssim(image, 1 - image):.3f}")
      0.569
    """
    return -image.ssim(x, y)


def hamming(x: Shaped[ArrayLike, "*record"], y: Shaped[ArrayLike, "*record"]) -> Float[Array, ""]:
    """Computes the Hamming distance of two records, the number of entries that differ.

    Args:
      x: record, such as one of binary or categorical entries.
      y: record of the same shape.

    Returns:
      The count; SciPy's distance of the same name is its share of all entries.

    References:
      Hamming, Error Detecting and Error Correcting Codes, 1950. Bernau et al., Quantifying
      Identifiability to Choose and Audit epsilon in Differentially Private Deep Learning, 2021,
      section 6.1 (Purchase-100).

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> float(jp.sensitivity.hamming(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 1])))
      2.0
    """
    return _floats(_floats(x) != _floats(y)).sum()


def manhattan(x: Shaped[ArrayLike, "*record"], y: Shaped[ArrayLike, "*record"]) -> Float[Array, ""]:
    """Computes the Manhattan distance of two records, sum_k |x_k - y_k|.

    Args:
      x: record.
      y: record of the same shape.

    Returns:
      The distance, in the units of the entries.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, section 6.1 (Adult).

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> float(jp.sensitivity.manhattan(np.array([0.0, 3.0]), np.array([4.0, 0.0])))
      7.0
    """
    return jnp.abs(_floats(x) - _floats(y)).sum()


def euclidean(x: Shaped[ArrayLike, "*record"], y: Shaped[ArrayLike, "*record"]) -> Float[Array, ""]:
    """Computes the Euclidean distance of two records, (sum_k (x_k - y_k)^2)^(1/2).

    Args:
      x: record.
      y: record of the same shape.

    Returns:
      The distance, in the units of the entries.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, section 6.1.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> float(jp.sensitivity.euclidean(np.array([0.0, 3.0]), np.array([4.0, 0.0])))
      5.0
    """
    return jnp.sqrt(jnp.square(_floats(x) - _floats(y)).sum())


def cosine(x: Shaped[ArrayLike, "*record"], y: Shaped[ArrayLike, "*record"]) -> Float[Array, ""]:
    """Computes the cosine distance of two records, 1 - x.y / (|x| |y|).

    It is evaluated as |x / |x| - y / |y||^2 / 2, which does not cancel for near records.

    Args:
      x: record with a non-zero entry.
      y: record of the same shape.

    Returns:
      The distance, in [0, 2]; NaN for a record of zeros.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, section 6.1.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> float(jp.sensitivity.cosine(np.array([0.0, 3.0]), np.array([4.0, 0.0])))
      1.0
    """
    a, b = _floats(x), _floats(y)
    return jnp.square(a / _tree.norm(a) - b / _tree.norm(b)).sum() / 2


_SUMS: dict[Measure, tuple[Callable[[Array, Array], Array], Callable[[Array], Array]]] = {
    euclidean: (lambda u, v: jnp.square(u - v), jnp.sqrt),
    manhattan: (lambda u, v: jnp.abs(u - v), lambda total: total),
    hamming: (lambda u, v: u != v, lambda total: total),
    cosine: (lambda u, v: jnp.square(u - v) / 2, lambda total: total),  # of unit vectors
}
"""Term of each entry, and function of the sum of terms, of the measures that are such sums."""


def _floats(record: Shaped[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Converts to JAX's default float type, in which differences of unsigned integers are right."""
    return jnp.asarray(record, float)


def _records(name: str, values: Shaped[Array | np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """Checks that records are finite numbers."""
    records = _check.real_array(name, values)
    if records.ndim == 0 or records.size == 0:
        raise ValueError(f"Expected records in {name}, got shape {list(records.shape)}.")
    if not np.isfinite(records).all():
        raise ValueError(f"Expected finite {name}, got infinity.")
    return records


def _check_counts(largest: int, smallest: int, block_size: int | None) -> None:
    for name, count in {"largest": largest, "smallest": smallest}.items():
        _check.non_negative_int(**{name: count})
    _check.positive_int(**{"largest + smallest": largest + smallest})
    if block_size is not None:
        _check.positive_int(block_size=block_size)


def _check_available(count: int, available: int, what: str) -> None:
    if count > available:
        raise ValueError(f"Expected largest + smallest <= {available} {what}, got {count}.")


def _check_finite(dissimilarities: Float[np.ndarray, " n"]) -> None:
    if (bad := ~np.isfinite(dissimilarities)).any():
        row = int(bad.argmax())
        raise ValueError(
            f"Expected finite dissimilarities, got {dissimilarities[row]} for record {row} of x."
        )


def _outside(
    candidates: Shaped[np.ndarray, "m ..."], x: Shaped[np.ndarray, "n ..."]
) -> Int[np.ndarray, " o"]:
    """Returns the indices of the candidates that differ from every record of x."""

    def digest(record):
        # float64 makes numbers of different types comparable, and the sum turns -0 into 0.
        values = np.asarray(record, np.float64) + 0.0
        return hashlib.blake2b(values.tobytes(), digest_size=16).digest()

    known = {digest(record) for record in x}
    return np.flatnonzero([digest(record) not in known for record in candidates])


def _pairs(
    measure: Measure, block_size: int | None, *records: Shaped[np.ndarray, "_ *record"]
) -> Pairs:
    """Prepares all pairs of one set of records, or of two, for a measure."""
    _check.attributes(("__call__",), "euclidean", measure=measure)
    if measure in _SUMS:
        records = tuple(values.reshape(len(values), -1) for values in records)
        if measure is cosine:
            records = tuple(_unit_vectors(values) for values in records)
        term, finish = _SUMS[measure]
        block = functools.partial(_blocks.sum_of_terms, term=term, finish=finish)
        first, second = _blocks.first_type(*records), np.dtype(np.float64)
        size = block_size or _blocks.size_for_sums(first)
    else:
        if measure is negative_ssim:
            _check_pixels(*records)
            # Variances cancel, and c2 = 0.0009 divides their rounding error of 1e-7 in float32.
            first = second = np.dtype(np.float64)
        else:
            first = second = jax.dtypes.canonicalize_dtype(float)
        block = functools.partial(_blocks.each_pair, measure=measure)
        size = block_size or _blocks.size_for_pairs(records[0].shape[1:], first)
    converted = [values.astype(first, copy=False) for values in records]
    return Pairs(
        x=converted[0],
        y=converted[-1],
        block=block,
        size=size,
        second_type=second,
        is_symmetric=measure in _SUMS or measure is negative_ssim,
        is_exact=measure is hamming,  # float32 counts up to 2^24 entries without rounding
    )


def _unit_vectors(records: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Divides records by their norms; dividing by the largest entry first avoids overflow."""
    largest = np.abs(records.astype(np.float64)).max(axis=1, keepdims=True)
    if not largest.all():
        row = int(largest.argmin())
        raise ValueError(f"Expected records with a non-zero norm, got zeros in record {row}.")
    scaled = records / largest
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def _check_pixels(*images: Shaped[np.ndarray, "..."]) -> None:
    for values in images:
        if values.min() < 0 or values.max() > 1:
            raise ValueError(
                f"Expected pixels in [0, 1], got {_check.number_text(values.min())} to "
                f"{_check.number_text(values.max())}."
            )
