"""The shadow-model attack: a network that learns membership from the outputs of shadow models.

In the shapes below `m` counts shadow models, `n` records, `c` classes, `k` attack models.
"""

import functools
from typing import NamedTuple

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
"""Smaller log-probabilities count as this, so that a probability of 0 is an input like others."""


class Fitted(NamedTuple):
    """The attack models and the units of their inputs.

    params: of the k attack models; the last one serves every class.
    mean, scale: of the log-probabilities that the attack was trained on.
    fell_back: which classes the last model serves; class i has model i otherwise.
    """

    params: Params
    mean: Float[np.ndarray, " c"]
    scale: Float[np.ndarray, " c"]
    fell_back: Bool[np.ndarray, " c"]


class _Rows(NamedTuple):
    """One row an output of a shadow model."""

    log_probs: Float[np.ndarray, "r c"]
    labels: Int[np.ndarray, " r"]
    inside: Bool[np.ndarray, " r"]


class _Sides(NamedTuple):
    """Rows that an attack model learns from: `size` of them on either side, then padding."""

    members: Int[np.ndarray, "k s"]
    others: Int[np.ndarray, "k s"]
    size: Int[np.ndarray, " k"]


def fit(
    key: PRNGKeyArray,
    log_probs: Shaped[Array | np.ndarray, "m n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    shadow_is_member: _shadows.IsMember,
    *,
    training: Training = _networks.DEFAULT,
) -> Fitted:
    """Trains one attack model for all classes on what the shadow models say.

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
        fit, membership of one kind only, or a batch size that is odd.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, with one
      model for all classes and five layers as in Yang et al., On the Privacy Risks of Deploying
      Recurrent Neural Networks in Machine Learning Models, 2023, section 3.2.
    """
    rows = _rows(log_probs, labels, shadow_is_member)
    mean, scale = rows.log_probs.mean(axis=0), _networks.safe_std(rows.log_probs)
    balance_key, train_key = jax.random.split(key)
    sides = _balanced(balance_key, rows.inside, np.zeros_like(rows.labels), 1)
    data, units = (rows.log_probs, rows.labels), (mean, scale)
    params = _train(train_key, data, units, sides, training)
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
      The attack, for `apply`; `fell_back` names the classes without a model of their own.

    Raises:
      ValueError: as for `fit`.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, V-C.
    """
    _check.positive_int(min_rows=min_rows)
    global_key, balance_key, train_key = jax.random.split(key, 3)
    whole = fit(
        global_key,
        log_probs,
        labels,
        shadow_is_member,
        training=training,
    )
    rows = _rows(log_probs, labels, shadow_is_member)
    sides = _balanced(balance_key, rows.inside, rows.labels, len(whole.mean))
    data, units = (rows.log_probs, rows.labels), (whole.mean, whole.scale)
    own = _train(train_key, data, units, sides, training)
    params = jax.tree.map(lambda *p: jnp.concatenate(p), own, whole.params)
    return whole._replace(params=params, fell_back=sides.size < min_rows)


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
      Log odds at even priors, nats; > 0 says member.

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
    every = jax.lax.map(lambda params: _ask(params, inputs), fitted.params)
    num_classes = len(fitted.fell_back)
    model = jnp.where(fitted.fell_back, len(every) - 1, jnp.arange(num_classes))[labels]
    return jnp.take_along_axis(every, model[None], axis=0)[0]


@functools.partial(jax.jit, static_argnames=("training",))
def _train(key, data, units, sides, training):
    """As many attack models as `sides` has rows, side by side."""

    def log_odds(params, key, rows, count):
        chosen = rows[
            jax.random.randint(key, (training.batch_size // 2,), 0, jnp.maximum(count, 1))
        ]
        return _ask(params, _inputs(*(leaf[chosen] for leaf in data), *units))

    def one(key, side):
        init_key, train_key = jax.random.split(key)

        def loss(params, key):
            in_key, out_key = jax.random.split(key)
            return -_networks.gain(
                log_odds(params, in_key, side.members, side.size),
                log_odds(params, out_key, side.others, side.size),
            )

        params = _NET.init(init_key, _inputs(*(leaf[:1] for leaf in data), *units))
        return _networks.minimise(train_key, loss, params, training=training)

    return jax.vmap(one)(jax.random.split(key, len(sides.size)), sides)


def _ask(params, inputs) -> Float[Array, " b"]:
    """The log odds that one attack model gives."""
    return jnp.asarray(_NET.apply(params, inputs))[:, 0]


def _inputs(log_probs, labels, mean, scale):
    return jnp.concatenate([(log_probs - mean) / scale, jax.nn.one_hot(labels, len(mean))], axis=-1)


def _balanced(
    key: PRNGKeyArray, inside: Bool[np.ndarray, " r"], group: Int[np.ndarray, " r"], k: int
) -> _Sides:
    """Equally many random IN and OUT rows of each of k groups.

    Padded to a power of two, so that pools of similar size share one compiled program.
    """
    order = np.asarray(jax.random.permutation(key, len(inside)))
    of_group, is_in = group[order], inside[order]
    drawn = [[order[(of_group == g) & (is_in == side)] for side in (True, False)] for g in range(k)]
    count = np.array([min(map(len, sides)) for sides in drawn], np.int32)
    members, others = np.zeros((2, k, 1 << int(count.max()).bit_length()), np.int32)
    for i, (ins, outs) in enumerate(drawn):
        members[i, : count[i]], others[i, : count[i]] = ins[: count[i]], outs[: count[i]]
    return _Sides(members, others, count)


def _rows(log_probs, labels, shadow_is_member) -> _Rows:
    """One row an output, after the checks."""
    outputs, inside = _log_probs(log_probs), _shadows.as_bool(shadow_is_member)
    if outputs.ndim != 3 or not outputs.shape[:2] == inside.shape == (len(inside), len(labels)):
        raise ValueError(
            f"Expected shapes [m, n, c], [n] and [m, n], got {list(outputs.shape)}, "
            f"{[len(labels)]} and {list(inside.shape)}."
        )
    ins = int(inside.sum())
    if ins in (0, inside.size):
        raise ValueError(f"Expected IN and OUT outputs, got {ins} and {inside.size - ins}.")
    num_classes = outputs.shape[-1]
    targets = np.tile(_check.labels(labels, num_classes=num_classes), len(inside))
    return _Rows(outputs.reshape(-1, num_classes), targets, inside.ravel())


def _log_probs(values: Shaped[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    array = _networks.as_float64("log_probs", values)
    if array.max(initial=-np.inf) > 1e-2:
        raise ValueError(f"Expected log-probabilities <= 0, got {array.max():g}.")
    return np.maximum(array, _FLOOR).astype(np.float32)
