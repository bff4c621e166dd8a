"""Distances of reconstructions equal slow loops, and the shares count what they say."""

import functools

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from skimage.metrics import structural_similarity

from jaxpriv.metrics import image, intervals
from tests import oracles


@pytest.fixture
def unchecked():
    """Calls the function as outside pytest, where only the library checks shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def photos(n, shape=(14, 12, 1), seed=0):
    """Images with flat parts, for which variances cancel."""
    pixels = np.random.default_rng(seed).random((n, *shape))
    pixels[:, :6] = pixels[:, :1, :1]
    return pixels


def reference_ssim(x, y):
    return structural_similarity(
        x,
        y,
        channel_axis=-1,
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )


DISTANCES = {
    "euclidean": lambda x, y: np.linalg.norm(x - y),
    "one_minus_ssim": lambda x, y: 1 - reference_ssim(x, y),
}


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_equals_that_of_scikit_image(channels):
    x, y = photos(2, (14, 12, channels))
    nearly = np.clip(x + 0.01 * y, 0, 1)
    ssim = oracles.quick_jit(image.ssim)
    for a, b in ((x, y), (x, nearly), (x, 1 - x), (x, x)):
        assert float(ssim(a, b)) == pytest.approx(reference_ssim(a, b), abs=1e-4)


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_distance_is_the_smallest_within_the_class(distance):
    training, images = photos(9), photos(4, seed=1)
    labels = np.array([0, 2, 2, 1])
    training_labels = np.array([0, 1, 2, 0, 1, 2, 2, 2, 2])
    results = [
        image.inversion_distance(
            images,
            labels,
            training=training,
            training_labels=training_labels,
            distance=distance,
            block_size=size,
        )
        for size in (None, 2)
    ]
    for i, label in enumerate(labels):
        candidates = np.flatnonzero(training_labels == label)
        expected = [DISTANCES[distance](images[i], training[j]) for j in candidates]
        for result in results:
            assert result.distance[i] == pytest.approx(min(expected), rel=1e-9)
            assert result.image[i] == candidates[np.argmin(expected)]


def test_equal_images_have_distance_0():
    training = photos(3).astype(np.float32)
    for distance in DISTANCES:
        result = check(distance=distance, images=training[:2], training=training)
        assert result.training_distance == pytest.approx([0, 0], abs=1e-12)


def check(distance="euclidean", **changes):
    """Two reconstructions of the classes 0 and 1."""
    arguments = {
        "images": photos(2, seed=3),
        "labels": np.array([0, 1]),
        "training": photos(3),
        "training_labels": np.array([0, 1, 1]),
        "held_out": photos(5, seed=2),
        "held_out_labels": np.array([1, 0, 0, 1, 1]),
        "confidence": 0.95,
    } | changes
    return image.membership_check(
        arguments.pop("images"), arguments.pop("labels"), distance=distance, **arguments
    )


def test_the_check_compares_with_held_out_images_of_the_class():
    training, held_out = photos(3), photos(5, seed=2)
    images = np.stack([training[0], held_out[0]]) + 0.01
    result = check(images=images)
    assert result.closer.tolist() == [True, False]
    assert result.training_distance[0] == pytest.approx(0.01 * np.sqrt(14 * 12))
    assert result.held_out_distance[1] == pytest.approx(0.01 * np.sqrt(14 * 12))
    assert result.share.value == 0.5
    # One of three images of class 0 was used for training, and two of five of class 1.
    assert result.expected == pytest.approx((1 / 3 + 2 / 5) / 2)
    tied = check(held_out=training, held_out_labels=np.array([0, 1, 1]))
    assert not tied.closer.any()


def test_unrelated_reconstructions_have_the_expected_share():
    rng = np.random.default_rng(0)
    k, people = 2000, np.arange(2000)
    training, held_out = rng.normal(size=(2 * k, 1, 1, 3)), rng.normal(size=(k, 1, 1, 3))
    arguments = {
        "training": training,
        "training_labels": np.tile(people, 2),
        "held_out": held_out,
        "held_out_labels": people,
    }
    unrelated = check(images=rng.normal(size=(k, 1, 1, 3)), labels=people, **arguments)
    assert unrelated.expected == pytest.approx(2 / 3)
    assert unrelated.share.lower < 2 / 3 < unrelated.share.upper
    memorised = check(images=training[:k] + 0.5, labels=people, **arguments)
    assert memorised.share.lower > 2 / 3


def test_reidentification_counts_the_label_among_the_largest_logits():
    logits = np.arange(7.0)[None] + np.zeros((4, 1))
    result = image.reidentification(logits, np.array([6, 2, 1, 0]), confidence=0.9)
    assert (result.top_1.value, result.top_5.value, result.num_classes) == (0.25, 0.5, 7)
    interval = intervals.clopper_pearson(2, 4, confidence=0.9)
    assert (result.top_5.lower, result.top_5.upper) == interval
    few = image.reidentification(jnp.eye(3), np.arange(3), confidence=0.9)
    assert few.top_1.value == 1
    assert few.top_5 is None
    equal = image.reidentification(np.zeros((3, 9)), np.array([0, 4, 8]), confidence=0.9)
    assert equal.top_5.value == 0


reidentify = functools.partial(image.reidentification, confidence=0.95)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check(images=photos(2) * np.nan), "Expected images without NaN"),
        (lambda: check(training=photos(3) / 0.0 - 1), "Expected finite training"),
        (lambda: check(labels=np.array([0, 4])), "Expected training images of class 4, got none"),
        (lambda: check(held_out_labels=np.array([1, 1, 1, 1, 1])), "Expected held_out images of"),
        (lambda: check(held_out=photos(5) * np.nan), "Expected held_out without NaN"),
        (lambda: check(labels=np.array([0])), "Expected equal lengths"),
        (lambda: check(training=photos(3, (9, 12, 1))), "Expected training of shape"),
        (lambda: check("one_minus_ssim", images=photos(2) + 1), r"Expected images with pixels in"),
        (lambda: check(confidence=1.0), "Expected 0 < confidence < 1"),
        (
            lambda: check("one_minus_ssim", **{k: photos(n, (8, 9, 1)) for k, n in SIZES.items()}),
            "at least 11 x 11 pixels",
        ),
        (lambda: image.ssim(255 * photos(1)[0], photos(1)[0]), r"pixels in \[0, 1\], got"),
        (lambda: image.ssim(photos(1)[0], photos(1)[0][1:]), "images of equal shapes"),
        (lambda: reidentify(np.eye(3), np.array([0, 1, 3])), "Expected labels in 0..2"),
        (lambda: reidentify(np.eye(3) * np.nan, np.arange(3)), "Expected logits without NaN"),
        (lambda: reidentify(np.eye(3), np.arange(2)), "Expected equal lengths"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_one_line(call, message):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


SIZES = {"images": 2, "training": 3, "held_out": 5}
