"""Shared by the experiments of nasr2018: data, the training recipe with its options, the attack.

    Case --split--> D, D', D^A, D'^A, D'' --train--> classifiers, one for each seed
         --attack_network--> h --> attack accuracy on D without D^A, and on D''

D is what the classifier is trained on, D' the reference set of the defence, D^A and D'^A the
members and non-members that the attacker has, and D'' is seen by nobody. All but D^A are disjoint.
The paper's sizes of CIFAR-100 leave no D'', so D'^A is halved there. The batch size, the optimiser
and k are not printed: batches of 128 and Adam at 1e-3 are those of the authors' code, which has 26
steps of the attacker for each step of the classifier; k = 5 is ours.

A case is stored in `folder` when it is done, and a killed run goes on with the next one.
"""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special

from experiments import common, figures
from jaxpriv import accounting, data, grads, metrics, models, sampling, training, units
from jaxpriv.attacks import Training, neural
from jaxpriv.defences import adversarial

NUM_BINS = 100
"""Bins of the distributions of Figures 7 and 8; with 50 the printed mean gaps are impossible."""

_WIDTHS = {"texas100": (2048, 1024, 512, 256)}
_OTHER_WIDTHS = (1024, 512, 256)
_INIT_STD = 0.01
_DELTA, _RELATION = 1e-5, "add_or_remove_one"
"""Of DP-SGD in `frontier`."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of records at most: D, D', D^A (part of D), D'^A and D''."""

    members: int
    reference: int
    known_members: int
    known_nonmembers: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a classifier is trained; the options can be combined, except as `train` says.

    weight: lambda; 0 is plain training. attacker_steps: k. attacker: "linear" is for tests.
    stops: train until the accuracy on D'^A has not risen for `stops` epochs; None trains all.
    epsilon: of DP-SGD, with a clip norm of `clip_norm`; None without.
    """

    epochs: int
    batch_size: int = 128
    learning_rate: float = 1e-3
    schedule: tuple[float, ...] = ()
    weight: float = 0.0
    attacker_steps: int = 5
    attacker: Literal["neural", "linear"] = "neural"
    gain: Literal["log", "squared"] = "log"
    warmup_epochs: int = 0
    l2: float = 0.0
    dropout: float = 0.0
    label_smoothing: float = 0.0
    stops: int | None = None
    epsilon: float | None = None
    clip_norm: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A classifier of a table: its name there, data, network, training and attack.

    network: "tanh" is that of the paper for tables; "alexnet" and "densenet" take images.
    attack_steps: of the attack, on batches of 128.
    """

    name: str
    data: str
    sizes: Sizes
    recipe: Recipe
    network: Literal["tanh", "alexnet", "densenet"] = "tanh"
    widths: tuple[int, ...] | None = None
    attack_steps: int = 2000
    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """cases: rows of the table. folder: of finished cases; None stores nothing."""

    cases: tuple[Case, ...]
    folder: str | None = "build/nasr2018"


def run(
    settings: Settings,
    *,
    keys: Sequence[str] = (),
) -> dict[str, Any]:
    """Measures every case whose data set is present; `left_out` names the rest.

    Args:
      settings: the cases.
      keys: names of measurements that the rows have beside the accuracies.
    """
    rows, left_out = [], []
    for case in settings.cases:
        if not is_present(case.data):
            left_out.append(f"{case.data}, {case.name}: the files of {case.data} are missing")
            continue
        measured = stored(case, settings.folder, measure)
        wanted = {key: measured[key] for key in (*_ROW, *keys)}
        rows.append({"data": case.data, "case": case.name, **wanted})
    if not rows:
        raise ValueError(f"Expected the files of one of the data sets: {'; '.join(left_out)}.")
    return {"rows": rows, "left_out": left_out}


_ROW = (
    "train_accuracy",
    "test_accuracy",
    "attack_accuracy",
    "attack_at_half",
    "intervals",
    "num_records",
    "seconds",
)


def is_present(name: str) -> bool:
    """Returns whether the files of a data set are on this machine."""
    return any(entry.name == name and entry.sources for entry in data.available())


def stored(
    case: Any, folder: str | None, compute: Callable[[Any, Path | None], dict[str, Any]]
) -> dict[str, Any]:
    """Computes a case, or reads it where it was computed before, under any name."""
    if folder is None:
        return compute(case, None)
    path = Path(folder) / f"{case.data}-{digest(case)}.json"
    if not path.exists():
        common.write(path, compute(case, Path(folder) / "models" / digest(case)))
    return json.loads(path.read_text("utf8"))


def digest(case: Any) -> str:
    """Returns a short hash of a case without its name."""
    parts = dataclasses.asdict(case) | {"name": ""}
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


@functools.cache
def load(name: str) -> data.Dataset:
    """Loads a data set with inputs of float32; images are scaled to 0..1."""
    dataset = data.load(name)
    x = dataset.x.astype(np.float32)
    return dataclasses.replace(dataset, x=x / 255 if x.max() > 1 else x)


class Split(NamedTuple):
    """Rows of the sets of one seed: D, D', D^A, D'^A, D''."""

    members: np.ndarray
    reference: np.ndarray
    known_members: np.ndarray
    known_nonmembers: np.ndarray
    test: np.ndarray


def splits(dataset: data.Dataset, sizes: Sizes, *, seeds: int) -> list[Split]:
    """Draws the sets of each seed, of equal sizes; groups (households) are never divided.

    D and D'' do not depend on the size of D'.
    """
    of_records = units.of_records(len(dataset), group=dataset.group)
    wanted = {
        "members": sizes.members,
        "test": sizes.test,
        "known_nonmembers": sizes.known_nonmembers,
        "reference": sizes.reference,
    }
    drawn = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        parts = units.draw(rng, of_records, sizes=wanted)
        drawn.append({name: rng.permutation(rows) for name, rows in parts.items()})
    counts = {name: min(len(parts[name]) for parts in drawn) for name in wanted}
    if min(counts.values()) < 1:
        raise ValueError(f"Expected records in every set of {dataset.name}, got {counts}.")
    result = []
    for parts in drawn:
        cut = {name: rows[: counts[name]] for name, rows in parts.items()}
        result.append(Split(known_members=cut["members"][: sizes.known_members], **cut))
    return result


def module_of(case: Case, num_classes: int) -> nn.Module:
    """Makes the classifier of a case."""
    if case.network == "alexnet":
        return models.AlexNet(num_classes=num_classes, dropout=case.recipe.dropout)
    if case.network == "densenet":
        return models.DenseNet(num_classes=num_classes)
    return models.MLP(
        widths=case.widths or _WIDTHS.get(case.data, _OTHER_WIDTHS),
        num_classes=num_classes,
        activation=nn.tanh,
        init_std=_INIT_STD,
        dropout=case.recipe.dropout,
    )


def logits(module: nn.Module, params: Any, x: jax.Array, key: jax.Array | None = None) -> Any:
    """Computes the logits of one record; with a key, in training."""
    if key is None or isinstance(module, models.DenseNet):
        return module.apply(params, x)
    return module.apply(params, x, deterministic=False, rngs={"dropout": key})


LINEAR_ATTACKER = adversarial.Attacker(
    lambda key, p, y: jnp.zeros((2, len(p))),
    lambda w, p, y: w[0] @ p + w[1, y],
)
"""Attacker of the smallest compilation time, for tests."""


def algorithm(
    recipe: Recipe, module: nn.Module, records: tuple[jax.Array, jax.Array], *, steps: int
) -> Callable[[int, Any], training.Algorithm]:
    """Returns `make_alg(size, (reference rows, code of the attacker))` of a recipe.

    Label smoothing is of plain training, and DP-SGD has no other option.
    """
    predict = functools.partial(logits, module)
    x, y = records
    options = recipe.weight, recipe.label_smoothing, recipe.epsilon or 0
    if sum(option > 0 for option in options) > 1:
        raise ValueError("Expected one of weight, label_smoothing and epsilon, got several.")

    def loss(params: Any, example: Any, key: jax.Array) -> jax.Array:
        x, y = example
        logits = predict(params, x, key)
        labels = optax.smooth_labels(jax.nn.one_hot(y, len(logits)), recipe.label_smoothing)
        return optax.softmax_cross_entropy(logits, labels)

    def make_alg(size: int, hyper: Any) -> training.Algorithm:
        batch_size = min(recipe.batch_size, size)
        if recipe.epsilon is not None:
            return _private(loss, recipe, size, batch_size, steps)
        sampler = sampling.fixed_batch(size, batch_size=batch_size)
        optimizer = _optimizer(recipe, steps)
        if not recipe.weight:
            return training.sgd(loss, optimizer, sampler)
        rows, code = hyper
        return adversarial.algorithm(
            predict,
            optimizer,
            sampler,
            reference=(x[rows], y[rows]),
            game=adversarial.Game(
                weight=recipe.weight,
                attacker_steps=recipe.attacker_steps,
                gain=recipe.gain,
                warmup_steps=recipe.warmup_epochs * (size // batch_size),
            ),
            attacker=adversarial.NEURAL_ATTACKER
            if recipe.attacker == "neural"
            else LINEAR_ATTACKER,
            attacker_key=jax.random.fold_in(jax.random.key(2), code),
        )

    return make_alg


def _optimizer(recipe: Recipe, steps: int) -> optax.GradientTransformation:
    """Returns Adam, or SGD with a schedule of equally many steps for each rate; with L2.

    R(f) = l2 * sum of squares has the gradient 2 l2 w.
    """
    step: Any = optax.adam(recipe.learning_rate)
    if recipe.schedule:
        length = -(-steps // len(recipe.schedule))
        rates = [optax.constant_schedule(rate) for rate in recipe.schedule]
        ends = [length * i for i in range(1, len(rates))]
        step = optax.sgd(optax.join_schedules(rates, ends), momentum=0.9)
    return optax.chain(optax.add_decayed_weights(2 * recipe.l2), step) if recipe.l2 else step


def _private(
    loss: Any, recipe: Recipe, size: int, batch_size: int, steps: int
) -> training.Algorithm:
    sampler = sampling.poisson(size, sampling_prob=batch_size / size)
    noise_multiplier = _noise(size, batch_size, steps, recipe.epsilon)
    return training.dpsgd(
        grads.clipped_grad(loss, clip_norm=recipe.clip_norm),
        optax.adam(recipe.learning_rate),
        sampler,
        noise_multiplier=noise_multiplier,
    )


@functools.cache
def _noise(size: int, batch_size: int, steps: int, epsilon: float) -> float:
    sampler = sampling.poisson(size, sampling_prob=batch_size / size)
    return accounting.calibrate(
        sampler, steps=steps, epsilon=epsilon, delta=_DELTA, relation=_RELATION
    )


class Trained(NamedTuple):
    """Parameters of the models [m, ...], the diagnostics [m, steps], and the steps done."""

    params: Any
    info: Any
    steps: int


def train(
    key: jax.Array,
    recipe: Recipe,
    module: nn.Module,
    records: tuple[jax.Array, jax.Array],
    *,
    members: np.ndarray,
    reference: np.ndarray,
    validation: np.ndarray,
    folder: Path | None,
) -> Trained:
    """Trains a model for each row of members.

    Args:
      key: PRNG key.
      recipe: options of the training.
      module: the classifier.
      records: inputs and labels of all records.
      members: rows of the records of each model, [m, k].
      reference: rows of the reference records of each model, [m, r].
      validation: rows on which early stopping measures the accuracy of the first model; all models
        stop where it does.
      folder: of checkpoints; None saves none.
    """
    size = members.shape[1]
    steps = recipe.epochs * max(1, size // min(recipe.batch_size, size))
    init_key, run_key = jax.random.split(key)
    init = jax.jit(jax.vmap(lambda key: module.init(key, records[0][0])))
    params = init(jax.random.split(init_key, len(members)))
    keys = jax.random.split(run_key, len(members))
    make_alg = algorithm(recipe, module, records, steps=steps)
    if recipe.stops is not None:
        first = jax.tree.map(lambda leaf: leaf[0], params)
        rows, nonmembers = jnp.asarray(members[0]), jnp.asarray(validation)
        steps = _steps_until(
            keys[0],
            make_alg(size, None),
            module,
            first,
            records,
            rows,
            nonmembers,
            patience=recipe.stops,
            steps=steps,
        )
    codes = np.arange(len(members), dtype=np.uint32)
    states, many = training.fit_many(
        keys,
        make_alg,
        params,
        records,
        members=members,
        steps=steps,
        hyper=(reference, codes) if recipe.weight else None,
        keep=lambda state: state.params,
        checkpoints=training.Checkpoints(directory=folder) if folder else None,
    )
    return Trained(states, many.info, steps)


def _steps_until(
    key: jax.Array,
    alg: training.Algorithm,
    module: nn.Module,
    params: Any,
    records: tuple[jax.Array, jax.Array],
    rows: jax.Array,
    validation: jax.Array,
    *,
    patience: int,
    steps: int,
) -> int:
    """Trains one model and returns the step with the highest accuracy before it stopped rising."""
    x, y = records
    accuracies: list[tuple[float, int]] = []

    @jax.jit
    def accuracy(params: Any) -> jax.Array:
        outputs = jax.vmap(lambda row: logits(module, params, row))(x[validation])
        return (outputs.argmax(-1) == y[validation]).mean(dtype=jnp.float32)

    def evaluate(params: Any, step: int) -> training.Evaluation:
        accuracies.append((float(accuracy(params)), step))
        best = max(range(len(accuracies)), key=lambda i: accuracies[i][0])
        stop = len(accuracies) - 1 - best >= patience
        return training.Evaluation({"accuracy": accuracies[-1][0]}, stop=stop)

    training.fit(key, alg, params, (x[rows], y[rows]), steps=steps, evaluate=evaluate)
    return max(accuracies, key=lambda each: each[0])[1]


def probabilities(module: nn.Module, params: Any, x: np.ndarray) -> np.ndarray:
    """Computes the outputs of every model for every record, [m, n, c]."""
    return training.shadows.outputs(
        lambda params, row: jax.nn.softmax(logits(module, params, row)), params, jnp.asarray(x)
    )


def attack_network(
    key: jax.Array, outputs: np.ndarray, labels: np.ndarray, split: Split, *, steps: int
) -> np.ndarray:
    """Trains the attack of the paper on D^A and D'^A; returns its h for every record."""
    known = [
        neural.Outputs(outputs[rows], labels[rows])
        for rows in (split.known_members, split.known_nonmembers)
    ]
    params = neural.fit(key, *known, training=Training(steps=steps))
    log_odds = neural.apply(params, neural.Outputs(outputs, labels))
    return special.expit(log_odds)


def measure(case: Case, folder: Path | None) -> dict[str, Any]:
    """Trains a classifier for each seed, attacks it, and measures both."""
    started = time.monotonic()
    dataset = load(case.data)
    parts = splits(dataset, case.sizes, seeds=case.seeds)
    module = module_of(case, dataset.num_classes)
    used = np.unique(np.concatenate([np.concatenate(split) for split in parts]))
    parts = [Split(*(np.searchsorted(used, rows) for rows in split)) for split in parts]
    x, y = dataset.x[used], dataset.y[used].astype(np.int32)
    train_key, attack_key = jax.random.split(jax.random.key(1))
    trained = train(
        train_key,
        case.recipe,
        module,
        (jnp.asarray(x), jnp.asarray(y)),
        members=np.stack([split.members for split in parts]),
        reference=np.stack([split.reference for split in parts]),
        validation=parts[0].known_nonmembers,
        folder=folder,
    )
    outputs_of_seeds = probabilities(module, trained.params, x)
    results = []
    for seed, (split, outputs) in enumerate(zip(parts, outputs_of_seeds, strict=True)):
        key = jax.random.fold_in(attack_key, seed)
        h = attack_network(key, outputs, y, split, steps=case.attack_steps)
        results.append(_accuracies(outputs, y, h, split))
    sizes = {name: len(rows) for name, rows in parts[0]._asdict().items()}
    num_epochs = max(1, min(case.recipe.epochs, trained.steps))
    return {
        **_summary(results),
        "num_records": sizes,
        "seconds": round(time.monotonic() - started, 1),
        "curves": _curves(trained.info, num_epochs),
        "distributions": _distributions(outputs_of_seeds[0], y, parts[0]),
    }


def _accuracies(
    outputs: np.ndarray, labels: np.ndarray, h: np.ndarray, split: Split
) -> dict[str, float]:
    """Measures a classifier, and its attack on equally many unseen members and non-members."""
    correct = outputs.argmax(-1) == labels
    unseen = np.setdiff1d(split.members, split.known_members)
    return {
        "train_accuracy": float(correct[split.members].mean()),
        "test_accuracy": float(correct[split.test].mean()),
        **attack_accuracies(h, unseen, split.test),
    }


def attack_accuracies(
    h: np.ndarray, members: np.ndarray, nonmembers: np.ndarray
) -> dict[str, float]:
    """Measures the attack accuracy of the paper and that at 1/2, on as many rows of either side."""
    size, rng = min(len(members), len(nonmembers)), np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(side)[:size] for side in (members, nonmembers)])
    accuracy = metrics.attack_accuracy(h[rows], np.repeat([True, False], size))
    return {"attack_accuracy": accuracy.expected, "attack_at_half": accuracy.at_half}


def _summary(results: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Returns means over the seeds, and their intervals of Student's t; None for one seed."""
    values = {name: [result[name] for result in results] for name in results[0]}
    intervals = None
    if len(results) > 1:
        intervals = {
            name: common.mean_interval(each, confidence=0.95)[1:] for name, each in values.items()
        }
    return {
        **{name: float(np.mean(each)) for name, each in values.items()},
        "intervals": intervals,
    }


def _curves(info: Any, num_epochs: int) -> dict[str, list[float] | None]:
    """Averages the diagnostics over the models and the steps of each epoch."""

    def by_epoch(values: Any) -> list[float]:
        steps = np.asarray(values, np.float64).mean(axis=0)
        return [float(part.mean()) for part in np.array_split(steps, num_epochs) if len(part)]

    names = ("loss", "gain", "attacker_accuracy")
    return {name: by_epoch(getattr(info, name)) if hasattr(info, name) else None for name in names}


def _distributions(outputs: np.ndarray, labels: np.ndarray, split: Split) -> dict[str, Any]:
    """Measures what Figures 5 to 8 draw, for the classifier of the first seed.

    class_gaps: training less test accuracy of each class with records on both sides.
    accuracy, entropy: shares of the records in `NUM_BINS` bins of 0..1, of the probability of the
      right class and of the entropy divided by ln of the number of classes; with the largest and
      the mean gap of the two sides.
    class_output: mean output for the class with the most members, or class 50 if there is one.
    """
    num_classes = outputs.shape[1]
    correct = outputs.argmax(-1) == labels
    sides = {"members": split.members, "nonmembers": split.test}
    gaps = []
    for label in range(num_classes):
        each = [correct[rows[labels[rows] == label]] for rows in sides.values()]
        if all(len(side) for side in each):
            gaps.append(float(each[0].mean() - each[1].mean()))
    counts = np.bincount(labels[split.members], minlength=num_classes)
    shown = 50 if num_classes > 50 and counts[50] else int(counts.argmax())
    p = np.maximum(outputs, np.finfo(np.float32).tiny)
    values = {
        "accuracy": outputs[np.arange(len(labels)), labels],
        "entropy": -(p * np.log(p)).sum(-1) / np.log(num_classes),
    }
    result: dict[str, Any] = {"class_gaps": gaps, "class_output": {"label": shown}}
    for side, rows in sides.items():
        chosen = rows[labels[rows] == shown]
        mean = outputs[chosen].mean(axis=0).tolist() if len(chosen) else None
        result["class_output"][side] = mean
    for name, each in values.items():
        shares = {
            side: np.histogram(np.clip(each[rows], 0, 1), NUM_BINS, (0, 1))[0] / len(rows)
            for side, rows in sides.items()
        }
        difference = np.abs(shares["members"] - shares["nonmembers"])
        result[name] = {
            **{side: share.tolist() for side, share in shares.items()},
            "largest_gap": float(difference.max()),
            "mean_gap": float(difference.mean()),
        }
    return result


def percent(share: float | None) -> str:
    """Formats a share, or None as ''."""
    return "" if share is None else f"{100 * share:.1f} %"


def table(record: dict[str, Any], paper: Mapping[tuple[str, str], Sequence[float | None]]) -> str:
    """Formats the accuracies, with those of the paper in percent by data set and case.

    Args:
      record: result of `run`.
      paper: training, test and attack accuracy in percent, or None where nothing is printed.
    """
    columns = ("case", "data", "train", "test", "attack", "+-", "attack at 1/2", "paper")
    lines = []
    for row in record["rows"]:
        printed = paper.get((row["data"], row["case"]))
        numbers = (
            "" if printed is None else " / ".join("-" if p is None else f"{p:g}" for p in printed)
        )
        interval = row["intervals"] and row["intervals"]["attack_accuracy"]
        half = "" if interval is None else percent((interval[1] - interval[0]) / 2)
        names = ("train_accuracy", "test_accuracy", "attack_accuracy")
        cells = [percent(row[name]) for name in names]
        lines.append(
            (row["case"], row["data"], *cells, half, percent(row["attack_at_half"]), numbers)
        )
    return "\n".join([common.text_table(columns, lines), *record["left_out"]])


def trade_offs(record: dict[str, Any]) -> dict[str, list[figures.Line]]:
    """Returns the attack accuracy against the test accuracy, a panel for each data set."""
    panels = {}
    for name in dict.fromkeys(row["data"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["data"] == name]
        ends = [row["intervals"]["attack_accuracy"] for row in rows if row["intervals"]]
        panels[name] = [
            figures.Line(
                "attack of the paper",
                [row["test_accuracy"] for row in rows],
                [row["attack_accuracy"] for row in rows],
                ends or None,
            )
        ]
    return panels
