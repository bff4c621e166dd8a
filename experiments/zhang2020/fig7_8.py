"""Figures 7 and 8 of zhang2020: accuracy and robustness to inversion against epsilon.

Run:       python -m experiments run zhang2020/fig7_8 --preset cpu
Time:      smoke 60 s, cpu 16 min on one core, paper not run yet
Paper:     accuracy rises and the MIA distance falls with epsilon; no coefficient is printed, and
           the printed epsilons 18.6, 8.2 and 7.0 (z = 1.6, 3.0, 3.65) do not hold, see `epsilons`
Ours:      reproduced with the projected attack (cpu, 2026-11-29): rank correlation of epsilon with
           accuracy 0.98, with its distance -0.96; the enhanced attack leaves the images nearly
           black, and its distance rises with epsilon (0.79)

Models with subclass-DP differ in the noise alone; attacks and columns are those of fig4_5_6.
`rank_correlation` is Spearman's, of epsilon (adding or removing a subclass) with the accuracy and
with the mean distance of each attack to three decimals, over all seeds; `p` is SciPy's, by the t
distribution. Trainings are those of `fig4_5_6` where the noise is equal, and resumable by
build/zhang2020.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments import common, figures
from experiments.zhang2020 import victims
from experiments.zhang2020.victims import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """noise_multipliers: of subclass-DP. attacks, resumable: see `fig4_5_6`."""

    recipe: Recipe
    noise_multipliers: tuple[float, ...] = (1.0, 1.6, 2.4, 3.0, 3.65)
    attacks: dict[str, tuple[str, int]] = field(default_factory=victims.ATTACKS_ON_DIGITS.copy)
    seeds: int = 2
    resumable: bool = True


PRESETS = {
    "smoke": Settings(
        recipe=Recipe(num_training=60, num_test=100, batch_size=20, steps=2, num_subclasses=2),
        noise_multipliers=(1.0, 1.6, 3.0),
        attacks=victims.SHORT_ATTACKS,
        seeds=1,
        resumable=False,
    ),
    "cpu": Settings(recipe=Recipe()),
    "paper": Settings(
        recipe=Recipe(num_training=50_000, num_test=10_000, batch_size=500, steps=700),
        noise_multipliers=(0.8, 1.0, 1.3, 1.6, 2.0, 2.4, 3.0, 3.65),
        seeds=5,
    ),
}
PAPER_EPSILONS = {1.6: 18.6, 3.0: 8.2, 3.65: 7.0}
DECIMALS = 3
"""Of the values that are ranked: those of black images differ by rounding errors."""


def run(settings: Settings) -> dict[str, Any]:
    """Trains the models of each noise multiplier and attacks them."""
    digits = victims.digits(settings.recipe)
    prefix = settings.recipe.num_training
    referee = victims.train_referee(
        digits, settings.recipe, name=f"{prefix}-referee" if settings.resumable else None
    )
    rows: list[dict[str, Any]] = []
    for noise_multiplier in settings.noise_multipliers:
        label = f"{prefix}-subclass-{noise_multiplier:.4f}"
        trained = victims.train_seeds(
            digits,
            settings.recipe,
            protection="subclass",
            noise_multiplier=noise_multiplier,
            seeds=settings.seeds,
            name=lambda seed, label=label: f"{label}-{seed}" if settings.resumable else None,
        )
        shared = {
            "noise_multiplier": noise_multiplier,
            "paper_epsilon": PAPER_EPSILONS.get(noise_multiplier),
            "epsilon": victims.epsilons(
                digits, settings.recipe, protection="subclass", noise_multiplier=noise_multiplier
            ),
            "accuracies": [victims.accuracy(digits, params) for params in trained],
        }
        measured = victims.measure_attacks(digits, referee, trained, settings.attacks)
        rows += [{**shared, **row} for row in measured]
    by_attack = {t: [row for row in rows if row["attack"] == t] for t in settings.attacks}
    correlations = {"accuracy": rank_correlation(next(iter(by_attack.values())), "accuracies")}
    for title, chosen in by_attack.items():
        correlations[f"distance, {title}"] = rank_correlation(chosen, "distances")
    return {"data": digits.data_name, "rows": rows, "rank_correlation": correlations}


def rank_correlation(rows: list[dict[str, Any]], key: str) -> dict[str, float] | None:
    """Computes Spearman's coefficient of epsilon with a value of each seed, and its p-value.

    Returns:
      None if all values are equal.
    """
    from scipy import stats

    epsilons, values = [], []
    for row in rows:
        for value in row[key]:
            epsilons.append(row["epsilon"]["add_or_remove_one"])
            values.append(round(float(np.mean(value)), DECIMALS))
    if len(set(values)) == 1:
        return None
    result: Any = stats.spearmanr(epsilons, values)
    return {"coefficient": float(result.statistic), "p": float(result.pvalue)}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws accuracy and mean distance against epsilon."""
    panels = victims.panels(record["rows"], lambda row: row["epsilon"]["add_or_remove_one"])
    return {"epsilon": figures.lines(panels, x="epsilon, adding or removing a subclass", y="")}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text, and the rank correlations below."""
    columns = (
        "noise", "epsilon, add or remove", "replace", "paper", "accuracy", "attack", "distance",
        "reidentified", "closer", "expected",
    )  # fmt: skip
    rows = [
        (
            f"{row['noise_multiplier']:.2f}",
            f"{row['epsilon']['add_or_remove_one']:.2f}",
            f"{row['epsilon']['replace_one']:.2f}",
            "" if row["paper_epsilon"] is None else f"{row['paper_epsilon']:.1f}",
            *victims.cells(row),
        )
        for row in record["rows"]
    ]
    notes = []
    for name, each in record["rank_correlation"].items():
        text = "none, all values are equal"
        if each is not None:
            text = f"{each['coefficient']:+.2f} (p {each['p']:.2g})"
        notes.append(f"rank correlation of epsilon with {name}: {text}")
    return "\n".join([common.text_table(columns, rows), *notes])
