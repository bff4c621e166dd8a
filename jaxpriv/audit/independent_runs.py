"""Lower bounds on epsilon from many training runs that differ in one record.

    scores, is_member --thresholds--> counts --Clopper-Pearson--> TPR, FPR --> epsilon or mu

A row is a training run: its score, and whether it included the record. The rows must be
independent, which the records of a single model are not. A higher score means that the record was
more likely included. All bounds are for this orientation; reversed scores give 0. In the shapes
below `n` counts training runs.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpriv import _check
from jaxpriv._types import Column
from jaxpriv.metrics import intervals

__all__ = [
    "Counts",
    "count",
    "epsilon_of_counts",
    "epsilon_of_scores",
    "mu_of_counts",
    "mu_of_scores",
]

_ERROR_GROWTH = 4
"""Numbers of errors at the thresholds tried: 0, 3, 15, 63 ... below half of a side.

A factor of 4 keeps the thresholds few, since all of them share the error of the bound.
"""

_MAX_VALUES = 8
"""Largest number of distinct scores of a side that are tried as thresholds themselves."""

_VALUES_SHARE = 0.1
"""Share of the error for thresholds at distinct values.

It is set aside whether or not they are tried, because that depends on the scores.
"""


class Counts(NamedTuple):
    """Outcomes at a threshold; members are the training runs that included the record."""

    true_positives: int
    num_members: int
    false_positives: int
    num_nonmembers: int


def count(scores: Column, is_member: Column, *, threshold: float) -> Counts:
    """Counts the training runs with score >= threshold.

    Args:
      scores: [n]; one score per training run.
      is_member: [n]; whether the run included the record.
      threshold: threshold, chosen without these scores.

    Returns:
      The counts.

    Raises:
      ValueError: for NaN, one class only, or unequal lengths.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.audit import independent_runs
      >>> scores, is_member = np.array([0.9, 0.4, 0.6, 0.1]), np.array([1, 1, 0, 0])
      >>> counts = independent_runs.count(scores, is_member, threshold=0.5)
      >>> counts.true_positives, counts.false_positives
      (1, 1)
    """
    members, nonmembers = _check.split_by_membership(scores, is_member)
    hits, alarms = int((members >= threshold).sum()), int((nonmembers >= threshold).sum())
    return Counts(hits, members.size, alarms, nonmembers.size)


def epsilon_of_counts(counts: Counts, *, delta: float, confidence: float) -> float:
    """Bounds epsilon from below at a threshold that was fixed in advance.

    TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta. TPR is bounded from below and
    FPR from above by Clopper-Pearson, each at (1 + confidence) / 2, so that both bounds hold at
    once with probability `confidence`.

    Args:
      counts: counts at the threshold.
      delta: delta of the guarantee, in [0, 1).
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The bound in nats; 0 if the counts show no leak.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Jagielski, Ullman and Oprea, Auditing Differentially Private Machine Learning, 2020.

    Example:
      >>> from jaxpriv.audit import independent_runs
      >>> counts = independent_runs.Counts(450, 500, 50, 500)
      >>> round(independent_runs.epsilon_of_counts(counts, delta=1e-5, confidence=0.95), 3)
      1.904
    """
    _check.half_open_unit(delta=delta)
    _check.open_unit(confidence=confidence)
    return _epsilon(*_rates(counts, (1 - confidence) / 2), delta)


def mu_of_counts(counts: Counts, *, confidence: float) -> float:
    """Bounds mu of Gaussian differential privacy from below at a threshold fixed in advance.

    TPR <= Phi(Phi^-1(FPR) + mu), with the rates bounded as in `epsilon_of_counts`. Converting the
    bound to epsilon by `accounting.gaussian.epsilon` assumes that the trade-off function of the
    mechanism is Gaussian.

    Args:
      counts: counts at the threshold.
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The bound on mu; 0 if the counts show no leak.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023, section 4.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> from jaxpriv.audit import independent_runs
      >>> counts = independent_runs.Counts(450, 500, 50, 500)
      >>> mu = independent_runs.mu_of_counts(counts, confidence=0.95)
      >>> round(mu, 3), round(gaussian.epsilon(1e-5, mu=mu), 2)
      (2.256, 11.6)
    """
    _check.open_unit(confidence=confidence)
    return _mu(*_rates(counts, (1 - confidence) / 2))


def epsilon_of_scores(
    scores: Column, is_member: Column, *, delta: float, confidence: float
) -> float:
    """Bounds epsilon from below, with thresholds chosen on the same scores.

    A threshold is the order statistic of one side (members or non-members) at which that side has
    0, 3, 15, 63 ... errors. The rate of that side then has a Beta distribution, whose quantile is
    the Clopper-Pearson bound for this number of errors; the threshold is independent of the other
    side, whose count is binomial. These thresholds share nine tenths of the error 1 - confidence
    equally. If one side has at most 8 distinct scores, as answers of yes or no have, each of them
    is a threshold too: the rates of that side are bounded at all thresholds at once by the
    inequality of Dvoretzky, Kiefer and Wolfowitz, and those of the other side by Clopper-Pearson,
    for the remaining tenth of the error.

    Args:
      scores: [n]; one score per training run. Ties and infinities are allowed.
      is_member: [n]; whether the run included the record.
      delta: delta of the guarantee, in [0, 1).
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The largest bound, nats; 0 if the scores show no leak.

    Raises:
      ValueError: if an argument is out of range, for NaN, one class only, or unequal lengths.

    References:
      Jagielski, Ullman and Oprea, Auditing Differentially Private Machine Learning, 2020; Massart,
      The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz Inequality, 1990.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.audit import independent_runs
      >>> rng, is_member = np.random.default_rng(0), np.arange(1000) < 500
      >>> scores = rng.normal(2.0 * is_member)  # mu = 2 has epsilon 10.0 at this delta
      >>> bound = independent_runs.epsilon_of_scores(
      ...     scores, is_member, delta=1e-5, confidence=0.95)
      >>> round(bound, 1)
      3.1
    """
    _check.half_open_unit(delta=delta)
    _check.open_unit(confidence=confidence)
    return _best(scores, is_member, confidence, lambda tpr, fpr: _epsilon(tpr, fpr, delta))


def mu_of_scores(scores: Column, is_member: Column, *, confidence: float) -> float:
    """Bounds mu from below, with thresholds chosen on the same scores.

    See `epsilon_of_scores` for the thresholds and `mu_of_counts` for the bound.

    Args:
      scores: [n]; one score per training run. Ties and infinities are allowed.
      is_member: [n]; whether the run included the record.
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The largest bound on mu; 0 if the scores show no leak.

    Raises:
      ValueError: if an argument is out of range, for NaN, one class only, or unequal lengths.

    References:
      Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023, section 4.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.audit import independent_runs
      >>> rng, is_member = np.random.default_rng(0), np.arange(1000) < 500
      >>> scores = rng.normal(2.0 * is_member)
      >>> round(independent_runs.mu_of_scores(scores, is_member, confidence=0.95), 1)
      1.8
    """
    _check.open_unit(confidence=confidence)
    return _best(scores, is_member, confidence, _mu)


def _best(
    scores: Column, is_member: Column, confidence: float, bound: Callable[[float, float], float]
) -> float:
    members, nonmembers = _check.split_by_membership(scores, is_member)
    m, n = members.size, nonmembers.size
    counts_tried = [
        Counts(int((members > nonmembers[n - 1 - errors]).sum()), m, errors, n)
        for errors in _error_counts(n)
    ] + [
        Counts(m - errors, m, int((nonmembers >= members[errors]).sum()), n)
        for errors in _error_counts(m)
    ]
    error = (1 - confidence) * (1 - _VALUES_SHARE) / (2 * len(counts_tried))
    rates = [_rates(counts, error) for counts in counts_tried]
    rates += _rates_at_values(members, nonmembers, (1 - confidence) * _VALUES_SHARE / 2)
    return max(bound(tpr, fpr) for tpr, fpr in rates)


def _rates_at_values(
    members: Float[np.ndarray, " m"], nonmembers: Float[np.ndarray, " k"], error: float
) -> list[tuple[float, float]]:
    """Bounds TPR and FPR at the distinct scores of each side that has few of them.

    Each side as the source of thresholds has the probability `error` of a wrong bound. Half of it
    is for the source: with n scores, the share above a threshold exceeds its expectation by
    sqrt(ln(1/error) / (2 n)) at any threshold with probability at most `error`, for every
    distribution. The other half is shared by the counts of the other side.
    """
    m, n = members.size, nonmembers.size
    result = []
    slack = [math.sqrt(math.log(2 / error) / (2 * size)) for size in (m, n)]
    for source in (members, nonmembers):
        values = np.unique(source)
        if len(values) > _MAX_VALUES:
            continue
        level = 1 - error / 2 / len(values)
        for value in values:
            hits, alarms = int((members >= value).sum()), int((nonmembers >= value).sum())
            if source is members:
                tpr = max(0.0, hits / m - slack[0])
                fpr = intervals.clopper_pearson_upper(alarms, n, confidence=level)
            else:
                fpr = min(1.0, alarms / n + slack[1])
                tpr = intervals.clopper_pearson_lower(hits, m, confidence=level)
            result.append((float(tpr), float(fpr)))
    return result


def _error_counts(size: int) -> list[int]:
    errors = [0]
    while (following := (errors[-1] + 1) * _ERROR_GROWTH - 1) < size / 2:
        errors.append(following)
    return errors


def _rates(counts: Counts, error: float) -> tuple[float, float]:
    """Bounds the TPR from below and the FPR from above; each fails with probability `error`."""
    hits, members, alarms, nonmembers = counts
    _check.positive_int(num_members=members, num_nonmembers=nonmembers)
    tpr = intervals.clopper_pearson_lower(hits, members, confidence=1 - error)
    fpr = intervals.clopper_pearson_upper(alarms, nonmembers, confidence=1 - error)
    return float(tpr), float(fpr)


def _epsilon(tpr: float, fpr: float, delta: float) -> float:
    """Returns the larger of ln((TPR - delta)/FPR) and ln((TNR - delta)/FNR), at least 0."""
    ratios = [(tpr - delta, fpr), (1 - fpr - delta, 1 - tpr)]
    return max([0.0, *(float(np.log(a / b)) for a, b in ratios if a > b > 0)])


def _mu(tpr: float, fpr: float) -> float:
    """Returns Phi^-1(TPR) - Phi^-1(FPR), at least 0."""
    from scipy import special

    # The bounds TPR >= 0 and FPR <= 1 are empty, and their quantiles infinite.
    return max(0.0, float(special.ndtri(tpr) - special.ndtri(fpr))) if tpr > 0 and fpr < 1 else 0.0
