"""Figure 9 of zhang2020: the number of subclasses of subclass-DP.

Run:       python -m experiments run zhang2020/fig9 --preset cpu
Time:      smoke 60 s, cpu 60 min on two cores (estimated, in pieces of 10 min), paper not run yet
Paper:     accuracy rises and robustness falls with the number of subclasses, at z = 1.6
Ours:      not run yet

The noise multiplier is 1.6 and the sampling probability the same, so epsilon for one subclass is
equal in all rows; with more subclasses a subclass has fewer records. `distance` is Euclidean, to
the nearest training image of the digit. Resumable by build/zhang2020.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments import common, figures
from experiments.zhang2020 import victims
from experiments.zhang2020.victims import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """nums_subclasses: k of k-means in each class. attack_steps: T. resumable: see `victims`."""

    recipe: Recipe
    nums_subclasses: tuple[int, ...] = (1, 5, 20, 50)
    noise_multiplier: float = 1.6
    attack_steps: int = 5000
    seeds: int = 2
    resumable: bool = True


PRESETS = {
    "smoke": Settings(
        recipe=Recipe(num_training=60, num_test=100, batch_size=20, steps=2),
        nums_subclasses=(1, 2),
        attack_steps=3,
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
        row = {
            "num_subclasses": count,
            "epsilon": victims.epsilons(
                digits, recipe, protection="subclass", noise_multiplier=settings.noise_multiplier
            ),
        }
        rows.append(row | _attack(digits, recipe, settings))
    return {"data": data_name, "rows": rows}


def _attack(digits: victims.Images, recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Trains the models of one number of subclasses and measures their reconstructions."""

    def name(text: str) -> str | None:
        return f"{recipe.num_training}-{text}" if settings.resumable else None

    referee = victims.train_referee(digits, recipe, name=name("referee"))
    accuracies, measured, images = [], [], []
    for seed in range(settings.seeds):
        params = victims.train(
            jax.random.key(seed),
            digits,
            recipe,
            protection="subclass",
            noise_multiplier=settings.noise_multiplier,
            name=name(f"subclasses-{recipe.num_subclasses}-{settings.noise_multiplier:.4f}-{seed}"),
        )
        accuracies.append(victims.accuracy(digits, params))
        best = victims.invert(digits, params, attack="enhanced_l1", steps=settings.attack_steps)
        measured.append(victims.measure(digits, referee, best))
        images.append(best)
    return {
        "accuracies": accuracies,
        "distances": [each["distances"] for each in measured],
        "reidentified": float(np.mean([each["top_1"][0] for each in measured])),
        "closer": float(np.mean([each["closer"][0] for each in measured])),
        "expected_closer": measured[0]["expected_closer"],
        "images": victims.png(images[0]),
    }


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws accuracy and distance against the number of subclasses, and the reconstructions."""
    counts = [row["num_subclasses"] for row in record["rows"]]
    panels = {
        title: [figures.Line(title, counts, [float(np.mean(row[key])) for row in record["rows"]])]
        for title, key in (("accuracy", "accuracies"), ("MIA distance", "distances"))
    }
    rows = [(f"{row['num_subclasses']} subclasses", row["images"]) for row in record["rows"]]
    label = "reconstructed digits 0 to 9 for each number of subclasses"
    return {
        "subclasses": figures.lines(panels, x="subclasses of a class", y=""),
        "reconstructions": victims.gallery(rows, label=label, width=560, height=56),
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "subclasses", "epsilon, add or remove", "replace", "accuracy", "distance", "reidentified",
        "closer", "expected",
    )  # fmt: skip
    rows = [
        (
            str(row["num_subclasses"]),
            f"{row['epsilon']['add_or_remove_one']:.2f}",
            f"{row['epsilon']['replace_one']:.2f}",
            " ".join(f"{100 * a:.1f}" for a in row["accuracies"]),
            victims.mean_text(row["distances"]),
            *(f"{row[key]:.2f}" for key in ("reidentified", "closer", "expected_closer")),
        )
        for row in record["rows"]
    ]
    return common.text_table(columns, rows)
