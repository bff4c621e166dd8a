"""Label-only attacks: how firmly the target keeps to a record's label when the record is perturbed.

They need predicted labels alone, from a callable of any framework. In the shapes below `n` counts
records and `b` those of a batch.

Every record meets the same perturbations, so records are compared under equal conditions, and
their order and the batch size do not matter.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Integer, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _networks

Predict = Callable[[np.ndarray], Shaped[Array | np.ndarray, " b"]]
"""`predict(x [b, ...]) -> labels [b]`."""

Augment = Callable[[np.random.Generator, np.ndarray], Any]
"""`augment(rng, x [b, ...]) -> x`, perturbed."""

_MISCLASSIFIED = -1.0


def noise_robustness(
    rng: np.random.Generator,
    predict: Predict,
    x: Shaped[Array | np.ndarray, "n ..."],
    labels: Integer[Array | np.ndarray, " n"],
    *,
    scale: float,
    copies: int,
    batch_size: int = 1024,
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of copies with Gaussian noise that keep their label.

    For a linear classifier that is Phi(margin / scale), up to sampling: members lie farther from
    the boundary. A scale at which about half of the labels change tells most.

    Args:
      rng: advanced; equal generators give equal scores.
      predict: `predict(x [b, ...]) -> labels [b]`, sees float32 or float64.
      x: inputs of the records.
      labels: their true classes.
      scale: standard deviation of the noise, in the units of x; > 0.
      copies: noisy copies of each record.
      batch_size: records a call of `predict`.

    Returns:
      Shares in [0, 1]; -1 where the record itself is misclassified.

    Raises:
      ValueError: for NaN or infinite x, unequal lengths, a scale or a count out of range, or a
        `predict` that does not return one label a record.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, section 3; Li and
      Zhang, Membership Leakage in Label-Only Exposures, 2021.
    """
    _check.positive(scale=scale)
    inputs = _networks.finite_float64("x", x)
    inputs = inputs if np.asarray(x).dtype == np.float64 else inputs.astype(np.float32)

    def add_noise(rng, batch):
        return batch + (scale * rng.normal(size=batch.shape[1:])).astype(batch.dtype)

    return _share(rng, predict, add_noise, inputs, labels, copies=copies, batch_size=batch_size)


def flip_robustness(
    rng: np.random.Generator,
    predict: Predict,
    x: Shaped[Array | np.ndarray, "n ..."],
    labels: Integer[Array | np.ndarray, " n"],
    *,
    flip_prob: float,
    copies: int,
    batch_size: int = 1024,
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of copies with flipped bits that keep their label.

    Args:
      rng: advanced; equal generators give equal scores.
      predict: `predict(x [b, ...]) -> labels [b]`, sees the type of x.
      x: binary inputs of the records, 0 and 1 of any type.
      labels: their true classes.
      flip_prob: with which each bit of a copy flips, independently; in (0, 1).
      copies: flipped copies of each record.
      batch_size: records a call of `predict`.

    Returns:
      Shares in [0, 1]; -1 where the record itself is misclassified.

    Raises:
      ValueError: for x other than 0 and 1, unequal lengths, a probability or a count out of
        range, or a `predict` that does not return one label a record.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, on binary features.
    """
    _check.open_unit(flip_prob=flip_prob)
    inputs = np.asarray(x)
    if not ((inputs == 0) | (inputs == 1)).all():
        raise ValueError("Expected x to hold only 0 and 1, got other numbers.")

    def flip(rng, batch):
        flipped = rng.random(batch.shape[1:]) < flip_prob
        return np.where(flipped, batch == 0, batch != 0).astype(batch.dtype)

    return _share(rng, predict, flip, inputs, labels, copies=copies, batch_size=batch_size)


def augmentation_robustness(
    rng: np.random.Generator,
    predict: Predict,
    x: Shaped[Array | np.ndarray, "n ..."],
    labels: Integer[Array | np.ndarray, " n"],
    *,
    augment: Augment,
    copies: int,
    batch_size: int = 1024,
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of augmented copies that keep their label.

    Augmentations that the target was trained with tell most.

    Args:
      rng: advanced; equal generators give equal scores.
      predict: `predict(x [b, ...]) -> labels [b]`, sees what `augment` returns.
      x: inputs of the records.
      labels: their true classes.
      augment: `augment(rng, x [b, ...]) -> x`. For one copy every batch gets an equal generator:
        draw one transformation and apply it to all rows, e.g. a random shift.
      copies: augmented copies of each record.
      batch_size: records a call of `predict`.

    Returns:
      Shares in [0, 1]; -1 where the record itself is misclassified.

    Raises:
      ValueError: for NaN in x, unequal lengths, a count out of range, or a `predict` that does
        not return one label a record.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, section 3.2.
    """
    _networks.as_float64("x", x)
    inputs = np.asarray(x)
    return _share(rng, predict, augment, inputs, labels, copies=copies, batch_size=batch_size)


def _share(
    rng: np.random.Generator,
    predict: Predict,
    perturb: Augment,
    x: np.ndarray,
    labels: Integer[Array | np.ndarray, " n"],
    *,
    copies: int,
    batch_size: int,
) -> Float[np.ndarray, " n"]:
    """The share of copies that keep the label; misclassified records cost one query each."""
    _check.positive_int(copies=copies, batch_size=batch_size)
    truth = np.asarray(labels)
    _check.same_length(x=x, labels=truth)

    def keeps(rows, seed):
        predicted = predict(
            x[rows] if seed is None else perturb(np.random.default_rng(seed), x[rows])
        )
        found = np.asarray(predicted)
        if found.shape != rows.shape:
            raise ValueError(
                f"Expected predict to return {len(rows)} labels, got shape {list(found.shape)}."
            )
        return found == truth[rows]

    def all_keep(rows, seed):
        starts = range(0, len(rows), batch_size)
        parts = [keeps(rows[i : i + batch_size], seed) for i in starts]
        return np.concatenate(parts) if parts else np.zeros(0, bool)

    every = np.arange(len(truth))
    scores = np.full(len(truth), _MISCLASSIFIED)
    correct = every[all_keep(every, None)]
    seeds = rng.integers(2**63, size=copies)
    scores[correct] = sum(all_keep(correct, seed).astype(np.float64) for seed in seeds) / copies
    return scores
