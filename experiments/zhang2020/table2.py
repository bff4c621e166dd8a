"""Table II of zhang2020: MIA distances of the original and the enhanced attack on faces.

Run:       python -m experiments run zhang2020/table2 --preset cpu
Time:      smoke 30 s, cpu 1 min on one core, paper not run yet; resumable
Paper:     1 - SSIM of six people, original 0.707 0.663 0.64 0.681 0.668 0.707 (mean 0.678),
           enhanced 0.691 0.643 0.626 0.664 0.65 0.692 (mean 0.661)
Ours:      not reproduced (cpu, 2026-11-29, 40 people of ORL): 0.954 (original) and 0.714
           (enhanced), but the enhanced attack leaves most faces grey: the referee names 1.00 of the
           original's, 0.33 of the enhanced and 1.00 of the projected attack's

A softmax regression on the pixels is trained without DP, on the faces of ORL where Faces94 is not
available. The enhanced attack has bilateral total variation as penalty; its loss has no gradient
where the model is certain of another person at the grey start. `projected` is ours
(`inversion.FACES_PROJECTED`). `reidentified` is the share of the reconstructions that another
softmax regression, trained on other images, assigns to their person. `closer` is the share of those
that are nearer to a training image than to a test image of the person, beside the share to expect
without memorisation.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.zhang2020 import faces, victims
from experiments.zhang2020.faces import Selection
from experiments.zhang2020.victims import Recipe

ATTACKS = {
    "original": "gradient_descent",
    "enhanced": "enhanced_btv",
    "projected": "projected_btv",
}
PAPER = {
    "original": (0.707, 0.663, 0.64, 0.681, 0.668, 0.707),
    "enhanced": (0.691, 0.643, 0.626, 0.664, 0.65, 0.692),
}
NUM_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Settings:
    """attack_steps: number of steps of each attack. resumable: see `victims`.

    rate: step size of the original attack, which the paper does not state.
    """

    recipe: Recipe
    selection: Selection
    attack_steps: tuple[int, ...] = (1000, 100, 100)
    rate: float = 0.1
    resumable: bool = True


PRESETS = {
    "smoke": Settings(
        recipe=faces.recipe(batch_size=10, steps=2),
        selection=Selection(copies=1, generated=True),
        attack_steps=(3, 3, 3),
        resumable=False,
    ),
    "cpu": Settings(recipe=faces.recipe(), selection=Selection()),
    "paper": Settings(recipe=faces.recipe(steps=700), selection=Selection()),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains the model and runs both attacks on it."""
    images = faces.load(settings.selection)
    referee = victims.train_referee(images, settings.recipe, name=_name(settings, "referee"))
    params = victims.train(
        jax.random.key(0),
        images,
        settings.recipe,
        protection="none",
        noise_multiplier=0.0,
        name=_name(settings, "none"),
    )
    rows = []
    for (name, attack), steps in zip(ATTACKS.items(), settings.attack_steps, strict=True):
        best = victims.invert(
            images, params, attack=attack, steps=steps, learning_rate=settings.rate
        )
        measured = victims.measure(images, referee, best, distance="one_minus_ssim")
        rows.append(
            {
                "attack": name,
                "paper": PAPER.get(name),
                **measured,
                "images": victims.png(best[:NUM_SHOWN]),
            }
        )
    return {
        "data": images.data_name,
        "accuracy": victims.accuracy(images, params),
        "referee_accuracy": victims.accuracy(images, referee),
        "originals": victims.png(faces.originals(images)[:NUM_SHOWN]),
        "rows": rows,
    }


def _name(settings: Settings, text: str) -> str | None:
    return f"faces-{settings.recipe.steps}-{text}" if settings.resumable else None


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws a training image and the reconstructions of each person."""
    rows = [("training image", record["originals"])]
    rows += [(row["attack"], row["images"]) for row in record["rows"]]
    label = "training images and reconstructions of ten people"
    return {"reconstructions": victims.gallery(rows, label=label, width=600, height=70)}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "attack", "1 - SSIM", "paper", "reidentified", "among five", "closer", "expected",
    )  # fmt: skip
    rows = [
        (
            row["attack"],
            victims.mean_text(row["distances"]),
            f"{np.mean(row['paper']):.3f}" if row["paper"] else "",
            victims.share_text(row["top_1"]),
            victims.share_text(row["top_5"]),
            victims.share_text(row["closer"]),
            f"{row['expected_closer']:.2f}",
        )
        for row in record["rows"]
    ]
    accuracy = f"accuracy {record['accuracy']:.3f}, referee {record['referee_accuracy']:.3f}"
    return f"{common.text_table(columns, rows)}\n{accuracy}"
