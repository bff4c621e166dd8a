"""Trains the models of a report, and describes how they were trained.

In the shapes below `n` counts records, `d` inputs, `c` classes and `m` shadow models.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxpriv import accounting, grads, models, sampling, training
from jaxpriv._types import Loss, Params
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.data import Dataset
from jaxpriv.reports import _promise
from jaxpriv.reports.findings import Promise, Training
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Subject

_SHADOWS_PER_CHUNK = 4
"""Number of shadow models between two checkpoints, so that a killed report loses seconds."""

_INPUTS = "inputs x beyond 1 enter as 1 + log x, a fixed function of the record"


class Recipe(NamedTuple):
    """Configuration of a training.

    target_epsilon, noise_multiplier: parameters of DP-SGD; None without DP.
    make_alg: makes the algorithm from the number of members and the hyper-parameters, here None.
    """

    name: str
    target_epsilon: float | None
    noise_multiplier: float | None
    steps: int
    make_alg: Callable[[int, None], training.Algorithm]


def recipes(
    partition: Partition, settings: Settings, *, log: Callable[[str], None]
) -> list[Recipe]:
    """Lists the trainings of a report, one without DP and one for each epsilon.

    Args:
      partition: members and non-members.
      settings: settings of the report.
      log: receives progress messages.

    Returns:
      The configurations, with calibrated noise.

    Raises:
      ValueError: if no noise multiplier reaches an epsilon.
    """
    loss = _loss(_network(partition, settings))
    num_members = int(partition.is_member.sum())

    def without_dp(size: int, hyper: None) -> training.Algorithm:
        del hyper
        optimizer = optax.adam(settings.plain_learning_rate)
        return training.sgd(loss, optimizer, _sampler(size, partition, settings))

    result = [Recipe("Without DP", None, None, settings.plain_steps, without_dp)]
    for epsilon in settings.epsilon:
        log(f"epsilon {epsilon:g}: calibrating the noise")
        assert settings.delta is not None
        assert settings.relation is not None
        noise_multiplier = accounting.calibrate(
            _sampler(num_members, partition, settings),
            steps=settings.steps,
            epsilon=epsilon,
            delta=settings.delta,
            relation=settings.relation,
        )

        def with_dp(
            size: int, hyper: None, noise_multiplier: float = noise_multiplier
        ) -> training.Algorithm:
            del hyper
            grad = grads.clipped_grad(loss, clip_norm=settings.clip_norm)
            optimizer = optax.adam(settings.learning_rate)
            sampler = _sampler(size, partition, settings)
            return training.dpsgd(grad, optimizer, sampler, noise_multiplier=noise_multiplier)

        name = f"DP-SGD, epsilon {epsilon:g}"
        result.append(Recipe(name, epsilon, noise_multiplier, settings.steps, with_dp))
    return result


def train(
    key: PRNGKeyArray,
    recipe: Recipe,
    partition: Partition,
    *,
    shadow_is_member: Bool[np.ndarray, "m n"],
    settings: Settings,
    checkpoints: Path | None,
) -> Subject:
    """Trains the target and its shadow models, and evaluates them on all records.

    Args:
      key: PRNG key.
      recipe: configuration of the training.
      partition: members, non-members and population.
      shadow_is_member: whether each shadow model is trained on each record of the pool.
      settings: settings of the report.
      checkpoints: folder for training checkpoints; None saves none.

    Returns:
      The subject.
    """
    network = _network(partition, settings)
    x, y = inputs(partition.pool), jnp.asarray(partition.pool.y)
    init_key, target_key, shadow_key = jax.random.split(key, 3)
    members = np.flatnonzero(partition.is_member)
    state, _ = training.fit(
        target_key,
        recipe.make_alg(len(members), None),
        network.init(init_key, x[0]),
        (x[members], y[members]),
        steps=recipe.steps,
        checkpoints=_checkpoints(checkpoints, "target"),
    )
    shadow_params = training.shadows.train(
        shadow_key,
        recipe.make_alg,
        lambda key: network.init(key, x[0]),
        (x, y),
        is_member=shadow_is_member,
        steps=recipe.steps,
        chunk=_SHADOWS_PER_CHUNK,
        checkpoints=_checkpoints(checkpoints, "shadows"),
    )
    pool, population = (
        _evaluate(network, state.params, shadow_params, dataset)
        for dataset in (partition.pool, partition.population)
    )
    evidence = dataclasses.replace(
        pool,
        shadow_is_member=shadow_is_member,
        unit_id=partition.units.index if partition.units.kind == "group" else None,
        population=population,
        predict=lambda key, rows: _logits(network, state.params, jnp.asarray(rows)),
    )
    return Subject(
        name=recipe.name,
        evidence=evidence,
        is_member=partition.is_member,
        training=_describe(recipe, settings),
        promise=promise(recipe, partition, settings),
    )


def inputs(dataset: Dataset) -> Float[Array, "n d"]:
    """Flattens records to inputs of a network and compresses numbers beyond 1 to 1 + log x.

    The function is fixed. Standardising by the mean and deviation of the members would be a
    release that epsilon does not cover.
    """
    rows = dataset.x.reshape(len(dataset), -1)
    large = np.sign(rows) * (1 + np.log(np.maximum(np.abs(rows), 1)))
    return jnp.asarray(np.where(np.abs(rows) <= 1, rows, large))


def promise(recipe: Recipe, partition: Partition, settings: Settings) -> Promise | None:
    """Accounts for a training; returns None without DP."""
    if recipe.noise_multiplier is None or settings.delta is None or settings.relation is None:
        return None
    num_members = int(partition.is_member.sum())
    algorithm = recipe.make_alg(num_members, None)
    group_event, largest_group = None, 1
    if partition.units.kind == "group":
        largest_group = partition.units.largest
        group_event = sampling.poisson(
            num_members + largest_group,
            sampling_prob=settings.sampling_prob,
            capacity=algorithm.sampler.capacity,
        ).event(noise_multiplier=recipe.noise_multiplier, steps=recipe.steps)
    return _promise.guarantee(
        algorithm.event(recipe.steps),
        group_event=group_event,
        largest_group=largest_group,
        num_members=num_members,
        delta=settings.delta,
        relation=settings.relation,
    )


def _describe(recipe: Recipe, settings: Settings) -> Training:
    is_private = recipe.noise_multiplier is not None
    return Training(
        model=f"multilayer perceptron with one hidden layer of {settings.width} units",
        inputs=_INPUTS,
        optimizer="DP-SGD with Adam" if is_private else "Adam",
        learning_rate=settings.learning_rate if is_private else settings.plain_learning_rate,
        steps=recipe.steps,
        sampling_prob=settings.sampling_prob,
        noise_multiplier=recipe.noise_multiplier,
        clip_norm=settings.clip_norm if is_private else None,
        target_epsilon=recipe.target_epsilon,
    )


def _evaluate(
    network: models.MLP, params: Params, shadow_params: Params, dataset: Dataset
) -> Evidence:
    x = inputs(dataset)
    return Evidence(
        inputs=np.asarray(x),
        labels=dataset.y,
        logits=np.asarray(_logits(network, params, x)),
        shadow_logits=training.shadows.outputs(
            lambda p, row: _logits(network, p, row), shadow_params, x
        ),
    )


def _network(partition: Partition, settings: Settings) -> models.MLP:
    return models.MLP(widths=(settings.width,), num_classes=partition.pool.num_classes)


def _sampler(size: int, partition: Partition, settings: Settings) -> sampling.Poisson:
    sampler = sampling.poisson(size, sampling_prob=settings.sampling_prob)
    if partition.units.kind == "record":
        return sampler
    # A neighbour has one more group: its records must fit too, or the event of the group guarantee
    # would have to charge for overflowing batches.
    capacity = min(size, sampler.capacity + partition.units.largest)
    return sampling.poisson(size, sampling_prob=settings.sampling_prob, capacity=capacity)


def _logits(network: models.MLP, params: Params, x: Float[Array, "*n d"]) -> Float[Array, "*n c"]:
    logits = network.apply(params, x)
    assert isinstance(logits, jax.Array)
    return logits


def _loss(network: models.MLP) -> Loss:
    def loss(params, example, key):
        del key
        x, y = example
        logits = _logits(network, params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    return loss


def _checkpoints(folder: Path | None, name: str) -> training.Checkpoints | None:
    return None if folder is None else training.Checkpoints(directory=folder / name)
