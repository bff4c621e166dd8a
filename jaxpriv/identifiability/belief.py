"""Posterior belief: the conclusion of an adversary who has all records but one.

rho_beta bounds the belief in the data set that was used. Gaussian forms take mu = sensitivity /
standard deviation of the noise; k full-batch steps at one noise have sqrt(k) times the mu of one.
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


def rho_beta(epsilon: float, *, prior: float = 0.5) -> float:
    """Bounds the belief in the true data set: prior e^epsilon / (prior e^epsilon + 1 - prior).

    Holds always under epsilon-DP. Under (epsilon, delta)-DP it can fail, and with more than
    probability delta: see `violation_probability`.

    >>> round(rho_beta(2.1972), 4)
    0.9

    Args:
      epsilon: nats; >= 0, and may be infinite.
      prior: belief before anything is released, in (0, 1).

    Returns:
      The largest belief, in [prior, 1].

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Theorem 2.
    """
    check_epsilon(epsilon)
    _check.open_unit(prior=prior)
    return float(special.expit(epsilon + special.logit(prior)))


def epsilon_of_rho_beta(rho: float, *, prior: float = 0.5) -> float:
    """Computes the epsilon at which the belief is at most rho: logit(rho) - logit(prior).

    Args:
      rho: the largest belief, in [prior, 1).
      prior: belief before anything is released, in (0, 1).

    Returns:
      epsilon in nats.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Bernau et al., 2021, equation 5. Their section 5.3 prints it without the logarithm.
    """
    _check.open_unit(rho=rho, prior=prior)
    if rho < prior:
        raise ValueError(f"Expected rho >= prior={prior}, got rho={rho}.")
    return float(special.logit(rho) - special.logit(prior))


def odds_in_words(rho: float) -> str:
    """Says a belief as odds, rounded up, so that they are never understated.

    >>> odds_in_words(0.9)
    'at most 9 to 1'

    Args:
      rho: a largest belief, in [0.5, 1].

    Returns:
      "at most 1.1 to 1", to a tenth below 10 and to a whole number above; "unbounded odds" where
      float64 does not tell rho from 1.

    Raises:
      ValueError: if rho is out of range.
    """
    _check_belief(rho)
    if 1 - rho < 1e-12:
        return "unbounded odds"
    odds = rho / (1 - rho)
    # 1 - rho has an error of 2^-53, which large odds magnify; small ones may have gained by it.
    odds *= 1 + 2.0**-52 * odds if odds > 1e4 else 1 - 1e-12
    rounded = math.ceil(odds) if odds > 10 else math.ceil(10 * odds) / 10
    return f"at most {max(rounded, 1):,.16g} to 1"


def bayes_accuracy(delta_at: Callable[[float], float], *, prior: float) -> float:
    """Bounds the accuracy of the best guess of which data set was used.

    (1 - p) + p delta(ln((1 - p)/p)), where p = min(prior, 1 - prior).

    Args:
      delta_at: delta of a non-negative epsilon, the larger of both orders, such as
        `lambda e: accounting.delta(event, epsilon=e, relation=relation)`.
      prior: probability of one of the two data sets, in (0, 1).

    Returns:
      Probability of a right guess, in [0.5, 1].

    Raises:
      ValueError: if prior is not in (0, 1).
    """
    _check.open_unit(prior=prior)
    p = min(prior, 1 - prior)
    return (1 - p) + p * delta_at(math.log((1 - p) / p))


def gaussian_violation_probability(rho: float, *, mu: float) -> float:
    """Computes P[belief > rho] for full-batch Gaussians: Phi(mu/2 - epsilon/mu), exactly.

    This, and not delta, is the probability with which rho_beta fails: at epsilon 2.1972 and
    delta 0.01, 0.0355.

    Args:
      rho: a belief, in [0.5, 1), reached from equal priors.
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      The probability under the data that was used.

    Raises:
      ValueError: if an argument is out of range.
    """
    return gaussian_loss_tail(epsilon_of_rho_beta(rho), mu=mu)


def gaussian_loss_tail(epsilon: float, *, mu: float) -> float:
    """Computes P[L > epsilon] of the privacy loss of full-batch Gaussians: Phi(mu/2 - epsilon/mu).

    Args:
      epsilon: nats; >= 0.
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      The probability under the data that was used.

    Raises:
      ValueError: if an argument is out of range.
    """
    _check.non_negative(epsilon=epsilon)
    _check.positive(mu=mu)
    return float(special.ndtr(mu / 2 - epsilon / mu))


def mu_for_belief(rho: float, *, violation_probability: float) -> float:
    """Computes the largest mu at which the belief exceeds rho with at most a given probability.

    Full batches and equal priors. The noise of k steps is sqrt(k)/mu times the sensitivity.

    Args:
      rho: the largest belief, in (0.5, 1).
      violation_probability: how often it may be exceeded, in (0, 1).

    Returns:
      mu, the inverse of `gaussian_violation_probability`.

    Raises:
      ValueError: if an argument is out of range.
    """
    _check.open_unit(violation_probability=violation_probability)
    if not 0.5 < rho < 1:
        raise ValueError(f"Expected 0.5 < rho < 1, got rho={rho}.")
    epsilon, a = epsilon_of_rho_beta(rho), float(special.ndtri(violation_probability))
    root = math.sqrt(a * a + 2 * epsilon)
    # mu/2 - epsilon/mu = a, without cancellation.
    return root + a if a > 0 else 2 * epsilon / (root - a)


def violation_probability(event: "DpEvent", *, rho: float, relation: Relation) -> float:
    """Bounds P[belief > rho] for any event, under either data set, at equal priors.

    With L the privacy loss and epsilon = logit(rho), for every e < epsilon
    delta(e) >= E[1 - e^(e - L); L > epsilon] >= (1 - e^(e - epsilon)) P[L > epsilon]; the smallest
    quotient over e is returned. A PLD that dominates bounds delta, but not the tail itself. For
    full batches `gaussian_violation_probability` is exact, and smaller.

    Args:
      event: as for `accounting.epsilon`.
      rho: a belief, in [0.5, 1).
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      An upper bound on the probability, in [0, 1].

    Raises:
      ValueError: if an argument is out of range, or as `accounting.delta`.
    """
    _check.one_of(RELATIONS, relation=relation)
    return loss_tail(event, epsilon=epsilon_of_rho_beta(rho), relation=relation)


def loss_tail(event: "DpEvent", *, epsilon: float, relation: Relation) -> float:
    """Bounds P[L > epsilon] of the privacy loss L of any event, under either data set.

    `violation_probability` is this function at logit(rho). Near 1 a belief has lost the digits of
    the epsilon that it came from, so that epsilon is the safer argument.

    Args:
      event: as for `accounting.epsilon`.
      epsilon: nats; >= 0.
      relation: `add_or_remove_one` or `replace_one`.

    Returns:
      An upper bound on the probability, in [0, 1].

    Raises:
      ValueError: if an argument is out of range, or as `accounting.delta`.
    """
    _check.non_negative(epsilon=epsilon)
    _check.one_of(RELATIONS, relation=relation)
    return _tail_bound(accounting.delta_curve(event, epsilon=epsilon, relation=relation), epsilon)


def _tail_bound(delta_at: Callable[[float], float], epsilon: float) -> float:
    """The smallest delta(e) / (1 - e^(e - epsilon)) over a grid of e; any e bounds the tail."""
    from scipy import optimize

    def quotient(below: float) -> float:
        e = epsilon - below
        # At a negative e, by the complement of the test that attains delta(-e).
        delta = delta_at(e) if e >= 0 else 1 - math.exp(e) * (1 - delta_at(-e))
        return delta / -math.expm1(-below)

    grid = np.geomspace(1e-3, max(epsilon, 1.0) + 20, 32)
    values = [quotient(float(below)) for below in grid]
    best = int(np.argmin(values))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined = optimize.minimize_scalar(
        quotient, bounds=bounds, method="bounded", options={"xatol": 1e-2 * grid[best]}
    )
    return min(1.0, values[best], float(refined.fun))


def check_epsilon(epsilon: float) -> None:
    """Refuses all but finite and infinite epsilons >= 0."""
    if epsilon != math.inf:
        _check.non_negative(epsilon=epsilon)


def _check_belief(rho: float) -> None:
    if not 0.5 <= rho <= 1:
        raise ValueError(f"Expected 0.5 <= rho <= 1, got rho={rho}.")
