"""The ROC curve of an attack and the numbers read off it, in float64.

A higher score means more likely a member. In the shapes below `t` counts distinct scores plus one.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxpriv import _check
from jaxpriv.metrics import intervals

LOW_FPRS = ("0.01", "0.001", "0.0001")
"""The false positive rates at which `membership` reads the curve, as its keys."""


class Roc(NamedTuple):
    """The curve, from (0, 0) to (1, 1).

    fpr, tpr: shares of non-members and of members with score >= threshold.
    thresholds: the distinct scores, descending, after one that stands above every score (inf).
    """

    fpr: Float[np.ndarray, " t"]
    tpr: Float[np.ndarray, " t"]
    thresholds: Float[np.ndarray, " t"]


class OperatingPoint(NamedTuple):
    """The attack that says member where score > threshold.

    achieved_fpr: share of non-members above the threshold; at most the rate asked for.
    tpr: share of members above it.
    tpr_interval: Clopper-Pearson, given the threshold.
    resolvable: whether the non-members allow one false positive, n_out fpr >= 1.
    coarse: whether they allow fewer than 10, n_out fpr < 10.
    """

    threshold: float
    achieved_fpr: float
    tpr: float
    tpr_interval: tuple[float, float]
    resolvable: bool
    coarse: bool


class Rates(NamedTuple):
    """The rates of the attack that says member where score > threshold.

    tpr, fpr: shares of members and of non-members above the threshold.
    tpr_interval, fpr_interval: Clopper-Pearson, each by itself.
    """

    tpr: float
    fpr: float
    tpr_interval: tuple[float, float]
    fpr_interval: tuple[float, float]


class Membership(NamedTuple):
    """What an attack's scores reveal; `_asdict()` is ready for JSON.

    auc, auc_interval: P[member > non-member], ties half, and its DeLong interval.
    balanced_accuracy: (1 + advantage) / 2, in [0.5, 1].
    advantage: the largest tpr - fpr over thresholds, chosen on these same scores.
    tpr_at_fpr: by the keys of LOW_FPRS; None where n_out fpr < 1.
    tpr_at_fpr_interval: the same keys; Clopper-Pearson, given the threshold.
    coarse: the keys that are given but rest on fewer than 10 false positives.
    """

    auc: float
    auc_interval: tuple[float, float]
    balanced_accuracy: float
    advantage: float
    tpr_at_fpr: dict[str, float | None]
    tpr_at_fpr_interval: dict[str, tuple[float, float] | None]
    coarse: tuple[str, ...]
    num_members: int
    num_nonmembers: int
    confidence: float


def roc_curve(
    scores: Shaped[Array | np.ndarray, "..."], is_member: Shaped[Array | np.ndarray, "..."]
) -> Roc:
    """Computes the ROC curve; equal scores are one point, so row order never matters.

    Args:
      scores: [n] or [n, 1]; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.

    Returns:
      False and true positive rates, ascending, and their thresholds.

    Raises:
      ValueError: for NaN, one class only, unequal lengths or no scores.
    """
    return _curve(*_check.split_by_membership(scores, is_member))


def _curve(members: Float[np.ndarray, " m"], nonmembers: Float[np.ndarray, " k"]) -> Roc:
    """The curve of sorted scores."""
    ascending = np.unique(np.concatenate([members, nonmembers]))
    true = members.size - np.searchsorted(members, ascending, "left")
    false = nonmembers.size - np.searchsorted(nonmembers, ascending, "left")
    return Roc(
        fpr=np.append(0.0, false[::-1] / nonmembers.size),
        tpr=np.append(0.0, true[::-1] / members.size),
        thresholds=np.append(np.inf, ascending[::-1]),
    )


def at_fpr(
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    fpr: float,
    confidence: float = 0.95,
) -> OperatingPoint:
    """Finds the most powerful threshold whose false positive rate is at most fpr.

    The threshold is the score of a non-member, the first beyond the floor(n_out fpr) highest;
    it depends on no member, so members above it are binomial and the interval of the tpr given
    the threshold is exact. That the threshold's own fpr is estimated is not in the interval.

    Args:
      scores: [n] or [n, 1]; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      fpr: the largest share of non-members that may be called members, in (0, 1).
      confidence: coverage of the interval, in (0, 1).

    Returns:
      The threshold and its rates; where not resolvable, those at no false positive.

    Raises:
      ValueError: if fpr or confidence is not in (0, 1), or for NaN, one class only, unequal
        lengths or no scores.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022.
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
    """The operating point of sorted scores."""
    allowed = _allowed(nonmembers.size, fpr)
    threshold = nonmembers[-1 - allowed]
    hits = int((members > threshold).sum())
    lower, upper = intervals.clopper_pearson(hits, members.size, confidence=confidence)
    return OperatingPoint(
        threshold=float(threshold),
        achieved_fpr=int((nonmembers > threshold).sum()) / nonmembers.size,
        tpr=hits / members.size,
        tpr_interval=(float(lower), float(upper)),
        resolvable=allowed >= 1,
        coarse=allowed < 10,
    )


def at_threshold(
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    threshold: float,
    confidence: float,
) -> Rates:
    """Measures a threshold that was chosen elsewhere: on shadow models or on held-out records.

    Counts above a fixed threshold are binomial, so both intervals are exact; for a threshold
    chosen on these same scores they are too narrow.

    Args:
      scores: [n] or [n, 1]; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      threshold: scores above it say member; may be infinite.
      confidence: coverage of each interval, in (0, 1).

    Returns:
      The rates and their intervals.

    Raises:
      ValueError: if threshold is NaN, confidence is not in (0, 1), or for NaN, one class only,
        unequal lengths or no scores.
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
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    confidence: float = 0.95,
) -> Membership:
    """Measures how well scores tell members from non-members.

    Balanced accuracy and advantage are those of the best threshold on these same scores, so
    they are optimistic (for pure noise the advantage is about 0.63 sqrt(1/n_in + 1/n_out)):
    compare attacks by them, and claim only what a threshold chosen on other data reaches.

    Args:
      scores: [n] or [n, 1], of any float type; -inf ranks lowest, +inf highest.
      is_member: [n] or [n, 1], bool or 0 and 1.
      confidence: coverage of each interval by itself, in (0, 1).

    Returns:
      The AUC, the best threshold's accuracy, the TPR at low FPR, their intervals, the counts.

    Raises:
      ValueError: if confidence is not in (0, 1), or for NaN, one class only, unequal lengths or
        no scores.

    References:
      Yeom et al., Privacy Risk in Machine Learning, 2018 (advantage); Carlini et al.,
      Membership Inference Attacks From First Principles, 2022 (TPR at low FPR).
    """
    members, nonmembers = _check.split_by_membership(scores, is_member)
    area = intervals.delong_of_sorted(members, nonmembers, confidence=confidence)
    curve = _curve(members, nonmembers)
    advantage = float(np.max(curve.tpr - curve.fpr))
    points = {
        key: _at_fpr(members, nonmembers, fpr=float(key), confidence=confidence) for key in LOW_FPRS
    }
    given = {key: point for key, point in points.items() if point.resolvable}
    return Membership(
        auc=area.auc,
        auc_interval=(area.lower, area.upper),
        balanced_accuracy=(1 + advantage) / 2,
        advantage=advantage,
        tpr_at_fpr={key: given[key].tpr if key in given else None for key in LOW_FPRS},
        tpr_at_fpr_interval={
            key: given[key].tpr_interval if key in given else None for key in LOW_FPRS
        },
        coarse=tuple(key for key, point in given.items() if point.coarse),
        num_members=members.size,
        num_nonmembers=nonmembers.size,
        confidence=confidence,
    )


def _allowed(num_nonmembers: int, fpr: float) -> int:
    """The largest number of false positives with rate <= fpr, as the division rounds: 29 of 100
    at 0.29."""
    count = int(num_nonmembers * fpr) + 1
    while count / num_nonmembers > fpr:
        count -= 1
    return count
