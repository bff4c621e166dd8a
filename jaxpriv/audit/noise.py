"""Tests of the noise itself, for what no attack score can see.

The residuals are what was released minus what should have been released without noise, such as a
noisy sum minus the clipped sum. In the shapes below `t` counts steps and `d` entries of a leaf.
"""

import itertools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from jaxpriv import _check
from jaxpriv._types import Keys

_ENTRIES = 2**14
"""Entries of a leaf by which steps are compared: the cost grows with the square of the steps."""

_FAR = 37.0
"""Standard deviations beyond which a probability is 0 in float64."""


class NoiseFindings(NamedTuple):
    """p-values of each test, and which fail.

    std_ratio: observed standard deviation / the stated one, over all entries.
    p_values: valid at any size; one test each.
    adjusted: after Holm's correction for the number of tests.
    rejected: those whose adjusted p-value is at most the level; right noise has any with
      probability at most the level.
    """

    std_ratio: float
    p_values: dict[str, float]
    adjusted: dict[str, float]
    rejected: tuple[str, ...]


def check_noise(
    residuals: PyTree[Shaped[Array | np.ndarray, "t ..."]],
    *,
    std: float,
    level: float,
    batch_sizes: Shaped[Array | np.ndarray, " t"] | None = None,
) -> NoiseFindings:
    """Tests that residuals are independent N(0, std^2), for the breaks that training code has.

    The tests: `level LEAF`: sum of squares / std^2 is chi-square. `level of a step`: so it is
    in each step. `shape LEAF`: the entries are normal (Kolmogorov-Smirnov). `steps`: no two steps
    correlate, compared by 16,384 entries spread over a large leaf; stack several runs, or the
    steps before and after a resume, on the leading axis, and noise that is repeated shows here,
    unless it is shifted or permuted. `leaves`: no two leaves correlate, as they do under one
    key. `entries LEAF`: neighbours along an axis do not correlate, as they do where noise is
    broadcast. `batch_size`: the energy of a step does not follow its realised batch size.

    Args:
      residuals: leaves [t, ...]; rounding must be far below std.
      std: stated standard deviation, in the units of the residuals; > 0.
      level: probability with which right noise may be rejected, in (0, 1).
      batch_sizes: realised batch sizes of the steps, which differ; None tests nothing against
        them.

    Returns:
      The findings, tests in the order above; those that the shapes do not allow are absent.

    Raises:
      ValueError: if an argument is out of range, no residuals are given, lengths differ, a
        residual is not finite, or all batch sizes are equal.

    References:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    _check.positive(std=std)
    _check.open_unit(level=level)
    leaves = _leaves(residuals, std)
    flat = {name: leaf.reshape(len(leaf), -1) for name, leaf in leaves.items()}
    p_values = {f"level {name}": _level(leaf) for name, leaf in flat.items()}
    p_values |= _level_of_steps(flat)
    p_values |= {f"shape {name}": _shape(leaf) for name, leaf in flat.items()}
    p_values |= _of_steps(flat) | _of_leaves(flat)
    for name, leaf in leaves.items():
        p_values |= _of_entries(name, leaf)
    if batch_sizes is not None:
        p_values |= _of_batch_sizes(flat, np.asarray(batch_sizes, np.float64))
    adjusted = holm(p_values)
    squares = sum(float(np.square(leaf).sum()) for leaf in flat.values())
    return NoiseFindings(
        std_ratio=math.sqrt(squares / sum(leaf.size for leaf in flat.values())),
        p_values=p_values,
        adjusted=adjusted,
        rejected=tuple(name for name, p in adjusted.items() if p <= level),
    )


def residuals_of(keys: Keys, release: Callable[[PRNGKeyArray], PyTree], *, exact: PyTree) -> PyTree:
    """Releases once for each key and subtracts the exact value, as `check_noise` expects.

    Args:
      keys: one for each step.
      release: `release(key) -> noisy value`, such as a noisy sum or a whole training step.
      exact: the value without noise, of the same structure. Warns where it is zero everywhere:
        then the noise alone is tested, as when every gradient was NaN and counted as zero.

    Returns:
      The residuals; leaves [t, ...].

    Raises:
      ValueError: if the exact value is not finite.
    """
    leaves = jax.tree_util.tree_leaves_with_path(exact)
    for path, leaf in leaves:
        if not np.isfinite(np.asarray(leaf).astype(np.float64)).all():
            raise ValueError(
                f"Expected a finite exact value, got NaN or infinity in "
                f"{jax.tree_util.keystr(path) or 'it'}."
            )
    if not any(np.asarray(leaf).any() for _, leaf in leaves):
        warnings.warn(
            "The exact value is zero everywhere, so the noise alone is tested. Gradients that are "
            "NaN or infinite count as zero: info.num_nonfinite has their number.",
            stacklevel=2,
        )
    noisy = jax.lax.map(release, keys)
    return jax.tree.map(lambda value, middle: value - middle, noisy, exact)


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Adjusts p-values so that comparing each with a level bounds the family's error by it.

    Args:
      p_values: of the tests, in any dependence.

    Returns:
      The adjusted ones, in the same order.
    """
    adjusted, most = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        most = max(most, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = most
    return {name: adjusted[name] for name in p_values}


def _leaves(residuals: PyTree, std: float) -> dict[str, Float[np.ndarray, "t ..."]]:
    """The leaves by name, in units of std."""
    named = {
        jax.tree_util.keystr(path) or "noise": np.asarray(leaf).astype(np.float64) / std
        for path, leaf in jax.tree_util.tree_leaves_with_path(residuals)
    }
    if not named or any(leaf.ndim == 0 or leaf.size == 0 for leaf in named.values()):
        raise ValueError("Expected residuals with a leading axis of steps, got none.")
    if len({len(leaf) for leaf in named.values()}) > 1:
        raise ValueError(
            f"Expected equally many steps, got {[len(leaf) for leaf in named.values()]}."
        )
    for name, leaf in named.items():
        if (bad := ~np.isfinite(leaf)).any():
            raise ValueError(
                f"Expected finite residuals, got {int(bad.sum())} that are NaN or infinite in "
                f"{name}, the first in step {int(np.argwhere(bad)[0][0])}: a released or an exact "
                "value was not finite."
            )
    return named


def _level(leaf: Float[np.ndarray, "..."]) -> float:
    from scipy import special

    energy = float(np.square(leaf).sum())
    tails = special.chdtr(leaf.size, energy), special.chdtrc(leaf.size, energy)
    return min(1.0, 2 * float(min(tails)))


def _level_of_steps(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """The energy of every step, over all leaves."""
    joined = [np.concatenate(rows) for rows in zip(*flat.values(), strict=True)]
    return _smallest("level of a step", np.array([_level(row) for row in joined]))


def _shape(leaf: Float[np.ndarray, "t d"]) -> float:
    from scipy import stats

    return float(stats.kstest(_spread_out(leaf.reshape(1, -1))[0], "norm").pvalue)


def _spread_out(leaf: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t e"]:
    """Selects at most _ENTRIES columns, evenly spread."""
    columns = np.linspace(0, leaf.shape[1] - 1, min(_ENTRIES, leaf.shape[1]))
    return leaf[:, np.round(columns).astype(np.int64)]


def _of_steps(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """Every two steps, over all leaves."""
    joined = np.concatenate([_spread_out(leaf) for leaf in flat.values()], axis=1)
    rows = _unit(joined)
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    return _smallest("steps", _uncorrelated(cosines, joined.shape[1]))


def _of_leaves(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """Every two leaves, over the entries that both have."""
    p_values = [
        _two(a[:, : b.shape[1]], b[:, : a.shape[1]])
        for a, b in itertools.combinations(flat.values(), 2)
    ]
    return _smallest("leaves", np.array(p_values))


def _of_entries(name: str, leaf: Float[np.ndarray, "t ..."]) -> dict[str, float]:
    """The even entries along each axis but the first, against the odd ones after them."""
    p_values = []
    for axis in range(1, leaf.ndim):
        if (pairs := leaf.shape[axis] // 2) > 0:
            moved = np.moveaxis(leaf, axis, 0)[: 2 * pairs]
            p_values.append(_two(moved[0::2], moved[1::2]))
    return _smallest(f"entries {name}", np.array(p_values))


def _of_batch_sizes(
    flat: dict[str, Float[np.ndarray, "t d"]], sizes: Float[np.ndarray, " t"]
) -> dict[str, float]:
    """The steps' energies, as normal scores of their chi-square, regressed on the batch sizes."""
    from scipy import special

    leaves = list(flat.values())
    _check.same_length(batch_sizes=sizes, residuals=leaves[0])
    centred = sizes - sizes.mean()
    if not (np.isfinite(sizes).all() and centred.any()):
        raise ValueError("Expected finite batch_sizes that differ.")
    energy = np.sum([np.square(leaf).sum(axis=1) for leaf in leaves], axis=0)
    entries = sum(leaf.shape[1] for leaf in leaves)
    below, above = special.chdtr(entries, energy), special.chdtrc(entries, energy)
    score = np.where(below < above, special.ndtri(below), -special.ndtri(above))
    z = float(centred @ np.clip(score, -_FAR, _FAR)) / float(np.linalg.norm(centred))
    return {"batch_size": 2 * float(special.ndtr(-abs(z)))}


def _two(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    cosine = _unit(a.reshape(1, -1)) @ _unit(b.reshape(1, -1)).T
    return float(_uncorrelated(cosine[0], a.size)[0])


def _unit(rows: Float[np.ndarray, "r d"]) -> Float[np.ndarray, "r d"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-150)


def _uncorrelated(cosines: Float[np.ndarray, " c"], size: int) -> Float[np.ndarray, " c"]:
    """Two-sided p-values: between Gaussian vectors, cosine^2 is Beta(1/2, (size - 1)/2)."""
    from scipy import special

    if size == 1:
        return np.ones_like(cosines)
    return special.betainc((size - 1) / 2, 0.5, np.clip(1 - np.square(cosines), 0, 1))


def _smallest(name: str, p_values: Float[np.ndarray, " c"]) -> dict[str, float]:
    """One test of several: the smallest p-value, times how many there are."""
    return {name: min(1.0, p_values.size * float(p_values.min()))} if p_values.size else {}
