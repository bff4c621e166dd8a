"""A defence of the training in a report: reference records, judged records, words."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import data, defences, reports, training, units
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.reports import _defended, _networks, _training, assembly, partition
from jaxpriv.reports.settings import Settings
from tests.reports import examples

KEY = jax.random.key(3)
DIGITS = data.load("digits").subset(np.arange(120))
SETTINGS = Settings(no_dp=True, shadows=4, width=2, plain_steps=1, sensitive="ink")
INK = 20
"""Pixel of the digits that the reports infer."""


def mean_of_reference(predict, optimizer, sampler, *, reference, attacker_key):
    """A training whose model is the mean of its reference records, which its outputs show."""
    mean = reference[0].reshape(len(reference[0]), -1)[:, :10].mean(axis=0)

    def loss(params, record, key):
        first = jax.tree.leaves(params)[0].ravel()[:10]
        return ((first - mean[: len(first)]) ** 2).sum()

    return training.sgd(loss, optax.sgd(0.5), sampler)


TOY = defences.Defence(name="toy", title="toy", algorithm=mean_of_reference, reference_share=0.4)
NETWORK = _networks.Network(
    description="a toy",
    inputs="",
    init=lambda key: jnp.zeros(10),
    apply=lambda w, x: jnp.broadcast_to(w, (len(x), 10)),
    predict=lambda w, x, key: w,
)


def split(dataset=DIGITS, unit=None):
    records = partition.partition_records(KEY, dataset, unit=unit)
    return records, units.halves(jax.random.key(4), records.units, num_models=4)


def recipe_for(records, shadow_is_member, *, defence=TOY, network=NETWORK):
    return _defended.recipe(
        jax.random.key(5),
        defence,
        network=network,
        records=records,
        shadow_is_member=shadow_is_member,
        settings=SETTINGS,
    )


@pytest.mark.parametrize("num_groups", [None, 30])
def test_reference_records_are_of_the_reserve_and_of_no_members(num_groups):
    dataset = DIGITS
    if num_groups is not None:
        dataset = dataclasses.replace(DIGITS, group=np.arange(120) % num_groups)
    records, shadow_is_member = split(dataset)
    recipe = recipe_for(records, shadow_is_member)
    is_member = np.concatenate([records.is_member[None], shadow_is_member])
    fewest = (~recipe.is_judged & ~is_member).sum(axis=1).min()
    assert recipe.num_reference == fewest
    codes = set()
    for mask in is_member:
        rows, code = recipe.hyper(np.flatnonzero(mask)[None])
        assert rows.shape == (1, fewest)
        assert len(set(rows[0].tolist())) == fewest
        assert not (mask | recipe.is_judged)[rows[0]].any()
        codes.add(int(code[0]))
    assert len(codes) == len(is_member)
    judged, reserve = (set(records.units.index[m]) for m in (recipe.is_judged, ~recipe.is_judged))
    assert not judged & reserve
    assert len(reserve) == pytest.approx(0.4 * records.units.num_units, abs=1)


def test_every_model_has_its_own_reference_records_and_is_judged_on_others():
    """The outputs of the toy are the mean of the reference records of the model."""
    records, shadow_is_member = split()
    recipe = recipe_for(records, shadow_is_member)
    subject = _training.train(
        KEY,
        recipe=recipe,
        network=NETWORK,
        settings=SETTINGS,
        records=records,
        shadow_is_member=shadow_is_member,
        checkpoints=None,
    )
    x = _networks.inputs(records.pool, SETTINGS).reshape(len(records.pool), -1)[:, :10]

    def mean(mask):
        return x[recipe.hyper(np.flatnonzero(mask)[None])[0][0]].mean(axis=0)

    np.testing.assert_allclose(subject.evidence.logits[0], mean(records.is_member), atol=1e-5)
    assert not np.allclose(mean(records.is_member), mean(shadow_is_member[0]))
    for model, mask in zip(subject.evidence.shadow_logits, shadow_is_member, strict=True):
        np.testing.assert_allclose(model[0], mean(mask), atol=1e-5)
    judged = recipe.is_judged
    assert len(subject.evidence) == judged.sum() < len(records.pool)
    for found, expected in (
        (subject.is_member, records.is_member[judged]),
        (subject.rows, records.rows[judged]),
        (subject.evidence.shadow_is_member, shadow_is_member[:, judged]),
        (subject.evidence.labels, DIGITS.y[subject.rows]),
    ):
        np.testing.assert_array_equal(found, expected)
    assert (subject.defence, subject.promise) == ("toy", None)
    assert (subject.training.batch_size, subject.training.sampling_prob) == (6, None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defences.base.DEFENCES, "toy", lambda: TOY)
        digits = dataclasses.replace(DIGITS, columns=(data.Column("ink", (INK,)),))
        folder = tmp_path_factory.mktemp("evidence")
        settings = dataclasses.replace(SETTINGS, defence=("toy", "top_k:k=3"))
        report = assembly.assemble(
            KEY,
            digits,
            settings,
            attacks=examples.cheap_attacks(),
            folders=assembly.Folders(evidence=folder),
        )
        return report, folder


def test_a_report_shows_both_kinds_of_defences_with_adaptive_attackers(made):
    report, folder = made
    names = ["Without DP", "Without DP, top 3", "Without DP, toy"]
    assert [entry.name for entry in report.entries] == names
    assert [entry.defence for entry in report.entries] == [None, "top 3", "toy"]
    plain, _, toy = (evidence_lib.load(folder.parent / entry.evidence) for entry in report.entries)
    assert len(toy[0]) < len(plain[0])
    assert toy[0].num_shadows == 4
    entry = report.entries[-1]
    metrics = entry.findings.attacks[0].metrics
    assert metrics.num_members + metrics.num_nonmembers == len(toy[0])
    assert entry.attribute.attacks[0].members.num_records == metrics.num_members
    assert entry.training.reference_records >= 5
    assert (entry.promise, entry.defence_guarantee) == (None, None)


def test_the_page_calls_it_a_heuristic_and_names_its_records():
    """From stored findings."""
    (entry,) = examples.make_entries(leak=0.0)
    trained = dataclasses.replace(
        entry.training, reference_records=1234, batch_size=7, sampling_prob=None
    )
    entry = dataclasses.replace(entry, name="Toy", defence="toy", training=trained)
    report = examples.make_report(*examples.make_entries(leak=1.0), entry)
    text = reports.render(report)
    for sentence in (
        "The defence has no guarantee.",
        "It is a heuristic",
        "compares their members with 1,234 reference records",
        "The training depends on the reference records too",
        "measured on 300 records that are in no reference set",
    ):
        assert sentence in text
    assert text.count("It is a heuristic") == 1
    assert "batches of 7 records" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adversarial:weight=0", "Expected weight > 0, got weight=0"),
        ("adversarial:weight=nan", "Expected weight > 0"),
        ("adversarial:weight=1,attacker_steps=0", "attacker_steps >= 1"),
        ("adversarial:weight=1,reference_share=1", "reference_share"),
        ("adversarial", "Expected adversarial:weight=NUMBER"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        defences.base.from_text(text)
    assert "\n" not in str(error.value)


def test_reports_that_cannot_have_it_are_refused_before_training(tmp_path):
    adversarial = defences.base.from_text("adversarial:weight=3")
    settings = dataclasses.replace(SETTINGS, sensitive=None, defence=("adversarial:weight=3",))
    stateful = NETWORK._replace(batch_loss=lambda *args: None)
    with pytest.raises(ValueError, match="no adversarial defence for a toy, whose state mixes"):
        recipe_for(*split(), defence=adversarial, network=stateful)
    few = dataclasses.replace(adversarial, reference_share=0.02)
    with pytest.raises(ValueError, match=r"at least 5 reference records of each model.* got \d"):
        recipe_for(*split(), defence=few)
    classes = dataclasses.replace(DIGITS, y=np.arange(120) % 30, num_classes=30, class_names=())
    with pytest.raises(ValueError, match="Expected the unit record or group for the adversarial"):
        recipe_for(*split(classes, unit="class"), defence=adversarial)
    with pytest.raises(ValueError, match="no adversarial defence for a given training"):
        assembly.assemble(KEY, DIGITS, settings, train=lambda key, records: None)
    evidence, is_member = examples.make_evidence(leak=1.0)
    evidence_lib.save(tmp_path / "clinic.npz", evidence, is_member)
    outputs = Settings(scores=str(tmp_path / "clinic.npz"), defence=settings.defence)
    with pytest.raises(ValueError, match="no adversarial defence for outputs"):
        assembly.assemble_outputs(KEY, outputs)
