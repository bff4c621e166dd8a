"""Label-only attacks: score records by the stability of the predicted label under perturbations.

They need only predicted labels, from a callable of any framework. All records have the same
perturbations, so scores do not depend on the order of the records or the batch size. In the
shapes below `n` counts records and `b` the records of a batch.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxpriv import _check

__all__ = ["Perturb", "PredictLabels", "bit_flips", "gaussian_noise", "robustness"]

PredictLabels = Callable[[np.ndarray], Shaped[Array | np.ndarray, " b"]]
"""`predict(x [b, ...]) -> labels [b]`."""

Perturb = Callable[[np.random.Generator, np.ndarray], Shaped[Array | np.ndarray, "b ..."]]
"""`perturb(rng, x [b, ...]) -> x`. All batches of a copy have equal generators, and a perturbation
is drawn once and applied to all rows."""

_MISCLASSIFIED = -1.0
"""Score of a record that is misclassified without perturbation."""


def robustness(
    rng: np.random.Generator,
    predict: PredictLabels,
    x: Shaped[Array | np.ndarray, "n ..."],
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    perturb: Perturb,
    copies: int,
    batch_size: int = 1024,
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of perturbed copies that are classified correctly.

    Args:
      rng: random generator.
      predict: `predict(x [b, ...]) -> labels [b]`, the predicted classes.
      x: inputs of the records.
      labels: true classes; [n], [n, 1] or one-hot.
      perturb: `gaussian_noise(std=...)`, `bit_flips(prob=...)`, or an augmentation that the
        target was trained with, such as a random shift of all rows.
      copies: number of perturbed copies of each record.
      batch_size: number of records in a call of `predict`.

    Returns:
      Shares in [0, 1], higher = more likely a member; -1 if the record itself is misclassified.

    Raises:
      ValueError: for NaN in x, labels that are not classes, unequal lengths, a count out of
        range, or a `predict` that does not return one class a record.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, section 3; Li and
      Zhang, Membership Leakage in Label-Only Exposures, 2021.

    Example:
      >>> predict = lambda x: (x[:, 0] > 0).astype(int)
      >>> x, labels = np.array([[0.2], [2.0], [-1.0]]), np.array([1, 1, 1])
      >>> rng = np.random.default_rng(0)
      >>> robustness(rng, predict, x, labels, perturb=gaussian_noise(std=0.5), copies=200).round(1)
      array([ 0.7,  1. , -1. ])
    """
    _check.positive_int(copies=copies, batch_size=batch_size)
    inputs = _check.real_array("x", x)
    truth = _check.labels(labels, num_classes=None)
    _check.same_length(x=inputs, labels=truth)

    def is_correct(rows: np.ndarray, seed: int | None) -> np.ndarray:
        batch = inputs[rows]
        if seed is not None:
            batch = np.asarray(perturb(np.random.default_rng(seed), batch))
        predicted = np.asarray(predict(batch))
        if predicted.shape != rows.shape:
            raise ValueError(
                f"Expected predict to return {len(rows)} labels, got shape {list(predicted.shape)}."
            )
        return _check.labels(predicted, num_classes=None, name="predicted labels") == truth[rows]

    def are_correct(rows: np.ndarray, seed: int | None) -> np.ndarray:
        starts = range(0, len(rows), batch_size)
        batches = [is_correct(rows[i : i + batch_size], seed) for i in starts]
        return np.concatenate(batches) if batches else np.zeros(0, bool)

    all_rows = np.arange(len(truth))
    scores = np.full(len(truth), _MISCLASSIFIED)
    correct = all_rows[are_correct(all_rows, None)]
    seeds = rng.integers(2**63, size=copies).tolist()
    totals = sum(are_correct(correct, seed).astype(np.float64) for seed in seeds)
    scores[correct] = totals / copies
    return scores


def gaussian_noise(*, std: float) -> Perturb:
    """Makes a perturbation that adds Gaussian noise.

    For a linear classifier the expected share of copies that keep their label is Phi(margin / std),
    and members tend to have larger margins. The attack is strongest for a std at which about half
    of the labels change.

    Args:
      std: standard deviation, in the units of x; > 0.

    Returns:
      A perturbation for `robustness`. It returns float64 for float64, otherwise float32.

    Raises:
      ValueError: if std is not positive.

    Example:
      >>> perturb = gaussian_noise(std=0.5)
      >>> x = perturb(np.random.default_rng(0), np.zeros((2, 1000)))
      >>> round(float(x[0].std()), 1), bool((x[0] == x[1]).all())  # all rows share the noise
      (0.5, True)
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
      prob: probability that a bit flips, independently of the others; in (0, 1).

    Returns:
      A perturbation for `robustness`. It raises ValueError for inputs other than 0 and 1.

    Raises:
      ValueError: if prob is not in (0, 1).

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, on binary features.

    Example:
      >>> perturb = bit_flips(prob=0.2)
      >>> x = perturb(np.random.default_rng(0), np.zeros((1, 1000), int))
      >>> round(float(x.mean()), 1)
      0.2
    """
    _check.open_unit(prob=prob)

    def perturb(rng: np.random.Generator, batch: np.ndarray) -> np.ndarray:
        is_one = _check.membership(batch, name="x")
        is_flipped = rng.random(batch.shape[1:]) < prob
        return (is_one ^ is_flipped).astype(batch.dtype)

    return perturb
