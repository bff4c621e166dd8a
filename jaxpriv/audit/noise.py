"""Tests of the noise itself, for errors that attack scores cannot detect.

    released values - exact values = residuals --tests--> p-values --Holm--> rejected tests

An example of a residual is a noisy sum minus the clipped sum. In the shapes below `t` counts steps
and `d` entries of a leaf.
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

__all__ = ["NoiseFindings", "check_noise", "collect_residuals", "holm"]

_MAX_ENTRIES = 2**14
"""Number of entries of a leaf by which steps are compared, as the cost is steps^2 * entries."""

_MAX_LAG = 32
"""Largest distance of steps in the test of lags, each of which takes part in its correction."""

_MAX_SCORE = 37.0
"""Limit of normal scores: the probability beyond it is about 1e-299."""


class NoiseFindings(NamedTuple):
    """The p-value of each test, and the tests that reject the noise.

    std_ratio: observed standard deviation / stated standard deviation, over all entries.
    p_values: p-value of each test by name; they are valid at any size.
    adjusted: p-values after Holm's correction for the number of tests.
    rejected: names of the tests whose adjusted p-value is at most the level. For correct noise
      the probability of any rejection is at most the level.
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
    """Tests whether residuals are independent N(0, std^2), against typical errors in training code.

    The tests, by name:
      `level LEAF`: the sum of squares / std^2 is chi-square.
      `level of a step`: the same in each step, over all leaves.
      `level of an entry LEAF`: the same for each entry, over all steps, as noise may be missing on
        some entries.
      `shape LEAF`: the entries are normal (Kolmogorov-Smirnov).
      `steps`: no two steps are correlated; at most 16,384 entries of a leaf are compared. To detect
        repeated noise across runs, or across a resume, stack their steps on the leading axis.
        Noise that is repeated in shifted or permuted form is not detected.
      `lags`: steps are not correlated with those up to 32 steps later, over all such pairs at once,
        which detects weak correlation between many steps.
      `leaves`: no two leaves are correlated, as they are if they share a key.
      `entries LEAF`: neighbours along an axis are not correlated, as they are if noise is
        broadcast.
      `batch_size`: the sum of squares of a step does not depend on its realised batch size.

    Args:
      residuals: pytree with leaves [t, ...]; their rounding error must be far below std.
      std: stated standard deviation, in the units of the residuals; > 0.
      level: probability with which correct noise may be rejected, in (0, 1).
      batch_sizes: realised batch size of each step; they must differ. None omits the last test.

    Returns:
      The findings, with tests in the order above; tests that need other shapes are absent.

    Raises:
      ValueError: if an argument is out of range, no residuals are given, lengths differ, a
        residual is not finite, or all batch sizes are equal.

    References:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> noise = np.random.default_rng(1).normal(scale=2.0, size=(10, 100))  # 10 steps
      >>> jp.audit.check_noise(noise, std=2.0, level=0.01).rejected
      ()
      >>> jp.audit.check_noise(noise, std=3.0, level=0.01).rejected
      ('level noise', 'level of a step', 'shape noise')
    """
    _check.positive(std=std)
    _check.open_unit(level=level)
    leaves = _leaves(residuals, std)
    flat = {name: leaf.reshape(len(leaf), -1) for name, leaf in leaves.items()}
    p_values = {f"level {name}": _level_pvalue(leaf) for name, leaf in flat.items()}
    p_values |= _test_level_of_steps(flat)
    for name, leaf in flat.items():
        p_values |= _test_level_of_entries(name, leaf)
    p_values |= {f"shape {name}": _shape_pvalue(leaf) for name, leaf in flat.items()}
    p_values |= _test_steps(flat) | _test_lags(flat) | _test_leaves(flat)
    for name, leaf in leaves.items():
        p_values |= _test_entries(name, leaf)
    if batch_sizes is not None:
        p_values |= _test_batch_sizes(flat, np.asarray(batch_sizes, np.float64))
    adjusted = holm(p_values)
    squares = sum(float(np.square(leaf).sum()) for leaf in flat.values())
    return NoiseFindings(
        std_ratio=math.sqrt(squares / sum(leaf.size for leaf in flat.values())),
        p_values=p_values,
        adjusted=adjusted,
        rejected=tuple(name for name, p in adjusted.items() if p <= level),
    )


def collect_residuals(
    keys: Keys, release: Callable[[PRNGKeyArray], PyTree], *, exact: PyTree
) -> PyTree:
    """Releases a value once per key and subtracts the exact value.

    Args:
      keys: one PRNG key per step.
      release: function `release(key) -> noisy value`, such as a noisy sum or a training step.
      exact: the value without noise, of the same structure. A warning is issued if it is zero
        everywhere, as it is if every gradient was NaN and counted as zero.

    Returns:
      The residuals, with leaves [t, ...], for `check_noise`.

    Raises:
      ValueError: if the exact value is not finite, or not like the release.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxpriv as jp
      >>> total = jnp.arange(50.0)
      >>> def release(key):
      ...     return total + 2.0 * jax.random.normal(key, total.shape)
      >>> keys = jax.random.split(jax.random.key(0), 20)
      >>> residuals = jp.audit.collect_residuals(keys, release, exact=total)
      >>> residuals.shape
      (20, 50)
      >>> jp.audit.check_noise(residuals, std=2.0, level=1e-3).rejected
      ()
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
    structures = [jax.tree.structure(noisy), jax.tree.structure(exact)]
    shapes = [leaf.shape[1:] for leaf in jax.tree.leaves(noisy)]
    if structures[0] != structures[1] or shapes != [np.shape(leaf) for _, leaf in leaves]:
        raise ValueError("Expected an exact value with the structure and shapes of the release.")
    return jax.tree.map(lambda value, centre: value - centre, noisy, exact)


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Adjusts p-values for multiple tests by Holm's method.

    Rejecting the tests whose adjusted p-value is at most a level has a family-wise error of at most
    that level, whatever the dependence of the tests. statsmodels has the same function, but its
    import takes seconds.

    Args:
      p_values: p-value of each test, by name.

    Returns:
      The adjusted p-values, in the same order.

    References:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.

    Example:
      >>> from jaxpriv.audit import noise
      >>> noise.holm({"level": 0.01, "shape": 0.04, "steps": 0.5})
      {'level': 0.03, 'shape': 0.08, 'steps': 0.5}
    """
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def _leaves(residuals: PyTree, std: float) -> dict[str, Float[np.ndarray, "t ..."]]:
    """Returns the leaves by name, in units of std."""
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


def _level_pvalue(leaf: Float[np.ndarray, "..."]) -> float:
    """Returns the two-sided p-value of the sum of squares, which is chi-square."""
    from scipy import special

    energy = float(np.square(leaf).sum())
    tails = special.chdtr(leaf.size, energy), special.chdtrc(leaf.size, energy)
    return min(1.0, 2 * float(min(tails)))


def _test_level_of_steps(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """Tests the sum of squares of every step, over all leaves."""
    joined = [np.concatenate(rows) for rows in zip(*flat.values(), strict=True)]
    return _combine("level of a step", np.array([_level_pvalue(row) for row in joined]))


def _test_level_of_entries(name: str, leaf: Float[np.ndarray, "t d"]) -> dict[str, float]:
    """Tests the sum of squares of each entry over all steps."""
    from scipy import special

    energy = np.square(leaf).sum(axis=0)
    tails = np.minimum(special.chdtr(len(leaf), energy), special.chdtrc(len(leaf), energy))
    return _combine(f"level of an entry {name}", np.minimum(1.0, 2 * tails))


def _shape_pvalue(leaf: Float[np.ndarray, "t d"]) -> float:
    """Returns the p-value of a Kolmogorov-Smirnov test of normality."""
    from scipy import stats

    return float(stats.kstest(_select_entries(leaf.reshape(1, -1))[0], "norm").pvalue)


def _select_entries(leaf: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t e"]:
    """Selects at most _MAX_ENTRIES columns, evenly spread."""
    columns = np.linspace(0, leaf.shape[1] - 1, min(_MAX_ENTRIES, leaf.shape[1]))
    return leaf[:, np.round(columns).astype(np.int64)]


def _test_steps(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """Tests the correlation of every two steps, over all leaves."""
    joined = np.concatenate([_select_entries(leaf) for leaf in flat.values()], axis=1)
    rows = _normalise(joined)
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    return _combine("steps", _correlation_pvalues(cosines, joined.shape[1]))


def _test_lags(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """Tests the correlation of steps a lag apart, for each lag over pairs that share no step."""
    joined = np.concatenate([_select_entries(leaf) for leaf in flat.values()], axis=1)
    num_steps = len(joined)
    p_values = []
    for lag in range(1, min(_MAX_LAG, num_steps // 2) + 1):
        first = np.arange(num_steps - lag)
        first = first[first // lag % 2 == 0]
        p_values.append(_correlation_pvalue(joined[first], joined[first + lag]))
    return _combine("lags", np.array(p_values))


def _test_leaves(flat: dict[str, Float[np.ndarray, "t d"]]) -> dict[str, float]:
    """Tests the correlation of every two leaves, over the entries that both have."""
    p_values = [
        _correlation_pvalue(a[:, : b.shape[1]], b[:, : a.shape[1]])
        for a, b in itertools.combinations(flat.values(), 2)
    ]
    return _combine("leaves", np.array(p_values))


def _test_entries(name: str, leaf: Float[np.ndarray, "t ..."]) -> dict[str, float]:
    """Tests the even entries along each axis but the first against the odd ones after them."""
    p_values = []
    for axis in range(1, leaf.ndim):
        if (num_pairs := leaf.shape[axis] // 2) > 0:
            moved = np.moveaxis(leaf, axis, 0)[: 2 * num_pairs]
            p_values.append(_correlation_pvalue(moved[0::2], moved[1::2]))
    return _combine(f"entries {name}", np.array(p_values))


def _test_batch_sizes(
    flat: dict[str, Float[np.ndarray, "t d"]], sizes: Float[np.ndarray, " t"]
) -> dict[str, float]:
    """Tests a regression of the sums of squares, as normal scores, on the batch sizes."""
    from scipy import special

    leaves = list(flat.values())
    _check.same_length(batch_sizes=sizes, residuals=leaves[0])
    centred = sizes - sizes.mean()
    if not (np.isfinite(sizes).all() and centred.any()):
        raise ValueError("Expected finite batch_sizes that differ.")
    energy = np.sum([np.square(leaf).sum(axis=1) for leaf in leaves], axis=0)
    entries = sum(leaf.shape[1] for leaf in leaves)
    below, above = special.chdtr(entries, energy), special.chdtrc(entries, energy)
    # Each tail is used where it is the smaller one, so that no score is infinite by rounding.
    score = np.where(below < above, special.ndtri(below), -special.ndtri(above))
    z = float(centred @ np.clip(score, -_MAX_SCORE, _MAX_SCORE)) / float(np.linalg.norm(centred))
    return {"batch_size": 2 * float(special.ndtr(-abs(z)))}


def _correlation_pvalue(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """Returns the two-sided p-value of the correlation of two arrays."""
    cosine = _normalise(a.reshape(1, -1)) @ _normalise(b.reshape(1, -1)).T
    return float(_correlation_pvalues(cosine[0], a.size)[0])


def _normalise(rows: Float[np.ndarray, "r d"]) -> Float[np.ndarray, "r d"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-150)


def _correlation_pvalues(cosines: Float[np.ndarray, " c"], size: int) -> Float[np.ndarray, " c"]:
    """Returns two-sided p-values: cosine^2 of two Gaussian vectors is Beta(1/2, (size - 1)/2)."""
    from scipy import special

    if size == 1:
        return np.ones_like(cosines)
    return special.betainc((size - 1) / 2, 0.5, np.clip(1 - np.square(cosines), 0, 1))


def _combine(name: str, p_values: Float[np.ndarray, " c"]) -> dict[str, float]:
    """Combines several p-values into one test by Bonferroni's correction."""
    return {name: min(1.0, p_values.size * float(p_values.min()))} if p_values.size else {}
