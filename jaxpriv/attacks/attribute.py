"""Attribute inference on tables: predicts a sensitive value of a record from a model.

The attacker has the other columns and the label of a record, and queries the model with every
value of the attribute:

    inputs --queries--> model --from_predictions or apply--> log probabilities of the values

Columns of a table depend on each other, so most values can be imputed without the model. `impute`
does so, and `measure` reports an attack as its gain over imputation, for members and non-members
apart: a gain for both shows what the model learned of the population, a larger one for members
what it memorised.

In the shapes below `n` counts records, `r` records of the attacker, `m` shadow models, `d` columns,
`v` values of the attribute, `c` classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpriv import _check, signals
from jaxpriv.attacks import _networks
from jaxpriv.metrics import intervals
from jaxpriv.metrics.intervals import Share

__all__ = [
    "Attribute",
    "Fitted",
    "Gain",
    "Gains",
    "apply",
    "fit",
    "from_predictions",
    "impute",
    "measure",
]

_LOG_FLOOR = -30.0
"""Smallest log probability of a label, about that of outputs without finite logits."""

_LEAF_PENALTY, _BOOSTING_ROUNDS = 10.0, 40
"""Squared penalty of the leaves in `impute`, and the number of trees for each value."""

_PENALTY = 1e-3
"""Weight of the squared coefficients in `fit`, so that they are finite for separable records."""


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """A sensitive attribute, as the inputs of a model encode it.

    columns: columns of the inputs that the attribute occupies.
    codes: entries of these columns for each value, [v, len(columns)]; all different.

    Raises:
      ValueError: if the codes do not fit the columns, are equal, or are fewer than two.

    Example:
      >>> colour = Attribute.one_hot([1, 2])
      >>> inputs = np.array([[0.5, 0.0, 1.0], [0.7, 1.0, 0.0]])
      >>> colour.values(inputs)
      array([1, 0])
      >>> colour.queries(inputs)[0].tolist()
      [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]
    """

    columns: tuple[int, ...]
    codes: Float[np.ndarray, "v k"]

    def __post_init__(self) -> None:
        codes = _networks.finite_float64("codes", self.codes)
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise ValueError(
                f"Expected codes [v, {len(self.columns)}], got shape {list(codes.shape)}."
            )
        if len(set(self.columns)) < len(self.columns) or not self.columns:
            raise ValueError(f"Expected different columns, got {list(self.columns)}.")
        if len(codes) < 2 or len(np.unique(codes, axis=0)) < len(codes):
            raise ValueError("Expected two or more different codes of the attribute.")
        object.__setattr__(self, "codes", codes)

    @classmethod
    def one_hot(cls, columns: Sequence[int]) -> "Attribute":
        """Describes an attribute with a column of 0 and 1 for each value."""
        return cls(columns=tuple(columns), codes=np.eye(len(columns)))

    @classmethod
    def number(cls, column: int, values: Sequence[float | int]) -> "Attribute":
        """Describes an attribute whose values are numbers in one column."""
        return cls(columns=(column,), codes=np.asarray(values, np.float64)[:, None])

    def values(self, inputs: Shaped[Array | np.ndarray, "n d"]) -> Int[np.ndarray, " n"]:
        """Reads the value of each record, 0 to v - 1; ValueError if it has no code."""
        table = self._table(inputs)
        entries = table[:, self.columns].astype(np.float64)
        is_code = np.stack(
            [
                (np.abs(entries - code) <= tolerance).all(axis=1)
                for code, tolerance in zip(self.codes, self._tolerance(table.dtype), strict=True)
            ],
            axis=1,
        )
        unknown = np.flatnonzero(~is_code.any(axis=1))
        if unknown.size:
            raise ValueError(
                f"Expected entries that encode a value in the columns {list(self.columns)}, "
                f"got {entries[unknown[0]].tolist()} in record {unknown[0]}."
            )
        return is_code.argmax(axis=1)

    def queries(self, inputs: Shaped[Array | np.ndarray, "n d"]) -> Shaped[np.ndarray, "n v d"]:
        """Returns each record with every value of the attribute, in the type of the inputs.

        Raises:
          ValueError: if this type does not represent the codes, apart from the rounding of floats.
        """
        table = self._table(inputs)
        result = np.repeat(table[:, None], len(self.codes), axis=1)
        result[:, :, self.columns] = self._codes_as(table.dtype)
        return result

    def without(self, inputs: Shaped[Array | np.ndarray, "n d"]) -> Shaped[np.ndarray, "n e"]:
        """Returns the other columns."""
        return np.delete(self._table(inputs), self.columns, axis=1)

    def _table(self, inputs: Shaped[Array | np.ndarray, "n d"]) -> Shaped[np.ndarray, "n d"]:
        table = np.asarray(inputs)
        if table.ndim != 2 or max(self.columns) >= table.shape[1] or min(self.columns) < 0:
            raise ValueError(
                f"Expected inputs [n, d] with the columns {list(self.columns)}, "
                f"got shape {list(table.shape)}."
            )
        return table

    def _tolerance(self, dtype: np.dtype) -> Float[np.ndarray, "v k"]:
        """Returns the distance from each code at which entries of a table still have it."""
        from scipy.spatial import distance

        spacing = distance.pdist(self.codes, "chebyshev").min()
        rounding = _rounding(dtype)
        if rounding:
            self._codes_as(dtype)  # codes that coincide in the table cannot be read from it
            rounding = max(rounding, _rounding(np.dtype(np.float32)))
        # A quarter of the spacing, so that no entry has two codes.
        return np.minimum(1e-6 * spacing + rounding * np.abs(self.codes), spacing / 4)

    def _codes_as(self, dtype: np.dtype) -> Shaped[np.ndarray, "v k"]:
        """Returns the codes in the type of a table; ValueError if they are others there."""
        with np.errstate(over="ignore", invalid="ignore"):
            codes = self.codes.astype(dtype)
        error = np.abs(codes.astype(np.float64) - self.codes)
        is_same = (error <= _rounding(dtype) * np.abs(self.codes)).all(axis=1)
        if not is_same.all():
            raise ValueError(
                f"Expected inputs of a type that represents the codes, "
                f"got {dtype} and the code {self.codes[~is_same][0].tolist()}."
            )
        if len(np.unique(codes.astype(np.float64), axis=0)) < len(codes):
            raise ValueError(f"Expected codes that differ in the type of the inputs, got {dtype}.")
        return codes


def _rounding(dtype: np.dtype) -> float:
    """Returns the relative rounding error of a float type; 0 of other types."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0


def impute(
    rng: np.random.Generator,
    inputs: Shaped[Array | np.ndarray, "n d"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    attribute: Attribute,
    population_inputs: Shaped[Array | np.ndarray, "r d"],
    population_labels: Shaped[Array | np.ndarray, "r ..."],
) -> Float[np.ndarray, "n v"]:
    """Predicts the attribute from the other columns and the label, without the model.

    scikit-learn's gradient boosting, trained on records that the model was not trained on.

    Args:
      rng: random generator.
      inputs: records; the columns of the attribute are not read.
      labels: their classes, which the attacker has.
      attribute: attribute to predict.
      population_inputs: records of the attacker, with the attribute.
      population_labels: their classes.

    Returns:
      Log probabilities of the values. A value that the population lacks has a small one.

    Raises:
      ValueError: for NaN, lengths or widths that do not fit, or a population with one value only.

    References:
      Jayaraman and Evans, Are Attribute Inference Attacks Just Imputation?, 2022.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> x = np.repeat(rng.integers(2, size=(200, 1)), 2, axis=1).astype(float)
      >>> attribute = Attribute.number(1, [0, 1])  # equal to column 0
      >>> labels = np.zeros(200, int)
      >>> result = impute(
      ...     rng, x[:100], labels[:100], attribute=attribute,
      ...     population_inputs=x[100:], population_labels=labels[100:],
      ... )
      >>> bool((result.argmax(axis=1) == attribute.values(x[:100])).all())
      True
    """
    import threadpoolctl
    from sklearn.ensemble import HistGradientBoostingClassifier

    values = attribute.values(population_inputs)
    present = np.unique(values)
    if len(present) < 2:
        raise ValueError("Expected two or more values of the attribute in the population, got one.")
    known, target = (
        _with_labels(attribute, *side)
        for side in ((population_inputs, population_labels), (inputs, labels))
    )
    if known.shape[1] != target.shape[1]:
        raise ValueError(
            f"Expected a population of {target.shape[1] - 1 + len(attribute.columns)} columns, "
            f"got {known.shape[1] - 1 + len(attribute.columns)}."
        )
    # Without a penalty the leaves of a value that few records have grow without bound, and the
    # other values are imputed no better than by chance.
    model = HistGradientBoostingClassifier(
        # It would hold out records of every value, which a value with one record does not have.
        early_stopping=False,  # pyright: ignore[reportArgumentType]
        l2_regularization=_LEAF_PENALTY,
        max_iter=_BOOSTING_ROUNDS,
        random_state=int(rng.integers(2**31)),
    )
    probabilities = np.zeros((len(target), len(attribute.codes)))
    # OpenMP's threads wait for each other after every split: minutes where a core is busy.
    with threadpoolctl.threadpool_limits(1, "openmp"):
        model.fit(known, values)
        probabilities[:, present] = model.predict_proba(target)
    floored = np.maximum(probabilities, 0.5 / len(known))
    return np.log(floored / floored.sum(axis=1, keepdims=True))


def from_predictions(
    logits: Shaped[Array | np.ndarray, "n v c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    log_prior: Float[Array | np.ndarray, " v"] | Float[Array | np.ndarray, "n v"] | None = None,
) -> Float[np.ndarray, "n v"]:
    """Scores each value by the probability that the model gives to the known label.

    log p(label | record with the value), plus the log prior of the value, normalised over values.
    With the result of `impute` as prior this is Bayes' rule for a model that is the conditional
    distribution of the label.

    Args:
      logits: outputs of the model for `Attribute.queries`.
      labels: true classes of the records.
      log_prior: log probabilities of the values, the same for all records or of each; None: equal.

    Returns:
      Log probabilities of the values; the largest is the guess.

    Raises:
      ValueError: for NaN, lengths that do not fit, or labels that do not index the logits.

    References:
      Fredrikson et al., Privacy in Pharmacogenetics: An End-to-End Case Study of Personalized
      Warfarin Dosing, 2014, section 4; Yeom et al., Privacy Risk in Machine Learning, 2018,
      section 4.

    Example:
      >>> logits = np.array([[[0.0, 0.0], [0.0, 2.0]]])  # the label 1 favours the second value
      >>> np.exp(from_predictions(logits, np.array([1]))).round(2)
      array([[0.36, 0.64]])
      >>> np.exp(from_predictions(logits, np.array([1]), log_prior=np.log([0.9, 0.1]))).round(2)
      array([[0.84, 0.16]])
    """
    scores = _log_p_label(logits, labels)
    if log_prior is not None:
        prior = _networks.finite_float64("log_prior", log_prior)
        if prior.shape not in (scores.shape, scores.shape[1:]):
            raise ValueError(
                f"Expected log_prior [{scores.shape[1]}] or {list(scores.shape)}, "
                f"got shape {list(prior.shape)}."
            )
        scores = scores + prior
    return _normalised(scores)


class Fitted(NamedTuple):
    """Weights of the attack with shadow models.

    confidence: weight of the log probability of the label under the target.
    calibrated: weight of its difference from the mean over the shadow models that were not
      trained on the record.
    prior: weight of the log prior; the attack is imputation if it is 1 and the others are 0.
    """

    confidence: float
    calibrated: float
    prior: float


def fit(
    shadow_logits: Shaped[Array | np.ndarray, "m r v c"],
    labels: Shaped[Array | np.ndarray, "r ..."],
    values: Shaped[Array | np.ndarray, " r"],
    *,
    shadow_is_member: Shaped[Array | np.ndarray, "m r"],
    log_prior: Float[Array | np.ndarray, "r v"],
) -> Fitted:
    """Learns from shadow models how much a model reveals about the attribute of its members.

    Each shadow model is attacked on its members, whose attribute the attacker has. The log
    probability of a value is, up to normalisation, a weighted sum of the log probability of the
    label, its difference from the mean over the shadow models that were not trained on the record,
    and the log prior. The weights maximise the likelihood (a conditional logit model).

    Args:
      shadow_logits: outputs of the shadow models for `Attribute.queries` of the attacker's records.
      labels: classes of these records.
      values: values of their attribute.
      shadow_is_member: which records each shadow model was trained on.
      log_prior: log probabilities of the values, from `impute` out of fold.

    Returns:
      The weights, for `apply`.

    Raises:
      ValueError: for NaN, lengths that do not fit, labels or values out of range, no shadow model,
        or no member.

    References:
      McFadden, Conditional Logit Analysis of Qualitative Choice Behavior, 1974; for the shadow
      models, Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> values, is_member = rng.integers(2, size=300), rng.random((4, 300)) < 0.5
      >>> memorised = 3.0 * is_member[:, :, None] * (np.arange(2) == values[:, None])
      >>> logits = np.stack([memorised, np.zeros_like(memorised)], axis=3)
      >>> fitted = fit(
      ...     logits, np.zeros(300, int), values, shadow_is_member=is_member,
      ...     log_prior=np.full((300, 2), -np.log(2)),
      ... )
      >>> fitted.confidence + fitted.calibrated > 1
      True
    """
    from scipy import optimize

    is_member = _check.membership(np.asarray(shadow_is_member), name="shadow_is_member")
    log_p = _shadow_log_p_label(shadow_logits, labels)
    prior = _networks.finite_float64("log_prior", log_prior)
    truth = _check.labels(values, num_classes=log_p.shape[2], name="values")
    if is_member.shape != log_p.shape[:2] or prior.shape != log_p.shape[1:]:
        raise ValueError(
            f"Expected shadow_is_member {list(log_p.shape[:2])} and log_prior "
            f"{list(log_p.shape[1:])}, got shapes {list(is_member.shape)} and {list(prior.shape)}."
        )
    _check.same_length(labels=log_p[0], values=truth)
    if not is_member.any():
        raise ValueError("Expected members of the shadow models, got none.")
    model, record = np.nonzero(is_member)
    features = np.stack(
        [
            log_p[model, record],
            _calibrated(log_p, log_p, is_member)[model, record],
            prior[record],
        ],
        axis=-1,
    )
    features -= features.mean(axis=1, keepdims=True)  # the same for all values: no information
    chosen = features[np.arange(len(record)), truth[record]]

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_probabilities = _normalised(features @ weights)
        expected = (np.exp(log_probabilities)[..., None] * features).sum(axis=1)
        loss = -log_probabilities[np.arange(len(record)), truth[record]].mean()
        penalty = _PENALTY * (weights @ weights)
        return loss + penalty, (expected - chosen).mean(axis=0) + 2 * _PENALTY * weights

    result = optimize.minimize(objective, np.array([0.0, 0.0, 1.0]), jac=True, method="L-BFGS-B")
    return Fitted(*map(float, result.x))


def apply(
    fitted: Fitted,
    logits: Shaped[Array | np.ndarray, "n v c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
    *,
    shadow_logits: Shaped[Array | np.ndarray, "m n v c"],
    shadow_is_member: Shaped[Array | np.ndarray, "m n"] | None = None,
    log_prior: Float[Array | np.ndarray, "n v"],
) -> Float[np.ndarray, "n v"]:
    """Scores each value by the weights that were learned on shadow models.

    Args:
      fitted: weights, from `fit`.
      logits: outputs of the target for `Attribute.queries`.
      labels: true classes of the records.
      shadow_logits: outputs of the shadow models for the same queries.
      shadow_is_member: which records each shadow model was trained on; None: none of them.
      log_prior: log probabilities of the values, from `impute`.

    Returns:
      Log probabilities of the values; the largest is the guess.

    Raises:
      ValueError: for NaN, shapes that do not fit, labels that do not index the logits, or no
        shadow model.

    Example:
      >>> logits = np.array([[[2.0, 0.0], [0.0, 0.0]]])
      >>> scores = apply(
      ...     Fitted(confidence=0.0, calibrated=1.0, prior=1.0), logits, np.array([0]),
      ...     shadow_logits=np.zeros((3, 1, 2, 2)), log_prior=np.log([[0.5, 0.5]]),
      ... )
      >>> np.exp(scores).round(2)
      array([[0.64, 0.36]])
    """
    log_p = _log_p_label(logits, labels)
    shadows = _shadow_log_p_label(shadow_logits, labels)
    prior = _networks.finite_float64("log_prior", log_prior)
    is_member = np.zeros(shadows.shape[:2], bool)
    if shadow_is_member is not None:
        is_member = _check.membership(np.asarray(shadow_is_member), name="shadow_is_member")
    if shadows.shape[1:] != log_p.shape or prior.shape != log_p.shape:
        raise ValueError(
            f"Expected log_prior and shadows of {list(log_p.shape)}, "
            f"got shapes {list(prior.shape)} and {list(shadows.shape[1:])}."
        )
    if is_member.shape != shadows.shape[:2]:
        raise ValueError(
            f"Expected shadow_is_member {list(shadows.shape[:2])}, got {list(is_member.shape)}."
        )
    calibrated = _calibrated(log_p, shadows, is_member)
    return _normalised(
        fitted.confidence * log_p + fitted.calibrated * calibrated + fitted.prior * prior
    )


class Gain(NamedTuple):
    """Success of an attack beside imputation, on one set of records.

    accuracy: share of records whose value the attack guesses.
    imputation: share of records whose value imputation guesses.
    gain: the first minus the second, with a paired interval.
    num_records: number of records.
    """

    accuracy: Share
    imputation: Share
    gain: Share
    num_records: int


class Gains(NamedTuple):
    """Success of an attack on members and on non-members."""

    members: Gain
    nonmembers: Gain


def measure(
    log_probabilities: Float[Array | np.ndarray, "n v"],
    imputed: Float[Array | np.ndarray, "n v"],
    values: Shaped[Array | np.ndarray, " n"],
    *,
    is_member: Shaped[Array | np.ndarray, " n"],
    confidence: float,
    unit_id: Shaped[Array | np.ndarray, " n"] | None = None,
) -> Gains:
    """Measures an attack as its gain over imputation, for members and non-members apart.

    Args:
      log_probabilities: scores of the values by the attack; the first of equal ones is the guess.
      imputed: scores of the values by `impute`.
      values: true values.
      is_member: whether the target was trained on each record.
      confidence: confidence level of each interval, in (0, 1).
      unit_id: unit (person, household) of each record, within which records are dependent; None:
        all records are independent.

    Returns:
      The success on members and on non-members.

    Raises:
      ValueError: for NaN, lengths that do not fit, values out of range, no members or no
        non-members, or if confidence is not in (0, 1).

    References:
      Jayaraman and Evans, Are Attribute Inference Attacks Just Imputation?, 2022.

    Example:
      >>> values, is_member = np.arange(40) % 2, np.arange(40) < 20
      >>> attack = np.eye(2)[np.where(is_member, values, 0)]  # right on members only
      >>> gains = measure(attack, np.eye(2)[[0] * 40], values, is_member=is_member, confidence=0.95)
      >>> gains.members.gain.value, gains.nonmembers.gain.value
      (0.5, 0.0)
    """
    scores, baseline = (
        _networks.as_float64(name, array)
        for name, array in (("log_probabilities", log_probabilities), ("imputed", imputed))
    )
    if scores.ndim != 2 or scores.shape != baseline.shape:
        raise ValueError(
            f"Expected scores [n, v] of attack and imputation, "
            f"got shapes {list(scores.shape)} and {list(baseline.shape)}."
        )
    truth = _check.labels(values, num_classes=scores.shape[1], name="values")
    members = _check.membership(np.asarray(is_member))
    cluster = None if unit_id is None else np.asarray(unit_id)
    for name, array in (("is_member", members), ("unit_id", cluster)):
        if array is not None and array.shape != truth.shape:
            raise ValueError(
                f"Expected {name} of shape {list(truth.shape)}, got {list(array.shape)}."
            )
    _check.same_length(log_probabilities=scores, values=truth)
    _check.both_sides(members)
    correct, imputed_correct = (array.argmax(axis=1) == truth for array in (scores, baseline))

    def gain(side: Bool[np.ndarray, " n"]) -> Gain:
        right, imputed_right = correct[side], imputed_correct[side]
        options = {
            "confidence": confidence,
            "cluster": None if cluster is None else cluster[side],
        }
        return Gain(
            accuracy=intervals.share(right, **options),
            imputation=intervals.share(imputed_right, **options),
            gain=intervals.paired_difference(right, imputed_right, **options),
            num_records=len(right),
        )

    return Gains(gain(members), gain(~members))


def _with_labels(
    attribute: Attribute,
    inputs: Shaped[Array | np.ndarray, "n d"],
    labels: Shaped[Array | np.ndarray, "n ..."],
) -> Float[np.ndarray, "n e"]:
    """Joins the other columns and the label."""
    columns = _networks.finite_float64("inputs", attribute.without(inputs))
    classes = _check.labels(labels, num_classes=None)
    _check.same_length(inputs=columns, labels=classes)
    return np.concatenate([columns, classes[:, None]], axis=1)


def _log_p_label(
    logits: Shaped[Array | np.ndarray, "n v c"], labels: Shaped[Array | np.ndarray, "n ..."]
) -> Float[np.ndarray, "n v"]:
    """Computes the log probability of the label for every value, in float64."""
    if np.ndim(logits) != 3 or np.shape(logits)[1] < 2:
        raise ValueError(f"Expected logits [n, v, c], got shape {list(np.shape(logits))}.")
    log_p = signals.log_probabilities(logits)
    classes = _check.labels(labels, num_classes=log_p.shape[2])
    _check.same_length(logits=log_p, labels=classes)
    of_label = np.take_along_axis(log_p, classes[:, None, None].astype(int), axis=2)[..., 0]
    return np.maximum(of_label.astype(np.float64), _LOG_FLOOR)


def _shadow_log_p_label(
    shadow_logits: Shaped[Array | np.ndarray, "m n v c"],
    labels: Shaped[Array | np.ndarray, "n ..."],
) -> Float[np.ndarray, "m n v"]:
    """Computes the log probability of the label under each shadow model."""
    logits = np.asarray(shadow_logits)
    if logits.ndim != 4 or not len(logits):
        raise ValueError(
            f"Expected shadow_logits [m, n, v, c] of one model or more, "
            f"got shape {list(logits.shape)}."
        )
    return np.stack([_log_p_label(model, labels) for model in logits])


def _calibrated(
    log_p: Float[np.ndarray, "*models n v"],
    shadow_log_p: Float[np.ndarray, "m n v"],
    is_member: Bool[np.ndarray, "m n"],
) -> Float[np.ndarray, "*models n v"]:
    """Subtracts the mean over the models not trained on a record; 0 where there is none."""
    count = (~is_member).sum(axis=0)[:, None]
    total = np.where(is_member[..., None], 0.0, shadow_log_p).sum(axis=0)
    return np.where(count > 0, log_p - total / np.maximum(count, 1), 0.0)


def _normalised(scores: Float[np.ndarray, "n v"]) -> Float[np.ndarray, "n v"]:
    largest = scores.max(axis=1, keepdims=True)
    return scores - largest - np.log(np.exp(scores - largest).sum(axis=1, keepdims=True))
