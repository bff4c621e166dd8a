"""All lower bounds on epsilon that one set of scores supports.

scores, is_member --module of the design, both orientations--> epsilon and mu -> LowerBounds
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from jaxpriv import _check
from jaxpriv._types import RELATIONS, Column, Relation
from jaxpriv.accounting import gaussian
from jaxpriv.audit import independent_runs, one_run

__all__ = ["ASSUMPTIONS", "DESIGNS", "KEYS", "Design", "LowerBounds", "lower_bounds"]

Design = Literal["independent_runs", "one_run"]
"""How the scores were obtained; see `lower_bounds`."""

DESIGNS: tuple[Design, ...] = ("independent_runs", "one_run")

KEYS: tuple[str, ...] = ("clopper_pearson", "gdp", "one_run", "one_run_fdp")
"""Names of the bounds, which are fields of LowerBounds."""

ASSUMPTIONS: dict[str, str] = dict.fromkeys(
    ("gdp", "one_run_fdp"), "the trade-off function is Gaussian"
)
"""What a bound assumes of the mechanism, by its name; the other bounds hold for every mechanism."""

_KEYS_BY_DESIGN: dict[str, tuple[str, str]] = {
    "independent_runs": ("clopper_pearson", "gdp"),
    "one_run": ("one_run", "one_run_fdp"),
}
"""The bound for every mechanism, and the bound that assumes a Gaussian one."""

_REASON_BY_DESIGN = {
    "independent_runs": "needs one fair coin for each of many canaries in one training",
    "one_run": "needs independent trainings, and canaries of one training are not independent",
}
_REVERSED_SHARE = 0.1
"""Share of the error spent on the reversed orientation, which is rarely the better one."""

_LARGE_DELTA = (
    "at delta={delta:g} {n} canaries of one training cannot bound epsilon, even if every guess is "
    "correct"
)
_INFINITE = "a Gaussian trade-off has no finite epsilon at delta 0; see mu for its lower bound"
_NEIGHBOURS = {
    "add_or_remove_one": "The canary, or group, was added or left out, all else being equal.",
    "replace_one": "The canary was exchanged for another record, all else being equal; "
    "the bound does not hold for replace_one where it was added or left out.",
}


class LowerBounds(NamedTuple):
    """Lower bounds on epsilon at `delta`; each one holds with probability `confidence`.

    clopper_pearson, one_run: bounds for every mechanism.
    gdp, one_run_fdp: bounds for mechanisms whose trade-off function is Gaussian.
    mu: lower bounds on mu of Gaussian differential privacy, from which the last two are computed,
      by their names.
    assumptions: what a bound assumes of the mechanism, by the name of the bound.
    not_applicable: for each of the four bounds that is None, the reason.
    meaning: the neighbouring data sets that the bounds apply to.
    """

    clopper_pearson: float | None
    gdp: float | None
    one_run: float | None
    one_run_fdp: float | None
    mu: dict[str, float | None]
    assumptions: dict[str, str]
    not_applicable: dict[str, str]
    meaning: str
    confidence: float
    delta: float
    relation: Relation
    design: Design


def lower_bounds(
    scores: Column,
    is_member: Column,
    *,
    design: Design,
    delta: float,
    relation: Relation,
    confidence: float,
) -> LowerBounds:
    """Bounds the epsilon of training from below, by attack scores.

    Thresholds and numbers of guesses are chosen on the same scores; this choice is included in the
    error 1 - confidence. Reversed scores bound epsilon as well. The declared orientation, higher =
    more likely a member, may spend nine tenths of the error and the reversed one a tenth, and the
    larger bound is returned.

    Args:
      scores: [n]; a row is a training run (`independent_runs`) or a canary (`one_run`).
      is_member: [n]; whether the record was in the training run, or whether the coin of the canary
        included it.
      design: `independent_runs`: training runs with independent randomness that differ in one
        record. `one_run`: one training run, which includes each canary by its own fair coin.
      delta: delta at which epsilon is bounded, in [0, 1).
      relation: how the canaries were varied; it cannot be verified from the scores. For a canary
        that is included or left out it is `add_or_remove_one`, for one that is exchanged for
        another record `replace_one`.
      confidence: confidence level of each bound, in (0, 1).

    Returns:
      The bounds in nats; 0 if the scores show no leak, None if a bound does not apply.

    Raises:
      ValueError: if an argument is out of range, for NaN, one class only, unequal lengths, or
        coins of `one_run` that are far from fair.

    References:
      See `independent_runs` and `one_run`.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> scores, is_member = np.arange(200.0), np.arange(200) >= 100  # perfect separation
      >>> result = jp.audit.lower_bounds(
      ...     scores, is_member, design="independent_runs", delta=0.0,
      ...     relation="add_or_remove_one", confidence=0.95)
      >>> round(result.clopper_pearson, 2), result.one_run
      (2.84, None)
      >>> result.not_applicable["one_run"]
      'needs one fair coin for each of many canaries in one training'
    """
    _check.one_of(DESIGNS, design=design)
    _check.one_of(RELATIONS, relation=relation)
    module = {"independent_runs": independent_runs, "one_run": one_run}[design]
    assumption_free, gaussian_key = _KEYS_BY_DESIGN[design]
    bounds: dict[str, float | None] = dict.fromkeys(KEYS)
    bounds[assumption_free] = _best_of_orientations(
        lambda values, level: module.epsilon_of_scores(
            values, is_member, delta=delta, confidence=level
        ),
        scores,
        confidence,
    )
    mu = _best_of_orientations(
        lambda values, level: module.mu_of_scores(values, is_member, confidence=level),
        scores,
        confidence,
    )
    reasons = dict.fromkeys(
        (key for key in KEYS if key not in _KEYS_BY_DESIGN[design]), _REASON_BY_DESIGN[design]
    )
    if design == "one_run" and bounds[assumption_free] == 0:
        level = 1 - (1 - _REVERSED_SHARE) * (1 - confidence)
        n = np.size(np.asarray(scores))
        if one_run.largest_epsilon(n, delta=delta, confidence=level) == 0:
            bounds[assumption_free] = None
            reasons[assumption_free] = _LARGE_DELTA.format(delta=delta, n=n)
    if mu == 0:
        bounds[gaussian_key] = 0.0
    elif delta == 0:
        reasons[gaussian_key] = _INFINITE
    else:
        bounds[gaussian_key] = gaussian.epsilon(delta, mu=mu)
    return LowerBounds(
        **bounds,
        mu={key: mu if key == gaussian_key else None for key in ASSUMPTIONS},
        assumptions={gaussian_key: ASSUMPTIONS[gaussian_key]},
        not_applicable=reasons,
        meaning=_NEIGHBOURS[relation],
        confidence=confidence,
        delta=delta,
        relation=relation,
        design=design,
    )


def _best_of_orientations(
    bound: Callable[[Column, float], float],
    scores: Column,
    confidence: float,
) -> float:
    """Returns the larger of the bounds from the scores and from the reversed scores."""
    _check.open_unit(confidence=confidence)
    error = 1 - confidence
    forward = bound(scores, 1 - (1 - _REVERSED_SHARE) * error)
    return max(forward, bound(-np.asarray(scores).astype(np.float64), 1 - _REVERSED_SHARE * error))
