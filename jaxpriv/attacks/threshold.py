"""One threshold on a score for all records, chosen on shadow models.

In the shapes below `m` counts shadow models and `n` records.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxpriv.metrics import roc

_LARGEST = float(np.finfo(np.float64).max)


class Fitted(NamedTuple):
    """A threshold and what it reached where it was chosen.

    threshold: scores above it say member; finite.
    balanced_accuracy: on the shadows, so slightly optimistic.
    """

    threshold: float
    balanced_accuracy: float


def fit(
    shadow_scores: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: Bool[Array | np.ndarray, "m n"] | Integer[Array | np.ndarray, "m n"],
) -> Fitted:
    """Chooses the threshold with the best balanced accuracy over all shadows pooled.

    It lies halfway between the lowest score called member and the next score below. The target
    takes no part, so the attack's success on the target needs no correction for the choice.

    Args:
      shadow_scores: scores of each record under each shadow model, e.g. negative losses.
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      The threshold; at the highest score, where no threshold beats a coin.

    Raises:
      ValueError: for NaN, no members or no non-members, or unequal shapes.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 2, with the threshold learned on shadow models.
    """
    scores, is_member = np.asarray(shadow_scores), np.asarray(shadow_is_member)
    if scores.shape != is_member.shape:
        raise ValueError(
            f"Expected shadow scores and membership of one shape, "
            f"got {list(scores.shape)} and {list(is_member.shape)}."
        )
    curve = roc.roc_curve(scores.ravel(), is_member.ravel())
    gain = curve.tpr - curve.fpr
    best = int(np.argmax(gain))
    # The curve ends at gain 0, where it also starts, so a lower threshold always follows.
    lowest_in, below = np.clip(curve.thresholds[best : best + 2], -_LARGEST, _LARGEST)
    halfway = below / 2 + lowest_in / 2
    if best == 0 or not below < halfway < lowest_in:
        halfway = below
    return Fitted(float(halfway), float((1 + gain[best]) / 2))


def apply(fitted: Fitted, scores: Shaped[Array | np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Scores records by how far they lie above the threshold.

    Args:
      fitted: what `fit` returned.
      scores: the target's scores, of the kind that `fit` saw.

    Returns:
      score - threshold; > 0 says member. Infinite scores stay infinite.

    Raises:
      ValueError: for NaN.
    """
    values = np.asarray(scores).astype(np.float64)
    if np.isnan(values).any():
        raise ValueError(f"Expected scores without NaN, got {np.isnan(values).sum()} NaN.")
    with np.errstate(over="ignore"):
        return values - fitted.threshold
