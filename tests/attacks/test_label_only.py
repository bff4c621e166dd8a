"""Label-only attacks against a linear classifier, where distances and shares are known exactly."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import metrics
from jaxpriv.attacks import label_only
from tests import oracles

WEIGHTS = np.array([3.0, -4.0])


def linear(x):
    """Class 1 where w.x > 0; |w.x| / |w| is the distance to the boundary."""
    return (np.asarray(x, np.float64) @ WEIGHTS > 0).astype(int)


def records(seed, n, *, width=2):
    x = np.random.default_rng(seed).normal(size=(n, width))
    return x, linear(x[:, :2])


def noise(seed, x, labels, *, predict=linear, scale=0.7, copies=100, **more):
    perturb = label_only.gaussian_noise(std=scale)
    more |= {"perturb": perturb, "copies": copies}
    return label_only.robustness(np.random.default_rng(seed), predict, x, labels, **more)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_noise_robustness_is_phi_of_margin_over_scale(scale):
    x, labels = records(0, 40)
    copies = 4000
    scores = noise(1, x, labels, scale=scale, copies=copies)
    margins = np.abs(x @ WEIGHTS) / 5
    exact = stats.norm.cdf(margins / scale)
    room = 5 * np.sqrt(exact * (1 - exact) / copies) + 5 / copies
    assert (np.abs(scores - exact) < room).all()
    wrong = stats.norm.cdf(margins / (1.5 * scale))
    assert (np.abs(scores - wrong) > room).sum() > 20  # and it can fail


def test_the_farther_from_the_boundary_the_higher():
    x, labels = records(2, 300)
    margins = np.abs(x @ WEIGHTS)
    scores = noise(3, x, labels)
    # Equal noise for all: shares are monotone in the margin on either side of the boundary.
    for side in (0, 1):
        order = np.argsort(margins[labels == side])
        assert (np.diff(scores[labels == side][order]) >= 0).all()


def test_flip_robustness_is_the_exact_binomial_share():
    """A vote of 9 bits: the label stays while at most `spare` net bits turn."""
    x = (np.arange(10)[:, None] > np.arange(9)).astype(np.int8)
    vote = lambda bits: (np.asarray(bits, int).sum(axis=1) >= 5).astype(int)  # noqa: E731
    copies, p = 4000, 0.2
    for bits in (x, x.astype(bool), x.astype(np.float32)):
        flips = label_only.bit_flips(prob=p)
        scores = label_only.robustness(
            np.random.default_rng(4), vote, bits, vote(x), perturb=flips, copies=copies
        )
        for ones, share in enumerate(scores):
            lost, won = stats.binom(ones, p), stats.binom(9 - ones, p)
            high = sum(
                lost.pmf(a) * won.pmf(b)
                for a in range(ones + 1)
                for b in range(10 - ones)
                if ones - a + b >= 5
            )
            exact = high if ones >= 5 else 1 - high
            assert abs(share - exact) < 5 * math.sqrt(exact * (1 - exact) / copies) + 1e-3


def test_augmentation_robustness_counts_the_shifts_that_keep_the_label():
    """Images of one row: the class is the lit position's half; a shift by 0..3 moves it."""
    x = np.eye(8)[:, None, :]
    half = lambda images: np.asarray(images)[:, 0].argmax(axis=1) // 4  # noqa: E731
    shift = lambda rng, batch: np.roll(batch, rng.integers(4), axis=-1)  # noqa: E731
    scores = label_only.robustness(
        np.random.default_rng(5), half, x, half(x), perturb=shift, copies=4000, batch_size=3
    )
    exact = np.tile([1, 0.75, 0.5, 0.25], 2)
    assert (np.abs(scores - exact) <= 5 * np.sqrt(exact * (1 - exact) / 4000)).all()


def test_misclassified_records_score_lowest_and_are_asked_once():
    asked = []

    def counting(x):
        asked.append(len(x))
        return linear(x)

    x, labels = records(6, 50)
    wrong = np.arange(50) < 20
    scores = noise(7, x, np.where(wrong, 1 - labels, labels), predict=counting, copies=10)
    assert (scores[wrong] == -1).all()
    assert (scores[~wrong] >= 0).all()
    assert sum(asked) == 50 + 10 * 30
    assert (noise(7, x, 1 - labels) == -1).all()


def test_members_that_lie_deeper_are_found():
    """The AUC is that of the distances themselves, as shares are monotone in them."""
    x, labels = records(8, 2000)
    is_member = np.random.default_rng(9).random(2000) < 0.5
    x[is_member] *= 2
    distance = metrics.membership(np.abs(x @ WEIGHTS), is_member).auc
    scores = metrics.membership(noise(10, x, labels, scale=1.0), is_member).auc
    assert distance > 0.65
    assert scores == pytest.approx(distance, abs=0.02)


def test_a_constant_classifier_is_no_evidence():
    x, _ = records(11, 40)
    scores = noise(12, x, np.zeros(40, int), predict=lambda x: np.zeros(len(x), int))
    assert (scores == 1).all()
    assert metrics.membership(scores, np.arange(40) % 2).auc == 0.5


def test_neither_order_nor_batch_size_matters_and_equal_seeds_agree():
    x, labels = records(13, 101)
    scores = noise(14, x, labels)
    assert (scores == noise(14, x, labels, batch_size=7)).all()
    order = np.random.default_rng(0).permutation(101)
    assert (scores[order] == noise(14, x[order], labels[order])).all()
    assert not (scores == noise(15, x, labels)).all()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_perturbed_small_floats_reach_predict_as_float32(dtype):
    seen = []

    def predict(x):
        seen.append(x.dtype)
        return jnp.asarray(linear(x))

    x, _ = records(16, 20)
    small = jnp.asarray(x, dtype)
    labels = linear(np.asarray(small).astype(np.float64))
    scores = noise(17, small, jnp.asarray(labels), predict=predict)
    exact = noise(17, np.asarray(small).astype(np.float32), labels)
    assert (scores == exact).all()
    assert set(seen[1:]) == {np.dtype(np.float32)}


GOOD = {
    "rng": np.random.default_rng(0),
    "predict": linear,
    "x": np.zeros((4, 2)),
    "labels": np.zeros(4, int),
    "perturb": label_only.gaussian_noise(std=1.0),
    "copies": 2,
}
BAD = {
    "nan": ({"x": np.full((4, 2), np.nan)}, "x without NaN, got 8 NaN"),
    "length": ({"labels": np.zeros(3, int)}, "equal lengths"),
    "copies": ({"copies": 0}, "copies >= 1, got copies=0"),
    "logits": ({"predict": lambda x: x}, r"predict to return 4 labels, got shape \[4, 2\]"),
    "batch": ({"batch_size": 0}, "batch_size >= 1"),
    "text labels": ({"labels": np.array(list("abab"))}, "class indices in labels, got text"),
    "fractions": ({"labels": np.array([0, 1.7, 0, 0])}, "whole numbers in labels, got 1.7"),
    "text predictions": (
        {"predict": lambda x: np.array(["cat"] * len(x))},
        "class indices in predicted labels, got text",
    ),
    "shares": ({"predict": lambda x: np.full(len(x), 0.5)}, "whole numbers in predicted labels"),
    "flips": (
        {"x": np.full((4, 2), 0.5), "perturb": label_only.bit_flips(prob=0.1)},
        "only 0 and 1 in x, got 0.5",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_in_one_line(case):
    change, message = BAD[case]
    with pytest.raises(ValueError, match=rf"^Expected {message}[^\n]*\.$"):
        oracles.unhooked(label_only.robustness)(**(GOOD | change))


def test_perturbations_out_of_range_are_refused():
    with pytest.raises(ValueError, match="Expected 0 < prob < 1, got prob=1"):
        label_only.bit_flips(prob=1.0)
    with pytest.raises(ValueError, match="Expected std > 0, got std=0"):
        label_only.gaussian_noise(std=0.0)
