"""Each defence in one comparison: its accuracy against what adaptive attackers still get.

Run:       python -m experiments run nasr2018/frontier --preset cpu
Time:      smoke 30 s; cpu 16 min on one core, in pieces; paper some hours on a GPU, estimated
Data:      purchases (cpu), purchase100 (paper)
Paper:     none; Table 4 has its own attack alone, at 51.6 % for the defence and 67.6 % without
Ours:      cpu, 2026-11-29: AUC of (a) 0.59 without and 0.54 with the defence at lambda 3, of RMIA
           0.85 and 0.76, test accuracy 28.6 and 18.2 %; see docs/defences.md

The attacks on each defence:
(a) the network of the paper, trained on a fifth of the records whose membership is revealed, with
    the accuracy of the paper on equally many other members and non-members;
(b) the same network, trained on the outputs of shadow models with the same defence;
(c) label only: distances to the boundary, estimated by flipped inputs;
(d) LiRA and RMIA, online, with shadow models of the same defence;
(e) all of them on DP-SGD at epsilon 8 and 2, whose guarantee bounds every attack.

One target for each defence; members and shadow models are random halves of the households of a
pool, cut to equal numbers of records. Every model has reference records of its own, from a reserve
on which no model is trained and no attack is judged. The intervals are at 95 %, for one target, by
a bootstrap over households, since the records of a household are in one half together. The
guarantee of DP-SGD is for one record, and a household has 21 in the mean.
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from experiments import common, figures
from experiments.attacks import resampling
from experiments.nasr2018 import recipe
from experiments.nasr2018.recipe import Case, Recipe, Sizes
from jaxpriv import metrics, signals, training, units
from jaxpriv.attacks import Evidence, Training, cross_target, neural, suite
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.defences.base import from_text

_SUITE = ("label_only", "lira", "rmia")
_TITLES = {
    "paper": "attack of the paper",
    "shadow_neural": "its network on shadow models",
    "label_only": "label only",
    "lira": "LiRA online",
    "rmia": "RMIA online",
}
_FPRS = resampling.METRICS[1:]
_REVEALED = 0.2


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A row: its name and family, its training, and a defence of the outputs in words."""

    name: str
    family: str
    recipe: Recipe
    outputs: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pool, reserve, population: numbers of records at most, in disjoint sets.

    reference: number of reference records of a model, drawn from the reserve. copies: of a query.
    resamples: of the bootstrap.
    """

    data: str
    pool: int
    reserve: int
    reference: int
    population: int
    widths: tuple[int, ...] | None
    num_shadows: int
    attack_steps: int
    copies: int
    resamples: int
    defences: tuple[Defence, ...]
    folder: str | None = "build/nasr2018"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What determines the row of a defence."""

    name: str
    data: str
    recipe: Recipe
    outputs: str | None
    settings: Settings


def _defences(base: Recipe, *, outputs: tuple[str, ...], private: Recipe) -> tuple[Defence, ...]:
    def trained(name: str, family: str, **options: Any) -> Defence:
        return Defence(name=name, family=family, recipe=dataclasses.replace(base, **options))

    return (
        trained("none", "none"),
        trained("adversarial, lambda 3", "adversarial", weight=3.0),
        trained("adversarial, lambda 10", "adversarial", weight=10.0),
        trained("L2 0.001", "regulariser", l2=0.001),
        trained("dropout 0.5", "regulariser", dropout=0.5),
        trained("label smoothing 0.2", "regulariser", label_smoothing=0.2),
        trained("early stopping", "regulariser", stops=2),
        *(Defence(name=text, family="outputs", recipe=base, outputs=text) for text in outputs),
        *(
            Defence(
                name=f"DP-SGD, epsilon {epsilon:g}",
                family="DP-SGD",
                recipe=dataclasses.replace(private, epsilon=epsilon),
            )
            for epsilon in (8.0, 2.0)
        ),
    )


_SMOKE = Recipe(epochs=1, batch_size=10, attacker="linear", attacker_steps=1)
_OUTPUTS = ("top_k:k=3", "rounding:decimals=1", "temperature:temperature=4", "label_only")
_CPU = Recipe(epochs=10, batch_size=64)
_PAPER = Recipe(epochs=50)
PRESETS = {
    "smoke": Settings(
        data="synthetic_purchase",
        pool=60,
        reserve=30,
        reference=20,
        population=30,
        widths=(4,),
        num_shadows=2,
        attack_steps=2,
        copies=2,
        resamples=10,
        defences=(
            Defence(name="none", family="none", recipe=_SMOKE),
            Defence(name="top_k:k=3", family="outputs", recipe=_SMOKE, outputs="top_k:k=3"),
        ),
        folder=None,
    ),
    "cpu": Settings(
        data="purchases",
        pool=5000,
        reserve=3500,
        reference=2500,
        population=1500,
        widths=None,
        num_shadows=8,
        attack_steps=400,
        copies=8,
        resamples=400,
        defences=_defences(
            _CPU, outputs=_OUTPUTS, private=dataclasses.replace(_CPU, batch_size=128)
        ),
    ),
    "paper": Settings(
        data="purchase100",
        pool=40_000,
        reserve=40_000,
        reference=20_000,
        population=10_000,
        widths=None,
        num_shadows=64,
        attack_steps=5000,
        copies=64,
        resamples=400,
        defences=_defences(
            _PAPER, outputs=_OUTPUTS, private=dataclasses.replace(_PAPER, batch_size=512)
        ),
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks; `rows` has one for each defence and attack."""
    rows = []
    shared = dataclasses.replace(settings, defences=(), folder=None)
    for defence in settings.defences:
        entry = _Entry(
            name=defence.name,
            data=settings.data,
            recipe=defence.recipe,
            outputs=defence.outputs,
            settings=shared,
        )
        measured = recipe.stored(
            entry, settings.folder, functools.partial(_measure, base=settings.folder)
        )
        rows += [
            {"defence": defence.name, "family": defence.family, **row} for row in measured["rows"]
        ]
    return {"rows": rows}


class _Victims(NamedTuple):
    """Outputs of the models of a training: the target is the first, without its complement.

    household: index of the household of each record, or of the record where there are none.
    """

    evidence: Evidence
    is_member: np.ndarray
    household: np.ndarray


def _measure(entry: _Entry, folder: Path | None, *, base: str | None) -> dict[str, Any]:
    del folder  # a defence of outputs has the models of another entry
    models_folder = None
    if base is not None:
        plain = dataclasses.replace(entry, outputs=None)
        models_folder = Path(base) / "models" / recipe.digest(plain)
    victims = _victims(entry.settings, entry.recipe, models_folder)
    evidence, is_member, household = victims
    key = jax.random.key(3)
    if entry.outputs is not None:
        respond = from_text(entry.outputs).respond
        assert respond is not None
        evidence = evidence_lib.defended(key, evidence, respond)
    judged = evidence.judged
    assert evidence.correct is not None
    correct = evidence.correct[~is_member]
    shared = {
        "train_accuracy": float(evidence.correct[is_member].mean()),
        "test_accuracy": float(correct.mean()),
        "test_interval": metrics.intervals.korn_graubard(
            correct, household[~is_member], confidence=0.95
        ),
        "num_members": int(is_member.sum()),
        "num_households": len(np.unique(household)),
    }
    truth = is_member[judged]
    all_scores = _scores(key, evidence, entry.settings)
    resampled = resampling.Table(
        {name: [resampling.column(values[judged], truth)] for name, values in all_scores.items()},
        household[judged],
        resamples=entry.settings.resamples,
    )
    rows = []
    for name, scores in all_scores.items():
        row = {"attack": name, **_success(resampled, name, num_nonmembers=int((~truth).sum()))}
        if name == "paper":
            sides = (np.flatnonzero(judged & side) for side in (is_member, ~is_member))
            row |= recipe.attack_accuracies(special.expit(scores), *sides)
        rows.append({**shared, **row})
    return {"rows": rows}


def _success(
    resampled: resampling.Table, name: str, *, num_nonmembers: int
) -> dict[str, float | list[float] | None]:
    """Returns the metrics and their intervals; None for an FPR below 1 / num_nonmembers."""
    values: dict[str, float | list[float] | None] = {}
    for metric in resampling.METRICS:
        value, interval = resampled.mean(name, metric)
        is_resolvable = metric == "auc" or num_nonmembers * float(metric) >= 1
        key = "auc" if metric == "auc" else f"tpr_at_{metric}"
        values[key] = value if is_resolvable else None
        values[f"{key}_interval"] = list(interval) if is_resolvable else None
    return values


def _scores(key: jax.Array, evidence: Evidence, settings: Settings) -> dict[str, np.ndarray]:
    """Runs every attack on the target."""
    options = Training(steps=settings.attack_steps)
    logits, labels = evidence.require("logits", "labels")
    shadow_logits, shadow_is_member = evidence.require("shadow_logits", "shadow_is_member")
    revealed, known = evidence.require("revealed", "revealed_is_member")
    target, shadows = (np.exp(signals.log_probabilities(each)) for each in (logits, shadow_logits))
    all_labels = np.broadcast_to(labels, shadow_is_member.shape)
    paper = neural.fit(
        key,
        *(neural.Outputs(target[rows], labels[rows]) for rows in (known, revealed & ~known)),
        training=options,
    )
    shadow = neural.fit(
        key,
        *(
            neural.Outputs(shadows[rows], all_labels[rows])
            for rows in (shadow_is_member, ~shadow_is_member)
        ),
        training=options,
    )
    own = neural.Outputs(target, labels)
    scores = {"paper": neural.apply(paper, own), "shadow_neural": neural.apply(shadow, own)}
    for attack in suite.attacks(training=options, copies=settings.copies):
        if attack.name in _SUITE:
            scores[attack.name] = attack.run(key, evidence)
    return scores


@functools.lru_cache(maxsize=1)
def _victims(settings: Settings, options: Recipe, folder: Path | None) -> _Victims:
    """Trains target and shadow models on halves of the households of the pool."""
    dataset = recipe.load(settings.data)
    rng = np.random.default_rng(0)
    sizes = {name: getattr(settings, name) for name in ("pool", "reserve", "population")}
    parts = dataset.split(rng, sizes=sizes)
    pool, reserve = parts["pool"], parts["reserve"]
    unit = units.of_records(len(pool), group=pool.group)
    half_key, train_key = jax.random.split(jax.random.key(1))
    halves = units.halves(half_key, unit, num_models=settings.num_shadows + 2)
    size = halves.sum(axis=1).min()
    members = np.stack([rng.permutation(np.flatnonzero(half))[:size] for half in halves])
    is_member = np.zeros_like(halves)
    np.put_along_axis(is_member, members, True, axis=1)
    own = [rng.permutation(len(reserve))[: settings.reference] for _ in halves]
    module = recipe.module_of(_case(settings, options), dataset.num_classes)
    x, y = (
        jnp.asarray(np.concatenate(each))
        for each in ((pool.x, reserve.x), (pool.y.astype(np.int32), reserve.y.astype(np.int32)))
    )
    params = recipe.train(
        train_key,
        options,
        module,
        (x, y),
        members=members,
        reference=len(pool) + np.stack(own),
        validation=len(pool) + np.arange(len(reserve)),
        folder=folder,
    ).params
    # Records of the target's half that were cut are neither members nor non-members.
    is_evidence = is_member[0] | ~halves[0]
    shadows = cross_target.shadows_of(halves, 0)
    revealed = units.draw(rng, unit, sizes={"revealed": int(_REVEALED * len(pool))})["revealed"]
    is_revealed = np.isin(np.flatnonzero(is_evidence), revealed)

    def outputs(inputs: np.ndarray) -> np.ndarray:
        return training.shadows.outputs(
            lambda params, row: recipe.logits(module, params, row), params, jnp.asarray(inputs)
        )

    logits, population = outputs(pool.x[is_evidence]), parts["population"]
    population_logits = outputs(population.x)
    evidence = Evidence(
        inputs=pool.x[is_evidence],
        labels=pool.y[is_evidence],
        logits=logits[0],
        shadow_logits=logits[shadows],
        shadow_is_member=is_member[shadows][:, is_evidence],
        population=Evidence(
            inputs=population.x,
            labels=population.y,
            logits=population_logits[0],
            shadow_logits=population_logits[shadows],
        ),
        revealed=is_revealed,
        revealed_is_member=is_member[0][is_evidence] & is_revealed,
        predict=_query(module, jax.tree.map(lambda leaf: leaf[0], params)),
    )
    return _Victims(evidence, is_member[0][is_evidence], unit.index[is_evidence])


def _case(settings: Settings, options: Recipe) -> Case:
    sizes = Sizes(members=0, reference=0, known_members=0, known_nonmembers=0, test=0)
    return Case(name="", data=settings.data, sizes=sizes, recipe=options, widths=settings.widths)


def _query(module: Any, params: Any) -> evidence_lib.Predict:
    logits = jax.jit(jax.vmap(lambda row: recipe.logits(module, params, row)))

    def predict(key: jax.Array, x: np.ndarray) -> np.ndarray:
        del key
        # One shape for all batches, so that it compiles once.
        padded = np.zeros((-(-len(x) // 1024), 1024, *x.shape[1:]), np.float32)
        padded.reshape(-1, *x.shape[1:])[: len(x)] = x
        return np.concatenate([np.asarray(logits(block)) for block in padded])[: len(x)]

    return predict


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = ("defence", "attack", "test", "AUC", "interval", "TPR@1%", "TPR@0.1%", "accuracy")
    lines = []
    for row in record["rows"]:
        low, high = row["auc_interval"]
        lines.append(
            (
                row["defence"],
                _TITLES[row["attack"]],
                recipe.percent(row["test_accuracy"]),
                f"{row['auc']:.3f}",
                f"{low:.3f} to {high:.3f}",
                *(recipe.percent(row[f"tpr_at_{fpr}"]) or "n/a" for fpr in _FPRS),
                recipe.percent(row.get("attack_accuracy")),
            )
        )
    return common.text_table(columns, lines)


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the success of each attack against the test accuracy, a colour for each family."""
    styles = {"adversarial": "o-", "DP-SGD": "s-", "regulariser": "^", "outputs": "v"}
    panels: dict[str, list[figures.Line]] = {}
    for attack, title in _TITLES.items():
        rows = [row for row in record["rows"] if row["attack"] == attack]
        lines = panels.setdefault(f"{title}, AUC", [])
        lines += _lines(rows, styles, [(row["auc"], row["auc_interval"]) for row in rows])
    for attack in ("lira", "rmia"):
        rows = [row for row in record["rows"] if row["attack"] == attack]
        for fpr in _FPRS:
            points = [(row[f"tpr_at_{fpr}"], row[f"tpr_at_{fpr}_interval"]) for row in rows]
            if all(tpr is not None for tpr, _ in points):
                title = f"{_TITLES[attack]}, TPR at {100 * float(fpr):g} % FPR"
                panels[title] = _lines(rows, styles, points)
    return {"frontier": figures.lines(panels, x="test accuracy", y="success of the attack")}


def _lines(
    rows: list[dict[str, Any]],
    styles: dict[str, str],
    points: list[tuple[float, list[float] | None]],
) -> list[figures.Line]:
    """Draws a line for each family, and a vertical line for each interval."""
    lines = []
    for family in dict.fromkeys(row["family"] for row in rows):
        chosen = [i for i, row in enumerate(rows) if row["family"] == family]
        x = [rows[i]["test_accuracy"] for i in chosen]
        style = styles.get(family, "o")
        lines.append(figures.Line(family, x, [points[i][0] for i in chosen], style=style))
        for i, accuracy in zip(chosen, x, strict=True):
            if (interval := points[i][1]) is not None:
                lines.append(figures.Line(family, [accuracy] * 2, interval, style="-"))
    return lines
