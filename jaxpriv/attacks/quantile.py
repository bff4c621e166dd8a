"""Quantile regression attack: predicts the signal that each record would have as a non-member.

It needs known non-members and the target, and no shadow models. In the shapes below `n` counts
records, `d` features and `r` false positive rates.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.attacks import _networks
from jaxpriv.attacks._networks import Training
from jaxpriv.models import MLP

__all__ = ["Fitted", "apply", "fit", "pinball", "quantiles"]

_WIDTHS = (64, 64)

_INPUT_CLIP = 10.0
"""Standardised features are clipped to this magnitude."""

_MIN_QUANTILE_GAP = 1e-3
"""Smallest difference of neighbouring quantiles, in standard deviations of the signal."""


class Fitted(NamedTuple):
    """Trained quantile model and the scales of its inputs and outputs.

    params: parameters of the network.
    features: mean and standard deviation of each feature among the known non-members.
    signals: mean and standard deviation of their signals.
    fprs: false positive rates in descending order, so that their quantiles ascend.
    """

    params: Params
    features: tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]
    signals: tuple[float, float]
    fprs: tuple[float, ...]


def pinball(
    error: Float[Array, "*s"], level: Float[Array, "*s"] | Float[Array, ""] | float
) -> Float[Array, "*s"]:
    """Computes the pinball loss, max(level error, (level - 1) error).

    Its mean is minimised by the quantile of the given level.

    Args:
      error: signal - predicted quantile.
      level: level of the quantile, in (0, 1).

    Returns:
      The loss, at least 0.

    References:
      Koenker and Bassett, Regression Quantiles, 1978.

    Example:
      >>> pinball(jnp.array([2.0, -2.0]), 0.75).tolist()
      [1.5, 0.5]
    """
    return jnp.maximum(level * error, (level - 1) * error)


def fit(
    key: PRNGKeyArray,
    features: Shaped[Array | np.ndarray, "n d"],
    signals: Shaped[Array | np.ndarray, " n"],
    *,
    fprs: Sequence[float],
    training: Training = _networks.DEFAULT,
) -> Fitted:
    """Learns the (1 - fpr) quantiles of a non-member's signal from its features.

    A network with two hidden layers predicts all quantiles. Each is the previous one plus a
    positive step, so they do not cross. Their pinball losses are averaged.

    Args:
      key: PRNG key.
      features: features of known non-members that predict the signal, such as flattened inputs.
      signals: signal of each under the target, such as `logit_confidence`.
      fprs: at least two distinct false positive rates, in (0, 1). Rates below about 10 / n are
        estimated from fewer than ten records.
      training: options of the training; records are drawn with replacement.

    Returns:
      The fitted attack, for `apply` and `quantiles`.

    Raises:
      ValueError: for NaN or infinite numbers, fewer than two records or rates, or rates that
        repeat or are outside (0, 1).

    References:
      Bertran et al., Scalable Membership Inference Attacks via Quantile Regression, 2023,
      with several rates at once.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features, signals = rng.normal(size=(200, 2)), rng.normal(size=200)
      >>> options = Training(steps=200, batch_size=64, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), features, signals, fprs=(0.5, 0.1), training=options)
      >>> fitted.fprs
      (0.5, 0.1)
    """
    for fpr in fprs:
        _check.open_unit(fpr=fpr)
    if len(set(fprs)) < max(2, len(fprs)):
        raise ValueError(f"Expected at least two distinct fprs, got {list(fprs)}.")
    x, s = (
        _networks.finite_float64("features", features),
        _networks.finite_float64("signals", signals),
    )
    _check.same_length(features=x, signals=s)
    if len(s) < 2:
        raise ValueError(f"Expected at least two known non-members, got {len(s)}.")
    ordered = tuple(sorted((float(fpr) for fpr in fprs), reverse=True))
    x_mean_std = (x.mean(axis=0), _networks.safe_std(x))
    s_mean_std = (s.mean(), _networks.safe_std(s))
    levels = jnp.asarray([1 - fpr for fpr in ordered], jnp.float32)
    data = (_inputs(x, x_mean_std), _standard(s, s_mean_std))
    params = _train(key, data, levels, training)
    return Fitted(params, x_mean_std, (float(s_mean_std[0]), float(s_mean_std[1])), ordered)


def quantiles(
    fitted: Fitted, features: Shaped[Array | np.ndarray, "n d"]
) -> Float[np.ndarray, "n r"]:
    """Predicts the signal that a non-member exceeds with probability fpr.

    Args:
      fitted: fitted attack, from `fit`.
      features: features of the records to attack, the same as in `fit`.

    Returns:
      One column for each of `fitted.fprs`, strictly ascending.

    Raises:
      ValueError: for NaN or infinite features, or a number of features that differs from `fit`.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features, signals = rng.normal(size=(200, 2)), rng.normal(size=200)
      >>> options = Training(steps=200, batch_size=64, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), features, signals, fprs=(0.5, 0.1), training=options)
      >>> median, upper = quantiles(fitted, np.zeros((1, 2)))[0]
      >>> bool(-0.5 < median < 0.5), bool(0.8 < upper < 1.8)  # of N(0, 1): 0 and 1.28
      (True, True)
    """
    x = _networks.finite_float64("features", features)
    if x.ndim != 2 or x.shape[1] != len(fitted.features[0]):
        raise ValueError(
            f"Expected features [n, {len(fitted.features[0])}], got shape {list(x.shape)}."
        )
    standard = _predict(fitted.params, _inputs(x, fitted.features), len(fitted.fprs))
    mean, deviation = fitted.signals
    return mean + deviation * np.asarray(standard, np.float64)


def apply(
    fitted: Fitted,
    features: Shaped[Array | np.ndarray, "n d"],
    signals: Shaped[Array | np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """Scores records by the position of their signal among the predicted quantiles.

    The quantile at rate fpr is mapped to Phi^-1(1 - fpr); signals in between are interpolated
    linearly and signals beyond are extrapolated. A score exceeds Phi^-1(1 - fpr) exactly if the
    signal exceeds the predicted quantile of the record, so a common threshold on the scores has
    about that false positive rate.

    Args:
      fitted: fitted attack, from `fit`.
      features: features of the records to attack, the same as in `fit`.
      signals: signal of each record under the target; infinite ones remain infinite.

    Returns:
      Scores on the scale of a standard normal; higher = more likely a member.

    Raises:
      ValueError: for NaN, infinite features, or shapes that do not fit.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features, signals = rng.normal(size=(200, 2)), rng.normal(size=200)
      >>> options = Training(steps=200, batch_size=64, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), features, signals, fprs=(0.5, 0.1), training=options)
      >>> scores = apply(fitted, np.zeros((2, 2)), np.array([3.0, -1.0]))
      >>> (scores > 1.28).tolist()  # a false positive rate of about 0.1
      [True, False]
    """
    from scipy import special

    s, q = _networks.as_float64("signals", signals), quantiles(fitted, features)
    _check.same_length(features=q, signals=s)
    z = -special.ndtri(np.array(fitted.fprs))
    below = (s[:, None] > q[:, 1:-1]).sum(axis=1)
    low, high = (np.take_along_axis(q, (below + i)[:, None], axis=1)[:, 0] for i in (0, 1))
    return z[below] + (s - low) / (high - low) * (z[below + 1] - z[below])


def _quantiles(params, features, num_rates):
    """Predicts the standardised quantiles of one record, ascending."""
    out = jnp.asarray(MLP(_WIDTHS, num_rates).apply(params, features))
    steps = jax.nn.softplus(out[1:]) + _MIN_QUANTILE_GAP
    return jnp.cumsum(jnp.concatenate([out[:1], steps]))


@functools.partial(jax.jit, static_argnames=("num_rates",))
def _predict(params, features, num_rates):
    return jax.vmap(_quantiles, in_axes=(None, 0, None))(params, features, num_rates)


@functools.partial(jax.jit, static_argnames=("training",))
def _train(
    key: PRNGKeyArray,
    data: tuple[Float[Array, "n d"], Float[Array, " n"]],
    levels: Float[Array, " r"],
    training: Training,
) -> Params:
    init_key, train_key = jax.random.split(key)
    features, scores = data

    def loss(params, key):
        rows = jax.random.randint(key, (training.batch_size,), 0, len(scores))
        predicted = jax.vmap(_quantiles, in_axes=(None, 0, None))(
            params, features[rows], len(levels)
        )
        return pinball(
            scores[rows, None] - predicted, jnp.broadcast_to(levels, predicted.shape)
        ).mean()

    params = MLP(_WIDTHS, len(levels)).init(init_key, features[0])
    return _networks.minimise(train_key, loss, params, training=training)


def _standard(values, mean_std) -> Float[Array, "..."]:
    mean, deviation = mean_std
    return jnp.asarray((values - mean) / deviation, jnp.float32)


def _inputs(features, mean_std) -> Float[Array, "n d"]:
    """Standardises features and clips those far outside the training data."""
    return jnp.clip(_standard(features, mean_std), -_INPUT_CLIP, _INPUT_CLIP)
