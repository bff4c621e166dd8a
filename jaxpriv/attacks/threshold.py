"""Threshold attack: a threshold on a signal, global or per class, chosen on shadow models.

In the shapes below `m` counts shadow models, `n` records and `c` classes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from jaxpriv import _check
from jaxpriv.attacks._shadows import IsMember
from jaxpriv.metrics import roc

__all__ = ["Fitted", "apply", "fit", "fit_per_class"]

_LARGEST = float(np.finfo(np.float64).max)


class Fitted(NamedTuple):
    """Global threshold, and those of the classes; signals above it indicate members.

    threshold: global threshold; finite.
    balanced_accuracy: accuracy of the global threshold on the shadow models, so slightly
      optimistic.
    by_class: threshold of each class, from `fit_per_class`; None from `fit`.
    fell_back: classes with too few signals, which use the global threshold; None from `fit`.
    """

    threshold: float
    balanced_accuracy: float
    by_class: Float[np.ndarray, " c"] | None = None
    fell_back: Bool[np.ndarray, " c"] | None = None


def fit(shadow_signals: Shaped[Array | np.ndarray, "m n"], shadow_is_member: IsMember) -> Fitted:
    """Chooses the threshold with the best balanced accuracy over all shadow models pooled.

    The threshold lies halfway between two neighbouring signals. The target is not used, so the
    success of the attack on the target needs no correction for the choice.

    Args:
      shadow_signals: signal of each record under each shadow model, such as negative losses.
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      The threshold; the highest signal if no threshold is better than guessing.

    Raises:
      ValueError: for NaN, no members or no non-members, or unequal shapes.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 2, with the threshold learned on shadow models.

    Example:
      >>> shadow_signals = np.array([[-0.1, -2.0, -0.3], [-3.0, -0.2, -1.0]])
      >>> is_member = np.array([[True, False, True], [False, True, False]])
      >>> fitted = fit(shadow_signals, is_member)
      >>> round(fitted.threshold, 2), fitted.balanced_accuracy
      (-0.65, 1.0)
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
    """Chooses a threshold for each class with enough signals.

    Args:
      shadow_signals: signal of each record under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      labels: true classes; [n], [n, 1] or one-hot.
      num_classes: number of classes, c.
      min_rows: minimum number of member signals and of non-member signals of a class, over all
        shadow models; a class with fewer uses the global threshold.

    Returns:
      The thresholds, and which classes use the global one.

    Raises:
      ValueError: for what `fit` refuses, labels out of range, unequal lengths, or min_rows < 1.

    References:
      Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021,
      section 3.2.2.

    Example:
      >>> shadow_signals = np.array([[-0.1, -2.0, -0.3], [-3.0, -0.2, -1.0]])
      >>> is_member = np.array([[True, False, True], [False, True, False]])
      >>> labels = np.array([0, 1, 0])
      >>> fitted = fit_per_class(shadow_signals, is_member, labels, num_classes=2, min_rows=1)
      >>> fitted.by_class.round(2)
      array([-0.65, -1.1 ])
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
      fitted: fitted attack, from `fit` or `fit_per_class`.
      signals: signal of each record under the target, the same signal as in the fit.
      labels: true classes; required after `fit_per_class`, refused after `fit`.

    Returns:
      signal - threshold; > 0 indicates a member. Infinite signals remain infinite, except at a
      threshold that stands for the same infinity.

    Raises:
      ValueError: for NaN, unequal lengths, labels out of range, or labels that are missing or
        refused.

    Example:
      >>> apply(Fitted(threshold=-0.75, balanced_accuracy=1.0), np.array([-0.25, -1.0]))
      array([ 0.5 , -0.25])
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
        result = values - threshold
    # `fit` clips its threshold, so infinity may lie at it rather than above it.
    at_threshold = np.isinf(values) & (np.clip(values, -_LARGEST, _LARGEST) == threshold)
    return np.where(at_threshold, 0.0, result)
