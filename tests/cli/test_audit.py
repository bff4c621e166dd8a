"""`jaxpriv audit`: bounds, claims, and the arrays that it uses."""

import json

import numpy as np
import pytest

from jaxpriv import audit
from jaxpriv.attacks import lira
from tests.cli.running import refusal, run


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
    assert found["assumptions"].keys() == {"gdp", "one_run_fdp"}
    assert set(found["not_applicable"]) == {"clopper_pearson", "gdp"}
    assert found["violation"] is True
    assert found["violated_by"] == ["one_run", "one_run_fdp"]
    _, found, _ = run(capsys, *words, "independent_runs", "--claimed-epsilon", "50", "--json")
    assert found["violation"] is False
    assert found["lower_bounds"]["gdp"] > found["lower_bounds"]["clopper_pearson"] > 1
    _, found, _ = run(capsys, *words, "independent_runs", "--json")
    assert found["violation"] is None
    _, text, _ = run(capsys, *words, "one_run", "--claimed-epsilon", "0.5")
    assert "if the trade-off function is Gaussian" in text
    assert "claimed epsilon 0.5: exceeded by one_run, one_run_fdp" in text
    assert "only if the membership of each canary was decided by a fair coin of its own" in text


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


WORDS = ["--design", "one_run", "--delta", "1e-5", "--relation", "add_or_remove_one"]


def with_shadows(path, **more):
    """Scores whose level differs by record: only shadow models show who is a member."""
    rng = np.random.default_rng(1)
    is_member, shadow_is_member = rng.random(600) < 0.5, rng.random((16, 600)) < 0.5
    level = rng.normal(0, 20, 600)
    arrays = {
        "is_member": is_member,
        "scores": level + 2 * is_member + rng.normal(size=600),
        "shadow_scores": level + 2 * shadow_is_member + rng.normal(size=(16, 600)),
        "shadow_is_member": shadow_is_member,
    } | more
    np.savez(path, **arrays)
    return arrays


def test_shadow_scores_are_used_and_the_choice_is_charged(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    arrays = with_shadows(path)
    _, found, _ = run(capsys, "audit", path, *WORDS, "--json")
    scores = lira.online(*(arrays[k] for k in ("scores", "shadow_scores", "shadow_is_member")))
    options = {"design": "one_run", "delta": 1e-5, "relation": "add_or_remove_one"}
    expected = audit.lower_bounds(scores, arrays["is_member"], confidence=0.975, **options)
    alone = audit.lower_bounds(arrays["scores"], arrays["is_member"], confidence=0.975, **options)
    assert alone.one_run == 0
    assert found["lower_bounds"]["one_run"] == expected.one_run > 1
    assert found["sources"]["one_run"] == "lira"
    assert (found["confidence"], found["corrected_confidence"]) == (0.95, pytest.approx(0.975))
    assert found["not_used"] == []
    _, text, _ = run(capsys, "audit", path, *WORDS)
    assert "from lira" in text


def test_arrays_that_no_design_uses_are_listed(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    with_shadows(path, inputs=np.zeros((600, 2)), labels=np.zeros(600, int))
    independent = ["audit", path, *WORDS[2:], "--design", "independent_runs"]
    _, found, _ = run(capsys, *independent, "--json")
    assert found["not_used"] == ["labels", "inputs", "shadow_scores", "shadow_is_member"]
    _, text, _ = run(capsys, *independent)
    assert "not used: labels, inputs, shadow_scores, shadow_is_member" in text
    _, found, _ = run(capsys, "audit", path, *WORDS, "--json")
    assert found["not_used"] == ["labels", "inputs"]


def test_a_group_is_one_canary(capsys, tmp_path):
    rng = np.random.default_rng(2)
    coin, group = rng.random(200) < 0.5, np.repeat(np.arange(200), 3)
    path = tmp_path / "scores.npz"
    np.savez(path, scores=rng.normal(coin[group]), is_member=coin[group], group=group)
    _, found, _ = run(capsys, "audit", path, *WORDS, "--json")
    assert (found["num_members"], found["unit"]) == (coin.sum(), "group")
    np.savez(path, scores=rng.normal(size=600), is_member=rng.random(600) < 0.5, group=group)
    assert "Expected one membership for all records" in refusal(capsys, "audit", path, *WORDS)


def test_files_without_scores_or_truth_are_refused(capsys, tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, scores=np.arange(9.0))
    assert "Expected the array 'is_member'" in refusal(capsys, "audit", path, *WORDS)
    np.savez(path, logits=np.zeros((9, 2)), is_member=np.arange(9) % 2)
    assert "logits and labels" in refusal(capsys, "audit", path, *WORDS)
    np.savez(path, logits=np.zeros((9, 2)), is_member=np.arange(9) % 2, labels=np.zeros(9, int))
    independent = ["audit", path, *WORDS[2:], "--design", "independent_runs"]
    assert "Expected scores, one for each" in refusal(capsys, *independent)


def test_logits_of_canaries_are_audited_by_their_loss(capsys, tmp_path):
    rng = np.random.default_rng(3)
    is_member, labels = rng.random(800) < 0.5, rng.integers(0, 3, 800)
    logits = rng.normal(size=(800, 3)) + 8 * np.eye(3)[labels] * is_member[:, None]
    path = tmp_path / "scores.npz"
    np.savez(path, logits=logits, labels=labels, is_member=is_member)
    _, found, _ = run(capsys, "audit", path, *WORDS, "--json")
    assert found["lower_bounds"]["one_run"] > 1
    assert found["sources"]["one_run"] == "negative_loss"


@pytest.mark.parametrize(
    ("claim", "delta", "reason"),
    [
        ("1000", "1e-5", "epsilon is above 10"),
        ("1", "0.5", "delta is at least 1/n for n = "),
        ("1", "0.01", "delta is at least 1/n for n = "),
    ],
)
def test_a_vacuous_claim_is_called_so(capsys, tmp_path, claim, delta, reason):
    path = tmp_path / "scores.npz"
    with_shadows(path)
    words = ["audit", path, "--design", "one_run", "--delta", delta, "--relation", "replace_one"]
    _, found, _ = run(capsys, *words, "--claimed-epsilon", claim, "--json")
    assert any(text.startswith(reason) for text in found["vacuous"])
    _, text, _ = run(capsys, *words, "--claimed-epsilon", claim)
    assert "The claim is vacuous" in text
    assert run(capsys, *words, "--json")[1]["vacuous"] == []


def test_audit_writes_a_page_with_its_bound_and_the_claim(capsys, tmp_path):
    path, out = tmp_path / "scores.npz", tmp_path / "page"
    with_shadows(path)
    words = ["audit", path, *WORDS, "--claimed-epsilon", "0.1", "--out", out]
    _, found, err = run(capsys, *words, "--json")
    assert err == ""
    (entry,) = json.loads((out / "report.json").read_text())["entries"]
    bound = entry["findings"]["audit"]
    assert bound["one_run"] == found["lower_bounds"]["one_run"] > 0.1
    assert bound["relation"] == "add_or_remove_one"
    assert entry["recommendation"] == "do_not_publish"
    page = (out / "report.html").read_text("utf8")
    assert "a fair coin decided for each record" in page
    assert "above the guarantee" in page
    words[words.index("one_run")] = "independent_runs"
    line = refusal(capsys, *words, "--overwrite")
    assert "Expected --design one_run with --out" in line


def test_the_page_of_an_audit_has_its_relation(capsys, tmp_path):
    path, out = tmp_path / "scores.npz", tmp_path / "page"
    with_shadows(path)
    words = ["--design", "one_run", "--delta", "1e-5", "--relation", "replace_one"]
    assert run(capsys, "audit", path, *words, "--out", out)[0] == 0
    (entry,) = json.loads((out / "report.json").read_text())["entries"]
    assert entry["findings"]["audit"]["relation"] == "replace_one"
    assert entry["promise"] is None
