"""The privacy loss of one Gaussian step: its dominating pairs of distributions and their losses.

    step, relation --dominating_pairs--> pairs (P, Q) --loss_at--> L(x) = ln dP/dQ (x)

In the shapes `k` counts points and `m` the cells between them.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from jaxpriv._types import Relation

_REACH = 10.5
"""Noise beyond this many standard deviations is neglected: its probability is 5e-26."""


class Step(NamedTuple):
    """One noisy sum over a Poisson batch.

    overflow: (number of records, capacity) of a padded batch; None where batches are not cut.
    """

    noise_multiplier: float
    sampling_prob: float
    overflow: tuple[int, int] | None = None


class Pair(NamedTuple):
    """P = (1-q) N(0, 1) + q N(shift, 1), with q = prob, against Q = N(0, 1).

    mirrored: Q is the mirror image of P instead, as for a record that is replaced.
    """

    shift: float
    prob: float
    mirrored: bool


class Nodes(NamedTuple):
    """The losses of one step at quadrature nodes: enough for moments and tail bounds."""

    losses: Float64[np.ndarray, " k"]
    weights: Float64[np.ndarray, " k"]


def dominating_pairs(step: Step, relation: Relation) -> list[tuple[float, Pair]]:
    """Returns the pairs of distributions that dominate a step, and their shares.

    A record that enters an overflowing batch also displaces another one: the sensitivity is 2, as
    if it were replaced. dp-accounting uses the same mixture.

    References:
      The truncated batch: arXiv:2508.15089.
    """
    z, q, overflow = step
    plain = Pair(1 / z, q, relation == "replace_one")
    if overflow is None:
        return [(1.0, plain)]
    n, capacity = overflow
    # P[Binomial(n - 1, q) >= capacity]: the other records alone fill the batch.
    share = float(special.bdtrc(capacity - 1, n - 1, q))
    if share == 0:
        return [(1.0, plain)]
    # Probability that the record is in the batch, given that the batch is full without it.
    stays = float(special.bdtrc(capacity, n, q)) * capacity / (share * n)
    return [(share, Pair(2 / z, stays, True)), (1 - share, plain)]


def quadrature(step: Step, relation: Relation) -> list[Nodes]:
    """Returns the losses of a step in each direction; one if the pair is symmetric."""
    forward, backward = [], []
    for share, pair in dominating_pairs(step, relation):
        low, high = support(pair)
        x = np.linspace(low, high, 4097)
        losses = loss_at(pair, x)
        density, other_density = _densities(pair, x)
        forward.append((losses, share * density / density.sum()))
        backward.append((-losses, share * other_density / other_density.sum()))
    directions = [forward] if relation == "replace_one" else [forward, backward]
    return [Nodes(*(np.concatenate(a) for a in zip(*d, strict=True))) for d in directions]


def support(pair: Pair) -> tuple[float, float]:
    """Returns the interval outside of which both distributions have probability below 1e-25."""
    return (-_REACH - pair.shift if pair.mirrored else -_REACH), _REACH + pair.shift


def loss_at(pair: Pair, x: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    """Computes ln dP/dQ, the logarithm of the likelihood ratio, at x."""
    d, q, mirrored = pair
    log_absent = math.log1p(-q) if q < 1 else -math.inf

    def one_sided(x: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
        return np.logaddexp(log_absent, math.log(q) + d * x - d * d / 2)

    return one_sided(x) - one_sided(-x) if mirrored else one_sided(x)


def loss_inverse(pair: Pair, loss: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    """Computes the x at which the loss has a given value; -inf for a value below all losses."""
    d, q, mirrored = pair
    with np.errstate(divide="ignore"):
        if mirrored:
            # sinh(d x - loss/2) = (1-q)/q e^(d^2/2) sinh(loss/2)
            # in logarithms, as the right side overflows at small noise; arcsinh(e^u) -> u + ln 2.
            half = np.abs(loss) / 2
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            u = log_sinh + d * d / 2 + np.log1p(-q) - math.log(q)
            root = np.where(u < 300, np.arcsinh(np.exp(np.minimum(u, 300))), u + math.log(2))
            return (loss / 2 + np.sign(loss) * root) / d
        # ln((e^loss - (1-q)) / q): by expm1 near loss 0, where e^loss - 1 cancels, and with
        # e^loss factored out elsewhere, where it overflows.
        small = np.log1p(np.maximum(np.expm1(np.clip(loss, -1, 1)) / q, -1))
        large = (
            loss + np.log1p(np.maximum(-(1 - q) * np.exp(np.minimum(-loss, 700)), -1)) - math.log(q)
        )
        return np.where(np.abs(loss) < 1, small, large) / d + d / 2


def _densities(
    pair: Pair, x: Float64[np.ndarray, " k"]
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    d, q, mirrored = pair
    density = (1 - q) * np.exp(-(x**2) / 2) + q * np.exp(-((x - d) ** 2) / 2)
    return density, density[::-1] if mirrored else np.exp(-(x**2) / 2)


def cell_probabilities(
    pair: Pair, x: Float64[np.ndarray, " k"]
) -> tuple[Float64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Computes the probabilities of the cells between the x, under both distributions."""
    d, q, mirrored = pair

    def normal(x: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " m"]:
        # Differences of the smaller tail keep the relative accuracy of a cell.
        low, high = x[:-1], x[1:]
        above = special.ndtr(-low) - special.ndtr(-high)
        return np.where(low > 0, above, special.ndtr(high) - special.ndtr(low))

    probs = (1 - q) * normal(x) + q * normal(x - d)
    other_probs = (1 - q) * normal(x) + q * normal(x + d) if mirrored else normal(x)
    return probs, other_probs
