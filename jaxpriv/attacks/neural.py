"""Neural attack: a network learns from records whose membership is known.

In the shapes below `n` counts records and `c` classes.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Integer, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.attacks import _networks
from jaxpriv.attacks._networks import Training
from jaxpriv.models import MembershipNet

__all__ = ["Outputs", "apply", "fit", "gain", "log_odds"]


class Outputs(NamedTuple):
    """Outputs of the target for some records.

    predictions: f(x), probabilities as in the paper or logits as in its authors' code; fit and
      apply must use the same kind.
    labels: true classes, in 0..c-1.
    """

    predictions: Shaped[Array | np.ndarray, "n c"]
    labels: Shaped[Array | np.ndarray, "n ..."]


def log_odds(
    params: Params, prediction: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Computes the log odds of membership of one example, log(h / (1 - h)).

    Args:
      params: parameters of MembershipNet.
      prediction: f(x), of the same kind as in training.
      label: true class.

    Returns:
      Log odds at even priors, in nats; > 0 indicates a member. Differentiable with respect to the
      parameters and the prediction.

    Example:
      >>> shapes = jax.eval_shape(MembershipNet().init, jax.random.key(0), jnp.zeros(2), 0)
      >>> params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      >>> float(log_odds(params, jnp.array([0.9, 0.1]), 0))  # zero weights, no evidence
      0.0
    """
    return MembershipNet().apply(params, prediction, label)  # pyright: ignore[reportReturnType]


def gain(params: Params, members: Outputs, nonmembers: Outputs) -> Float[Array, ""]:
    """Computes the attacker's gain.

    E[log h] / 2 over members + E[log(1 - h)] / 2 over non-members.

    Args:
      params: parameters of MembershipNet.
      members: outputs for members.
      nonmembers: outputs for non-members; either side has weight 1/2 whatever its size.

    Returns:
      The gain, at most 0; -log 2 without evidence.

    References:
      Nasr et al., Machine Learning with Membership Privacy using Adversarial Regularization,
      2018, equations 3 and 4.

    Example:
      >>> shapes = jax.eval_shape(MembershipNet().init, jax.random.key(0), jnp.zeros(2), 0)
      >>> params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      >>> outputs = Outputs(jnp.array([[0.9, 0.1]]), jnp.array([0]))
      >>> round(float(gain(params, outputs, outputs)), 3)  # -log 2
      -0.693
    """
    batched = jax.vmap(log_odds, in_axes=(None, 0, 0))
    return _networks.gain(batched(params, *members), batched(params, *nonmembers))


def fit(
    key: PRNGKeyArray,
    members: Outputs,
    nonmembers: Outputs,
    *,
    training: Training = _networks.DEFAULT,
) -> Params:
    """Trains MembershipNet to separate known members from known non-members.

    Maximises `gain` by Adam. Half of every batch are members and half non-members, drawn with
    replacement, so the sides may differ in number.

    Args:
      key: PRNG key.
      members: outputs for records that the target was trained on.
      nonmembers: outputs for records that it was not trained on.
      training: options of the training; the paper's learning rate is 1e-3. About the first
        hundred steps change little, since the initial weights are small.

    Returns:
      The parameters of MembershipNet, for `apply`.

    Raises:
      ValueError: for NaN or infinite predictions, labels out of range, no members, no non-members,
        or unequal numbers of classes.

    References:
      Nasr et al., Machine Learning with Membership Privacy using Adversarial Regularization,
      2018, section 5.3.

    Example:
      >>> members = Outputs(np.tile([1.0, 0.0], (20, 1)), np.zeros(20, int))
      >>> nonmembers = Outputs(np.tile([0.6, 0.4], (20, 1)), np.zeros(20, int))
      >>> options = Training(steps=30, batch_size=20, learning_rate=1e-2)
      >>> params = fit(jax.random.key(0), members, nonmembers, training=options)
      >>> scores = apply(params, Outputs(np.array([[1.0, 0.0], [0.6, 0.4]]), np.array([0, 0])))
      >>> bool(scores[0] > scores[1])
      True
    """
    checked = _checked(members), _checked(nonmembers)
    sizes = [len(outputs.labels) for outputs in checked]
    if 0 in sizes:
        raise ValueError(f"Expected members and non-members, got {sizes[0]} and {sizes[1]}.")
    widths = [outputs.predictions.shape[1] for outputs in checked]
    if widths[0] != widths[1]:
        raise ValueError(
            f"Expected equally many classes, got {widths[0]} for members and {widths[1]} for "
            "non-members."
        )
    return _train(key, *checked, training)


def apply(fitted: Params, outputs: Outputs) -> Float[np.ndarray, " n"]:
    """Scores records by their log odds of membership.

    Args:
      fitted: parameters of MembershipNet, from `fit`.
      outputs: outputs of the target, of the same kind as in training.

    Returns:
      Log odds at even priors, in nats; > 0 indicates a member.

    Raises:
      ValueError: for NaN or infinite predictions, or labels out of range.

    Example:
      >>> shapes = jax.eval_shape(MembershipNet().init, jax.random.key(0), jnp.zeros(2), 0)
      >>> params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      >>> apply(params, Outputs(np.array([[1.0, 0.0], [0.6, 0.4]]), np.array([0, 0])))
      array([0., 0.])
    """
    return np.asarray(_batched_log_odds(fitted, *_checked(outputs)), np.float64)


_batched_log_odds = jax.jit(jax.vmap(log_odds, in_axes=(None, 0, 0)))


@functools.partial(jax.jit, static_argnames=("training",))
def _train(key: PRNGKeyArray, members: Outputs, nonmembers: Outputs, training: Training) -> Params:
    init_key, train_key = jax.random.split(key)

    def draw(key, outputs):
        rows = jax.random.randint(key, (training.batch_size // 2,), 0, len(outputs.labels))
        return jax.tree.map(lambda leaf: leaf[rows], outputs)

    def loss(params, key):
        in_key, out_key = jax.random.split(key)
        return -gain(params, draw(in_key, members), draw(out_key, nonmembers))

    params = MembershipNet().init(init_key, members.predictions[0], members.labels[0])
    return _networks.minimise(train_key, loss, params, training=training)


def _checked(outputs: Outputs) -> Outputs:
    predictions = _networks.finite_float64("predictions", outputs.predictions)
    if predictions.ndim != 2:
        raise ValueError(f"Expected predictions [n, c], got shape {list(predictions.shape)}.")
    labels = _check.labels(outputs.labels, num_classes=predictions.shape[1])
    _check.same_length(predictions=predictions, labels=labels)
    return Outputs(jnp.asarray(predictions, jnp.float32), jnp.asarray(labels))
