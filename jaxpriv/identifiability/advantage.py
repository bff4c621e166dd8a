"""Membership advantage, TPR - FPR at equal priors: what an adversary gains over a coin.

Each bound bears the name of its assumption. Gaussian forms take mu = sensitivity / standard
deviation of the noise.
"""

import math
from typing import TYPE_CHECKING

from scipy import special

from jaxpriv import _check, accounting
from jaxpriv._types import Relation
from jaxpriv.accounting import gaussian
from jaxpriv.identifiability import belief

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def classical_rho_alpha(epsilon: float, *, delta: float) -> float:
    """Computes the advantage of the classical Gaussian noise: mu = epsilon/sqrt(2 ln(1.25/delta)).

    A bound only where the noise comes from `gaussian.classical_noise_std`; noise calibrated
    exactly to the same (epsilon, delta) is smaller, and its advantage larger: 0.3691 instead of
    0.2763 at epsilon 2.1972, delta 0.01. `exact_rho_alpha` always bounds.

    Args:
      epsilon: nats; > 0.
      delta: in (0, 1).

    Returns:
      2 Phi(mu / 2) - 1.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., 2021, Theorem 3.
    """
    std = gaussian.classical_noise_std(epsilon, delta=delta, sensitivity=1.0)
    return gaussian.advantage(1 / std)


def epsilon_of_classical_rho_alpha(rho: float, *, delta: float) -> float:
    """Inverts `classical_rho_alpha`: 2 sqrt(2 ln(1.25/delta)) Phi^-1((rho + 1)/2).

    Args:
      rho: the advantage, in (0, 1).
      delta: in (0, 1).

    Returns:
      epsilon in nats.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., 2021, equation 6, whose print lacks the first factor 2.
    """
    _check.open_unit(delta=delta)
    return math.sqrt(2 * math.log(1.25 / delta)) * mu_for_advantage(rho)


def rdp_rho_alpha(rdp_epsilon: float, *, order: float) -> float:
    """Computes the advantage of Gaussians from their Renyi divergence.

    2 Phi(sqrt(rdp_epsilon / (2 order))) - 1, as rdp_epsilon = order mu^2 / 2. For full-batch
    Gaussian training only: another mechanism of equal rdp_epsilon may have a larger advantage.

    Args:
      rdp_epsilon: Renyi divergence of that order, nats; > 0.
      order: of the divergence; > 1.

    Returns:
      The advantage, equal to `accounting.gaussian.advantage(mu)`.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., 2021, section 4.4.
    """
    _check.positive(rdp_epsilon=rdp_epsilon)
    if not (math.isfinite(order) and order > 1):
        raise ValueError(f"Expected order > 1, got order={order}.")
    return gaussian.advantage(math.sqrt(2 * rdp_epsilon / order))


def exact_rho_alpha(event: "DpEvent", *, relation: Relation) -> float:
    """Bounds the advantage against an event by its total variation, delta(0).

    Tight for the pair that dominates the event, an upper bound for every other.

    Args:
      event: as for `accounting.epsilon`.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      The advantage in [0, 1].

    Raises:
      ValueError: as `accounting.delta`.
    """
    return accounting.advantage_bound(event, relation=relation)


def general_rho_alpha(epsilon: float, delta: float) -> float:
    """Bounds the advantage from one (epsilon, delta): (e^epsilon - 1 + 2 delta)/(e^epsilon + 1).

    Holds for every mechanism, and is reached by one.

    Args:
      epsilon: nats; >= 0, and may be infinite.
      delta: in [0, 1].

    Returns:
      The advantage in [0, 1].

    Raises:
      ValueError: if an argument is out of range.

    References:
      Kairouz, Oh and Viswanath, The Composition Theorem for Differential Privacy, 2017 (the
      trade-off region).
    """
    belief.check_epsilon(epsilon)
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, got delta={delta}.")
    return math.tanh(epsilon / 2) + 2 * delta * float(special.expit(-epsilon))


def yeom_rho_alpha(epsilon: float) -> float:
    """Computes Yeom's bound e^epsilon - 1 on the advantage, for comparison figures.

    Vacuous from epsilon = ln 2 on; `general_rho_alpha` with delta 0 is always below it.

    Args:
      epsilon: of epsilon-DP, nats; >= 0.

    Returns:
      The bound, which may exceed 1 and be infinite.

    Raises:
      ValueError: if epsilon is negative.

    References:
      Yeom et al., Privacy Risk in Machine Learning, 2018, Theorem 1.
    """
    return proposition_2_rho_alpha(epsilon, false_positive_rate=1.0)


def proposition_2_rho_alpha(epsilon: float, *, false_positive_rate: float) -> float:
    """Computes (e^epsilon - 1) FPR, the bound of Proposition 2, for comparison figures.

    Args:
      epsilon: of epsilon-DP, nats; >= 0.
      false_positive_rate: of the adversary that is bounded, in [0, 1].

    Returns:
      The bound, which may exceed 1 and be infinite.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., 2021, Proposition 2.
    """
    belief.check_epsilon(epsilon)
    if not 0 <= false_positive_rate <= 1:
        raise ValueError(
            "Expected 0 <= false_positive_rate <= 1, "
            f"got false_positive_rate={false_positive_rate}."
        )
    if false_positive_rate == 0:
        return 0.0
    return false_positive_rate * (math.expm1(epsilon) if epsilon < 700 else math.inf)


def mu_for_advantage(advantage: float) -> float:
    """Computes the largest mu whose advantage is at most a given one: 2 Phi^-1((1 + a)/2).

    Args:
      advantage: in (0, 1).

    Returns:
      mu, the inverse of `accounting.gaussian.advantage`.

    Raises:
      ValueError: if advantage is not in (0, 1).
    """
    _check.open_unit(advantage=advantage)
    return 2 * math.sqrt(2) * float(special.erfinv(advantage))
