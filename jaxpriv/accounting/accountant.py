"""Computes the epsilon and delta of an event, and the noise or the steps that meet a budget.

Events are dp-accounting's: Gaussian, Poisson-sampled Gaussian, its truncated form, and their
compositions. Compositions of Gaussians have a closed form; for everything else a privacy loss
distribution (PLD) gives an upper bound on epsilon, tight up to a relative 1e-3 or so.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int

from jaxpriv import _check
from jaxpriv._types import RELATIONS, Relation
from jaxpriv.accounting import _losses, _profiles, search

if TYPE_CHECKING:
    from dp_accounting import DpEvent

METHODS = ("pld", "rdp", "rdp_classic")


class LargeDeltaWarning(UserWarning):
    """Warns that delta is at least 1/n, where n is the number of records."""


@runtime_checkable
class _Sampler(Protocol):
    def event(self, *, noise_multiplier: float, steps: int) -> object: ...


def epsilon(event: "DpEvent", *, delta: float, relation: Relation, method: str = "pld") -> float:
    """Computes the epsilon of an event at a given delta.

    Args:
      event: of dp-accounting, as an algorithm's or a sampler's `.event(...)` gives it.
      delta: in (0, 1). Warns at 1/n and above, if the event contains n.
      relation: `add_or_remove_one` or `replace_one`.
      method: `pld`: tight, and never below the truth. `rdp`: Renyi moments of integer order with
        the improved conversion. `rdp_classic`: with epsilon_RDP + ln(1/delta)/(order - 1), which
        the papers of 2016 to 2021 used. Both serve add_or_remove_one and untruncated events only.

    Returns:
      epsilon in nats; infinite if something is released without noise.

    Raises:
      ValueError: if an argument is out of range, the event is none of those above, the method
        does not serve it, delta is below what float64 resolves (about 1e-15 + 2e-16 steps, for
        PLD), or it would need more than 4 GiB.

    References:
      Koskela, Jalko and Honkela, Computing Tight Differential Privacy Guarantees Using FFT, 2020.
      Improved conversion: Canonne, Kamath and Steinke, The Discrete Gaussian for Differential
      Privacy, 2020, Proposition 12. Classic: Mironov, Renyi Differential Privacy, 2017,
      Proposition 3.
    """
    _check.one_of(METHODS, method=method)
    _check_target(delta=delta, relation=relation)
    steps = _profiles.count_steps(event)
    _warn_large(delta, steps)
    if method == "pld":
        return _profiles.profile(steps, relation, delta=delta)(1).epsilon(delta)
    return _profiles.rdp_epsilon(steps, delta, relation, method)


def delta(event: "DpEvent", *, epsilon: float, relation: Relation) -> float:
    """Computes the delta of an event at a given epsilon, by PLD.

    Args:
      event: as for `epsilon`.
      epsilon: nats; >= 0.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      delta in [0, 1]; 1 if something is released without noise.

    Raises:
      ValueError: if an argument is out of range, the event is unknown, or it needs over 4 GiB.
    """
    return delta_curve(event, epsilon=epsilon, relation=relation)(epsilon)


def delta_curve(
    event: "DpEvent", *, epsilon: float, relation: Relation
) -> Callable[[float], float]:
    """Computes delta as a function of epsilon, by one PLD.

    Args:
      event: as for `epsilon`.
      epsilon: epsilon at which the PLD is accurate, nats; >= 0. Elsewhere delta is an upper bound.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      A function from epsilon >= 0 to delta in [0, 1].

    Raises:
      ValueError: as `delta`.
    """
    _check.non_negative(epsilon=epsilon)
    _check.one_of(RELATIONS, relation=relation)
    return _profiles.profile(_profiles.count_steps(event), relation, epsilon=epsilon)(1).delta


def advantage_bound(event: "DpEvent", *, relation: Relation) -> float:
    """Bounds the membership advantage (TPR - FPR, equal priors) of every attack: delta(0).

    This is the total variation of the pair that dominates the event: tight for that pair up to
    discretisation, an upper bound for any other.

    Args:
      event: as for `epsilon`.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The advantage in [0, 1].

    Raises:
      ValueError: as `delta`.
    """
    return delta(event, epsilon=0.0, relation=relation)


def calibrate(
    sampler: _Sampler, *, steps: int, epsilon: float, delta: float, relation: Relation
) -> float:
    """Finds the noise multiplier with which the steps of a sampler spend a budget.

    The epsilon of the result lies in [0.999 epsilon, epsilon].

    Args:
      sampler: anything with `.event(noise_multiplier=..., steps=...)`.
      steps: number of noisy sums.
      epsilon: the budget, nats; > 0.
      delta: in (0, 1). Warns at 1/n and above, if the event contains n.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      Standard deviation of the noise / clip norm.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier meets the budget.
    """
    _check.attributes(("event",), "sampling.poisson(...)", sampler=sampler)
    _check.positive_int(steps=steps)

    def make_event(noise_multiplier: float) -> object:
        return sampler.event(noise_multiplier=noise_multiplier, steps=steps)

    n = getattr(sampler, "num_examples", None)
    return _calibrate(make_event, epsilon, delta, relation, n)


def calibrate_event(
    make_event: Callable[[float], object], *, epsilon: float, delta: float, relation: Relation
) -> float:
    """Finds the noise multiplier with which an event spends a budget; see `calibrate`.

    Args:
      make_event: makes the event of a noise multiplier.
      epsilon: the budget, nats; > 0.
      delta: in (0, 1). Warns at 1/n and above, if the event contains n.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The noise multiplier.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier meets the budget.
    """
    return _calibrate(make_event, epsilon, delta, relation)


def poisson_event(*, noise_multiplier: float, sampling_prob: float, steps: int) -> "DpEvent":
    """Makes the event of Poisson-sampled noisy sums if the number of records is unknown.

    It holds for batches that are never truncated. A padded batch can overflow, which the event of
    its sampler takes into account.

    Args:
      noise_multiplier: standard deviation of the noise / clip norm; >= 0.
      sampling_prob: in (0, 1]; 1 gives the plain Gaussian.
      steps: number of noisy sums.

    Returns:
      The event.

    Raises:
      ValueError: if an argument is out of range.
    """
    import dp_accounting

    _check.non_negative(noise_multiplier=noise_multiplier)
    if 0 < noise_multiplier < 1e-100:
        raise ValueError(f"Expected noise_multiplier 0 or >= 1e-100, got {noise_multiplier}.")
    _check.probability(sampling_prob=sampling_prob)
    _check.positive_int(steps=steps)
    one: DpEvent = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sampling_prob < 1:
        one = dp_accounting.PoissonSampledDpEvent(sampling_prob, one)
    return dp_accounting.SelfComposedDpEvent(one, steps)


def epsilon_curve(
    event_of_one_step: "DpEvent",
    steps: Sequence[int] | Int[np.ndarray, " k"],
    *,
    delta: float,
    relation: Relation,
) -> Float64[np.ndarray, " k"]:
    """Computes the epsilon spent after each of several step counts.

    Args:
      event_of_one_step: what every step releases.
      steps: step counts, in any order; 0 spends nothing.
      delta: in (0, 1). Warns at 1/n and above, if the event contains n.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      epsilon after each count, nats.

    Raises:
      ValueError: as `epsilon`.
    """
    _check_target(delta=delta, relation=relation)
    for count in steps:
        if count < 0:
            raise ValueError(f"Expected every count in steps >= 0, got {count}.")
        if count != int(count):
            raise ValueError(f"Expected whole numbers in steps, got {count}.")
    counts = [int(count) for count in steps]
    one = _profiles.count_steps(event_of_one_step)
    _warn_large(delta, one)
    after = _profiles.profile(one, relation, max_compositions=max(counts, default=0), delta=delta)
    spent = {count: after(count).epsilon(delta) for count in set(counts)}
    return np.array([spent[count] for count in counts], np.float64)


def max_steps(
    make_event: Callable[[int], object],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    at_most: int,
) -> int:
    """Finds the largest number of steps that stays within a budget.

    Args:
      make_event: makes the event of a number of equal steps, as an algorithm's `.event` does.
      epsilon: the budget, nats; > 0.
      delta: in (0, 1). Warns at 1/n and above, if the event contains n.
      relation: `add_or_remove_one` or `replace_one`.
      at_most: the largest answer; >= 1.

    Returns:
      A step count in 0..at_most whose epsilon is at most the budget; 0 when one step is too many.

    Raises:
      ValueError: as `epsilon`.
    """
    _check.positive(epsilon=epsilon)
    _check.positive_int(at_most=at_most)
    _check_target(delta=delta, relation=relation)
    one = _profiles.count_steps(make_event(1))
    _warn_large(delta, one)
    fits, fails = 0, 1

    def within(after: Callable[[int], _profiles.Profile], count: int) -> bool:
        return after(count).epsilon(delta) <= epsilon

    # Short runs are cheap to compose, so the search grows from them.
    while within(
        after := _profiles.profile(one, relation, max_compositions=fails, epsilon=epsilon), fails
    ):
        if fails == at_most:
            return at_most
        fits, fails = fails, min(2 * fails, at_most)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if within(after, middle) else (fits, middle)
    return fits


def _check_target(*, delta: float, relation: str) -> None:
    _check.open_unit(delta=delta)
    _check.one_of(RELATIONS, relation=relation)


def warn_if_large(delta: float, n: int, *, stacklevel: int = 3) -> None:
    """Warns of a delta of 1/n or more, by default at the caller of the function that calls this.

    Args:
      delta: of the (epsilon, delta) guarantee.
      n: number of records.
      stacklevel: as for `warnings.warn`.
    """
    if delta >= 1 / n:
        warnings.warn(
            f"delta={delta} is at least 1/n for n={n}: a mechanism that publishes one record in "
            "full would satisfy it.",
            LargeDeltaWarning,
            stacklevel=stacklevel,
        )


def _warn_large(
    delta: float, steps: Counter[_losses.Step], n: int | None = None, *, stacklevel: int = 4
) -> None:
    """Warns if delta >= 1/n, with n taken from the event or else from the argument."""
    sizes = [step.overflow[0] for step in steps if step.overflow is not None]
    sizes = sizes or ([] if n is None else [n])
    if sizes:
        warn_if_large(delta, max(sizes), stacklevel=stacklevel)


def _calibrate(
    make_event: Callable[[float], object],
    epsilon: float,
    delta: float,
    relation: Relation,
    n: int | None = None,
) -> float:
    _check.positive(epsilon=epsilon)
    _check_target(delta=delta, relation=relation)
    _warn_large(delta, _profiles.count_steps(make_event(1.0)), n, stacklevel=5)
    # A little below the budget, so that a miss on either side still is within it.
    aim = math.log(epsilon) + math.log1p(-search.TOLERANCE / 2)

    def excess(log_z: float) -> float:
        profile = _profiles.profile(
            _profiles.count_steps(make_event(math.exp(log_z))), relation, epsilon=epsilon
        )
        spent = profile(1).epsilon(delta)
        # Clipped, because one far point would bend the interpolation.
        return min(max(math.log(spent) - aim, -3.0), 3.0) if spent > 0 else -3.0

    return math.exp(search.root(excess, target_name="epsilon", target_value=epsilon))
