"""Random differential privacy: guarantees for neighbouring data sets drawn from a source.

The sensitivity of a training is estimated as the largest distance S of the parameters over n pairs
of neighbouring data sets. A Gaussian mechanism with that sensitivity is then (epsilon, delta)-DP
except for pairs of data sets that are rare under the source. gamma is the probability of this
FAILURE; the publications call it confidence.

What is assumed: the pairs are independent of the private data and of each other, and drawn from the
source of the private data; neighbours replace one record (`replace_one`); the initial parameters,
the order of the batches and all random numbers of the training are fixed and public.
"""

import math
from typing import NamedTuple

from scipy import special

from jaxpriv import _check
from jaxpriv.accounting import gaussian

__all__ = [
    "FailureProbabilities",
    "RandomPrivacy",
    "failure_probabilities",
    "gaussian_module",
    "pairs_for",
]

_RELATIVE_ROUNDING = 1e-12
"""Relative rounding error of gamma and of epsilon, which is added."""


class FailureProbabilities(NamedTuple):
    """Three bounds on the probability that a further pair exceeds the largest of n distances.

    gamma: of the concentration bound of the sensitivity sampler, which holds with probability 1
      over the sampled pairs (their randomness is part of gamma).
    exchangeable: 1 / (n + 1), the probability that the last of n + 1 exchangeable pairs has the
      largest distance; on average over the sampled pairs.
    with_confidence: 1 - (1 - confidence)^(1/n), a bound that holds with the given confidence over
      the sampled pairs.
    """

    gamma: float
    exchangeable: float
    with_confidence: float


class RandomPrivacy(NamedTuple):
    """Statement of (epsilon, delta, gamma)-random differential privacy, for `replace_one`.

    epsilon: nats.
    delta: delta of the guarantee.
    gamma: probability that a pair of neighbouring data sets from the source violates it.
    """

    epsilon: float
    delta: float
    gamma: float


def failure_probabilities(num_pairs: int, *, confidence: float) -> FailureProbabilities:
    """Computes with which probability the largest of n sampled distances is exceeded.

    gamma = rho + sqrt(ln(1 / rho) / (2 n)), rho = exp(W_-1(-1 / (4 n)) / 2), capped at 1.

    Args:
      num_pairs: number n of independent pairs.
      confidence: confidence of `with_confidence`, in (0, 1).

    Returns:
      The three probabilities, rounded up; smaller is better.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Rubinstein and Alda, Pain-Free Random Differential Privacy with Sensitivity Sampling, 2017,
      Corollary 20; Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in
      Machine Learning Models, 2023, Theorem 5.3.

    Example:
      >>> [round(p, 4) for p in failure_probabilities(500, confidence=0.95)]
      [0.0774, 0.002, 0.006]
    """
    _check.positive_int(num_pairs=num_pairs)
    _check.open_unit(confidence=confidence)
    log_rho = float(special.lambertw(-1 / (4 * num_pairs), k=-1).real) / 2
    gamma = math.exp(log_rho) + math.sqrt(-log_rho / (2 * num_pairs))
    values = (gamma, 1 / (num_pairs + 1), -math.expm1(math.log1p(-confidence) / num_pairs))
    return FailureProbabilities(*(min(1.0, value * (1 + _RELATIVE_ROUNDING)) for value in values))


def pairs_for(gamma: float) -> int:
    """Computes the smallest number of pairs whose gamma is at most a target.

    Args:
      gamma: failure probability, in (0, 1).

    Returns:
      The number of pairs.

    Raises:
      ValueError: if gamma is out of range, or would need more than 10^12 pairs.

    Example:
      >>> [pairs_for(gamma) for gamma in (0.1, 0.05)]
      [285, 1305]
    """
    _check.open_unit(gamma=gamma)
    low, high = 0, 1

    def is_enough(num_pairs: int) -> bool:
        return failure_probabilities(num_pairs, confidence=0.5).gamma <= gamma

    while not is_enough(high):
        low, high = high, 2 * high
        if high > 10**12:
            raise ValueError(f"Expected a gamma that 10^12 pairs reach, got gamma={gamma}.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def gaussian_module(
    *, sensitivity: float, noise_std: float, delta: float, num_pairs: int
) -> RandomPrivacy:
    """States the guarantee of Gaussian noise on parameters of sampled sensitivity.

    For neighbours from the source that replace one record, (epsilon, delta)-DP fails with
    probability at most gamma. epsilon is that of the exact Gaussian curve at S / sigma. It covers
    any number of queries of the noised parameters, which are released once. See the module for what
    is assumed; it is not a worst-case guarantee.

    Args:
      sensitivity: largest distance S over the sampled pairs; >= 0.
      noise_std: standard deviation sigma of the noise on every parameter (not its variance).
      delta: delta of the guarantee, in (0, 1).
      num_pairs: number of independent pairs.

    Returns:
      epsilon, delta and gamma, rounded up.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning
      Models, 2023, Algorithm 1, Theorems 5.1 and 5.3.

    Example:
      >>> promise = gaussian_module(sensitivity=0.013209, noise_std=0.01, delta=1e-4, num_pairs=500)
      >>> [round(value, 4) for value in promise]
      [5.3126, 0.0001, 0.0774]
    """
    _check.non_negative(sensitivity=sensitivity)
    _check.positive(noise_std=noise_std)
    _check.open_unit(delta=delta)
    gamma = failure_probabilities(num_pairs, confidence=0.5).gamma
    if sensitivity == 0:
        return RandomPrivacy(0.0, float(delta), gamma)
    mu = float(sensitivity) / float(noise_std) * (1 + _RELATIVE_ROUNDING)
    epsilon = gaussian.epsilon(delta, mu=mu) * (1 + _RELATIVE_ROUNDING)
    return RandomPrivacy(epsilon, float(delta), gamma)
