"""Attribute inference in a report: a model by hand that memorises a column of its members."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxpriv import data, reports, units
from jaxpriv.attacks import attribute
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.metrics import intervals
from jaxpriv.reports import (
    _annex,
    _attribute,
    _inference_wording,
    _score_files,
    assembly,
    partition,
    subjects,
)
from jaxpriv.reports.settings import Settings
from tests.reports import examples

KEY = jax.random.key(0)
N, VALUES = 300, 3
SETTINGS = Settings(no_dp=True, sensitive="ward")


def table(**changes):
    """A number, and a column of three values that nothing else tells."""
    rng = np.random.default_rng(0)
    ward = rng.integers(VALUES, size=N)
    x = np.column_stack([rng.normal(size=N), np.eye(VALUES)[ward]]).astype(np.float32)
    columns = (data.Column("size", (0,)), data.Column("ward", (1, 2, 3)))
    dataset = data.Dataset(
        x=x, y=rng.integers(2, size=N), name="ward", num_classes=2, source="made", columns=columns
    )
    return dataclasses.replace(dataset, **changes)


def split(dataset):
    return partition.partition_records(KEY, dataset, unit="record")


def memorising(records, strength):
    """Evidence of a model that is sure of the label where a query is a member as it was."""
    x, y = records.pool.x, records.pool.y
    size = {float(row[0]): i for i, row in enumerate(x)}

    def predict(key, rows):
        index = np.array([size[float(row[0])] for row in rows])
        is_known = records.is_member[index] & (rows == x[index]).all(axis=1)
        return strength * is_known[:, None] * np.eye(2)[y[index]]

    return Evidence(inputs=x, labels=y, logits=predict(None, x), predict=predict)


@pytest.fixture(scope="module")
def prepared():
    dataset = table()
    records = split(dataset)
    sensitive = _attribute.prepare(KEY, dataset, records, SETTINGS, store=_score_files.Store(None))
    return records, sensitive


def test_a_model_that_memorises_gains_for_members_only(prepared, monkeypatch):
    records, sensitive = prepared
    monkeypatch.setattr(_attribute, "_BLOCK_ROWS", 100)  # blocks that do not divide the records
    evidence = memorising(records, strength=20.0)
    inferred = _attribute.measure(KEY, evidence, records.is_member, sensitive, unit=records.units)
    assert (inferred.column, inferred.num_values) == ("ward", VALUES)
    assert inferred.num_population == len(records.population)
    equal, imputed = inferred.attacks
    assert equal.members.accuracy == 1.0
    assert equal.members.gain_interval[0] > 0.3
    assert equal.nonmembers.gain_interval[1] < 0.2
    # The oracle is the attack itself, on queries that are made one by one.
    values = sensitive.attribute.values(evidence.inputs)
    queries = sensitive.attribute.queries(evidence.inputs)
    logits = np.stack([evidence.predict(None, rows) for rows in queries])
    scores = attribute.from_predictions(logits, evidence.labels, log_prior=sensitive.imputed)
    gains = attribute.measure(
        scores, sensitive.imputed, values, is_member=records.is_member, confidence=0.975
    )
    for side, expected in zip((imputed.members, imputed.nonmembers), gains, strict=True):
        assert side.gain_interval == (expected.gain.lower, expected.gain.upper)
        assert (side.accuracy, side.num_records) == (expected.accuracy.value, expected.num_records)


def test_a_model_that_ignores_its_inputs_adds_nothing(prepared):
    records, sensitive = prepared
    evidence = memorising(records, strength=0.0)
    inferred = _attribute.measure(KEY, evidence, records.is_member, sensitive, unit=records.units)
    imputed = inferred.attacks[1]
    assert (imputed.members.gain, imputed.nonmembers.gain) == (0.0, 0.0)
    (entry,) = examples.make_entries(leak=1.0)
    sentence = _inference_wording.attribute_sentence(dataclasses.replace(entry, attribute=inferred))
    assert "no attack is measurably better than imputation on members" in sentence


@pytest.mark.parametrize("kind", ["group", "class"])
def test_the_records_of_a_unit_are_dependent(prepared, kind):
    records, sensitive = prepared
    evidence = memorising(records, strength=1.0)
    n = len(records.is_member)
    # Members and non-members alternate within blocks of 20, one unit each.
    place = np.zeros(n, int)
    for side in (records.is_member, ~records.is_member):
        place[side] = np.arange(side.sum()) // 10
    unit = units.of_records(n, kind=kind, group=place, labels=place)
    subject = subjects.Subject("A model", evidence, records.is_member, None, None)
    (entry,) = assembly.examine(
        KEY,
        subject,
        defences=(),
        attacks=examples.cheap_attacks(),
        unit=units.groups(2 * place + records.is_member),
        delta=1e-5,
        relation="add_or_remove_one",
        sensitive=sensitive,
    )
    for inferred in (
        _attribute.measure(KEY, evidence, records.is_member, sensitive, unit=unit),
        entry.attribute,
    ):
        attack = inferred.attacks[0]
        values = sensitive.attribute.values(evidence.inputs)
        imputed = sensitive.imputed.argmax(axis=1) == values
        for side, gain in (
            (records.is_member, attack.members),
            (~records.is_member, attack.nonmembers),
        ):
            assert gain.imputation_interval == intervals.korn_graubard(
                imputed[side], place[side], confidence=0.975
            )


def test_numbers_with_few_values_are_inferred_as_the_network_sees_them():
    wards = np.random.default_rng(1).choice([0.5, 7.0, 100.0], N)
    dataset = table(
        x=np.column_stack([np.arange(N) / N, wards]).astype(np.float32),
        columns=(data.Column("ward", (1,)),),
    )
    sensitive = _attribute.prepare(
        KEY, dataset, split(dataset), SETTINGS, store=_score_files.Store(None)
    )
    expected = [0.5, 1 + np.log(7), 1 + np.log(100)]
    np.testing.assert_allclose(sensitive.attribute.codes[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "sensitive", "message"),
    [
        ({}, "race", "got 'race'; the columns are size, ward."),
        ({}, "size", "Expected a column of 2 to 50 values .* 'size' with 300"),
        ({"columns": ()}, "ward", "got ward, whose inputs have no names"),
    ],
)
def test_other_columns_are_refused_in_one_line(changes, sensitive, message):
    dataset = table(**changes)
    settings = dataclasses.replace(SETTINGS, sensitive=sensitive)
    with pytest.raises(ValueError, match=message) as caught:
        _attribute.prepare(KEY, dataset, split(dataset), settings, store=_score_files.Store(None))
    assert "\n" not in str(caught.value)


def test_a_value_that_only_one_person_has_cannot_be_imputed():
    x = table().x.copy()
    x[:, 1:] = [1, 0, 0]
    x[split(table()).rows[0], 1:] = [0, 1, 0]
    dataset = table(x=x)
    records = split(dataset)
    rows = np.append(records.rows, records.population_rows)
    assert len(np.unique(dataset.x[rows, 1])) == 2
    with pytest.raises(ValueError, match="Expected two values of 'ward' among the 30 records"):
        _attribute.prepare(KEY, dataset, records, SETTINGS, store=_score_files.Store(None))


def test_the_page_has_a_section_where_a_column_was_inferred(prepared):
    records, sensitive = prepared
    inferred = _attribute.measure(
        KEY,
        memorising(records, strength=20.0),
        records.is_member,
        sensitive,
        unit=records.units,
    )
    (entry,) = examples.make_entries(leak=1.0)
    assert "<h2>Attribute inference</h2>" not in reports.render(examples.make_report(entry))
    report = examples.make_report(dataclasses.replace(entry, attribute=inferred))
    html = reports.render(report)
    section = html.split("<h2>Attribute inference</h2>")[1].split("<h2>")[0]
    for attack in inferred.attacks:
        assert attack.title in section
        for gain in (attack.members, attack.nonmembers):
            assert f"{100 * gain.gain:+.1f}" in section
    assert "the model adds to imputation for members" in section
    assert ("Attribute inference", "Attribute inference") in {r[:2] for r in _annex.edpb(report)}
    assert "Inference of 'ward'" in reports.summary(report)
