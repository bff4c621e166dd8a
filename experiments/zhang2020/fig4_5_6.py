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

import base64
import io
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common
from experiments.zhang2020 import victims
from experiments.zhang2020.victims import Protection, Recipe
from jaxpriv import accounting, metrics


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
        recipe=Recipe(num_training=60, num_test=40, batch_size=20, steps=2, num_subclasses=2),
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
DELTA, CONFIDENCE = 1e-5, 0.95
ACCURACY_TOLERANCE = 0.01
NOISE_RANGE = 0.3, 12.0
"""Range of the noise multiplier of record-DP."""


def run(settings: Settings) -> dict[str, Any]:
    """Trains all models, attacks them and compares their distances."""
    digits = victims.load(settings.recipe)
    referee = _referee(digits, settings)
    rows = [_row(digits, settings, referee, "none", 0.0)]
    for noise_multiplier in settings.noise_multipliers:
        subclass = _row(digits, settings, referee, "subclass", noise_multiplier)
        matched = _matching_noise(digits, settings, subclass["accuracies"][0])
        record = _row(digits, settings, referee, "record", matched)
        larger = np.array(subclass["distances"]) > np.array(record["distances"])
        share = metrics.intervals.share(larger.ravel(), confidence=CONFIDENCE)
        rows += [record | {"wins": None}, subclass | {"wins": list(share)}]
    return {"data": digits.data_name, "confidence": CONFIDENCE, "rows": rows}


def _row(
    digits: victims.Digits,
    settings: Settings,
    referee: Any,
    protection: Protection,
    noise_multiplier: float,
) -> dict[str, Any]:
    accuracies, distances, hits, images = [], [], [], []
    for seed in range(settings.seeds):
        params = _train(digits, settings, protection, noise_multiplier, seed)
        accuracies.append(victims.accuracy(digits, params))
        best = np.asarray(victims.invert(params, settings.attack_steps).best)
        logits = victims.MODULE.apply(referee, jnp.asarray(best))
        hits.append((np.asarray(logits).argmax(-1) == np.arange(victims.NUM_CLASSES)).tolist())
        distances.append(victims.distances(digits, best).tolist())
        images.append(best)
    return {
        "protection": protection,
        "noise_multiplier": noise_multiplier,
        "epsilon": _epsilons(digits, settings, protection, noise_multiplier),
        "accuracies": accuracies,
        "accuracy": float(np.mean(accuracies)),
        "distances": distances,
        "distance": common.mean_interval(np.ravel(distances).tolist(), confidence=CONFIDENCE),
        "reidentified": float(np.mean(hits)),
        "images": _png(images[0]),
        "wins": None,
    }


def _train(
    digits: victims.Digits,
    settings: Settings,
    protection: Protection,
    noise_multiplier: float,
    seed: int,
) -> Any:
    return victims.train(
        jax.random.key(seed),
        digits,
        settings.recipe,
        protection=protection,
        noise_multiplier=noise_multiplier,
        name=_name(settings, f"{protection}-{noise_multiplier:.4f}-{seed}"),
    )


def _name(settings: Settings, text: str) -> str | None:
    """Returns the name of the folder of checkpoints of a training."""
    return f"{settings.recipe.num_training}-{text}" if settings.resumable else None


def _referee(digits: victims.Digits, settings: Settings) -> Any:
    """Trains the network that names the reconstructions on images that no target has seen."""
    swapped = digits._replace(x=digits.test_x, y=digits.test_y)
    return victims.train(
        jax.random.key(1000),
        swapped,
        settings.recipe,
        protection="none",
        noise_multiplier=0.0,
        name=_name(settings, "referee"),
    )


def _matching_noise(digits: victims.Digits, settings: Settings, accuracy: float) -> float:
    """Searches the noise of record-DP at which the accuracy of the first seed is given."""
    low, high = np.log(NOISE_RANGE)
    best, smallest = float(np.exp(low)), np.inf
    for _ in range(settings.trials):
        middle = float(np.exp((low + high) / 2))
        params = _train(digits, settings, "record", middle, seed=0)
        difference = victims.accuracy(digits, params) - accuracy
        if abs(difference) < smallest:
            best, smallest = middle, abs(difference)
        if abs(difference) <= ACCURACY_TOLERANCE / 2:
            break
        low, high = (np.log(middle), high) if difference > 0 else (low, np.log(middle))
    return best


def _epsilons(
    digits: victims.Digits,
    settings: Settings,
    protection: Protection,
    noise_multiplier: float,
) -> dict[str, float] | None:
    """Returns epsilon under both relations, for one record or one subclass."""
    if protection == "none":
        return None
    alg = victims.algorithm(
        digits, settings.recipe, protection=protection, noise_multiplier=noise_multiplier
    )
    both = accounting.epsilon_by_relation(alg.event(settings.recipe.steps), delta=DELTA)
    return both._asdict()


def _png(images: np.ndarray) -> str:
    """Encodes images [c, h, w, 1] side by side as a PNG in base64."""
    from PIL import Image

    strip = np.concatenate(list(images[..., 0]), axis=1)
    stream = io.BytesIO()
    Image.fromarray(np.rint(255 * strip).astype(np.uint8)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the reconstructions of each model, a row each, and its description beside them."""
    height = 60
    lines = []
    for i, row in enumerate(record["rows"]):
        text = f"{row['protection']} z={row['noise_multiplier']:.2f}: {100 * row['accuracy']:.1f} %"
        lines.append(
            f'<text x="0" y="{i * height + 34}" font-size="13" font-family="sans-serif">{text}'
            f'</text><image x="190" y="{i * height}" width="560" height="56" '
            f'href="data:image/png;base64,{row["images"]}"/>'
        )
    total = height * len(lines)
    return {
        "reconstructions": (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="760" height="{total}" '
            f'aria-label="reconstructed digits 0 to 9 of each model">{"".join(lines)}</svg>'
        )
    }


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
        distance, low, high = row["distance"]
        rows.append(
            (
                row["protection"],
                f"{row['noise_multiplier']:.2f}",
                *(
                    f"{epsilon[name]:.2f}" if epsilon else ""
                    for name in ("add_or_remove_one", "replace_one")
                ),
                " ".join(f"{100 * a:.1f}" for a in row["accuracies"]),
                f"{distance:.2f} ({low:.2f} to {high:.2f})",
                "" if wins is None else f"{wins[0]:.2f} ({wins[1]:.2f} to {wins[2]:.2f})",
                f"{row['reidentified']:.2f}",
            )
        )
    return common.text_table(columns, rows)
