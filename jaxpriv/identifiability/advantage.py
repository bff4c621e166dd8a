"""Membership advantage, TPR - FPR at equal priors: the gain of an adversary over a coin toss.

Each bound is named after its assumption; `accounting.advantage_bound` is exact for a given event.
Gaussian forms take mu = sensitivity / standard deviation of the noise.
"""

import math

from scipy import special

from jaxpriv import _check
from jaxpriv.accounting import gaussian

__all__ = [
    "classical_rho_alpha",
    "epsilon_of_classical_rho_alpha",
    "general_rho_alpha",
    "mu_for_advantage",
    "proposition_2_rho_alpha",
    "rdp_rho_alpha",
    "yeom_rho_alpha",
]


def classical_rho_alpha(epsilon: float, *, delta: float) -> float:
    """Computes the advantage at the classical Gaussian noise, mu = epsilon/sqrt(2 ln(1.25/delta)).

    It is a bound only if the noise is `gaussian.classical_noise_std`. Noise calibrated exactly to
    the same (epsilon, delta) is smaller, and its advantage larger: 0.3691 instead of 0.2763 at
    epsilon 2.1972 and delta 0.01. `accounting.advantage_bound` is always a bound.

    Args:
      epsilon: epsilon of the guarantee, nats; > 0.
      delta: delta of the guarantee, in (0, 1).

    Returns:
      The advantage, 2 Phi(mu / 2) - 1.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Theorem 3.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.classical_rho_alpha(2.1972, delta=0.01), 4)
      0.2763
    """
    std = gaussian.classical_noise_std(epsilon, delta=delta, sensitivity=1.0)
    return gaussian.advantage(1 / std)


def epsilon_of_classical_rho_alpha(rho: float, *, delta: float) -> float:
    """Computes the epsilon of a classical advantage, 2 sqrt(2 ln(1.25/delta)) Phi^-1((rho + 1)/2).

    It inverts `classical_rho_alpha`.

    Args:
      rho: the advantage, in (0, 1).
      delta: delta of the guarantee, in (0, 1).

    Returns:
      epsilon in nats.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, equation 6, whose print lacks the first factor 2.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.epsilon_of_classical_rho_alpha(0.2763, delta=0.01), 3)
      2.197
    """
    _check.open_unit(delta=delta)
    return math.sqrt(2 * math.log(1.25 / delta)) * mu_for_advantage(rho)


def rdp_rho_alpha(rdp_epsilon: float, *, order: float) -> float:
    """Computes the advantage of full-batch Gaussian training from its Renyi divergence.

    2 Phi(sqrt(rdp_epsilon / (2 order))) - 1, as rdp_epsilon = order mu^2 / 2. Another mechanism
    of equal rdp_epsilon may have a larger advantage.

    Args:
      rdp_epsilon: Renyi divergence of the given order, nats; > 0.
      order: order of the divergence; > 1.

    Returns:
      The advantage, equal to `accounting.gaussian.advantage(mu)`.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, section 4.4.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.rdp_rho_alpha(2.0, order=4.0), 4)
      0.3829
      >>> round(jp.accounting.gaussian.advantage(1.0), 4)
      0.3829
    """
    _check.positive(rdp_epsilon=rdp_epsilon)
    if not (math.isfinite(order) and order > 1):
        raise ValueError(f"Expected order > 1, got order={order}.")
    return gaussian.advantage(math.sqrt(2 * float(rdp_epsilon) / float(order)))


def general_rho_alpha(epsilon: float, *, delta: float) -> float:
    """Bounds the advantage under (epsilon, delta)-DP by (e^epsilon - 1 + 2 delta)/(e^epsilon + 1).

    The bound holds for every mechanism, and one mechanism attains it.

    Args:
      epsilon: epsilon of the guarantee, nats; >= 0, and may be infinite.
      delta: delta of the guarantee, in [0, 1].

    Returns:
      The largest advantage, in [0, 1].

    Raises:
      ValueError: if an argument is out of range.

    References:
      Kairouz, Oh and Viswanath, The Composition Theorem for Differential Privacy, 2017 (the
      trade-off region).

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.general_rho_alpha(1.0, delta=1e-5), 4)
      0.4621
    """
    _check.non_negative_or_infinite(epsilon=epsilon)
    _check.closed_unit(delta=delta)
    epsilon, delta = float(epsilon), float(delta)
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta * float(special.expit(-epsilon)))


def yeom_rho_alpha(epsilon: float) -> float:
    """Computes the bound e^epsilon - 1 on the advantage, for comparison figures.

    It is vacuous for epsilon >= ln 2, and `general_rho_alpha` with delta 0 is never above it.

    Args:
      epsilon: epsilon of epsilon-DP, nats; >= 0, and may be infinite.

    Returns:
      The bound, which may exceed 1 and be infinite.

    Raises:
      ValueError: if epsilon is negative.

    References:
      Yeom et al., Privacy Risk in Machine Learning, 2018, Theorem 1.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.yeom_rho_alpha(0.5), 4)
      0.6487
      >>> round(jp.identifiability.general_rho_alpha(0.5, delta=0.0), 4)
      0.2449
    """
    return proposition_2_rho_alpha(epsilon, false_positive_rate=1.0)


def proposition_2_rho_alpha(epsilon: float, *, false_positive_rate: float) -> float:
    """Computes the bound (e^epsilon - 1) FPR on the advantage, for comparison figures.

    Args:
      epsilon: epsilon of epsilon-DP, nats; >= 0, and may be infinite.
      false_positive_rate: FPR of the adversary, in [0, 1].

    Returns:
      The bound, which may exceed 1 and be infinite.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Proposition 2.

    Example:
      >>> import jaxpriv as jp
      >>> bound = jp.identifiability.proposition_2_rho_alpha(1.0, false_positive_rate=0.1)
      >>> round(bound, 4)
      0.1718
    """
    _check.non_negative_or_infinite(epsilon=epsilon)
    _check.closed_unit(false_positive_rate=false_positive_rate)
    if false_positive_rate == 0:
        return 0.0
    return float(false_positive_rate) * (math.expm1(epsilon) if epsilon < 700 else math.inf)


def mu_for_advantage(advantage: float) -> float:
    """Computes the largest mu at a given advantage a, 2 Phi^-1((1 + a)/2).

    It inverts `accounting.gaussian.advantage`. k full-batch steps need a noise multiplier of
    sqrt(k)/mu under `add_or_remove_one`.

    Args:
      advantage: largest TPR - FPR at equal priors, in (0, 1).

    Returns:
      mu = sensitivity / noise standard deviation.

    Raises:
      ValueError: if advantage is not in (0, 1).

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.mu_for_advantage(0.3), 4)
      0.7706
    """
    _check.open_unit(advantage=advantage)
    return 2 * math.sqrt(2) * float(special.erfinv(float(advantage)))
