"""The Dirichlet mechanism: exact privacy of noised probability vectors, in float64.

The mechanism answers a query with a draw of Dir(k p), where p is the vector of probabilities of a
model. Its guarantee is local differential privacy of p: two vectors are neighbours if they lie in
[eta, 1 - eta]^n, differ in two entries only, and have an L1 distance of at most b. It is NOT
membership privacy: nothing keeps the output of a model that was trained on a record within b of
the output of a model that was not.

    mechanism --beta tails--> delta(epsilon) --connected dots--> losses --FFT--> composition

In the shapes below `e` counts values of epsilon.
"""

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy import special

from jaxpriv import _check

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

__all__ = ["Dirichlet", "calibrate", "delta", "delta_of_pair", "epsilon"]

_CONCENTRATIONS = (1e-9, 1e9)
"""Concentrations for which the tails are computed; the smaller one shows the limit k -> 0."""

_FAR = 40.0
"""Logits beyond which a tail of the beta distribution is its series at 0."""

_SMALLEST = 1e-290
"""Smaller probabilities are raised to this value, as their logarithm is not computed."""

_SERIES_TERMS = 4000

_NUM_DIRECTIONS = 33
"""Pairs of two classes of which the supremum is taken; see `_worst_pairs`."""

_TAIL = 1e-12
"""Probability of infinite loss that discretisation adds to all queries together."""

_NUM_LOSSES = 20_000
"""Number of grid intervals of the loss of one query."""

_FFT_ROUNDING = 2.0**-45
"""Probability that rounding of the FFT may misplace, for each query."""


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """A Dirichlet mechanism and its neighbouring relation.

    concentration: k of Dir(k p); > 0.
    floor: eta, the smallest probability of p; in (0, 1/n].
    distance: b, the largest L1 distance of neighbours; in (0, 2 (1 - n eta)].
    num_classes: n, the number of entries of p; >= 2.

    Raises:
      ValueError: if an argument is out of range, or no two vectors are neighbours at this distance.

    Example:
      >>> Dirichlet(concentration=10.0, floor=0.01, distance=0.1, num_classes=7).floor
      0.01
    """

    concentration: float
    floor: float
    distance: float
    num_classes: int

    def __post_init__(self) -> None:
        _check.positive(concentration=self.concentration, floor=self.floor, distance=self.distance)
        _check.positive_int(num_classes=self.num_classes)
        for name in ("concentration", "floor", "distance"):
            object.__setattr__(self, name, float(getattr(self, name)))
        low, high = _CONCENTRATIONS
        if not low <= self.concentration <= high:
            raise ValueError(
                f"Expected {low:g} <= concentration <= {high:g}, "
                f"got concentration={self.concentration}."
            )
        if self.num_classes < 2:
            raise ValueError(f"Expected num_classes >= 2, got num_classes={self.num_classes}.")
        room = 1 - self.num_classes * self.floor
        if room < -1e-12:
            raise ValueError(
                f"Expected floor of at most 1 / num_classes = {1 / self.num_classes:g}, "
                f"got floor={self.floor}."
            )
        if self.distance / 2 > room + 1e-12:
            raise ValueError(
                f"Expected distance of at most 2 (1 - num_classes floor) = {2 * max(room, 0):g}, "
                f"got distance={self.distance}."
            )


def delta(mechanism: Dirichlet, *, epsilon: float, queries: int = 1) -> float:
    """Computes the smallest delta of a Dirichlet mechanism at a given epsilon.

    delta(epsilon) = sup P[L > epsilon] - e^epsilon P'[L > epsilon] over neighbours p, p'. Only the
    share y of one of the two entries that differ in their sum carries information, and
    y ~ Beta(k p_i, k p_j), so both terms are regularised incomplete beta functions. The supremum
    is at p_i = eta + b/2, p_j = eta with p' the two exchanged; this is confirmed numerically
    (by grids and random searches), not by a proof. For two classes p_i + p_j = 1, and the supremum
    is taken over a grid.

    One query is exact up to rounding, which is added. Several queries are adaptive, each of them
    on neighbours, and their curve is a discretisation from above.

    It is local differential privacy of the output vectors, not of training records.

    Args:
      mechanism: mechanism and neighbouring relation.
      epsilon: epsilon of the guarantee, nats; >= 0.
      queries: number of answers, such as the tokens of a sentence; each has independent noise.

    Returns:
      delta in [0, 1]; values below 1e-290 are rounded up to it.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Gohari et al., Differential Privacy on the Unit Simplex via the Dirichlet Mechanism, 2021,
      for the mechanism and its neighbours; the curve is exact and not theirs.

    Example:
      >>> mechanism = Dirichlet(concentration=10.0, floor=0.01, distance=0.1, num_classes=7)
      >>> round(delta(mechanism, epsilon=1.0), 6)
      0.623169
    """
    _check.non_negative(epsilon=epsilon)
    _check.positive_int(queries=queries)
    if queries == 1:
        return float(_curve(mechanism, np.array([epsilon], np.float64))[0])
    value = _composed(mechanism, queries).get_delta_for_epsilon(float(epsilon))
    return min(1.0, float(value) + queries * _FFT_ROUNDING)


def epsilon(mechanism: Dirichlet, *, delta: float, queries: int = 1) -> float:
    """Computes the smallest epsilon of a Dirichlet mechanism at a given delta.

    It inverts `delta`, whose docstring states the neighbouring relation and what is assumed. It is
    local differential privacy of the output vectors, not of training records.

    Args:
      mechanism: mechanism and neighbouring relation.
      delta: delta of the guarantee, in (0, 1).
      queries: number of answers, each with independent noise.

    Returns:
      epsilon in nats, rounded up; infinite at a delta that is not resolved: below 1e-290, and for
      several queries below 1e-11.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> mechanism = Dirichlet(concentration=10.0, floor=0.01, distance=0.1, num_classes=7)
      >>> round(epsilon(mechanism, delta=1e-5), 4)
      56.2155
      >>> round(epsilon(mechanism, delta=1e-5, queries=16), 1)
      186.6
    """
    _check.open_unit(delta=delta)
    _check.positive_int(queries=queries)
    if delta < _SMALLEST:
        return math.inf
    if queries == 1:
        return _single_epsilon(mechanism, delta)
    target = float(delta) - queries * _FFT_ROUNDING
    if target <= 0:
        return math.inf
    return float(_composed(mechanism, queries).get_epsilon_for_delta(target))


def delta_of_pair(
    epsilon: float,
    *,
    concentration: float,
    p: tuple[float, float],
    p_neighbour: tuple[float, float],
) -> float:
    """Computes the delta of one pair of vectors that differ in two entries.

    delta(epsilon) = P[L > epsilon] - e^epsilon P'[L > epsilon], with rounding errors added.

    Args:
      epsilon: epsilon of the guarantee, nats; >= 0.
      concentration: k of Dir(k p).
      p: the two entries in which the vectors differ.
      p_neighbour: the same entries of the neighbour; they have the same sum.

    Returns:
      delta in [0, 1].

    Raises:
      ValueError: if an argument is out of range, or the sums differ or exceed 1.

    Example:
      >>> pair = dict(p=(0.3, 0.2), p_neighbour=(0.25, 0.25))
      >>> round(delta_of_pair(0.5, concentration=10.0, **pair), 6)
      0.054747
    """
    _check.non_negative(epsilon=epsilon)
    _check.positive(concentration=concentration)
    for value in (*p, *p_neighbour):
        _check.probability(p=value)
    if len(p) != 2 or len(p_neighbour) != 2 or sum(p) > 1 + 1e-12:
        raise ValueError(
            f"Expected two entries each, of sum at most 1, got p={p} and p_neighbour={p_neighbour}."
        )
    if not math.isclose(sum(p), sum(p_neighbour), rel_tol=1e-9):
        raise ValueError(f"Expected equal sums of p and p_neighbour, got {p} and {p_neighbour}.")
    entries = [np.array([entry], np.float64) for entry in (*p, *p_neighbour)]
    epsilons = np.array([epsilon], np.float64)
    return float(_pair_curve(epsilons, float(concentration), *entries)[0, 0])


def calibrate(
    *,
    epsilon: float,
    delta: float,
    floor: float,
    distance: float,
    num_classes: int,
    queries: int = 1,
) -> float:
    """Computes the largest concentration k that is (epsilon, delta)-private.

    A small k does not make delta small: as k -> 0 the delta of one query decreases only to
    h / (2 eta + h) e^(-eta epsilon / h), where h = b/2. Where this limit exceeds the target, no
    concentration reaches it.

    Args:
      epsilon: epsilon of the guarantee, nats; > 0.
      delta: delta of the guarantee, in (0, 1).
      floor: eta, the smallest probability.
      distance: b, the largest L1 distance of neighbours.
      num_classes: number of classes, n.
      queries: number of answers that the guarantee covers.

    Returns:
      The largest k whose computed epsilon is at most the target, to a relative 1e-4; at most 1e9.

    Raises:
      ValueError: if an argument is out of range, or no concentration reaches the target.

    Example:
      >>> k = calibrate(epsilon=60.0, delta=1e-5, floor=0.01, distance=0.1, num_classes=7)
      >>> round(k)
      52
    """
    _check.positive(epsilon=epsilon)
    _check.open_unit(delta=delta)

    def epsilon_at(log_concentration: float) -> float:
        concentration = min(max(math.exp(log_concentration), _CONCENTRATIONS[0]), high)
        mechanism = Dirichlet(
            concentration=concentration, floor=floor, distance=distance, num_classes=num_classes
        )
        return _epsilon(mechanism, delta, queries)

    high = _CONCENTRATIONS[1]
    lower, upper = (math.log(k) for k in _CONCENTRATIONS)
    smallest = epsilon_at(lower)
    if smallest > epsilon:
        raise ValueError(
            f"No concentration reaches epsilon={epsilon} at delta={delta} for {queries} "
            f"{'query' if queries == 1 else 'queries'}: as it tends to 0, epsilon tends to "
            f"{smallest:.4g}. Raise the floor or shorten the distance."
        )
    if epsilon_at(upper) <= epsilon:
        return high
    while upper - lower > 1e-4:
        middle = (lower + upper) / 2
        if epsilon_at(middle) <= epsilon:
            lower = middle
        else:
            upper = middle
    return math.exp(lower)


def _epsilon(mechanism: Dirichlet, delta: float, queries: int) -> float:
    return epsilon(mechanism, delta=delta, queries=queries)


def _single_epsilon(mechanism: Dirichlet, target: float) -> float:
    """Finds the smallest epsilon with delta(epsilon) <= target, rounded up."""

    def is_private(value: float) -> bool:
        return bool(_curve(mechanism, np.array([value]))[0] <= target)

    if is_private(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not is_private(high):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if is_private(middle) else (middle, high)
    return high


def _curve(mechanism: Dirichlet, epsilons: Float[np.ndarray, " e"]) -> Float[np.ndarray, " e"]:
    """Computes delta at each epsilon: the largest over the worst pairs."""
    pairs = _worst_pairs(mechanism)
    return _pair_curve(epsilons, mechanism.concentration, *pairs).max(axis=0)


def _worst_pairs(mechanism: Dirichlet) -> tuple[Float[np.ndarray, " d"], ...]:
    """Returns p_i, p_j, p'_i, p'_j of the neighbours among which the supremum is.

    delta is non-decreasing in |p_i - p'_i|, so the difference is b/2. For three classes or more it
    also decreases in the sum p_i + p_j, whose smallest value is 2 eta + b/2.
    """
    half, floor = mechanism.distance / 2, mechanism.floor
    if mechanism.num_classes > 2:
        large, small = np.array([floor + half]), np.array([floor])
        return large, small, small, large
    # Both ends are the same pair of vectors, in either order, and there the supremum usually is.
    p_i = np.linspace(floor + half, 1 - floor, _NUM_DIRECTIONS)
    neighbour = np.maximum(p_i - half, floor)
    return p_i, np.maximum(1 - p_i, floor), neighbour, 1 - neighbour


def _pair_curve(
    epsilons: Float[np.ndarray, " e"],
    concentration: float,
    p_i: Float[np.ndarray, " d"],
    p_j: Float[np.ndarray, " d"],
    neighbour_i: Float[np.ndarray, " d"],
    neighbour_j: Float[np.ndarray, " d"],
) -> Float[np.ndarray, "d e"]:
    """Computes delta of each pair at each epsilon, plus a bound on the rounding error."""
    # The loss increases with the logit of y if p_i > p'_i; otherwise i and j exchange their names.
    is_larger = (p_i >= neighbour_i)[:, None]
    names = [concentration * x[:, None] for x in (p_i, p_j, neighbour_i, neighbour_j)]
    a = np.where(is_larger, names[0], names[1])
    b = np.where(is_larger, names[1], names[0])
    a2 = np.where(is_larger, names[2], names[3])
    b2 = np.where(is_larger, names[3], names[2])
    slope = a - a2
    with np.errstate(divide="ignore", invalid="ignore"):
        # L(t) = ln B(a', b') - ln B(a, b) + (a - a') t exceeds epsilon above this logit t.
        t = (epsilons[None] - (special.betaln(a2, b2) - special.betaln(a, b))) / slope
    t = np.where(slope > 0, t, np.inf)
    a, b, a2, b2, t = np.broadcast_arrays(a, b, a2, b2, t)
    log_p = _log_upper_tail(a, b, t)
    log_q = _log_upper_tail(a2, b2, t)
    # On L > epsilon, e^epsilon dP' <= dP, so the exponent is at most 0 but for rounding.
    with np.errstate(invalid="ignore", over="ignore"):
        exponent = np.minimum(epsilons[None] + log_q - log_p, 0.0)
        size = 1 + np.abs(log_p) + np.abs(log_q) + np.abs(special.betaln(a, b)) + (a + b) / 100
        value = np.exp(log_p) * (-np.expm1(exponent) + 2.0**-46 * size)
    value = np.where(np.isfinite(log_p), value, 0.0)
    identical = slope <= 0
    return np.where(identical, 0.0, np.clip(value, _SMALLEST, 1.0))


def _log_upper_tail(
    a: Float[np.ndarray, "*s"], b: Float[np.ndarray, "*s"], t: Float[np.ndarray, "*s"]
) -> Float[np.ndarray, "*s"]:
    """Computes log P[logit(y) > t] for y ~ Beta(a, b)."""
    result = np.zeros(t.shape)
    far, low = t > _FAR, t < -_FAR
    result[far] = _log_far_tail(b[far], a[far], t[far])
    with np.errstate(divide="ignore"):
        result[low] = np.log(-np.expm1(_log_far_tail(a[low], b[low], -t[low])))
        middle = ~(far | low)
        x = special.expit(-t[middle])
        tail = special.betainc(b[middle], a[middle], x)
        logs = np.log(tail)
        rare = tail < _SMALLEST
        if rare.any():
            logs[rare] = _log_series(b[middle][rare], a[middle][rare], t[middle][rare])
    result[middle] = logs
    return np.minimum(result, 0.0)


def _log_far_tail(
    shape: Float[np.ndarray, " s"], other: Float[np.ndarray, " s"], t: Float[np.ndarray, " s"]
) -> Float[np.ndarray, " s"]:
    """Computes log P[x < expit(-t)], x ~ Beta(shape, other), at large t, where expit(-t) < 1e-17.

    x^shape / (shape B) (1 + shape (1 - other) / (shape + 1) x), without rounding x to 0.
    """
    x = special.expit(-t)
    log_x = -np.logaddexp(0.0, t)
    # The correction is a factor (1 - x)^other to this order, which stays positive at large `other`.
    correction = np.log1p(np.maximum(shape * (1 - other) / (shape + 1) * x, -0.5))
    return shape * log_x - np.log(shape) - special.betaln(shape, other) + correction


def _log_series(
    shape: Float[np.ndarray, " s"], other: Float[np.ndarray, " s"], t: Float[np.ndarray, " s"]
) -> Float[np.ndarray, " s"]:
    """Computes log P[x < expit(-t)] from below, where it underflows: a truncated positive series.

    x^a (1 - x)^b / (a B(a, b)) (1 + sum over m of prod over j < m of (a + b + j) / (a + 1 + j) x).
    """
    x = special.expit(-t)
    log_x, log_rest = -np.logaddexp(0.0, t), -np.logaddexp(0.0, -t)
    term, total = np.ones_like(x), np.ones_like(x)
    for j in range(_SERIES_TERMS):
        term = term * (shape + other + j) / (shape + 1 + j) * x
        total += term
        if (term <= 1e-17 * total).all():
            break
    first = shape * log_x + other * log_rest - np.log(shape) - special.betaln(shape, other)
    return first + np.log(total)


@functools.lru_cache(maxsize=64)
def _composed(mechanism: Dirichlet, queries: int) -> "PLDPmf":
    """Composes the curve of one query with itself, from above.

    The supremum over neighbours is a curve of its own, whose pair of distributions dominates every
    neighbour in every query; such pairs compose, also adaptively. The curve is the same in both
    directions, as the neighbouring relation is symmetric.

    References:
      Zhu, Dong and Wang, Optimal Accounting of Differential Privacy via Characteristic Function,
      2022, Theorem 10 and Proposition 8; Doroshenko et al., Connect the Dots, 2022, Algorithm 1.
    """
    from dp_accounting.pld import pld_pmf

    reach = _single_epsilon(mechanism, _TAIL / queries)
    interval = reach / (_NUM_LOSSES // 2)
    grid = np.arange(-_NUM_LOSSES // 2, _NUM_LOSSES // 2 + 1)
    positive = _curve(mechanism, grid[grid >= 0] * interval)
    positive = np.maximum.accumulate(positive[::-1])[::-1]
    losses = grid[grid < 0] * interval
    # delta(-e) = 1 - e^-e (1 - delta'(e)), where delta' is the curve of the other direction.
    negative = -np.expm1(losses) + np.exp(losses) * positive[:0:-1]
    deltas = np.minimum.accumulate(np.append(negative, positive))
    with np.errstate(over="ignore"):  # e^interval, at a concentration that leaves no privacy
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, grid, deltas)
    return pmf.self_compose(queries, _TAIL)
