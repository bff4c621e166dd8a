"""The quantile attack: how high a record's signal would be if it were not a member.

It needs known non-members and the target, and no shadow models. In the shapes below `n` counts
records, `d` features, `r` false positive rates.

Data flow: known non-members are split into a training, a validation and a calibration part. The
first trains a model of the quantiles (a network, stopped early by the second, or gradient
boosting). Each record's signal is then expressed on a normal scale relative to its own predicted
quantiles. On that scale the third part sets the thresholds, so that the false positive rates are
those asked for, however well the model predicts (split conformal prediction).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from jaxpriv import _check, _keys
from jaxpriv.attacks import _needs, _networks
from jaxpriv.attacks._networks import Training
from jaxpriv.models import MLP
from jaxpriv.training import _step

__all__ = ["Fitted", "apply", "fit", "fit_boosting", "pinball", "quantiles", "smallest_fpr"]

_WIDTHS = (64, 64)

_INPUT_CLIP = 10.0
"""Features are clipped to this many deviations from the mean of the training part."""

_MIN_QUANTILE_GAP = 1e-3
"""Smallest distance between neighbouring quantiles, in deviations of the signal."""

_CALIBRATION_SHARE, _VALIDATION_SHARE = 0.3, 0.1

_EVALUATIONS = 200
"""How often the validation loss is computed during training."""

_BOOSTING_ROUNDS = 300


class Fitted(NamedTuple):
    """A quantile model and its calibration.

    predict: features [n, d] -> signals that non-members exceed with about the rates of `fprs`,
      ascending, [n, r].
    num_features: d.
    fprs: the false positive rates, descending, so that their quantiles ascend.
    calibration: on the normal scale of the predicted quantiles, the thresholds that calibration
      records exceed with those rates, strictly ascending.
    num_calibration: number of calibration records.
    """

    predict: Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, "n r"]]
    num_features: int
    fprs: tuple[float, ...]
    calibration: Float[np.ndarray, " r"]
    num_calibration: int


def pinball(
    error: Float[Array, "*s"], level: Float[Array, "*s"] | Float[Array, ""] | float
) -> Float[Array, "*s"]:
    """Computes the pinball loss, max(level error, (level - 1) error).

    Its mean is smallest where the prediction is the level-quantile.

    Args:
      error: signal - predicted quantile.
      level: of the quantile, in (0, 1).

    Returns:
      The loss, at least 0.

    References:
      Koenker and Bassett, Regression Quantiles, 1978.

    Example:
      >>> pinball(jnp.array([2.0, -2.0]), 0.75).tolist()
      [1.5, 0.5]
    """
    return jnp.maximum(level * error, (level - 1) * error)


def smallest_fpr(num_known: int) -> float:
    """Returns the smallest false positive rate that a number of non-members can calibrate.

    Args:
      num_known: number of known non-members that `fit` is given.

    Returns:
      1 / (num_calibration + 1).

    Example:
      >>> round(smallest_fpr(10_000), 6)
      0.000333
    """
    return 1 / (_num_calibration(num_known) + 1)


def fit(
    key: PRNGKeyArray,
    features: Shaped[Array | np.ndarray, "n d"],
    signals: Shaped[Array | np.ndarray, " n"],
    *,
    fprs: Sequence[float],
    training: Training = _networks.DEFAULT,
) -> Fitted:
    """Learns the (1 - fpr) quantiles of a non-member's signal from its features, by a network.

    One network with two hidden layers predicts all quantiles; each is the one before plus a
    positive step, so they never cross. Their pinball losses are averaged; the parameters with the
    smallest validation loss are kept. A tenth of the records validates and three tenths
    calibrate: with k = ceil((num_calibration + 1) (1 - fpr)) the threshold is the k-th smallest
    normal score of a calibration record, so a fresh non-member exceeds it with probability at
    most fpr, and a given calibration has the false positive rate Beta(num_calibration + 1 - k, k).

    Args:
      key: PRNG key.
      features: of known non-members; what the signal depends on, e.g. flattened inputs.
      signals: the target's signal of each; logit_confidence suits.
      fprs: at least two distinct false positive rates, in (0, 1), at least `smallest_fpr(n)`.
      training: maximum number of steps, batch size (records drawn with replacement) and learning
        rate.

    Returns:
      The attack, for `apply` and `quantiles`.

    Raises:
      ValueError: for NaN or infinite numbers, fewer than 10 records, fewer than two rates, or
        rates that repeat, are outside (0, 1), or are too small to calibrate.

    References:
      Bertran et al., Scalable Membership Inference Attacks via Quantile Regression, 2023,
      with several rates at once; Romano, Patterson and Candes, Conformalized Quantile
      Regression, 2019, Theorem 1, for the calibration.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features, signals = rng.normal(size=(200, 2)), rng.normal(size=200)
      >>> options = Training(steps=200, batch_size=64, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), features, signals, fprs=(0.5, 0.1), training=options)
      >>> fitted.fprs, fitted.num_calibration
      ((0.5, 0.1), 60)
    """
    split_key, train_key = jax.random.split(key)
    x, s, ordered = _checked(features, signals, fprs)
    train, validation, calibration = _split(_keys.numpy_rng(split_key), len(s))
    x_mean_std = (x[train].mean(axis=0), _networks.safe_std(x[train]))
    mean, deviation = s[train].mean(), _networks.safe_std(s[train])
    levels = jnp.asarray([1 - fpr for fpr in ordered], jnp.float32)
    data = [
        (_inputs(x[rows], x_mean_std), jnp.asarray((s[rows] - mean) / deviation, jnp.float32))
        for rows in (train, validation)
    ]
    params = _train(train_key, *data, levels, training)

    def predict(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n r"]:
        standard = _predict(params, _inputs(features, x_mean_std), len(ordered))
        return mean + deviation * np.asarray(standard, np.float64)

    return _calibrated(predict, x[calibration], s[calibration], ordered)


def fit_boosting(
    rng: np.random.Generator,
    features: Shaped[Array | np.ndarray, "n d"],
    signals: Shaped[Array | np.ndarray, " n"],
    *,
    fprs: Sequence[float],
) -> Fitted:
    """Learns the (1 - fpr) quantiles of a non-member's signal by gradient boosting.

    One gradient-boosted model for each rate, stopped early; predictions that cross are sorted.
    Calibrated like `fit`.

    Args:
      rng: random generator.
      features: of known non-members.
      signals: the target's signal of each.
      fprs: as for `fit`.

    Returns:
      The attack, for `apply` and `quantiles`.

    Raises:
      ValueError: as `fit`.

    References:
      Bertran et al., Scalable Membership Inference Attacks via Quantile Regression, 2023;
      Chernozhukov, Fernandez-Val and Galichon, Quantile and Probability Curves Without Crossing,
      2010, for the sorting.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features = rng.normal(size=(400, 2))
      >>> signals = features[:, 0] + rng.normal(size=400)
      >>> fitted = fit_boosting(rng, features, signals, fprs=(0.5, 0.1))
      >>> new = rng.normal(size=(1000, 2))
      >>> rate = (apply(fitted, new, new[:, 0] + rng.normal(size=1000)) > 1.2816).mean()
      >>> bool(0.03 < rate < 0.2)  # 0.1 was asked for, and 120 records calibrate it
      True
    """
    import threadpoolctl
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, s, ordered = _checked(features, signals, fprs)
    train, validation, calibration = _split(rng, len(s))
    rows = np.concatenate([train, validation])
    spread = float(_networks.safe_std(s[rows]))
    models = [
        HistGradientBoostingRegressor(
            loss="quantile",
            quantile=1 - fpr,
            max_iter=_BOOSTING_ROUNDS,
            early_stopping=True,  # pyright: ignore[reportArgumentType]  # annotated as a str
            validation_fraction=len(validation) / len(rows),
            random_state=int(rng.integers(2**31)),
        )
        for fpr in ordered
    ]
    # OpenMP's threads wait for each other after every split: minutes where a core is busy.
    with threadpoolctl.threadpool_limits(1, "openmp"):
        for model in models:
            model.fit(x[rows], s[rows])
    gaps = _MIN_QUANTILE_GAP * spread * np.arange(len(ordered))

    def predict(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n r"]:
        with threadpoolctl.threadpool_limits(1, "openmp"):
            columns = np.stack([model.predict(features) for model in models], axis=1)
        return np.sort(columns, axis=1) + gaps

    return _calibrated(predict, x[calibration], s[calibration], ordered)


def quantiles(
    fitted: Fitted, features: Shaped[Array | np.ndarray, "n d"]
) -> Float[np.ndarray, "n r"]:
    """Predicts the signal that a non-member exceeds with probability fpr.

    Args:
      fitted: from `fit` or `fit_boosting`.
      features: of the records to attack, of the kind that the fit was given.

    Returns:
      One column for each of `fitted.fprs`, strictly ascending.

    Raises:
      ValueError: for NaN or infinite features, or a number of features that differs from the fit.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features, signals = rng.normal(size=(200, 2)), rng.normal(size=200)
      >>> options = Training(steps=200, batch_size=64, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), features, signals, fprs=(0.5, 0.1), training=options)
      >>> quantiles(fitted, features[:5]).shape  # medians, and signals exceeded by 10 %
      (5, 2)
    """
    x = _networks.finite_float64("features", features)
    if x.ndim != 2 or x.shape[1] != fitted.num_features:
        raise ValueError(
            f"Expected features [n, {fitted.num_features}], got shape {list(x.shape)}."
        )
    z, q = _normal_levels(fitted.fprs), fitted.predict(x)
    c = fitted.calibration
    below = (c[:, None] > z[1:-1]).sum(axis=1)
    low, high = q[:, below], q[:, below + 1]
    return low + (c - z[below]) / (z[below + 1] - z[below]) * (high - low)


def apply(
    fitted: Fitted,
    features: Shaped[Array | np.ndarray, "n d"],
    signals: Shaped[Array | np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """Scores records by where their signal lies among what a non-member's would be.

    The scale is that of a standard normal: the calibrated quantile at rate fpr is sent to
    Phi^-1(1 - fpr), signals between two quantiles linearly, those beyond along the nearest two.
    So one threshold for all records, Phi^-1(1 - fpr), has that false positive rate.

    Args:
      fitted: from `fit` or `fit_boosting`.
      features: of the records to attack, of the kind that the fit was given.
      signals: the target's signal of each; infinite ones stay infinite.

    Returns:
      Normal scores; higher = more likely a member.

    Raises:
      ValueError: for NaN, infinite features, or shapes that do not fit.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> features, signals = rng.normal(size=(200, 2)), rng.normal(size=200)
      >>> options = Training(steps=200, batch_size=64, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), features, signals, fprs=(0.5, 0.1), training=options)
      >>> thresholds = quantiles(fitted, features[:1])[0]
      >>> round(float(apply(fitted, features[[0, 0]], thresholds)[1]), 3)  # Phi^-1(0.9)
      1.282
    """
    s, q = _networks.as_float64("signals", signals), quantiles(fitted, features)
    _check.same_length(features=q, signals=s)
    return _normal_scores(s, q, _normal_levels(fitted.fprs))


def _checked(
    features: Array | np.ndarray, signals: Array | np.ndarray, fprs: Sequence[float]
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"], tuple[float, ...]]:
    for fpr in fprs:
        _check.open_unit(fpr=fpr)
    if len(set(fprs)) < max(2, len(fprs)):
        raise ValueError(f"Expected at least two distinct fprs, got {list(fprs)}.")
    x = _networks.finite_float64("features", features)
    s = _networks.finite_float64("signals", signals)
    _check.same_length(features=x, signals=s)
    if len(s) < _needs.MIN_POPULATION:
        raise ValueError(
            f"Expected at least {_needs.MIN_POPULATION} known non-members, got {len(s)}."
        )
    smallest = smallest_fpr(len(s))
    if min(fprs) < smallest:
        raise ValueError(
            f"Expected fprs >= {smallest:.3g}, which {len(s)} known non-members can calibrate, "
            f"got {min(fprs)}."
        )
    return x, s, tuple(sorted((float(fpr) for fpr in fprs), reverse=True))


def _num_calibration(num_known: int) -> int:
    return round(_CALIBRATION_SHARE * num_known)


def _split(rng: np.random.Generator, size: int) -> list[np.ndarray]:
    """Rows of the training, the validation and the calibration part."""
    calibration = _num_calibration(size)
    validation = max(1, round(_VALIDATION_SHARE * size))
    cuts = [size - calibration - validation, size - calibration]
    return np.split(rng.permutation(size), cuts)


def _normal_levels(fprs: tuple[float, ...]) -> Float[np.ndarray, " r"]:
    from scipy import special

    return -special.ndtri(np.array(fprs))


def _normal_scores(
    s: Float[np.ndarray, " n"], q: Float[np.ndarray, "n r"], z: Float[np.ndarray, " r"]
) -> Float[np.ndarray, " n"]:
    """Sends quantiles to normal ones, and signals between or beyond them along the nearest two."""
    below = (s[:, None] > q[:, 1:-1]).sum(axis=1)
    low, high = (np.take_along_axis(q, (below + i)[:, None], axis=1)[:, 0] for i in (0, 1))
    return z[below] + (s - low) / (high - low) * (z[below + 1] - z[below])


def _calibrated(
    predict: Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, "n r"]],
    features: Float[np.ndarray, "n d"],
    signals: Float[np.ndarray, " n"],
    fprs: tuple[float, ...],
) -> Fitted:
    """Sets the thresholds on the normal scale by order statistics of the calibration part."""
    scores = np.sort(_normal_scores(signals, predict(features), _normal_levels(fprs)))
    size = len(scores)
    ranks = [math.ceil((size + 1) * (1 - fpr) - 1e-9) for fpr in fprs]
    # Thresholds of equal scores are spread by less than any difference that counts.
    thresholds = scores[np.array(ranks) - 1] + 1e-9 * np.arange(len(fprs))
    return Fitted(predict, features.shape[1], fprs, thresholds, size)


def _quantiles(params, features, num_rates):
    """Quantiles of one record, ascending, in standard units."""
    out = jnp.asarray(MLP(_WIDTHS, num_rates).apply(params, features))
    steps = jax.nn.softplus(out[1:]) + _MIN_QUANTILE_GAP
    return jnp.cumsum(jnp.concatenate([out[:1], steps]))


@functools.partial(jax.jit, static_argnames=("num_rates",))
def _predict(params, features, num_rates):
    return jax.vmap(_quantiles, in_axes=(None, 0, None))(params, features, num_rates)


@functools.partial(jax.jit, static_argnames=("training",))
def _train(key, data, validation, levels, training):
    """Minimises the pinball loss by Adam; returns the parameters of the best evaluation."""
    init_key, train_key = jax.random.split(key)
    optimizer = optax.adam(training.learning_rate)

    def mean_loss(params, features, signals):
        predicted = jax.vmap(_quantiles, in_axes=(None, 0, None))(params, features, len(levels))
        return pinball(
            signals[:, None] - predicted, jnp.broadcast_to(levels, predicted.shape)
        ).mean()

    def step(state, key):
        rows = jax.random.randint(key, (training.batch_size,), 0, len(data[1]))
        grads = jax.grad(mean_loss)(state.params, data[0][rows], data[1][rows])
        return _step.apply_gradient(optimizer, state, grads), None

    def steps_and_evaluation(carry, keys):
        state, best, best_loss = carry
        state, _ = jax.lax.scan(step, state, keys)
        loss = mean_loss(state.params, *validation)
        is_better = loss < best_loss
        best = jax.tree.map(lambda new, old: jnp.where(is_better, new, old), state.params, best)
        return (state, best, jnp.minimum(loss, best_loss)), None

    params = MLP(_WIDTHS, len(levels)).init(init_key, data[0][0])
    state = _step.initial_state(optimizer, params)
    keys = jax.random.split(train_key, training.steps)
    interval = max(1, training.steps // _EVALUATIONS)
    num_intervals = training.steps // interval
    in_full, rest = keys[: num_intervals * interval], keys[num_intervals * interval :]
    carry = (state, params, jnp.float32(jnp.inf))
    carry, _ = jax.lax.scan(steps_and_evaluation, carry, in_full.reshape(num_intervals, interval))
    if len(rest):
        carry, _ = steps_and_evaluation(carry, rest)
    return carry[1]


def _inputs(
    features: Float[np.ndarray, "n d"],
    mean_std: tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]],
) -> Float[Array, "n d"]:
    """Standardises features, and clips what lies far outside of the training part."""
    mean, deviation = mean_std
    standard = jnp.asarray((features - mean) / deviation, jnp.float32)
    return jnp.clip(standard, -_INPUT_CLIP, _INPUT_CLIP)
