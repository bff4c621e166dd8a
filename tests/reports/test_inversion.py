"""Inversion in a report: softmax regressions by hand, and images that differ in one pixel."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import metrics, reports
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.reports import _annex, _inference_wording, _inversion, _score_files
from jaxpriv.reports.subjects import Subject
from tests.reports import examples

KEY = jax.random.key(0)
CLASSES, PER_CLASS = 12, 4
LABELS = np.repeat(np.arange(CLASSES), PER_CLASS)
IS_HELD_OUT = np.arange(len(LABELS)) % PER_CLASS == 0
_RNG = np.random.default_rng(0)
FACES = _RNG.random((CLASSES, 4, 3, 1))
IMAGES = np.clip(FACES[LABELS] + 0.05 * _RNG.normal(size=(len(LABELS), 4, 3, 1)), 0, 1).astype(
    np.float32
)


def subject(name, strength, promise=None):
    """A model whose logits are correlations with the faces; none of them without strength."""
    weights = jnp.asarray(strength * (FACES - FACES.mean(0)).reshape(CLASSES, -1), jnp.float32)
    logits = np.asarray(IMAGES.reshape(len(IMAGES), -1) @ weights.T)
    outputs = Evidence(logits=logits, labels=LABELS)
    return Subject(
        name=name,
        evidence=outputs,
        is_member=~IS_HELD_OUT,
        training=None,
        promise=promise,
        tested=(outputs, ~IS_HELD_OUT),
        predict_one=lambda x: weights @ x.reshape(-1),
    )


@pytest.fixture(scope="module")
def inverted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_inversion, "STEPS", 60)
        return _inversion.invert(
            KEY,
            [
                subject("Without DP", 5.0),
                subject("Class-level DP-SGD, epsilon 2", 0.0, examples.make_promise()),
            ],
            IMAGES,
            LABELS,
            IS_HELD_OUT,
            shows_originals=True,
            store=_score_files.Store(None),
            log=lambda message: None,
        )


def test_a_model_that_reveals_its_classes_is_recognised_and_a_constant_one_is_not(inverted):
    plain, private = inverted.models
    assert plain.strongest_attack().top_1 > 0.9
    for attack in private.attacks:
        assert attack.top_1 <= 0.5
        assert attack.top_1_interval[0] < 1 / CLASSES
    assert inverted.referee_accuracy == 1.0
    assert inverted.expected_closer == pytest.approx(0.75)
    assert (inverted.num_classes, inverted.num_candidates) == (CLASSES, CLASSES)


def test_pictures_are_those_of_the_strongest_attack_and_at_most_ten(inverted):
    assert len(inverted.labels) == len(inverted.originals) == _inversion.NUM_SHOWN
    for model in inverted.models:
        best = max(model.attacks, key=lambda attack: (attack.top_1, -attack.distance))
        assert model.strongest == best.name
        for attack in model.attacks:
            assert len(attack.pictures) == (10 if attack is model.strongest_attack() else 0)
            assert attack.one_minus_ssim is None  # of 4 x 3 pixels
            assert (
                0 <= attack.distance_interval[0] <= attack.distance <= attack.distance_interval[1]
            )


def test_the_numbers_are_those_of_the_metrics():
    images = _inversion._Images(KEY, IMAGES, LABELS, IS_HELD_OUT)
    nearest = metrics.image.inversion_distance(
        FACES, np.arange(CLASSES), training=IMAGES[~IS_HELD_OUT],
        training_labels=LABELS[~IS_HELD_OUT], distance="euclidean",
    )  # fmt: skip
    np.testing.assert_allclose(images.nearest(FACES, "euclidean"), nearest.distance)
    mean, low, high = _inversion._mean(nearest.distance)
    half = 2.200985 * nearest.distance.std(ddof=1) / np.sqrt(CLASSES)  # t quantile, 11 degrees
    assert (mean - low, high - mean) == pytest.approx((half, half), rel=1e-5)
    # The correlation ignores brightness and contrast; np.corrcoef is the oracle.
    named = images.reidentify(0.2 + 0.5 * FACES, np.arange(CLASSES))
    flat = [x.reshape(len(x), -1) for x in (FACES, IMAGES[IS_HELD_OUT])]
    expected = np.corrcoef(*flat)[:CLASSES, CLASSES:].argmax(1) == np.arange(CLASSES)
    assert named.top_1.value == expected.mean()
    invisible = images.reidentify(0.001 * FACES, np.arange(CLASSES))
    assert (invisible.top_1.value, invisible.top_5.value) == (0.0, 0.0)


def test_the_classes_are_bounded(monkeypatch):
    monkeypatch.setattr(_inversion, "MAX_CLASSES", 5)
    images = _inversion._Images(KEY, IMAGES, LABELS, IS_HELD_OUT)
    assert (len(images.classes), len(images.candidates)) == (5, CLASSES)
    held_out = IS_HELD_OUT & (LABELS != 3)
    assert 3 not in _inversion._Images(KEY, IMAGES, LABELS, held_out).candidates


@pytest.mark.parametrize(
    ("x", "held_out", "reason"),
    [
        (IMAGES[..., 0], IS_HELD_OUT, "the records are not images"),
        (3 * IMAGES, IS_HELD_OUT, "the pixels are not in [0, 1]"),
        (IMAGES, ~(LABELS >= 0), "no class has two images"),
        (IMAGES, IS_HELD_OUT & (LABELS == 3), "only one class has two images"),
        (IMAGES, IS_HELD_OUT & (LABELS < 2), None),
        (IMAGES, IS_HELD_OUT, None),
    ],
)
def test_records_that_cannot_be_inverted_are_named(x, held_out, reason):
    assert _inversion.missing(x, LABELS, held_out) == reason


def test_the_interval_of_the_referee_takes_the_images_of_a_class_as_dependent():
    images = _inversion._Images(KEY, IMAGES, LABELS, IS_HELD_OUT)
    # Each class has three training images, and those of half the classes are of another one.
    shown = np.where(LABELS < CLASSES / 2, LABELS, (LABELS + 1) % CLASSES)[~IS_HELD_OUT]
    named = images.reidentify(FACES[shown], LABELS[~IS_HELD_OUT]).top_1
    is_right = shown == LABELS[~IS_HELD_OUT]
    expected = metrics.intervals.korn_graubard(is_right, LABELS[~IS_HELD_OUT], confidence=0.95)
    assert named == (0.5, *expected)


def test_the_page_and_the_summary_show_the_gallery(inverted):
    entries = examples.make_entries(leak=1.0)
    names = tuple(f"person {i}" for i in range(CLASSES))
    data = examples.make_data(class_names=names, num_classes=CLASSES)
    report = examples.make_report(*entries, data=data, unit="class")
    assert "Model inversion</h2>" not in reports.render(report)
    assert ("Model inversion", None) in {row[:2] for row in _annex.edpb(report)}
    shown = dataclasses.replace(report, inversion=inverted)
    html = reports.render(shown)
    section = html.split("<h2>Model inversion</h2>")[1].split("<h2>")[0]
    pictures = re.findall(
        r'<img class="face" src="(data:image/png;base64,[^"]+)" alt="([^"]+)"', section
    )
    assert len(pictures) == 3 * 10
    assert len({alt for _, alt in pictures[:10]}) == 10
    assert pictures[0][1] == f"class person {inverted.labels[0]}, training image"
    assert pictures[0][0] == inverted.originals[0]
    assert ("Model inversion", "Model inversion") in {row[:2] for row in _annex.edpb(shown)}
    for sentence in _inference_wording.inversion_sentences(shown):
        assert sentence.replace("\N{NO-BREAK SPACE}", " ") in reports.summary(shown)
    private = dataclasses.replace(shown, inversion=dataclasses.replace(inverted, originals=()))
    assert "since they are private" in reports.render(private)
