"""Figure 9 of zhang2020: the number of subclasses of subclass-DP.

Run:       python -m experiments run zhang2020/fig9 --preset cpu
Time:      smoke 60 s, cpu 18 min on one core, paper not run yet
Paper:     accuracy rises and robustness falls with the number of subclasses, at z = 1.6
Ours:      reproduced with the projected attack (cpu, 2026-11-29): from 1 to 50 subclasses accuracy
           rises from 9 to 65 % and the distance falls from 8.24 to 7.09; the enhanced attack leaves
           the images black but for a few pixels, at 5.36

The noise multiplier is 1.6 and the sampling probability the same, so epsilon for one subclass is
equal in all rows; with more subclasses a subclass has fewer records. Attacks and columns are those
of fig4_5_6. Resumable by build/zhang2020.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from experiments import common, figures
from experiments.zhang2020 import victims
from experiments.zhang2020.victims import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """nums_subclasses: k of k-means in each class. attacks, resumable: see `fig4_5_6`."""

    recipe: Recipe
    nums_subclasses: tuple[int, ...] = (1, 5, 20, 50)
    noise_multiplier: float = 1.6
    attacks: dict[str, tuple[str, int]] = field(default_factory=victims.ATTACKS_ON_DIGITS.copy)
    seeds: int = 2
    resumable: bool = True


PRESETS = {
    "smoke": Settings(
        recipe=Recipe(num_training=60, num_test=100, batch_size=20, steps=2),
        nums_subclasses=(1, 2),
        attacks=victims.SHORT_ATTACKS,
        seeds=1,
        resumable=False,
    ),
    "cpu": Settings(recipe=Recipe()),
    "paper": Settings(
        recipe=Recipe(num_training=50_000, num_test=10_000, batch_size=10_000, steps=617),
        nums_subclasses=(1, 10, 20, 30, 40, 50, 60),
        seeds=5,
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains models with each number of subclasses and attacks them."""
    rows, data_name = [], ""
    for count in settings.nums_subclasses:
        recipe = dataclasses.replace(settings.recipe, num_subclasses=count)
        digits = victims.digits(recipe)
        data_name = digits.data_name
        epsilon = victims.epsilons(
            digits, recipe, protection="subclass", noise_multiplier=settings.noise_multiplier
        )
        rows += [
            {"num_subclasses": count, "epsilon": epsilon, **row}
            for row in _attack(digits, recipe, settings)
        ]
    return {"data": data_name, "rows": rows}


def _attack(digits: victims.Images, recipe: Recipe, settings: Settings) -> list[dict[str, Any]]:
    """Trains the models of one number of subclasses; returns a row for each attack."""

    def name(text: str) -> str | None:
        return f"{recipe.num_training}-{text}" if settings.resumable else None

    referee = victims.train_referee(digits, recipe, name=name("referee"))
    label = f"subclasses-{recipe.num_subclasses}-{settings.noise_multiplier:.4f}"
    trained = victims.train_seeds(
        digits,
        recipe,
        protection="subclass",
        noise_multiplier=settings.noise_multiplier,
        seeds=settings.seeds,
        name=lambda seed: name(f"{label}-{seed}"),
    )
    accuracies = [victims.accuracy(digits, params) for params in trained]
    measured = victims.measure_attacks(digits, referee, trained, settings.attacks)
    return [{"accuracies": accuracies, **row} for row in measured]


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws accuracy and distance against the number of subclasses, and the reconstructions."""
    panels = victims.panels(record["rows"], lambda row: row["num_subclasses"])
    rows = [(f"k = {r['num_subclasses']}, {r['attack']}", r["images"]) for r in record["rows"]]
    label = "reconstructed digits 0 to 9 for each number of subclasses"
    return {
        "subclasses": figures.lines(panels, x="subclasses of a class", y=""),
        "reconstructions": victims.gallery(rows, label=label, width=560, height=56),
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "subclasses", "epsilon, add or remove", "replace", "accuracy", "attack", "distance",
        "reidentified", "closer", "expected",
    )  # fmt: skip
    rows = [
        (
            str(row["num_subclasses"]),
            f"{row['epsilon']['add_or_remove_one']:.2f}",
            f"{row['epsilon']['replace_one']:.2f}",
            *victims.cells(row),
        )
        for row in record["rows"]
    ]
    return common.text_table(columns, rows)
