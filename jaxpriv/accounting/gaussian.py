"""The Gaussian mechanism: exact closed forms and their inverses, in float64.

Its privacy depends on one number, mu = sensitivity / standard deviation of the noise. Composition
adds mu^2: k releases at the same noise have sqrt(k) times the mu of one.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy import special

from jaxpriv import _check

__all__ = ["advantage", "classical_noise_std", "delta", "epsilon", "mu", "noise_std", "trade_off"]

_LARGE_MU = 1e8
"""mu above which an upper bound replaces epsilon; it is larger by less than a relative 1e-7."""


def delta(epsilon: float, *, mu: float) -> float:
    """Computes the smallest delta of a Gaussian mechanism at a given epsilon.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), without the
    overflow and the cancellation of that form.

    Args:
      epsilon: epsilon of the guarantee, nats; >= 0.
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      delta in [0, 1].

    Raises:
      ValueError: if epsilon or mu is out of range.

    References:
      Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, 2018, Theorem 8.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.delta(1.0, mu=0.5), 5)
      0.00683
    """
    _check.non_negative(epsilon=epsilon)
    _check.positive(mu=mu)
    # NumPy and JAX compute with scalars of float16 or float32 in their type.
    epsilon, mu = float(epsilon), float(mu)
    return math.exp(_log_delta(epsilon / mu, mu))


def epsilon(delta: float, *, mu: float) -> float:
    """Computes the smallest epsilon of a Gaussian mechanism at a given delta.

    Args:
      delta: delta of the guarantee, in (0, 1).
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      epsilon in nats; 0 where delta is at least the advantage, delta(0).

    Raises:
      ValueError: if delta or mu is out of range.

    References:
      Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, 2018, Theorem 8.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.epsilon(1e-5, mu=1.0), 4)
      4.3772
    """
    from scipy import optimize

    _check.open_unit(delta=delta)
    _check.positive(mu=mu)
    mu, target = float(mu), math.log(delta)
    if _log_delta(0.0, mu) <= target:
        return 0.0
    # delta <= Phi(a) <= exp(-a^2/2) with a = mu/2 - epsilon/mu bounds the ratio epsilon/mu.
    max_ratio = mu / 2 + math.sqrt(-2 * target) + 1
    if mu > _LARGE_MU:
        return mu * max_ratio * (1 + 1e-12)  # more than the product is rounded
    ratio = optimize.root_scalar(
        lambda t: _log_delta(t, mu) - target, bracket=(0.0, max_ratio), xtol=1e-300
    )
    return mu * float(ratio.root)


def mu(epsilon: float, *, delta: float) -> float:
    """Computes the largest mu at which a Gaussian mechanism is (epsilon, delta)-private.

    It inverts both `delta` and `epsilon`.

    Args:
      epsilon: epsilon of the guarantee, nats; >= 0.
      delta: delta of the guarantee, in (0, 1).

    Returns:
      mu = sensitivity / noise standard deviation.

    Raises:
      ValueError: if epsilon or delta is out of range.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.mu(1.0, delta=1e-5), 4)
      0.2681
    """
    from scipy import optimize

    _check.non_negative(epsilon=epsilon)
    _check.open_unit(delta=delta)
    epsilon, delta = float(epsilon), float(delta)
    if epsilon == 0:
        return 2 * math.sqrt(2) * float(special.erfinv(delta))
    # delta <= Phi(mu/2 - epsilon/mu), so mu is at least the root of that bound.
    a = float(special.ndtri(delta))
    root = math.hypot(a, math.sqrt(2 * epsilon))
    low = root + a if a > 0 else 2 * epsilon / (root - a)
    high, target = 2 * low, math.log(delta)
    while _log_delta(epsilon / high, high) < target:
        high *= 2

    def excess(log_mu: float) -> float:
        candidate = math.exp(log_mu)
        return _log_delta(epsilon / candidate, candidate) - target

    # Slightly below the bound, where rounding could hide the change of sign.
    bracket = (math.log(low * (1 - 1e-9)), math.log(high))
    return math.exp(float(optimize.root_scalar(excess, bracket=bracket, xtol=1e-15).root))


def advantage(mu: float) -> float:
    """Computes the total variation of a Gaussian mechanism, delta(0) = 2 Phi(mu/2) - 1.

    No membership attack with equal priors has a larger advantage (TPR - FPR).

    Args:
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      The advantage in [0, 1].

    Raises:
      ValueError: if mu is not positive.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.advantage(1.0), 4)
      0.3829
    """
    _check.positive(mu=mu)
    return math.erf(float(mu) / (2 * math.sqrt(2)))


def noise_std(epsilon: float, *, delta: float, sensitivity: float) -> float:
    """Computes the smallest noise that is (epsilon, delta)-private, at any epsilon.

    Args:
      epsilon: epsilon of the guarantee, nats; >= 0.
      delta: delta of the guarantee, in (0, 1).
      sensitivity: largest L2 distance between the values of neighbouring data sets; > 0.

    Returns:
      The standard deviation of the noise, in the units of the sensitivity.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.noise_std(1.0, delta=1e-5, sensitivity=1.0), 3)
      3.731
    """
    _check.positive(sensitivity=sensitivity)
    return float(sensitivity) / mu(epsilon, delta=delta)


def classical_noise_std(epsilon: float, *, delta: float, sensitivity: float) -> float:
    """Computes the classical noise, sensitivity sqrt(2 ln(1.25/delta)) / epsilon.

    For comparison with the literature: the formula is proved for epsilon <= 1 only, and false at
    large epsilon. At epsilon 8 and delta 0.01 the noise that it returns has delta 0.0178.
    `noise_std` is exact everywhere.

    Args:
      epsilon: epsilon of the guarantee, nats; > 0.
      delta: delta of the guarantee, in (0, 1).
      sensitivity: largest L2 distance between the values of neighbouring data sets; > 0.

    Returns:
      The classical standard deviation of the noise.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014, Theorem A.1.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.classical_noise_std(1.0, delta=1e-5, sensitivity=1.0), 3)
      4.845
    """
    _check.positive(epsilon=epsilon, sensitivity=sensitivity)
    _check.open_unit(delta=delta)
    return float(sensitivity) * math.sqrt(2 * math.log(1.25 / float(delta))) / float(epsilon)


def trade_off(
    false_positive_rate: Float[np.ndarray, "..."] | float, *, mu: float
) -> Float[np.ndarray, "..."] | float:
    """Computes the smallest false negative rate of any test, Phi(Phi^-1(1 - FPR) - mu).

    Args:
      false_positive_rate: rates in [0, 1].
      mu: sensitivity / noise standard deviation; > 0.

    Returns:
      The false negative rates, in the shape of the input.

    Raises:
      ValueError: if a rate is outside [0, 1] or mu is not positive.

    References:
      Dong, Roth and Su, Gaussian Differential Privacy, 2022, equation 6.

    Example:
      >>> from jaxpriv.accounting import gaussian
      >>> round(gaussian.trade_off(0.05, mu=1.0), 4)
      0.7405
    """
    _check.positive(mu=mu)
    rate = np.asarray(false_positive_rate, np.float64)
    if not np.all((rate >= 0) & (rate <= 1)):
        raise ValueError("Expected every false_positive_rate in [0, 1].")
    false_negative_rate = special.ndtr(-special.ndtri(rate) - float(mu))
    return float(false_negative_rate) if false_negative_rate.ndim == 0 else false_negative_rate


def _log_delta(ratio: float, mu: float) -> float:
    """Computes log delta at epsilon = ratio * mu.

    With a = mu/2 - ratio and b = a - mu, e^epsilon phi(b) = phi(a); so
    delta = Phi(a) - phi(a) R(-b), R(t) = Phi(-t) / phi(t), where nothing overflows.
    """
    a = mu / 2 - ratio
    if a > 0:
        density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        return _log(float(special.ndtr(a)) - density * _mills(mu - a))
    # phi(a) is factored out: it underflows long before its logarithm does.
    return -a * a / 2 - math.log(2 * math.pi) / 2 + _log(_mills(-a) - _mills(mu - a))


def _mills(t: float) -> float:
    """Computes Mills' ratio R(t) = Phi(-t) / phi(t)."""
    return math.sqrt(math.pi / 2) * float(special.erfcx(t / math.sqrt(2)))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
