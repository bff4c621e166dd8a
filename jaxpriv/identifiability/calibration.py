"""The least noise that keeps a promise on belief or advantage, for any sampler's event."""

import math
from collections.abc import Callable

from jaxpriv import _check, accounting
from jaxpriv._types import RELATIONS, Relation
from jaxpriv.accounting import search
from jaxpriv.identifiability import belief

_PRECISION = 1e-4
"""Relative: how far above the smallest noise a calibrated one may lie."""


def calibrate_belief(
    make_event: Callable[[float], object],
    *,
    max_belief: float,
    violation_probability: float,
    relation: Relation,
) -> float:
    """Finds the noise with which the belief exceeds a level with at most a given probability.

    By the general `violation_probability`, so the promise holds for every event; for full batches
    `mu_for_belief` needs less noise.

    Args:
      make_event: makes the event of a noise multiplier.
      max_belief: in (0.5, 1), from equal priors.
      violation_probability: how often it may be exceeded, in (0, 1).
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The smallest noise multiplier that keeps the promise, up to a relative 1e-4 above.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier keeps the promise.
    """
    _check.open_unit(violation_probability=violation_probability)
    _check.one_of(RELATIONS, relation=relation)
    if not 0.5 < max_belief < 1:
        raise ValueError(f"Expected 0.5 < max_belief < 1, got max_belief={max_belief}.")

    def spent(noise_multiplier: float) -> float:
        event = make_event(noise_multiplier)
        return belief.violation_probability(event, rho=max_belief, relation=relation)  # pyright: ignore[reportArgumentType]

    return _least_noise(spent, violation_probability)


def calibrate_advantage(
    make_event: Callable[[float], object], *, max_advantage: float, relation: Relation
) -> float:
    """Finds the noise with which no attack has more than a given advantage.

    Args:
      make_event: makes the event of a noise multiplier.
      max_advantage: TPR - FPR at equal priors, in (0, 1).
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The smallest noise multiplier that keeps the promise, up to a relative 1e-4 above.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier keeps the promise.
    """
    _check.open_unit(max_advantage=max_advantage)
    _check.one_of(RELATIONS, relation=relation)

    def spent(noise_multiplier: float) -> float:
        event = make_event(noise_multiplier)
        return accounting.advantage_bound(event, relation=relation)  # pyright: ignore[reportArgumentType]

    return _least_noise(spent, max_advantage)


def _least_noise(spent: Callable[[float], float], promise: float) -> float:
    """The smallest noise multiplier that spends at most `promise`, from above."""
    from scipy import optimize

    def excess(log_z: float) -> float:
        value = spent(math.exp(log_z))
        # Clipped, because one far point would bend the interpolation.
        return min(max(math.log(value / promise), -3.0), 3.0) if value > 0 else -3.0

    left, left_value, root, root_value = search.bracket(
        excess, target_name="promise", target_value=promise
    )
    if left_value * root_value < 0:
        root = optimize.root_scalar(excess, bracket=(left, root), xtol=_PRECISION / 4).root
    while excess(root) > 0:
        root += _PRECISION / 2
    return math.exp(root)
