"""Digits, and the models that are trained on them: plain, with record-DP and with subclass-DP.

The network has two convolutions and two dense layers, and the attack is that of `inversion.MNIST`.
In the shapes below `c` counts classes.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpriv import data, grads, metrics, models, sampling, training, units
from jaxpriv.attacks import inversion

Protection = Literal["none", "record", "subclass"]

MODULE = models.CNN(num_classes=10)
NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training on digits.

    num_training, num_test: number of records.
    batch_size: expected number of records in a batch, for each kind of protection.
    num_subclasses: number of k-means clusters in each class.
    clip_norm: S of subclass-DP; `record_clip_norm` is that of record-DP.
    learning_rate: of Adam.
    """

    num_training: int = 4000
    num_test: int = 1000
    batch_size: int = 200
    steps: int = 400
    num_subclasses: int = 50
    clip_norm: float = 3.0
    record_clip_norm: float = 1.0
    learning_rate: float = 0.002


class Digits(NamedTuple):
    """Images [n, 28, 28, 1] and labels, for training and for testing, and the subclasses."""

    data_name: str
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    subclasses: np.ndarray


def load(recipe: Recipe) -> Digits:
    """Draws the records; they are the published MNIST where it is available."""
    names = {entry.name for entry in data.available() if entry.sources}
    name = "mnist" if "mnist" in names else "mnist5k"
    dataset = data.load(name)
    order = np.random.default_rng(0).permutation(len(dataset))
    rows, test = np.split(order, [recipe.num_training])[0], order[recipe.num_training :]
    test = test[: recipe.num_test]
    y = dataset.y.astype(np.int32)
    subclasses = units.subclasses(
        np.random.default_rng(1), dataset.x[rows], y[rows], num_subclasses=recipe.num_subclasses
    )
    return Digits(name, dataset.x[rows], y[rows], dataset.x[test], y[test], subclasses)


def train(
    key: jax.Array,
    digits: Digits,
    recipe: Recipe,
    *,
    protection: Protection,
    noise_multiplier: float,
    name: str | None,
) -> Any:
    """Trains a model and returns its parameters; resumable by build/zhang2020/NAME, if given."""
    init_key, fit_key = jax.random.split(key)
    checkpoints = None
    if name is not None:
        checkpoints = training.Checkpoints(directory=Path("build") / "zhang2020" / name)
    state, _ = training.fit(
        fit_key,
        algorithm(digits, recipe, protection=protection, noise_multiplier=noise_multiplier),
        MODULE.init(init_key, jnp.asarray(digits.x[0])),
        (jnp.asarray(digits.x), jnp.asarray(digits.y)),
        steps=recipe.steps,
        checkpoints=checkpoints,
    )
    return state.params


def algorithm(
    digits: Digits, recipe: Recipe, *, protection: Protection, noise_multiplier: float
) -> training.Algorithm:
    """Makes the training algorithm for a kind of protection."""
    optimizer = optax.adam(recipe.learning_rate)
    sampling_prob = recipe.batch_size / len(digits.x)
    records = sampling.poisson(len(digits.x), sampling_prob=sampling_prob)
    if protection == "none":
        return training.sgd(_loss, optimizer, records)
    if protection == "record":
        grad = grads.clipped_grad(_loss, clip_norm=recipe.record_clip_norm)
        return training.dpsgd(grad, optimizer, records, noise_multiplier=noise_multiplier)
    # As many subclasses as have `batch_size` records on average; a few at a time, since a batch is
    # padded to all subclasses and microbatches without sampled ones are skipped.
    grad = grads.clipped_grad(_loss, clip_norm=recipe.clip_norm, microbatch_size=5)
    sampler = sampling.by_subclass(
        digits.y,
        digits.subclasses,
        num_classes=NUM_CLASSES,
        num_subclasses=recipe.num_subclasses,
        sampling_prob=sampling_prob,
    )
    return training.class_dpsgd(grad, optimizer, sampler, noise_multiplier=noise_multiplier)


def accuracy(digits: Digits, params: Any) -> float:
    """Computes the accuracy on the test records."""
    logits = jnp.asarray(MODULE.apply(params, jnp.asarray(digits.test_x)))
    return float((logits.argmax(-1) == jnp.asarray(digits.test_y)).mean(dtype=jnp.float32))


@functools.partial(jax.jit, static_argnames="steps")
def invert(params: Any, steps: int) -> inversion.Inversion:
    """Reconstructs an image of each digit, with leading axis c."""
    start = jnp.zeros((28, 28, 1))
    settings = inversion.Settings(
        steps=steps,
        learning_rate=inversion.MNIST.learning_rate,
        penalty=inversion.MNIST.penalty,
        penalty_weight=inversion.MNIST.penalty_weight,
    )
    attack: Callable[[jax.Array], inversion.Inversion] = lambda label: inversion.enhanced(  # noqa: E731
        lambda x: jnp.asarray(MODULE.apply(params, x)), label, start, settings=settings
    )
    return jax.vmap(attack)(jnp.arange(NUM_CLASSES))


def distances(digits: Digits, images: np.ndarray) -> np.ndarray:
    """Computes the Euclidean MIA distance of the reconstruction of each digit, [c]."""
    nearest = metrics.image.inversion_distance(
        images,
        np.arange(NUM_CLASSES),
        training=digits.x,
        training_labels=digits.y,
        distance="euclidean",
    )
    return nearest.distance


def _loss(params: Any, record: Any, key: jax.Array) -> jax.Array:
    del key
    x, y = record
    logits = jnp.asarray(MODULE.apply(params, x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)
