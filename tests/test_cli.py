"""The command line: numbers, JSON on standard output, one line for what the user can mend."""

import json
import warnings

import jax
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from jaxpriv import accounting, cli, reports, training
from jaxpriv.cli import report as cli_report
from tests.data import layouts

SPENT = ["--noise-multiplier", "1.6", "--sampling-prob", "0.2", "--delta", "1e-3"]


def run(capsys, *words):
    """Exit status, the JSON object on standard output, and standard error."""
    try:
        status = cli.main([str(word) for word in words])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, json.loads(out) if out.startswith("{") else out, err


@pytest.mark.parametrize(
    ("relation", "expected"), [("replace_one", 52.6637), ("add_or_remove_one", 21.7423)]
)
def test_epsilon(capsys, relation, expected):
    words = ["epsilon", *SPENT, "--steps", 1000, "--relation", relation]
    status, found, _ = run(capsys, *words, "--json")
    assert status == 0
    assert expected * (1 - 1e-5) <= found["epsilon"] <= expected * 1.005
    assert found["relation"] == relation
    assert found["delta"] == 1e-3
    assert "Poisson" in found["method"]
    status, text, _ = run(capsys, *words)
    shown = float(text.split()[1])
    assert found["epsilon"] <= shown <= found["epsilon"] + 1e-4


def test_epsilon_of_a_full_batch_is_the_closed_form(capsys):
    words = ["--noise-multiplier", "2", "--sampling-prob", "1", "--steps", "4", "--delta", "1e-5"]
    _, found, _ = run(
        capsys, "epsilon", *words, "--relation", "add_or_remove_one", "--json", "--seed", 3
    )
    assert found["epsilon"] == pytest.approx(4.377178, rel=1e-6)
    assert "closed form" in found["method"]


def test_epsilon_without_noise_is_unbounded(capsys):
    words = ["--noise-multiplier", "0", "--sampling-prob", "0.5", "--steps", "4", "--delta", "1e-5"]
    _, found, _ = run(capsys, "epsilon", *words, "--relation", "replace_one", "--json")
    assert found["epsilon"] is None
    assert found["unbounded"] is True


def test_calibrate_keeps_its_promise(capsys):
    words = "--epsilon 8 --sampling-prob 0.2 --steps 500 --delta 1e-3 --relation replace_one"
    _, found, _ = run(capsys, "calibrate", *words.split(), "--json")
    assert found["noise_multiplier"] == pytest.approx(4.276, rel=1e-3)
    event = accounting.poisson_event(
        noise_multiplier=found["noise_multiplier"], sampling_prob=0.2, steps=500
    )
    assert 7.95 <= accounting.epsilon(event, delta=1e-3, relation="replace_one") <= 8
    assert 7.95 <= found["epsilon"] <= 8


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
    assert "Expected labels below 3" in err


def test_report_on_the_plain_model(capsys, tmp_path):
    words = ["report", "--no-dp", "--shadows", 4, "--out", tmp_path / "r", "--json"]
    status, found, err = run(capsys, *words)
    assert status == 0
    assert [model["name"] for model in found["models"]] == ["plain"]
    assert found["models"][0]["accuracy"]["test"] > 0.95
    assert found["data"]["num_population"] == 180
    assert "training" in err
    page = (tmp_path / "r" / "report.html").read_text("utf8")
    assert "jaxpriv report --no-dp --shadows 4" in page
    assert json.loads((tmp_path / "r" / "report.json").read_text()).keys() >= found.keys()


def test_a_report_that_died_is_resumed(capsys, tmp_path, monkeypatch):
    """What was trained is not trained again, and the numbers are those of a whole run."""
    words = ["report", "--no-dp", "--shadows", 4, "--json", "--seed", 1, "--out"]
    _, whole, _ = run(capsys, *words, tmp_path / "whole")

    def dies(*_, **__):
        raise ValueError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(reports.run, "_entry", dies)
        assert run(capsys, *words, tmp_path / "r")[0] == 2
    assert list((tmp_path / "r" / ".checkpoints").rglob("manifest.json"))
    with monkeypatch.context() as patch:
        patch.setattr(training.Checkpoints, "save", dies)
        status, resumed, _ = run(capsys, *words, tmp_path / "r", "--resume")
    assert status == 0
    assert resumed["models"] == whole["models"]
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["report.html", "report.json"]


def test_without_a_seed_the_key_is_secret_and_survives_a_kill(tmp_path):
    """Two reports differ; a resumed one has the key of the killed one."""
    keys = [cli_report._secret_key(tmp_path / name) for name in ("a", "b", "a")]
    data = [tuple(jax.random.key_data(key).tolist()) for key in keys]
    assert data[0] == data[2] != data[1]
    assert (tmp_path / "a" / "key").stat().st_mode & 0o077 == 0


def test_an_output_that_is_a_file_is_refused_before_training(capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    status, _, err = run(capsys, "report", "--no-dp", "--out", tmp_path / "file")
    assert status == 2
    assert err.startswith("error: Expected a folder")
    assert "training" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("epsilon --noise-multiplier -1 --sampling-prob 0.2 --steps 5 --delta 1e-5", "noise_mult"),
        (
            "epsilon --noise-multiplier 1 --sampling-prob 1.2 --steps 5 --delta 1e-5",
            "sampling_prob",
        ),
        ("epsilon --noise-multiplier 1 --sampling-prob 0.2 --steps 0 --delta 1e-5", "steps"),
        ("epsilon --noise-multiplier 1 --sampling-prob 0.2 --steps 5 --delta 1", "delta"),
        ("epsilon --noise-multiplier nan --sampling-prob 0.2 --steps 5 --delta 0.1", "noise_mult"),
        ("calibrate --epsilon 0 --sampling-prob 0.2 --steps 5 --delta 1e-5", "epsilon"),
    ],
)
def test_values_out_of_range_are_one_line_and_exit_2(capsys, words, said):
    status, out, err = run(capsys, *words.split(), "--relation", "replace_one", "--json")
    assert status == 2
    assert out == ""
    assert err.startswith("error: Expected")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nothing",
        "epsilon --noise-multiplier 1",
        "epsilon --noise-multiplier one --sampling-prob 1 --steps 1 --delta .1 --relation x",
        "report --no-dp --defence none",
        "attack",
    ],
)
def test_bad_usage_exits_2(capsys, words):
    status, _, err = run(capsys, *words.split())
    assert status == 2
    assert err


@pytest.mark.parametrize(
    "words",
    [
        "report",
        "report --epsilon 2",
        "report --epsilon 2 --delta 1e-4",
        "report --no-dp --epsilon 2 --delta 1e-4 --relation replace_one",
        "report --no-dp --delta 1e-4",
        "report --no-dp --data nothing",
        "report --no-dp --shadows 3",
        "report --epsilon -2 --delta 1e-4 --relation replace_one",
        "report --epsilon 2 --delta 4 --relation replace_one",
    ],
)
def test_reports_that_cannot_be_are_one_line(capsys, words, tmp_path):
    status, _, err = run(capsys, *words.split(), "--out", tmp_path / "r")
    assert status == 2
    assert err.startswith("error: Expected")
    assert err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_data_list_names_every_set_and_what_serves_it(capsys, monkeypatch, tmp_path):
    layouts.lay(tmp_path / "mnist", layouts.mnist())
    layouts.lay(tmp_path / "multi30k", {"train.en": b"a\n", "train.fr": b"un\n"})
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path))
    _, found, _ = run(capsys, "data", "list", "--json")
    by_name = {one["name"]: one for one in found["data"]}
    assert by_name["mnist"]["sources"] == ["raw"]
    assert by_name["digits"]["sources"] == ["package"]
    assert by_name["multi30k"] == {**by_name["multi30k"], "num_classes": None, "sources": ["raw"]}
    assert all(one["licence"] for one in found["data"])
    _, text, _ = run(capsys, "data", "list")
    assert len(text.splitlines()) == len(by_name) + 2


def test_data_path(capsys, monkeypatch, tmp_path):
    layouts.lay(tmp_path / "mnist", layouts.mnist())
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path))
    _, found, _ = run(capsys, "data", "path", "mnist", "--json")
    assert found == {"name": "mnist", "path": str(tmp_path / "mnist")}
    _, text, _ = run(capsys, "data", "path", "synthetic_purchase")
    assert "no file" in text
    for name, told in [("cifar100", "found no source"), ("nope", "Expected data to be one of")]:
        status, _, err = run(capsys, "data", "path", name)
        assert status == 2
        assert err.startswith("error: ")
        assert told in err
        assert err.count("\n") == 1


@pytest.fixture
def quick(monkeypatch):
    """Settings with which a report takes seconds."""
    full = reports.Settings
    monkeypatch.setattr(
        reports,
        "Settings",
        lambda **given: full(
            **given | {"shadows": 4}, width=4, steps=2, plain_steps=2, attack_steps=2
        ),
    )


def test_report_of_a_csv_by_its_label_column(capsys, tmp_path, quick):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal()},{rng.integers(1e6)},{rng.choice(['a', 'b'])}" for _ in range(60)]
    lines = ["size,income,kind", *rows, rows[0]]
    (tmp_path / "my.csv").write_text("\n".join(lines))
    words = ["report", "--no-dp", "--data", tmp_path / "my.csv", "--out", tmp_path / "out"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, found, err = run(capsys, *words, "--label", "kind", "--json")
    assert status == 0
    assert "warning: 1 of 61 records" in err
    data = found["data"]
    assert (data["num_examples"], data["num_classes"], data["num_duplicates"]) == (61, 2, 1)
    assert "1 of them" in (tmp_path / "out" / "report.html").read_text()
    status, _, err = run(capsys, *words, "--label", "nope")
    assert status == 2
    assert "Expected one column 'nope'" in err
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "label column" in err


def test_report_of_a_folder_of_images(capsys, tmp_path, quick):
    rng = np.random.default_rng(0)
    for i in range(44):
        pixels = rng.integers(0, 256, (3, 2), np.uint8)
        file = tmp_path / "faces" / f"person{i % 4}" / f"{i}.pgm"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"P5 2 3 255\n" + pixels.tobytes())
    promise = ["--epsilon", "8", "--delta", "1e-4", "--relation", "add_or_remove_one"]
    words = ["report", *promise, "--json"]
    status, found, _ = run(capsys, *words, "--data", tmp_path / "faces", "--out", tmp_path / "out")
    assert status == 0
    assert found["data"]["num_classes"] == 4
    assert found["data"]["num_groups"] is None
    assert found["models"][1]["guarantee"]["add_or_remove_one"]["epsilon"] <= 8


GAUSSIAN = ["--sampling-prob", "1", "--steps", "30", "--relation"]


def test_identify_from_epsilon_and_delta(capsys):
    _, found, _ = run(capsys, "identify", "--epsilon", "2.1972", "--delta", "0.01", "--json")
    assert found["rho_beta"] == pytest.approx(0.9, abs=1e-5)
    assert found["rho_alpha_classical"] == pytest.approx(0.276312, abs=5e-6)
    assert found["rho_alpha_exact"] is found["rho_alpha_rdp"] is None
    assert found["violation_probability"] is None
    _, text, _ = run(capsys, "identify", "--epsilon", "2.1972", "--delta", "0.01")
    assert "at most 9 to 1" in text
    _, found, _ = run(
        capsys, "identify", "--epsilon", "1", "--delta", "0.01", "--prior", "0.2", "--json"
    )
    assert found["rho_beta"] == pytest.approx(0.2 * np.e / (0.2 * np.e + 0.8))


def test_identify_from_a_training(capsys):
    words = ["identify", "--noise-multiplier", "5.699547", *GAUSSIAN]
    _, found, _ = run(capsys, *words, "add_or_remove_one", "--delta", "0.01", "--json")
    assert found["epsilon"] == pytest.approx(2.1972, abs=1e-4)
    assert found["rho_alpha_exact"] == pytest.approx(0.369126, abs=1e-6)
    assert found["rho_alpha_rdp"] == pytest.approx(0.369126, abs=1e-6)
    assert found["rho_alpha_classical"] is None
    assert found["violation_probability"] == pytest.approx(0.035466, abs=1e-5)
    _, doubled, _ = run(capsys, *words, "replace_one", "--json")
    assert doubled["rho_alpha_exact"] > 0.6
    assert doubled["rho_beta"] is doubled["violation_probability"] is None
    poisson = ["--noise-multiplier", "1", "--sampling-prob", "0.1", "--steps", "5"]
    _, found, _ = run(
        capsys, "identify", *poisson, "--relation", "replace_one", "--delta", "1e-5", "--json"
    )
    assert found["rho_alpha_rdp"] is None
    assert 0 < found["violation_probability"] < 1e-3
    assert found["bayes_accuracy"] == pytest.approx((1 + found["rho_alpha_exact"]) / 2, rel=1e-3)


def test_calibrate_by_belief_and_by_advantage(capsys):
    belief = ["calibrate", "--max-belief", "0.9", *GAUSSIAN, "add_or_remove_one"]
    _, found, _ = run(capsys, *belief, "--violation-probability", "0.01", "--json")
    assert found["noise_multiplier"] == pytest.approx(6.802652, abs=1e-6)
    assert found["violation_probability"] <= 0.01
    _, found, _ = run(capsys, *belief, "--violation-probability", "0.001", "--json")
    assert found["noise_multiplier"] == pytest.approx(8.505904, abs=1e-6)
    advantage = ["calibrate", "--max-advantage", "0.312743", *GAUSSIAN, "replace_one"]
    _, found, _ = run(capsys, *advantage, "--json")
    assert found["noise_multiplier"] == pytest.approx(2 * 6.802652, rel=1e-5)
    assert found["max_advantage"] <= 0.312743


@pytest.mark.parametrize(
    "words",
    [
        ["calibrate", "--epsilon", "1", *GAUSSIAN, "replace_one"],
        ["calibrate", "--max-belief", "0.9", *GAUSSIAN, "replace_one"],
        ["calibrate", "--max-advantage", "0.2", "--epsilon", "1", *GAUSSIAN, "replace_one"],
        ["calibrate", *GAUSSIAN, "replace_one"],
        ["calibrate", "--max-advantage", "1.5", *GAUSSIAN, "replace_one"],
        ["identify"],
        ["identify", "--epsilon", "1"],
        ["identify", "--epsilon", "-1", "--delta", "0.1"],
        ["identify", "--epsilon", "1", "--delta", "0.1", "--noise-multiplier", "1"],
        ["identify", "--noise-multiplier", "1", *GAUSSIAN, "replace_one", "--prior", "1"],
        ["identify", "--noise-multiplier", "1", "--sampling-prob", "1"],
    ],
)
def test_half_a_promise_is_refused_in_one_line(capsys, words):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("error: Expected")
    assert err.count("\n") == 1


def test_audit(capsys, tmp_path):
    rng = np.random.default_rng(4)
    is_member = rng.random(1000) < 0.5
    path = tmp_path / "scores.npz"
    np.savez(path, scores=rng.normal(2.0 * is_member), is_member=is_member)
    words = ["audit", path, "--delta", "1e-5", "--relation", "add_or_remove_one", "--design"]
    _, found, _ = run(capsys, *words, "one_run", "--claimed-epsilon", "0.5", "--json")
    bounds = found["lower_bounds"]
    assert bounds["one_run"] > 2
    assert bounds["clopper_pearson"] is bounds["gdp"] is None
    assert set(found["not_applicable"]) == {"clopper_pearson", "gdp"}
    assert found["violation"] is True
    assert found["violated_by"] == ["one_run", "one_run_fdp"]
    _, found, _ = run(capsys, *words, "independent_runs", "--claimed-epsilon", "50", "--json")
    assert found["violation"] is False
    assert found["lower_bounds"]["gdp"] > found["lower_bounds"]["clopper_pearson"] > 1
    _, found, _ = run(capsys, *words, "independent_runs", "--json")
    assert found["violation"] is None
    _, text, _ = run(capsys, *words, "one_run", "--claimed-epsilon", "0.5")
    assert "if the trade-off is Gaussian" in text
    assert "claimed epsilon 0.5: exceeded by one_run, one_run_fdp" in text


def test_audit_refuses_one_class_in_one_line(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, scores=np.arange(9.0), is_member=np.ones(9))
    words = ["--delta", "0", "--relation", "replace_one", "--design", "one_run"]
    status, _, err = run(capsys, "audit", path, *words)
    assert status == 2
    assert err == "error: Expected members and non-members, got 9 and 0.\n"


def test_an_assumption_alone_makes_no_proof_of_a_violation(capsys, tmp_path):
    """Randomised response at epsilon 2 keeps its claim, but its trade-off is not Gaussian."""
    rng = np.random.default_rng(0)
    is_member = rng.random(1000) < 0.5
    # Just as many truths as expected, not fewer by chance.
    told_truly = rng.permutation(1000) < 1000 / (1 + np.exp(-2))
    path = tmp_path / "scores.npz"
    np.savez(path, scores=np.where(told_truly, is_member, ~is_member) * 1.0, is_member=is_member)
    words = ["audit", path, "--delta", "1e-5", "--relation", "add_or_remove_one"]
    claim = ["--design", "one_run", "--claimed-epsilon", "2"]
    _, found, _ = run(capsys, *words, *claim, "--json")
    assert found["violation_without_assumption"] is False
    assert found["violated_by"] == ["one_run_fdp"]
    _, text, _ = run(capsys, *words, *claim)
    assert "no proof" in text


@pytest.mark.parametrize(
    "words",
    [
        ["epsilon", "--noise-multiplier", "1e-200", "--delta", "1e-5", *GAUSSIAN, "replace_one"],
        ["identify", "--noise-multiplier", "1e-200", *GAUSSIAN, "replace_one"],
    ],
)
def test_absurd_noise_is_one_line(capsys, words):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("error: Expected noise_multiplier 0 or >= 1e-100")


def test_identify_takes_any_epsilon_and_says_what_it_cannot(capsys):
    status, text, _ = run(capsys, "identify", "--epsilon", "1e305", "--delta", "1e-5")
    assert status == 0
    assert "unbounded odds" in text
    _, text, _ = run(capsys, "identify", "--epsilon", "2.1972", "--delta", "0.01")
    assert "may be exceeded" in text
    assert "exact noise is smaller" in text


def test_printed_noise_keeps_the_promise(capsys):
    for advantage in ("0.05", "0.1", "0.33"):
        words = ["calibrate", "--max-advantage", advantage, *GAUSSIAN, "add_or_remove_one"]
        _, text, _ = run(capsys, *words)
        printed = float(text.split("noise multiplier")[1].split()[0])
        assert accounting.gaussian.advantage(np.sqrt(30) / printed) <= float(advantage)


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
    np.savez(path, labels=np.full(200, 2**31), **held)
    assert run(capsys, "attack", path)[0] == 2
    np.savez(path, **{**held, "shadow_is_member": np.ones((8, 200))})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, found, err = run(capsys, "attack", path, "--json")
    assert (status, found["attacks"]) == (0, {})
    assert "warning: Expected IN and OUT shadows" in err
