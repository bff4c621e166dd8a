"""Lower bounds from many trainings that differ in one record: a row is a training and its bit.

The rows must be independent: the records of one model are not. A higher score means that the
record was more likely in. All bounds are for this orientation; scores that point the other way
give 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Shaped

from jaxpriv import _check
from jaxpriv.metrics import intervals

Scores = Shaped[Array | np.ndarray, "..."]

_FIRST, _FACTOR = 0, 4
"""Errors allowed at the thresholds tried: 0, 3, 15, 63 ... below half of a side."""


class Counts(NamedTuple):
    """What a threshold says of the trainings with the record and of those without it."""

    true_positives: int
    num_members: int
    false_positives: int
    num_nonmembers: int


def count(scores: Scores, is_member: Scores, *, threshold: float) -> Counts:
    """Counts the trainings with score >= threshold.

    Args:
      scores: [n], one a training.
      is_member: [n], whether the record was in.
      threshold: chosen without these scores.

    Returns:
      The counts.

    Raises:
      ValueError: for NaN, one class only, or unequal lengths.
    """
    members, nonmembers = _check.split_by_membership(scores, is_member)
    hits, alarms = int((members >= threshold).sum()), int((nonmembers >= threshold).sum())
    return Counts(hits, members.size, alarms, nonmembers.size)


def epsilon_of_counts(counts: Counts, *, delta: float, confidence: float) -> float:
    """Bounds epsilon from below at a threshold fixed in advance.

    TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta; TPR is bounded from below and
    FPR from above by Clopper-Pearson, each at (1 + confidence) / 2, so both hold at `confidence`.

    Args:
      counts: at the threshold.
      delta: in [0, 1).
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The bound in nats; 0 where the counts prove nothing.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Jagielski, Ullman and Oprea, Auditing Differentially Private Machine Learning, 2020.
    """
    _check_budget(delta, confidence)
    return _epsilon(*_rates(counts, (1 - confidence) / 2), delta)


def mu_of_counts(counts: Counts, *, confidence: float) -> float:
    """Bounds mu of Gaussian differential privacy from below, at a threshold fixed in advance.

    TPR <= Phi(Phi^-1(FPR) + mu), with the rates bounded as in `epsilon_of_counts`. The bound is on
    mu: `accounting.gaussian.epsilon` of it assumes that the trade-off is Gaussian.

    Args:
      counts: at the threshold.
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The bound; 0 where the counts prove nothing.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023, section 4.
    """
    _check_budget(0.0, confidence)
    return _mu(*_rates(counts, (1 - confidence) / 2))


def epsilon_of_scores(
    scores: Scores, is_member: Scores, *, delta: float, confidence: float
) -> float:
    """Bounds epsilon from below over thresholds chosen on these same scores, and pays for them.

    A threshold is the order statistic of one side that allows it 0, 3, 15, 63 ... errors: on that
    side the rate has a Beta distribution, whose quantile is Clopper-Pearson's bound for the allowed
    number; and the threshold is independent of the other side, whose count is binomial. All bounds
    share the error 1 - confidence equally. Scores with few values lose much in this: fix their
    threshold in advance, by `count`.

    Args:
      scores: [n], one a training; ties and infinities are fine.
      is_member: [n], whether the record was in.
      delta: in [0, 1).
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The best bound, nats; 0 where the scores prove nothing.

    Raises:
      ValueError: if an argument is out of range, for NaN, one class only, or unequal lengths.

    References:
      Jagielski, Ullman and Oprea, Auditing Differentially Private Machine Learning, 2020.
    """
    _check_budget(delta, confidence)
    return _best(scores, is_member, confidence, lambda tpr, fpr: _epsilon(tpr, fpr, delta))


def mu_of_scores(scores: Scores, is_member: Scores, *, confidence: float) -> float:
    """Bounds mu from below over thresholds chosen on these same scores; see `epsilon_of_scores`.

    Args:
      scores: [n], one a training.
      is_member: [n], whether the record was in.
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The best bound on mu; see `mu_of_counts` for what it says of epsilon.

    Raises:
      ValueError: if an argument is out of range, for NaN, one class only, or unequal lengths.

    References:
      Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023, section 4.
    """
    _check_budget(0.0, confidence)
    return _best(scores, is_member, confidence, _mu)


def _best(
    scores: Scores, is_member: Scores, confidence: float, bound: Callable[[float, float], float]
) -> float:
    members, nonmembers = _check.split_by_membership(scores, is_member)
    m, n = members.size, nonmembers.size
    tried = [
        Counts(int((members > nonmembers[n - 1 - errors]).sum()), m, errors, n)
        for errors in _allowed(n)
    ] + [
        Counts(m - errors, m, int((nonmembers >= members[errors]).sum()), n)
        for errors in _allowed(m)
    ]
    error = (1 - confidence) / (2 * len(tried))
    return max(bound(*_rates(counts, error)) for counts in tried)


def _allowed(size: int) -> list[int]:
    errors = [_FIRST]
    while (more := (errors[-1] + 1) * _FACTOR - 1) < size / 2:
        errors.append(more)
    return errors


def _rates(counts: Counts, error: float) -> tuple[float, float]:
    """A lower bound on the TPR and an upper one on the FPR; each fails with probability `error`."""
    hits, members, alarms, nonmembers = counts
    _check.positive_int(num_members=members, num_nonmembers=nonmembers)
    tpr = intervals.clopper_pearson_lower(hits, members, confidence=1 - error)
    fpr = intervals.clopper_pearson_upper(alarms, nonmembers, confidence=1 - error)
    return float(tpr), float(fpr)


def _epsilon(tpr: float, fpr: float, delta: float) -> float:
    """The larger of ln((TPR - delta)/FPR) and ln((TNR - delta)/FNR), at least 0."""
    pairs = [(tpr - delta, fpr), (1 - fpr - delta, 1 - tpr)]
    return max([0.0, *(float(np.log(up / down)) for up, down in pairs if up > down > 0)])


def _mu(tpr: float, fpr: float) -> float:
    from scipy import special

    # A rate of 0 or 1 proves nothing; its quantile is infinite with the sign that says so.
    return max(0.0, float(special.ndtri(tpr) - special.ndtri(fpr))) if tpr > 0 and fpr < 1 else 0.0


def _check_budget(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"Expected 0 <= delta < 1, got delta={delta}.")
    _check.open_unit(confidence=confidence)
