"""One rule for what a leak is, which attack is the strongest, and when a promise is vacuous.

Reports and the command line apply the same rule, with one correction: k attacks are compared at
confidence 1 - (1 - confidence) / k each (Bonferroni), so that the statement about the strongest
one holds although it was chosen on the same records.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Shaped

from jaxpriv import _check
from jaxpriv.metrics import intervals

MAX_EPSILON = 10.0
"""A larger epsilon promises nothing that an attacker would notice."""

MAX_ADVANTAGE = 0.95
"""A larger bound on the advantage lets an attacker be right almost always."""

_SMALL_DATA = 10
"""Records that every data set is assumed to have where their number is not known."""

LowerBound = Callable[[np.ndarray, np.ndarray, float], float]
"""`lower_bound(scores, is_member, confidence) -> epsilon`, such as the bound of one run."""


class Strength(NamedTuple):
    """How strong one of k attacks is, at the corrected confidence.

    auc: area under the ROC curve.
    auc_interval: DeLong's.
    epsilon_lower_bound: what the scores prove about epsilon; None where nothing was computed.
    leaks: whether the interval lies above 1/2, or the bound above 0.
    """

    auc: float
    auc_interval: tuple[float, float]
    epsilon_lower_bound: float | None
    leaks: bool


class Comparison(NamedTuple):
    """What k attacks on the same records show together.

    attacks: by name, in the order given.
    strongest: the attack with the largest lower end of its AUC interval.
    leaks: the names of the attacks that show a leak.
    confidence: with which all statements hold at once.
    corrected_confidence: of each interval and bound.
    """

    attacks: dict[str, Strength]
    strongest: str
    leaks: tuple[str, ...]
    confidence: float
    corrected_confidence: float


def compare(
    scores: Mapping[str, Shaped[Array | np.ndarray, "..."]],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    confidence: float,
    lower_bound: LowerBound | None = None,
) -> Comparison:
    """Compares attacks on the same records.

    Args:
      scores: of each attack, by name; at least one. Higher = more likely a member.
      is_member: the truth.
      confidence: with which all statements hold at once, in (0, 1).
      lower_bound: of epsilon, where the memberships are fair coins of one training run.

    Returns:
      The strength of each attack, the strongest, and those that show a leak.

    Raises:
      ValueError: if there is no attack, confidence is not in (0, 1), or for what
        `intervals.delong` refuses.
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
        strongest=max(strengths, key=lambda name: strengths[name].auc_interval[0]),
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
) -> tuple[str, ...]:
    """Lists the reasons for which a guarantee promises nothing.

    Args:
      epsilon: of the guarantee, in nats; may be infinite.
      delta: of the guarantee.
      num_examples: records of the data set; None assumes ten or more.
      advantage_bound: largest TPR - FPR of any attack; None where it is not known.

    Returns:
      One phrase a reason; empty for a guarantee that promises something.
    """
    reasons = []
    if epsilon == math.inf:
        reasons.append("epsilon is unbounded")
    elif epsilon > MAX_EPSILON:
        reasons.append(f"epsilon is above {MAX_EPSILON:g}")
    if delta >= 1 / (num_examples or _SMALL_DATA):
        records = f"{num_examples:,}" if num_examples else f"{_SMALL_DATA} or more"
        reasons.append(
            f"delta is at least 1/n for n = {records} records: publishing a random record in full "
            "would satisfy it"
        )
    if advantage_bound is not None and advantage_bound > MAX_ADVANTAGE:
        reasons.append(f"an attacker's advantage may exceed {MAX_ADVANTAGE:g}")
    return tuple(reasons)


Recommendation = Literal["do_not_publish", "publish_with_dp", "no_leak_found"]


def recommend(
    *, leaks: bool, promised_epsilon: float | None, vacuous: bool, epsilon_lower_bound: float | None
) -> Recommendation:
    """Recommends whether to publish a model.

    Args:
      leaks: whether some attack shows a leak.
      promised_epsilon: of the guarantee; None without one.
      vacuous: whether the guarantee promises nothing.
      epsilon_lower_bound: what an audit proves about epsilon, for the same unit and relation;
        None without an audit.

    Returns:
      "publish_with_dp" for a guarantee that is not vacuous and that no lower bound exceeds;
      otherwise "do_not_publish" if there is a leak or an exceeded guarantee, and
      "no_leak_found" (by these attacks, which is not a guarantee) if there is none.
    """
    if promised_epsilon is not None and not vacuous:
        is_exceeded = (epsilon_lower_bound or 0.0) > promised_epsilon
        return "do_not_publish" if is_exceeded else "publish_with_dp"
    return "do_not_publish" if leaks else "no_leak_found"
