"""Trains, attacks and accounts: everything that a privacy report says, as one plain dict.

The target sees a random half of the records; the other half tests it and plays the
non-members. Shadow models see random halves of the same pool; the target is not among them.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

import jaxpriv
from jaxpriv import _check, _types, accounting, data, grads, metrics, models, sampling, training
from jaxpriv.attacks import lira, threshold
from jaxpriv.data import Dataset
from jaxpriv.metrics import scores as membership_scores

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
    "The classes, and the values that a column of text can take, are taken to be public.",
)

GROUP_LIMIT = (
    "Epsilon is for one record. Records come in groups (people, households) whose records are "
    "dependent: halves are split by group, a whole group is less protected than one record, and "
    "the intervals, which count every record, are too narrow."
)


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

    def __post_init__(self) -> None:
        _check.positive_int(shadows=self.shadows)
        if self.shadows < 4 or self.shadows % 2:
            raise ValueError(f"Expected an even number of shadows >= 4, got {self.shadows}.")
        if self.epsilons:
            _check.open_unit(delta=self.delta)
            _check.one_of(_types.RELATIONS, relation=self.relation)
        for epsilon in self.epsilons:
            _check.positive(epsilon=epsilon)


class Split(NamedTuple):
    """Positions of the target's members and of the rest, and the pool itself."""

    members: Int[np.ndarray, " k"]
    others: Int[np.ndarray, " l"]
    x: Float[Array, "n d"]
    y: Int[Array, " n"]
    num_classes: int

    def is_member(self) -> Bool[np.ndarray, " n"]:
        """Whether the target was trained on each record."""
        return np.isin(np.arange(len(self.y)), self.members)


class Recipe(NamedTuple):
    """One way to train: a name, a noise multiplier (None: plain) and the algorithm."""

    name: str
    target_epsilon: float | None
    noise_multiplier: float | None
    steps: int
    make_alg: Callable[[int], training.Algorithm]


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
    if len(dataset) < 40:
        raise ValueError(f"Expected at least 40 records, got {len(dataset)}.")
    started = time.monotonic()
    split_key, shadow_key, *model_keys = jax.random.split(key, 3 + len(settings.epsilons))
    split = _split(split_key, dataset)
    is_shadow_member = training.shadows.halves(
        shadow_key, len(dataset), num_models=settings.shadows, group=dataset.group
    )
    entries = []
    recipes = _recipes(split, settings, log)
    for i, (key, recipe) in enumerate(zip(model_keys, recipes, strict=True)):
        log(f"{recipe.name}: training the target and {settings.shadows} shadow models")
        folder = None if checkpoints is None else checkpoints / f"model-{i}"
        state, shadow_params = _trained(key, recipe, split, is_shadow_member, settings, folder)
        entries.append(_entry(recipe, state, shadow_params, split, is_shadow_member, settings))
    return {
        "schema_version": 1,
        "jaxpriv": jaxpriv.__version__,
        "versions": _versions(),
        "settings": asdict(settings),
        "data": {
            "name": dataset.name,
            "source": dataset.source,
            "num_examples": len(dataset),
            "num_classes": dataset.num_classes,
            "num_members": len(split.members),
            "num_nonmembers": len(split.others),
            "num_groups": None if dataset.group is None else len(np.unique(dataset.group)),
            "num_duplicates": data.num_duplicates(dataset),
        },
        "models": entries,
        "limits": [*LIMITS, *([] if dataset.group is None else [GROUP_LIMIT])],
        "seconds": round(time.monotonic() - started, 1),
    }


def _split(key: PRNGKeyArray, dataset: Dataset) -> Split:
    n = len(dataset)
    if dataset.group is None:
        order = np.asarray(jax.random.permutation(key, n))
        members, others = np.sort(order[: (n + 1) // 2]), np.sort(order[(n + 1) // 2 :])
    else:
        inside = training.shadows.halves(key, n, num_models=2, group=dataset.group)
        members, others = np.flatnonzero(inside[0]), np.flatnonzero(inside[1])
    return Split(members, others, _inputs(dataset), jnp.asarray(dataset.y), dataset.num_classes)


def _inputs(dataset: Dataset) -> Float[Array, "n d"]:
    """Rows for a network, by a fixed function of each record: x up to 1, then 1 + log x.

    Means and deviations of the members would be a release that epsilon does not cover.
    """
    rows = dataset.x.reshape(len(dataset), -1)
    beyond = np.sign(rows) * (1 + np.log(np.maximum(np.abs(rows), 1)))
    return jnp.asarray(np.where(np.abs(rows) <= 1, rows, beyond))


def _recipes(split: Split, settings: Settings, log: Callable[[str], None]) -> list[Recipe]:
    loss = _loss(_model(split, settings))
    q = settings.sampling_prob

    def plain(size: int) -> training.Algorithm:
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

        def private(size: int, z: float = noise_multiplier) -> training.Algorithm:
            grad = grads.clipped_grad(loss, clip_norm=settings.clip_norm)
            sampler = sampling.poisson(size, sampling_prob=q)
            optimizer = optax.adam(settings.learning_rate)
            return training.dpsgd(grad, optimizer, sampler, noise_multiplier=z)

        name = f"DP-SGD, epsilon {epsilon:g}"
        recipes.append(Recipe(name, epsilon, noise_multiplier, settings.steps, private))
    return recipes


def _model(split: Split, settings: Settings) -> models.MLP:
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
    split: Split,
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
        recipe.make_alg(len(split.members)),
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
    recipe: Recipe,
    params: _types.Params,
    shadow_params: _types.Params,
    split: Split,
    is_shadow_member: Bool[np.ndarray, "m n"],
    settings: Settings,
) -> dict[str, Any]:
    """Everything the report says of one model."""
    model = _model(split, settings)
    target_logits = _predict(model, params, split.x)
    shadow_logits = jax.lax.map(lambda p: _predict(model, p, split.x), shadow_params)
    correct = np.asarray(target_logits.argmax(-1) == split.y)
    return {
        "name": recipe.name,
        "private": recipe.noise_multiplier is not None,
        "accuracy": {
            "train": float(correct[split.members].mean()),
            "test": float(correct[split.others].mean()),
        },
        "noise_multiplier": recipe.noise_multiplier,
        "target_epsilon": recipe.target_epsilon,
        "steps": recipe.steps,
        "guarantee": _guarantee(recipe, split, settings),
        "attacks": _attacks(target_logits, shadow_logits, split, is_shadow_member),
    }


def _guarantee(
    recipe: Recipe, split: Split, settings: Settings
) -> dict[str, dict[str, float]] | None:
    """Epsilon, and the largest advantage of any attacker, under both relations."""
    if recipe.noise_multiplier is None or settings.delta is None:
        return None
    event = recipe.make_alg(len(split.members)).event(recipe.steps)
    return {
        relation: {
            "epsilon": accounting.epsilon(event, delta=settings.delta, relation=relation),
            "delta": settings.delta,
            "advantage_bound": accounting.advantage_bound(event, relation=relation),
        }
        for relation in _types.RELATIONS
    }


def _attacks(
    target_logits: Float[Array, "n c"],
    shadow_logits: Float[Array, "m n c"],
    split: Split,
    is_shadow_member: Bool[np.ndarray, "m n"],
) -> dict[str, Any]:
    """LiRA and the loss threshold, each with its metrics and its ROC curve."""
    confidence = jax.vmap(membership_scores.logit_confidence)
    losses = jax.vmap(membership_scores.negative_loss)
    everywhere = jax.vmap(confidence, in_axes=(0, None))(shadow_logits, split.y)
    ratios = lira.online(confidence(target_logits, split.y), everywhere, is_shadow_member)
    shadow_losses = jax.vmap(losses, in_axes=(0, None))(shadow_logits, split.y)
    fitted = threshold.fit(shadow_losses, is_shadow_member)
    margins = threshold.apply(fitted, losses(target_logits, split.y))
    is_member = split.is_member()
    return {"lira": _measured(ratios, is_member), "threshold": _measured(margins, is_member)}


def _measured(scores: Float[np.ndarray, " n"], is_member: Bool[np.ndarray, " n"]) -> PyTree:
    """Metrics, and the balanced accuracy where the attack's own threshold, 0, decides."""
    scores = np.asarray(scores, np.float64)
    curve = metrics.roc_curve(scores, is_member)
    decided = scores > 0
    return {
        **metrics.membership(scores, is_member)._asdict(),
        "accuracy_at_zero": float((decided[is_member].mean() + (~decided[~is_member]).mean()) / 2),
        "roc": {"fpr": curve.fpr.tolist(), "tpr": curve.tpr.tolist()},
    }


def _versions() -> dict[str, str]:
    names = ("jax", "flax", "optax", "numpy", "scipy", "dp-accounting")
    found = {name: metadata.version(name) for name in names}
    return {"python": platform.python_version(), "device": jax.devices()[0].device_kind, **found}
