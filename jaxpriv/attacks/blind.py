"""A blind attack: membership from the raw inputs alone, without the target.

It guards the other attacks: where it succeeds, members and non-members come from different
distributions, and what an attack on the model finds need not be memorisation. In the shapes below
`n` counts records.
"""

from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _networks

_NUM_DIRECTIONS = 20
"""Leading directions whose squares and products enter."""

_NUM_PRODUCTS = 100
"""Squares and products that enter: those that differ most between the training sides."""

_INVERSE_PENALTY = 1e-2


def score_records(
    rng: np.random.Generator,
    x: Shaped[Array | np.ndarray, "n ..."],
    is_member: Bool[Array | np.ndarray, " n"] | Integer[Array | np.ndarray, " n"],
    *,
    folds: int = 5,
    group: Shaped[Array | np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """Scores each record by a classifier that was trained on the other folds.

    Logistic regression on the standardised inputs and on their squares and the products of their
    20 leading directions, of which the 100 are used that differ most between members and
    non-members: it sees shifts of means, of spreads and of the main correlations. Everything is
    fitted on the training folds alone. An AUC near 1/2 does not prove that the two sides are
    exchangeable; one clearly above it proves that they are not.

    Args:
      rng: advanced; equal generators give equal scores.
      x: inputs of members and non-members, of any shape; flattened.
      is_member: which of them the target was trained on.
      folds: stratified; >= 2.
      group: the person or household of each record, where membership goes by them: a group is in
        one fold, or the classifier would recognise its other records.

    Returns:
      Out-of-fold log odds at even priors; higher = more likely a member.

    Raises:
      ValueError: for NaN or infinite x, unequal lengths, membership other than 0 and 1, or fewer
        members or non-members than folds.

    References:
      Das, Zhang and Tramèr, Blind Baselines Beat Membership Inference Attacks for Foundation
      Models, 2024.
    """
    from sklearn import model_selection

    inputs = _networks.finite_float64("x", x).astype(np.float32)
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
    flat = inputs.reshape(len(inputs), -1)
    seed = int(rng.integers(2**31))
    stratified = model_selection.StratifiedKFold, model_selection.StratifiedGroupKFold
    split = stratified[group is not None](folds, shuffle=True, random_state=seed)
    scores = np.zeros(len(flat))
    width = flat.shape[1]
    for train, rest in split.split(flat, truth, group):
        model = _classifier(width, min(_NUM_DIRECTIONS, width, len(train)), seed)
        # Inputs that never vary have no leading directions: 0 / 0 in their explained shares.
        with np.errstate(invalid="ignore"):
            model.fit(flat[train], truth[train])
        scores[rest] = model.decision_function(flat[rest])
    return scores


def _classifier(width: int, crossed: int, seed: int) -> Any:
    from sklearn import decomposition, feature_selection, linear_model, pipeline, preprocessing

    directions = decomposition.PCA(crossed, svd_solver="randomized", random_state=seed)
    products = preprocessing.PolynomialFeatures(2, include_bias=False)
    second_order = pipeline.make_union(
        preprocessing.FunctionTransformer(np.square), pipeline.make_pipeline(directions, products)
    )
    num_selected = min(_NUM_PRODUCTS, width + crossed * (crossed + 3) // 2)
    selected = feature_selection.SelectKBest(_difference, k=num_selected)
    return pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        pipeline.make_union(
            preprocessing.FunctionTransformer(), pipeline.make_pipeline(second_order, selected)
        ),
        preprocessing.StandardScaler(),
        # Unbalanced, the intercepts would tell the folds apart by their shares of members.
        linear_model.LogisticRegression(C=_INVERSE_PENALTY, class_weight="balanced"),
    )


def _difference(
    columns: Float[np.ndarray, "n p"], is_member: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, " p"]:
    """How many deviations apart the means of the two sides are."""
    gap = columns[is_member].mean(axis=0) - columns[~is_member].mean(axis=0)
    return np.abs(gap) / _networks.safe_std(columns)
