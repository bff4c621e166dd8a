"""Every membership attack on the same targets: an MLP on purchases and a CNN on MNIST.

Run:       python -m experiments run attacks/leaderboard --preset cpu
Time:      smoke 1 min, cpu TIME on two cores; paper unmeasured, for one H100
Data:      purchases (extra `data`; built once in 90 s); mnist from JAXPRIV_DATA, else mnist5k
Expected:  LiRA and RMIA above the loss threshold at 0.1 % FPR, as Carlini et al. 2022 (LiRA
           8.4 % online, 7.1 % offline, Shokri et al. 0.3 %, loss 0.0 % on CIFAR-10 with 256
           shadows) and Zarifzadeh et al. 2024 (RMIA at least LiRA, most so with few shadows)

Models are trained on random halves of a pool (of purchases: halves of the households). Each target
is attacked with all other models but its complement. A killed run goes on where it stopped, from
build/leaderboard. The neural attack is told the membership of a fifth of the records, and every
attack is judged on the rest.
"""

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.attacks import contenders
from experiments.benchmarks import victims
from jaxpriv import data, metrics, models, reports, sampling, training
from jaxpriv.attacks import runner

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {
        "victims": {"synthetic_purchase": {"pool": 200, "population": 100, "steps": 4}},
        "shadows": 4,
        "targets": 2,
        "widths": (16,),
        "attack_steps": 2,
        "copies": 2,
        "resamples": 20,
    },
    "cpu": {
        "victims": {
            "purchases": {"pool": 20_000, "population": 10_000, "steps": 1500},
            "mnist": {"pool": 12_000, "population": 6_000, "steps": 700},
        },
        "shadows": 64,
        "targets": 5,
        "widths": (256,),
        "attack_steps": 2000,
        "copies": 16,
        "resamples": 200,
    },
    "paper": {
        "victims": {
            "purchases": {"pool": 30_000, "population": 10_000, "steps": 6000},
            "mnist": {"pool": 50_000, "population": 10_000, "steps": 8000},
        },
        "shadows": 256,
        "targets": 10,
        "widths": (1024, 512, 256),
        "attack_steps": 10_000,
        "copies": 64,
        "resamples": 1000,
    },
}
BATCH = 128
_AT_ONCE = 6  # models between checkpoints
LOW = ("0.01", "0.001")
SHOWN = ("loss threshold", "shadow classifier", "LiRA offline", "LiRA online", "RMIA online")
RATIOS = ("LiRA offline", "LiRA online", "RMIA offline", "RMIA online")


def run(preset: str) -> dict[str, Any]:
    """Trains, attacks and judges; `rows` holds a dict for each victim and attack."""
    settings = SETTINGS[preset]
    rows, ratios, told, curves = [], [], {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) if preset == "smoke" else Path("build") / "leaderboard"
        for name, sizes in settings["victims"].items():
            mark = hashlib.sha256(json.dumps([settings, name, _served(name)]).encode()).hexdigest()
            victim = _Victim(name, sizes, settings, base / f"{name}-{mark[:8]}")
            scores, seconds = _attacked(victim)
            told[name] = victim.told()
            rows += _judged(victim, scores, seconds)
            ratios += _ratios(victim, scores)
            curves[name] = _curves(victim, scores)
    return {"settings": settings, "victims": told, "rows": rows, "ratios": ratios, "roc": curves}


def table(record: dict[str, Any]) -> str:
    """The rows, for people."""
    lines = [
        f"{'victim':20}{'attack':37}{'AUC':>7}{'+-':>7}{'TPR@1%':>9}{'TPR@0.1%':>10}{'acc':>8}"
    ]
    for row in record["rows"]:
        tpr = [_percent(row["tpr_at_fpr"][key]) for key in LOW]
        flag = "  below the gap" if row["below_gap"] else ""
        lines.append(
            f"{row['victim']:20}{row['attack']:37}{row['auc']:7.3f}{row['auc_std']:7.3f}"
            f"{tpr[0]:>9}{tpr[1]:>10}{_percent(row['balanced_accuracy']):>8}{flag}"
        )
    for one in record["ratios"]:
        low, high = one["interval"]
        lines.append(
            f"{one['victim']}: {one['attack']} finds {one['ratio']:.1f} times as many as the loss "
            f"threshold at 0.1 % FPR (95 % interval {low:.1f} to {high:.1f})"
        )
    return "\n".join(lines)


def plots(record: dict[str, Any]) -> dict[str, str]:
    """One SVG for each victim, from the record alone."""
    return {
        name: reports.plots.roc_svg(curves, smallest=1e-4) for name, curves in record["roc"].items()
    }


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _served(name: str) -> str:
    """mnist needs its published files; without them its 5,000 digits stand in, by name."""
    if name != "mnist":
        return name
    (listing,) = [one for one in data.available() if one.name == "mnist"]
    return name if listing.sources else "mnist5k"


class _Victim:
    """Trained models of one data set, and their outputs."""

    def __init__(self, name: str, sizes: dict[str, int], settings: dict[str, Any], folder: Path):
        self.name, self.settings, self.folder = name, settings, folder
        self.data_name = _served(name)
        dataset = data.load(self.data_name)
        rng = np.random.default_rng(0)
        if self.data_name == "mnist5k":
            sizes = {**sizes, "pool": 4000, "population": 1000}
        wanted = {part: sizes[part] for part in ("pool", "population")}
        parts = dataset.split(rng, sizes=wanted)
        self.pool, self.population = (_shaped(parts[part], name) for part in wanted)
        self.num_classes, self.steps = dataset.num_classes, sizes["steps"]
        self.keys = dict(
            zip(("halves", "train", "attack"), jax.random.split(jax.random.key(1), 3), strict=True)
        )
        self.is_member = training.shadows.halves(
            self.keys["halves"],
            len(self.pool),
            num_models=settings["shadows"] + 2,
            group=self.pool.group,
        )
        self.known = np.sort(rng.permutation(len(self.pool))[: len(self.pool) // 5])
        self.module = self._module()
        self.params = self._train()
        self.logits, self.others = (
            training.shadows.outputs(self.apply, self.params, jnp.asarray(part.x))
            for part in (self.pool, self.population)
        )

    def _module(self) -> nn.Module:
        if self.name == "mnist":
            return victims.VICTIMS["cnn"].module
        widths = self.settings["widths"]
        return models.MLP(widths=widths, num_classes=self.num_classes, activation=nn.tanh)

    def apply(self, params: Any, x: jax.Array) -> Any:
        """Logits of one record."""
        return self.module.apply(params, x)

    def _train(self) -> Any:
        def loss(params, example, key):
            del key
            x, y = example
            return optax.softmax_cross_entropy_with_integer_labels(self.apply(params, x), y)

        def make_alg(size: int) -> training.Algorithm:
            sampler = sampling.fixed_batch(size, batch_size=min(BATCH, size))
            return training.sgd(loss, optax.adam(1e-3), sampler)

        return training.shadows.train(
            self.keys["train"],
            make_alg,
            lambda key: self.module.init(key, jnp.asarray(self.pool.x[0])),
            (jnp.asarray(self.pool.x), jnp.asarray(self.pool.y)),
            is_member=self.is_member,
            steps=self.steps,
            chunk=_AT_ONCE,
            checkpoints=training.Checkpoints(directory=self.folder / "models"),
        )

    def accuracy(self, target: int) -> tuple[float, float]:
        """On the target's members and on the rest of the pool."""
        correct = self.logits[target].argmax(-1) == self.pool.y
        inside = self.is_member[target]
        return float(correct[inside].mean()), float(correct[~inside].mean())

    def told(self) -> dict[str, Any]:
        """What the record says of the models."""
        train, test = np.array([self.accuracy(t) for t in range(self.settings["targets"])]).T
        return {
            "data": self.data_name,
            "source": Path(self.pool.source).name,
            "members": int(self.is_member[0].sum()),
            "records": len(self.pool),
            "population": len(self.population),
            "train_accuracy": float(train.mean()),
            "test_accuracy": float(test.mean()),
        }

    def problem(self, target: int) -> contenders.Problem:
        """What an attacker of one target holds."""
        shadows = runner.shadows_of(self.is_member, target)
        own = jax.tree.map(lambda leaf: leaf[target], self.params)

        @jax.jit
        def labels(x):
            return jax.vmap(lambda one: self.apply(own, one))(x).argmax(-1)

        def predict(x: np.ndarray) -> np.ndarray:
            # One shape for every batch, so that it compiles once.
            padded = np.zeros((1024, *x.shape[1:]), np.float32)
            padded[: len(x)] = x
            return np.asarray(labels(padded))[: len(x)]

        return contenders.Problem(
            audited=contenders.Outputs(
                self.pool.x, self.pool.y, self.logits[target], self.logits[shadows]
            ),
            shadow_is_member=self.is_member[shadows],
            known=self.known,
            is_member=self.is_member[target],
            population=contenders.Outputs(
                self.population.x, self.population.y, self.others[target], self.others[shadows]
            ),
            predict=predict,
            steps=self.settings["attack_steps"],
            copies=self.settings["copies"],
        )

    def judged(self, scores: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and truth of the records that no attack was told."""
        asked = np.setdiff1d(np.arange(len(self.pool)), self.known)
        return scores[asked], self.is_member[target][asked]


def _shaped(dataset: data.Dataset, name: str) -> data.Dataset:
    if name != "mnist" or dataset.x.ndim == 4:
        return dataset
    return data.Dataset(
        x=dataset.x.reshape(-1, 28, 28, 1),
        y=dataset.y,
        name=dataset.name,
        num_classes=dataset.num_classes,
        source=dataset.source,
    )


def _attacked(victim: _Victim) -> tuple[dict[str, list[np.ndarray]], dict[str, float]]:
    """Scores of every attack for every target, from files where they are there already."""
    scores: dict[str, list[np.ndarray]] = {name: [] for name in contenders.ATTACKS}
    seconds = dict.fromkeys(contenders.ATTACKS, 0.0)
    folder = victim.folder / "scores"
    folder.mkdir(parents=True, exist_ok=True)
    for target in range(victim.settings["targets"]):
        problem = victim.problem(target)
        keys = jax.random.split(jax.random.fold_in(victim.keys["attack"], target), len(scores))
        for i, (name, attack) in enumerate(contenders.ATTACKS.items()):
            path = folder / f"{target}-{i}.npz"
            if not path.exists():
                started = time.perf_counter()
                found = np.asarray(attack(keys[i], problem), np.float64)
                taken = time.perf_counter() - started
                with tempfile.NamedTemporaryFile(dir=folder, suffix=".new", delete=False) as file:
                    np.savez(file, scores=found, seconds=taken)
                os.replace(file.name, path)
            with np.load(path, allow_pickle=False) as held:
                scores[name].append(held["scores"])
                seconds[name] += float(held["seconds"])
    return scores, {name: total / victim.settings["targets"] for name, total in seconds.items()}


def _judged(
    victim: _Victim, scores: dict[str, list[np.ndarray]], seconds: dict[str, float]
) -> list[dict[str, Any]]:
    rows = []
    targets = range(victim.settings["targets"])
    gap = np.mean([metrics.roc.gap_baseline(*victim.accuracy(t)) for t in targets])
    for name, by_target in scores.items():
        found = [
            metrics.membership(*victim.judged(by_target[t], t), confidence=0.95) for t in targets
        ]
        accuracy = float(np.mean([one.balanced_accuracy for one in found]))
        tpr = {key: [one.tpr_at_fpr[key] for one in found] for key in metrics.roc.LOW_FPRS}
        rows.append(
            {
                "victim": victim.name,
                "attack": name,
                "auc": float(np.mean([one.auc for one in found])),
                "auc_std": float(np.std([one.auc for one in found], ddof=1)),
                "balanced_accuracy": accuracy,
                "gap_baseline": float(gap),
                "below_gap": bool(name.startswith(contenders.LEARNED) and accuracy < gap),
                "tpr_at_fpr": {key: _mean(values) for key, values in tpr.items()},
                "targets": len(found),
                "seconds": seconds[name],
            }
        )
    return rows


def _ratios(victim: _Victim, scores: dict[str, list[np.ndarray]]) -> list[dict[str, Any]]:
    """TPR at 0.1 % FPR over that of the loss threshold; interval by resampling records."""
    rng = np.random.default_rng(2)
    targets = range(victim.settings["targets"])
    draws = []
    for _ in range(victim.settings["resamples"] + 1):
        rates = dict.fromkeys(("loss threshold", *RATIOS), 0.0)
        for target in targets:
            _, inside = victim.judged(scores["loss threshold"][target], target)
            ins, outs = np.flatnonzero(inside), np.flatnonzero(~inside)
            if draws:  # the first draw is the sample itself
                ins, outs = rng.choice(ins, len(ins)), rng.choice(outs, len(outs))
            for name in rates:
                found, _ = victim.judged(scores[name][target], target)
                allowed = int(0.001 * len(outs))
                bar = -np.partition(-found[outs], allowed)[allowed]
                rates[name] += float((found[ins] > bar).mean()) / len(targets)
        draws.append(rates)
    rows = []
    for name in RATIOS:
        # One member found stands for none, so that a ratio to nothing understates.
        ratio = [d[name] / max(d["loss threshold"], 1 / len(victim.pool)) for d in draws]
        low, high = np.quantile(ratio[1:], [0.025, 0.975])
        rows.append(
            {
                "victim": victim.name,
                "attack": name,
                "ratio": ratio[0],
                "interval": (float(low), float(high)),
            }
        )
    return rows


def _curves(victim: _Victim, scores: dict[str, list[np.ndarray]]) -> list[dict[str, Any]]:
    """ROC curves, averaged over targets at fixed FPRs."""
    grid = np.geomspace(1e-4, 1, 120)
    curves = []
    for name in SHOWN:
        tprs, aucs = [], []
        for target in range(victim.settings["targets"]):
            found, inside = victim.judged(scores[name][target], target)
            roc = metrics.roc_curve(found, inside)
            last = np.searchsorted(roc.fpr, grid, side="right") - 1
            tprs.append(roc.tpr[last])
            aucs.append(metrics.membership(found, inside, confidence=0.95).auc)
        mean = np.mean(tprs, axis=0).tolist()
        curves.append(
            {"name": name, "fpr": grid.tolist(), "tpr": mean, "auc": float(np.mean(aucs))}
        )
    return curves
