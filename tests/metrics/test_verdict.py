"""Leaks, the strongest attack, vacuous guarantees and recommendations."""

import math

import numpy as np
import pytest

from jaxpriv.metrics import intervals, verdict


def attacks(seed=0, *, n=400, shifts=(0.0, 0.3, 1.0)):
    rng = np.random.default_rng(seed)
    is_member = np.arange(n) % 2 == 0
    return {f"shift {s}": rng.normal(s * is_member) for s in shifts}, is_member


def test_intervals_are_delongs_at_the_corrected_confidence():
    scores, is_member = attacks()
    result = verdict.compare(scores, is_member, confidence=0.95)
    assert result.corrected_confidence == pytest.approx(1 - 0.05 / 3)
    for name, strength in result.attacks.items():
        expected = intervals.delong(scores[name], is_member, confidence=1 - 0.05 / 3)
        assert (strength.auc, *strength.auc_interval) == pytest.approx(expected)
        assert strength.leaks == (expected.lower > 0.5) == (name in result.leaks)
    assert result.strongest == "shift 1.0"


def test_an_attack_that_separates_all_is_the_strongest():
    is_member = np.arange(36) < 18
    perfect = is_member + 0.0
    nearly = np.where(is_member, np.arange(36) % 18 + 16.5, np.arange(36) % 18)
    result = verdict.compare({"nearly": nearly, "perfect": perfect}, is_member, confidence=0.95)
    lower = {name: strength.auc_interval[0] for name, strength in result.attacks.items()}
    assert lower["nearly"] > lower["perfect"]
    assert result.attacks["nearly"].auc < 1
    assert result.strongest == "perfect"


def test_the_strongest_has_the_largest_lower_end_not_the_largest_auc():
    is_member = np.arange(200) % 2 == 0
    rng = np.random.default_rng(1)
    steady = rng.normal(1.2 * is_member)
    # The reversed attack has the same interval mirrored at 1/2.
    scores = {"steady": steady, "reversed": -steady}
    result = verdict.compare(scores, is_member, confidence=0.95)
    assert result.strongest == "steady"
    assert result.leaks == ("steady",)


def test_a_lower_bound_shows_a_leak_that_the_auc_does_not():
    scores, is_member = attacks(shifts=(0.0,))
    seen = []

    def lower_bound(values, truth, confidence):
        seen.append((len(values), truth.sum(), confidence))
        return 0.7

    result = verdict.compare(scores, is_member, confidence=0.9, lower_bound=lower_bound)
    assert seen == [(400, 200, pytest.approx(0.9))]
    assert result.attacks["shift 0.0"].epsilon_lower_bound == 0.7
    assert result.leaks == ("shift 0.0",)
    none = verdict.compare(scores, is_member, confidence=0.9, lower_bound=lambda *a: 0.0)
    assert none.leaks == ()


def test_noise_leaks_in_at_most_a_twentieth_of_the_draws():
    draws, leaks = 400, 0
    for seed in range(draws):
        leaks += bool(
            verdict.compare(*attacks(seed, n=120, shifts=(0.0,) * 1), confidence=0.95).leaks
        )
    assert leaks <= 0.05 * draws + 3 * math.sqrt(draws * 0.05)
    ten = sum(
        bool(
            verdict.compare(
                {str(i): np.random.default_rng((seed, i)).normal(size=120) for i in range(10)},
                np.arange(120) % 2 == 0,
                confidence=0.95,
            ).leaks
        )
        for seed in range(draws)
    )
    assert ten <= 0.05 * draws + 3 * math.sqrt(draws * 0.05)


@pytest.mark.parametrize(
    ("guarantee", "reasons"),
    [
        ({"epsilon": 2.0, "delta": 1e-5, "num_examples": 1000}, []),
        ({"epsilon": 10.0, "delta": 1e-5, "num_examples": 1000}, []),
        ({"epsilon": 10.1, "delta": 1e-5}, ["epsilon is above 10"]),
        ({"epsilon": math.inf, "delta": 1e-5}, ["epsilon is unbounded"]),
        ({"epsilon": 1.0, "delta": 1e-3, "num_examples": 1000}, ["delta is at least 1/n"]),
        ({"epsilon": 1.0, "delta": 0.5}, ["delta is at least 1/n"]),
        ({"epsilon": 1.0, "delta": 1e-3}, []),
        ({"epsilon": 1.0, "delta": 1e-5, "advantage_bound": 0.96}, ["an attacker's advantage"]),
        ({"epsilon": 1.0, "delta": 1e-5, "advantage_bound": 0.95}, []),
        ({"epsilon": 1000.0, "delta": 0.5}, ["epsilon is above 10", "delta is at least 1/n"]),
    ],
)
def test_vacuous_guarantees_have_reasons(guarantee, reasons):
    result = verdict.why_vacuous(**guarantee)
    assert len(result) == len(reasons)
    for text, start in zip(result, reasons, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize(
    ("leaks", "epsilon", "vacuous", "bound", "expected"),
    [
        (True, None, False, 1.0, "do_not_publish"),
        (True, 20.0, True, 1.0, "do_not_publish"),
        (True, 2.0, False, 1.0, "publish_with_dp"),
        (False, 2.0, False, None, "publish_with_dp"),
        (True, 2.0, False, 2.5, "do_not_publish"),
        (False, None, False, 0.0, "no_leak_found"),
        (False, 20.0, True, 0.0, "no_leak_found"),
    ],
)
def test_recommendations(leaks, epsilon, vacuous, bound, expected):
    result = verdict.recommend(
        leaks=leaks, promised_epsilon=epsilon, vacuous=vacuous, epsilon_lower_bound=bound
    )
    assert result == expected


def test_nothing_to_compare_is_refused():
    with pytest.raises(ValueError, match="Expected at least one attack"):
        verdict.compare({}, np.arange(2), confidence=0.9)
    with pytest.raises(ValueError, match="Expected 0 < confidence < 1"):
        verdict.compare(*attacks(), confidence=1.0)
