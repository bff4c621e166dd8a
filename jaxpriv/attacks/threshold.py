"""One threshold on a signal for all records, or one a class, chosen on shadow models.

In the shapes below `m` counts shadow models, `n` records and `c` classes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from jaxpriv import _check
from jaxpriv.attacks._shadows import IsMember
from jaxpriv.metrics import roc

_LARGEST = float(np.finfo(np.float64).max)


class Fitted(NamedTuple):
    """One threshold, or one for each class; signals above it indicate members.

    threshold: for all records; finite.
    balanced_accuracy: of that threshold on the shadow models, so slightly optimistic.
    by_class: from `fit_per_class`: the threshold of each class; None from `fit`.
    fell_back: the classes that were too small and take the threshold for all; None from `fit`.
    """

    threshold: float
    balanced_accuracy: float
    by_class: Float[np.ndarray, " c"] | None = None
    fell_back: Bool[np.ndarray, " c"] | None = None


def fit(shadow_signals: Shaped[Array | np.ndarray, "m n"], shadow_is_member: IsMember) -> Fitted:
    """Chooses the threshold with the best balanced accuracy over all shadow models pooled.

    It lies halfway between the lowest signal above it and the next one below. The target takes no
    part, so the attack's success on the target needs no correction for the choice.

    Args:
      shadow_signals: signal of each record under each shadow model, e.g. negative losses.
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      The threshold; at the highest signal, where no threshold beats a coin.

    Raises:
      ValueError: for NaN, no members or no non-members, or unequal shapes.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 2, with the threshold learned on shadow models.
    """
    signals = _check.real_array("shadow_signals", shadow_signals)
    is_member = np.asarray(shadow_is_member)
    if signals.shape != is_member.shape:
        raise ValueError(
            f"Expected shadow signals and membership of one shape, "
            f"got {list(signals.shape)} and {list(is_member.shape)}."
        )
    curve = roc.roc_curve(signals.ravel(), is_member.ravel())
    gain = curve.tpr - curve.fpr
    best = int(np.argmax(gain))
    # The curve ends at gain 0, where it also starts, so a lower threshold always follows.
    lowest_above, below = np.clip(curve.thresholds[best : best + 2], -_LARGEST, _LARGEST)
    halfway = below / 2 + lowest_above / 2
    if best == 0 or not below < halfway < lowest_above:
        halfway = below
    return Fitted(float(halfway), float((1 + gain[best]) / 2))


def fit_per_class(
    shadow_signals: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    num_classes: int,
    min_rows: int = 50,
) -> Fitted:
    """Chooses a threshold for each class, and one for all where a class has too few signals.

    Args:
      shadow_signals: signal of each record under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      labels: true classes; [n], [n, 1] or one-hot.
      num_classes: c.
      min_rows: a class with fewer member or fewer non-member signals, over all shadow models
        pooled, takes the threshold for all: with few signals the best threshold is noise.

    Returns:
      The thresholds, and which classes take the one for all.

    Raises:
      ValueError: for what `fit` refuses, labels out of range, unequal lengths, or min_rows < 1.

    References:
      Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021,
      section 3.2.2.
    """
    _check.positive_int(min_rows=min_rows)
    signals, is_member = np.asarray(shadow_signals), np.asarray(shadow_is_member)
    classes = _check.labels(labels, num_classes=num_classes)
    pooled = fit(signals, is_member)
    _check.same_length(records=signals.T, labels=classes)
    by_class, fell_back = np.full(num_classes, pooled.threshold), np.ones(num_classes, bool)
    for label in range(num_classes):
        of_class = classes == label
        members = int(is_member[:, of_class].sum())
        if min(members, is_member[:, of_class].size - members) >= min_rows:
            by_class[label] = fit(signals[:, of_class], is_member[:, of_class]).threshold
            fell_back[label] = False
    return pooled._replace(by_class=by_class, fell_back=fell_back)


def apply(
    fitted: Fitted,
    signals: Shaped[Array | np.ndarray, " n"],
    labels: Shaped[Array | np.ndarray, "n ..."] | None = None,
) -> Float[np.ndarray, " n"]:
    """Scores records by how far their signal lies above the threshold.

    Args:
      fitted: from `fit` or `fit_per_class`.
      signals: of the target, of the kind that the fit saw.
      labels: true classes; required by, and only by, a fit per class.

    Returns:
      signal - threshold; > 0 indicates a member. Infinite signals stay infinite.

    Raises:
      ValueError: for NaN, unequal lengths, labels out of range, or labels where the fit has one
        threshold (and none where it has one a class).
    """
    values = _check.scores(signals, name="signals")
    if (labels is None) != (fitted.by_class is None):
        wanted = "no labels" if fitted.by_class is None else "labels"
        raise ValueError(f"Expected {wanted} for a threshold fitted this way.")
    threshold = np.float64(fitted.threshold)
    if fitted.by_class is not None and labels is not None:
        classes = _check.labels(labels, num_classes=len(fitted.by_class))
        _check.same_length(signals=values, labels=classes)
        threshold = fitted.by_class[classes]
    with np.errstate(over="ignore"):
        return values - threshold
