"""The ROC curve of an attack and the rates at its thresholds, in float64.

`at_fpr` computes the TPR at a low FPR, with its confidence intervals.

A higher score means more likely a member. In the shapes below `n` counts records and `t` distinct
scores plus one.
"""

import bisect
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpriv import _check
from jaxpriv._types import Column
from jaxpriv.metrics import _delong, intervals

__all__ = [
    "LOW_FPRS",
    "Membership",
    "OperatingPoint",
    "Rates",
    "Roc",
    "at_fpr",
    "at_threshold",
    "membership",
    "roc_curve",
]

LOW_FPRS = ("0.01", "0.001", "0.0001")
"""False positive rates at which `membership` reports the TPR, as the keys of its result."""


class Roc(NamedTuple):
    """The ROC curve, from (0, 0) to (1, 1).

    fpr, tpr: shares of non-members and of members with score >= threshold.
    thresholds: inf, then the distinct scores in descending order.
    """

    fpr: Float[np.ndarray, " t"]
    tpr: Float[np.ndarray, " t"]
    thresholds: Float[np.ndarray, " t"]


class OperatingPoint(NamedTuple):
    """Rates of the attack that says member where score > threshold, at a low FPR.

    achieved_fpr: share of non-members above the threshold; at most the requested FPR.
    tpr: share of members above it.
    tpr_interval_at_threshold: Clopper-Pearson interval of the TPR at this threshold, whose FPR may
      differ from the requested one.
    tpr_interval_at_fpr: interval of the TPR at the requested FPR, which includes the error of the
      threshold; its lower end is 0 if the non-members do not resolve the FPR at this confidence.
    resolvable: whether the non-members allow one false positive, n_out fpr >= 1.
    coarse: whether they allow fewer than 10, n_out fpr < 10.
    """

    threshold: float
    achieved_fpr: float
    tpr: float
    tpr_interval_at_threshold: tuple[float, float]
    tpr_interval_at_fpr: tuple[float, float]
    resolvable: bool
    coarse: bool


class Rates(NamedTuple):
    """Rates of the attack that says member where score > threshold, at a fixed threshold.

    tpr, fpr: shares of members and of non-members above the threshold.
    tpr_interval, fpr_interval: Clopper-Pearson intervals, each at the confidence level.
    """

    tpr: float
    fpr: float
    tpr_interval: tuple[float, float]
    fpr_interval: tuple[float, float]


class Membership(NamedTuple):
    """Success of a membership attack; `_asdict()` can be written as JSON.

    auc, auc_interval: P[member > non-member], ties counted half, and its DeLong interval.
    balanced_accuracy: (1 + advantage) / 2, in [0.5, 1].
    advantage: the largest tpr - fpr over thresholds, chosen on these same scores.
    tpr_at_fpr: TPR for each key of LOW_FPRS; None if n_out fpr < 1.
    tpr_interval_at_threshold: its Clopper-Pearson interval, given the threshold.
    tpr_interval_at_fpr: interval of the TPR at the FPR itself, see OperatingPoint.
    coarse: keys whose TPR is estimated from fewer than 10 false positives.
    confidence: confidence level of each interval.
    """

    auc: float
    auc_interval: tuple[float, float]
    balanced_accuracy: float
    advantage: float
    tpr_at_fpr: dict[str, float | None]
    tpr_interval_at_threshold: dict[str, tuple[float, float] | None]
    tpr_interval_at_fpr: dict[str, tuple[float, float] | None]
    coarse: tuple[str, ...]
    num_members: int
    num_nonmembers: int
    confidence: float


def roc_curve(scores: Column, is_member: Column) -> Roc:
    """Computes the ROC curve of an attack.

    Equal scores are one point of the curve, so the order of the rows never matters.

    Args:
      scores: [n] or [n, 1]; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.

    Returns:
      False and true positive rates, ascending, and their thresholds.

    Raises:
      ValueError: for NaN, one class only, unequal lengths or no scores.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> curve = jp.metrics.roc_curve(np.array([3, 2, 1, 0]), np.array([1, 0, 1, 0]))
      >>> curve.fpr.tolist(), curve.tpr.tolist()
      ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    return _curve(*_check.split_by_membership(scores, is_member))


def _curve(members: Float[np.ndarray, " m"], nonmembers: Float[np.ndarray, " k"]) -> Roc:
    """Computes the curve of sorted scores."""
    ascending = np.unique(np.concatenate([members, nonmembers]))
    true = members.size - np.searchsorted(members, ascending, "left")
    false = nonmembers.size - np.searchsorted(nonmembers, ascending, "left")
    return Roc(
        fpr=np.append(0.0, false[::-1] / nonmembers.size),
        tpr=np.append(0.0, true[::-1] / members.size),
        thresholds=np.append(np.inf, ascending[::-1]),
    )


def at_fpr(
    scores: Column,
    is_member: Column,
    *,
    fpr: float,
    confidence: float = 0.95,
) -> OperatingPoint:
    """Finds the threshold with the largest TPR whose FPR is at most a given rate.

    The threshold is the highest score of a non-member after the floor(n_out fpr) highest ones. It
    does not depend on the members, so the number of members above it is binomial and the interval
    of the TPR given the threshold is exact. It does not cover the error of the estimated FPR. The
    interval at the FPR does: the FPR of the k-th smallest non-member is 1 - Beta(k, n_out + 1 - k),
    so one order statistic lies above the threshold of the requested FPR and one below it, and the
    TPR at each is bounded by Clopper-Pearson. The four errors share 1 - confidence.

    Args:
      scores: [n] or [n, 1]; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      fpr: largest share of non-members that may be called members, in (0, 1).
      confidence: confidence level of the interval, in (0, 1).

    Returns:
      The threshold and its rates; if the FPR is not resolvable, those without a false positive.

    Raises:
      ValueError: if fpr or confidence is not in (0, 1), or for NaN, one class only, unequal
        lengths or no scores.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> scores, is_member = np.arange(1000.0), np.arange(1000) % 4 == 3
      >>> scores[is_member] += 200
      >>> point = jp.metrics.at_fpr(scores, is_member, fpr=0.01)
      >>> point.tpr, round(point.achieved_fpr, 4), point.coarse
      (0.212, 0.0093, True)
    """
    _check.open_unit(fpr=fpr, confidence=confidence)
    return _at_fpr(*_check.split_by_membership(scores, is_member), fpr=fpr, confidence=confidence)


def _at_fpr(
    members: Float[np.ndarray, " m"],
    nonmembers: Float[np.ndarray, " k"],
    *,
    fpr: float,
    confidence: float,
) -> OperatingPoint:
    """Computes the operating point of sorted scores."""
    allowed = _allowed(nonmembers.size, fpr)
    threshold = nonmembers[-1 - allowed]
    hits = int((members > threshold).sum())
    lower, upper = intervals.clopper_pearson(hits, members.size, confidence=confidence)
    return OperatingPoint(
        threshold=float(threshold),
        achieved_fpr=int((nonmembers > threshold).sum()) / nonmembers.size,
        tpr=hits / members.size,
        tpr_interval_at_threshold=(float(lower), float(upper)),
        tpr_interval_at_fpr=_interval_at_fpr(
            members, nonmembers, fpr=fpr, error=(1 - confidence) / 4
        ),
        resolvable=allowed >= 1,
        coarse=allowed < 10,
    )


def _interval_at_fpr(
    members: Float[np.ndarray, " m"],
    nonmembers: Float[np.ndarray, " k"],
    *,
    fpr: float,
    error: float,
) -> tuple[float, float]:
    """Bounds the TPR at an FPR, from sorted scores; each of four steps fails with `error`."""
    from scipy import special

    n, m = nonmembers.size, members.size
    ranks = range(1, n + 1)

    def not_above(rank: int) -> float:
        """P[the rank-th smallest non-member lies below the threshold of the FPR]."""
        return float(special.betainc(rank, n + 1 - rank, 1 - fpr))

    # `not_above` decreases with the rank.
    rank = 1 + bisect.bisect_left(ranks, -error, key=lambda rank: -not_above(rank))
    lower = 0.0
    if rank <= n:
        hits = int((members > nonmembers[rank - 1]).sum())
        lower = float(intervals.clopper_pearson_lower(hits, m, confidence=1 - error))
    rank = bisect.bisect_right(ranks, error - 1, key=lambda rank: -not_above(rank))
    upper = 1.0
    if rank >= 1:
        hits = int((members > nonmembers[rank - 1]).sum())
        upper = float(intervals.clopper_pearson_upper(hits, m, confidence=1 - error))
    return lower, upper


def at_threshold(
    scores: Column,
    is_member: Column,
    *,
    threshold: float,
    confidence: float,
) -> Rates:
    """Measures the rates at a threshold that was chosen without these scores.

    The threshold may come from shadow models or from other records. Counts above a fixed
    threshold are binomial, so both intervals are exact; for a threshold chosen on the same scores
    they are too narrow.

    Args:
      scores: [n] or [n, 1]; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      threshold: records with a higher score are called members; may be infinite.
      confidence: confidence level of each interval, in (0, 1).

    Returns:
      The rates and their intervals.

    Raises:
      ValueError: if threshold is NaN, confidence is not in (0, 1), or for NaN, one class only,
        unequal lengths or no scores.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> scores, is_member = np.arange(100), np.arange(100) >= 40
      >>> rates = jp.metrics.at_threshold(scores, is_member, threshold=29.5, confidence=0.95)
      >>> rates.tpr, rates.fpr, round(rates.fpr_interval[1], 2)
      (1.0, 0.25, 0.41)
    """
    if np.isnan(threshold):
        raise ValueError("Expected a number for threshold, got NaN.")
    members, nonmembers = _check.split_by_membership(scores, is_member)
    hits, alarms = int((members > threshold).sum()), int((nonmembers > threshold).sum())
    low_tpr, high_tpr = intervals.clopper_pearson(hits, members.size, confidence=confidence)
    low_fpr, high_fpr = intervals.clopper_pearson(alarms, nonmembers.size, confidence=confidence)
    return Rates(
        tpr=hits / members.size,
        fpr=alarms / nonmembers.size,
        tpr_interval=(float(low_tpr), float(high_tpr)),
        fpr_interval=(float(low_fpr), float(high_fpr)),
    )


def membership(
    scores: Column,
    is_member: Column,
    *,
    confidence: float = 0.95,
) -> Membership:
    """Measures how well scores separate members from non-members.

    Balanced accuracy and advantage are those of the best threshold on the same scores, so they
    are optimistic: for pure noise the advantage is about 0.63 sqrt(1/n_in + 1/n_out). Use them to
    compare attacks, and report the rates of a threshold that was chosen on other data
    (`at_threshold`).

    Args:
      scores: [n] or [n, 1], of any float type; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      confidence: confidence level of each interval, in (0, 1).

    Returns:
      The AUC, the accuracy of the best threshold, the TPR at low FPR, their intervals and the
      numbers of records.

    Raises:
      ValueError: if confidence is not in (0, 1), or for NaN, one class only, unequal lengths or
        no scores.

    References:
      Yeom et al., Privacy Risk in Machine Learning, 2018 (advantage); Carlini et al.,
      Membership Inference Attacks From First Principles, 2022 (TPR at low FPR).

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> rng = np.random.default_rng(0)
      >>> is_member = np.arange(2000) < 1000
      >>> scores = rng.normal(1.0 * is_member)  # the best attack on mu = 1 has AUC 0.760
      >>> result = jp.metrics.membership(scores, is_member)
      >>> round(result.auc, 2), round(result.tpr_at_fpr["0.01"], 2), result.coarse
      (0.75, 0.1, ('0.001',))
    """
    members, nonmembers = _check.split_by_membership(scores, is_member)
    auc, lower, upper = _delong.interval(members, nonmembers, confidence=confidence)
    curve = _curve(members, nonmembers)
    advantage = float(np.max(curve.tpr - curve.fpr))
    points = {
        key: _at_fpr(members, nonmembers, fpr=float(key), confidence=confidence) for key in LOW_FPRS
    }
    resolvable = {key: point for key, point in points.items() if point.resolvable}
    return Membership(
        auc=auc,
        auc_interval=(lower, upper),
        balanced_accuracy=(1 + advantage) / 2,
        advantage=advantage,
        tpr_at_fpr={key: resolvable[key].tpr if key in resolvable else None for key in LOW_FPRS},
        tpr_interval_at_threshold={
            key: resolvable[key].tpr_interval_at_threshold if key in resolvable else None
            for key in LOW_FPRS
        },
        tpr_interval_at_fpr={
            key: resolvable[key].tpr_interval_at_fpr if key in resolvable else None
            for key in LOW_FPRS
        },
        coarse=tuple(key for key, point in resolvable.items() if point.coarse),
        num_members=members.size,
        num_nonmembers=nonmembers.size,
        confidence=confidence,
    )


def _allowed(num_nonmembers: int, fpr: float) -> int:
    """Returns the largest number of false positives whose rate is at most fpr.

    Computed with the division that the user sees, so that 29 of 100 are allowed at 0.29, although
    100 * 0.29 < 29 in float64.
    """
    count = int(num_nonmembers * fpr) + 1
    while count / num_nonmembers > fpr:
        count -= 1
    return count
