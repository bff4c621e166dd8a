"""Infers a sensitive column from the models of a report, beside imputation without a model.

The attacker has the other columns and the label of each record, and the records of the population.

In the shapes below `n` counts records, `d` inputs, `v` values and `c` classes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from jaxpriv import _keys, units
from jaxpriv.attacks import attribute
from jaxpriv.attacks.evidence import Evidence, Predict
from jaxpriv.data import Dataset
from jaxpriv.metrics import intervals
from jaxpriv.reports import _networks, _score_files, findings
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings

_CONFIDENCE = 0.975
"""Confidence of each interval: the page concludes from the better of two attacks, see `_TITLES`."""

MAX_VALUES = 50
"""Largest number of values of a sensitive column; each record is queried with all of them."""

_BLOCK_ROWS = 4096
"""Number of queries in a block, which bounds the memory."""

_TITLES = {False: "confidence in the label", True: "confidence in the label, imputed prior"}
_REFERENCES = {
    False: "Yeom et al., Privacy Risk in Machine Learning, 2018",
    True: "Fredrikson et al., Privacy in Pharmacogenetics, 2014",
}


class Sensitive(NamedTuple):
    """A sensitive column and what is known about it without a model.

    attribute: the column as it is encoded in the inputs of the networks.
    imputed: log probabilities of the values of each record of the pool, by imputation.
    num_population: number of records that imputation learns from.
    """

    column: str
    attribute: attribute.Attribute
    imputed: Float[np.ndarray, "n v"]
    num_population: int


def find(dataset: Dataset, name: str) -> tuple[int, ...]:
    """Returns the inputs that a column occupies.

    Raises:
      ValueError: if the data have no such column, with the names of those that they have.
    """
    if not dataset.columns:
        raise ValueError(
            f"Expected a table with named columns for --sensitive, got {dataset.name}, "
            "whose inputs have no names."
        )
    for column in dataset.columns:
        if column.name == name:
            return column.inputs
    names = ", ".join(column.name for column in dataset.columns)
    raise ValueError(
        f"Expected an input column of {dataset.name} for --sensitive, got {name!r}; the columns "
        f"are {names}."
    )


def prepare(
    key: PRNGKeyArray,
    dataset: Dataset,
    records: Partition,
    settings: Settings,
    *,
    store: _score_files.Store,
) -> Sensitive:
    """Encodes the sensitive column and imputes it for the records of the pool.

    Args:
      key: PRNG key.
      dataset: all records, with named columns.
      records: members and non-members, and the population, from which imputation learns.
      settings: settings with `sensitive`.
      store: storage of the imputed values.

    Returns:
      The column and its imputed values.

    Raises:
      ValueError: if there is no such column, if it has too many values, or if the population has
        one of them only.
    """
    assert settings.sensitive is not None
    columns = find(dataset, settings.sensitive)
    x, own_x = (_networks.inputs(part, settings) for part in (records.pool, records.population))
    codes = np.unique(np.concatenate([x, own_x])[:, columns], axis=0)
    if not 2 <= len(codes) <= MAX_VALUES:
        raise ValueError(
            f"Expected a column of 2 to {MAX_VALUES} values for --sensitive, got "
            f"{settings.sensitive!r} with {len(codes):,}."
        )
    target = attribute.Attribute(columns=columns, codes=codes.astype(np.float64))
    if len(np.unique(target.values(own_x))) < 2:
        raise ValueError(
            f"Expected two values of {settings.sensitive!r} among the {len(own_x)} records of the "
            "population, from which it is imputed, got one."
        )
    identity = _score_files.identity(key, x=x, own_x=own_x, codes=codes)

    def impute() -> Float[np.ndarray, "n v"]:
        return attribute.impute(
            _keys.numpy_rng(key),
            x,
            records.pool.y,
            attribute=target,
            population_inputs=own_x,
            population_labels=records.population.y,
        )

    imputed = store.scores("imputed", identity, impute)
    return Sensitive(settings.sensitive, target, imputed, len(own_x))


def measure(
    key: PRNGKeyArray,
    evidence: Evidence,
    is_member: Bool[np.ndarray, " n"],
    sensitive: Sensitive,
    *,
    unit: units.Units,
) -> findings.AttributeInference:
    """Queries a model with every value of the column, and measures the guesses.

    Args:
      key: PRNG key, for models whose answers are random.
      evidence: evidence with inputs, labels and `predict`.
      is_member: true membership.
      sensitive: the column.
      unit: unit of each record; the records of a group or class are dependent.

    Returns:
      The findings, with equal probabilities of the values as prior and with those of imputation.
    """
    assert evidence.predict is not None
    assert evidence.inputs is not None
    assert evidence.labels is not None
    logits = _answers(key, evidence.predict, np.asarray(evidence.inputs), sensitive.attribute)
    attacks = []
    for has_prior in (False, True):
        scores = attribute.from_predictions(
            logits, evidence.labels, log_prior=sensitive.imputed if has_prior else None
        )
        gains = attribute.measure(
            scores,
            sensitive.imputed,
            sensitive.attribute.values(evidence.inputs),
            is_member=is_member,
            confidence=_CONFIDENCE,
            unit_id=None if unit.are_records else unit.index,
        )
        attacks.append(
            findings.AttributeAttack(
                name="imputed_prior" if has_prior else "equal_prior",
                title=_TITLES[has_prior],
                reference=_REFERENCES[has_prior],
                has_prior=has_prior,
                members=_gain(gains.members),
                nonmembers=_gain(gains.nonmembers),
            )
        )
    return findings.AttributeInference(
        column=sensitive.column,
        num_values=len(sensitive.attribute.codes),
        num_population=sensitive.num_population,
        attacks=tuple(attacks),
        confidence=_CONFIDENCE,
    )


def _answers(
    key: PRNGKeyArray,
    predict: Predict,
    inputs: Float[np.ndarray, "n d"],
    target: attribute.Attribute,
) -> Float[np.ndarray, "n v c"]:
    """Queries the model with every value of the attribute, in blocks of equal shape."""
    num_values = len(target.codes)
    size = max(1, _BLOCK_ROWS // num_values)
    blocks = []
    for start in range(0, len(inputs), size):
        rows = np.arange(start, start + size) % len(inputs)  # the last block repeats records
        queries = target.queries(inputs[rows]).reshape(size * num_values, -1)
        answer = np.asarray(predict(_keys.named(key, str(start)), queries), np.float32)
        blocks.append(answer.reshape(size, num_values, -1))
    return np.concatenate(blocks)[: len(inputs)]


def _gain(gain: attribute.Gain) -> findings.AttributeGain:
    def ends(share: intervals.Share) -> tuple[float, float]:
        return share.lower, share.upper

    return findings.AttributeGain(
        accuracy=gain.accuracy.value,
        accuracy_interval=ends(gain.accuracy),
        imputation=gain.imputation.value,
        imputation_interval=ends(gain.imputation),
        gain=gain.gain.value,
        gain_interval=ends(gain.gain),
        num_records=gain.num_records,
    )
