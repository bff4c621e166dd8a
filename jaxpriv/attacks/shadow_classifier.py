"""The shadow-model attack: a network that learns membership from the outputs of shadow models.

In the shapes below `m` counts shadow models, `n` records, `c` classes, `k` attack models.
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

_NET = MLP(widths=(64,) * 5, num_classes=1)

_FLOOR = -30.0
"""Smaller log-probabilities count as this, so that a probability of 0 is an ordinary input."""


class Fitted(NamedTuple):
    """The attack models and the scale of their inputs.

    params: of the k attack models; the last one serves every class.
    mean, scale: of the log-probabilities that the attack was trained on.
    fell_back: which classes the last model serves; class i has model i otherwise.
    """

    params: Params
    mean: Float[np.ndarray, " c"]
    scale: Float[np.ndarray, " c"]
    fell_back: Bool[np.ndarray, " c"]


class _Examples(NamedTuple):
    """One row an output of a shadow model."""

    log_probs: Float[np.ndarray, "r c"]
    labels: Int[np.ndarray, " r"]
    is_member: Bool[np.ndarray, " r"]


class _BalancedRows(NamedTuple):
    """Rows that an attack model learns from: `size` of them on either side, then padding."""

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

    Its input is an output of a shadow model and the one-hot label, its target whether the record
    was in that shadow's training set; five ReLU layers, cross-entropy, Adam. IN and OUT outputs
    are equally many: the larger side is subsampled, and every batch holds half of either.

    The papers feed confidences. Their logarithms carry the same information, and still tell
    0.999 from 0.999999, which is where members of overfitted models differ.

    Args:
      key: consumed.
      log_probs: log softmax of each shadow model's outputs; at most 0, -inf allowed.
      labels: true classes, in 0..c-1.
      shadow_is_member: which records each shadow model was trained on.
      training: steps, batch size (half of the rows are IN) and learning rate.

    Returns:
      The attack, for `apply`.

    Raises:
      ValueError: for NaN, positive log-probabilities, labels out of range, shapes that do not
        fit, or membership of one kind only.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, with one
      model for all classes and five layers as in Yang et al., On the Privacy Risks of Deploying
      Recurrent Neural Networks in Machine Learning Models, 2023, section 3.2.
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

    A class with fewer than min_rows IN or OUT outputs takes the model that `fit` trains on all.

    Args:
      key: consumed.
      log_probs: as for `fit`.
      labels: as for `fit`.
      shadow_is_member: as for `fit`.
      min_rows: outputs on either side from which a class has a model of its own; >= 1.
      training: of each model.

    Returns:
      The attack, for `apply`; `fell_back` marks the classes without a model of their own.

    Raises:
      ValueError: as for `fit`.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, V-C.
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
    """Scores records by the log odds of membership that the attack sees in the target's outputs.

    Args:
      fitted: from `fit` or `fit_per_class`.
      log_probs: log softmax of the target's outputs; at most 0, -inf allowed.
      labels: true classes, in 0..c-1.

    Returns:
      Log odds at even priors, nats; > 0 indicates a member.

    Raises:
      ValueError: for NaN, positive log-probabilities, labels out of range, or another number of
        classes than the attack was trained on.
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
    every = jax.lax.map(lambda params: _log_odds_of(params, inputs), fitted.params)
    num_classes = len(fitted.fell_back)
    model = jnp.where(fitted.fell_back, len(every) - 1, jnp.arange(num_classes))[labels]
    return jnp.take_along_axis(every, model[None], axis=0)[0]


@functools.partial(jax.jit, static_argnames=("training",))
def _train(
    key: PRNGKeyArray,
    data: tuple[Any, Any],
    mean_std: tuple[Any, Any],
    balanced: _BalancedRows,
    training: Training,
) -> Params:
    """Trains one attack model for each row of `balanced`, by vmap."""
    log_probs, labels = data

    def log_odds(params, key, rows, count):
        shape = (training.batch_size // 2,)
        chosen = rows[jax.random.randint(key, shape, 0, jnp.maximum(count, 1))]
        return _log_odds_of(params, _inputs(log_probs[chosen], labels[chosen], *mean_std))

    def one(key, side):
        init_key, train_key = jax.random.split(key)

        def loss(params, key):
            in_key, out_key = jax.random.split(key)
            return -_networks.gain(
                log_odds(params, in_key, side.members, side.size),
                log_odds(params, out_key, side.nonmembers, side.size),
            )

        params = _NET.init(init_key, _inputs(log_probs[:1], labels[:1], *mean_std))
        return _networks.minimise(train_key, loss, params, training=training)

    return jax.vmap(one)(jax.random.split(key, len(balanced.size)), balanced)


def _log_odds_of(params: Params, inputs: Float[Array, "b d"]) -> Float[Array, " b"]:
    """The log odds that one attack model gives."""
    return jnp.asarray(_NET.apply(params, inputs))[:, 0]


def _inputs(log_probs: Any, labels: Any, mean: Any, scale: Any) -> Float[Array, "b d"]:
    return jnp.concatenate([(log_probs - mean) / scale, jax.nn.one_hot(labels, len(mean))], axis=-1)


def _balanced(
    key: PRNGKeyArray, is_member: Bool[np.ndarray, " r"], group: Int[np.ndarray, " r"], k: int
) -> _BalancedRows:
    """Equally many random IN and OUT rows of each of k groups.

    Padded to a power of two, so that pools of similar size share one compiled program.
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
    """One row an output, after the checks."""
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
        raise ValueError(f"Expected log-probabilities <= 0, got {array.max():g}.")
    return np.maximum(array, _FLOOR).astype(np.float32)
