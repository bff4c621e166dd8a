"""Distributions of a record's signal, estimated from its IN or OUT shadow models.

    shadow signals --moments--> size, mean, squares --variance--> Gaussian or Student's t

In the shapes below `m` counts shadow models, `n` records and `a` those of a block.
"""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxpriv.attacks import _shadows

_MIN_PAIRS = 16
"""With fewer signals on a side a variance of one record is too noisy to be used by itself."""

_FEW_SHADOWS_FREEDOM = 4.0
"""Degrees of freedom of the prior where two signals a side cannot show the spread of variances."""

_SCORE_LIMIT = 1e100
"""Signals are clipped to this magnitude. With MIN_VARIANCE it keeps every ratio below 1e301."""

MIN_VARIANCE = 1e-100
"""Smallest variance, for a side whose signals are all zero or nearly so."""

_MIN_VARIANCE_RATIO = 1e-6
"""Smallest variance of a record, relative to the median one."""

_MAX_VARIANCE_RATIO = 100.0
"""In the pooled variance, each record's variance is capped at this multiple of the median."""

_ROUNDING = 1e-10
"""Deviations below this share of a record's mean are attributed to rounding."""


class Moments(NamedTuple):
    """Moments of each record's signals under its IN shadow models, or its OUT ones."""

    size: Int[np.ndarray, " a"]
    mean: Float[np.ndarray, " a"]
    squares: Float[np.ndarray, " a"]


class Predictive(NamedTuple):
    """Distribution of each record's next signal on one side.

    Gaussian where `freedom` is infinite, otherwise Student's t with that many degrees of freedom
    and the squared scale `variance`.
    """

    mean: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]
    freedom: Float[np.ndarray, " n"]


def finite_range(
    target: Float[np.ndarray, " n"], shadows: Shaped[np.ndarray, "m n"]
) -> tuple[float, float]:
    """Returns the smallest and largest finite number, or (-1, 1) if there is none."""
    low, high = np.inf, -np.inf
    for row in (target, *shadows):
        values = row.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = np.min(finite, initial=low), np.max(finite, initial=high)
    if low > high:
        return -1.0, 1.0
    low, high = np.clip([low, high], -_SCORE_LIMIT, _SCORE_LIMIT)
    return float(low), float(high)


def moments(
    shadows: Shaped[np.ndarray, "m n"],
    chosen: Sequence[Bool[np.ndarray, "m n"]],
    low: float,
    high: float,
) -> list[Moments]:
    """Computes the moments of each side block by block, without a float64 copy of all signals."""
    sides = [[] for _ in chosen]
    for rows in _shadows.blocks(shadows.shape[1]):
        block = _shadows.float64_block(shadows, rows, low, high)
        for side, mask in zip(sides, chosen, strict=True):
            side.append(_block(block, mask[:, rows]))
    return [Moments(*map(np.concatenate, zip(*side, strict=True))) for side in sides]


def _block(shadows: Float[np.ndarray, "m a"], chosen: Bool[np.ndarray, "m a"]) -> Moments:
    """Computes moments in two passes: E[s^2] - E[s]^2 would lose digits to cancellation."""
    size = chosen.sum(axis=0)
    mean = (shadows * chosen).sum(axis=0) / np.maximum(size, 1)
    deviation = (shadows - mean) * chosen
    return Moments(size, mean, np.einsum("ma,ma->a", deviation, deviation))


def predictives(
    sides: Sequence[Moments], difference: Float[np.ndarray, " b"], *, variance: str
) -> list[Predictive]:
    """Returns the distribution of each record's signal on each side; variances are positive."""
    pooled = [pooled_variance(side) for side in sides if (side.size > 1).any()]
    # If no record has two signals on a side, use half the mean squared difference: under no
    # membership effect, the difference of two signals has twice their variance.
    pooled = pooled or [float(np.square(difference).mean()) / 2 if difference.size else 1.0]
    fixed = (pooled[0], pooled[-1])[: len(sides)]
    rounding = _ROUNDING * np.max([np.abs(side.mean) for side in sides], axis=0)
    lowest = np.maximum(rounding**2, MIN_VARIANCE)
    if variance == "shrunken":
        result = [_shrunken(side, value) for side, value in zip(sides, fixed, strict=True)]
    else:
        normal = np.full(len(lowest), np.inf)
        values = fixed
        if variance == "per_example":
            _warn_if_few(sides)
            values = _per_example_variances(sides, fixed)
        result = [
            Predictive(side.mean, np.broadcast_to(value, lowest.shape), normal)
            for side, value in zip(sides, values, strict=True)
        ]
    # Signals that differ by rounding alone have one distribution on both sides.
    return [
        Predictive(
            side.mean,
            np.maximum(side.variance, lowest),
            np.where(side.variance > lowest, side.freedom, np.inf),
        )
        for side in result
    ]


def log_ratio(
    s: Float[np.ndarray, " n"], in_side: Predictive, out_side: Predictive
) -> Float[np.ndarray, " n"]:
    """Computes the log density of the IN side minus that of the OUT side, always finite."""
    z_in, z_out = ((s - side.mean) / np.sqrt(side.variance) for side in (in_side, out_side))
    variances = np.log(out_side.variance) - np.log(in_side.variance)
    # The product form of z_out^2 - z_in^2 loses fewer digits where the two are close.
    normal = (variances + (z_out - z_in) * (z_out + z_in)) / 2
    is_normal = np.isinf(in_side.freedom) & np.isinf(out_side.freedom)
    if is_normal.all():
        return normal
    return np.where(is_normal, normal, log_density(s, in_side) - log_density(s, out_side))


def log_density(s: Float[np.ndarray, " n"], side: Predictive) -> Float[np.ndarray, " n"]:
    """Computes the log density of each signal."""
    from scipy import special

    z_squared = (s - side.mean) ** 2 / side.variance
    is_normal = np.isinf(side.freedom)
    freedom = np.where(is_normal, 1.0, side.freedom)
    student = (
        -special.betaln(0.5, freedom / 2)
        - np.log(freedom) / 2
        - (freedom + 1) / 2 * np.log1p(z_squared / freedom)
    )
    normal = -(np.log(2 * np.pi) + z_squared) / 2
    return np.where(is_normal, normal, student) - np.log(side.variance) / 2


def log_cdf(s: Float[np.ndarray, " n"], side: Predictive) -> Float[np.ndarray, " n"]:
    """Computes log P(signal < s), from the tail of the t distribution where it underflows."""
    from scipy import special

    z = (s - side.mean) / np.sqrt(side.variance)
    is_normal = np.isinf(side.freedom)
    if is_normal.all():
        return special.log_ndtr(z)
    freedom = np.where(is_normal, 2.0, side.freedom)
    lower = special.stdtr(freedom, -np.abs(z))
    # Integration by parts: the tail beyond x is at most, and far out about,
    # density(x) (1 + x^2 / v) v / ((v - 1) x).
    standard = Predictive(np.zeros_like(z), np.ones_like(z), freedom)
    x = np.maximum(np.abs(z), 1.0)
    tail = (
        log_density(x, standard)
        + np.log1p(x**2 / freedom)
        + np.log(freedom / np.maximum(freedom - 1, 0.5) / x)
    )
    with np.errstate(divide="ignore"):
        left = np.where(lower > 1e-290, np.log(lower), tail)
    student = np.where(z > 0, np.log1p(-lower), left)
    return np.where(is_normal, special.log_ndtr(z), student)


def _shrunken(side: Moments, pooled: float) -> Predictive:
    """Computes the empirical-Bayes posterior predictive of each record's signal.

    Each record's variance has the scaled inverse chi-square prior (n0, s0) that fits the spread of
    all records' variances. With k signals, mean m and sum of squared deviations q, the next signal
    has Student's t distribution with n0 + k - 1 degrees of freedom around m, and squared scale
    (n0 s0 + q) / (n0 + k - 1) (1 + 1/k). A record with one signal has the pooled Gaussian.
    """
    n0, s0 = _prior(side, pooled)
    size = np.maximum(side.size, 1)
    if np.isinf(n0):
        variance, freedom = np.full(len(size), s0), np.full(len(size), np.inf)
    else:
        freedom = n0 + size - 1.0
        variance = (n0 * s0 + side.squares) / freedom
    repeated = side.size > 1
    return Predictive(
        side.mean,
        np.where(repeated, variance * (1 + 1 / size), pooled),
        np.where(repeated, freedom, np.inf),
    )


def _prior(side: Moments, pooled: float) -> tuple[float, float]:
    """Degrees of freedom and variance of the prior, by moments of the log variances.

    A log variance with d degrees of freedom has variance trigamma(d/2) around its truth; what the
    observed ones vary beyond that is trigamma(n0/2) (Smyth 2004, section 6.2).
    """
    from scipy import special

    repeated = side.size > 1
    half = (side.size[repeated] - 1) / 2
    if not repeated.any() or np.median(half) < 1:
        return _FEW_SHADOWS_FREEDOM, pooled
    variances = side.squares[repeated] / (2 * half)
    median = float(np.median(variances))
    if median <= 0:
        return math.inf, pooled
    log_variances = np.log(np.maximum(variances, _MIN_VARIANCE_RATIO * median))
    centred = log_variances - special.digamma(half) + np.log(half)
    mean = float(centred.mean())
    excess = (
        float(centred.var(ddof=1) - special.polygamma(1, half).mean()) if half.size > 1 else 0.0
    )
    if excess <= 0:
        return math.inf, math.exp(mean)
    n0_half = _inverse_trigamma(excess)
    return 2 * n0_half, math.exp(mean + float(special.digamma(n0_half)) - math.log(n0_half))


def _inverse_trigamma(value: float) -> float:
    """Solves trigamma(x) = value by Newton's method on 1 / trigamma, which is nearly linear."""
    from scipy import special

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


def pooled_variance(side: Moments) -> float:
    """Computes the pooled variance; the cap limits the influence of a single record."""
    freedom = np.maximum(side.size - 1, 0)
    variances = side.squares / np.maximum(freedom, 1)
    median = float(np.median(variances[freedom > 0]))
    limit = _MAX_VARIANCE_RATIO * median if median > 0 else np.inf
    return float((np.minimum(variances, limit) * freedom).sum() / freedom.sum())


def _per_example_variances(
    sides: Sequence[Moments], fixed: Sequence[float]
) -> list[Float[np.ndarray, " n"]]:
    """Returns unbiased variances; both sides share one floor, so equal sides remain equal."""
    repeated = [side.size > 1 for side in sides]
    variances = [side.squares / np.maximum(side.size - 1, 1) for side in sides]
    estimated = np.concatenate([v[rows] for v, rows in zip(variances, repeated, strict=True)])
    floor = _MIN_VARIANCE_RATIO * np.median(estimated) if estimated.size else 0.0
    return [
        np.where(rows, np.maximum(values, floor), pooled)
        for values, rows, pooled in zip(variances, repeated, fixed, strict=True)
    ]


def _warn_if_few(sides: Sequence[Moments]) -> None:
    sizes = [float(np.median(side.size)) for side in sides if side.size.size]
    if sizes and min(sizes) < _MIN_PAIRS:
        warnings.warn(
            f"variance='per_example' is estimated from {min(sizes):g} signals a side; below "
            f"{_MIN_PAIRS}, variance='shrunken' is stronger.",
            stacklevel=5,
        )
