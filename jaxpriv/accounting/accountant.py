"""Computes the epsilon and delta of an event, and the noise or the steps that meet a budget.

    event --count_steps--> number of each step --profile--> epsilon(delta), delta(epsilon)

Events are dp-accounting's: Gaussian, Poisson-sampled Gaussian, its truncated form, and their
compositions. Compositions of Gaussians have a closed form; for everything else a privacy loss
distribution (PLD) gives an upper bound on epsilon, tight to a relative error of about 1e-3.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int

from jaxpriv import _check, _types
from jaxpriv._types import RELATIONS, Relation
from jaxpriv.accounting import _large_delta, _losses, _profiles, _search

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = [
    "EpsilonByRelation",
    "advantage_bound",
    "calibrate",
    "calibrate_event",
    "delta",
    "delta_curve",
    "epsilon",
    "epsilon_by_relation",
    "epsilon_curve",
    "max_steps",
    "poisson_event",
]

_METHODS = ("pld", "rdp", "rdp_classic")

_TOLERANCE = 1e-3
"""Relative distance below the budget at which the epsilon of a calibrated noise may lie."""


@runtime_checkable
class _Sampler(Protocol):
    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent": ...


def epsilon(event: "DpEvent", *, delta: float, relation: Relation, method: str = "pld") -> float:
    """Computes the epsilon of an event at a given delta.

    By `pld` the relative error is about 1e-3, always upwards. It grows where delta comes close to
    the resolution of float64, about 1e-15 + 2e-16 per step: 0.5 % at 5 times the resolution, up to
    a fifth right above it.

    Args:
      event: dp-accounting event, as returned by `.event(...)` of an algorithm or a sampler.
      delta: delta of the guarantee, in (0, 1). A `LargeDeltaWarning` is issued if the event
        contains the number of records n and delta >= 1/n.
      relation: `add_or_remove_one` or `replace_one`.
      method: `pld` is tight and never below the true epsilon. `rdp` uses Renyi moments of integer
        order with the improved conversion. `rdp_classic` uses the conversion
        epsilon_RDP + ln(1/delta)/(order - 1) of the papers from 2016 to 2021. The last two
        support `add_or_remove_one` and untruncated batches only.

    Returns:
      epsilon in nats; infinite if something is released without noise.

    Raises:
      ValueError: if an argument is out of range, the event is of another kind, the method does
        not support it, delta is below the resolution of float64 (for `pld`), or the computation
        would need more than 4 GiB.

    References:
      Koskela, Jalko and Honkela, Computing Tight Differential Privacy Guarantees Using FFT, 2020.
      Improved conversion: Canonne, Kamath and Steinke, The Discrete Gaussian for Differential
      Privacy, 2020, Proposition 12. Classic: Mironov, Renyi Differential Privacy, 2017,
      Proposition 3.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.1, sampling_prob=0.01, steps=1000)
      >>> round(jp.accounting.epsilon(event, delta=1e-5, relation="add_or_remove_one"), 2)
      1.52
      >>> round(jp.accounting.epsilon(event, delta=1e-5, relation="replace_one"), 2)
      2.48
    """
    _check.one_of(_METHODS, method=method)
    _check_target(delta=delta, relation=relation)
    steps = _profiles.count_steps(event)
    _warn_if_large(delta, steps)
    if method == "pld":
        return _profiles.profile(steps, relation, delta=delta)(1).epsilon(delta)
    return _profiles.rdp_epsilon(steps, delta, relation, method)


class EpsilonByRelation(NamedTuple):
    """epsilon of one event under both neighbouring relations, nats.

    add_or_remove_one: neighbours have one unit more or less (unbounded DP).
    replace_one: neighbours have one unit replaced (bounded DP).
    """

    add_or_remove_one: float
    replace_one: float


def epsilon_by_relation(event: "DpEvent", *, delta: float) -> EpsilonByRelation:
    """Computes the epsilon of an event under both relations, by PLD.

    Published epsilons of class-level DP use either relation, often without a statement, and
    `replace_one` about doubles epsilon; an epsilon of a class is to be stated under both.

    Args:
      event: dp-accounting event, as for `epsilon`. Its unit is that of the sampler: a record, or
        a class for `sampling.by_class`.
      delta: delta of the guarantees, as for `epsilon`.

    Returns:
      epsilon under each relation.

    Raises:
      ValueError: as `epsilon`.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.6, sampling_prob=0.2, steps=100)
      >>> [round(epsilon, 2) for epsilon in jp.accounting.epsilon_by_relation(event, delta=1e-3)]
      [4.88, 9.91]
    """
    _check.open_unit(delta=delta)
    steps = _profiles.count_steps(event)
    _warn_if_large(delta, steps)

    def epsilon_under(relation: Relation) -> float:
        return _profiles.profile(steps, relation, delta=delta)(1).epsilon(delta)

    return EpsilonByRelation(
        add_or_remove_one=epsilon_under("add_or_remove_one"),
        replace_one=epsilon_under("replace_one"),
    )


def delta(event: "DpEvent", *, epsilon: float, relation: Relation) -> float:
    """Computes the delta of an event at a given epsilon, by PLD.

    Args:
      event: dp-accounting event, as for `epsilon`.
      epsilon: epsilon of the guarantee, nats; >= 0.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      delta in [0, 1]; 1 if something is released without noise.

    Raises:
      ValueError: if an argument is out of range, the event is of another kind, or the computation
        would need more than 4 GiB.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.1, sampling_prob=0.01, steps=1000)
      >>> round(jp.accounting.delta(event, epsilon=1.0, relation="add_or_remove_one"), 5)
      0.00077
    """
    return delta_curve(event, epsilon=epsilon, relation=relation)(epsilon)


def delta_curve(
    event: "DpEvent", *, epsilon: float, relation: Relation
) -> Callable[[float], float]:
    """Computes delta as a function of epsilon, from one PLD.

    Args:
      event: dp-accounting event, as for `epsilon`.
      epsilon: epsilon at which the PLD is accurate, nats; >= 0. Elsewhere delta is an upper bound.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      A function from epsilon >= 0 to delta in [0, 1].

    Raises:
      ValueError: if an argument is out of range, the event is of another kind, or the computation
        would need more than 4 GiB.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.1, sampling_prob=0.01, steps=1000)
      >>> delta_at = jp.accounting.delta_curve(event, epsilon=1.0, relation="add_or_remove_one")
      >>> [round(delta_at(epsilon), 5) for epsilon in (0.0, 0.5, 1.0)]
      [0.14032, 0.01821, 0.00077]
    """
    _check.non_negative(epsilon=epsilon)
    _check.one_of(RELATIONS, relation=relation)
    return _profiles.profile(_profiles.count_steps(event), relation, epsilon=epsilon)(1).delta


def advantage_bound(event: "DpEvent", *, relation: Relation) -> float:
    """Bounds the membership advantage of every attack on an event by its delta(0).

    The advantage is TPR - FPR at equal priors. delta(0) is the total variation of the pair of
    distributions that dominates the event: tight for that pair up to discretisation, and an upper
    bound for any other.

    Args:
      event: dp-accounting event, as for `epsilon`.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The largest possible advantage, in [0, 1].

    Raises:
      ValueError: if relation is unknown, the event is of another kind, or the computation would
        need more than 4 GiB.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.1, sampling_prob=0.01, steps=1000)
      >>> round(jp.accounting.advantage_bound(event, relation="add_or_remove_one"), 3)
      0.14
    """
    return delta(event, epsilon=0.0, relation=relation)


def calibrate(
    sampler: _Sampler, *, steps: int, epsilon: float, delta: float, relation: Relation
) -> float:
    """Finds the smallest noise multiplier at which training stays within a privacy budget.

    The epsilon of the result lies in [0.999 epsilon, epsilon].

    Args:
      sampler: sampler of the batches, such as `sampling.poisson(...)`; any object with a method
        `event(noise_multiplier=..., steps=...)`.
      steps: number of noisy sums.
      epsilon: epsilon of the budget, nats; > 0.
      delta: delta of the budget, in (0, 1). A `LargeDeltaWarning` is issued if the number of
        records n (of classes, if the unit is a class) is given by the event or by the sampler and
        delta >= 1/n.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The noise multiplier: standard deviation of the noise / clip norm.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier meets the budget.

    Example:
      >>> import jaxpriv as jp
      >>> sampler = jp.sampling.poisson(10_000, sampling_prob=0.01)
      >>> budget = dict(epsilon=2.0, delta=1e-5, relation="add_or_remove_one")
      >>> round(jp.accounting.calibrate(sampler, steps=1000, **budget), 2)
      0.96
    """
    _check.attributes(("event",), "sampling.poisson(...)", sampler=sampler)
    _check.positive_int(steps=steps)

    def make_event(noise_multiplier: float) -> "DpEvent":
        return sampler.event(noise_multiplier=noise_multiplier, steps=steps)

    return _calibrate(make_event, epsilon, delta, relation, _types.num_units(sampler))


def calibrate_event(
    make_event: Callable[[float], "DpEvent"], *, epsilon: float, delta: float, relation: Relation
) -> float:
    """Finds the smallest noise multiplier at which an event stays within a privacy budget.

    The epsilon of the result lies in [0.999 epsilon, epsilon].

    Args:
      make_event: function from a noise multiplier to the event.
      epsilon: epsilon of the budget, nats; > 0.
      delta: delta of the budget, in (0, 1). A `LargeDeltaWarning` is issued if the event
        contains the number of records n and delta >= 1/n.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The noise multiplier.

    Raises:
      ValueError: if an argument is out of range, or no noise multiplier meets the budget.

    Example:
      >>> import dp_accounting
      >>> import jaxpriv as jp
      >>> z = jp.accounting.calibrate_event(
      ...     dp_accounting.GaussianDpEvent, epsilon=1.0, delta=1e-5, relation="add_or_remove_one")
      >>> round(z, 2)
      3.73
    """
    return _calibrate(make_event, epsilon, delta, relation)


def poisson_event(*, noise_multiplier: float, sampling_prob: float, steps: int) -> "DpEvent":
    """Makes the event of Poisson-sampled noisy sums when the number of records is not known.

    It is valid for batches that are never truncated. A padded batch can overflow, which the
    `event` method of its sampler takes into account.

    Args:
      noise_multiplier: standard deviation of the noise / clip norm; >= 0.
      sampling_prob: probability with which each record enters a batch, in (0, 1]; 1 gives the
        plain Gaussian.
      steps: number of noisy sums.

    Returns:
      The dp-accounting event.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.1, sampling_prob=1.0, steps=30)
      >>> event.event, event.count
      (GaussianDpEvent(noise_multiplier=1.1), 30)
    """
    import dp_accounting

    _check.non_negative(noise_multiplier=noise_multiplier)
    if 0 < noise_multiplier < 1e-100:
        raise ValueError(f"Expected noise_multiplier 0 or >= 1e-100, got {noise_multiplier}.")
    _check.probability(sampling_prob=sampling_prob)
    _check.positive_int(steps=steps)
    step: DpEvent = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sampling_prob < 1:
        step = dp_accounting.PoissonSampledDpEvent(sampling_prob, step)
    return dp_accounting.SelfComposedDpEvent(step, steps)


def epsilon_curve(
    event_of_one_step: "DpEvent",
    steps: Sequence[int] | Int[np.ndarray, " k"],
    *,
    delta: float,
    relation: Relation,
) -> Float64[np.ndarray, " k"]:
    """Computes the epsilon after each of several step counts.

    Args:
      event_of_one_step: event of every step.
      steps: step counts, in any order; 0 has epsilon 0.
      delta: delta of the guarantee, in (0, 1). A `LargeDeltaWarning` is issued if the event
        contains the number of records n and delta >= 1/n.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      epsilon after each count, nats.

    Raises:
      ValueError: if a count is not a whole number >= 0, or for the errors of `epsilon`.

    Example:
      >>> import jaxpriv as jp
      >>> step = jp.accounting.poisson_event(noise_multiplier=1.1, sampling_prob=0.01, steps=1)
      >>> jp.accounting.epsilon_curve(
      ...     step, [0, 100, 1000], delta=1e-5, relation="add_or_remove_one").round(2).tolist()
      [0.0, 0.55, 1.52]
    """
    _check_target(delta=delta, relation=relation)
    for count in steps:
        if count < 0:
            raise ValueError(f"Expected every count in steps >= 0, got {count}.")
        if count != int(count):
            raise ValueError(f"Expected whole numbers in steps, got {count}.")
    counts = [int(count) for count in steps]
    step = _profiles.count_steps(event_of_one_step)
    _warn_if_large(delta, step)
    after = _profiles.profile(step, relation, max_compositions=max(counts, default=0), delta=delta)
    epsilons = {count: after(count).epsilon(delta) for count in set(counts)}
    return np.array([epsilons[count] for count in counts], np.float64)


def max_steps(
    make_event: Callable[[int], "DpEvent"],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    at_most: int,
) -> int:
    """Finds the largest number of steps within a privacy budget.

    Args:
      make_event: function from a number of equal steps to their event, such as `.event` of an
        algorithm.
      epsilon: epsilon of the budget, nats; > 0.
      delta: delta of the budget, in (0, 1). A `LargeDeltaWarning` is issued if the event
        contains the number of records n and delta >= 1/n.
      relation: `add_or_remove_one` or `replace_one`.
      at_most: upper limit of the result; >= 1.

    Returns:
      A step count in 0..at_most whose epsilon is at most the budget; 0 if a single step exceeds
      the budget.

    Raises:
      ValueError: if epsilon or at_most is out of range, or for the errors of `epsilon`.

    Example:
      >>> import jaxpriv as jp
      >>> make_event = lambda steps: jp.accounting.poisson_event(
      ...     noise_multiplier=1.1, sampling_prob=0.01, steps=steps)
      >>> budget = dict(epsilon=2.0, delta=1e-5, relation="add_or_remove_one")
      >>> jp.accounting.max_steps(make_event, **budget, at_most=10_000)
      1725
    """
    _check.positive(epsilon=epsilon)
    _check.positive_int(at_most=at_most)
    _check_target(delta=delta, relation=relation)
    step = _profiles.count_steps(make_event(1))
    _warn_if_large(delta, step)
    fits, limit = 0, 1
    # Short runs are cheap to compose, so the limit doubles until it exceeds the budget.
    while True:
        after = _profiles.profile(step, relation, max_compositions=limit, epsilon=epsilon)
        if after(limit).epsilon(delta) > epsilon:
            break
        if limit == at_most:
            fits = limit - 1
            break
        fits, limit = limit, min(2 * limit, at_most)
    between = range(fits + 1, limit)
    result = fits + bisect.bisect_right(between, epsilon, key=lambda n: after(n).epsilon(delta))

    # The grid of `limit` steps is not that of the result, whose epsilon may differ by 1e-5 of it.
    def fits_budget(num_steps: int) -> bool:
        steps = _profiles.count_steps(make_event(num_steps))
        return _profiles.profile(steps, relation, delta=delta)(1).epsilon(delta) <= epsilon

    while result > 0 and not fits_budget(result):
        result -= 1
    while result < at_most and fits_budget(result + 1):
        result += 1
    return result


def _check_target(*, delta: float, relation: str) -> None:
    _check.open_unit(delta=delta)
    _check.one_of(RELATIONS, relation=relation)


def _warn_if_large(
    delta: float, steps: Counter[_losses.Step], n: int | None = None, *, stacklevel: int = 4
) -> None:
    """Warns if delta >= 1/n, with n taken from the event or else from the argument."""
    sizes = [step.overflow[0] for step in steps if step.overflow is not None]
    sizes = sizes or ([] if n is None else [n])
    if sizes:
        _large_delta.warn(delta, max(sizes), stacklevel=stacklevel)


def _calibrate(
    make_event: Callable[[float], "DpEvent"],
    epsilon: float,
    delta: float,
    relation: Relation,
    n: int | None = None,
) -> float:
    _check.positive(epsilon=epsilon)
    _check_target(delta=delta, relation=relation)
    _warn_if_large(delta, _profiles.count_steps(make_event(1.0)), n, stacklevel=5)
    # The target lies half the tolerance below the budget, so that an error of the search on
    # either side stays within the budget.
    log_target = math.log(epsilon) + math.log1p(-_TOLERANCE / 2)

    def excess(log_z: float) -> float:
        steps = _profiles.count_steps(make_event(math.exp(log_z)))
        epsilon_at_z = _profiles.profile(steps, relation, epsilon=epsilon)(1).epsilon(delta)
        # Clipped, because one far value would bend the interpolation.
        return (
            min(max(math.log(epsilon_at_z) - log_target, -3.0), 3.0) if epsilon_at_z > 0 else -3.0
        )

    return _search.smallest_noise(
        excess, target_name="epsilon", target_value=epsilon, excess_tolerance=_TOLERANCE / 4
    )
