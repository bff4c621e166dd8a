"""Defences after training in a report: noise on outputs and on parameters, and their guarantees."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxpriv import data, defences, reports, sensitivity
from jaxpriv.accounting import random_dp
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.reports import _entry_wording, _promise, assembly, page
from jaxpriv.reports.settings import Settings
from tests.reports import examples

KEY = jax.random.key(3)
DIRICHLET = "dirichlet:k=10,eta=0.01,b=0.1,delta=1e-5"
SETTINGS = Settings(
    no_dp=True, shadows=4, width=2, plain_steps=2, sampling_prob=0.9,
    defence=(DIRICHLET, f"{DIRICHLET},queries=4", "gaussian:sigma=0.5", "gaussian:sigma=2,pairs=2"),
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    digits = data.load("digits").subset(np.arange(90))
    folders = assembly.Folders(evidence=tmp_path_factory.mktemp("evidence"))
    return assembly.assemble(
        KEY, digits, SETTINGS, attacks=examples.cheap_attacks(), folders=folders
    ), folders.evidence


def test_every_defence_has_its_guarantee_and_no_promise(made):
    report, _ = made
    assert [entry.promise for entry in report.entries] == [None] * 5
    plain, once, often, noised, sampled = report.entries
    assert (plain.defence_guarantee, noised.defence_guarantee) == (None, None)
    for entry, text in ((once, DIRICHLET), (often, f"{DIRICHLET},queries=4")):
        expected = defences.base.from_text(text).output_guarantee(10)
        assert entry.defence_guarantee.kind == "outputs"
        assert entry.defence_guarantee.epsilon == expected.epsilon
        assert entry.defence_guarantee.queries == expected.queries
    found = sampled.defence_guarantee
    expected = random_dp.gaussian_module(
        sensitivity=found.sensitivity, noise_std=2.0, delta=1e-5, num_pairs=2
    )
    assert (found.epsilon, found.gamma, found.num_pairs) == (expected.epsilon, expected.gamma, 2)
    assert found.sensitivity > 0
    assert not found.are_disjoint


def test_shadow_models_pass_through_the_same_noise(made):
    report, folder = made
    stored = {
        entry.name: evidence_lib.load(folder.parent / entry.evidence)[0] for entry in report.entries
    }
    plain, once, often, noised, _ = (stored[entry.name] for entry in report.entries)
    for evidence in (once, noised):
        for model in range(4):
            assert not np.allclose(evidence.shadow_logits[model], plain.shadow_logits[model])
    # A mean of four log-probabilities varies half as much as one.
    spreads = [np.log(np.std(x.shadow_logits)) for x in (once, often)]
    assert 0.2 < spreads[0] - spreads[1] < 1.2


def test_the_page_states_what_is_protected(made):
    report, _ = made
    text = reports.render(report)
    for sentence in (
        "It is not membership privacy",
        "for each answer",
        "for 4 answers",
        "random differential privacy",
        "The pairs share records",
        "285 pairs would give gamma 0.1",
        "The defence has no guarantee.",
    ):
        assert sentence in text
    summary = reports.wording.summary(report)
    assert "one record replaced, except with probability gamma of at most" in summary
    assert page.schema().count("DefenceGuarantee") > 1


@pytest.mark.parametrize(
    ("text", "distances", "reasons"),
    [
        ("gaussian:sigma=1,pairs=500,delta=1e-5", [0.1] * 500, []),
        ("gaussian:sigma=1,pairs=500,delta=0.5", [0.1] * 500, ["delta is at least 1/n"]),
        ("gaussian:sigma=0.001,pairs=500", [1.0] * 500, ["epsilon is above 10"]),
        ("gaussian:sigma=1,pairs=1", [0.1], ["probability gamma of 0.5 or more"]),
        ("dirichlet:k=1,eta=0.05,b=0.01,delta=1e-5", None, []),
        ("dirichlet:k=10,eta=1e-6,b=1,delta=0.9", None, ["above 10", "delta of 0.5 or more"]),
    ],
)
def test_vacuous_guarantees_of_a_defence_are_called_so(text, distances, reasons):
    pairs = None
    if distances is not None:
        nothing = np.zeros(len(distances), int)
        pairs = sensitivity.SampledPairs(np.array(distances), nothing[:, None], nothing, True)
    guarantee = _promise.of_defence(
        defences.base.from_text(text), num_classes=10, pairs=pairs, num_members=100
    )
    assert guarantee is not None
    assert len(guarantee.vacuous) == len(reasons)
    assert all(part in why for part, why in zip(reasons, guarantee.vacuous, strict=True))
    sentence = _entry_wording.defence_sentence(guarantee)
    assert sentence.startswith("Vacuous guarantee" if reasons else "Guarantee")


def test_a_guarantee_of_a_defence_is_no_reason_to_publish():
    (leaky,) = examples.make_entries(leak=1.0)
    guarantee = reports.findings.DefenceGuarantee(
        kind="outputs", epsilon=1.0, unbounded=False, delta=1e-5, queries=1, distance=0.1
    )
    entry = dataclasses.replace(leaky, defence_guarantee=guarantee)
    text = _entry_wording.recommendation(entry, seed=None)
    assert text.startswith("Do not publish")
    assert "not one of membership" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet:k=10,eta=0.2,b=0.1,delta=1e-5", "eta below 1 / 10 for 10 classes"),
        ("gaussian:sigma=-1", "sigma > 0"),
    ],
)
def test_impossible_defences_are_refused_before_training(text, message):
    digits = data.load("digits").subset(np.arange(60))
    settings = dataclasses.replace(SETTINGS, defence=(text,), plain_steps=10**9)
    with pytest.raises(ValueError, match=message):
        assembly.assemble(KEY, digits, settings)


def test_noise_on_parameters_needs_parameters(tmp_path):
    evidence, is_member = examples.make_evidence(leak=1.0)
    evidence_lib.save(tmp_path / "clinic.npz", evidence, is_member)
    settings = Settings(scores=str(tmp_path / "clinic.npz"), defence=("gaussian:sigma=1",))
    with pytest.raises(ValueError, match="Expected no gaussian defence for outputs"):
        assembly.assemble_outputs(KEY, settings)
