"""Every membership attack on the same targets: an MLP on purchases and a CNN on MNIST.

Run:       python -m experiments run attacks/leaderboard --preset cpu
Time:      smoke 1 min, cpu 46 min on two cores, other work beside it; paper unmeasured
Data:      purchases (extra `data`; built once in 90 s); mnist from JAXPRIV_DATA, else mnist5k
Expected:  LiRA and RMIA above the loss threshold at 0.1 % FPR, as Carlini et al. 2022 (LiRA
           8.4 % online, 7.1 % offline, Shokri et al. 0.3 %, loss 0.0 % on CIFAR-10 with 256
           shadows) and Zarifzadeh et al. 2024 (RMIA at least LiRA, most so with few shadows)

Ours:      TPR at 0.1 % FPR over the loss threshold's (cpu, 5 targets, 2026-11-28): purchases LiRA
           online 131 (95 % interval 74 to 195), offline 102 (56 to 151), RMIA online 91 (55 to
           134); mnist, where train and test accuracy differ by 1.6 %, 2.7 (1.6 to 7.4), 1.8 (1.2 to
           5.0), 4.1 (2.1 to 9.6)

Models are trained on random halves of a pool (of purchases: halves of the households). Each target
is attacked with all other models but its complement. A killed run goes on where it stopped, from
build/leaderboard. The membership of a fifth of the records is revealed to the attacker; every
attack is judged on the rest.
"""

import hashlib
import io
import json
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.attacks import targets
from jaxpriv import _files, metrics, reports
from jaxpriv.attacks import Evidence, Training, blind, suite

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {
        "victims": {
            "synthetic_purchase": {"pool": 200, "population": 100, "batch": 32, "steps": 4}
        },
        "shadows": 4,
        "targets": 2,
        "widths": (16,),
        "attack_steps": 2,
        "copies": 2,
        "resamples": 20,
    },
    "cpu": {
        "victims": {
            "purchases": {"pool": 20_000, "population": 10_000, "batch": 128, "steps": 1500},
            "mnist": {"pool": 8_000, "population": 4_000, "batch": 64, "steps": 500},
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
            "purchases": {"pool": 30_000, "population": 10_000, "batch": 128, "steps": 6000},
            "mnist": {"pool": 50_000, "population": 10_000, "batch": 128, "steps": 8000},
        },
        "shadows": 256,
        "targets": 10,
        "widths": (1024, 512, 256),
        "attack_steps": 10_000,
        "copies": 64,
        "resamples": 1000,
    },
}
LOW = ("0.01", "0.001")
SHOWN = ("negative_loss", "shadow_classifier", "lira_offline", "lira", "rmia")
RATIOS = ("lira_offline", "lira", "rmia_offline", "rmia")
BASELINE = "negative_loss"

Scores = dict[str, list[np.ndarray]]
"""Scores of the targets, by name of the attack."""


def run(preset: str) -> dict[str, Any]:
    """Trains, attacks and measures; `rows` holds a dict for each victim and attack."""
    settings = SETTINGS[preset]
    rows, ratios, described, curves = [], [], {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) if preset == "smoke" else Path("build") / "leaderboard"
        for name, sizes in settings["victims"].items():
            shared = {key: value for key, value in settings.items() if key != "victims"}
            identity = json.dumps([name, targets.available_name(name), sizes, shared])
            digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
            victim = targets.Victim(name, sizes, settings, base / f"{name}-{digest}")
            scores, seconds = _scores(victim)
            described[name] = victim.describe()
            rows += _rows(victim, scores, seconds)
            ratios += _ratios(victim, scores)
            curves[name] = _curves(victim, scores)
    return {
        "settings": settings,
        "victims": described,
        "rows": rows,
        "ratios": ratios,
        "roc": curves,
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
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
            f"{one['victim']}: {one['attack']} has {one['ratio']:.1f} times the TPR of the loss "
            f"threshold at 0.1 % FPR (95 % interval {low:.1f} to {high:.1f})"
        )
    return "\n".join(lines)


def plots(record: dict[str, Any]) -> dict[str, str]:
    """One SVG for each victim, from the record alone."""
    return {
        name: reports.plots.roc_svg(
            [
                reports.plots.Curve(f"{curve['name']}, AUC {curve['auc']:.3f}", *_points(curve))
                for curve in curves
            ],
            smallest=1e-4,
        )
        for name, curves in record["roc"].items()
    }


def _points(curve: dict[str, Any]) -> tuple[list[float], list[float]]:
    return curve["fpr"], curve["tpr"]


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _mean(values: list[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return float(np.mean(given)) if len(given) == len(values) else None


def _table(victim: targets.Victim, target: int) -> tuple[suite.Attack, ...]:
    """The blind attack, which needs the truth, and the suite."""
    is_member, group = victim.is_member[target], victim.pool.group

    def run_blind(key: jax.Array, evidence: Evidence) -> np.ndarray:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        (inputs,) = evidence.require("inputs")
        return blind.score_records(rng, inputs, is_member, group=group)

    row = suite.Attack(
        name="blind",
        title="blind (inputs alone)",
        needs=("inputs",),
        run=run_blind,
        reference="Das et al., Blind Baselines Beat Membership Inference Attacks, 2024",
    )
    training = Training(steps=victim.settings["attack_steps"])
    table = suite.attacks(training=training, copies=victim.settings["copies"])
    return (row, *suite.applicable(table, victim.evidence(target)))


def _scores(victim: targets.Victim) -> tuple[Scores, dict[str, float]]:
    """Scores of every attack for every target, stored as they come, and mean seconds."""
    folder = victim.folder / "scores"
    folder.mkdir(parents=True, exist_ok=True)
    scores: Scores = {}
    seconds: dict[str, list[float]] = {}
    for target in range(victim.settings["targets"]):
        evidence = victim.evidence(target)
        key = jax.random.fold_in(victim.keys["attack"], target)
        for attack in _table(victim, target):
            path = folder / f"{target}-{attack.name}.npz"
            if not path.exists():
                attack_key = jax.random.fold_in(key, zlib.crc32(attack.name.encode()))
                started = time.perf_counter()
                values = np.asarray(attack.run(attack_key, evidence), np.float64)
                content = io.BytesIO()
                np.savez(content, scores=values, seconds=time.perf_counter() - started)
                _files.write_whole(path, content.getvalue())
            with np.load(path, allow_pickle=False) as stored:
                scores.setdefault(attack.name, []).append(stored["scores"])
                seconds.setdefault(attack.name, []).append(float(stored["seconds"]))
    return scores, {name: float(np.mean(times)) for name, times in seconds.items()}


def _rows(
    victim: targets.Victim, scores: Scores, seconds: dict[str, float]
) -> list[dict[str, Any]]:
    chosen = range(victim.settings["targets"])
    accuracies = [victim.accuracy(target) for target in chosen]
    gap = np.mean([metrics.gap_baseline(train_accuracy=a, test_accuracy=b) for a, b in accuracies])
    rows = []
    for attack in _table(victim, 0):
        measured = [
            metrics.membership(*victim.judged(scores[attack.name][target], target))
            for target in chosen
        ]
        accuracy = float(np.mean([each.balanced_accuracy for each in measured]))
        tpr = {key: [each.tpr_at_fpr[key] for each in measured] for key in metrics.roc.LOW_FPRS}
        rows.append(
            {
                "victim": victim.name,
                "attack": attack.title,
                "auc": float(np.mean([each.auc for each in measured])),
                "auc_std": float(np.std([each.auc for each in measured], ddof=1)),
                "balanced_accuracy": accuracy,
                "gap_baseline": float(gap),
                "below_gap": bool(attack.trains and accuracy < gap),
                "tpr_at_fpr": {key: _mean(values) for key, values in tpr.items()},
                "targets": len(measured),
                "seconds": seconds[attack.name],
            }
        )
    return rows


def _ratios(victim: targets.Victim, scores: Scores) -> list[dict[str, Any]]:
    """TPR at 0.1 % FPR over that of the loss; interval by resampling records."""
    rng = np.random.default_rng(2)
    chosen = range(victim.settings["targets"])
    titles = {attack.name: attack.title for attack in _table(victim, 0)}
    draws = []
    for _ in range(victim.settings["resamples"] + 1):
        rates = dict.fromkeys((BASELINE, *RATIOS), 0.0)
        for target in chosen:
            _, is_member = victim.judged(scores[BASELINE][target], target)
            members, nonmembers = np.flatnonzero(is_member), np.flatnonzero(~is_member)
            if draws:  # the first draw is the sample itself
                members = rng.choice(members, len(members))
                nonmembers = rng.choice(nonmembers, len(nonmembers))
            for name in rates:
                values, _ = victim.judged(scores[name][target], target)
                allowed = int(0.001 * len(nonmembers))
                threshold = -np.partition(-values[nonmembers], allowed)[allowed]
                rates[name] += float((values[members] > threshold).mean()) / len(chosen)
        draws.append(rates)
    rows = []
    for name in RATIOS:
        # No member counts as one member, so that a ratio to nothing understates.
        ratio = [d[name] / max(d[BASELINE], 1 / len(victim.pool)) for d in draws]
        low, high = np.quantile(ratio[1:], [0.025, 0.975])
        rows.append(
            {
                "victim": victim.name,
                "attack": titles[name],
                "ratio": ratio[0],
                "interval": (float(low), float(high)),
            }
        )
    return rows


def _curves(victim: targets.Victim, scores: Scores) -> list[dict[str, Any]]:
    """ROC curves, averaged over targets at fixed FPRs."""
    grid = np.geomspace(1e-4, 1, 120)
    titles = {attack.name: attack.title for attack in _table(victim, 0)}
    curves = []
    for name in SHOWN:
        tprs, aucs = [], []
        for target in range(victim.settings["targets"]):
            values, is_member = victim.judged(scores[name][target], target)
            roc = metrics.roc_curve(values, is_member)
            last = np.searchsorted(roc.fpr, grid, side="right") - 1
            tprs.append(roc.tpr[last])
            aucs.append(metrics.membership(values, is_member).auc)
        mean = np.mean(tprs, axis=0).tolist()
        curves.append(
            {"name": titles[name], "fpr": grid.tolist(), "tpr": mean, "auc": float(np.mean(aucs))}
        )
    return curves
