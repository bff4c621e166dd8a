"""Blind attack: predicts membership from the raw inputs, without the target.

It checks the setting of the other attacks. If it succeeds, members and non-members come from
different distributions, and the success of an attack on the model does not imply memorisation.
In the shapes below `n` counts records.
"""

from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _networks

__all__ = ["score_records"]

_NUM_DIRECTIONS = 20
"""Number of principal directions whose squares and products are candidate features."""

_NUM_PRODUCTS = 100
"""Number of squares and products used: those that differ most between the training sides."""

_MIN_VARIANCE = 1e-10
"""Variance of a direction, as a share of the largest, up to which it is that of rounding."""

_INVERSE_PENALTY = 1e-2
"""Inverse strength of the L2 penalty: strong, since features may outnumber records."""


def score_records(
    rng: np.random.Generator,
    x: Shaped[Array | np.ndarray, "n ..."],
    is_member: Bool[Array | np.ndarray, " n"] | Integer[Array | np.ndarray, " n"],
    *,
    folds: int = 5,
    group: Shaped[Array | np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """Scores each record by a classifier that is trained on the other folds.

    Logistic regression on the standardised inputs and on 100 squares and products: those of the
    inputs and their 20 principal directions that differ most between members and non-members. It
    detects shifts of means, of variances and of the main correlations. All steps are fitted on
    the training folds. An AUC clearly above 1/2 proves that the two sides differ in distribution;
    an AUC near 1/2 does not prove that they do not.

    Args:
      rng: random generator.
      x: inputs of members and non-members, of any shape; flattened.
      is_member: which records the target was trained on.
      folds: number of stratified folds; >= 2.
      group: group (person, household) of each record if groups were drawn as members. A group is
        kept in one fold, or the classifier would recognise its other records.

    Returns:
      Out-of-fold log odds at even priors; higher = more likely a member.

    Raises:
      ValueError: for NaN or infinite x, unequal lengths, membership other than 0 and 1, fewer
        members, non-members or groups than folds, or groups of which the training folds have
        members or non-members only.

    References:
      Das, Zhang and Tramèr, Blind Baselines Beat Membership Inference Attacks for Foundation
      Models, 2024.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> is_member = np.arange(100) < 50
      >>> x = rng.normal(size=(100, 3)) + 3.0 * is_member[:, None]  # a shifted distribution
      >>> scores = score_records(rng, x, is_member)
      >>> bool(np.median(scores[is_member]) > np.median(scores[~is_member]))
      True
    """
    from sklearn import model_selection

    inputs = _networks.finite_float64("x", x)
    truth = _check.membership(_check.scores(is_member, name="is_member"))
    _check.positive_int(folds=folds)
    _check.same_length(x=inputs, is_member=truth)
    num_in, num_out = int(truth.sum()), int((~truth).sum())
    if not 2 <= folds <= min(num_in, num_out):
        raise ValueError(
            f"Expected 2 <= folds <= members and non-members, got folds={folds}, {num_in} and "
            f"{num_out}."
        )
    if group is not None:
        _check.same_length(x=inputs, group=group)
        if len(np.unique(group)) < folds:
            raise ValueError(f"Expected at least {folds} groups, got {len(np.unique(group))}.")
    flat = _scale(inputs.reshape(len(inputs), -1))
    seed = int(rng.integers(2**31))
    stratified = model_selection.StratifiedKFold, model_selection.StratifiedGroupKFold
    split = stratified[group is not None](folds, shuffle=True, random_state=seed)
    scores = np.zeros(len(flat))
    width = flat.shape[1]
    for train, test in split.split(flat, truth, group):
        if truth[train].all() or not truth[train].any():
            raise ValueError(
                "Expected groups of members and of non-members in all training folds, "
                f"got a fold without {'non-members' if truth[train].all() else 'members'}."
            )
        model = _classifier(width, min(_NUM_DIRECTIONS, width, len(train)), seed)
        # Inputs that never vary have no leading directions: 0 / 0 in their explained shares.
        with np.errstate(invalid="ignore"):
            model.fit(flat[train], truth[train])
        scores[test] = model.decision_function(flat[test])
    return scores


def _scale(flat: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Centres columns and divides them by their largest entry, in place, before the rounding.

    float32 would round Unix seconds to multiples of 128, and numbers above 3.4e38 to infinity.
    """
    for _ in range(2):
        largest = np.maximum(flat.max(axis=0), -flat.min(axis=0))
        flat /= np.where(largest > 0, largest, 1.0)
        flat -= flat.mean(axis=0)
    return flat.astype(np.float32)


def _classifier(width: int, num_directions: int, seed: int) -> Any:
    from sklearn import feature_selection, linear_model, pipeline, preprocessing

    directions = _directions(num_directions, seed)
    products = preprocessing.PolynomialFeatures(2, include_bias=False)
    second_order = pipeline.make_union(
        preprocessing.FunctionTransformer(np.square), pipeline.make_pipeline(directions, products)
    )
    num_candidates = width + num_directions * (num_directions + 3) // 2
    num_selected = min(_NUM_PRODUCTS, num_candidates)
    selected = feature_selection.SelectKBest(_difference, k=num_selected)
    return pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        pipeline.make_union(
            preprocessing.FunctionTransformer(), pipeline.make_pipeline(second_order, selected)
        ),
        preprocessing.StandardScaler(),
        # Without balancing, the intercept would depend on the share of members in each fold.
        linear_model.LogisticRegression(C=_INVERSE_PENALTY, class_weight="balanced"),
    )


def _directions(count: int, seed: int) -> Any:
    """Makes a PCA whose directions without variance are 0.

    Records that differ from all of the training folds, as by a new category, may have any place
    along such a direction, which would be divided by the rounding of the others.
    """
    from sklearn import decomposition

    class Directions(decomposition.PCA):
        def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
            return self._masked(super().fit_transform(X, y))

        def transform(self, X: Any) -> np.ndarray:
            return self._masked(super().transform(X))

        def _masked(self, places: np.ndarray) -> np.ndarray:
            variance = self.explained_variance_
            return np.where(variance > _MIN_VARIANCE * variance[0], places, np.float32(0))

    return Directions(count, svd_solver="randomized", random_state=seed)


def _difference(
    columns: Float[np.ndarray, "n p"], is_member: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, " p"]:
    """Computes the difference between the means of the two sides, in standard deviations."""
    difference = columns[is_member].mean(axis=0) - columns[~is_member].mean(axis=0)
    return np.abs(difference) / _networks.safe_std(columns)
