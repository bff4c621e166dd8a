"""`jaxpriv attack`: metrics, the suite on a file, slices, and what it says of the file."""

import io
import json
import warnings
import zipfile

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from jaxpriv import reports
from jaxpriv.attacks import Attack, suite
from tests.cli.running import refusal, run


@pytest.fixture
def scores_file(tmp_path):
    rng = np.random.default_rng(0)
    is_member = np.arange(600) < 250
    scores = rng.normal(is_member * 0.5, 1)
    path = tmp_path / "scores.npz"
    np.savez(path, scores=scores, is_member=is_member)
    return path, scores, is_member


def test_attack_reports_the_metrics_of_a_numpy_file(capsys, scores_file):
    path, scores, is_member = scores_file
    status, found, _ = run(capsys, "attack", path, "--json")
    assert status == 0
    assert found["auc"] == pytest.approx(roc_auc_score(is_member, scores))
    assert found["auc_interval"][0] < found["auc"] < found["auc_interval"][1]
    assert (found["num_members"], found["num_nonmembers"]) == (250, 350)
    assert found["tpr_at_fpr"]["0.01"] is not None
    assert found["tpr_at_fpr"]["0.001"] is None
    _, text, _ = run(capsys, "attack", path)
    assert "not resolvable with 350 non-members" in text
    assert "coarse" in text


def test_attack_adds_lira_where_shadow_scores_are(capsys, tmp_path):
    rng = np.random.default_rng(1)
    difficulty = rng.normal(0, 5, 400)
    is_member, shadow_is_member = rng.random(400) < 0.5, rng.random((32, 400)) < 0.5
    path = tmp_path / "with_shadows.npz"
    np.savez(
        path,
        scores=(difficulty + 2 * is_member + rng.normal(size=400)).astype(np.float32),
        is_member=is_member.astype(int),
        shadow_scores=difficulty + 2 * shadow_is_member + rng.normal(size=(32, 400)),
        shadow_is_member=shadow_is_member,
    )
    _, found, _ = run(capsys, "attack", path, "--json")
    assert found["auc"] < 0.7
    assert found["attacks"]["lira"]["auc"] > 0.85
    assert 0.7 < found["attacks"]["lira_offline"]["auc"] < found["attacks"]["lira"]["auc"]
    assert found["gap_baseline"] is None
    assert found["slices"] == {}
    assert found["strongest"] in ("lira", "lira_fixed")
    assert "LiRA is unreliable" not in run(capsys, "attack", path)[1]


def test_attack_scores_logits_and_slices_by_class_and_group(capsys, tmp_path):
    rng = np.random.default_rng(2)
    is_member, labels = rng.random(600) < 0.5, rng.integers(0, 3, 600)
    logits = rng.normal(size=(600, 3)) + 2 * np.eye(3)[labels] * (1 + is_member[:, None])
    held = {"is_member": is_member, "logits": logits.astype(np.float16), "labels": labels}
    path = tmp_path / "logits.npz"
    group = np.where(np.arange(600) < 5, "few", "many")
    np.savez(path, scores=logits[np.arange(600), labels], group=group, **held)
    _, found, _ = run(capsys, "attack", path, "--json")
    correct = logits.argmax(1) == labels
    gap = (1 + correct[is_member].mean() - correct[~is_member].mean()) / 2
    assert found["gap_baseline"] == pytest.approx(gap, abs=0.01)
    losses = found["attacks"]["negative_loss"]["auc"]
    assert losses > 0.6
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = roc_auc_score(is_member, log_p[np.arange(600), labels])
    assert losses == pytest.approx(expected, abs=2e-3)
    assert [part["value"] for part in found["slices"]["class"]] == [0, 1, 2]
    few, many = found["slices"]["group"]
    assert few["auc"] is None
    assert few["reason"]
    assert many["auc"] is not None
    _, text, _ = run(capsys, "attack", path)
    assert "by loss decile:" in text
    np.savez(path, scores=logits[:, 0], **{**held, "labels": labels + 1})
    status, _, err = run(capsys, "attack", path)
    assert status == 2
    assert "Expected labels in 0..2, got 3" in err


def test_labels_may_be_far_apart(capsys, tmp_path):
    rng = np.random.default_rng(1)
    shadow = rng.random((8, 200)) < 0.5
    held = {"scores": rng.normal(size=200), "is_member": rng.random(200) < 0.5}
    held |= {"shadow_scores": rng.normal(size=(8, 200)), "shadow_is_member": shadow}
    path = tmp_path / "scores.npz"
    np.savez(path, labels=rng.choice([3, 2**31 - 2], 200), **held)
    status, found, _ = run(capsys, "attack", path, "--json")
    assert status == 0
    assert "threshold_per_class" in found["attacks"]
    assert "With only 8 shadow models LiRA is unreliable" in run(capsys, "attack", path)[1]
    np.savez(path, labels=np.full(200, 2**31), **held)
    assert run(capsys, "attack", path)[0] == 2
    np.savez(path, **{**held, "shadow_is_member": np.ones((8, 200))})
    status, found, _ = run(capsys, "attack", path, "--json")
    assert (status, list(found["attacks"])) == (0, ["signals"])
    assert found["not_applicable"]["lira"] == "needs IN and OUT shadow models"
    np.savez(path, **{**held, "shadow_is_member": np.zeros((8, 200))})
    _, found, _ = run(capsys, "attack", path, "--json")
    assert list(found["attacks"]) == [
        "signals",
        "attack_r",
        "lira_offline",
        "lira_offline_density",
    ]


def test_misspelt_arrays_are_refused_and_useless_ones_named(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    good = {"scores": np.arange(20.0), "is_member": np.arange(20) % 2}
    for wrong, right in (
        ("shadow_score", "shadow_scores"),
        ("label", "labels"),
        ("ismember", "is_member"),
        ("Logits", "logits"),
    ):
        arrays = {k: v for k, v in good.items() if k != right} | {wrong: np.zeros(20)}
        np.savez(path, **arrays)
        message = refusal(capsys, "attack", path)
        assert f"Expected the array '{right}' in scores.npz, got '{wrong}'" in message
    np.savez(path, **good, epoch=np.arange(3))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, err = run(capsys, "attack", path)
    assert (status, err) == (0, "warning: scores.npz: unused arrays: epoch.\n")


def test_a_file_without_scores_is_told_the_names_that_it_has(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, is_member=np.arange(9) % 2, labels=np.zeros(9, int))
    message = refusal(capsys, "attack", path)
    assert "'scores' or 'logits' in scores.npz, got is_member, labels" in message
    np.savez(path, scores=np.arange(9.0))
    assert "Expected the array 'is_member'" in refusal(capsys, "attack", path)


@pytest.mark.parametrize("shape", [(0, 9), (0,), (2, 8)])
def test_shadow_scores_of_no_model_or_other_records_are_one_line(capsys, tmp_path, shape):
    path = tmp_path / "scores.npz"
    shadows = {"shadow_scores": np.zeros(shape), "shadow_is_member": np.zeros(shape, bool)}
    np.savez(path, scores=np.arange(9.0), is_member=np.arange(9) % 2, **shadows)
    assert "Expected shadow_scores of shape [m, n]" in refusal(capsys, "attack", path).replace(
        "[m, 9]", "[m, n]"
    )


def test_shadow_models_on_the_last_axis_and_one_logit_name_the_shape(capsys, tmp_path):
    path, shape = tmp_path / "scores.npz", (9, 2)
    shadows = {"shadow_scores": np.zeros(shape), "shadow_is_member": np.zeros(shape, bool)}
    np.savez(path, scores=np.arange(9.0), is_member=np.arange(9) % 2, **shadows)
    message = refusal(capsys, "attack", path)
    assert "Expected shadow_scores of shape [m, 9], got [9, 2]" in message
    np.savez(path, logits=np.zeros((9, 1)), is_member=np.arange(9) % 2)
    assert "saved as the columns 0 and z" in refusal(capsys, "attack", path)


def test_reversed_scores_are_remarked(capsys, tmp_path, scores_file):
    path, scores, is_member = scores_file
    assert run(capsys, "attack", path, "--json")[1]["scores_may_be_reversed"] is False
    np.savez(path, scores=-scores, is_member=is_member)
    _, found, _ = run(capsys, "attack", path, "--json")
    assert found["scores_may_be_reversed"] is True
    assert found["auc_interval"][1] < 0.5
    _, text, _ = run(capsys, "attack", path)
    assert "the scores may be reversed" in text
    assert "no leak found; the scores given may be reversed" in text


def test_a_file_of_another_kind_or_other_names_is_one_line(capsys, tmp_path):
    table, path = tmp_path / "scores.csv", tmp_path / "scores.npz"
    table.write_text("loss,in_train\n0.5,1\n")
    assert "numpy.savez writes one from arrays" in refusal(capsys, "attack", table)
    np.savez(path, labels=np.arange(9), group=np.arange(9))
    assert "Expected the arrays 'is_member' and 'scores' or 'logits'" in refusal(
        capsys, "attack", path
    )


def classified(path, *, num_groups=3, records=600):
    rng = np.random.default_rng(3)
    is_member, labels = rng.random(records) < 0.5, rng.integers(0, 3, records)
    logits = rng.normal(size=(records, 3)) + np.eye(3)[labels] * (1 + 2 * is_member[:, None])
    group = np.arange(records) % num_groups
    np.savez(path, logits=logits, labels=labels, is_member=is_member, group=group)
    return logits.argmax(1) == labels, is_member, labels


def test_logits_alone_have_no_given_scores_but_an_accuracy_and_a_baseline(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    correct, is_member, labels = classified(path)
    _, found, _ = run(capsys, "attack", path, "--json")
    assert found["auc"] is found["tpr_at_fpr"] is found["auc_interval"] is None
    train, test = correct[is_member].mean(), correct[~is_member].mean()
    assert found["accuracy"]["train"] == pytest.approx(train)
    assert found["accuracy"]["test"] == pytest.approx(test)
    assert found["accuracy"]["majority_class"] == pytest.approx(np.bincount(labels).max() / 600)
    assert found["gap_baseline"] == pytest.approx((1 + train - test) / 2)
    assert "signals" not in found["attacks"]
    _, text, _ = run(capsys, "attack", path)
    assert f"accuracy: {train:.4f} on members, {test:.4f} on non-members" in text
    assert f"gap baseline: {found['gap_baseline']:.4f}" in text


def test_of_250_groups_the_text_names_how_many_are_shown(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    classified(path, num_groups=250, records=750)
    _, found, _ = run(capsys, "attack", path, "--json")
    assert (len(found["slices"]["group"]), found["num_parts"]["group"]) == (100, 250)
    _, text, _ = run(capsys, "attack", path)
    assert "by group, the 100 largest of 250:" in text


def test_empty_deciles_are_listed(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    is_member = np.arange(60) % 2 == 0
    logits = np.tile([2.0, 0.0], (60, 1))
    logits[:6] = [0.0, 2.0]
    np.savez(path, logits=logits, labels=np.zeros(60, int), is_member=is_member)
    _, found, _ = run(capsys, "attack", path, "--json")
    deciles = found["slices"]["loss decile"]
    assert [part["value"] for part in deciles] == list(range(10))
    assert [part["reason"] for part in deciles].count("empty") == 8
    _, text, _ = run(capsys, "attack", path)
    assert text.count("  empty  (0 members, 0 non-members)") == 8


def test_the_strongest_attack_is_chosen_with_its_multiplicity_charged(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    classified(path)
    _, found, _ = run(capsys, "attack", path, "--json")
    count = len(found["attacks"])
    assert found["corrected_confidence"] == pytest.approx(1 - 0.05 / count)
    lower = {name: a["corrected_auc_interval"][0] for name, a in found["attacks"].items()}
    assert found["strongest"] == max(lower, key=lower.get)
    assert found["leaks"] == [name for name, low in lower.items() if low > 0.5]
    assert all(a["leaks"] == (name in found["leaks"]) for name, a in found["attacks"].items())


def test_revealed_records_are_not_judged(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    is_member = np.arange(40) % 2 == 0
    revealed = np.arange(40) < 10
    np.savez(
        path,
        scores=np.arange(40.0),
        is_member=is_member,
        revealed=revealed,
        revealed_is_member=is_member & revealed,
    )
    _, found, _ = run(capsys, "attack", path, "--json")
    assert (found["num_members"], found["num_nonmembers"]) == (15, 15)
    expected = roc_auc_score(is_member[10:], np.arange(30.0))
    assert found["auc"] == pytest.approx(expected)


def test_a_row_added_to_the_table_is_found_in_the_json(capsys, scores_file, monkeypatch):
    path, _, _ = scores_file
    toy = Attack(
        name="toy",
        title="toy attack",
        needs=("signals",),
        run=lambda key, evidence: np.sign(evidence.signals),
        reference="none",
    )
    table = suite.attacks()
    monkeypatch.setattr(suite, "attacks", lambda: (*table, toy))
    _, found, _ = run(capsys, "attack", path, "--json")
    assert found["attacks"]["toy"]["title"] == "toy attack"
    _, text, _ = run(capsys, "attack", path)
    assert "toy attack:" in text


def test_attack_writes_the_page_of_the_same_scores(capsys, tmp_path, monkeypatch):
    path, out = tmp_path / "scores.npz", tmp_path / "page"
    classified(path, num_groups=600)
    few = tuple(a for a in suite.attacks() if a.name in ("negative_loss", "gap", "signals"))
    monkeypatch.setattr(suite, "attacks", lambda: few)
    status, found, err = run(capsys, "attack", path, "--out", out, "--json")
    assert (status, err) == (0, "")
    stored = json.loads((out / "report.json").read_text())
    (entry,) = stored["entries"]
    for attack in entry["findings"]["attacks"]:
        assert attack["metrics"]["auc"] == found["attacks"][attack["name"]]["auc"]
    assert entry["findings"]["strongest"] == found["strongest"]
    page = (out / "report.html").read_text("utf8")
    assert "jaxpriv attack" in page
    assert "redraw the noise" not in page
    assert "add --overwrite" in refusal(capsys, "attack", path, "--out", out)
    (out / "report.pdf").write_bytes(b"of the report that is replaced")
    _, text, _ = run(capsys, "attack", path, "--out", out, "--overwrite")
    assert not (out / "report.pdf").exists()
    assert f"Report: {out / 'report.html'}" in text

    def fail(page):
        raise ValueError("Expected Chromium to print, got an error.")

    monkeypatch.setattr(reports, "write_pdf", fail)
    assert "Chromium" in refusal(capsys, "attack", path, "--out", out, "--overwrite", "--pdf")
    assert (out / "report.html").exists()
    assert not (out / ".checkpoints").exists()  # which had the secret key
    line = refusal(capsys, "attack", path, "--out", tmp_path / "b", "--confidence", "0.9")
    assert "Expected --confidence 0.95 with --out" in line
    assert "Expected --out" in refusal(capsys, "attack", path, "--pdf")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_member": np.ones(8)}, "Expected members and non-members, got 8 and 0"),
        (
            {"revealed": np.arange(8) >= 4, "revealed_is_member": np.arange(8) >= 4},
            "Expected members and non-members beside the revealed records, got 0 and 4",
        ),
        (
            {"revealed": np.arange(8) % 2, "revealed_is_member": np.zeros(8)},
            "Expected revealed_is_member to agree with is_member on the revealed records, got 2",
        ),
    ],
)
def test_memberships_that_cannot_be_judged_are_refused(capsys, tmp_path, changes, message):
    path = tmp_path / "scores.npz"
    np.savez(path, **{"scores": np.arange(8.0), "is_member": np.arange(8) >= 4, **changes})
    assert message in refusal(capsys, "attack", path)


@pytest.mark.parametrize(
    "names", [["scores", "is_member.npy"], ["is_member.npy", "scores.npy"] * 2]
)
def test_entries_that_are_no_arrays_or_doubled_are_refused(capsys, tmp_path, names):
    path, content = tmp_path / "scores.npz", io.BytesIO()
    np.save(content, np.arange(2))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, content.getvalue())
    assert "Expected an .npz file of different arrays" in refusal(capsys, "attack", path)


def test_probabilities_as_logits_are_warned_of(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=20)
    for logits, expected in ((probs, True), (np.log(probs), False), (probs / 2, False)):
        np.savez(path, logits=logits, is_member=np.arange(20) % 2)
        with warnings.catch_warnings(action="always"):
            status, _, err = run(capsys, "attack", path)
        assert status == 0
        assert ("the rows of logits are probabilities" in err) == expected
