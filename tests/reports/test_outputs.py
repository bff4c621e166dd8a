"""Reports on models that the user trained: by queries, or by a training function."""

import dataclasses

import jax
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from jaxpriv import accounting, data, reports, sampling
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.reports import _entry_wording, assembly
from jaxpriv.reports.settings import Settings
from tests.reports import examples

KEY = jax.random.key(5)
N, NUM_CLASSES = 60, 3
CLAIM = {"claimed_epsilon": 2.0, "delta": 1e-4}

MODEL = """
import numpy as np

SEEN = np.load({path!r})["x"]


def predict(x):
    '''Is sure of the records that it was trained on.'''
    known = (np.abs(x[:, None] - SEEN[None]).sum(axis=(2,)) < 1e-6).any(axis=1)
    logits = np.zeros((len(x), 3))
    logits[np.arange(len(x)), (x[:, 0] * 2.99).astype(int)] = np.where(known, 8.0, 1.0)
    return logits


def probabilities(x):
    odds = np.exp(predict(x))
    return odds / odds.sum(axis=1, keepdims=True)


def narrow(x):
    return np.zeros(len(x))


def nan(x):
    return np.full((len(x), 3), np.nan)


def two(x):
    return np.zeros((len(x), 2))


def fails(x):
    raise RuntimeError("no weights")
"""


@pytest.fixture
def files(tmp_path):
    """Members and non-members, and a model that remembers its members."""
    rng = np.random.default_rng(0)
    for name in ("members", "nonmembers"):
        x = rng.random((N, 4)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x[:, 0] * 2.99).astype(int))
    (tmp_path / "model.py").write_text(MODEL.format(path=str(tmp_path / "members.npz")))
    return tmp_path


def test_records_in_both_files_are_found(files):
    members = dict(np.load(files / "members.npz"))
    np.savez(files / "nonmembers.npz", **members)
    with pytest.raises(ValueError, match="of which every record is also in members"):
        assemble(settings(files))
    members["x"][1:] += 0.001
    np.savez(files / "nonmembers.npz", **members)
    with pytest.warns(UserWarning, match="1 records are in both --members and --nonmembers"):
        assemble(settings(files))


def settings(files, function="predict", **options):
    return Settings(
        predict=f"{files / 'model.py'}:{function}",
        members=str(files / "members.npz"),
        nonmembers=str(files / "nonmembers.npz"),
        **options,
    )


def assemble(given, **options):
    chosen = {"attacks": examples.cheap_attacks()}
    return assembly.assemble_outputs(KEY, given, **chosen | options)


def test_a_trained_model_is_queried(files):
    report = assemble(settings(files))
    (entry,) = report.entries
    assert entry.findings.attack("negative_loss").metrics.auc == 1.0
    assert entry.recommendation == "do_not_publish"
    assert (report.data.num_members, report.data.num_nonmembers) == (N, N)
    assert (entry.promise, entry.training, entry.findings.audit) == (None, None, None)
    assert {m.name for m in entry.findings.missing} >= {"lira", "lira_offline"}
    assert "members and nonmembers" in reports.render(report)


def test_probabilities_are_recognised(files):
    of_logits, of_probabilities = (
        assemble(settings(files, name)) for name in ("predict", "probabilities")
    )
    found, expected = (
        report.entries[0].findings.attack("entropy").metrics.auc
        for report in (of_probabilities, of_logits)
    )
    assert found == pytest.approx(expected)
    assert any("probabilities" in note for note in of_probabilities.data.notes)


def test_outputs_of_shadow_models_come_from_a_file(files):
    rng = np.random.default_rng(1)
    half = rng.random((4, 2 * N)) < 0.5
    logits = rng.normal(size=(8, 2 * N, NUM_CLASSES)).astype(np.float32)
    path = files / "shadows.npz"
    np.savez(path, shadow_logits=logits, shadow_is_member=np.concatenate([half, ~half]))
    report = assemble(settings(files, shadows_file=str(path)))
    assert report.entries[0].findings.num_shadows == 8
    assert report.entries[0].findings.attack("lira").metrics.num_members == N
    with_more = {"shadow_logits": logits[:4], "shadow_is_member": half, "group": np.arange(2 * N)}
    np.savez(path, **with_more)
    with pytest.warns(UserWarning, match=r"shadows\.npz: unused arrays: group"):
        assemble(settings(files, shadows_file=str(path)))
    np.savez(path, shadow_logits=logits[:, 1:], shadow_is_member=half)
    with pytest.raises(ValueError, match=r"Expected shadow_logits of shape \[models, 120, 3\]"):
        assemble(settings(files, shadows_file=str(path)))
    np.savez(path, shadow_logits=logits)
    with pytest.raises(ValueError, match=r"Expected the array 'shadow_is_member' in shadows\.npz"):
        assemble(settings(files, shadows_file=str(path)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("narrow", r"Expected logits of shape \[120, classes\] from .*, got shape \[120\]"),
        ("nan", "Expected logits without NaN"),
        ("two", "Expected one output for each of the 3 classes, got 2 outputs"),
        ("fails", r"got RuntimeError: no weights in model.py, line \d+"),
        ("nothing", "Expected the function 'nothing' in model.py"),
    ],
)
def test_a_wrong_function_is_one_line(files, function, message):
    with pytest.raises(ValueError, match=message) as error:
        assemble(settings(files, function))
    assert "\n" not in str(error.value)


def test_files_that_differ_are_refused(files):
    x = np.random.default_rng(2).random((N, 5))
    np.savez(files / "nonmembers.npz", x=x, y=np.arange(N) % 3)
    with pytest.raises(ValueError, match=r"members and non-members of one shape, got \[4\] in mem"):
        assemble(settings(files))


def test_classes_that_are_numbers_are_outputs_in_their_order(files):
    """The 12 classes 1 to 12; as text, 10 would come before 2."""
    rng = np.random.default_rng(0)
    for name in ("members", "nonmembers"):
        x = rng.random((N, 1))
        np.savez(files / f"{name}.npz", x=x, y=1 + (x[:, 0] * 12).astype(int))
    (files / "model.py").write_text(
        "import numpy as np\n\n\ndef predict(x):\n"
        "    return np.eye(12)[(x[:, 0] * 12).astype(int)] + 1e8 * np.ones(12)\n"
    )
    report = assemble(settings(files))
    assert report.entries[0].utility.test == 1.0
    assert report.data.class_names[:3] == ("1", "2", "3")


def test_groups_in_one_file_are_refused(files):
    with np.load(files / "members.npz") as stored:
        arrays = dict(stored)
    np.savez(files / "members.npz", **arrays, group=np.arange(N) // 2)
    with pytest.raises(ValueError, match="got groups in members alone"):
        assemble(settings(files))


def test_columns_in_another_order_are_refused(files):
    rows = [f"{0.37 * i:.2f},{i / 7},{i % 3}" for i in range(N)]
    for name, header in (("members", "a,b,y"), ("nonmembers", "b,a,y")):
        (files / f"{name}.csv").write_text("\n".join([header, *rows]))
    given = dataclasses.replace(
        settings(files, label="y"),
        members=str(files / "members.csv"),
        nonmembers=str(files / "nonmembers.csv"),
    )
    with pytest.raises(ValueError, match=r"same columns in the same order .* \['b', 'a'\]"):
        assemble(given)


def test_categories_of_two_tables_are_refused(files):
    """Each file would number its categories by itself."""
    for name, words in (("members", "ab"), ("nonmembers", "cb")):
        rows = [f"{words[i % 2]},{0.37 * (i * i % 61):.2f},{i % 3}" for i in range(N)]
        (files / f"{name}.csv").write_text("\n".join(["word,number,y", *rows]))
    given = settings(files, label="y")
    given = dataclasses.replace(
        given, members=str(files / "members.csv"), nonmembers=str(files / "nonmembers.csv")
    )
    with pytest.raises(ValueError, match=r"conversion does not depend on the file .* word"):
        assemble(given)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_claim_is_stated_and_not_verified(files, relation):
    report = assemble(settings(files, relation=relation, **CLAIM))
    (entry,) = report.entries
    assert entry.promise.is_claim
    assert [g.relation for g in entry.promise.guarantees] == [relation]
    assert entry.promise.stated().epsilon == 2.0
    text = _entry_wording.recommendation(entry, seed=None)
    assert text.startswith("Publish if the claimed epsilon of 2.00 holds, which this report cannot")
    page = reports.render(report)
    assert "claimed, not verified" in page
    assert "(claimed)" in page


def test_a_claim_for_records_does_not_cover_groups(files):
    for name in ("members", "nonmembers"):
        with np.load(files / f"{name}.npz") as stored:
            arrays = dict(stored)
        np.savez(files / f"{name}.npz", **arrays, group=np.arange(N) // 2)
    assert assemble(settings(files)).unit == "group"
    with pytest.raises(ValueError, match="Expected records without groups for --claimed-epsilon"):
        assemble(settings(files, relation="replace_one", **CLAIM))


def test_a_vacuous_claim_protects_nothing(files):
    claim = {"claimed_epsilon": 50.0, "delta": 1e-4, "relation": "add_or_remove_one"}
    (entry,) = assemble(settings(files, **claim)).entries
    assert entry.recommendation == "do_not_publish"
    assert "the guarantee is vacuous" in _entry_wording.recommendation(entry, seed=None)


def forest(key, records):
    """A training of the user's, in scikit-learn."""
    seed = int(jax.random.bits(key, dtype=np.uint32))
    model = RandomForestClassifier(n_estimators=5, random_state=seed).fit(records.x, records.y)

    def predict(x):
        probs = np.zeros((len(x), records.num_classes))
        probs[:, model.classes_] = model.predict_proba(x)
        return np.log(np.maximum(probs, 1e-3))

    return predict


def test_any_training_function_is_reported_and_resumed(tmp_path):
    digits = data.load("digits").subset(np.arange(120))
    given = Settings(no_dp=True, shadows=4)
    calls = []

    def counted(key, records):
        calls.append(len(records))
        return forest(key, records)

    options = {
        "attacks": examples.cheap_attacks(),
        "folders": assembly.Folders(checkpoints=tmp_path / "saved", evidence=tmp_path / "evidence"),
    }
    report = assembly.assemble(KEY, digits, given, train=counted, **options)
    assert len(calls) == 5
    (entry,) = report.entries
    assert entry.findings.attack("lira").metrics.auc > 0.6
    assert entry.findings.audit is not None
    evidence, is_member = evidence_lib.load(tmp_path / entry.evidence)
    assert evidence.shadow_logits.shape[0] == 4
    assert calls[0] == is_member.sum()
    again = assembly.assemble(KEY, digits, given, train=counted, **options)
    assert len(calls) == 5
    assert dataclasses.replace(again, run=report.run) == report
    assembly.assemble(jax.random.key(6), digits, given, train=counted, **options)
    assert len(calls) == 10  # outputs of another key are not taken


def test_the_event_of_a_training_function_gives_its_guarantee():
    """It is a claim: the report does not see the training."""
    digits = data.load("digits").subset(np.arange(120))
    promised = Settings(delta=1e-3, relation="add_or_remove_one", shadows=4)
    counts = []

    def event(n):
        counts.append(n)
        return sampling.poisson(n, sampling_prob=0.1).event(noise_multiplier=2.0, steps=60)

    options = {"train": forest, "event": event}
    report = assembly.assemble(KEY, digits, promised, attacks=examples.cheap_attacks(), **options)
    (entry,) = report.entries
    (n,) = counts
    assert n == entry.findings.strongest_attack().metrics.num_members
    assert entry.promise.is_claim
    for relation in ("add_or_remove_one", "replace_one"):
        expected = accounting.epsilon(event(n), delta=1e-3, relation=relation)
        assert entry.promise.of(relation).epsilon == expected
    text = _entry_wording.model_sentences(entry, "record")[0]
    assert text.startswith("Claimed guarantee: ")
    assert text.endswith("which this report does not verify.")
    with pytest.raises(ValueError, match="Expected no --no-dp with the event"):
        assembly.assemble(KEY, digits, Settings(no_dp=True), **options)
    with pytest.raises(ValueError, match="Expected delta and relation"):
        assembly.assemble(KEY, digits, Settings(delta=1e-3), **options)
    with pytest.raises(ValueError, match="Expected train"):
        assembly.assemble(KEY, digits, promised, event=event)
    grouped = dataclasses.replace(digits, group=np.arange(120) // 2)
    with pytest.raises(ValueError, match="Expected records without groups with event"):
        assembly.assemble(KEY, grouped, promised, **options)


def test_settings_that_a_training_function_ignores_are_refused():
    digits = data.load("digits").subset(np.arange(120))
    for changes in ({"width": 8}, {"model": "cnn"}, {"plain_steps": 3}):
        with pytest.raises(ValueError, match=r"Expected no --.* for a training of the user's"):
            assembly.assemble(KEY, digits, Settings(no_dp=True, **changes), train=forest)
    with pytest.raises(ValueError, match=r"shape .* from predict, got"):
        assembly.assemble(
            KEY, digits, Settings(no_dp=True), train=lambda key, records: lambda x: x[:, :2]
        )
