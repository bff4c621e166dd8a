"""Canaries: records that coins insert into a training, whose membership an audit guesses.

    records --ordinary--> Tagged --with_inputs, with_dirac, a coin for each--> Tagged
    any training of loss_with_canaries(loss) on it --scores--> audit.lower_bounds

A canary whose coin leaves it out remains in the data as a row whose loss is 0, so that the arrays
of all trainings have one shape. Such a row adds nothing to a sum of gradients: where each record is
sampled independently and the divisor counts the rows, that is the training without the record. In
the shapes below `n` counts rows, `m` canaries and `s` the entries of a Dirac canary.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check, _tree
from jaxpriv._types import Batch, Keys, Loss, Params

__all__ = [
    "ABSENT",
    "ORDINARY",
    "Dirac",
    "Tagged",
    "blank",
    "crafted",
    "dirac",
    "loss_scores",
    "loss_with_canaries",
    "mislabelled",
    "ordinary",
    "update_scores",
    "with_dirac",
    "with_inputs",
]

ORDINARY = -1
"""Tag of a row with the user's loss: a record, or a canary that is an input with a label."""

ABSENT = -2
"""Tag of a canary whose coin left it out."""


class Tagged(NamedTuple):
    """Rows of a training with canaries, for `loss_with_canaries`.

    record: the records, every leaf [n, ...].
    tag: [n]; `ORDINARY`, `ABSENT`, or the number of a Dirac canary.
    """

    record: Batch
    tag: Int[Array | np.ndarray, "*n"]


class Dirac(NamedTuple):
    """Canaries with a constant gradient in few entries of the parameters.

    positions: entries of each canary, as indices into the concatenated leaves.
    scales: norm of the gradient of each canary, negative for the opposite gradient; at least the
      clip norm makes the influence largest.

    Example:
      >>> canary = Dirac(positions=jnp.array([[1]]), scales=jnp.array([2.0]))
      >>> canary.scores(before=jnp.array([0.0, 0.0]), after=jnp.array([0.5, -3.0])).tolist()
      [6.0]
    """

    positions: Int[Array, "m s"]
    scales: Float[Array, " m"]

    def losses(self, params: Params) -> Float[Array, " m"]:
        """Computes the loss of each canary, which is linear in the parameters.

        Args:
          params: parameters.

        Returns:
          Scale / sqrt(s) times the sum of the entries of each canary.
        """
        entries = [leaf.reshape(-1).astype(jnp.float32) for leaf in jax.tree.leaves(params)]
        per_entry = self.scales / math.sqrt(self.positions.shape[1])
        return per_entry * jnp.concatenate(entries)[self.positions].sum(axis=1)

    def scores(self, *, before: Params, after: Params) -> Float[Array, " m"]:
        """Scores canaries by the inner product of their gradient with a released update.

        Args:
          before: parameters before the training, or before a step.
          after: parameters that were released.

        Returns:
          Scores; higher = more likely a member, where the optimiser descends.
        """
        return self.losses(before) - self.losses(after)


def dirac(key: PRNGKeyArray, params: Params, *, count: int, scale: float) -> Dirac:
    """Draws canaries with one entry of the parameters each, all of them different.

    Canaries in different entries do not disturb each other, so that one training tests many.

    Args:
      key: PRNG key.
      params: parameters, or their shapes.
      count: m, at most the number of parameters.
      scale: norm of the gradient of a canary; > 0.

    Returns:
      The canaries.

    Raises:
      ValueError: if there are fewer parameters than canaries, or scale is not positive.

    References:
      Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023, section 4.2.

    Example:
      >>> canaries = dirac(jax.random.key(0), jnp.zeros((2, 3)), count=6, scale=1.0)
      >>> sorted(canaries.positions[:, 0].tolist())
      [0, 1, 2, 3, 4, 5]
    """
    _check.positive_int(count=count)
    _check.positive(scale=scale)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    if count > size:
        raise ValueError(f"Expected at most {size} canaries, one a parameter, got count={count}.")
    chosen = jax.random.choice(key, size, (count, 1), replace=False)
    return Dirac(chosen.astype(jnp.int32), jnp.full(count, scale, jnp.float32))


def ordinary(records: Batch) -> Tagged:
    """Tags records that are no canaries.

    Args:
      records: pytree with leading axis n.

    Returns:
      The records with their tags.

    Example:
      >>> ordinary(np.zeros((2, 3))).tag.tolist()
      [-1, -1]
    """
    return Tagged(records, np.full(_tree.num_rows(records, name="records"), ORDINARY, np.int32))


def with_inputs(data: Tagged, canaries: Batch, is_member: Bool[np.ndarray, " m"]) -> Tagged:
    """Appends canaries that are records themselves.

    Args:
      data: rows so far.
      canaries: records like those of the data, with leading axis m.
      is_member: the coin of each canary.

    Returns:
      The rows followed by the canaries; those whose coin is False are absent.

    Raises:
      ValueError: for unequal lengths, canaries that are not like the records, or coins other than
        bool or 0 and 1.

    Example:
      >>> data = with_inputs(ordinary(np.zeros(2)), np.ones(2), np.array([True, False]))
      >>> data.record.tolist(), data.tag.tolist()
      ([0.0, 0.0, 1.0, 1.0], [-1, -1, -1, -2])
    """
    coins = _coins(is_member)
    _check.same_length(canaries=jax.tree.leaves(canaries)[0], is_member=coins)
    return _append(data, canaries, np.where(coins, ORDINARY, ABSENT))


def with_dirac(data: Tagged, canaries: Dirac, is_member: Bool[np.ndarray, " m"]) -> Tagged:
    """Appends Dirac canaries, whose records are copies of the first row and are not used.

    Args:
      data: rows so far, without Dirac canaries.
      canaries: Dirac canaries, which `loss_with_canaries` needs too.
      is_member: the coin of each canary.

    Returns:
      The rows followed by the canaries; those whose coin is False are absent.

    Raises:
      ValueError: for unequal lengths, coins other than bool or 0 and 1, or if the data have Dirac
        canaries already.

    Example:
      >>> canaries = Dirac(positions=jnp.array([[0], [1]]), scales=jnp.ones(2))
      >>> with_dirac(ordinary(np.zeros(1)), canaries, np.array([False, True])).tag.tolist()
      [-1, -2, 1]
    """
    coins = _coins(is_member)
    _check.same_length(canaries=canaries.positions, is_member=coins)
    if (np.asarray(data.tag) >= 0).any():
        raise ValueError("Expected rows without Dirac canaries, got some.")
    count = len(coins)
    copies = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf[:1]), count, 0), data.record)
    return _append(data, copies, np.where(coins, np.arange(count), ABSENT))


def _coins(is_member: object) -> Bool[np.ndarray, " m"]:
    """Checks coins, since -1 for a canary that is left out would count as True."""
    return _check.membership(_check.scores(np.asarray(is_member), name="is_member"))


def _append(data: Tagged, canaries: Batch, tags: Int[np.ndarray, " m"]) -> Tagged:
    def join(rows: Any, more: Any) -> np.ndarray:
        rows, more = np.asarray(rows), np.asarray(more)
        if rows.shape[1:] != more.shape[1:] or rows.dtype != more.dtype:
            raise ValueError(
                f"Expected canaries like the records, {rows.dtype}{list(rows.shape[1:])}, got "
                f"{more.dtype}{list(more.shape[1:])}."
            )
        return np.concatenate([rows, more])

    if jax.tree.structure(data.record) != jax.tree.structure(canaries):
        raise ValueError("Expected canaries with the same leaves as the records.")
    record = jax.tree.map(join, data.record, canaries)
    return Tagged(record, np.concatenate([data.tag, tags]).astype(np.int32))


def loss_with_canaries(loss: Loss, *, canaries: Dirac | None = None) -> Loss:
    """Extends a loss to tagged rows, for any training that differentiates it.

    The loss of an absent row is 0, and that of a Dirac canary is linear in the parameters. Their
    entries are read beside the products of the network, so that `grads.clipped_grad` forms
    explicit per-example gradients: a microbatch size bounds the memory.

    Args:
      loss: `loss(params, record, key)` of one record.
      canaries: Dirac canaries of the data, if any. Without them the loss of such a row is NaN,
        which the training reports: it would train as a copy of the first row.

    Returns:
      `loss(params, tagged, key)` of one row of `Tagged`.

    Example:
      >>> canaries = Dirac(positions=jnp.array([[1]]), scales=jnp.array([3.0]))
      >>> loss = loss_with_canaries(lambda w, x, key: jnp.dot(w, x), canaries=canaries)
      >>> rows = Tagged(jnp.ones((3, 2)), jnp.array([ORDINARY, ABSENT, 0]))
      >>> gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, None))
      >>> gradients(jnp.zeros(2), rows, jax.random.key(0)).tolist()
      [[1.0, 1.0], [0.0, 0.0], [0.0, 3.0]]
    """

    def tagged_loss(params, row, key):
        value = loss(params, row.record, key)
        if canaries is None:
            value = value * jnp.where(row.tag >= 0, jnp.nan, 1.0).astype(value.dtype)
        else:
            planted = canaries.losses(params)[jnp.maximum(row.tag, 0)]
            value = jnp.where(row.tag >= 0, planted.astype(value.dtype), value)
        return jnp.where(row.tag == ABSENT, jnp.zeros_like(value), value)

    return tagged_loss


def mislabelled(
    rng: np.random.Generator, labels: Int[np.ndarray, " m"], *, num_classes: int
) -> Int[np.ndarray, " m"]:
    """Replaces each label by another one, drawn uniformly.

    Args:
      rng: random generator.
      labels: true labels.
      num_classes: number of classes; >= 2.

    Returns:
      Wrong labels; with the inputs unchanged they are canaries that a model has to memorise.

    Raises:
      ValueError: if there are fewer than two classes, or a label is out of range.

    Example:
      >>> labels = np.array([0, 1, 2])
      >>> wrong = mislabelled(np.random.default_rng(0), labels, num_classes=3)
      >>> bool((wrong == labels).any())
      False
    """
    labels = np.asarray(labels)
    if num_classes < 2 or labels.min(initial=0) < 0 or labels.max(initial=0) >= num_classes:
        raise ValueError(f"Expected labels below num_classes >= 2, got num_classes={num_classes}.")
    shifts = rng.integers(1, num_classes, size=labels.shape)
    return ((labels + shifts) % num_classes).astype(labels.dtype)


def blank(inputs: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "..."]:
    """Returns an input of zeros.

    Args:
      inputs: inputs of the data.

    Returns:
      One input of their shape and type. Blank canaries of one label are equal, so that they suit
      audits with one canary in many trainings.

    Example:
      >>> blank(np.ones((5, 2))).tolist()
      [0.0, 0.0]
    """
    return np.zeros_like(np.asarray(inputs)[0])


def crafted(inputs: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "..."]:
    """Constructs the input along which the data vary least, of the mean norm of the inputs.

    A model learns such an input from no other record, so that its influence remains visible after
    clipping. Use it with the label to which the initial model gives the smallest probability.

    Args:
      inputs: inputs of the data, of floating-point numbers.

    Returns:
      One input of their shape and type: the last right singular vector, scaled.

    Raises:
      ValueError: for inputs of another type, which would round the canary away.

    References:
      Jagielski, Ullman and Oprea, Auditing Differentially Private Machine Learning, 2020,
      Algorithm 3 (ClipBKD).

    Example:
      >>> inputs = np.random.default_rng(0).normal(size=(50, 2)) * np.array([1.0, 0.001])
      >>> np.abs(crafted(inputs) / np.linalg.norm(crafted(inputs))).round(2).tolist()
      [0.0, 1.0]
    """
    if not jnp.issubdtype(np.asarray(inputs).dtype, jnp.floating):
        raise ValueError(f"Expected float inputs, got {np.asarray(inputs).dtype}.")
    flat = np.asarray(inputs, np.float64).reshape(len(inputs), -1)
    _, vectors = np.linalg.eigh(flat.T @ flat)
    canary = vectors[:, 0] * np.linalg.norm(flat, axis=1).mean()
    return canary.reshape(np.shape(inputs)[1:]).astype(np.asarray(inputs).dtype)


def update_scores(
    loss: Loss, canaries: Batch, keys: Keys, *, before: Params, after: Params
) -> Float[Array, " m"]:
    """Scores canaries by the inner product of their gradient with a released update.

    The gradient is that at the parameters before the training. The attack is white-box: it reads
    parameters.

    Args:
      loss: `loss(params, example, key)` of one canary.
      canaries: canaries as their coin would include them, with leading axis m.
      keys: [m], one for each canary.
      before: parameters before the training.
      after: parameters that were released.

    Returns:
      <gradient of the loss, before - after>; higher = more likely a member.

    Example:
      >>> loss = lambda w, x, key: jnp.dot(w, x)
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> update_scores(loss, jnp.eye(2), keys, before=jnp.zeros(2), after=jnp.array([-3.0, 1.0]))
      Array([ 3., -1.], dtype=float32)
    """
    update = jax.tree.map(lambda b, a: b - a, before, after)

    def score(canary: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        return jax.jvp(lambda params: loss(params, canary, key), (before,), (update,))[1]

    return jax.vmap(score)(canaries, keys)


def loss_scores(loss: Loss, params: Params, canaries: Batch, keys: Keys) -> Float[Array, " m"]:
    """Scores canaries by their loss, which an attacker computes from outputs alone.

    Args:
      loss: `loss(params, example, key)` of one canary.
      params: parameters that were released.
      canaries: canaries as their coin would include them, with leading axis m.
      keys: [m], one for each canary.

    Returns:
      The negative losses; higher = more likely a member.

    Example:
      >>> loss = lambda w, x, key: (w - x) ** 2
      >>> loss_scores(loss, jnp.float32(1.0), jnp.array([1.0, 3.0]), jax.random.split(
      ...     jax.random.key(0), 2)).tolist()
      [-0.0, -4.0]
    """
    return -jax.vmap(loss, in_axes=(None, 0, 0))(params, canaries, keys)
