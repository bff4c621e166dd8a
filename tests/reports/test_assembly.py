"""Assembly: small models are trained once, and everything of the report follows from them."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxpriv import accounting, data, metrics, reports, sampling, training, units
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.attacks import suite
from jaxpriv.reports import (
    _evidence_files,
    _inversion,
    _networks,
    _phrases,
    _training,
    assembly,
    partition,
    subjects,
)
from jaxpriv.reports.settings import Settings
from tests.reports import examples

KEY = jax.random.key(3)
SMALL = {"shadows": 4, "width": 2, "steps": 2, "plain_steps": 2}
SETTINGS = Settings(
    epsilon=(8.0,), delta=1e-4, relation="add_or_remove_one", defence=("label_only",),
    repetitions=3, canaries=20, sensitive="ink", **SMALL,
)  # fmt: skip
INK = 20
"""Pixel of the digits that the reports infer."""


def assemble(settings=SETTINGS, **options):
    digits = data.load("digits").subset(np.arange(80))
    digits = dataclasses.replace(digits, columns=(data.Column("ink", (INK,)),))
    given = {"attacks": examples.cheap_attacks()}
    return assembly.assemble(KEY, digits, settings, **given | options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    folders = assembly.Folders(checkpoints=folder / "saved", evidence=folder / "evidence")
    return assemble(folders=folders), folder


def test_a_report_has_every_model_and_every_defence(made):
    report, _ = made
    names = [entry.name for entry in report.entries]
    assert names == ["Without DP", "DP-SGD, epsilon 8", "Without DP, label only"]
    assert [entry.defence for entry in report.entries] == [None, None, "label only"]
    assert [entry.promise is None for entry in report.entries] == [True, False, True]
    assert report.unit == "record"
    assert report.data.num_population == 8
    for entry in report.entries:
        for attack in entry.findings.attacks:
            members = attack.metrics.num_members, attack.metrics.num_nonmembers
            assert members == (report.data.num_members, report.data.num_nonmembers)
    assert "<svg" in reports.render(report)


def test_the_promise_is_that_of_the_training(made):
    report, _ = made
    entry = report.entries[1]
    event = sampling.poisson(report.data.num_members, sampling_prob=0.1).event(
        noise_multiplier=entry.training.noise_multiplier, steps=2
    )
    for one in entry.promise.guarantees:
        assert one.epsilon == accounting.epsilon(event, delta=1e-4, relation=one.relation)
    assert 7.9 < entry.promise.stated().epsilon <= 8


def test_the_game_is_played_with_the_training_of_the_private_model(made):
    report, _ = made
    assert [entry.game is None for entry in report.entries] == [True, False, True]
    game = report.entries[1].game
    assert (game.repetitions, game.steps, game.replacement) == (3, (1, 2), None)
    # Algorithm 1 removes the member with the largest sum of distances to the others.
    digits = data.load("digits").subset(np.arange(80))
    parts = partition.partition_records(jax.random.split(KEY, 5)[0], digits, unit=None)
    rows = parts.rows[parts.is_member]
    x = np.asarray(digits.x[rows], float).reshape(len(rows), -1)
    distances = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1)).sum(1)
    assert game.row == rows[distances.argmax()]


def test_canaries_audit_one_more_training_of_each_model(made):
    """With 20 canaries a kind and 2 steps little can be proved; the numbers are consistent."""
    report, _ = made
    found = [entry.canaries for entry in report.entries]
    assert [each is None for each in found] == [False, False, True]
    for each in found[:2]:
        assert (each.num_canaries, each.relation, each.delta) == (20, "add_or_remove_one", 1e-4)
        assert 0 <= max(each.gradients, each.labels) <= each.ceiling < 2
        error = (1 - report.entries[0].findings.corrected_confidence) / 2
        assert each.confidence == pytest.approx(1 - error)
    page = reports.render(report)
    assert "<h2>Audit by canaries</h2>" in page
    assert "20 canaries of each kind" in page


def test_more_canaries_than_records_are_refused_before_training():
    settings = dataclasses.replace(SETTINGS, canaries=70)
    with pytest.raises(ValueError, match=r"at most \d+ canaries, .* got --canaries 70"):
        assemble(settings)


def test_the_game_refuses_groups():
    grouped = dataclasses.replace(
        data.load("digits").subset(np.arange(80)), group=np.repeat(np.arange(40), 2)
    )
    settings = dataclasses.replace(SETTINGS, sensitive=None)
    with pytest.raises(ValueError, match=r"Expected --unit record for --repetitions, as digits"):
        assembly.assemble(KEY, grouped, settings)


def test_every_model_and_every_defence_is_queried_for_the_sensitive_column(made):
    report, _ = made
    digits = data.load("digits").subset(np.arange(80))
    for entry in report.entries:
        inferred = entry.attribute
        assert (inferred.column, inferred.num_population) == ("ink", 8)
        assert inferred.num_values == len(np.unique(digits.x[:, INK]))
        assert [attack.has_prior for attack in inferred.attacks] == [False, True]
        for attack in inferred.attacks:
            assert attack.members.num_records == report.data.num_members
            assert attack.nonmembers.num_records == report.data.num_nonmembers
            assert attack.members.imputation == inferred.attacks[0].members.imputation
    assert "Inference of 'ink':" in reports.summary(report)


def test_the_evidence_can_be_attacked_again(made):
    report, folder = made
    for entry in report.entries:
        path = folder / entry.evidence
        assert path.stat().st_mode & 0o077 == 0
        evidence, is_member = evidence_lib.load(path)
        assert evidence.inputs is None
        assert is_member.sum() == report.data.num_members
        for attack in suite.applicable(examples.cheap_attacks(), evidence):
            scores = attack.run(KEY, evidence)
            again = metrics.membership(scores, is_member, confidence=0.95)._asdict()
            assert dataclasses.asdict(entry.findings.attack(attack.name).metrics) == again


@pytest.mark.slow
def test_a_resumed_report_trains_and_attacks_nothing_again(made, tmp_path, monkeypatch):
    report, folder = made

    def dies(*_, **__):
        raise AssertionError("trained or attacked again")

    monkeypatch.setattr(training.Checkpoints, "save", dies)
    attacks = [dataclasses.replace(a, run=dies) for a in examples.cheap_attacks()]
    folders = assembly.Folders(checkpoints=folder / "saved", evidence=tmp_path / "evidence")
    again = assemble(attacks=attacks, folders=folders)
    assert dataclasses.replace(again, run=report.run) == report


def test_the_promise_of_a_group_counts_its_records(monkeypatch):
    """The sampler leaves room for one more group, whose event bounds the group's guarantee."""
    monkeypatch.setattr(accounting, "calibrate", lambda *_, **__: 4.0)
    digits = dataclasses.replace(
        data.load("digits").subset(np.arange(120)), group=np.arange(120) // 3
    )
    split = partition.partition_records(KEY, digits, unit=None)
    network = _networks.network_for(digits, SETTINGS)
    messages = []
    recipe = _training.recipes(network, split, SETTINGS, log=messages.append)[1]
    promise = _training.promise(recipe, split, SETTINGS)
    assert promise.unit == "group"
    stated = promise.stated()
    assert (stated.unit, stated.size) == ("group", 3)
    num_members = int(split.is_member.sum())
    sampler = recipe.make_alg(num_members, None).sampler
    usual = sampling.poisson(num_members, sampling_prob=0.1).capacity
    assert sampler.capacity == min(num_members, usual + 3)
    record = promise.guarantees[0]
    assert record.epsilon == accounting.epsilon(
        sampler.event(noise_multiplier=4.0, steps=2), delta=1e-4, relation="add_or_remove_one"
    )
    assert stated.epsilon > 3 * record.epsilon
    assert messages[-1].endswith(f"a group, {_phrases.guarantee_text(stated)}")


@pytest.mark.parametrize(
    ("defence", "message"),
    [
        (("nothing",), "Expected defence to be one of"),
        (("top_k:k=x",), "number for k"),
        (("label_only", "label_only"), "Expected different defences"),
    ],
)
def test_impossible_defences_are_refused_before_training(defence, message):
    with pytest.raises(ValueError, match=message):
        assemble(dataclasses.replace(SETTINGS, defence=defence))


def test_a_file_of_scores_is_reported(tmp_path):
    evidence, is_member = examples.make_evidence(leak=1.0)
    path = tmp_path / "clinic.npz"
    evidence_lib.save(path, evidence, is_member)
    settings = Settings(scores=str(path), defence=("label_only",))
    report = assembly.assemble_outputs(KEY, settings, attacks=examples.cheap_attacks())
    assert [entry.name for entry in report.entries] == ["Given model", "Given model, label only"]
    assert report.data.name == "clinic"
    assert (report.data.num_members, report.data.num_records) == (is_member.sum(), 300)
    assert report.entries[0].recommendation == "do_not_publish"
    assert report.entries[0].findings.audit is None
    assert "clinic" in reports.render(report)
    np.savez(path, scores=np.zeros(5))
    with pytest.raises(ValueError, match=r"Expected the array 'is_member' in clinic\.npz"):
        assembly.assemble_outputs(KEY, settings)


def test_large_logits_are_stored_as_signals(tmp_path, monkeypatch):
    evidence, is_member = examples.make_evidence(leak=1.0, inputs=np.zeros((300, 2)))
    subject = subjects.Subject("A model", evidence, is_member, None, None)
    folders = assembly.Folders(evidence=tmp_path)
    options = {
        "defences": (),
        "attacks": examples.cheap_attacks(),
        "unit": units.records(300),
        "delta": 1e-5,
        "relation": "add_or_remove_one",
        "folders": folders,
    }
    for limit, keep_inputs in ((10**9, True), (100, False)):
        monkeypatch.setattr(_evidence_files, "_MAX_LOGIT_BYTES", limit)
        (entry,) = assembly.examine(KEY, subject, keep_inputs=keep_inputs, **options)
        stored, _ = evidence_lib.load(tmp_path / "a-model.npz")
        assert entry.evidence_has_logits == (limit > 100)
        assert (stored.inputs is not None) == keep_inputs
        assert (stored.logits is not None) == (limit > 100)
        by_name = {attack.name: attack for attack in examples.cheap_attacks()}
        np.testing.assert_allclose(
            by_name["lira"].run(KEY, stored), by_name["lira"].run(KEY, evidence), rtol=1e-5
        )
    page = reports.render(examples.make_report(entry))
    assert "has signals in place of its logits" in page


def people(num_classes=24, per_class=6):
    """A data set in which each class is a person."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(num_classes), per_class)
    x = rng.normal(size=(num_classes, 5))[labels] + 0.1 * rng.normal(size=(len(labels), 5))
    return data.Dataset(
        x=x.astype(np.float32), y=labels, name="people", num_classes=num_classes, source="made"
    )


CLASS_SETTINGS = dataclasses.replace(
    SETTINGS, unit="class", delta=1e-3, sampling_prob=0.3, defence=(), repetitions=None,
    canaries=None, sensitive=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def of_classes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "calibrate", lambda *_, **__: 4.0)
        return assembly.assemble(KEY, people(), CLASS_SETTINGS, attacks=examples.cheap_attacks())


def test_a_report_on_classes_has_class_level_dp_under_both_relations(of_classes):
    plain, private = of_classes.entries
    assert (of_classes.unit, plain.promise) == ("class", None)
    assert private.name == "Class-level DP-SGD, epsilon 8"
    assert private.training.optimizer == "class-level DP-SGD with Adam"
    event = accounting.poisson_event(
        noise_multiplier=private.training.noise_multiplier, sampling_prob=0.3, steps=2
    )
    expected = accounting.epsilon_by_relation(event, delta=1e-3)
    assert [(g.unit, g.size) for g in private.promise.guarantees] == [("class", 6)] * 2
    for one in private.promise.guarantees:
        assert one.epsilon == pytest.approx(getattr(expected, one.relation))
    assert (of_classes.inversion, of_classes.no_inversion) == (None, "the records are not images")
    page = reports.render(of_classes)
    assert "No model was inverted, since the records are not images." in page
    for text in ("one class added or removed", "one class replaced", "held-out records"):
        assert text in page
    assert "group" not in reports.summary(of_classes)


def test_classes_are_members_as_a_whole_and_accuracy_is_on_held_out_records(of_classes):
    pool = 24 - 3  # a tenth of the records is set aside
    for entry in of_classes.entries:
        metrics = entry.findings.strongest_attack().metrics
        assert metrics.num_members + metrics.num_nonmembers == pool
        assert entry.findings.audit.unit == "class"
        assert {exposed.label for exposed in entry.findings.exposed} <= set(range(24))
        assert "class" not in {slices.by for slices in entry.findings.slices}
        # A model that is tested on classes it has not seen would have no chance at all.
        assert entry.utility.majority < 2 / pool


@pytest.mark.slow
def test_models_of_images_are_inverted_with_dp_for_records_and_for_classes(monkeypatch, tmp_path):
    monkeypatch.setattr(accounting, "calibrate", lambda *_, **__: 4.0)
    monkeypatch.setattr(_inversion, "STEPS", 3)
    rng = np.random.default_rng(0)
    faces = rng.random((24, 6, 6, 1))[people().y] * 0.9 + 0.1 * rng.random((144, 6, 6, 1))
    dataset = dataclasses.replace(people(), x=faces.astype(np.float32))
    folders = assembly.Folders(checkpoints=tmp_path)
    report, again = (
        assembly.assemble(
            KEY, dataset, CLASS_SETTINGS, attacks=examples.cheap_attacks(), folders=folders
        )
        for _ in range(2)
    )
    assert again.inversion == report.inversion
    inverted = report.inversion
    names = ["Without DP", "Record-level DP-SGD, epsilon 8", "Class-level DP-SGD, epsilon 8"]
    assert [model.name for model in inverted.models] == names
    assert [model.promise and model.promise.unit for model in inverted.models] == [
        None, "record", "class",
    ]  # fmt: skip
    assert inverted.models[0].utility == report.entries[0].utility
    assert inverted.models[2].utility == report.entries[1].utility
    assert inverted.num_classes == inverted.num_candidates == 21
    assert inverted.originals == ()
    kept = dataclasses.replace(CLASS_SETTINGS, keep_inputs=True)
    shown = assembly.assemble(
        KEY, dataset, kept, attacks=examples.cheap_attacks(), folders=folders
    ).inversion
    assert len(shown.originals) == len(shown.labels) == 10


@pytest.mark.slow
def test_the_accuracy_on_classes_is_that_of_a_model_trained_on_all_of_them():
    settings = dataclasses.replace(
        CLASS_SETTINGS, epsilon=(), no_dp=True, delta=None, relation=None, width=32,
        plain_steps=60, plain_learning_rate=0.05, steps=Settings.steps,
        learning_rate=Settings.learning_rate,
    )  # fmt: skip
    report = assembly.assemble(KEY, people(), settings, attacks=examples.cheap_attacks())
    (entry,) = report.entries
    assert entry.utility.test > 0.8
    assert entry.findings.strongest_attack().metrics.auc > 0.9
    assert entry.recommendation == "do_not_publish"


def test_a_training_of_the_users_has_no_accuracy_by_class():
    settings = Settings(no_dp=True, unit="class", shadows=4)
    with pytest.raises(ValueError, match="Expected the unit record or group"):
        assembly.assemble(KEY, people(), settings, train=lambda key, records: None)


def test_a_defence_of_more_classes_is_refused_before_training(tmp_path):
    def train(key, records):
        raise AssertionError

    settings = Settings(no_dp=True, shadows=4, defence=("top_k:k=99",))
    with pytest.raises(ValueError, match="Expected k of at most"):
        assembly.assemble(KEY, people(), settings, train=train)

    def attacked(key, evidence):
        raise AssertionError

    attacks = [dataclasses.replace(a, run=attacked) for a in examples.cheap_attacks()]
    path = tmp_path / "scores.npz"
    evidence, is_member = examples.make_evidence(leak=0.0)
    evidence_lib.save(path, evidence, is_member)
    with pytest.raises(ValueError, match="Expected k of at most"):
        assembly.assemble_outputs(
            KEY, Settings(scores=str(path), defence=("top_k:k=99",)), attacks=attacks
        )
    np.savez(path, scores=np.arange(len(is_member)), is_member=is_member)
    with pytest.raises(ValueError, match="Expected logits for --defence, got scores alone"):
        assembly.assemble_outputs(
            KEY, Settings(scores=str(path), defence=("label_only",)), attacks=attacks
        )


def test_groups_of_members_and_nonmembers_are_refused_before_attacks(tmp_path):
    def attacked(key, evidence):
        raise AssertionError

    attacks = [dataclasses.replace(a, run=attacked) for a in examples.cheap_attacks()]
    path = tmp_path / "scores.npz"
    evidence, is_member = examples.make_evidence(leak=0.0, unit_id=np.arange(300) // 2 * 2)
    evidence_lib.save(path, evidence, is_member)
    with pytest.raises(ValueError, match="Expected one membership for all records of a group"):
        assembly.assemble_outputs(KEY, Settings(scores=str(path)), attacks=attacks)
    evidence = dataclasses.replace(evidence, unit_id=None)
    evidence_lib.save(path, evidence, np.ones(300, bool))
    with pytest.raises(ValueError, match="Expected members and non-members, got 300 and 0"):
        assembly.assemble_outputs(KEY, Settings(scores=str(path)), attacks=attacks)
