"""Attribute inference on adult, beside imputation without the model.

Run:       python -m experiments run attacks/attribute_adult --preset cpu
Time:      smoke 20 s, cpu 3 min on two cores, paper not run yet
Paper:     Jayaraman and Evans (2022): attacks on an attribute are seldom better than imputation
Ours:      without DP, occupation by `shadows`: +2.3 points for members (1.5 to 3.0), -2.0 for
           non-members (-2.8 to -1.2); with epsilon 8 and 2 no interval lies above 0 (one target)

A multilayer perceptron predicts the income. The attacker has the other columns and the label of a
record and guesses its occupation (14 values) or race (5). `imputation` is gradient boosting on
5,000 records of the attacker, without the model; it finds 33.4 % of the occupations and 86.5 % of
the races. `gain` is the accuracy of an attack less that of imputation on the same records, for
members and for non-members: a gain on both shows what the model learned of the population, a larger
one on members what it memorised. `none` takes equal priors of the values, `imputed` those of
imputation, and `shadows` weighs both by shadow models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from jaxpriv import accounting, data, grads, models, sampling, training, units
from jaxpriv.attacks import attribute
from jaxpriv.attacks.attribute import Attribute


@dataclass(frozen=True, kw_only=True)
class Settings:
    """num_records: number of members and non-members together, and of the attacker's records.

    epsilons: guarantees of DP-SGD; None is training without DP.
    """

    num_records: int = 10_000
    num_attacker: int = 5_000
    epsilons: tuple[float | None, ...] = (None, 8.0, 2.0)
    shadows: int = 8
    steps: int = 600
    width: int = 256
    attributes: tuple[str, ...] = ("occupation", "race")
    generated: bool = False


PRESETS = {
    "smoke": Settings(
        num_records=80, num_attacker=60, epsilons=(None,), shadows=4, steps=3, width=4,
        attributes=("race",), generated=True,
    ),
    "cpu": Settings(),
    "paper": Settings(num_records=20_000, num_attacker=20_000, shadows=64),
}  # fmt: skip
COLUMNS = {"occupation": range(36, 50), "race": range(56, 61)}
"""Columns of the dummy variables of an attribute in `data.load("adult")`."""
DELTA, RELATION, CONFIDENCE = 1e-5, "add_or_remove_one", 0.95
SAMPLING_PROB, CLIP_NORM, RATES = 0.05, 1.0, (0.003, 0.01)
"""Training as in `jaxpriv report`; the rates of Adam are those without and with DP."""
FOLDS = 5


class Table(NamedTuple):
    """Records, and those of the attacker."""

    x: np.ndarray
    y: np.ndarray
    own_x: np.ndarray
    own_y: np.ndarray
    is_member: np.ndarray
    shadow_is_member: np.ndarray


def run(settings: Settings) -> dict[str, Any]:
    """Attacks each model with each prior for each attribute."""
    table = _load(settings)
    imputed = {name: _impute(table, _attribute(name)) for name in settings.attributes}
    rows = []
    for epsilon in settings.epsilons:
        accuracy, outputs = _train(table, settings, epsilon)
        for name in settings.attributes:
            rows += [
                {"epsilon": epsilon, "accuracy": accuracy, "attribute": name, **row}
                for row in _attack(table, _attribute(name), outputs, imputed[name])
            ]
    return {"confidence": CONFIDENCE, "rows": rows}


def _attribute(name: str) -> Attribute:
    return Attribute.one_hot(list(COLUMNS[name]))


def _load(settings: Settings) -> Table:
    rng = np.random.default_rng(0)
    count = settings.num_records + settings.num_attacker
    if settings.generated:
        x = rng.random((count, 104), np.float32)
        for columns in COLUMNS.values():
            x[:, columns] = np.eye(len(columns))[rng.integers(len(columns), size=count)]
        y = rng.integers(2, size=count).astype(np.int32)
    else:
        adult = data.load("adult")
        rows = rng.permutation(len(adult))[:count]
        x, y = adult.x[rows], adult.y[rows].astype(np.int32)
    n = settings.num_records
    is_member = np.arange(n) < n // 2
    shadow_is_member = units.halves(
        jax.random.key(0), units.records(settings.num_attacker), num_models=settings.shadows
    )
    return Table(x[:n], y[:n], x[n:], y[n:], is_member, shadow_is_member)


def _impute(table: Table, target: Attribute) -> tuple[np.ndarray, np.ndarray]:
    """Imputes the attribute of the records, and out of fold that of the attacker's."""
    rng = np.random.default_rng(1)

    def impute(x: np.ndarray, y: np.ndarray, known: np.ndarray) -> np.ndarray:
        return attribute.impute(
            rng,
            x,
            y,
            attribute=target,
            population_inputs=table.own_x[known],
            population_labels=table.own_y[known],
        )

    every = np.ones(len(table.own_y), bool)
    own = np.zeros((len(table.own_y), len(target.codes)))
    fold = np.arange(len(own)) % FOLDS
    for i in range(FOLDS):
        own[fold == i] = impute(table.own_x[fold == i], table.own_y[fold == i], fold != i)
    return impute(table.x, table.y, every), own


class Outputs(NamedTuple):
    """Functions from inputs [n, d] to logits: of the target [n, c], of the shadows [m, n, c]."""

    target: Callable[[np.ndarray], np.ndarray]
    shadows: Callable[[np.ndarray], np.ndarray]


def _train(table: Table, settings: Settings, epsilon: float | None) -> tuple[float, Outputs]:
    """Trains the target on its members and the shadow models on the attacker's records."""
    module = models.MLP((settings.width,), 2)

    def loss(params: Any, record: Any, key: jax.Array) -> jax.Array:
        del key
        logits = module.apply(params, record[0])
        return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), record[1])

    def make_alg(n: int, hyper: None) -> training.Algorithm:
        del hyper
        sampler = sampling.poisson(n, sampling_prob=SAMPLING_PROB)
        if epsilon is None:
            return training.sgd(loss, optax.adam(RATES[0]), sampler)
        noise_multiplier = accounting.calibrate(
            sampler, steps=settings.steps, epsilon=epsilon, delta=DELTA, relation=RELATION
        )
        grad = grads.clipped_grad(loss, clip_norm=CLIP_NORM)
        optimizer = optax.adam(RATES[1])
        return training.dpsgd(grad, optimizer, sampler, noise_multiplier=noise_multiplier)

    init_key, fit_key, shadow_key = jax.random.split(jax.random.key(1), 3)
    init = lambda key: module.init(key, jnp.asarray(table.x[0]))  # noqa: E731
    members = np.flatnonzero(table.is_member)
    state, _ = training.fit(
        fit_key,
        make_alg(len(members), None),
        init(init_key),
        (jnp.asarray(table.x[members]), jnp.asarray(table.y[members])),
        steps=settings.steps,
    )
    shadows = training.shadows.train(
        shadow_key,
        make_alg,
        init,
        (jnp.asarray(table.own_x), jnp.asarray(table.own_y)),
        is_member=table.shadow_is_member,
        steps=settings.steps,
    )
    target = lambda x: np.asarray(module.apply(state.params, jnp.asarray(x)))  # noqa: E731
    many = jax.jit(jax.vmap(module.apply, in_axes=(0, None)))
    outputs = Outputs(target, lambda x: np.asarray(many(shadows, jnp.asarray(x))))
    guesses = target(table.x[~table.is_member]).argmax(-1)
    return float((guesses == table.y[~table.is_member]).mean()), outputs


def _attack(
    table: Table,
    target: Attribute,
    outputs: Outputs,
    imputed: tuple[np.ndarray, np.ndarray],
) -> list[dict[str, Any]]:
    values, own_values = target.values(table.x), target.values(table.own_x)
    queries, own_queries = target.queries(table.x), target.queries(table.own_x)

    def logits(predict: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
        n, v, d = x.shape
        flat = predict(x.reshape(n * v, d))
        return flat.reshape(*flat.shape[:-2], n, v, flat.shape[-1])

    of_target = logits(outputs.target, queries)
    prior, own_prior = imputed
    fitted = attribute.fit(
        logits(outputs.shadows, own_queries),
        table.own_y,
        own_values,
        shadow_is_member=table.shadow_is_member,
        log_prior=own_prior,
    )
    scores = {
        "none": attribute.from_predictions(of_target, table.y),
        "imputed": attribute.from_predictions(of_target, table.y, log_prior=prior),
        "shadows": attribute.apply(
            fitted,
            of_target,
            table.y,
            shadow_logits=logits(outputs.shadows, queries),
            log_prior=prior,
        ),
    }
    rows = []
    for name, score in scores.items():
        gains = attribute.measure(
            score, prior, values, is_member=table.is_member, confidence=CONFIDENCE
        )
        rows.append(
            {
                "prior": name,
                "weights": list(fitted) if name == "shadows" else None,
                **{side: _record(gain) for side, gain in gains._asdict().items()},
            }
        )
    return rows


def _record(gain: attribute.Gain) -> dict[str, Any]:
    return {
        "accuracy": list(gain.accuracy),
        "imputation": list(gain.imputation),
        "gain": list(gain.gain),
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "model, attribute, prior", "accuracy of the model", "attack, members", "imputation",
        "gain, members", "gain, non-members",
    )  # fmt: skip
    rows = []
    for row in record["rows"]:
        model = "without DP" if row["epsilon"] is None else f"epsilon {row['epsilon']:g}"
        gains = [row[side]["gain"] for side in ("members", "nonmembers")]
        rows.append(
            (
                f"{model}, {row['attribute']}, {row['prior']}",
                f"{row['accuracy']:.3f}",
                f"{row['members']['accuracy'][0]:.3f}",
                f"{row['members']['imputation'][0]:.3f}",
                *(f"{gain[0]:+.3f} ({gain[1]:+.3f} to {gain[2]:+.3f})" for gain in gains),
            )
        )
    return common.text_table(columns, rows)
