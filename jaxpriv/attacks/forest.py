"""The forest attack: a random forest that learns from records of revealed membership.

In the shapes below `n` counts records and `c` classes.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _networks

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

__all__ = ["Fitted", "apply", "fit"]

_TREES, _MIN_LEAF = 300, 5


class Fitted(NamedTuple):
    """A fitted forest and the number of classes of the attacked model."""

    forest: "RandomForestClassifier"
    num_classes: int


def fit(
    rng: np.random.Generator,
    probabilities: Shaped[Array | np.ndarray, "n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    is_member: Shaped[Array | np.ndarray, " n"],
) -> Fitted:
    """Fits a forest to the probabilities of records whose membership the attacker has.

    Its inputs are the probabilities, the probability of the label, and the label. Members and
    non-members have equal weight.

    Args:
      rng: random generator.
      probabilities: softmax outputs of the target.
      labels: true classes; [n], [n, 1] or one-hot.
      is_member: whether the target was trained on each record.

    Returns:
      The fitted attack, for `apply`.

    Raises:
      ValueError: for NaN or infinite probabilities, labels out of range, unequal lengths, or
        members or non-members only.

    References:
      Salem et al., ML-Leaks, 2019, who compare classifiers of confidence vectors; Breiman, Random
      Forests, 2001.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> is_member, labels = np.arange(200) < 100, np.zeros(200, int)
      >>> p = np.where(is_member, 0.9, 0.6) + 0.05 * rng.random(200)
      >>> fitted = fit(rng, np.stack([p, 1 - p], axis=1), labels, is_member)
      >>> scores = apply(fitted, np.array([[0.93, 0.07], [0.62, 0.38]]), np.array([0, 0]))
      >>> bool(scores[0] > 0 > scores[1])
      True
    """
    from sklearn.ensemble import RandomForestClassifier

    truth = _check.membership(np.asarray(is_member), name="is_member")
    num_classes = np.shape(probabilities)[-1]
    inputs = _inputs(probabilities, labels, num_classes)
    _check.same_length(probabilities=inputs, is_member=truth)
    _check.both_sides(truth)
    forest = RandomForestClassifier(
        _TREES,
        min_samples_leaf=_MIN_LEAF,
        class_weight="balanced",
        random_state=int(rng.integers(2**31)),
    )
    return Fitted(forest.fit(inputs, truth), num_classes)


def apply(
    fitted: Fitted,
    probabilities: Shaped[Array | np.ndarray, "n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
) -> Float[np.ndarray, " n"]:
    """Scores records by the log odds of membership that the forest predicts.

    Args:
      fitted: fitted attack, from `fit`.
      probabilities: softmax outputs of the target.
      labels: true classes.

    Returns:
      Log odds at even priors, nats; > 0 indicates a member. Finite.

    Raises:
      ValueError: for NaN or infinite probabilities, labels out of range, or unequal lengths.

    Example:
      See `fit`.

      >>> rng = np.random.default_rng(0)
      >>> p = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
      >>> fitted = fit(rng, p, np.zeros(20, int), np.arange(20) < 10)
      >>> apply(fitted, p[[0, 10]], np.zeros(2, int)).shape
      (2,)
    """
    inputs = _inputs(probabilities, labels, fitted.num_classes)
    share = np.asarray(fitted.forest.predict_proba(inputs))[:, 1]
    limited = np.clip(share, 0.5 / _TREES, 1 - 0.5 / _TREES)
    return np.log(limited) - np.log1p(-limited)


def _inputs(
    probabilities: Shaped[Array | np.ndarray, "n c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    num_classes: int,
) -> Float[np.ndarray, "n d"]:
    p = _networks.finite_float64("probabilities", probabilities)
    if p.ndim != 2 or p.shape[1] != num_classes:
        raise ValueError(f"Expected probabilities [n, {num_classes}], got shape {list(p.shape)}.")
    classes = _check.labels(labels, num_classes=num_classes)
    _check.same_length(probabilities=p, labels=classes)
    of_label = np.take_along_axis(p, classes[:, None].astype(np.int64), axis=1)
    return np.concatenate([p, of_label, classes[:, None]], axis=1)
