"""Rules for what counts as a leak, which attack is the strongest, and which promise is vacuous.

k attacks are compared at confidence 1 - (1 - confidence) / k each (Bonferroni), so that the
statement about the strongest one holds although it was chosen on the same records. Reports and
the command line apply the same rules.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from jaxpriv import _check
from jaxpriv._names import UnitKind
from jaxpriv._types import Column
from jaxpriv.metrics import intervals

__all__ = [
    "MAX_ADVANTAGE",
    "MAX_EPSILON",
    "Comparison",
    "LowerBound",
    "Recommendation",
    "Strength",
    "compare",
    "recommend",
    "why_vacuous",
]

MAX_EPSILON = 10.0
"""Guarantees with a larger epsilon count as vacuous."""

MAX_ADVANTAGE = 0.95
"""Guarantees with a larger bound on the advantage count as vacuous."""

_SMALL_DATA = 10
"""Minimum number of records assumed of a data set whose size is not given."""

LowerBound = Callable[[np.ndarray, np.ndarray, float], float]
"""`lower_bound(scores, is_member, confidence) -> epsilon`, such as a bound of `audit.one_run`."""

Recommendation = Literal["do_not_publish", "publish_with_dp", "no_leak_found"]
"""Result of `recommend`."""


class Strength(NamedTuple):
    """The strength of one of k attacks, at the corrected confidence.

    auc: area under the ROC curve.
    auc_interval: its DeLong interval.
    epsilon_lower_bound: lower bound on epsilon; None if none was computed.
    leaks: whether the interval lies above 1/2, or the lower bound above 0.
    """

    auc: float
    auc_interval: tuple[float, float]
    epsilon_lower_bound: float | None
    leaks: bool


class Comparison(NamedTuple):
    """The comparison of k attacks on the same records.

    attacks: strength of each attack by name, in the order given.
    strongest: name of an attack with AUC 1, or else of that with the largest lower end of its AUC
      interval.
    leaks: names of the attacks that show a leak.
    confidence: confidence level at which all statements hold at once.
    corrected_confidence: confidence level of each interval and bound.
    """

    attacks: dict[str, Strength]
    strongest: str
    leaks: tuple[str, ...]
    confidence: float
    corrected_confidence: float


def compare(
    scores: Mapping[str, Column],
    is_member: Column,
    *,
    confidence: float,
    lower_bound: LowerBound | None = None,
) -> Comparison:
    """Compares attacks on the same records.

    Args:
      scores: scores of each attack, by name; higher = more likely a member.
      is_member: [n] or [n, 1], bool or 0 and 1.
      confidence: confidence level at which all statements hold at once, in (0, 1).
      lower_bound: function that bounds epsilon from below, for memberships that are fair coins of
        one training run; None computes no bound.

    Returns:
      The strength of each attack, the strongest, and those that show a leak.

    Raises:
      ValueError: if scores are empty, confidence is not in (0, 1), or for the errors of
        `intervals.delong`.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.metrics import verdict
      >>> is_member = np.arange(200) % 2 == 0
      >>> scores = {"weak": np.arange(200), "strong": np.arange(200) + 60 * is_member}
      >>> comparison = verdict.compare(scores, is_member, confidence=0.95)
      >>> comparison.strongest, comparison.leaks
      ('strong', ('strong',))
    """
    _check.open_unit(confidence=confidence)
    if not scores:
        raise ValueError("Expected at least one attack to compare, got none.")
    corrected = 1 - (1 - confidence) / len(scores)
    strengths = {}
    for name, values in scores.items():
        area = intervals.delong(values, is_member, confidence=corrected)
        bound = None
        if lower_bound is not None:
            bound = lower_bound(np.asarray(values), np.asarray(is_member), corrected)
        leaks = area.lower > 0.5 or (bound is not None and bound > 0)
        strengths[name] = Strength(area.auc, (area.lower, area.upper), bound, leaks)
    return Comparison(
        attacks=strengths,
        # The interval at AUC 1 is wide, since its variance is unknown.
        strongest=max(strengths, key=lambda n: (strengths[n].auc == 1, strengths[n].auc_interval)),
        leaks=tuple(name for name, strength in strengths.items() if strength.leaks),
        confidence=confidence,
        corrected_confidence=corrected,
    )


def why_vacuous(
    *,
    epsilon: float,
    delta: float,
    num_examples: int | None = None,
    advantage_bound: float | None = None,
    unit: UnitKind = "record",
) -> tuple[str, ...]:
    """Lists the reasons why a guarantee is vacuous.

    A guarantee is vacuous if epsilon > MAX_EPSILON, delta >= 1/n, or the bound on the advantage
    exceeds MAX_ADVANTAGE.

    Args:
      epsilon: epsilon of the guarantee, nats; may be infinite.
      delta: delta of the guarantee.
      num_examples: number of units n of the data set; None assumes ten or more.
      advantage_bound: largest TPR - FPR of any attack; None if it is not known.
      unit: what num_examples counts.

    Returns:
      One phrase per reason; empty if the guarantee is not vacuous.

    Example:
      >>> from jaxpriv.metrics import verdict
      >>> verdict.why_vacuous(epsilon=2.0, delta=1e-5, num_examples=1000)
      ()
      >>> verdict.why_vacuous(epsilon=50.0, delta=1e-5, advantage_bound=0.99)
      ('epsilon is above 10', "an attacker's advantage may exceed 0.95")
    """
    reasons = []
    if epsilon == math.inf:
        reasons.append("epsilon is unbounded")
    elif epsilon > MAX_EPSILON:
        reasons.append(f"epsilon is above {MAX_EPSILON:g}")
    if delta >= 1 / (num_examples or _SMALL_DATA):
        number = f"{num_examples:,}" if num_examples else f"{_SMALL_DATA} or more"
        plural = "classes" if unit == "class" else f"{unit}s"
        reasons.append(
            f"delta is at least 1/n for n = {number} {plural}: publishing a random {unit} in full "
            "would satisfy it"
        )
    if advantage_bound is not None and advantage_bound > MAX_ADVANTAGE:
        reasons.append(f"an attacker's advantage may exceed {MAX_ADVANTAGE:g}")
    return tuple(reasons)


def recommend(
    *, leaks: bool, promised_epsilon: float | None, vacuous: bool, epsilon_lower_bound: float | None
) -> Recommendation:
    """Recommends whether to publish a model.

    Args:
      leaks: whether an attack shows a leak.
      promised_epsilon: epsilon of the guarantee; None without a guarantee.
      vacuous: whether the guarantee is vacuous.
      epsilon_lower_bound: lower bound of an audit on epsilon, for the same unit and relation; None
        without an audit.

    Returns:
      "publish_with_dp" for a guarantee that is not vacuous and not exceeded by the lower bound;
      otherwise "do_not_publish" if there is a leak or the guarantee is exceeded, and
      "no_leak_found" if neither is the case. The last is not a guarantee: other attacks may find
      a leak.

    Example:
      >>> from jaxpriv.metrics import verdict
      >>> verdict.recommend(
      ...     leaks=True, promised_epsilon=2.0, vacuous=False, epsilon_lower_bound=0.4)
      'publish_with_dp'
    """
    if promised_epsilon is not None and not vacuous:
        is_exceeded = (epsilon_lower_bound or 0.0) > promised_epsilon
        return "do_not_publish" if is_exceeded else "publish_with_dp"
    return "do_not_publish" if leaks else "no_leak_found"
