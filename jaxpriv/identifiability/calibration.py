"""The smallest noise that bounds a belief or an advantage, for the event of any sampler."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxpriv import _check, accounting
from jaxpriv._types import RELATIONS, Relation
from jaxpriv.accounting import _search
from jaxpriv.identifiability import belief

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["calibrate_advantage", "calibrate_belief"]

_PRECISION = 1e-4
"""Relative distance above the smallest noise multiplier at which a calibrated one may lie."""


def calibrate_belief(
    make_event: Callable[[float], "DpEvent"],
    *,
    max_belief: float,
    violation_probability: float,
    relation: Relation,
) -> float:
    """Finds the smallest noise multiplier at which the belief rarely exceeds a given level.

    The bound is that of `identifiability.violation_probability`, so the result is valid for every
    event. For full batches `mu_for_belief` needs less noise.

    Args:
      make_event: function from a noise multiplier to the event.
      max_belief: largest belief, from equal priors, in (0.5, 1).
      violation_probability: largest probability with which max_belief is exceeded, in (0, 1).
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The noise multiplier, never too small and at most a relative 1e-4 too large.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier meets the target.

    Example:
      >>> import dp_accounting
      >>> import jaxpriv as jp
      >>> z = jp.identifiability.calibrate_belief(
      ...     dp_accounting.GaussianDpEvent, max_belief=0.9, violation_probability=0.01,
      ...     relation="add_or_remove_one")
      >>> round(z, 2)
      1.37
    """
    _check.open_unit(violation_probability=violation_probability)
    _check.one_of(RELATIONS, relation=relation)
    if not 0.5 < max_belief < 1:
        raise ValueError(f"Expected 0.5 < max_belief < 1, got max_belief={max_belief}.")

    def probability(noise_multiplier: float) -> float:
        event = make_event(noise_multiplier)
        return belief.violation_probability(event, rho=max_belief, relation=relation)

    return _smallest_noise(probability, "violation_probability", violation_probability)


def calibrate_advantage(
    make_event: Callable[[float], "DpEvent"], *, max_advantage: float, relation: Relation
) -> float:
    """Finds the smallest noise multiplier at which no attack exceeds a given advantage.

    Args:
      make_event: function from a noise multiplier to the event.
      max_advantage: largest TPR - FPR at equal priors, in (0, 1).
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The noise multiplier, never too small and at most a relative 1e-4 too large.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier meets the target.

    Example:
      >>> import jaxpriv as jp
      >>> def make_event(noise_multiplier):
      ...     return jp.accounting.poisson_event(
      ...         noise_multiplier=noise_multiplier, sampling_prob=0.01, steps=100)
      >>> z = jp.identifiability.calibrate_advantage(
      ...     make_event, max_advantage=0.1, relation="add_or_remove_one")
      >>> round(z, 2)
      0.66
    """
    _check.open_unit(max_advantage=max_advantage)
    _check.one_of(RELATIONS, relation=relation)

    def advantage(noise_multiplier: float) -> float:
        return accounting.advantage_bound(make_event(noise_multiplier), relation=relation)

    return _smallest_noise(advantage, "max_advantage", max_advantage)


def _smallest_noise(risk: Callable[[float], float], name: str, max_risk: float) -> float:
    max_risk = float(max_risk)

    def excess(log_z: float) -> float:
        value = risk(math.exp(log_z))
        # Clipped, because one far value would bend the interpolation.
        return min(max(math.log(value / max_risk), -3.0), 3.0) if value > 0 else -3.0

    return _search.smallest_noise(
        excess, target_name=name, target_value=max_risk, log_tolerance=_PRECISION / 2
    )
