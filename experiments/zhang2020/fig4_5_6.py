"""Figures 4, 5 and 6 of zhang2020: reconstructed digits, and MIA distances at equal accuracy.

Run:       python -m experiments run zhang2020/fig4_5_6 --preset cpu
Time:      smoke 60 s, cpu not run yet, paper not run yet; resumable by build/zhang2020
Paper:     record-DP at 96, 93 and 91 % does not defend: its distances are near those of the plain
           model; subclass-DP at the same accuracies does: its distances are larger for each digit
Ours:      not run yet

The noise of subclass-DP is that of the paper. For each of its accuracies the noise of record-DP is
searched until both are within a point of each other on the test records, on the first seed; the
accuracies of all seeds are in the rows. `distance` is the Euclidean distance of a reconstruction to
the nearest training image of its digit, averaged over digits and seeds, with the interval of
Student's t over both. `wins` counts the digits and seeds whose subclass-DP distance is larger, with
its interval. Beyond the paper: `reidentified` is the share of reconstructions that a network
trained on other images assigns to their digit. `epsilon` is exact, for one record or one subclass,
given the partition into subclasses, which depends on the data.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.zhang2020 import victims
from experiments.zhang2020.victims import Protection, Recipe
from jaxpriv import metrics


@dataclass(frozen=True, kw_only=True)
class Settings:
    """noise_multipliers: of subclass-DP. attack_steps: T of the attack.

    trials: number of trainings, at most, of the search for the noise of record-DP.
    resumable: whether trainings leave checkpoints.
    """

    recipe: Recipe
    noise_multipliers: tuple[float, ...] = (1.6, 3.0)
    attack_steps: int = 5000
    seeds: int = 2
    trials: int = 6
    resumable: bool = True


PRESETS = {
    "smoke": Settings(
        recipe=Recipe(num_training=60, num_test=100, batch_size=20, steps=2, num_subclasses=2),
        noise_multipliers=(1.6,),
        attack_steps=3,
        seeds=1,
        trials=1,
        resumable=False,
    ),
    "cpu": Settings(recipe=Recipe()),
    "paper": Settings(
        recipe=Recipe(num_training=50_000, num_test=10_000, batch_size=500, steps=700),
        noise_multipliers=(1.6, 3.0, 3.65),
        seeds=5,
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains all models, attacks them and compares their distances."""
    digits = victims.digits(settings.recipe)
    referee = victims.train_referee(digits, settings.recipe, name=_name(settings, "referee"))
    rows = [_row(digits, settings, referee, "none", 0.0)]
    for noise_multiplier in settings.noise_multipliers:
        subclass = _row(digits, settings, referee, "subclass", noise_multiplier)
        matched = victims.matching_noise(
            digits,
            settings.recipe,
            accuracy_of_first=subclass["accuracies"][0],
            trials=settings.trials,
            name=lambda *model: name(settings, *model),
        )
        record = _row(digits, settings, referee, "record", matched)
        larger = np.array(subclass["distances"]) > np.array(record["distances"])
        share = metrics.intervals.share(larger.ravel(), confidence=victims.CONFIDENCE)
        rows += [record | {"wins": None}, subclass | {"wins": list(share)}]
    return {"data": digits.data_name, "confidence": victims.CONFIDENCE, "rows": rows}


def _row(
    digits: victims.Images,
    settings: Settings,
    referee: Any,
    protection: Protection,
    noise_multiplier: float,
) -> dict[str, Any]:
    accuracies, distances, hits, images = [], [], [], []
    for seed in range(settings.seeds):
        params = victims.train(
            jax.random.key(seed),
            digits,
            settings.recipe,
            protection=protection,
            noise_multiplier=noise_multiplier,
            name=name(settings, protection, noise_multiplier, seed),
        )
        accuracies.append(victims.accuracy(digits, params))
        best = victims.invert(digits, params, attack="enhanced_l1", steps=settings.attack_steps)
        measured = victims.measure(digits, referee, best)
        hits.append(measured["top_1"][0])
        distances.append(measured["distances"])
        images.append(best)
    return {
        "protection": protection,
        "noise_multiplier": noise_multiplier,
        "epsilon": victims.epsilons(
            digits, settings.recipe, protection=protection, noise_multiplier=noise_multiplier
        ),
        "accuracies": accuracies,
        "accuracy": float(np.mean(accuracies)),
        "distances": distances,
        "distance": common.mean_interval(
            np.ravel(distances).tolist(), confidence=victims.CONFIDENCE
        ),
        "reidentified": float(np.mean(hits)),
        "images": victims.png(images[0]),
        "wins": None,
    }


def name(
    settings: Settings, protection: Protection, noise_multiplier: float, seed: int
) -> str | None:
    """Returns the name of the folder of checkpoints of a training."""
    return _name(settings, f"{protection}-{noise_multiplier:.4f}-{seed}")


def _name(settings: Settings, text: str) -> str | None:
    return f"{settings.recipe.num_training}-{text}" if settings.resumable else None


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the reconstructions of each model, a row each, and its description beside them."""
    rows = [
        (
            f"{row['protection']} z={row['noise_multiplier']:.2f}: {100 * row['accuracy']:.1f} %",
            row["images"],
        )
        for row in record["rows"]
    ]
    label = "reconstructed digits 0 to 9 of each model"
    return {"reconstructions": victims.gallery(rows, label=label, width=560, height=56)}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "protection", "noise", "epsilon, add or remove", "replace", "accuracy", "distance",
        "larger than record-DP", "reidentified",
    )  # fmt: skip
    rows = []
    for row in record["rows"]:
        epsilon = row["epsilon"] or {}
        wins = row["wins"]
        rows.append(
            (
                row["protection"],
                f"{row['noise_multiplier']:.2f}",
                *(
                    f"{epsilon[name]:.2f}" if epsilon else ""
                    for name in ("add_or_remove_one", "replace_one")
                ),
                " ".join(f"{100 * a:.1f}" for a in row["accuracies"]),
                common.cell(row["distance"]),
                "" if wins is None else common.cell(wins),
                f"{row['reidentified']:.2f}",
            )
        )
    return common.text_table(columns, rows)
