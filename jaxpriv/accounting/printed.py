"""Bounds that are false as printed, to compare publications with; none is a guarantee."""

import math

from jaxpriv import _check

__all__ = [
    "rnnmia2022_printed_epsilon_no_guarantee",
    "zhang2020_printed_epsilon_no_guarantee",
]


def rnnmia2022_printed_epsilon_no_guarantee(
    *, concentration: float, floor: float, distance: float, num_classes: int, tail: float
) -> float:
    """Computes the epsilon of Lemma 1 on the Dirichlet mechanism as printed, which is NO guarantee.

    2 k (1 - eta) - 3 + (k b / 2) |log(1 - (n - 1) tau) - log tau|. It is negative for a small k,
    and the publication states neither b, eta nor tau for its experiments. `accounting.dirichlet`
    is exact.

    Args:
      concentration: k of Dir(k p).
      floor: eta, the smallest probability.
      distance: b, the largest L1 distance of neighbours.
      num_classes: number of classes, n.
      tail: tau, the smallest probability of an answer with which the lemma is concerned.

    Returns:
      The printed epsilon, which may be negative.

    Raises:
      ValueError: if an argument is out of range.

    References:
      On the Vulnerability of Recurrent Neural Networks to Membership Inference Attacks, 2022,
      equation 7.

    Example:
      >>> settings = dict(concentration=0.1, floor=0.01, distance=0.1, num_classes=7)
      >>> round(rnnmia2022_printed_epsilon_no_guarantee(**settings, tail=0.01), 3)
      -2.779
    """
    _check.positive(concentration=concentration, floor=floor, distance=distance, tail=tail)
    _check.positive_int(num_classes=num_classes)
    rest = 1 - (num_classes - 1) * tail
    if rest <= 0:
        raise ValueError(f"Expected tail below 1 / (num_classes - 1), got tail={tail}.")
    spread = abs(math.log(rest) - math.log(tail))
    return 2 * concentration * (1 - floor) - 3 + concentration * distance / 2 * spread


def zhang2020_printed_epsilon_no_guarantee(
    *, noise_multiplier: float, sampling_prob: float, steps: int, delta: float
) -> float:
    """Computes the epsilon of Theorem 1 of Zhang et al. as printed, which is NOT a guarantee.

    sigma^2 = 16 q^2 T ln(1/delta) / epsilon^2, solved for epsilon. The theorem is false, within
    its printed range too: at q = 0.005, T = 100, delta = 1e-5 and sigma = 0.678614 it gives 1,
    where the true epsilon under `replace_one` is 1.6958. Its proof needs
    e^(4/sigma^2) - 1 <= 4/sigma^2, where the opposite holds. `accounting.epsilon` is right.

    Args:
      noise_multiplier: standard deviation of the noise / clip norm of a class.
      sampling_prob: probability with which each class enters a batch.
      steps: number of noisy sums.
      delta: delta, in (0, 1).

    Returns:
      The printed epsilon.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, Theorem 1.

    Example:
      >>> import jaxpriv as jp
      >>> settings = dict(noise_multiplier=0.678614, sampling_prob=0.005, steps=100)
      >>> printed = jp.accounting.zhang2020_printed_epsilon_no_guarantee(**settings, delta=1e-5)
      >>> event = jp.accounting.poisson_event(**settings)
      >>> true = jp.accounting.epsilon(event, delta=1e-5, relation="replace_one")
      >>> round(printed, 3), round(true, 3)
      (1.0, 1.696)
    """
    _check.positive(noise_multiplier=noise_multiplier)
    _check.probability(sampling_prob=sampling_prob)
    _check.positive_int(steps=steps)
    _check.open_unit(delta=delta)
    return 4 * sampling_prob * math.sqrt(steps * math.log(1 / delta)) / noise_multiplier
