"""Trains the models of a report, and describes how they were trained.

In the shapes below `n` counts records, `c` classes and `m` shadow models.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _keys, accounting, grads, sampling, sensitivity, training, units
from jaxpriv._types import Loss, Params
from jaxpriv.attacks import inversion
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.defences import Release
from jaxpriv.reports import _networks, _phrases, _promise
from jaxpriv.reports._networks import Network
from jaxpriv.reports.findings import Promise, Training
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Outputs, Subject

_SHADOWS_PER_CHUNK = 4
"""Number of shadow models between two checkpoints, so that a killed report loses seconds."""

_PAIRS_PER_CHUNK = 2
"""Number of pairs of trainings between two checkpoints."""

_STEPS, _PLAIN_STEPS = 400, 600
"""Default numbers of steps with and without DP."""


class _Schedule(NamedTuple):
    """An optimiser with its description, and a number of steps."""

    optimizer: optax.GradientTransformation
    description: str
    learning_rate: float | None
    steps: int


class Recipe(NamedTuple):
    """Configuration of a training.

    target_epsilon, noise_multiplier: parameters of DP-SGD; None without DP.
    schedule: optimiser and number of steps.
    make_alg: makes the algorithm from the number of members and the hyper-parameters of a model.
    hyper: `hyper(members [g, k])`, these hyper-parameters for g models, with leading axis g: their
      labels if a class is the unit, their reference records with a defence. None without any.
    defence: title of the defence in the training; None for training without one.
    is_judged: records on which the models are attacked; None for all of the pool.
    num_reference: number of reference records of each model; None without any.
    """

    name: str
    target_epsilon: float | None
    noise_multiplier: float | None
    schedule: _Schedule
    make_alg: Callable[..., training.Algorithm]
    hyper: Callable[[Int[np.ndarray, "g k"]], Any] | None = None
    defence: str | None = None
    is_judged: Bool[np.ndarray, " n"] | None = None
    num_reference: int | None = None


def recipes(
    network: Network, partition: Partition, settings: Settings, *, log: Callable[[str], None]
) -> list[Recipe]:
    """Lists the trainings of a report, one without DP and one for each epsilon.

    Args:
      network: network that is trained.
      partition: members and non-members.
      settings: settings of the report.
      log: receives progress messages.

    Returns:
      The configurations, with calibrated noise.

    Raises:
      ValueError: if no noise multiplier reaches an epsilon.
    """
    num_members = int(partition.is_member.sum())
    plain = plain_schedule(network, settings)
    private = _schedule(network, settings.steps, settings.learning_rate, is_private=True)

    if network.batch_loss is not None and settings.epsilon:
        raise ValueError(
            f"Expected --no-dp for {network.description}, whose state (such as that of BatchNorm) "
            "mixes the examples of a batch; replace BatchNorm by GroupNorm for DP-SGD."
        )

    def without_dp(
        size: int, labels: Any, *, loss: Loss = network.loss, microbatch_size: int | None = None
    ) -> training.Algorithm:
        del labels, microbatch_size
        if network.batch_loss is not None:
            sampler = sampling.fixed_batch(size, batch_size=batch_size(size, settings))
            return training.stateful_sgd(network.batch_loss, plain.optimizer, sampler)
        if partition.units.kind == "class":
            # Without padding, which would take longer than the few records of a batch.
            sampler = sampling.fixed_batch(size, batch_size=batch_size(size, settings))
            return training.sgd(loss, plain.optimizer, sampler)
        return training.sgd(loss, plain.optimizer, _sampler(size, partition, settings))

    hyper = None
    if partition.units.kind == "class":
        hyper = functools.partial(_labels_of, partition)
    result = [Recipe("Without DP", None, None, plain, without_dp, hyper)]
    for epsilon in settings.epsilon:
        log(f"epsilon {epsilon:g}: calibrating the noise")
        assert settings.delta is not None
        assert settings.relation is not None
        noise_multiplier = accounting.calibrate(
            _private_sampler(
                num_members, _labels(partition, partition.is_member), partition, settings
            ),
            steps=private.steps,
            epsilon=epsilon,
            delta=settings.delta,
            relation=settings.relation,
        )

        def with_dp(
            size: int,
            labels: Any,
            *,
            loss: Loss = network.loss,
            microbatch_size: int | None = None,
            noise_multiplier: float = noise_multiplier,
        ) -> training.Algorithm:
            sampler = _private_sampler(size, labels, partition, settings)
            if isinstance(sampler, sampling.ByClass):
                # One class at a time, so that classes which are not sampled take no time.
                grad = grads.clipped_grad(
                    network.loss, clip_norm=settings.clip_norm, microbatch_size=1
                )
                return training.class_dpsgd(
                    grad, private.optimizer, sampler, noise_multiplier=noise_multiplier
                )
            grad = grads.clipped_grad(
                loss, clip_norm=settings.clip_norm, microbatch_size=microbatch_size
            )
            return training.dpsgd(
                grad, private.optimizer, sampler, noise_multiplier=noise_multiplier
            )

        name = f"DP-SGD, epsilon {epsilon:g}"
        if partition.units.kind == "class":
            name = f"Class-level {name}"
        recipe = Recipe(name, epsilon, noise_multiplier, private, with_dp, hyper)
        result.append(recipe)
        if partition.units.kind == "group":
            promised = promise(recipe, partition, settings)
            assert promised is not None
            stated = _phrases.guarantee_text(promised.stated())
            log(f"  for one record; as the unit is a group, {stated}")
    return result


def train(
    key: PRNGKeyArray,
    *,
    recipe: Recipe,
    network: Network,
    settings: Settings,
    records: Partition,
    shadow_is_member: Bool[np.ndarray, "m n"],
    checkpoints: Path | None,
) -> Subject:
    """Trains the target and its shadow models, and evaluates them on all records.

    Args:
      key: PRNG key.
      recipe: configuration of the training.
      network: network that is trained.
      settings: settings of the report.
      records: members, non-members and population.
      shadow_is_member: whether each shadow model is trained on each record of the pool.
      checkpoints: folder for training checkpoints; None saves none.

    Returns:
      The subject.
    """
    x, population_x = (
        _networks.inputs(part, settings) for part in (records.pool, records.population)
    )
    y = records.pool.y
    init_key, target_key, shadow_key = jax.random.split(key, 3)
    fit = functools.partial(_fit, init_key, recipe, network, records, settings, checkpoints)
    params = fit("target", target_key, records.is_member)
    shadow_params = training.shadows.train(
        shadow_key,
        recipe.make_alg,
        network.init,
        (jnp.asarray(x), jnp.asarray(y)),
        is_member=shadow_is_member,
        steps=recipe.schedule.steps,
        hyper=recipe.hyper,
        chunk=_SHADOWS_PER_CHUNK,
        checkpoints=_checkpoints(checkpoints, "shadows"),
    )

    tested_params, predict_one = None, None
    if records.is_held_out is not None:
        tested_params = fit("tested", _keys.named(key, "tested"), ~records.is_held_out)
        predict_one = _predict_one(network, tested_params)
    trained = _Trained(params, shadow_params, tested_params)
    judged = slice(None) if recipe.is_judged is None else recipe.is_judged
    examined = _subset(records, recipe.is_judged)
    outputs = functools.partial(
        _outputs,
        network,
        settings,
        examined,
        shadow_is_member[:, judged],
        (x[judged], population_x),
    )
    evidence, tested = outputs(trained)
    return Subject(
        name=recipe.name,
        evidence=evidence,
        is_member=examined.is_member,
        training=_describe(recipe, network, settings, records),
        promise=promise(recipe, records, settings),
        rows=examined.rows,
        tested=tested,
        release=lambda key, hook: outputs(_released(key, hook, trained)),
        sample_pairs=functools.partial(
            _sample_pairs,
            recipe=recipe,
            params=network.init(init_key),
            records=records,
            inputs=(x, population_x),
            checkpoints=checkpoints,
        ),
        predict_one=predict_one,
        defence=recipe.defence,
    )


def _subset(records: Partition, is_judged: Bool[np.ndarray, " n"] | None) -> Partition:
    """Returns the records of the pool on which models are attacked, and the population."""
    if is_judged is None:
        return records
    return records._replace(
        pool=records.pool.subset(is_judged),
        is_member=records.is_member[is_judged],
        units=records.units.subset(is_judged),
        rows=records.rows[is_judged],
    )


class _Trained(NamedTuple):
    """Parameters of the target, of the shadow models stacked, and of the model of `tested`."""

    params: Params
    shadow_params: Params
    tested_params: Params | None


def _outputs(
    network: Network,
    settings: Settings,
    records: Partition,
    shadow_is_member: Bool[np.ndarray, "m n"],
    inputs: tuple[Shaped[np.ndarray, "n ..."], Shaped[np.ndarray, "p ..."]],
    trained: _Trained,
) -> Outputs:
    """Evaluates models on all records; the inputs are those of the pool and of the population."""
    (x, population_x), (params, shadow_params, tested_params) = inputs, trained
    evaluate = functools.partial(_evaluate, network, _one_model(params), shadow_params)

    def predict(key: PRNGKeyArray, rows: np.ndarray) -> Array:
        del key
        return network.apply(params, jnp.asarray(rows))

    evidence = dataclasses.replace(
        evaluate(x, records.pool.y),
        shadow_is_member=shadow_is_member,
        unit_id=None if records.units.kind == "record" else records.units.index,
        population=evaluate(population_x, records.population.y),
        predict=predict if settings.tokens is None else None,  # token ids are not perturbed
    )
    tested = None
    if records.is_held_out is not None:
        assert tested_params is not None
        tested = _tested(network, tested_params, x, records.pool.y), ~records.is_held_out
    return evidence, tested


def _released(key: PRNGKeyArray, hook: Release, trained: _Trained) -> _Trained:
    """Applies the hook of a defence to the parameters of all models, each with its own key."""
    target_key, shadow_key, tested_key = jax.random.split(key, 3)
    num_shadows = len(jax.tree.leaves(trained.shadow_params)[0])
    shadow_keys = jax.random.split(shadow_key, num_shadows)
    tested_params = trained.tested_params
    return _Trained(
        hook(target_key, trained.params),
        jax.vmap(hook)(shadow_keys, trained.shadow_params),
        None if tested_params is None else hook(tested_key, tested_params),
    )


def _sample_pairs(
    key: PRNGKeyArray,
    num_pairs: int,
    *,
    recipe: Recipe,
    params: Params,
    records: Partition,
    inputs: tuple[Shaped[np.ndarray, "n ..."], Shaped[np.ndarray, "p ..."]],
    checkpoints: Path | None,
) -> sensitivity.SampledPairs:
    """Trains on pairs of data sets from the records that are not members, which are private."""
    x, y = inputs[0][~records.is_member], records.pool.y[~records.is_member]
    x = np.concatenate([x, inputs[1]])
    y = np.concatenate([y, records.population.y])
    return sensitivity.sample_pairs(
        key,
        recipe.make_alg,
        params,
        (jnp.asarray(x), jnp.asarray(y)),
        num_pairs=num_pairs,
        num_records=int(records.is_member.sum()),
        steps=recipe.schedule.steps,
        chunk=_PAIRS_PER_CHUNK,
        checkpoints=_checkpoints(checkpoints, f"pairs-{num_pairs}"),
    )


def train_by_record(
    key: PRNGKeyArray,
    *,
    network: Network,
    settings: Settings,
    records: Partition,
    checkpoints: Path | None,
    log: Callable[[str], None],
) -> list[Subject]:
    """Trains a model with record-level DP for each epsilon, to be compared with class-level DP.

    The models are trained on the records of every class that are not held out, without shadow
    models, and evaluated on all records of the pool.

    Args:
      key: PRNG key.
      network: network that is trained.
      settings: settings of the report.
      records: members and non-members, with classes as units.
      checkpoints: folder for training checkpoints; None saves none.
      log: receives progress messages.

    Returns:
      The subjects; `tested` and `predict_one` are of the models.
    """
    assert records.is_held_out is not None
    is_trained = ~records.is_held_out
    by_record = records._replace(
        is_member=is_trained, units=units.records(len(records.pool)), is_held_out=None
    )
    x, y = _networks.inputs(records.pool, settings), records.pool.y
    subjects = []
    private = recipes(network, by_record, settings, log=log)[1:]
    for i, (model_key, recipe) in enumerate(
        zip(jax.random.split(key, max(1, len(private))), private, strict=False)
    ):
        name = f"Record-level {recipe.name}"
        log(f"{name}: training")
        init_key, fit_key = jax.random.split(model_key)
        params = _fit(
            init_key, recipe, network, by_record, settings, checkpoints, str(i), fit_key, is_trained
        )
        outputs = _tested(network, params, x, y)
        subjects.append(
            Subject(
                name=name,
                evidence=outputs,
                is_member=is_trained,
                training=_describe(recipe, network, settings, by_record),
                promise=promise(recipe, by_record, settings),
                tested=(outputs, is_trained),
                predict_one=_predict_one(network, params),
            )
        )
    return subjects


def _fit(
    init_key: PRNGKeyArray,
    recipe: Recipe,
    network: Network,
    records: Partition,
    settings: Settings,
    checkpoints: Path | None,
    name: str,
    key: PRNGKeyArray,
    is_trained: Bool[np.ndarray, " n"],
) -> Params:
    """Trains one model on some records of the pool."""
    x, (members,) = _networks.inputs(records.pool, settings), np.nonzero(is_trained)
    hyper = None
    if recipe.hyper is not None:
        hyper = jax.tree.map(lambda leaf: leaf[0], recipe.hyper(members[None]))
    state, _ = training.fit(
        key,
        recipe.make_alg(len(members), hyper),
        network.init(init_key),
        (jnp.asarray(x[is_trained]), jnp.asarray(records.pool.y[is_trained])),
        steps=recipe.schedule.steps,
        checkpoints=_checkpoints(checkpoints, name),
    )
    return state.params


def _tested(
    network: Network,
    params: Params,
    x: Shaped[np.ndarray, "n ..."],
    labels: Int[np.ndarray, " n"],
) -> Evidence:
    """Computes the outputs of a model without shadow models."""
    outputs = _evaluate(network, _one_model(params), _one_model(params), x, labels)
    return dataclasses.replace(outputs, shadow_logits=None, inputs=None)


def _predict_one(network: Network, params: Params) -> inversion.Predict:
    """Returns the model as a function of one input, which JAX can differentiate."""
    return lambda x: network.apply(params, x[None])[0]


def _one_model(params: Params) -> Params:
    """Adds a leading axis of size 1, as that of several models."""
    return jax.tree.map(lambda leaf: leaf[None], params)


def _evaluate(
    network: Network,
    target_params: Params,
    shadow_params: Params,
    x: Shaped[np.ndarray, "n ..."],
    labels: Int[np.ndarray, " n"],
) -> Evidence:
    """Computes logits; the parameters of the target have a leading axis of size 1."""

    def logits(params: Params, row: Array) -> Float[Array, " c"]:
        return network.apply(params, row[None])[0]

    target, shadows = (
        training.shadows.outputs(logits, params, jnp.asarray(x))
        for params in (target_params, shadow_params)
    )
    return Evidence(inputs=x, labels=labels, logits=target[0], shadow_logits=shadows)


def promise(recipe: Recipe, partition: Partition, settings: Settings) -> Promise | None:
    """Accounts for a training; returns None without DP."""
    if recipe.noise_multiplier is None or settings.delta is None or settings.relation is None:
        return None
    num_members = int(partition.is_member.sum())
    algorithm = recipe.make_alg(num_members, _labels(partition, partition.is_member))
    if partition.units.kind == "class":
        return _promise.class_guarantee(
            algorithm.event(recipe.schedule.steps),
            num_classes=partition.pool.num_classes,
            largest=partition.units.largest,
            delta=settings.delta,
            relation=settings.relation,
        )
    group_event, largest_group = None, 1
    if partition.units.kind == "group":
        largest_group = partition.units.largest
        group_event = sampling.poisson(
            num_members + largest_group,
            sampling_prob=settings.sampling_prob,
            capacity=algorithm.sampler.capacity,
        ).event(noise_multiplier=recipe.noise_multiplier, steps=recipe.schedule.steps)
    return _promise.guarantee(
        algorithm.event(recipe.schedule.steps),
        group_event=group_event,
        largest_group=largest_group,
        num_members=num_members,
        delta=settings.delta,
        relation=settings.relation,
    )


def plain_schedule(network: Network, settings: Settings) -> _Schedule:
    """Returns the optimiser and the number of steps of a training without DP."""
    return _schedule(network, settings.plain_steps, settings.plain_learning_rate, is_private=False)


def _schedule(
    network: Network, steps: int | None, learning_rate: float | None, *, is_private: bool
) -> _Schedule:
    """Returns the optimiser and the steps of the settings, else of the module, else the default."""
    steps = steps or network.steps or (_STEPS if is_private else _PLAIN_STEPS)
    if network.optimizer is not None:
        if learning_rate is not None:
            raise ValueError(
                "Expected no learning rate in the settings, as the model file has an optimiser."
            )
        return _Schedule(network.optimizer, "the optimiser of the model file", None, steps)
    default = network.learning_rate if is_private else network.plain_learning_rate
    learning_rate = learning_rate or default
    return _Schedule(optax.adam(learning_rate), "Adam", learning_rate, steps)


def batch_size(size: int, settings: Settings) -> int:
    """Returns the size of batches without padding."""
    return max(2, round(size * settings.sampling_prob))


def _describe(
    recipe: Recipe, network: Network, settings: Settings, partition: Partition
) -> Training:
    is_private = recipe.noise_multiplier is not None
    is_padded = network.batch_loss is None and (is_private or partition.units.kind != "class")
    is_padded &= recipe.num_reference is None
    name = recipe.schedule.description
    private_name = f"{'class-level ' if partition.units.kind == 'class' else ''}DP-SGD with {name}"
    num_members = int(partition.is_member.sum())
    return Training(
        model=network.description,
        inputs=network.inputs,
        optimizer=private_name if is_private else name,
        learning_rate=recipe.schedule.learning_rate,
        steps=recipe.schedule.steps,
        sampling_prob=settings.sampling_prob if is_padded else None,
        batch_size=None if is_padded else batch_size(num_members, settings),
        noise_multiplier=recipe.noise_multiplier,
        clip_norm=settings.clip_norm if is_private else None,
        target_epsilon=recipe.target_epsilon,
        reference_records=recipe.num_reference,
    )


def _labels(
    partition: Partition, is_trained: Bool[np.ndarray, " n"]
) -> Int[np.ndarray, " k"] | None:
    """Returns the labels of the records that a model is trained on, if a class is the unit."""
    return partition.pool.y[is_trained] if partition.units.kind == "class" else None


def _labels_of(partition: Partition, members: Int[np.ndarray, "g k"]) -> Int[Array, "g k"]:
    return jnp.asarray(partition.pool.y)[members]


def _private_sampler(
    size: int, labels: Any, partition: Partition, settings: Settings
) -> sampling.Poisson | sampling.ByClass:
    """Returns the sampler of a private training: of classes if they are the unit."""
    if partition.units.kind == "class":
        return sampling.by_class(
            labels,
            num_classes=partition.pool.num_classes,
            sampling_prob=settings.sampling_prob,
            rows=partition.units.largest,
        )
    return _sampler(size, partition, settings)


def _sampler(size: int, partition: Partition, settings: Settings) -> sampling.Poisson:
    sampler = sampling.poisson(size, sampling_prob=settings.sampling_prob)
    if partition.units.kind == "record":
        return sampler
    # A neighbour has one more group: its records must fit too, or the event of the group guarantee
    # would have to charge for overflowing batches.
    capacity = min(size, sampler.capacity + partition.units.largest)
    return sampling.poisson(size, sampling_prob=settings.sampling_prob, capacity=capacity)


def _checkpoints(folder: Path | None, name: str) -> training.Checkpoints | None:
    return None if folder is None else training.Checkpoints(directory=folder / name)
