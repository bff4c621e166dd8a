"""Inverts the models of a report on classes of images, and measures the reconstructions.

The attacked models are those whose accuracy is stated: they are trained on all classes, without a
held-out part of the records, which serves the referee and the membership check.

In the shapes below `n` counts records, `k` classes and `c` candidates of the referee.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _keys, metrics, units
from jaxpriv.attacks import Attack, inversion
from jaxpriv.reports import _assessment, _pictures, _score_files, findings
from jaxpriv.reports.subjects import Subject

STEPS = 200
"""Number of steps of each attack, which bounds the time."""

MAX_CLASSES, NUM_SHOWN = 40, 10
"""Numbers of classes that are reconstructed and shown, at most."""

_CONFIDENCE = 0.95
_MIN_SSIM_SIDE = 11

_MIN_CONTRAST = 0.01
"""Standard deviation of the pixels below which a picture counts as black, white or grey."""

_PENALTIES = {
    "enhanced_l1": 0.2,
    "enhanced_btv": 0.04,
    "projected_l1": 8.0,
    "projected_btv": 0.04,
}
"""Weights of the penalties times the number of pixels.

With those of Zhang et al. the penalty of a face exceeds 1, the largest loss, and the
reconstruction is black or grey. Here the l1 norm of a grey image adds 0.1, and 4 to the
cross-entropy.
"""


class _Images:
    """Training images and held-out images of the classes that are reconstructed."""

    def __init__(
        self,
        key: PRNGKeyArray,
        x: Float[np.ndarray, "n h w c"],
        labels: Int[np.ndarray, " n"],
        is_held_out: Bool[np.ndarray, " n"],
    ) -> None:
        """Draws the classes, from those with training images and held-out images."""
        self.candidates = _candidates(labels, is_held_out)
        is_training, is_held_out = (
            side & np.isin(labels, self.candidates) for side in (~is_held_out, is_held_out)
        )
        self.training, self.training_labels = x[is_training], labels[is_training]
        self.held_out, self.held_out_labels = x[is_held_out], labels[is_held_out]
        drawn = _keys.numpy_rng(key).permutation(self.candidates)[:MAX_CLASSES]
        self.classes = np.sort(drawn)

    @property
    def shown(self) -> Int[np.ndarray, " k"]:
        """The classes that are shown."""
        return self.classes[:NUM_SHOWN]

    def reidentify(
        self, pictures: Shaped[np.ndarray, "k h w c"], labels: Int[np.ndarray, " k"]
    ) -> metrics.image.Reidentification:
        """Assigns pictures to the candidate with the most correlated held-out image.

        Pictures of one class are dependent.
        """
        correlation = _standardised(pictures) @ _standardised(self.held_out).T
        of = self.held_out_labels
        logits = np.stack([correlation[:, of == c].max(axis=1) for c in self.candidates], axis=1)
        positions = np.searchsorted(self.candidates, labels)
        return metrics.image.reidentification(
            logits,
            positions,
            confidence=_CONFIDENCE,
            cluster=None if len(np.unique(labels)) == len(labels) else labels,
        )

    def nearest(
        self, pictures: Shaped[np.ndarray, "k h w c"], distance: metrics.image.Distance
    ) -> Float[np.ndarray, " k"]:
        """Returns the distance to the nearest training image of each class."""
        return metrics.image.inversion_distance(
            pictures,
            self.classes,
            training=self.training,
            training_labels=self.training_labels,
            distance=distance,
        ).distance

    def check_membership(
        self, pictures: Shaped[np.ndarray, "k h w c"]
    ) -> metrics.image.MembershipCheck:
        """Compares the nearest training image with the nearest held-out image."""
        return metrics.image.membership_check(
            pictures,
            self.classes,
            training=self.training,
            training_labels=self.training_labels,
            held_out=self.held_out,
            held_out_labels=self.held_out_labels,
            distance="euclidean",
            confidence=_CONFIDENCE,
        )


def missing(
    x: Shaped[np.ndarray, "n ..."],
    labels: Int[np.ndarray, " n"],
    is_held_out: Bool[np.ndarray, " n"],
) -> str | None:
    """Returns what the records lack for an inversion of their models, as a phrase."""
    if not _pictures.are_pictures(x):
        return "the records are not images"
    if not 0 <= x.min() <= x.max() <= 1:
        return "the pixels are not in [0, 1]"
    num_candidates = len(_candidates(labels, is_held_out))
    # Guessing among one class is always right, and one reconstruction has no interval.
    if num_candidates < 2:
        return f"{'only one' if num_candidates else 'no'} class has two images"
    return None


def _candidates(
    labels: Int[np.ndarray, " n"], is_held_out: Bool[np.ndarray, " n"]
) -> Int[np.ndarray, " c"]:
    """Returns the classes with training images and held-out images."""
    return np.intersect1d(labels[~is_held_out], labels[is_held_out])


def invert(
    key: PRNGKeyArray,
    subjects: Sequence[Subject],
    x: Float[np.ndarray, "n h w c"],
    labels: Int[np.ndarray, " n"],
    is_held_out: Bool[np.ndarray, " n"],
    *,
    shows_originals: bool,
    store: _score_files.Store,
    log: Callable[[str], None],
) -> findings.Inversion:
    """Reconstructs the classes from each model by every attack of the table.

    Args:
      key: PRNG key.
      subjects: models with `predict_one` and `tested`.
      x: inputs of all records, for which `missing` returns None.
      labels: their classes.
      is_held_out: the records on which the models are not trained.
      shows_originals: whether the findings contain pictures of training images.
      store: storage of the reconstructions.
      log: receives progress messages.

    Returns:
      The findings, with pictures for at most ten classes.
    """
    class_key, attack_key = jax.random.split(key)
    images = _Images(class_key, x, labels, is_held_out)
    models = tuple(_invert_model(attack_key, each, images, store, log) for each in subjects)
    referee = images.reidentify(images.training, images.training_labels).top_1
    originals = _first_images(images, images.shown)
    return findings.Inversion(
        labels=tuple(images.shown.tolist()),
        originals=tuple(map(_pictures.data_uri, originals)) if shows_originals else (),
        num_classes=len(images.classes),
        num_candidates=len(images.candidates),
        referee_accuracy=referee.value,
        referee_interval=(referee.lower, referee.upper),
        expected_closer=images.check_membership(_first_images(images, images.classes)).expected,
        steps=STEPS,
        confidence=_CONFIDENCE,
        models=models,
    )


def _invert_model(
    key: PRNGKeyArray,
    subject: Subject,
    images: _Images,
    store: _score_files.Store,
    log: Callable[[str], None],
) -> findings.InvertedModel:
    assert subject.tested is not None
    outputs, is_trained = subject.tested
    predict = subject.predict_one
    assert predict is not None
    shape = images.training.shape[1:]
    target = inversion.Target(predict=predict, shape=shape)
    results, best = {}, {}
    for attack in inversion.applicable(_table(shape), target):
        log(f"{subject.name}: inverting by {attack.title}")
        attack_key = _keys.named(key, attack.name)
        identity = _score_files.identity(
            attack_key,
            outputs=np.asarray(outputs.logits),
            classes=images.classes,
            steps=np.array(STEPS),
        )

        def compute(attack: Attack = attack, attack_key: PRNGKeyArray = attack_key) -> np.ndarray:
            return np.asarray(attack.run(attack_key, target, images.classes).best)

        name = f"inversion-{attack.name}-{subject.name.lower().replace(' ', '-')}"
        best[attack.name] = np.clip(store.scores(name, identity, compute), 0, 1)
        results[attack.name] = _measure(attack, predict, best[attack.name], images)
    strongest = max(results, key=lambda name: (results[name].top_1, -results[name].distance))
    results[strongest] = dataclasses.replace(
        results[strongest],
        pictures=tuple(map(_pictures.data_uri, best[strongest][: len(images.shown)])),
    )
    unit = units.classes(np.asarray(outputs.labels))
    utility = _assessment.utility(outputs, is_trained, unit)
    assert utility is not None
    return findings.InvertedModel(
        name=subject.name,
        promise=subject.promise,
        utility=utility,
        attacks=tuple(results.values()),
        strongest=strongest,
    )


def _table(shape: tuple[int, ...]) -> tuple[Attack, ...]:
    """Lists the attacks, with penalties in proportion to the number of pixels."""
    table = []
    for attack in inversion.attacks(steps=STEPS):
        if attack.name in _PENALTIES:
            weight = _PENALTIES[attack.name] / float(np.prod(shape))
            scaled = inversion.attacks(steps=STEPS, penalty_weight=weight)
            attack = next(each for each in scaled if each.name == attack.name)
        table.append(attack)
    return tuple(table)


def _measure(
    attack: Attack,
    predict: inversion.Predict,
    pictures: Float[np.ndarray, "k h w c"],
    images: _Images,
) -> findings.InversionResult:
    distance = _mean(images.nearest(pictures, "euclidean"))
    one_minus_ssim = None
    if min(pictures.shape[1:3]) >= _MIN_SSIM_SIDE:
        one_minus_ssim = _mean(images.nearest(pictures, "one_minus_ssim"))
    named = images.reidentify(pictures, images.classes)
    closer = images.check_membership(pictures).share
    logits = jax.vmap(predict)(jnp.asarray(pictures, jnp.float32))
    confidence = jax.nn.softmax(logits)[jnp.arange(len(pictures)), images.classes]
    return findings.InversionResult(
        name=attack.name,
        title=attack.title,
        reference=attack.reference,
        distance=distance[0],
        distance_interval=distance[1:],
        one_minus_ssim=one_minus_ssim and one_minus_ssim[0],
        one_minus_ssim_interval=one_minus_ssim and one_minus_ssim[1:],
        top_1=named.top_1.value,
        top_1_interval=(named.top_1.lower, named.top_1.upper),
        top_5=named.top_5 and named.top_5.value,
        top_5_interval=named.top_5 and (named.top_5.lower, named.top_5.upper),
        closer=closer.value,
        closer_interval=(closer.lower, closer.upper),
        confidence_of_model=min(1.0, float(confidence.mean())),
    )


def _first_images(images: _Images, classes: Int[np.ndarray, " k"]) -> Float[np.ndarray, "k h w c"]:
    """Returns a training image of each class."""
    return np.stack([images.training[images.training_labels == label][0] for label in classes])


def _mean(distances: Float[np.ndarray, " k"]) -> tuple[float, float, float]:
    """Returns the mean with the ends of its interval of Student's t, at least 0."""
    from scipy import special

    k, mean = len(distances), float(distances.mean())
    half = special.stdtrit(k - 1, (1 + _CONFIDENCE) / 2) * distances.std(ddof=1) / np.sqrt(k)
    return mean, max(0.0, mean - half), mean + half


def _standardised(pictures: Shaped[np.ndarray, "k h w c"]) -> Float[np.ndarray, "k d"]:
    """Returns the pixels of each picture with mean 0 and norm 1; 0 where nothing can be seen."""
    flat = np.asarray(pictures, np.float64).reshape(len(pictures), -1)
    is_visible = flat.std(axis=1, keepdims=True) >= _MIN_CONTRAST
    flat = flat - flat.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.where(is_visible, flat / np.where(is_visible, norm, 1.0), 0.0)
