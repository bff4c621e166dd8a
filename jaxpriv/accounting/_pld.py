"""Privacy loss distributions of Gaussian steps on an adaptive grid, composed by FFT.

    steps --dominating pairs--> losses at quadrature nodes --bounds on tails--> interval
    pairs, interval --cells--> probabilities on a grid --FFT, power, window--> composition
    composition --sums over the grid--> delta(epsilon), epsilon(delta)

The distributions are our own, because those of dp-accounting gain mass at large noise: they are
second differences of delta, whose rounding error of 1e-16 / interval is clipped to positive mass.
At noise multiplier 1000, sampling probability 1e-3 and 1e5 steps dp-accounting reports delta(0)
above 1 on a grid that is fine enough. Here the two probabilities of each cell are stored instead,
whose rounding errors are relative. Both results are upper bounds, and agree where both are
accurate.

In the shapes `k` counts grid points.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jaxpriv._types import Relation
from jaxpriv.accounting import _losses

_MIN_INTERVAL = 1e-9
"""Smallest grid interval, for an epsilon near 1e-5: below it the rounding of cells would show."""
_DEFAULT_INTERVAL = 1e-4
_GRID_TARGET = 2**20
"""Number of grid points beyond which the interval grows instead, up to that of `_coarsest`."""
_GRID_LIMIT = 2**22
"""Larger grids take seconds: they are coarsened if that adds less than _ACCEPTED_EXCESS."""
_ACCEPTED_EXCESS = 1e-3
"""Nats by which a coarser grid may enlarge epsilon."""
_BYTES_PER_POINT = 64
_MAX_BYTES = 4 * 2**30
_TAIL = 1e-16
"""Probability of the composed loss that a grid may leave out, on either side."""
_ROUNDING = 2.0**-52
"""Probability that rounding in float64 may misplace in each step."""


class Pmf(NamedTuple):
    """The loss is (lower + i) * interval with probability probs[i], infinite otherwise."""

    lower: int
    probs: Float64[np.ndarray, " k"]
    infinity: float
    interval: float


class _StepLoss(NamedTuple):
    """The loss of a step in one direction, and the number of such steps in an event."""

    nodes: _losses.Nodes
    pmf: Pmf
    num_steps: int


_Direction = Sequence[tuple[_losses.Nodes, int]]
"""The steps of one event in one direction, and the number of each."""

Losses = list[list[_StepLoss]]
"""For each direction, the losses of the steps of one event, on one grid."""


def discretise(
    steps: Mapping[_losses.Step, int], relation: Relation, *, max_compositions: int, epsilon: float
) -> Losses:
    """Discretises an event on a grid for up to `max_compositions` compositions.

    Args:
      steps: number of each step of the event.
      relation: relation of the neighbours.
      max_compositions: largest number of compositions.
      epsilon: value of interest; the grid may increase it by a relative 1e-3. 0 gives a grid that
        is fine enough for every epsilon.

    Returns:
      The losses of each step, in each direction.

    Raises:
      ValueError: if composing would need more than 4 GiB.
    """
    directions = _directions(steps, relation)
    interval = _interval(directions, max_compositions, epsilon)
    pmfs = zip(*(_discretise_step(step, relation, interval) for step in steps), strict=True)
    return [
        [
            _StepLoss(nodes, pmf, count)
            for (nodes, count), pmf in zip(direction, discrete, strict=True)
        ]
        for direction, discrete in zip(directions, pmfs, strict=True)
    ]


def discretise_for_delta(
    steps: Mapping[_losses.Step, int], relation: Relation, *, max_compositions: int, delta: float
) -> tuple[Losses, list[Pmf]]:
    """Discretises an event finely enough for the epsilon of a delta, by refining the grid.

    Args:
      steps: number of each step of the event.
      relation: relation of the neighbours.
      max_compositions: number of compositions.
      delta: delta at which epsilon will be computed.

    Returns:
      The losses of each step, and their composition.

    Raises:
      ValueError: if composing would need more than 4 GiB.
    """
    # P[loss > epsilon] <= delta implies delta(epsilon) <= delta, so this bounds epsilon from above.
    upper = max(
        _tail_bound(direction, max_compositions, delta, 0.0)
        for direction in _directions(steps, relation)
    )
    losses = discretise(steps, relation, max_compositions=max_compositions, epsilon=max(upper, 0.0))
    # A coarse grid gives an epsilon that is too large, and the next grid is as fine as that asks.
    while True:
        composed = compose(losses, max_compositions)
        estimate = epsilon(composed, delta)
        if estimate in (0, math.inf):
            return losses, composed
        finer = discretise(steps, relation, max_compositions=max_compositions, epsilon=estimate)
        if finer[0][0].pmf.interval > 0.7 * losses[0][0].pmf.interval:
            return losses, composed
        losses = finer


def compose(losses: Losses, times: int) -> list[Pmf]:
    """Composes an event `times` times, in each direction."""
    return [_compose(step_losses, times) for step_losses in losses]


def delta(pmfs: Sequence[Pmf], epsilon: float) -> float:
    """Computes the largest delta over the directions, at most 1."""
    return min(1.0, max(_delta(pmf, float(epsilon)) for pmf in pmfs))


def epsilon(pmfs: Sequence[Pmf], delta: float) -> float:
    """Computes the largest epsilon over the directions; inf for a delta below the resolution."""
    return max(_epsilon(pmf, float(delta)) for pmf in pmfs)


def resolution(pmfs: Sequence[Pmf]) -> float:
    """Returns the largest delta without a finite epsilon."""
    return max(pmf.infinity for pmf in pmfs)


def _directions(steps: Mapping[_losses.Step, int], relation: Relation) -> list[_Direction]:
    directions = zip(*(_losses.quadrature(step, relation) for step in steps), strict=True)
    return [list(zip(nodes, steps.values(), strict=True)) for nodes in directions]


def _discretise_step(step: _losses.Step, relation: Relation, interval: float) -> list[Pmf]:
    mixed = [
        (share, _discretise_pair(pair, interval))
        for share, pair in _losses.dominating_pairs(step, relation)
    ]
    directions = 1 if relation == "replace_one" else 2
    return [_mix([(share, pmfs[i]) for share, pmfs in mixed]) for i in range(directions)]


def _mix(components: list[tuple[float, Pmf]]) -> Pmf:
    """Returns the mixture of distributions on one grid, given with their shares."""
    lower = min(pmf.lower for _, pmf in components)
    probs = np.zeros(max(pmf.lower + len(pmf.probs) for _, pmf in components) - lower)
    for share, pmf in components:
        start = pmf.lower - lower
        probs[start : start + len(pmf.probs)] += share * pmf.probs
    infinity = sum(share * pmf.infinity for share, pmf in components)
    return Pmf(lower, probs, infinity, components[0][1].interval)


def _discretise_pair(pair: _losses.Pair, interval: float) -> tuple[Pmf, Pmf]:
    """Discretises the losses of both directions, by connecting the dots.

    The mass of each cell of losses moves to the two ends of the cell such that its mass under both
    distributions is preserved. The result dominates, and is the tightest on the grid that does.

    References:
      Doroshenko et al., Connect the Dots: Tighter Discrete Approximations of Privacy Loss
      Distributions, 2022, Algorithm 1.
    """
    low, high = _losses.loss_at(pair, np.array(_losses.support(pair)))
    first = math.floor(low / interval)
    last = max(math.ceil(high / interval), first + 1)
    grid = np.arange(first, last + 1)
    x = np.concatenate([[-np.inf], _losses.loss_inverse(pair, grid * interval), [np.inf]])
    p, q = _losses.cell_probabilities(pair, x)
    forward = _split(p, q, grid, interval)
    return forward, _split(q[::-1], p[::-1], -grid[::-1], interval)


def _split(
    upper: Float64[np.ndarray, " m"],
    lower: Float64[np.ndarray, " m"],
    grid: Int64[np.ndarray, " k"],
    interval: float,
) -> Pmf:
    """Places the masses of the cells around the points of a grid on those points."""
    # The mass to_right on the right end and the rest on the left end have the mass of the cell
    # under both distributions; a loss below the grid moves up, one above it becomes infinite.
    inner = upper[1:-1]
    with np.errstate(divide="ignore"):
        matched = np.exp(np.log(lower[1:-1]) + grid[:-1] * interval)
    to_right = np.clip((inner - matched) / -math.expm1(-interval), 0, inner)
    probs = np.append(inner - to_right, 0.0)
    probs[1:] += to_right
    probs[0] += upper[0]
    return Pmf(int(grid[0]), probs, float(upper[-1]), interval)


def _interval(directions: list[_Direction], max_compositions: int, epsilon: float) -> float:
    """Chooses the grid interval: fine enough for the losses, coarse enough for the memory."""
    coarsest = max(_coarsest(directions, max_compositions, epsilon), _MIN_INTERVAL)
    width = max(_width(direction, max_compositions, coarsest) for direction in directions)
    if (
        width / coarsest > _GRID_LIMIT
        and _rounding_std(directions, max_compositions, width / _GRID_LIMIT) < _ACCEPTED_EXCESS
    ):
        coarsest = width / _GRID_LIMIT
    interval = min(coarsest, max(_DEFAULT_INTERVAL, width / _GRID_TARGET))
    need = width / interval * _BYTES_PER_POINT
    if need > _MAX_BYTES:
        raise ValueError(
            "Expected an event that composes within 4 GiB, got one that needs "
            f"{need / 2**30:.0f} GiB: take fewer steps, or more noise."
        )
    return interval


def _coarsest(directions: list[_Direction], max_compositions: int, epsilon: float) -> float:
    """Returns the interval at which epsilon is too large by a relative 1e-4, at most 1e-3.

    Rounding adds noise of standard deviation a to the loss, and a^2/2 to its mean. Where the
    loss is nearly Gaussian, epsilon is proportional to its deviation. Where epsilon depends on
    rare large losses (small sampling_prob), it is far larger, and gives the better bound on a.
    """
    # The wider direction has the larger epsilon, by more than rounding adds to the other.
    spread = max(_spread(direction, max_compositions) for direction in directions)
    allowed = max(spread / 120, min(epsilon / 500, math.sqrt(epsilon) / 30))
    low, high = math.log(1e-12), math.log(1e6)
    for _ in range(50):
        middle = (low + high) / 2
        if _rounding_std(directions, max_compositions, math.exp(middle)) < allowed:
            low = middle
        else:
            high = middle
    return math.exp(low)


def _rounding_std(directions: list[_Direction], max_compositions: int, interval: float) -> float:
    """Bounds the standard deviation that rounding adds to the composed loss.

    A loss at distance x from the end of its cell of width h gains the variance x (h - x).
    """

    def variance(nodes: _losses.Nodes) -> float:
        # The average over a cell is h^2/6; near loss 0, a grid point, x (h - x) <= h |loss|.
        to_zero = interval * np.abs(nodes.losses)
        return float(nodes.weights @ np.minimum(to_zero, interval**2 / 6))

    return max(
        math.sqrt(max_compositions * sum(count * variance(nodes) for nodes, count in direction))
        for direction in directions
    )


def _spread(direction: _Direction, times: int) -> float:
    """Computes the standard deviation of the composed loss."""
    variance = 0.0
    for nodes, count in direction:
        mean = nodes.weights @ nodes.losses
        variance += count * float(nodes.weights @ (nodes.losses - mean) ** 2)
    return math.sqrt(times * variance)


def _width(direction: _Direction, times: int, interval: float) -> float:
    """Computes the length of the grid that holds both a single loss and the composed one."""
    low, high = _window(direction, times, interval)
    return max(high - low, *(float(np.ptp(nodes.losses)) for nodes, _ in direction))


def _window(direction: _Direction, times: int, interval: float) -> tuple[float, float]:
    """Returns the range that the composed loss leaves with probability _TAIL on either side."""
    mirror = [(_losses.Nodes(-nodes.losses, nodes.weights), count) for nodes, count in direction]
    above = _tail_bound(direction, times, _TAIL, interval)
    return -_tail_bound(mirror, times, _TAIL, interval), above


def _tail_bound(direction: _Direction, times: int, tail: float, interval: float) -> float:
    """Returns a value that the composed loss exceeds with probability at most `tail` (Chernoff)."""
    num_steps = sum(count for _, count in direction)
    largest = sum(count * float(nodes.losses.max()) for nodes, count in direction)
    # Rounding a loss to the ends of its cell moves its mean by at most h^2/8 (Hoeffding).
    slack = num_steps * interval**2 / 8
    bounds = [
        times * (log_mgf / t + slack * (1 + t)) - math.log(tail) / t
        for t, log_mgf in _log_mgf(direction, times)
    ]
    return min([*bounds, times * (largest + interval * num_steps)])


def _log_mgf(direction: _Direction, times: int) -> list[tuple[float, float]]:
    """Computes ln E[e^(t loss)] of one event, at orders t for its composition `times` times.

    Orders at which losses are so large that it overflows are left out.
    """
    spread = max(_spread(direction, times), 1e-300)
    reach = max(float(np.ptp(nodes.losses)) for nodes, _ in direction)
    orders = np.geomspace(min(0.05 / spread, 1 / reach), 50 / spread, 48).tolist()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        logs = [(nodes.losses, np.log(nodes.weights), count) for nodes, count in direction]
        values = [
            sum(count * _log_sum_exp(t * losses + weights) for losses, weights, count in logs)
            for t in orders
        ]
    return [(t, value) for t, value in zip(orders, values, strict=True) if math.isfinite(value)]


def _log_sum_exp(values: Float64[np.ndarray, " k"]) -> float:
    largest = float(values.max())
    return largest + math.log(float(np.exp(values - largest).sum()))


def _compose(step_losses: list[_StepLoss], times: int) -> Pmf:
    """Convolves by FFT on the window that contains all but _TAIL of the probability on a side."""
    from scipy import fft

    interval = step_losses[0].pmf.interval
    direction = [(loss.nodes, loss.num_steps) for loss in step_losses]
    low, high = _window(direction, times, interval)
    lower = sum(times * loss.num_steps * loss.pmf.lower for loss in step_losses)
    upper = lower + sum(times * loss.num_steps * (len(loss.pmf.probs) - 1) for loss in step_losses)
    start = max(lower, math.floor(low / interval))
    stop = min(upper, math.ceil(high / interval)) + 1
    length = max(stop - start, *(len(loss.pmf.probs) for loss in step_losses))
    size = fft.next_fast_len(length, real=True) or length
    spectrum = np.ones(1, np.complex128)
    for loss in step_losses:
        spectrum = spectrum * np.fft.rfft(loss.pmf.probs, size) ** (times * loss.num_steps)
    # The FFT wraps around: rolling puts the window first, and what lies outside of it, at most
    # _TAIL on either side, lands in it. That mass is charged to an infinite loss below.
    probs = np.roll(np.fft.irfft(spectrum, size), (lower - start) % size)[: stop - start]
    steps = times * sum(loss.num_steps for loss in step_losses)
    log_finite = times * sum(
        loss.num_steps * math.log1p(-loss.pmf.infinity) for loss in step_losses
    )
    infinity = -math.expm1(log_finite) + 2 * _TAIL + steps * _ROUNDING
    return Pmf(start, np.maximum(probs, 0), min(infinity, 1.0), interval)


def _delta(pmf: Pmf, epsilon: float) -> float:
    """Computes delta(epsilon) = E[(1 - e^(epsilon - loss))_+]."""
    first = max(0, math.floor(epsilon / pmf.interval) + 1 - pmf.lower)
    above = pmf.probs[first:]
    losses = (pmf.lower + first + np.arange(len(above))) * pmf.interval
    return pmf.infinity - float(above @ np.expm1(np.minimum(epsilon - losses, 0)))


def _epsilon(pmf: Pmf, delta: float) -> float:
    """Solves delta(epsilon) = upper - e^(epsilon - loss_i) lower, in the cell below loss_i.

    At grid point i, upper is P[loss >= loss_i], and lower sums p_j e^(loss_i - loss_j) over j >= i.
    The recursion lower_i = p_i + e^(-interval) lower_(i+1) is a linear filter.
    """
    from scipy import signal

    if pmf.infinity >= delta:
        return math.inf
    backward = pmf.probs[::-1]
    upper = pmf.infinity + np.cumsum(backward)[::-1]
    lower = signal.lfilter([1.0], [1.0, -math.exp(-pmf.interval)], backward)[::-1]
    above = np.flatnonzero(upper - lower > delta)
    i = int(above[-1]) + 1 if len(above) else 0
    loss = (pmf.lower + i) * pmf.interval
    return max(0.0, loss + math.log(float((upper[i] - delta) / lower[i])))
