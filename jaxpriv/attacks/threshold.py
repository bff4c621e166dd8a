"""One threshold on a score for all records, or one a class, chosen on shadow models.

In the shapes below `m` counts shadow models, `n` records and `c` classes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _shadows
from jaxpriv.metrics import roc
from jaxpriv.metrics import scores as membership_scores

_LARGEST = float(np.finfo(np.float64).max)


class Fitted(NamedTuple):
    """A threshold and what it reached where it was chosen.

    threshold: scores above it say member; finite.
    balanced_accuracy: on the shadows, so slightly optimistic.
    """

    threshold: float
    balanced_accuracy: float


class FittedPerClass(NamedTuple):
    """A threshold for each class.

    thresholds: the class's own, or the one for all records.
    has_own: False where the class was too small and takes the one for all.
    whole: the threshold for all records.
    """

    thresholds: Float[np.ndarray, " c"]
    has_own: Bool[np.ndarray, " c"]
    whole: Fitted


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
    return _above(scores, fitted.threshold)


def fit_per_class(
    shadow_scores: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: Bool[Array | np.ndarray, "m n"] | Integer[Array | np.ndarray, "m n"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    num_classes: int,
    least: int = 50,
) -> FittedPerClass:
    """Chooses a threshold for each class, and one for all where a class has too few scores.

    Args:
      shadow_scores: scores of each record under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      labels: true classes, in any form that `metrics.scores.labels_of` takes.
      num_classes: c.
      least: a class with fewer members or fewer non-members, over all shadows pooled, takes the
        threshold for all: with few scores the best threshold is noise.

    Returns:
      The thresholds, and which of them are the classes' own.

    Raises:
      ValueError: for what `fit` and `labels_of` refuse, unequal lengths, or least < 1.

    References:
      Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021,
      section 3.2.2.
    """
    _check.positive_int(least=least)
    scores, inside = np.asarray(shadow_scores), np.asarray(shadow_is_member)
    classes = membership_scores.labels_of(labels, num_classes=num_classes)
    whole = fit(scores, inside)
    _check.same_length(records=scores.T, labels=classes)
    thresholds, has_own = np.full(num_classes, whole.threshold), np.zeros(num_classes, bool)
    for label in range(num_classes):
        mine = classes == label
        members = int(inside[:, mine].sum())
        if min(members, inside[:, mine].size - members) >= least:
            thresholds[label] = fit(scores[:, mine], inside[:, mine]).threshold
            has_own[label] = True
    return FittedPerClass(thresholds, has_own, whole)


def apply_per_class(
    fitted: FittedPerClass,
    scores: Shaped[Array | np.ndarray, " n"],
    labels: Shaped[Array | np.ndarray, "n ..."],
) -> Float[np.ndarray, " n"]:
    """Scores records by how far they lie above the threshold of their class.

    Args:
      fitted: what `fit_per_class` returned.
      scores: the target's scores, of the kind that `fit_per_class` saw.
      labels: true classes, in any form that `metrics.scores.labels_of` takes.

    Returns:
      score - threshold of the class; > 0 says member. Infinite scores stay infinite.

    Raises:
      ValueError: for NaN, unequal lengths, or labels that `labels_of` refuses.
    """
    classes = membership_scores.labels_of(labels, num_classes=len(fitted.thresholds))
    _check.same_length(scores=scores, labels=classes)
    return _above(scores, fitted.thresholds[classes])


def _above(
    scores: Shaped[Array | np.ndarray, " n"], threshold: Float[np.ndarray, " n"] | float
) -> Float[np.ndarray, " n"]:
    values = _shadows.without_nan("scores", scores).astype(np.float64)
    with np.errstate(over="ignore"):
        return values - threshold
