"""Worst-case sensitivity of SGD with clipped gradients of a smoothed loss.

The bounds are for data sets that differ in one record (`replace_one`), and for plain SGD:
theta <- theta - eta mean over the batch of clip(E[g(theta + Z)], C), Z ~ N(0, sigma_s^2 I), with
batches of m records, equal initial parameters and equal batch orders. They need the EXACT
expectation E (`grads.smoothed` is a Monte-Carlo estimate, for which they do not hold) and a loss
that is L-Lipschitz for all parameters, which losses of deep networks are not. Momentum, Adam,
weight decay and a decaying learning rate are not covered.
"""

import math

from jaxpriv import _check

__all__ = ["recursive_bound", "theorem_5_2"]

_ROUNDING = 1e-12
"""Bound on the relative rounding error of a closed form."""

_STEP_ROUNDING = 1e-15
"""Bound on that of a step of the recursion, which has six rounded operations."""

_MIN_RATE = 1e-300
"""Smallest eta beta; the printed bound increases with beta, and smaller ones would underflow."""


def theorem_5_2(
    *,
    learning_rate: float,
    lipschitz: float,
    smoothing_std: float,
    steps: int,
    batch_size: int,
    clip_norm: float,
) -> float:
    """Computes the smaller of the bound of Theorem 5.2 and the trivial bound 2 eta C T.

    S <= 2 C ((1 + eta beta)^T - 1) / ((m - 1) beta), beta = L / sigma_s. The printed bound grows
    exponentially with T and can exceed the trivial one. `recursive_bound` is never larger. See the
    module for what both assume.

    Args:
      learning_rate: eta; > 0.
      lipschitz: L, the Lipschitz constant of the loss; > 0.
      smoothing_std: sigma_s, the standard deviation of the smoothing; > 0.
      steps: number of steps T.
      batch_size: number m of records of a batch; >= 2.
      clip_norm: C; > 0.

    Returns:
      Upper bound on the L2 sensitivity of the parameters, for `replace_one`; finite.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning
      Models, 2023, Theorem 5.2.

    Example:
      >>> options = dict(learning_rate=0.001, lipschitz=1.0, smoothing_std=1.0, batch_size=128)
      >>> round(theorem_5_2(**options, steps=1000, clip_norm=10.0), 6)
      0.270382
    """
    _check_arguments(learning_rate, lipschitz, smoothing_std, steps, batch_size, clip_norm)
    beta = max(lipschitz / smoothing_std, _MIN_RATE / learning_rate)
    trivial = 2 * learning_rate * clip_norm * steps
    # ((1 + eta beta)^T - 1) / beta tends to eta T as beta tends to 0.
    log_growth = steps * math.log1p(learning_rate * beta)
    if log_growth > 700:
        return trivial * (1 + _ROUNDING)
    printed = 2 * clip_norm * math.expm1(log_growth) / ((batch_size - 1) * beta)
    return min(printed, trivial) * (1 + _ROUNDING)


def recursive_bound(
    *,
    learning_rate: float,
    lipschitz: float,
    smoothing_std: float,
    steps: int,
    batch_size: int,
    clip_norm: float,
) -> float:
    """Computes the bound that follows the distance of the parameters from step to step.

    x <- x + eta ((1 - 1/m) min(2 C, beta x) + 2 C / m), from x = 0: the m - 1 common records of a
    batch contribute at most min(2 C, beta x) each, the record that differs at most 2 C. See the
    module for what it assumes.

    Args:
      learning_rate: eta; > 0.
      lipschitz: L, the Lipschitz constant of the loss; > 0.
      smoothing_std: sigma_s, the standard deviation of the smoothing; > 0.
      steps: number of steps T.
      batch_size: number m of records of a batch; >= 2.
      clip_norm: C; > 0.

    Returns:
      Upper bound on the L2 sensitivity of the parameters, for `replace_one`.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> options = dict(learning_rate=0.001, lipschitz=1.0, smoothing_std=1.0, batch_size=128)
      >>> round(recursive_bound(**options, steps=1000, clip_norm=10.0), 6)
      0.267055
    """
    _check_arguments(learning_rate, lipschitz, smoothing_std, steps, batch_size, clip_norm)
    beta, limit = lipschitz / smoothing_std, 2 * clip_norm
    distance, common = 0.0, 1 - 1 / batch_size
    for done in range(steps):
        if beta * distance >= limit:  # from here on every step adds the same
            distance += (steps - done) * learning_rate * limit
            break
        distance += learning_rate * (common * beta * distance + limit / batch_size)
    trivial = learning_rate * limit * steps * (1 + _ROUNDING)
    return min(distance * (1 + _ROUNDING + steps * _STEP_ROUNDING), trivial)


def _check_arguments(
    learning_rate: float,
    lipschitz: float,
    smoothing_std: float,
    steps: int,
    batch_size: int,
    clip_norm: float,
) -> None:
    _check.positive(
        learning_rate=learning_rate,
        lipschitz=lipschitz,
        smoothing_std=smoothing_std,
        clip_norm=clip_norm,
    )
    _check.positive_int(steps=steps, batch_size=batch_size)
    if batch_size == 1:
        raise ValueError("Expected batch_size >= 2, got batch_size=1: the bound has no m - 1.")
