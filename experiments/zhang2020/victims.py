"""Trains the models that are attacked, inverts them and measures their reconstructions.

A model is trained plainly, with record-DP, with class-DP or with subclass-DP. `digits` prepares
MNIST; `faces` prepares faces. In the shapes below `c` counts classes and `h, w` are image axes.
"""

import base64
import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common, figures
from jaxpriv import accounting, data, grads, metrics, models, sampling, training, units
from jaxpriv.attacks import inversion

Protection = Literal["none", "record", "class", "subclass"]

CONFIDENCE = 0.95
ACCURACY_TOLERANCE = 0.01
NOISE_RANGE = 0.3, 60.0
"""Range of the noise multiplier of record-DP in `matching_noise`."""

REFEREE_SEED = 1000

ATTACKS_ON_DIGITS = {"enhanced": ("enhanced_l1", 5000), "projected": ("projected_l1", 500)}
"""Title of an attack -> its name in `inversion.attacks`, and the number of its steps."""

SHORT_ATTACKS = {title: (name, 3) for title, (name, _) in ATTACKS_ON_DIGITS.items()}
"""Those of the smoke presets."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training.

    num_training, num_test: number of digits; faces have their own numbers.
    batch_size: expected number of records in a batch, for each kind of protection.
    num_subclasses: number of k-means clusters in each class, for subclass-DP.
    clip_norm: S of class-DP and subclass-DP; `record_clip_norm` is that of record-DP.
    learning_rate: of Adam.
    delta: delta of the epsilons.
    """

    num_training: int = 4000
    num_test: int = 1000
    batch_size: float = 200
    steps: int = 400
    num_subclasses: int = 50
    clip_norm: float = 3.0
    record_clip_norm: float = 1.0
    learning_rate: float = 0.002
    delta: float = 1e-5


class Images(NamedTuple):
    """Records of a data set and the network that is trained on them.

    x, y: training images [n, h, w, 1] and their labels.
    test_x, test_y: test images, which are also those that reconstructions are compared with.
    referee_x, referee_y: images of the network that names the reconstructions.
    subclasses: subclass of each training image; None where whole classes are protected.
    num_originals: number of the first training images that are not copies of others; None: all.
    """

    data_name: str
    module: nn.Module
    num_classes: int
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    referee_x: np.ndarray
    referee_y: np.ndarray
    subclasses: np.ndarray | None = None
    num_originals: int | None = None


def digits(recipe: Recipe) -> Images:
    """Draws the digits; they are those of the published MNIST where it is available.

    The network has two convolutions and two dense layers. The referee is trained on the test
    images.
    """
    names = {entry.name for entry in data.available() if entry.sources}
    name = "mnist" if "mnist" in names else "mnist5k"
    dataset = data.load(name)
    order = np.random.default_rng(0).permutation(len(dataset))
    rows, test = np.split(order, [recipe.num_training])[0], order[recipe.num_training :]
    test = test[: recipe.num_test]
    y = dataset.y.astype(np.int32)
    subclasses = units.subclasses(
        np.random.default_rng(1), dataset.x[rows], y[rows], num_subclasses=recipe.num_subclasses
    )
    return Images(
        data_name=name,
        module=models.CNN(num_classes=10),
        num_classes=10,
        x=dataset.x[rows],
        y=y[rows],
        test_x=dataset.x[test],
        test_y=y[test],
        referee_x=dataset.x[test],
        referee_y=y[test],
        subclasses=subclasses,
    )


def train(
    key: jax.Array,
    images: Images,
    recipe: Recipe,
    *,
    protection: Protection,
    noise_multiplier: float,
    name: str | None,
) -> Any:
    """Trains a model and returns its parameters; resumable by build/zhang2020/NAME, if given."""
    init_key, fit_key = jax.random.split(key)
    checkpoints = None
    if name is not None:
        checkpoints = training.Checkpoints(directory=Path("build") / "zhang2020" / name)
    state, _ = training.fit(
        fit_key,
        algorithm(images, recipe, protection=protection, noise_multiplier=noise_multiplier),
        images.module.init(init_key, jnp.asarray(images.x[:1])),
        (jnp.asarray(images.x), jnp.asarray(images.y)),
        steps=recipe.steps,
        checkpoints=checkpoints,
    )
    return state.params


def train_seeds(
    images: Images,
    recipe: Recipe,
    *,
    protection: Protection,
    noise_multiplier: float,
    seeds: int,
    name: Callable[[int], str | None],
) -> list[Any]:
    """Trains a model for each seed; `name(seed)` is as for `train`."""
    return [
        train(
            jax.random.key(seed),
            images,
            recipe,
            protection=protection,
            noise_multiplier=noise_multiplier,
            name=name(seed),
        )
        for seed in range(seeds)
    ]


def algorithm(
    images: Images, recipe: Recipe, *, protection: Protection, noise_multiplier: float
) -> training.Algorithm:
    """Makes the training algorithm for a kind of protection."""
    module = images.module

    def loss(params: Any, record: Any, key: jax.Array) -> jax.Array:
        del key
        x, y = record
        logits = jnp.asarray(module.apply(params, x[None]))[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    optimizer = optax.adam(recipe.learning_rate)
    sampling_prob = recipe.batch_size / len(images.x)
    records = sampling.poisson(len(images.x), sampling_prob=sampling_prob)
    if protection == "none":
        return training.sgd(loss, optimizer, records)
    if protection == "record":
        grad = grads.clipped_grad(loss, clip_norm=recipe.record_clip_norm)
        return training.dpsgd(grad, optimizer, records, noise_multiplier=noise_multiplier)
    # As many classes or subclasses as have `batch_size` records on average; a few at a time, since
    # a batch is padded to all of them and microbatches without sampled ones are skipped.
    grad = grads.clipped_grad(loss, clip_norm=recipe.clip_norm, microbatch_size=5)
    if protection == "class":
        sampler = sampling.by_class(
            images.y, num_classes=images.num_classes, sampling_prob=sampling_prob
        )
    else:
        assert images.subclasses is not None
        sampler = sampling.by_subclass(
            images.y,
            images.subclasses,
            num_classes=images.num_classes,
            num_subclasses=recipe.num_subclasses,
            sampling_prob=sampling_prob,
        )
    return training.class_dpsgd(grad, optimizer, sampler, noise_multiplier=noise_multiplier)


def epsilons(
    images: Images, recipe: Recipe, *, protection: Protection, noise_multiplier: float
) -> dict[str, float] | None:
    """Computes epsilon under both relations, for one record, class or subclass; None without DP."""
    if protection == "none":
        return None
    alg = algorithm(images, recipe, protection=protection, noise_multiplier=noise_multiplier)
    both = accounting.epsilon_by_relation(alg.event(recipe.steps), delta=recipe.delta)
    return both._asdict()


def train_referee(images: Images, recipe: Recipe, *, name: str | None) -> Any:
    """Trains the network that names the reconstructions on images that no target has seen."""
    referee_images = images._replace(x=images.referee_x, y=images.referee_y, subclasses=None)
    batch_size = min(recipe.batch_size, len(referee_images.x) / 4)
    return train(
        jax.random.key(REFEREE_SEED),
        referee_images,
        dataclasses.replace(recipe, batch_size=batch_size),
        protection="none",
        noise_multiplier=0.0,
        name=name,
    )


def logits(images: Images, params: Any, x: np.ndarray) -> np.ndarray:
    """Computes the outputs of a model."""
    return np.asarray(images.module.apply(params, jnp.asarray(x)))


def accuracy(images: Images, params: Any) -> float:
    """Computes the accuracy on the test images."""
    return float((logits(images, params, images.test_x).argmax(-1) == images.test_y).mean())


def invert(
    images: Images,
    params: Any,
    *,
    attack: str,
    steps: int | None,
    learning_rate: float = 0.1,
    penalty_weight: float | None = None,
) -> np.ndarray:
    """Reconstructs an image of each class, [c, h, w, 1].

    attack: name in `inversion.attacks`. penalty_weight: None takes that of the paper.
    """
    options = {"steps": steps, "learning_rate": learning_rate, "penalty_weight": penalty_weight}
    table = {each.name: each for each in inversion.attacks(**options)}
    target = inversion.Target(
        predict=lambda x: jnp.asarray(images.module.apply(params, x[None]))[0],
        shape=images.x.shape[1:],
    )
    labels = np.arange(images.num_classes)
    return np.asarray(table[attack].run(jax.random.key(0), target, labels).best)


def distances(images: Images, best: np.ndarray, *, distance: Any = "euclidean") -> np.ndarray:
    """Computes the MIA distance of the reconstruction of each class, [c], without copies."""
    nearest = metrics.image.inversion_distance(
        np.clip(best, 0, 1),
        np.arange(images.num_classes),
        training=images.x[: images.num_originals],
        training_labels=images.y[: images.num_originals],
        distance=distance,
    )
    return nearest.distance


def measure(
    images: Images, referee: Any, best: np.ndarray, *, distance: Any = "euclidean"
) -> dict[str, Any]:
    """Measures reconstructions of all classes: distance, re-identification, membership check."""
    classes = np.arange(images.num_classes)
    named = metrics.image.reidentification(
        logits(images, referee, best), classes, confidence=CONFIDENCE
    )
    check = metrics.image.membership_check(
        np.clip(best, 0, 1),
        classes,
        training=images.x[: images.num_originals],
        training_labels=images.y[: images.num_originals],
        held_out=images.test_x,
        held_out_labels=images.test_y,
        distance="euclidean",
        confidence=CONFIDENCE,
    )
    return {
        "distances": distances(images, best, distance=distance).tolist(),
        "top_1": list(named.top_1),
        "top_5": None if named.top_5 is None else list(named.top_5),
        "closer": list(check.share),
        "expected_closer": check.expected,
    }


def measure_attacks(
    images: Images, referee: Any, models: list[Any], attacks: dict[str, tuple[str, int]]
) -> list[dict[str, Any]]:
    """Attacks the models of several seeds; returns the measures of each attack over all of them."""
    rows = []
    for title, (attack, steps) in attacks.items():
        best = [invert(images, params, attack=attack, steps=steps) for params in models]
        measured = [measure(images, referee, each) for each in best]
        rows.append(
            {
                "attack": title,
                "distances": [each["distances"] for each in measured],
                "reidentified": float(np.mean([each["top_1"][0] for each in measured])),
                "closer": float(np.mean([each["closer"][0] for each in measured])),
                "expected_closer": measured[0]["expected_closer"],
                "images": png(best[0]),
            }
        )
    return rows


def matching_noise(
    images: Images,
    recipe: Recipe,
    *,
    accuracy_of_first: float,
    trials: int,
    name: Callable[[Protection, float, int], str | None],
) -> float:
    """Searches the noise of record-DP at which the accuracy of the first seed is the given one.

    name: `name(protection, noise_multiplier, seed)`, the folder of checkpoints or None.
    """
    low, high = np.log(NOISE_RANGE)
    best, smallest = float(np.exp(low)), np.inf
    for _ in range(trials):
        middle = float(np.exp((low + high) / 2))
        params = train(
            jax.random.key(0),
            images,
            recipe,
            protection="record",
            noise_multiplier=middle,
            name=name("record", middle, 0),
        )
        difference = accuracy(images, params) - accuracy_of_first
        if abs(difference) < smallest:
            best, smallest = middle, abs(difference)
        if abs(difference) <= ACCURACY_TOLERANCE / 2:
            break
        low, high = (np.log(middle), high) if difference > 0 else (low, np.log(middle))
    return best


def panels(
    rows: list[dict[str, Any]], x: Callable[[dict[str, Any]], float]
) -> dict[str, list[figures.Line]]:
    """Draws accuracy and mean distance against `x(row)`; the distance of each attack is a line."""
    by_attack: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_attack.setdefault(row["attack"], []).append(row)

    def line(title: str, rows: list[dict[str, Any]], key: str) -> figures.Line:
        return figures.Line(title, [x(r) for r in rows], [float(np.mean(r[key])) for r in rows])

    return {
        "accuracy": [line("model", next(iter(by_attack.values())), "accuracies")],
        "MIA distance": [line(title, each, "distances") for title, each in by_attack.items()],
    }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Formats the accuracies of all seeds and the measures of an attack."""
    return (
        " ".join(f"{100 * a:.1f}" for a in row["accuracies"]),
        row["attack"],
        mean_text(row["distances"]),
        *(f"{row[key]:.2f}" for key in ("reidentified", "closer", "expected_closer")),
    )


def png(images: np.ndarray) -> str:
    """Encodes images [c, h, w, 1] side by side as a PNG in base64."""
    from PIL import Image

    strip = np.concatenate(list(np.clip(images[..., 0], 0, 1)), axis=1)
    stream = io.BytesIO()
    Image.fromarray(np.rint(255 * strip).astype(np.uint8)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def gallery(rows: list[tuple[str, str]], *, label: str, width: int, height: int) -> str:
    """Draws rows of images, encoded by `png`, with a text before each, as SVG.

    width, height: size of a row of images in the figure.
    """
    left, step, lines = 230, height + 6, []
    for i, (text, encoded) in enumerate(rows):
        lines.append(
            f'<text x="0" y="{i * step + height / 2 + 4:g}" font-size="13" '
            f'font-family="sans-serif">{text}</text><image x="{left}" y="{i * step}" '
            f'width="{width}" height="{height}" preserveAspectRatio="xMinYMid" '
            f'href="data:image/png;base64,{encoded}"/>'
        )
    size = f'width="{left + width}" height="{step * len(rows)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} aria-label="{label}">'
        f"{''.join(lines)}</svg>"
    )


def mean_text(values: Any) -> str:
    """Formats a mean with the ends of its interval of Student's t; '-' for one value."""
    flat = np.ravel(values).tolist()
    if len(flat) < 2:
        return f"{flat[0]:.3f}"
    return common.cell(common.mean_interval(flat, confidence=CONFIDENCE), digits=3)


def share_text(share: Any) -> str:
    """Formats a share with the ends of its interval; '' for None."""
    return "" if share is None else common.cell(share)
