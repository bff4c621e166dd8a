"""`jaxpriv report`: flags, files and refusals. Most reports are made by hand."""

import dataclasses
import json
import os
import warnings

import jax
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from jaxpriv import reports, training
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.attacks import suite
from jaxpriv.cli import _pages
from jaxpriv.reports import _assessment
from tests.cli import killing
from tests.cli.running import run
from tests.reports import examples

NO_DP = ["report", "--no-dp", "--json"]
SMALL = ["--shadows", "4", "--width", "2", "--plain-steps", "2"]


def refused(capsys, *words):
    """The one line of an error that the user can correct."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    *warned, line = err.splitlines()
    assert all(text.startswith("warning: ") or "package" in text for text in warned)
    assert line.startswith("error: ")
    return line


@pytest.fixture
def by_hand(monkeypatch):
    """Reports of the given settings without training; the data sets that they would train on."""
    (entry,) = examples.make_entries(leak=1.0)
    datasets = []

    def assemble(key, dataset, settings, *, folders, log):
        datasets.append(dataset)
        folders.evidence.mkdir(parents=True)
        (folders.evidence / "without-dp.npz").write_bytes(b"evidence")
        return dataclasses.replace(examples.make_report(entry), settings=settings)

    monkeypatch.setattr(reports, "assemble", assemble)
    return datasets


@pytest.fixture
def few_attacks(monkeypatch):
    """A table of attacks that train no network, and one more."""
    table = (*examples.cheap_attacks(), examples.TOY)
    monkeypatch.setattr(suite, "attacks", lambda **_: table)


def test_a_report_is_resumed_and_equals_an_uninterrupted_one(
    capsys, tmp_path, monkeypatch, few_attacks
):
    words = [*NO_DP, *SMALL, "--seed", 1, "--out"]
    status, complete, err = run(capsys, *words, tmp_path / "complete")
    assert status == 0
    assert "training" in err
    stored = json.loads((tmp_path / "complete" / "report.json").read_text())
    assert stored == complete
    (entry,) = complete["entries"]
    by_name = {attack["name"]: attack for attack in entry["findings"]["attacks"]}
    evidence, is_member = evidence_lib.load(tmp_path / "complete" / entry["evidence"])
    expected = roc_auc_score(is_member, evidence.logits[:, 0])
    assert by_name["toy"]["metrics"]["auc"] == pytest.approx(expected)
    page = (tmp_path / "complete" / "report.html").read_text("utf8")
    assert "jaxpriv report --no-dp --json --shadows 4" in page
    assert "toy attack" in page

    def dies(*_, **__):
        raise ValueError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(_assessment.verdict, "compare", dies)
        assert run(capsys, *words, tmp_path / "r")[0] == 2
    assert list((tmp_path / "r" / ".checkpoints").rglob("manifest.json"))
    assert list((tmp_path / "r" / ".checkpoints").rglob("lira.npz"))
    assert "add --resume" in refused(capsys, *words, tmp_path / "r")
    with monkeypatch.context() as patch:
        patch.setattr(training.Checkpoints, "save", dies)
        status, resumed, _ = run(capsys, *words, tmp_path / "r", "--resume")
    assert status == 0
    assert {**resumed, "run": None} == {**complete, "run": None}
    names = sorted(path.name for path in (tmp_path / "r").iterdir())
    assert names == ["evidence", "report.html", "report.json"]

    after = np.random.default_rng().uniform(0, 2)
    assert killing.killed("toy", *words[:-1], out=tmp_path / "k", after=after), after
    status, resumed, _ = run(capsys, *words, tmp_path / "k", "--resume")
    assert status == 0
    assert {**resumed, "run": None} == {**complete, "run": None}, after


def test_a_file_of_scores_is_reported(capsys, tmp_path, few_attacks):
    evidence_lib.save(tmp_path / "clinic.npz", *examples.make_evidence(leak=1.0))
    words = ["report", "--scores", tmp_path / "clinic.npz", "--defence", "label_only", "--json"]
    status, found, _ = run(capsys, *words, "--out", tmp_path / "out")
    assert status == 0
    assert [entry["name"] for entry in found["entries"]] == [
        "Given model", "Given model, label only",
    ]  # fmt: skip
    assert found["entries"][0]["findings"]["leaks"]
    assert found["settings"]["scores"].endswith("clinic.npz")
    assert (tmp_path / "out" / "evidence" / "given-model.npz").exists()
    line = refused(capsys, *words, "--shadows", 8, "--out", tmp_path / "other")
    assert "Expected no --shadows with --scores" in line


def test_the_terminal_shows_a_row_for_each_model(capsys, tmp_path, few_attacks):
    evidence_lib.save(tmp_path / "clinic.npz", *examples.make_evidence(leak=1.0))
    words = ["report", "--scores", tmp_path / "clinic.npz", "--out", tmp_path / "out"]
    claim = ["--claimed-epsilon", 2, "--delta", 1e-4, "--relation", "replace_one"]
    for options, epsilon in (([], "not stated"), ([*claim, "--overwrite"], "2.00")):
        _, text, _ = run(capsys, *words, *options)
        header, row, *_ = text.splitlines()
        assert header.split()[:3] == ["model", "accuracy", "epsilon"]
        (entry,) = json.loads((tmp_path / "out" / "report.json").read_text())["entries"]
        assert row.startswith("Given model")
        assert "do not publish" in row or epsilon == "2.00"
        assert f"  {epsilon}  " in row
        findings = entry["findings"]
        by_name = {attack["name"]: attack for attack in findings["attacks"]}
        assert f"{by_name[findings['strongest']]['metrics']['auc']:.3f} (" in row
        assert f"{len(findings['leaks'])} of {len(by_name)}" in row


def test_without_a_seed_the_key_is_secret_and_survives_a_kill(tmp_path):
    """Two reports differ; a resumed one has the key of the interrupted one."""
    keys = [_pages.secret_key(tmp_path / name) for name in ("a", "b", "a")]
    data = [tuple(jax.random.key_data(key).tolist()) for key in keys]
    assert data[0] == data[2] != data[1]
    assert (tmp_path / "a" / "key").stat().st_mode & 0o077 == 0


def test_the_seed_is_stored_and_the_secret_key_is_not(capsys, tmp_path, by_hand):
    _, found, _ = run(capsys, *NO_DP, "--seed", 7, "--out", tmp_path / "seeded")
    assert found["run"]["seed"] == 7
    assert "prints the seed of the run, 7" in (tmp_path / "seeded" / "report.html").read_text()
    _, found, _ = run(capsys, *NO_DP, "--out", tmp_path / "secret")
    assert found["run"]["seed"] is None
    assert sorted(path.name for path in (tmp_path / "secret").iterdir()) == [
        "evidence", "report.html", "report.json",
    ]  # fmt: skip


def test_a_report_is_replaced_only_when_asked_and_only_by_a_complete_one(
    capsys, tmp_path, by_hand, monkeypatch
):
    out = tmp_path / "out"
    words = [*NO_DP, "--out", out]
    assert run(capsys, *words)[0] == 0
    (out / "notes.txt").write_text("keep this")
    (out / "evidence" / "old-model.npz").write_bytes(b"old")
    before = (out / "report.json").read_bytes()
    assert "add --overwrite to replace the report" in refused(capsys, *words)
    assert "add --overwrite to replace the report" in refused(capsys, *words, "--resume")

    def dies(*_, **__):
        raise ValueError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(reports, "assemble", dies)
        assert run(capsys, *words, "--overwrite")[0] == 2
    assert (out / "report.json").read_bytes() == before
    assert (out / "evidence" / "old-model.npz").exists()
    assert run(capsys, *words, "--overwrite", "--seed", 3)[0] == 0
    assert (out / "report.json").read_bytes() != before
    assert (out / "notes.txt").read_text() == "keep this"
    assert [path.name for path in (out / "evidence").iterdir()] == ["without-dp.npz"]
    assert not (out / ".checkpoints").exists()


@pytest.mark.parametrize("option", ["--steps", "--learning-rate"])
def test_options_of_dp_sgd_are_refused_without_dp(capsys, tmp_path, by_hand, option):
    line = refused(capsys, *NO_DP, option, 3, "--out", tmp_path / "out")
    assert f"Expected no {option} with --no-dp, whose options are --plain-steps" in line
    assert by_hand == []


@pytest.mark.parametrize("options", [[], ["--overwrite"], ["--resume"]])
@pytest.mark.parametrize("name", ["evidence/photo.jpg", "evidence", "report.pdf"])
def test_files_of_another_kind_are_not_replaced(capsys, tmp_path, by_hand, name, options):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("keep this")
    line = refused(capsys, *NO_DP, "--out", tmp_path / "out", *options)
    assert "Expected a report to replace" in line
    (tmp_path / "out" / "report.json").write_text("{}")
    if options == ["--overwrite"] and name != "report.pdf":
        line = refused(capsys, *NO_DP, "--out", tmp_path / "out", *options)
        assert "Expected only files of a report" in line
    assert by_hand == []
    assert path.read_text() == "keep this"


def test_a_report_does_not_replace_the_file_that_it_reads(capsys, tmp_path, few_attacks):
    out = tmp_path / "out"
    (out / "evidence").mkdir(parents=True)
    (out / "report.json").write_text("{}")
    path = out / "evidence" / "mine.npz"
    evidence_lib.save(path, *examples.make_evidence(leak=1.0))
    audit = ["--design", "one_run", "--delta", 0, "--relation", "replace_one"]
    for words in (["report", "--scores", path], ["attack", path], ["audit", path, *audit]):
        line = refused(capsys, *words, "--out", out, "--overwrite")
        assert "Expected an input outside of the report that is replaced" in line
    assert path.exists()


def test_resume_without_an_interrupted_report_says_so(capsys, tmp_path, by_hand):
    status, _, err = run(capsys, *NO_DP, "--resume", "--out", tmp_path / "out")
    assert status == 0
    assert "no interrupted report in" in err


def test_an_output_that_cannot_be_written_is_refused_before_training(capsys, tmp_path, by_hand):
    (tmp_path / "file").write_text("text")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        line = refused(capsys, *NO_DP, "--out", out)
        assert f"got {out}: {tmp_path / 'file'} is a file" in line
    if os.getuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "not writable" in refused(capsys, *NO_DP, "--out", tmp_path / "closed" / "r")
    assert by_hand == []
    assert (tmp_path / "file").read_text() == "text"


def test_flags_take_precedence_over_the_config_file(capsys, tmp_path, by_hand):
    path = tmp_path / "settings.toml"
    path.write_text('epsilon = [2.0, 8.0]\ndelta = 1e-4\nrelation = "replace_one"\nwidth = 3\n')
    words = ["report", "--json", "--config", path, "--out"]
    _, found, _ = run(capsys, *words, tmp_path / "a")
    assert found["settings"]["epsilon"] == [2.0, 8.0]
    assert (found["settings"]["width"], found["settings"]["shadows"]) == (3, 16)
    words[2:4] = [f"--config={path}"]
    _, found, _ = run(capsys, *words, tmp_path / "b", "--epsilon", 1, "--width", 5)
    assert (found["settings"]["epsilon"], found["settings"]["width"]) == ([1.0], 5)
    path.write_text("depth = 3\n")
    assert "got 'depth'; the settings are" in refused(capsys, *words, tmp_path / "c")
    path.unlink()
    assert "No such file" in refused(capsys, *words, tmp_path / "c")


def test_classes_of_a_csv_keep_their_names(capsys, tmp_path, by_hand):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal()},{rng.integers(1e6)},{rng.choice(['sick', 'well'])}" for _ in range(60)]
    (tmp_path / "my.csv").write_text("\n".join(["size,income,kind", *rows, rows[0]]))
    words = [*NO_DP, "--data", tmp_path / "my.csv"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, err = run(capsys, *words, "--out", tmp_path / "out", "--label", "kind")
    assert status == 0
    assert "warning: 1 of 61 records" in err
    assert by_hand[0].class_names == ("sick", "well")
    line = refused(capsys, *words, "--out", tmp_path / "b", "--label", "nope")
    assert "Expected one column 'nope'" in line
    assert "label column" in refused(capsys, *words, "--out", tmp_path / "b")


def test_a_sensitive_column_must_be_an_input_with_few_values(capsys, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal()},{rng.integers(3)},{rng.choice(['sick', 'well'])}" for _ in range(60)]
    (tmp_path / "my.csv").write_text("\n".join(["size,ward,kind", *rows]))
    words = [
        *NO_DP,
        *SMALL,
        "--data",
        tmp_path / "my.csv",
        "--label",
        "kind",
        "--out",
        tmp_path / "a",
    ]
    line = refused(capsys, *words, "--sensitive", "race")
    assert line.endswith("got 'race'; the columns are size, ward.")
    line = refused(capsys, *words, "--sensitive", "size")
    assert "Expected a column of 2 to 50 values for --sensitive, got 'size' with 60." in line
    line = refused(capsys, *NO_DP, "--sensitive", "ink", "--out", tmp_path / "a")
    assert "got digits, whose inputs have no names" in line
    assert not (tmp_path / "a").exists()


def test_classes_of_a_folder_are_its_folders(capsys, tmp_path, by_hand):
    rng = np.random.default_rng(0)
    for i in range(44):
        file = tmp_path / "faces" / f"person{i % 4}" / f"{i}.pgm"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"P5 2 3 255\n" + rng.integers(0, 256, (3, 2), np.uint8).tobytes())
    words = [*NO_DP, "--data", tmp_path / "faces", "--out", tmp_path / "out"]
    assert run(capsys, *words)[0] == 0
    assert by_hand[0].class_names == ("person0", "person1", "person2", "person3")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--epsilon 2",
        "--epsilon 2 --delta 1e-4",
        "--delta 1e-4 --relation replace_one",
        "--no-dp --epsilon 2 --delta 1e-4 --relation replace_one",
        "--no-dp --delta 1e-4",
        "--no-dp --data nothing",
        "--no-dp --shadows 3",
        "--no-dp --unit group",
        "--no-dp --defence nothing",
        "--no-dp --defence top_k:k=0",
        "--no-dp --defence top_k:k=0 --defence label_only",
        "--no-dp --defence adversarial:weight=0",
        "--epsilon -2 --delta 1e-4 --relation replace_one",
        "--epsilon 2 --delta 4 --relation replace_one",
        "--scores none.npz",
        "--scores none.npz --no-dp",
    ],
)
def test_impossible_reports_are_one_line(capsys, words, tmp_path):
    line = refused(capsys, "report", *words.split(), "--out", tmp_path / "r")
    assert line.startswith("error: Expected")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "Expected one of {report, attack, audit, "),
        ("nothing", "Unrecognized options: nothing. Available subcommands: report, "),
        ("report --defnce none", "Unrecognized options: --defnce, none. Perhaps you meant: "),
        ("report --shadows many", "Error parsing --shadows: invalid literal for int"),
        ("report --relation x", "Invalid choice 'x' for argument '--relation'"),
        ("epsilon --noise-multiplier 1 --steps 2", "Missing from jaxpriv epsilon: --sampling-prob"),
        ("report --delta", "See jaxpriv --help."),
    ],
)
def test_bad_usage_is_one_line_and_exits_2(capsys, words, message):
    line = refused(capsys, *words.split())
    assert message in line
    assert line.endswith("See jaxpriv --help.")


def test_help_is_printed_and_exits_0(capsys):
    status, out, err = run(capsys, "report", "--help")
    assert (status, err) == (0, "")
    assert "--overwrite" in out
    assert "noise multiplier" not in out
