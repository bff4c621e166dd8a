"""All lower bounds on epsilon that one set of scores supports."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Shaped

from jaxpriv import _check
from jaxpriv._types import RELATIONS, Relation
from jaxpriv.accounting import gaussian
from jaxpriv.audit import independent_runs, one_run

Design = Literal["independent_runs", "one_run"]
DESIGNS: tuple[Design, ...] = ("independent_runs", "one_run")
KEYS: tuple[str, ...] = ("clopper_pearson", "gdp", "one_run", "one_run_fdp")

_REASON_BY_DESIGN = {
    "independent_runs": "needs one fair coin for each of many canaries in one training",
    "one_run": "needs independent trainings, and canaries of one training are not independent",
}
_REVERSED = 0.1
"""Share of the error that the reversed orientation may spend: it is seldom the right one."""

_INFINITE = "a Gaussian trade-off has no finite epsilon at delta 0; mu holds its lower bound"
_NEIGHBOURS = {
    "add_or_remove_one": "The canary, or group, was added or left out, all else being equal.",
    "replace_one": "The canary was exchanged for another record of its own, all else being equal; "
    "the bound does not hold for replace_one where it was added or left out.",
}


class LowerBounds(NamedTuple):
    """Lower bounds on epsilon at `delta`; each by itself holds with probability `confidence`.

    clopper_pearson, one_run: hold for every mechanism.
    gdp, one_run_fdp: assume that the trade-off of the mechanism is Gaussian.
    mu: what those two derive from, by their names: bounds on mu of Gaussian differential privacy.
    not_applicable: for each of the four that is None, why.
    meaning: the neighbours that the bounds are for.
    """

    clopper_pearson: float | None
    gdp: float | None
    one_run: float | None
    one_run_fdp: float | None
    mu: dict[str, float | None]
    not_applicable: dict[str, str]
    meaning: str
    confidence: float
    delta: float
    relation: Relation
    design: Design


def lower_bounds(
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    design: Design,
    delta: float,
    relation: Relation,
    confidence: float,
) -> LowerBounds:
    """Bounds the epsilon of a training from below, by attack scores.

    Thresholds and numbers of guesses are chosen on these scores, and the choice is charged to the
    error 1 - confidence. Scores that point the other way bound epsilon as well: the declared
    orientation, higher = more likely a member, is charged nine tenths of the error, the reversed
    one a tenth, and the larger bound is given.

    Args:
      scores: [n]; a row is a training (`independent_runs`) or a canary (`one_run`).
      is_member: [n]: in that training, the record was in; or the canary's coin put it in.
      design: `independent_runs`: trainings with own randomness each, one bit each.
        `one_run`: one training, and each canary was put in by its own fair coin.
      delta: at which epsilon is bounded, in [0, 1).
      relation: how the canaries were varied; it cannot be verified from the scores. A canary that
        is in or out is `add_or_remove_one`; one that is exchanged for another, `replace_one`.
      confidence: probability with which each bound holds, in (0, 1).

    Returns:
      The bounds in nats; 0 where the scores prove nothing, None where a bound does not apply.

    Raises:
      ValueError: if an argument is out of range, for NaN, one class only, unequal lengths, or
        coins of `one_run` that are far from fair.

    References:
      See `independent_runs` and `one_run`.

    Example:
      >>> scores, is_member = np.arange(200.0), np.arange(200) >= 100
      >>> bounds = lower_bounds(scores, is_member, design="independent_runs", delta=0.0,
      ...                       relation="add_or_remove_one", confidence=0.95)
      >>> round(bounds.clopper_pearson, 3), bounds.one_run
      (2.857, None)
    """
    _check.one_of(DESIGNS, design=design)
    _check.one_of(RELATIONS, relation=relation)
    if design == "independent_runs":
        module, assumption_free, gaussian_key, inapplicable = (
            independent_runs,
            "clopper_pearson",
            "gdp",
            KEYS[2:],
        )
    else:
        module, assumption_free, gaussian_key, inapplicable = (
            one_run,
            "one_run",
            "one_run_fdp",
            KEYS[:2],
        )
    bounds: dict[str, float | None] = dict.fromkeys(KEYS)
    bounds[assumption_free] = _best_of_orientations(
        lambda values, share: module.epsilon_of_scores(
            values, is_member, delta=delta, confidence=share
        ),
        scores,
        confidence,
    )
    mu = _best_of_orientations(
        lambda values, share: module.mu_of_scores(values, is_member, confidence=share),
        scores,
        confidence,
    )
    reasons = dict.fromkeys(inapplicable, _REASON_BY_DESIGN[design])
    if mu == 0:
        bounds[gaussian_key] = 0.0
    elif delta == 0:
        reasons[gaussian_key] = _INFINITE
    else:
        bounds[gaussian_key] = gaussian.epsilon(delta, mu=mu)
    return LowerBounds(
        **bounds,
        mu={key: mu if key == gaussian_key else None for key in ("gdp", "one_run_fdp")},
        not_applicable=reasons,
        meaning=_NEIGHBOURS[relation],
        confidence=confidence,
        delta=delta,
        relation=relation,
        design=design,
    )


def _best_of_orientations(
    bound: Callable[[Shaped[Array | np.ndarray, "..."], float], float],
    scores: Shaped[Array | np.ndarray, "..."],
    confidence: float,
) -> float:
    """The larger of the bounds from the scores and from their reverse, at one budget."""
    _check.open_unit(confidence=confidence)
    error = 1 - confidence
    forward = bound(scores, 1 - (1 - _REVERSED) * error)
    return max(forward, bound(-np.asarray(scores).astype(np.float64), 1 - _REVERSED * error))
