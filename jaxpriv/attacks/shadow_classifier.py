"""Shadow-model attack: a network learns membership from the outputs of shadow models.

    shadow outputs --flatten--> examples --balance IN and OUT--> k attack models --> log odds

In the shapes below `m` counts shadow models, `n` records, `c` classes, `k` attack models, `r`
outputs of all shadow models and `s` rows of a side.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.attacks import _networks, _shadows
from jaxpriv.attacks._networks import Training
from jaxpriv.models import MLP

__all__ = ["Fitted", "apply", "fit", "fit_per_class"]

_NET = MLP(widths=(64,) * 5, num_classes=1)

_FLOOR = -30.0
"""Smaller log probabilities are raised to this value, so that probability 0 is a finite input."""


class Fitted(NamedTuple):
    """Trained attack models and the scale of their inputs.

    params: parameters of the k attack models; the last one is for all classes.
    mean, scale: mean and standard deviation of the log probabilities in training.
    fell_back: classes that use the last model; any other class i uses model i.
    """

    params: Params
    mean: Float[np.ndarray, " c"]
    scale: Float[np.ndarray, " c"]
    fell_back: Bool[np.ndarray, " c"]


class _Examples(NamedTuple):
    """Outputs of all shadow models, one in each row."""

    log_probs: Float[np.ndarray, "r c"]
    labels: Int[np.ndarray, " r"]
    is_member: Bool[np.ndarray, " r"]


class _BalancedRows(NamedTuple):
    """Training rows of each attack model: `size` on either side, then padding."""

    members: Int[np.ndarray, "k s"]
    nonmembers: Int[np.ndarray, "k s"]
    size: Int[np.ndarray, " k"]


def fit(
    key: PRNGKeyArray,
    log_probs: Shaped[Array | np.ndarray, "m n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    shadow_is_member: _shadows.IsMember,
    *,
    training: Training = _networks.DEFAULT,
) -> Fitted:
    """Trains one attack model for all classes on the outputs of shadow models.

    The input of the network is an output of a shadow model and the one-hot label; the target is
    whether the record was in that shadow model's training set. Five ReLU layers, cross-entropy,
    Adam. The larger of the IN and OUT sides is subsampled, and every batch has half of each.

    The papers use probabilities. Their logarithms have the same information, and also separate
    0.999 from 0.999999, the range in which members of overfitted models differ.

    Args:
      key: PRNG key.
      log_probs: log softmax of each shadow model's outputs; at most 0, -inf allowed.
      labels: true classes, in 0..c-1.
      shadow_is_member: which records each shadow model was trained on.
      training: options of the training.

    Returns:
      The fitted attack, for `apply`.

    Raises:
      ValueError: for NaN, positive log probabilities, labels out of range, shapes that do not
        fit, or if all outputs are IN or all are OUT.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, with one
      model for all classes and five layers as in Yang et al., On the Privacy Risks of Deploying
      Recurrent Neural Networks in Machine Learning Models, 2023, section 3.2.

    Example:
      >>> is_member = np.arange(80).reshape(2, 40) % 2 == 0
      >>> p = np.where(is_member, 0.99, 0.6)[..., None]  # members are confident
      >>> log_probs, labels = np.log(np.concatenate([p, 1 - p], axis=-1)), np.zeros(40, int)
      >>> options = Training(steps=30, batch_size=32, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), log_probs, labels, is_member, training=options)
      >>> (apply(fitted, np.log([[0.99, 0.01], [0.6, 0.4]]), np.array([0, 0])) > 0).tolist()
      [True, False]
    """
    rows = _examples(log_probs, labels, shadow_is_member)
    mean, scale = rows.log_probs.mean(axis=0), _networks.safe_std(rows.log_probs)
    balance_key, train_key = jax.random.split(key)
    balanced = _balanced(balance_key, rows.is_member, np.zeros_like(rows.labels), 1)
    data, mean_std = (rows.log_probs, rows.labels), (mean, scale)
    params = _train(train_key, data, mean_std, balanced, training)
    return Fitted(params, mean, scale, np.ones(len(mean), bool))


def fit_per_class(
    key: PRNGKeyArray,
    log_probs: Shaped[Array | np.ndarray, "m n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    shadow_is_member: _shadows.IsMember,
    *,
    min_rows: int = 32,
    training: Training = _networks.DEFAULT,
) -> Fitted:
    """Trains an attack model for each class, on the outputs for records of that class.

    A class with fewer than min_rows IN or OUT outputs uses the model that `fit` trains on all.

    Args:
      key: PRNG key.
      log_probs: as for `fit`.
      labels: as for `fit`.
      shadow_is_member: as for `fit`.
      min_rows: minimum number of outputs on either side for a separate model; >= 1.
      training: options of the training of each model.

    Returns:
      The fitted attack, for `apply`; `fell_back` marks the classes without a separate model.

    Raises:
      ValueError: as for `fit`, or if min_rows < 1.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, V-C.

    Example:
      >>> is_member = np.arange(80).reshape(2, 40) % 2 == 0
      >>> p = np.where(is_member, 0.99, 0.6)[..., None]
      >>> log_probs = np.log(np.concatenate([p, 1 - p], axis=-1))
      >>> labels = (np.arange(40) >= 36).astype(int)  # four records of class 1
      >>> options = Training(steps=30, batch_size=32, learning_rate=1e-2)
      >>> fitted = fit_per_class(
      ...     jax.random.key(0), log_probs, labels, is_member, min_rows=16, training=options
      ... )
      >>> fitted.fell_back
      array([False,  True])
    """
    _check.positive_int(min_rows=min_rows)
    global_key, balance_key, train_key = jax.random.split(key, 3)
    pooled = fit(global_key, log_probs, labels, shadow_is_member, training=training)
    rows = _examples(log_probs, labels, shadow_is_member)
    balanced = _balanced(balance_key, rows.is_member, rows.labels, len(pooled.mean))
    data, mean_std = (rows.log_probs, rows.labels), (pooled.mean, pooled.scale)
    by_class = _train(train_key, data, mean_std, balanced, training)
    params = jax.tree.map(lambda *p: jnp.concatenate(p), by_class, pooled.params)
    return pooled._replace(params=params, fell_back=balanced.size < min_rows)


def apply(
    fitted: Fitted,
    log_probs: Shaped[Array | np.ndarray, "n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
) -> Float[np.ndarray, " n"]:
    """Scores records by their log odds of membership given the target's outputs.

    Args:
      fitted: fitted attack, from `fit` or `fit_per_class`.
      log_probs: log softmax of the target's outputs; at most 0, -inf allowed.
      labels: true classes, in 0..c-1.

    Returns:
      Log odds at even priors, in nats; > 0 indicates a member.

    Raises:
      ValueError: for NaN, positive log probabilities, labels out of range, or a number of classes
        that differs from training.

    Example:
      >>> is_member = np.arange(80).reshape(2, 40) % 2 == 0
      >>> p = np.where(is_member, 0.99, 0.6)[..., None]
      >>> log_probs, labels = np.log(np.concatenate([p, 1 - p], axis=-1)), np.zeros(40, int)
      >>> options = Training(steps=30, batch_size=32, learning_rate=1e-2)
      >>> fitted = fit(jax.random.key(0), log_probs, labels, is_member, training=options)
      >>> apply(fitted, log_probs[0], labels).shape
      (40,)
    """
    outputs = _log_probs(log_probs)
    if outputs.shape[-1] != len(fitted.mean):
        raise ValueError(f"Expected {len(fitted.mean)} classes, got {outputs.shape[-1]}.")
    targets = _check.labels(labels, num_classes=len(fitted.mean))
    _check.same_length(log_probs=outputs, labels=targets)
    return np.asarray(_log_odds(fitted, outputs, targets), np.float64)


@jax.jit
def _log_odds(fitted, log_probs, labels):
    inputs = _inputs(log_probs, labels, fitted.mean, fitted.scale)
    by_model = jax.lax.map(lambda params: _log_odds_of(params, inputs), fitted.params)
    num_classes = len(fitted.fell_back)
    model = jnp.where(fitted.fell_back, len(by_model) - 1, jnp.arange(num_classes))[labels]
    return jnp.take_along_axis(by_model, model[None], axis=0)[0]


@functools.partial(jax.jit, static_argnames=("training",))
def _train(
    key: PRNGKeyArray,
    data: tuple[Float[Array, "r c"], Int[Array, " r"]],
    mean_std: tuple[Float[Array, " c"], Float[Array, " c"]],
    balanced: _BalancedRows,
    training: Training,
) -> Params:
    """Trains one attack model for each row of `balanced`, by vmap."""
    log_probs, labels = data

    def log_odds(params, key, rows, count):
        shape = (training.batch_size // 2,)
        chosen = rows[jax.random.randint(key, shape, 0, jnp.maximum(count, 1))]
        return _log_odds_of(params, _inputs(log_probs[chosen], labels[chosen], *mean_std))

    def train_model(key, rows):
        init_key, train_key = jax.random.split(key)

        def loss(params, key):
            in_key, out_key = jax.random.split(key)
            return -_networks.gain(
                log_odds(params, in_key, rows.members, rows.size),
                log_odds(params, out_key, rows.nonmembers, rows.size),
            )

        params = _NET.init(init_key, _inputs(log_probs[:1], labels[:1], *mean_std))
        return _networks.minimise(train_key, loss, params, training=training)

    return jax.vmap(train_model)(jax.random.split(key, len(balanced.size)), balanced)


def _log_odds_of(params: Params, inputs: Float[Array, "b d"]) -> Float[Array, " b"]:
    """Computes the log odds of one attack model."""
    return jnp.asarray(_NET.apply(params, inputs))[:, 0]


def _inputs(log_probs: Any, labels: Any, mean: Any, scale: Any) -> Float[Array, "b d"]:
    return jnp.concatenate([(log_probs - mean) / scale, jax.nn.one_hot(labels, len(mean))], axis=-1)


def _balanced(
    key: PRNGKeyArray, is_member: Bool[np.ndarray, " r"], group: Int[np.ndarray, " r"], k: int
) -> _BalancedRows:
    """Draws equally many random IN and OUT rows of each of k groups.

    Rows are padded to a power of two, so that pools of similar size share a compiled program.
    """
    order = np.asarray(jax.random.permutation(key, len(is_member)))
    of_group, is_in = group[order], is_member[order]
    drawn = [[order[(of_group == g) & (is_in == side)] for side in (True, False)] for g in range(k)]
    count = np.array([min(map(len, sides)) for sides in drawn], np.int32)
    members, nonmembers = np.zeros((2, k, 1 << int(count.max()).bit_length()), np.int32)
    for i, (in_rows, out_rows) in enumerate(drawn):
        members[i, : count[i]] = in_rows[: count[i]]
        nonmembers[i, : count[i]] = out_rows[: count[i]]
    return _BalancedRows(members, nonmembers, count)


def _examples(log_probs: Any, labels: Any, shadow_is_member: Any) -> _Examples:
    """Checks the arrays and flattens them to one row for each output."""
    outputs, is_member = _log_probs(log_probs), _shadows.as_bool(shadow_is_member)
    shape = len(is_member), len(labels)
    if outputs.ndim != 3 or not outputs.shape[:2] == is_member.shape == shape:
        raise ValueError(
            f"Expected shapes [m, n, c], [n] and [m, n], got {list(outputs.shape)}, "
            f"{[len(labels)]} and {list(is_member.shape)}."
        )
    num_in = int(is_member.sum())
    if num_in in (0, is_member.size):
        num_out = is_member.size - num_in
        raise ValueError(f"Expected IN and OUT outputs, got {num_in} and {num_out}.")
    num_classes = outputs.shape[-1]
    targets = np.tile(_check.labels(labels, num_classes=num_classes), len(is_member))
    return _Examples(outputs.reshape(-1, num_classes), targets, is_member.ravel())


def _log_probs(values: Shaped[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    array = _networks.as_float64("log_probs", values)
    if array.max(initial=-np.inf) > 1e-2:
        raise ValueError(f"Expected log probabilities <= 0, got {array.max():g}.")
    return np.maximum(array, _FLOOR).astype(np.float32)
