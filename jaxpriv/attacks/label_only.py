"""Label-only attacks: how firmly the target keeps to a record's label when the record is perturbed.

They need predicted labels alone, from a callable of any framework. In the shapes below `n` counts
records and `b` those of a batch.

Every record meets the same perturbations, so records are compared under equal conditions, and
their order and the batch size do not matter.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxpriv import _check

Predict = Callable[[np.ndarray], Shaped[Array | np.ndarray, " b"]]
"""`predict(x [b, ...]) -> labels [b]`."""

Perturb = Callable[[np.random.Generator, np.ndarray], Shaped[Array | np.ndarray, "b ..."]]
"""`perturb(rng, x [b, ...]) -> x`. For one copy every batch gets an equal generator, so that one
perturbation is drawn and applied to all rows."""

_MISCLASSIFIED = -1.0


def robustness(
    rng: np.random.Generator,
    predict: Predict,
    x: Shaped[Array | np.ndarray, "n ..."],
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    perturb: Perturb,
    copies: int,
    batch_size: int = 1024,
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of perturbed copies that keep their label.

    Args:
      rng: advanced; equal generators give equal scores.
      predict: `predict(x [b, ...]) -> labels [b]`; sees x and what `perturb` returns.
      x: inputs of the records.
      labels: their true classes; [n], [n, 1] or one-hot.
      perturb: `gaussian_noise(std=...)`, `bit_flips(prob=...)`, or an augmentation that the
        target was trained with, such as a random shift of all rows.
      copies: perturbed copies of each record.
      batch_size: records a call of `predict`.

    Returns:
      Shares in [0, 1]; -1 where the record itself is misclassified.

    Raises:
      ValueError: for NaN in x, labels that are not classes, unequal lengths, a count out of
        range, or a `predict` that does not return one class a record.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, section 3; Li and
      Zhang, Membership Leakage in Label-Only Exposures, 2021.
    """
    _check.positive_int(copies=copies, batch_size=batch_size)
    inputs = _check.real_array("x", x)
    truth = _check.labels(labels, num_classes=None)
    _check.same_length(x=inputs, labels=truth)

    def keeps(rows: np.ndarray, seed: int | None) -> np.ndarray:
        batch = inputs[rows]
        if seed is not None:
            batch = np.asarray(perturb(np.random.default_rng(seed), batch))
        predicted = np.asarray(predict(batch))
        if predicted.shape != rows.shape:
            raise ValueError(
                f"Expected predict to return {len(rows)} labels, got shape {list(predicted.shape)}."
            )
        return _check.labels(predicted, num_classes=None, name="predicted labels") == truth[rows]

    def all_keep(rows: np.ndarray, seed: int | None) -> np.ndarray:
        starts = range(0, len(rows), batch_size)
        parts = [keeps(rows[i : i + batch_size], seed) for i in starts]
        return np.concatenate(parts) if parts else np.zeros(0, bool)

    every = np.arange(len(truth))
    scores = np.full(len(truth), _MISCLASSIFIED)
    correct = every[all_keep(every, None)]
    seeds = rng.integers(2**63, size=copies).tolist()
    scores[correct] = sum(all_keep(correct, seed).astype(np.float64) for seed in seeds) / copies
    return scores


def gaussian_noise(*, std: float) -> Perturb:
    """Makes a perturbation that adds Gaussian noise.

    For a linear classifier the share of copies that keep their label is Phi(margin / std), up to
    sampling: members lie farther from the boundary. A std at which about half of the labels change
    separates best.

    Args:
      std: standard deviation, in the units of x; > 0.

    Returns:
      For `robustness`; its results are float64 for float64, else float32.

    Raises:
      ValueError: if std is not positive.
    """
    _check.positive(std=std)

    def perturb(rng: np.random.Generator, batch: np.ndarray) -> np.ndarray:
        noise = std * rng.normal(size=batch.shape[1:])
        dtype = np.float64 if batch.dtype == np.float64 else np.float32
        return batch.astype(dtype) + noise.astype(dtype)

    return perturb


def bit_flips(*, prob: float) -> Perturb:
    """Makes a perturbation that flips the bits of binary records.

    Args:
      prob: with which each bit flips, independently; in (0, 1).

    Returns:
      For `robustness`; it raises ValueError for inputs other than 0 and 1.

    Raises:
      ValueError: if prob is not in (0, 1).

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, on binary features.
    """
    _check.open_unit(prob=prob)

    def perturb(rng: np.random.Generator, batch: np.ndarray) -> np.ndarray:
        is_one = _check.membership(batch, name="x")
        is_flipped = rng.random(batch.shape[1:]) < prob
        return (is_one ^ is_flipped).astype(batch.dtype)

    return perturb
