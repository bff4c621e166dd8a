"""Confidence intervals for rates and for the AUC, in float64.

Written here rather than taken from scipy.stats and scikit-learn, whose import takes seconds.

In the shapes below `s` are the axes of a batch of binomial counts.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Integer, Shaped

from jaxpriv import _check


class Auc(NamedTuple):
    """The area under the ROC curve and its confidence interval.

    auc: P[member > non-member] + P[equal] / 2 over pairs of the sample; 1 is a perfect attack.
    lower, upper: two-sided interval for the same probability in the population.
    """

    auc: float
    lower: float
    upper: float


def clopper_pearson(
    successes: Integer[ArrayLike, "*s"], trials: Integer[ArrayLike, "*s"], *, confidence: float
) -> tuple[Float[np.ndarray, "*s"] | float, Float[np.ndarray, "*s"] | float]:
    """Bounds a binomial probability from both sides; exact, so conservative.

    Each side misses with probability at most (1 - confidence) / 2.

    Args:
      successes: how often it happened.
      trials: out of how many independent trials; 0 gives (0, 1).
      confidence: coverage of the interval, in (0, 1).

    Returns:
      Lower and upper bound, as numbers for numbers and as arrays for arrays.

    Raises:
      ValueError: if confidence is not in (0, 1), or successes not in 0..trials.

    References:
      Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
    """
    _check.open_unit(confidence=confidence)
    one_sided = (1 + confidence) / 2
    return (
        clopper_pearson_lower(successes, trials, confidence=one_sided),
        clopper_pearson_upper(successes, trials, confidence=one_sided),
    )


def clopper_pearson_lower(
    successes: Integer[ArrayLike, "*s"], trials: Integer[ArrayLike, "*s"], *, confidence: float
) -> Float[np.ndarray, "*s"] | float:
    """Bounds a binomial probability from below, one-sided.

    The bound p solves P[Binomial(trials, p) >= successes] = 1 - confidence.

    Args:
      successes: how often it happened.
      trials: out of how many independent trials.
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The lower bound; 0 without successes.

    Raises:
      ValueError: if confidence is not in (0, 1), or successes not in 0..trials.
    """
    from scipy import special

    k, n = _counts(successes, trials, confidence=confidence)
    bound = special.betaincinv(np.maximum(k, 1), n - k + 1, 1 - confidence)
    return _like_input(np.where(k == 0, 0.0, bound))


def clopper_pearson_upper(
    successes: Integer[ArrayLike, "*s"], trials: Integer[ArrayLike, "*s"], *, confidence: float
) -> Float[np.ndarray, "*s"] | float:
    """Bounds a binomial probability from above, one-sided.

    The bound p solves P[Binomial(trials, p) <= successes] = 1 - confidence.

    Args:
      successes: how often it happened.
      trials: out of how many independent trials.
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The upper bound; 1 when every trial succeeded.

    Raises:
      ValueError: if confidence is not in (0, 1), or successes not in 0..trials.
    """
    from scipy import special

    k, n = _counts(successes, trials, confidence=confidence)
    bound = special.betaincinv(k + 1, np.maximum(n - k, 1), confidence)
    return _like_input(np.where(k == n, 1.0, bound))


def delong(
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    confidence: float,
) -> Auc:
    """Estimates the AUC with DeLong's interval, on the logit scale so that it stays in [0, 1].

    Var[A] = Var[V_members] / m + Var[V_nonmembers] / k, where a member's V is the share of
    non-members below it (ties half) and a non-member's the share of members above it. Assumes
    that records are independent. O(n log n).

    Args:
      scores: [n] or [n, 1]; higher = more likely a member; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      confidence: coverage of the interval, in (0, 1).

    Returns:
      The AUC and its interval.

    Raises:
      ValueError: if confidence is not in (0, 1), or for what `_check.split_by_membership` refuses.

    References:
      DeLong, DeLong and Clarke-Pearson, Comparing the Areas under Two or More Correlated ROC
      Curves, 1988. The ranks: Sun and Xu, Fast Implementation of DeLong's Algorithm, 2014.
    """
    return delong_of_sorted(*_check.split_by_membership(scores, is_member), confidence=confidence)


def delong_of_sorted(
    members: Float[np.ndarray, " m"], nonmembers: Float[np.ndarray, " k"], *, confidence: float
) -> Auc:
    """Computes `delong` from scores that are checked, split and sorted.

    Args:
      members: scores of members, ascending; at least one.
      nonmembers: scores of non-members, ascending; at least one.
      confidence: coverage of the interval, in (0, 1).

    Returns:
      The AUC and its interval.

    Raises:
      ValueError: if confidence is not in (0, 1).
    """
    from scipy import special

    _check.open_unit(confidence=confidence)
    m, k = members.size, nonmembers.size
    below = _twice_rank(members, nonmembers)
    above = 2 * m - _twice_rank(nonmembers, members)
    right, pairs = int(below.sum()), 2 * m * k
    auc = right / pairs
    variance = _variance(below / (2 * k), auc) / m + _variance(above / (2 * m), auc) / k
    if variance == 0:
        return Auc(auc, *_without_variance(auc, min(m, k), confidence))
    log_odds = math.log(right / (pairs - right))
    slope = pairs**2 / (right * (pairs - right))
    width = special.ndtri((1 + confidence) / 2) * math.sqrt(variance) * slope
    lower, upper = special.expit([log_odds - width, log_odds + width])
    return Auc(auc, float(lower), float(upper))


def _without_variance(auc: float, pairs: int, confidence: float) -> tuple[float, float]:
    """The interval at AUC 0, 1/2 (all scores equal) and 1, where DeLong's would be one point.

    The records form `pairs` disjoint, so independent, pairs of a member and a non-member, and
    all of them came out alike: with probability q a pair, this happens with probability q^pairs.
    So q >= ((1 - confidence) / 2)^(1 / pairs), or the data are rarer than one side may miss; and
    the share 1 - q of other pairs could move the AUC to either end.
    """
    alike = ((1 - confidence) / 2) ** (1 / pairs)
    return alike * auc, 1 - alike * (1 - auc)


def _twice_rank(
    scores: Float[np.ndarray, " a"], against: Float[np.ndarray, " b"]
) -> Int[np.ndarray, " a"]:
    """For each score, twice how many of `against` (ascending) lie below it, ties counted half.

    Whole numbers, so the AUC has one rounding and no row order.
    """
    return np.searchsorted(against, scores, "left") + np.searchsorted(against, scores, "right")


def _variance(placements: Float[np.ndarray, " a"], auc: float) -> float:
    """The sample variance; of a single placement, the largest that its mean allows."""
    return float(placements.var(ddof=1)) if placements.size > 1 else auc * (1 - auc)


def _counts(
    successes: ArrayLike, trials: ArrayLike, *, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    _check.open_unit(confidence=confidence)
    k, n = np.asarray(successes), np.asarray(trials)
    if not ((k >= 0) & (k <= n)).all():
        raise ValueError(f"Expected 0 <= successes <= trials, got {successes} of {trials}.")
    return k, n


def _like_input(bound: np.ndarray) -> np.ndarray | float:
    return bound if bound.ndim else float(bound)
