"""The AUC and its DeLong interval, from sorted scores.

DeLong's interval is our own, because importing scikit-learn or scipy.stats takes seconds. In the
shapes below `m` counts members and `k` non-members.
"""

import math

import numpy as np
from jaxtyping import Float, Int

from jaxpriv import _check


def interval(
    members: Float[np.ndarray, " m"], nonmembers: Float[np.ndarray, " k"], *, confidence: float
) -> tuple[float, float, float]:
    """Estimates the AUC with DeLong's interval, by Student's t on the logit scale.

    Args:
      members: scores of members, ascending; at least one.
      nonmembers: scores of non-members, ascending; at least one.
      confidence: confidence level of the interval, in (0, 1).

    Returns:
      The AUC and the lower and upper end of its interval.

    Raises:
      ValueError: if confidence is not in (0, 1).
    """
    from scipy import special

    _check.open_unit(confidence=confidence)
    m, k = members.size, nonmembers.size
    below = _twice_rank(members, nonmembers)
    above = 2 * m - _twice_rank(nonmembers, members)
    twice_wins, twice_pairs = int(below.sum()), 2 * m * k
    auc = twice_wins / twice_pairs
    parts = _variance(below / (2 * k), auc) / m, _variance(above / (2 * m), auc) / k
    variance = sum(parts)
    if variance == 0:
        return auc, *_without_variance(auc, min(m, k), confidence)
    log_odds = math.log(twice_wins / (twice_pairs - twice_wins))
    # The derivative of the logit, 1 / (A (1 - A)), from the counts: it is exact near 0 and 1.
    slope = twice_pairs**2 / (twice_wins * (twice_pairs - twice_wins))
    # Satterthwaite's degrees of freedom, as in the test of Brunner and Munzel (2000). The part of a
    # single placement is not estimated but the largest that is possible, so it has no error.
    parts_of_sizes = zip(parts, (m, k), strict=True)
    inverse = sum((part / variance) ** 2 / (n - 1) for part, n in parts_of_sizes if n > 1)
    tail = (1 + confidence) / 2
    quantile = special.stdtrit(1 / inverse, tail) if inverse > 0 else special.ndtri(tail)
    width = quantile * math.sqrt(variance) * slope
    lower, upper = special.expit([log_odds - width, log_odds + width])
    return auc, float(lower), float(upper)


def _without_variance(auc: float, num_pairs: int, confidence: float) -> tuple[float, float]:
    """Returns the interval at AUC 0, 1/2 (all scores equal) and 1, where DeLong's is one point.

    The records form `num_pairs` disjoint, so independent, pairs of a member and a non-member, and
    all of them had the same outcome. If the outcome has probability q in a pair, this happens with
    probability q^num_pairs, so q < ((1 - confidence) / 2)^(1 / num_pairs) is rejected; the share
    1 - q of other pairs could move the AUC to either end.
    """
    min_share = ((1 - confidence) / 2) ** (1 / num_pairs)
    return min_share * auc, 1 - min_share * (1 - auc)


def _twice_rank(
    scores: Float[np.ndarray, " a"], against: Float[np.ndarray, " b"]
) -> Int[np.ndarray, " a"]:
    """Counts, twice, the values of `against` (ascending) below each score, ties counted half.

    The counts are integers, so the AUC is rounded once and does not depend on the row order.
    """
    return np.searchsorted(against, scores, "left") + np.searchsorted(against, scores, "right")


def _variance(placements: Float[np.ndarray, " a"], auc: float) -> float:
    """Computes the sample variance; for a single placement, the largest that its mean allows."""
    return float(placements.var(ddof=1)) if placements.size > 1 else auc * (1 - auc)
