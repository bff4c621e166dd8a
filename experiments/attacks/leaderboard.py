"""Every membership attack on the same targets: an MLP on purchases and a CNN on MNIST.

Run:       python -m experiments run attacks/leaderboard --preset cpu
Time:      smoke 1 min, cpu about 100 min on two cores, other work beside it; paper unmeasured
Data:      purchases (extra `data`; built once in 90 s); mnist from JAXPRIV_DATA, else mnist5k
Peers:     formulas of Privacy Meter, PrivacyGuard, LeakPro and quantile-mia (`toolkits`); ART
           itself if it is installed (extra `bench`)
Expected:  LiRA and RMIA above the loss threshold at 0.1 % FPR, as Carlini et al. 2022 (LiRA
           8.4 % online, 7.1 % offline, Shokri et al. 0.3 %, loss 0.0 % on CIFAR-10 with 256
           shadows) and Zarifzadeh et al. 2024 (RMIA at least LiRA, most so with few shadows)

Ours:      TPR at 0.1 % FPR over the loss threshold's (cpu, 2026-11-28): purchases LiRA online 192
           (95 % interval 94 to 353), RMIA offline 173 (79 to 316), LiRA offline 127 (55 to 245),
           RMIA online 63 (32 to 128); mnist, where train and test accuracy differ by 1.6 %, RMIA
           online 7.2 (2.9 to 20.6), RMIA offline 6.3 (2.4 to 18.2), LiRA offline 3.9 (1.3 to
           11.5), LiRA online 2.9 (1.1 to 10.7)

Models are trained on random halves of a pool (of purchases: halves of the households). Each target
is attacked with all other models but its complement. A killed run goes on where it stopped, from
build/leaderboard. The membership of a fifth of the records is revealed to the attacker; every
attack is judged on the rest.
"""

import dataclasses
import hashlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.attacks import resampling, targets, toolkits
from jaxpriv import _files, _keys, metrics, reports
from jaxpriv.attacks import Attack, Evidence, Training, blind, suite

PRESETS = {
    "smoke": targets.Settings(
        victims=(
            targets.VictimSettings(
                name="synthetic_purchase", pool=200, population=100, batch_size=32, steps=4
            ),
        ),
        num_shadows=4,
        num_targets=2,
        widths=(16,),
        attack_steps=2,
        copies=2,
        resamples=20,
    ),
    "cpu": targets.Settings(
        victims=(
            targets.VictimSettings(
                name="purchases", pool=20_000, population=10_000, batch_size=128, steps=1500
            ),
            targets.VictimSettings(
                name="mnist", pool=8_000, population=4_000, batch_size=64, steps=500
            ),
        ),
        num_shadows=64,
        num_targets=3,
        widths=(256,),
        attack_steps=2000,
        copies=16,
        resamples=200,
    ),
    "paper": targets.Settings(
        victims=(
            targets.VictimSettings(
                name="purchases", pool=30_000, population=10_000, batch_size=128, steps=6000
            ),
            targets.VictimSettings(
                name="mnist", pool=50_000, population=10_000, batch_size=128, steps=8000
            ),
        ),
        num_shadows=256,
        num_targets=10,
        widths=(1024, 512, 256),
        attack_steps=10_000,
        copies=64,
        resamples=1000,
    ),
}
TABLE_FPRS = ("0.01", "0.001")
PAIRS = (1, 2, 4, 8, 16, 32)
"""Numbers of complementary pairs of shadow models, up to all that a target has."""

BUDGET_ROWS = (
    "lira_offline",
    "lira_fixed",
    "lira",
    "rmia_offline",
    "rmia",
    "base",
    "leakpro_lira",
    "leakpro_rmia",
    "privacyguard_lira",
    "privacyguard_rmia",
    "privacy_meter_rmia",
)
"""Attacks that are repeated with fewer shadow models."""

CLAIMS = (
    ("rmia_offline", "lira_offline", "0.01"),
    ("lira", "lira_fixed", "auc"),
    ("lira", "lira_fixed", "0.01"),
    ("lira", "lira_fixed", "0.001"),
    ("lira", "leakpro_lira", "auc"),
    ("rmia", "privacy_meter_rmia", "auc"),
)
"""Differences of two attacks in one metric, stated with their intervals for each budget."""

_METRIC_TITLES = {"auc": "AUC", "0.01": "TPR at 1 % FPR", "0.001": "TPR at 0.1 % FPR"}

CURVES = ("negative_loss", "shadow_classifier", "lira_offline", "lira", "rmia")
RATIOS = ("lira_offline", "lira", "rmia_offline", "rmia")
BASELINE = "negative_loss"

Scores = dict[str, list[np.ndarray]]
"""Scores of the targets, by name of the attack."""


def run(settings: targets.Settings) -> dict[str, Any]:
    """Trains, attacks and measures; `rows` has a dict for each victim and attack."""
    rows, budgets, ratios, differences, descriptions, curves = [], [], [], [], {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        is_smoke = settings == PRESETS["smoke"]
        base = Path(scratch) if is_smoke else Path("build") / "leaderboard"
        for sizes in settings.victims:
            name = sizes.name
            shared = dataclasses.replace(settings, victims=(sizes,))
            identity = json.dumps([targets.available_name(name), dataclasses.asdict(shared)])
            digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
            victim = targets.Victim(sizes, settings, base / f"{name}-{digest}")
            scores, seconds = _scores(victim)
            resampled = _resampled(victim, scores)
            descriptions[name] = victim.describe()
            rows += _rows(victim, scores, seconds, resampled)
            budgets += _budgets(victim, resampled)
            ratios += _ratios(victim, resampled)
            differences += _differences(victim, resampled)
            curves[name] = _curves(victim, scores)
    return {
        "victims": descriptions,
        "rows": rows,
        "budgets": budgets,
        "differences": differences,
        "ratios": ratios,
        "roc": curves,
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = ("attack", "victim", "AUC", "+-", "TPR@1%", "TPR@0.1%", "accuracy", "")
    text = common.text_table(
        columns,
        (
            (
                row["attack"],
                row["victim"],
                f"{row['auc']:.3f}",
                f"{row['auc_std']:.3f}",
                *(_percent(row["tpr_at_fpr"][key]) for key in TABLE_FPRS),
                _percent(row["balanced_accuracy"]),
                "below the gap" if row["below_gap"] else "",
            )
            for row in record["rows"]
        ),
    )
    budgets = common.text_table(
        ("attack", "victim", "pairs", "AUC", "TPR@1%", "TPR@0.1%"),
        (
            (
                row["attack"],
                row["victim"],
                str(row["pairs"]),
                f"{row['auc']:.3f}",
                *(_percent(row["tpr_at_fpr"][key]) for key in TABLE_FPRS),
            )
            for row in record["budgets"]
        ),
    )
    lines = [text, "", budgets]
    for row in record["differences"]:
        low, high = row["interval"]
        lines.append(
            f"{row['victim']}, pairs: {row['pairs']}, {_METRIC_TITLES[row['metric']]}: "
            f"{row['attack']} less {row['base']}: {row['difference']:+.4f} (95 % interval "
            f"{low:+.4f} to {high:+.4f})"
        )
    for ratio in record["ratios"]:
        low, high = ratio["interval"]
        lines.append(
            f"{ratio['victim']}: {ratio['attack']} has {ratio['ratio']:.1f} times the TPR of the "
            f"loss threshold at 0.1 % FPR (95 % interval {low:.1f} to {high:.1f})"
        )
    return "\n".join(lines)


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the ROC curves of each victim."""
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
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if len(numbers) == len(values) else None


def _table(victim: targets.Victim, target: int) -> tuple[Attack, ...]:
    """Returns the blind attack, which needs the truth, the suite, and the public toolkits."""
    is_member, group = victim.is_member[target], victim.pool.group

    def run_blind(key: jax.Array, evidence: Evidence) -> np.ndarray:
        rng = _keys.numpy_rng(key)
        (inputs,) = evidence.require("inputs")
        return blind.score_records(rng, inputs, is_member, group=group)

    row = Attack(
        name="blind",
        title="blind (inputs alone)",
        needs=("inputs",),
        run=run_blind,
        reference="Das et al., Blind Baselines Beat Membership Inference Attacks, 2024",
    )
    training = Training(steps=victim.settings.attack_steps)
    own = suite.attacks(training=training, copies=victim.settings.copies)
    table = (*own, *toolkits.attacks(steps=victim.settings.attack_steps))
    return (row, *suite.applicable(table, victim.evidence(target)))


def _pairs(victim: targets.Victim) -> tuple[int, ...]:
    """Returns the numbers of pairs that the victim has."""
    most = victim.settings.num_shadows // 2
    return (*(pairs for pairs in PAIRS if pairs < most), most)


def _key(name: str, pairs: int | None) -> str:
    """Names the scores of an attack with fewer than all pairs of shadow models."""
    return name if pairs is None else f"{name}-{pairs}"


def _scores(victim: targets.Victim) -> tuple[Scores, dict[str, float]]:
    """Computes, or reads, the scores of every attack on every target, and its mean seconds."""
    folder = victim.folder / "scores"
    folder.mkdir(parents=True, exist_ok=True)
    scores: Scores = {}
    seconds: dict[str, list[float]] = {}
    budgets = (None, *_pairs(victim)[:-1])
    for target in range(victim.settings.num_targets):
        key = jax.random.fold_in(victim.keys["attack"], target)
        table = _table(victim, target)
        for pairs in budgets:
            evidence = victim.evidence(target, pairs=pairs)
            for attack in table:
                if pairs is not None and attack.name not in BUDGET_ROWS:
                    continue
                name = _key(attack.name, pairs)
                path = folder / f"{target}-{name}.npz"
                if not path.exists():
                    attack_key = _keys.named(key, attack.name)
                    start = time.perf_counter()
                    values = np.asarray(attack.run(attack_key, evidence), np.float64)
                    content = io.BytesIO()
                    np.savez(content, scores=values, seconds=time.perf_counter() - start)
                    _files.write_whole(path, content.getvalue())
                with np.load(path, allow_pickle=False) as stored:
                    scores.setdefault(name, []).append(stored["scores"])
                    seconds.setdefault(name, []).append(float(stored["seconds"]))
    return scores, {name: float(np.mean(times)) for name, times in seconds.items()}


def _resampled(victim: targets.Victim, scores: Scores) -> resampling.Table:
    columns = {
        name: [
            resampling.column(*victim.evaluated(values, target))
            for target, values in enumerate(targets_scores)
        ]
        for name, targets_scores in scores.items()
    }
    return resampling.Table(columns, victim.judged_unit, resamples=victim.settings.resamples)


def _rows(
    victim: targets.Victim,
    scores: Scores,
    seconds: dict[str, float],
    resampled: resampling.Table,
) -> list[dict[str, Any]]:
    target_ids = range(victim.settings.num_targets)
    accuracies = [victim.accuracy(target) for target in target_ids]
    gap = np.mean([metrics.gap_baseline(train_accuracy=a, test_accuracy=b) for a, b in accuracies])
    rows = []
    for attack in _table(victim, 0):
        results = [
            metrics.membership(*victim.evaluated(scores[attack.name][target], target))
            for target in target_ids
        ]
        accuracy = float(np.mean([each.balanced_accuracy for each in results]))
        tpr = {key: [each.tpr_at_fpr[key] for each in results] for key in metrics.roc.LOW_FPRS}
        rows.append(
            {
                "victim": victim.name,
                "attack": attack.title,
                "auc": float(np.mean([each.auc for each in results])),
                "auc_std": float(np.std([each.auc for each in results], ddof=1)),
                "auc_interval": resampled.mean(attack.name, "auc")[1],
                "balanced_accuracy": accuracy,
                "gap_baseline": float(gap),
                "below_gap": bool(attack.trains and accuracy < gap),
                "tpr_at_fpr": {key: _mean(values) for key, values in tpr.items()},
                "tpr_intervals": {key: resampled.mean(attack.name, key)[1] for key in TABLE_FPRS},
                "targets": len(results),
                "seconds": seconds[attack.name],
            }
        )
    return rows


def _titles(victim: targets.Victim) -> dict[str, str]:
    return {attack.name: attack.title for attack in _table(victim, 0)}


def _budgets(victim: targets.Victim, resampled: resampling.Table) -> list[dict[str, Any]]:
    """Lists the attacks with shadow models by the number of their pairs."""
    titles, numbers = _titles(victim), _pairs(victim)
    rows = []
    for name in BUDGET_ROWS:
        for pairs in numbers:
            key = _key(name, None if pairs == numbers[-1] else pairs)
            values = {metric: resampled.mean(key, metric) for metric in resampling.METRICS}
            rows.append(
                {
                    "victim": victim.name,
                    "attack": titles[name],
                    "pairs": pairs,
                    "auc": values["auc"][0],
                    "auc_interval": values["auc"][1],
                    "tpr_at_fpr": {fpr: values[fpr][0] for fpr in TABLE_FPRS},
                    "tpr_intervals": {fpr: values[fpr][1] for fpr in TABLE_FPRS},
                }
            )
    return rows


def _differences(victim: targets.Victim, resampled: resampling.Table) -> list[dict[str, Any]]:
    """States the claims, for each number of pairs."""
    titles, numbers = _titles(victim), _pairs(victim)
    rows = []
    for name, base, metric in CLAIMS:
        for pairs in numbers:
            stored = None if pairs == numbers[-1] else pairs
            difference, interval = resampled.difference(
                _key(name, stored), _key(base, stored), metric
            )
            rows.append(
                {
                    "victim": victim.name,
                    "attack": titles[name],
                    "base": titles[base],
                    "metric": metric,
                    "pairs": pairs,
                    "difference": difference,
                    "interval": interval,
                }
            )
    return rows


def _ratios(victim: targets.Victim, resampled: resampling.Table) -> list[dict[str, Any]]:
    """Divides TPRs at 0.1 % FPR by that of the loss threshold."""
    titles = _titles(victim)
    rows = []
    for name in RATIOS:
        # No member counts as one member, so that a ratio to nothing understates.
        ratio, interval = resampled.ratio(name, BASELINE, "0.001", smallest=1 / len(victim.pool))
        rows.append(
            {
                "victim": victim.name,
                "attack": titles[name],
                "ratio": ratio,
                "interval": interval,
            }
        )
    return rows


def _curves(victim: targets.Victim, scores: Scores) -> list[dict[str, Any]]:
    """Averages ROC curves over targets at fixed FPRs."""
    grid = np.geomspace(1e-4, 1, 120)
    titles = {attack.name: attack.title for attack in _table(victim, 0)}
    curves = []
    for name in CURVES:
        tprs, aucs = [], []
        for target in range(victim.settings.num_targets):
            values, is_member = victim.evaluated(scores[name][target], target)
            roc = metrics.roc_curve(values, is_member)
            last = np.searchsorted(roc.fpr, grid, side="right") - 1
            tprs.append(roc.tpr[last])
            aucs.append(metrics.membership(values, is_member).auc)
        mean = np.mean(tprs, axis=0).tolist()
        curves.append(
            {"name": titles[name], "fpr": grid.tolist(), "tpr": mean, "auc": float(np.mean(aucs))}
        )
    return curves
