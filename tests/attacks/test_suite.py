"""The table of attacks: the scores of its deterministic rows, and what each needs."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpriv import metrics, signals
from jaxpriv.attacks import Evidence, Training, _runs, lira, rmia, suite
from tests.attacks import stored

NEW = {"attack_p", "attack_r", "base", "forest", "lira_fixed", "quantile_boosting"}
"""Rows that version 0.1.0 did not have."""

STORED = json.loads(Path(__file__).with_name("stored_scores.json").read_text("utf8"))
"""Scores that version 0.1.0 computed before the table existed, on `stored.arrays()`."""

TABLE = {attack.name: attack for attack in suite.attacks(training=Training(steps=2), copies=2)}
KEY = jax.random.key(0)


def _fixed(attack):
    return _runs.shadow_confidences(attack, variance="fixed")


def _untuned(attack, **options):
    def run(key, evidence):
        arrays = _runs._log_probs(evidence, 1.0)
        population = rmia.Population(*_runs._log_probs(evidence.population, 1.0))
        is_member = evidence.shadow_is_member
        return attack(*arrays, is_member, population=population, gamma=1.0, **options)

    return run


RUNS = {
    **{name: attack.run for name, attack in TABLE.items()},
    "lira": _fixed(lira.online),
    "lira_offline": _fixed(lira.offline),
    "lira_offline_density": _fixed(lira.offline_density),
    "lira_per_example": _runs.shadow_confidences(lira.online, variance="per_example"),
    "rmia": _untuned(rmia.online),
    "rmia_offline": _untuned(rmia.offline, a=0.3),
}
"""The rows as version 0.1.0 ran them: with fixed variances, and RMIA without tuning."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:variance=.per_example. is estimated"),
    pytest.mark.filterwarnings("ignore::jaxpriv.attacks.rmia.TiesWarning"),
]


@pytest.mark.parametrize("name", STORED["from_signals"])
def test_attacks_on_signals_give_the_stored_scores(name):
    scores = RUNS[name](KEY, stored.signal_evidence())
    np.testing.assert_allclose(scores, STORED["from_signals"][name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", STORED["from_logits"])
def test_attacks_on_logits_give_the_stored_scores(name):
    evidence, _ = stored.evidence()
    scores = RUNS[name](KEY, evidence)
    # Per-example variances magnify the rounding of float32 signals.
    rtol = 1e-4 if name == "lira_per_example" else 1e-6
    np.testing.assert_allclose(scores, STORED["from_logits"][name], rtol=rtol, atol=1e-6)


def test_every_deterministic_attack_has_stored_scores():
    drawn = {"label_only", "neural", "quantile"}
    drawn |= {name for name in TABLE if name.startswith("shadow_classifier")}
    assert set(STORED["from_logits"]) - {"lira_per_example"} == set(TABLE) - drawn - NEW - {
        "signals"
    }


@pytest.mark.parametrize("name", ["lira", "lira_offline", "lira_fixed", "attack_r", "threshold"])
def test_signals_of_a_file_serve_as_those_computed_from_logits(name):
    evidence, _ = stored.evidence()
    signal = signals.negative_loss if name == "threshold" else signals.logit_confidence
    target, shadows = evidence.signal_arrays(signal)
    given = Evidence(
        signals=target, shadow_signals=shadows, shadow_is_member=evidence.shadow_is_member
    )
    np.testing.assert_array_equal(TABLE[name].run(KEY, given), TABLE[name].run(KEY, evidence))


@pytest.mark.parametrize(
    ("evidence", "name", "reason"),
    [
        (Evidence(signals=np.zeros(3)), "negative_loss", "needs logits and labels"),
        (Evidence(signals=np.zeros(3)), "lira", "needs IN and OUT shadow models"),
        (Evidence(logits=np.zeros((3, 2))), "label_only", "needs inputs, labels and queries of"),
        (Evidence(logits=np.zeros((3, 2))), "entropy", ""),
        (Evidence(signals=np.zeros(3)), "signals", ""),
        (
            Evidence(
                signals=np.zeros(3),
                shadow_signals=np.zeros((2, 3)),
                shadow_is_member=np.zeros((2, 3), bool),
            ),
            "lira_offline",
            "",
        ),
        (
            Evidence(
                signals=np.zeros(3),
                shadow_signals=np.zeros((2, 3)),
                shadow_is_member=np.zeros((2, 3), bool),
            ),
            "lira",
            "needs IN and OUT shadow models",
        ),
    ],
)
def test_what_is_missing_is_described(evidence, name, reason):
    missing = suite.missing(TABLE[name], evidence)
    assert missing.startswith(reason)
    assert bool(missing) == bool(reason)
    assert (TABLE[name] in suite.applicable(TABLE.values(), evidence)) == (not reason)


def test_each_part_of_the_evidence_that_is_taken_away_stops_some_attack():
    evidence, _ = stored.evidence()
    runs = {attack.name for attack in suite.applicable(TABLE.values(), evidence)}
    for name, stopped in (
        ("labels", "margin"),
        ("logits", "entropy"),
        ("shadow_logits", "lira"),
        ("shadow_is_member", "threshold"),
        ("population", "rmia"),
    ):
        poorer = dataclasses.replace(evidence, **{name: None})
        left = {attack.name for attack in suite.applicable(TABLE.values(), poorer)}
        assert stopped in runs - left
        assert left < runs


def test_options_reach_the_attacks_that_use_them():
    asked = []

    def predict(key, x):
        asked.append(len(x))
        return np.tile([1.0, 0.0], (len(x), 1))

    evidence = Evidence(inputs=np.zeros((5, 2)), labels=np.zeros(5, int), predict=predict)
    for copies in (3, 7):
        asked.clear()
        (label_only,) = suite.applicable(suite.attacks(copies=copies), evidence)
        label_only.run(KEY, evidence)
        assert sum(asked) == 5 * (1 + copies)


def test_rmia_ranks_records_that_every_model_is_sure_of():
    """Probabilities near 1 differ by less than any gamma above 1."""
    rng = np.random.default_rng(0)
    half = rng.random((4, 600)) < 0.5
    shadow_is_member, is_member = np.concatenate([half, ~half]), rng.random(600) < 0.5
    level = 4 + rng.normal(size=600)

    def logits(margins):
        return np.stack([margins, np.zeros_like(margins)], axis=-1).astype(np.float32)

    population = 4 + rng.normal(size=200)
    evidence = Evidence(
        labels=np.zeros(600, int),
        logits=logits(level + 2 * is_member + rng.normal(size=600)),
        shadow_logits=logits(level + 2 * shadow_is_member + rng.normal(size=(8, 600))),
        shadow_is_member=shadow_is_member,
        population=Evidence(
            labels=np.zeros(200, int),
            logits=logits(population + rng.normal(size=200)),
            shadow_logits=logits(population + rng.normal(size=(8, 200))),
        ),
    )
    auc = {
        name: metrics.membership(TABLE[name].run(KEY, evidence), is_member).auc
        for name in ("rmia", "rmia_offline", "base")
    }
    assert min(auc.values()) > 0.7


def test_a_small_population_is_named_and_stops_no_other_attack():
    for size, reason in ((9, "needs inputs of a population of at least 10 records"), (10, "")):
        evidence = Evidence(
            inputs=np.zeros((5, 2)),
            labels=np.zeros(5, int),
            logits=np.zeros((5, 2)),
            population=Evidence(
                inputs=np.zeros((size, 2)), labels=np.zeros(size, int), logits=np.zeros((size, 2))
            ),
        )
        assert suite.missing(TABLE["quantile"], evidence) == reason
        assert suite.missing(TABLE["attack_p"], evidence) == ""
