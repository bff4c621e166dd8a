"""Trains, attacks and accounts: everything that a privacy report says, as one plain dict.

A tenth of the records is the population, on which no model is trained. Of the rest, the pool, the
target sees the records for which a fair coin fell so; the others test it and play the non-members.
Shadow models see random halves of the same pool; the target is not among them.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

import jaxpriv
from jaxpriv import (
    _check,
    _types,
    accounting,
    grads,
    identifiability,
    models,
    sampling,
    training,
)
from jaxpriv.data import Dataset
from jaxpriv.reports import measure, pools

LIMITS = (
    "The guarantee is for exact arithmetic; floating-point noise is not covered.",
    "jax.random is not a cryptographically secure generator: whoever learns the seed can "
    "subtract the noise.",
    "Choosing hyper-parameters on the same records costs privacy too; that cost is not included.",
    "Each epsilon is for publishing that model alone. The accuracies and attack results on this "
    "page are computed from the members and are not covered by it.",
    "An attack that finds nothing proves nothing: a stronger one may exist. Only epsilon bounds "
    "every attack.",
    "Each record is attacked on its own; intervals treat records of one model as independent.",
    "A shadow half and its complement are drawn together, so shadow models are independent in "
    "pairs only.",
    "The classes, the number of members, which columns of a table are numbers, and the values that "
    "a column of text can take, are taken to be public.",
)

GROUP_LIMIT = (
    "Epsilon is for one record. Records come in groups (people, households) whose records are "
    "dependent: halves are split by group, a whole group is less protected than one record, and "
    "the intervals, which count every record, are too narrow."
)


_AUDIT_DELTA = 1e-5
"""At which the plain model's epsilon is bounded from below, where no delta was given."""

_SHADOWS_AT_ONCE = 4
"""Few enough that a killed report loses seconds."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a report trains and how; the privacy parameters have no defaults.

    epsilons: one DP-SGD model for each; none: the plain model alone.
    delta: for every epsilon; None only where there is no epsilon.
    relation: by which epsilon is promised.
    shadows: models an attack learns from, even.
    width: of the one hidden layer.
    sampling_prob: share of the members in a batch.
    clip_norm: of DP-SGD.
    steps, learning_rate: of DP-SGD with Adam.
    plain_steps, plain_learning_rate: of plain Adam.
    attack_steps: of the attacks that train.
    """

    epsilons: tuple[float, ...]
    delta: float | None
    relation: _types.Relation | None
    shadows: int = 16
    width: int = 256
    sampling_prob: float = 0.1
    clip_norm: float = 1.0
    steps: int = 400
    learning_rate: float = 0.01
    plain_steps: int = 600
    plain_learning_rate: float = 0.003
    attack_steps: int = 1000

    def __post_init__(self) -> None:
        _check.positive_int(shadows=self.shadows)
        if self.shadows < 4 or self.shadows % 2:
            raise ValueError(f"Expected an even number of shadows >= 4, got {self.shadows}.")
        if self.epsilons:
            _check.open_unit(delta=self.delta)
            _check.one_of(_types.RELATIONS, relation=self.relation)
        for epsilon in self.epsilons:
            _check.positive(epsilon=epsilon)


class Recipe(NamedTuple):
    """One way to train: a name, a noise multiplier (None: plain) and the algorithm."""

    name: str
    target_epsilon: float | None
    noise_multiplier: float | None
    steps: int
    make_alg: Callable[[int, Any], training.Algorithm]


def run_report(
    key: PRNGKeyArray,
    dataset: Dataset,
    settings: Settings,
    *,
    checkpoints: Path | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains a plain model and one for each epsilon, attacks all, accounts for all.

    Args:
      key: consumed; whoever knows it can redraw the noise.
      dataset: the pool of records.
      settings: what to train.
      checkpoints: folder where training is saved, and looked for when it was killed.
      log: told what is being done.

    Returns:
      The report; `card.schema.json` describes it.

    Raises:
      ValueError: if there are too few records, or an epsilon cannot be reached.
    """
    started = time.monotonic()
    split_key, shadow_key, blind_key, *model_keys = jax.random.split(
        key, 4 + len(settings.epsilons)
    )
    split = pools.make_split(split_key, dataset)
    is_shadow_member = training.shadows.halves(
        shadow_key, len(split.y), num_models=settings.shadows, group=split.group
    )
    log("attacking the inputs alone")
    blind = measure.blind_attack(
        _rng(blind_key), np.asarray(split.x), split.is_member(), group=split.group
    )
    entries = []
    recipes = _recipes(split, settings, log)
    for i, (key, recipe) in enumerate(zip(model_keys, recipes, strict=True)):
        log(f"{recipe.name}: training the target and {settings.shadows} shadow models")
        folder = None if checkpoints is None else checkpoints / f"model-{i}"
        train_key, attack_key = jax.random.split(key)
        trained = _trained(train_key, recipe, split, is_shadow_member, settings, folder)
        log(f"{recipe.name}: attacking")
        entries.append(_entry(attack_key, recipe, trained, split, is_shadow_member, settings))
    return {
        "schema_version": 1,
        "jaxpriv": jaxpriv.__version__,
        "versions": _versions(),
        "settings": asdict(settings),
        "data": pools.about(dataset, split),
        "blind": blind,
        "models": entries,
        "limits": [*LIMITS, *([] if dataset.group is None else [GROUP_LIMIT])],
        "seconds": round(time.monotonic() - started, 1),
    }


def _rng(key: PRNGKeyArray) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _recipes(split: pools.Split, settings: Settings, log: Callable[[str], None]) -> list[Recipe]:
    loss = _loss(_model(split, settings))
    q = settings.sampling_prob

    def plain(size: int, hyper: None = None) -> training.Algorithm:
        del hyper
        optimizer = optax.adam(settings.plain_learning_rate)
        return training.sgd(loss, optimizer, sampling.poisson(size, sampling_prob=q))

    recipes = [Recipe("plain", None, None, settings.plain_steps, plain)]
    for epsilon in settings.epsilons:
        log(f"epsilon {epsilon:g}: calibrating the noise")
        assert settings.delta is not None
        assert settings.relation is not None
        noise_multiplier = accounting.calibrate(
            sampling.poisson(len(split.members), sampling_prob=q),
            steps=settings.steps,
            epsilon=epsilon,
            delta=settings.delta,
            relation=settings.relation,
        )

        def private(
            size: int, hyper: None = None, z: float = noise_multiplier
        ) -> training.Algorithm:
            del hyper
            grad = grads.clipped_grad(loss, clip_norm=settings.clip_norm)
            sampler = sampling.poisson(size, sampling_prob=q)
            optimizer = optax.adam(settings.learning_rate)
            return training.dpsgd(grad, optimizer, sampler, noise_multiplier=z)

        name = f"DP-SGD, epsilon {epsilon:g}"
        recipes.append(Recipe(name, epsilon, noise_multiplier, settings.steps, private))
    return recipes


def _model(split: pools.Split, settings: Settings) -> models.MLP:
    return models.MLP(widths=(settings.width,), num_classes=split.num_classes)


def _predict(
    model: models.MLP, params: _types.Params, x: Float[Array, "*n d"]
) -> Float[Array, "*n c"]:
    logits = model.apply(params, x)
    assert isinstance(logits, jax.Array)
    return logits


def _loss(model: models.MLP) -> _types.Loss:
    def loss(params, example, key):
        del key
        x, y = example
        return optax.softmax_cross_entropy_with_integer_labels(_predict(model, params, x), y)

    return loss


def _trained(
    key: PRNGKeyArray,
    recipe: Recipe,
    split: pools.Split,
    is_shadow_member: Bool[np.ndarray, "m n"],
    settings: Settings,
    folder: Path | None,
) -> tuple[_types.Params, _types.Params]:
    """The target's parameters, and those of the shadow models."""
    init_key, target_key, shadow_key = jax.random.split(key, 3)

    def init(key: PRNGKeyArray) -> _types.Params:
        return _model(split, settings).init(key, split.x[0])

    def kept(name: str) -> training.Checkpoints | None:
        return None if folder is None else training.Checkpoints(directory=folder / name)

    state, _ = training.fit(
        target_key,
        recipe.make_alg(len(split.members), None),
        init(init_key),
        (split.x[split.members], split.y[split.members]),
        steps=recipe.steps,
        checkpoints=kept("target"),
    )
    shadow_params = training.shadows.train(
        shadow_key,
        recipe.make_alg,
        init,
        (split.x, split.y),
        is_member=is_shadow_member,
        steps=recipe.steps,
        chunk=_SHADOWS_AT_ONCE,
        checkpoints=kept("shadows"),
    )
    return state.params, shadow_params


def _entry(
    key: PRNGKeyArray,
    recipe: Recipe,
    trained: tuple[_types.Params, _types.Params],
    split: pools.Split,
    is_shadow_member: Bool[np.ndarray, "m n"],
    settings: Settings,
) -> dict[str, Any]:
    """Everything the report says of one model."""
    model = _model(split, settings)

    def outputs(x: Float[Array, "n d"], y: Int[Array, " n"]) -> measure.Outputs:
        params, shadow_params = trained
        logits = np.asarray(_predict(model, params, x))
        every = training.shadows.outputs(lambda p, x: _predict(model, p, x), shadow_params, x)
        return measure.Outputs(np.asarray(x), np.asarray(y), logits, every)

    audited = outputs(split.x, split.y)
    population = outputs(split.population_x, split.population_y)
    is_member = split.is_member()
    correct = audited.logits.argmax(-1) == audited.labels
    return {
        "name": recipe.name,
        "private": recipe.noise_multiplier is not None,
        "accuracy": {
            "train": float(correct[is_member].mean()),
            "test": float(correct[~is_member].mean()),
        },
        "noise_multiplier": recipe.noise_multiplier,
        "target_epsilon": recipe.target_epsilon,
        "steps": recipe.steps,
        "guarantee": _guarantee(recipe, split, settings),
        **measure.attacks_on_models(
            key,
            audited,
            population,
            is_member=is_member,
            shadow_is_member=is_shadow_member,
            has_groups=split.group is not None,
            delta=_AUDIT_DELTA if settings.delta is None else settings.delta,
            attack_steps=settings.attack_steps,
        ),
    }


def _guarantee(
    recipe: Recipe, split: pools.Split, settings: Settings
) -> dict[str, dict[str, float]] | None:
    """Epsilon, and the largest advantage of any attacker, under both relations."""
    if recipe.noise_multiplier is None or settings.delta is None:
        return None
    event = recipe.make_alg(len(split.members), None).event(recipe.steps)
    return {
        relation: {
            "epsilon": spent,
            "delta": settings.delta,
            "advantage_bound": accounting.advantage_bound(event, relation=relation),
            "rho_beta": identifiability.rho_beta(spent),
            "violation_probability": identifiability.loss_tail(
                event, epsilon=spent, relation=relation
            ),
        }
        for relation in _types.RELATIONS
        for spent in [accounting.epsilon(event, delta=settings.delta, relation=relation)]
    }


def _versions() -> dict[str, str]:
    names = ("jax", "flax", "optax", "numpy", "scipy", "dp-accounting")
    found = {name: metadata.version(name) for name in names}
    return {"python": platform.python_version(), "device": jax.devices()[0].device_kind, **found}
