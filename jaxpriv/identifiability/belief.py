"""Posterior belief of an adversary who has all records but one, and sees every step of training.

rho_beta bounds the belief in the data set that was used. Gaussian forms take mu = sensitivity /
standard deviation of the noise; k full-batch steps have sqrt(k) times the mu of one step.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from jaxpriv import _check, accounting
from jaxpriv._types import RELATIONS, Relation

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = [
    "bayes_accuracy",
    "epsilon_of_rho_beta",
    "gaussian_loss_tail",
    "gaussian_violation_probability",
    "loss_tail",
    "mu_for_belief",
    "odds_in_words",
    "rho_beta",
    "violation_probability",
]


def rho_beta(epsilon: float, *, prior: float = 0.5) -> float:
    """Bounds the belief in the true data set by prior e^epsilon / (prior e^epsilon + 1 - prior).

    The bound always holds under epsilon-DP. Under (epsilon, delta)-DP it can fail, and the
    probability of failure exceeds delta: see `violation_probability`.

    Args:
      epsilon: epsilon of the guarantee, nats; >= 0, and may be infinite.
      prior: belief before anything is released, in (0, 1).

    Returns:
      The largest belief, in [prior, 1].

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Theorem 2.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.rho_beta(2.1972), 4)
      0.9
      >>> round(jp.identifiability.rho_beta(2.1972, prior=0.01), 4)
      0.0833
    """
    _check.non_negative_or_infinite(epsilon=epsilon)
    _check.open_unit(prior=prior)
    return float(special.expit(float(epsilon) + special.logit(float(prior))))


def epsilon_of_rho_beta(rho: float, *, prior: float = 0.5) -> float:
    """Computes the epsilon at which the belief is at most rho, logit(rho) - logit(prior).

    It inverts `rho_beta`.

    Args:
      rho: the largest belief, in [prior, 1).
      prior: belief before anything is released, in (0, 1).

    Returns:
      epsilon in nats.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, equation 5, which section 5.3 prints without the logarithm.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.epsilon_of_rho_beta(0.9), 4)
      2.1972
    """
    _check.open_unit(rho=rho, prior=prior)
    if rho < prior:
        raise ValueError(f"Expected rho >= prior={prior}, got rho={rho}.")
    return float(special.logit(float(rho)) - special.logit(float(prior)))


def odds_in_words(rho: float) -> str:
    """Formats a bound on a belief as odds, which are rounded up.

    Args:
      rho: the largest belief, in [0.5, 1].

    Returns:
      A phrase such as "at most 1.1 to 1", with one decimal below 10 and a whole number above;
      "unbounded odds" where float64 cannot distinguish rho from 1.

    Raises:
      ValueError: if rho is out of range.

    Example:
      >>> import jaxpriv as jp
      >>> jp.identifiability.odds_in_words(0.9)
      'at most 9 to 1'
    """
    if not 0.5 <= rho <= 1:
        raise ValueError(f"Expected 0.5 <= rho <= 1, got rho={rho}.")
    if 1 - rho < 1e-12:
        return "unbounded odds"
    odds = rho / (1 - rho)
    # 1 - rho has an error of 2^-53, which large odds magnify, so they are enlarged first. Small
    # odds may be too large by rounding, so that 9 would become 9.1 without the slack.
    odds *= 1 + 2.0**-52 * odds if odds > 1e4 else 1 - 1e-12
    rounded = math.ceil(odds) if odds > 10 else math.ceil(10 * odds) / 10
    return f"at most {max(rounded, 1):,.16g} to 1"


def bayes_accuracy(delta_at: Callable[[float], float], *, prior: float) -> float:
    """Bounds the accuracy of the best guess of which data set was used.

    The bound is (1 - p) + p delta(ln((1 - p)/p)), where p = min(prior, 1 - prior).

    Args:
      delta_at: function from epsilon >= 0 to delta, the larger one over the two orders of the data
        sets, such as `accounting.delta_curve(event, epsilon=0.0, relation=relation)`.
      prior: probability of one of the two data sets, in (0, 1).

    Returns:
      The probability of a correct guess, in [0.5, 1].

    Raises:
      ValueError: if prior is not in (0, 1).

    Example:
      >>> import jaxpriv as jp
      >>> def delta_at(epsilon):
      ...     return jp.accounting.gaussian.delta(epsilon, mu=1.0)
      >>> round(jp.identifiability.bayes_accuracy(delta_at, prior=0.5), 4)
      0.6915
      >>> round(jp.identifiability.bayes_accuracy(delta_at, prior=0.1), 4)
      0.9013
    """
    _check.open_unit(prior=prior)
    p = min(float(prior), 1 - float(prior))
    return (1 - p) + p * delta_at(math.log((1 - p) / p))


def gaussian_violation_probability(rho: float, *, mu: float) -> float:
    """Computes P[belief > rho] of full-batch Gaussian training, exactly.

    It equals Phi(mu/2 - epsilon/mu), where epsilon = logit(rho). This, not delta, is the
    probability with which `rho_beta` fails: 0.0355 at epsilon 2.1972 and delta 0.01.

    Args:
      rho: belief from equal priors, in [0.5, 1).
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      The probability under the data set that was used.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> import jaxpriv as jp
      >>> mu = jp.accounting.gaussian.mu(2.1972, delta=0.01)
      >>> round(jp.identifiability.gaussian_violation_probability(0.9, mu=mu), 4)
      0.0355
    """
    return gaussian_loss_tail(epsilon_of_rho_beta(rho), mu=mu)


def gaussian_loss_tail(epsilon: float, *, mu: float) -> float:
    """Computes P[L > epsilon] of the privacy loss L of full-batch Gaussian training, exactly.

    L is normal with mean mu^2/2 and standard deviation mu, so P[L > epsilon] = Phi(mu/2 -
    epsilon/mu).

    Args:
      epsilon: threshold of the loss, nats; >= 0.
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      The probability under the data set that was used.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.identifiability.gaussian_loss_tail(2.0, mu=1.0), 4)
      0.0668
    """
    _check.non_negative(epsilon=epsilon)
    _check.positive(mu=mu)
    return float(special.ndtr(float(mu) / 2 - float(epsilon) / float(mu)))


def mu_for_belief(rho: float, *, violation_probability: float) -> float:
    """Computes the largest mu at which the belief rarely exceeds rho.

    It inverts `gaussian_violation_probability`, for full batches and equal priors. k steps need
    noise of standard deviation sqrt(k)/mu times the sensitivity.

    Args:
      rho: the largest belief, in (0.5, 1).
      violation_probability: largest probability with which rho is exceeded, in (0, 1).

    Returns:
      mu = sensitivity / noise standard deviation, of all steps together.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> import math
      >>> import jaxpriv as jp
      >>> mu = jp.identifiability.mu_for_belief(0.9, violation_probability=0.01)
      >>> noise_multiplier = math.sqrt(30) / mu  # 30 full-batch steps
      >>> round(noise_multiplier, 4)
      6.8027
    """
    _check.open_unit(violation_probability=violation_probability)
    if not 0.5 < rho < 1:
        raise ValueError(f"Expected 0.5 < rho < 1, got rho={rho}.")
    epsilon, a = epsilon_of_rho_beta(rho), float(special.ndtri(float(violation_probability)))
    root = math.sqrt(a * a + 2 * epsilon)
    # The root of mu/2 - epsilon/mu = a, without cancellation.
    return root + a if a > 0 else 2 * epsilon / (root - a)


def violation_probability(event: "DpEvent", *, rho: float, relation: Relation) -> float:
    """Bounds P[belief > rho] for any event, under either data set, at equal priors.

    With L the privacy loss and epsilon = logit(rho), every e < epsilon satisfies
    delta(e) >= E[1 - e^(e - L); L > epsilon] >= (1 - e^(e - epsilon)) P[L > epsilon], which bounds
    P[L > epsilon] by a quotient; the smallest one over e is returned. (A dominating PLD bounds
    delta, but not the tail itself.) For full batches `gaussian_violation_probability` is exact,
    and smaller.

    Args:
      event: dp-accounting event, as for `accounting.epsilon`.
      rho: belief, in [0.5, 1).
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      An upper bound on the probability, in [0, 1].

    Raises:
      ValueError: if an argument is out of range, or for the errors of `accounting.delta`.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.6, sampling_prob=0.2, steps=100)
      >>> bound = jp.identifiability.violation_probability(
      ...     event, rho=0.99, relation="add_or_remove_one")
      >>> round(bound, 3)
      0.011
    """
    _check.one_of(RELATIONS, relation=relation)
    return loss_tail(event, epsilon=epsilon_of_rho_beta(rho), relation=relation)


def loss_tail(event: "DpEvent", *, epsilon: float, relation: Relation) -> float:
    """Bounds P[L > epsilon] of the privacy loss L of any event, under either data set.

    `violation_probability` is this function at epsilon = logit(rho). A belief near 1 has too few
    digits to recover epsilon, so pass epsilon where it is available.

    Args:
      event: dp-accounting event, as for `accounting.epsilon`.
      epsilon: threshold of the loss, nats; >= 0.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      An upper bound on the probability, in [0, 1].

    Raises:
      ValueError: if an argument is out of range, or for the errors of `accounting.delta`.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=1.6, sampling_prob=0.2, steps=100)
      >>> round(jp.identifiability.loss_tail(event, epsilon=3.0, relation="add_or_remove_one"), 2)
      0.13
    """
    _check.non_negative(epsilon=epsilon)
    _check.one_of(RELATIONS, relation=relation)
    epsilon = float(epsilon)
    return _tail_bound(accounting.delta_curve(event, epsilon=epsilon, relation=relation), epsilon)


def _tail_bound(delta_at: Callable[[float], float], epsilon: float) -> float:
    """Minimises delta(e) / (1 - e^(e - epsilon)) over e; the value at any e bounds the tail."""
    from scipy import optimize

    def quotient(below: float) -> float:
        e = epsilon - below
        # At a negative e, delta follows from the complement of the test that attains delta(-e).
        delta = delta_at(e) if e >= 0 else 1 - math.exp(e) * (1 - delta_at(-e))
        return delta / -math.expm1(-below)

    # The best e of a small epsilon lies between 0 and epsilon.
    smallest = 1e-3 * (min(epsilon, 1.0) or 1.0)
    grid = np.geomspace(smallest, max(epsilon, 1.0) + 20, 32)
    values = [quotient(float(below)) for below in grid]
    best = int(np.argmin(values))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined = optimize.minimize_scalar(
        quotient, bounds=bounds, method="bounded", options={"xatol": 1e-2 * grid[best]}
    )
    return min(1.0, values[best], float(refined.fun))
