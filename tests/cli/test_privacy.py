"""`jaxpriv epsilon`, `calibrate` and `identify`: values, rounding, and what they call vacuous."""

import numpy as np
import pytest

from jaxpriv import accounting
from tests.cli.running import refusal, run

SPENT = ["--noise-multiplier", "1.6", "--sampling-prob", "0.2", "--delta", "1e-3"]
GAUSSIAN = ["--sampling-prob", "1", "--steps", "30", "--relation"]


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
    _, found, _ = run(capsys, "epsilon", *words, "--relation", "add_or_remove_one", "--json")
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


@pytest.mark.parametrize(
    ("words", "larger"),
    [
        (["--epsilon", "20", "--delta", "1e-5"], "larger (0.290041 against 0.24224)"),
        (["--epsilon", "8", "--delta", "0.01"], "larger (0.408363 against 0.388439)"),
        (["--epsilon", "2.1972", "--delta", "0.01"], "smaller (1.0406 against 1.41431)"),
    ],
)
def test_identify_compares_the_exact_noise_with_the_classical_one(capsys, words, larger):
    _, found, _ = run(capsys, "identify", *words, "--json")
    assert f"exact noise is {larger}" in found["conditions"]["rho_alpha_classical"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("epsilon --noise-multiplier 1 --delta 0.5", "delta is at least 1/n"),
        ("epsilon --noise-multiplier 0.2 --delta 1e-5", "epsilon is above 10"),
        ("epsilon --noise-multiplier 0 --delta 1e-5", "epsilon is unbounded"),
        ("calibrate --epsilon 1000 --delta 1e-5", "epsilon is above 10"),
        ("calibrate --epsilon 1 --delta 0.5", "delta is at least 1/n"),
        ("calibrate --max-advantage 0.97", "advantage may exceed 0.95"),
        ("calibrate --max-belief 0.99999 --violation-probability 0.1", "epsilon is above 10"),
        ("identify --noise-multiplier 1", "advantage may exceed 0.95"),
        ("identify --noise-multiplier 20 --delta 1e-3 --records 1000", "n = 1,000 records"),
        ("epsilon --noise-multiplier 20 --delta 1e-3 --records 1000", "n = 1,000 records"),
        ("calibrate --epsilon 2 --delta 1e-3 --records 1000", "n = 1,000 records"),
    ],
)
def test_vacuous_guarantees_are_called_so(capsys, words, reason):
    _, found, _ = run(capsys, *words.split(), *GAUSSIAN, "add_or_remove_one", "--json")
    assert any(reason in text for text in found["vacuous"])
    _, text, _ = run(capsys, *words.split(), *GAUSSIAN, "add_or_remove_one")
    assert "This guarantee is vacuous" in text
    assert reason in text


@pytest.mark.parametrize(
    "words",
    [
        "epsilon --noise-multiplier 20 --delta 1e-5",
        "calibrate --epsilon 2 --delta 1e-5",
        "calibrate --max-advantage 0.3",
        "identify --noise-multiplier 20",
        "identify --noise-multiplier 20 --delta 1e-3 --records 999",
        "epsilon --noise-multiplier 20 --delta 1e-3 --records 999",
    ],
)
def test_guarantees_that_protect_are_not_called_vacuous(capsys, words):
    _, found, _ = run(capsys, *words.split(), *GAUSSIAN, "add_or_remove_one", "--json")
    assert found["vacuous"] == []
    _, text, _ = run(capsys, *words.split(), *GAUSSIAN, "add_or_remove_one")
    assert "vacuous" not in text


@pytest.mark.parametrize(
    "words", ["calibrate --max-advantage 0.3", "identify --noise-multiplier 20"]
)
def test_the_number_of_records_is_refused_where_it_changes_nothing(capsys, words):
    options = (*GAUSSIAN, "add_or_remove_one", "--records", "9")
    assert "Expected --delta with --records" in refusal(capsys, *words.split(), *options)
