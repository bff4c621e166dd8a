"""Sentences follow the findings: one rule for leaks, verdicts and recommendations."""

import dataclasses
import re

import pytest

from jaxpriv import audit
from jaxpriv.reports import (
    _additions,
    _annex,
    _entry_wording,
    _phrases,
    _report_wording,
    page,
    wording,
)
from tests.reports import examples


@pytest.fixture(scope="module")
def leaky():
    (entry,) = examples.make_entries(leak=1.0)
    return entry


@pytest.fixture(scope="module")
def quiet():
    (entry,) = examples.make_entries(leak=0.0)
    return entry


def promised(entry, **options):
    """The same findings with a promise, and the recommendation that follows."""
    promise = examples.make_promise(**options)
    recommendation = _additions.recommend(entry.findings, promise)
    return dataclasses.replace(entry, promise=promise, recommendation=recommendation)


def test_a_leak_without_a_promise_is_not_published(leaky):
    assert leaky.recommendation == "do_not_publish"
    assert _entry_wording.tag(leaky) == "do not publish"
    text = _entry_wording.recommendation(leaky, seed=None)
    assert text == "Do not publish: there is a leak, and the model has no guarantee."
    count = len(leaky.findings.leaks)
    assert f"{count} of 6 attacks find a leak" in _entry_wording.attack_sentence(leaky, "record")


def test_no_leak_is_no_guarantee(quiet):
    assert quiet.recommendation == "no_leak_found"
    text = _entry_wording.recommendation(quiet, seed=None)
    assert "No leak found by these attacks, which is not a guarantee" in text
    assert "None of 6 attacks finds a leak" in _entry_wording.attack_sentence(quiet, "record")


def test_a_promise_that_no_bound_exceeds_is_published(leaky):
    bound = leaky.findings.audit.one_run
    kept = promised(leaky, epsilon=bound + 1)
    assert kept.recommendation == "publish_with_dp"
    text = _entry_wording.recommendation(kept, seed=None)
    assert text.startswith("Publish with differential privacy at epsilon ")
    assert "within this guarantee" in text
    assert "--seed" in _entry_wording.recommendation(kept, seed=5)
    assert _entry_wording.tone(kept) == "good"


def test_a_claim_is_conditional_and_compared_with_the_auc(leaky):
    """The advantage of the claim is 0.3 (`examples.make_guarantee`), so it allows an AUC of 0.8."""
    claimed = promised(leaky, epsilon=9.0)
    claimed = dataclasses.replace(
        claimed, promise=dataclasses.replace(claimed.promise, is_claim=True)
    )
    assert _entry_wording.tag(claimed) == "publish if the claim holds"
    assert _entry_wording.tone(claimed) == ""
    assert any(
        sentence.startswith("If the claim holds, for every attack, true positive rate minus")
        for sentence in _entry_wording.model_sentences(claimed, "record")
    )

    def text(auc_interval, **changes):
        strongest = claimed.findings.strongest
        attacks = tuple(
            dataclasses.replace(a, corrected_auc_interval=auc_interval)
            if a.name == strongest
            else a
            for a in claimed.findings.attacks
        )
        findings = dataclasses.replace(claimed.findings, attacks=attacks, **changes)
        advice = _additions.recommend(findings, claimed.promise)
        entry = dataclasses.replace(claimed, findings=findings, recommendation=advice)
        contradicts = auc_interval[0] > 0.8 or auc_interval[1] < 0.2
        assert (_entry_wording.tone(entry) == "bad") == contradicts
        return _entry_wording.recommendation(entry, seed=None)

    assert "proves no epsilon above the claim" in text((0.6, 0.9))
    unknown = {"audit": None, "no_audit": "how members were chosen is not known"}
    assert "was not audited, since how members were chosen is not known" in text(
        (0.6, 0.9), **unknown
    )
    for changes in ({}, unknown):
        contradicted = text((0.801, 0.9), **changes)
        assert contradicted.startswith("Do not publish: the AUC of ")
        assert "is above 0.800, the most that the claimed epsilon allows" in contradicted
        contradicted = text((0.1, 0.199), **changes)  # the scores are reversed
        assert "is below 0.200, the least that the claimed epsilon allows" in contradicted


def test_a_refuted_promise_is_not_published(leaky):
    broken = promised(leaky, epsilon=leaky.findings.audit.one_run / 2)
    assert broken.recommendation == "do_not_publish"
    text = _entry_wording.recommendation(broken, seed=None)
    assert text.startswith("Do not publish: an audit proves epsilon of at least ")
    assert "exceeds the guarantee" in _entry_wording.audit_sentence(broken)


def test_the_game_is_shown_with_its_bounds(quiet):
    entry = dataclasses.replace(promised(quiet), game=examples.make_game())
    advantage, belief = _entry_wording.game_sentences(entry)
    assert "with and without the record in row 12: the advantage is 0.120" in advantage
    assert "at most 0.300 by the guarantee" in advantage
    assert "ends above 0.881 is 0.020" in belief
    assert "at most 0.000010 by the guarantee" in belief
    replaced = examples.make_game(relation="replace_one", replacement=7, epsilon_lower_bound=0.5)
    entry = dataclasses.replace(entry, game=replaced)
    advantage, _, bound = _entry_wording.game_sentences(entry)
    assert "the record in row 12 or that in row 7" in advantage
    assert "epsilon of at least 0.500" in bound
    assert _entry_wording.game_sentences(quiet) == []


def test_an_audit_by_canaries_above_the_promise_is_not_published(quiet):
    entry = promised(quiet)
    found = examples.make_canary_audit(labels=2.5)
    recommendation = _additions.recommend(entry.findings, entry.promise, canaries=found)
    entry = dataclasses.replace(entry, canaries=found, recommendation=recommendation)
    assert recommendation == "do_not_publish"
    assert entry.exceeding_bound() == (2.5, 0.99)
    (sentence,) = _entry_wording.canary_sentences(entry)
    assert (
        "by constant gradients no epsilon above 0 is proven (0.300 if the trade-off is" in sentence
    )
    assert "by wrong labels epsilon is at least 2.500" in sentence
    assert "which exceeds the guarantee" in sentence
    assert "would prove 4.500" in sentence
    assert _entry_wording.canary_sentences(quiet) == []


def test_a_delta_at_which_canaries_prove_nothing_is_named(quiet):
    """With 200 canaries, delta 1e-4 and confidence 99.89 % the ceiling is 0."""
    ceiling = audit.one_run.largest_epsilon(200, delta=1e-4, confidence=0.9989)
    found = examples.make_canary_audit(ceiling=ceiling, num_canaries=200, delta=1e-4)
    (sentence,) = _entry_wording.canary_sentences(dataclasses.replace(quiet, canaries=found))
    assert sentence.endswith("would prove nothing at this delta; an audit needs a smaller one.")


def test_a_promise_that_the_game_refutes_is_not_published(quiet):
    entry = promised(quiet, epsilon=2.0)
    assert entry.recommendation == "publish_with_dp"
    game = examples.make_game(epsilon_lower_bound=2.5)
    recommendation = _additions.recommend(entry.findings, entry.promise, game=game)
    broken = dataclasses.replace(entry, game=game, recommendation=recommendation)
    assert broken.recommendation == "do_not_publish"
    text = _entry_wording.recommendation(broken, seed=None)
    assert "an audit proves epsilon of at least 2.500" in text
    assert "by chance in at most 1.00" in text
    # Under its own relation, whose guarantee is weaker, the same bound refutes nothing.
    other = dataclasses.replace(game, relation="replace_one")
    assert not dataclasses.replace(entry, game=other).exceeding_bound()


def test_the_audit_states_what_it_assumes(leaky, quiet):
    bounds = leaky.findings.audit
    text = _entry_wording.audit_sentence(leaky)
    assert f"epsilon is at least {bounds.one_run:.3f}"[:24] in text
    assert bounds.one_run_fdp > bounds.one_run
    assert "if the trade-off function is Gaussian, at least " in text
    assert "no epsilon above 0 is proven" in _entry_wording.audit_sentence(quiet)
    (none,) = examples.make_entries(leak=0.0, no_audit="no coins were tossed")
    text = _entry_wording.audit_sentence(none)
    assert text == "Without DP: no audit, since no coins were tossed."


def test_a_vacuous_promise_is_called_so(leaky, quiet):
    reasons = ("epsilon is above 10",)
    for entry, expected in ((leaky, "do_not_publish"), (quiet, "no_leak_found")):
        vacuous = promised(entry, epsilon=1000.0, vacuous=reasons)
        assert vacuous.recommendation == expected
        text = _entry_wording.recommendation(vacuous, seed=None)
        assert "the guarantee is vacuous: epsilon is above 10" in text
        sentences = " ".join(_entry_wording.model_sentences(vacuous, "record"))
        assert "Vacuous guarantee: epsilon = 1000.00" in sentences
        assert "For every attack" not in sentences


def test_the_advantage_bound_is_that_of_one_record_more(quiet):
    entry = promised(quiet, relation="replace_one")
    sentences = " ".join(_entry_wording.model_sentences(entry, "record")).replace("\u00a0", " ")
    assert "is at most 30 % in expectation over trainings" in sentences
    assert "(one record replaced)" in sentences


def test_the_strongest_attack_is_named_with_the_interval_that_decides(leaky):
    strongest = leaky.findings.strongest_attack()
    text = _entry_wording.attack_sentence(leaky, "record")
    assert strongest.title in text
    assert _phrases.interval(strongest.corrected_auc_interval) in text
    assert _phrases.confidence_level(1 - 0.05 / 6) in text


def test_few_shadows_and_useless_models_are_noted(leaky):
    assert _entry_wording.notes(leaky, examples.make_data()) == []
    (few,) = examples.make_entries(leak=0.0, num_shadows=4)
    notes = _entry_wording.notes(few, examples.make_data())
    assert any("With only 4 shadow models" in note for note in notes)
    useless = dataclasses.replace(
        leaky, utility=dataclasses.replace(leaky.utility, test=0.3, test_interval=(0.25, 0.35))
    )
    assert any("not useful" in n for n in _entry_wording.notes(useless, examples.make_data()))
    given = _entry_wording.notes(leaky, examples.make_data(by_coin=False))
    assert any("not known" in note for note in given)


def test_scores_that_point_the_other_way_are_noted(leaky):
    first, *others = leaky.findings.attacks
    reverse = dataclasses.replace(first, corrected_auc_interval=(0.3, 0.4), leaks=False)
    findings = dataclasses.replace(leaky.findings, attacks=(reverse, *others))
    entry = dataclasses.replace(leaky, findings=findings)
    assert any("may be reversed" in n for n in _entry_wording.notes(entry, examples.make_data()))
    quiet = dataclasses.replace(entry, promise=None, recommendation="no_leak_found")
    assert "check the sign of the scores" in _entry_wording.recommendation(quiet, seed=None)


def test_classes_have_their_names(leaky):
    rows = _entry_wording.exposed_rows(leaky, examples.make_data())
    assert rows[0].records == "correctly classified"
    assert rows[-1].records.split(",")[0] in {"class benign", "class malignant", "class unclear"}
    assert "most exposed of 3" in rows[-1].records
    unnamed = _entry_wording.exposed_rows(leaky, examples.make_data(class_names=None))
    assert unnamed[-1].records.split(",")[0] in {"class 0", "class 1", "class 2"}


def test_a_shift_between_members_and_nonmembers_is_said(leaky):
    metrics = leaky.findings.attacks[0].metrics
    fair = dataclasses.replace(metrics, auc_interval=(0.4, 0.6))
    shifted = dataclasses.replace(metrics, auc_interval=(0.6, 0.7))
    assert "differ" not in _report_wording.blind_sentence(examples.make_report(leaky, blind=fair))
    by_chance = _report_wording.blind_sentence(examples.make_report(leaky, blind=shifted))
    assert "differ by chance" in by_chance
    given = examples.make_report(leaky, blind=shifted, data=examples.make_data(by_coin=False))
    assert "differ; an attack" in _report_wording.blind_sentence(given)


def test_duplicates_and_groups_are_said(leaky):
    data = examples.make_data(num_duplicates=3, num_groups=40, largest_group=9)
    report = examples.make_report(leaky, data=data)
    assert "3 of them equal another record" in dict(_report_wording.method(report))["Records"]
    assert "in 40 groups" in _report_wording.headline(report)
    by_record = " ".join(_report_wording.limits(data, unit="record", trained=True))
    assert "groups are less protected" in by_record
    by_group = " ".join(_report_wording.limits(data, unit="group", trained=True))
    assert "group-privacy conversion" in by_group
    untrained = " ".join(_report_wording.limits(data, unit="record", trained=False))
    assert "cryptographically" not in untrained


def test_rates_say_what_the_nonmembers_resolve(leaky):
    rows = _entry_wording.rate_rows(leaky.findings.strongest_attack())
    assert [row.fpr for row in rows] == ["1\u00a0%", "0.1\u00a0%", "0.01\u00a0%"]
    assert rows[0].note == "coarse"
    assert rows[1].note.startswith("not resolvable with")
    text = " ".join(_report_wording.resolution_sentences(examples.make_report(leaky)))
    assert "do not resolve an FPR of 0.1" in text


def test_the_terminal_gets_a_line_for_each_model(leaky, quiet):
    text = wording.summary(examples.make_report(leaky, promised(quiet)))
    assert text.startswith("Patients: 330 records")
    assert text.count("\n") == 4
    assert "\u00a0" not in text


def test_numbers_are_rounded_against_the_reader():
    one = examples.make_guarantee("add_or_remove_one", epsilon=2.0001)
    assert _phrases.epsilon_text(one) == "2.01"
    assert _phrases.guarantee_text(one).endswith("(one record added or removed)")
    group = examples.make_guarantee("replace_one", unit="group", size=12)
    assert _phrases.guarantee_text(group).endswith("(one group of up to 12 records replaced)")
    assert _phrases.percent(0.9123) == "91.2\u00a0%"


def test_what_was_done_to_the_records_is_said():
    data = examples.make_data(notes=("Dropped 3 records.",), not_private=("Put in medians.",))
    limits = _report_wording.limits(data, unit="record", trained=True)
    assert "Not covered by epsilon: Put in medians." in limits
    report = examples.make_report(*examples.make_entries(leak=0.0), data=data)
    assert "Dropped 3 records." in page.render(report)


def test_the_verdict_has_three_sentences(leaky, quiet):
    """The leak of the model without DP, the accuracy with DP against it, and what to do."""
    private = dataclasses.replace(promised(quiet, epsilon=2.0), name="DP-SGD, epsilon 2")
    report = examples.make_report(leaky, private)
    leak, price, advice = _report_wording.verdict(report)
    assert leak.startswith(f"Without DP: {len(leaky.findings.leaks)} of 6 attacks find a leak")
    assert price.startswith("With differential privacy at epsilon 2.00 the model has an accuracy")
    assert f"against {_phrases.percent(leaky.utility.test)} without" in price
    assert "no attack finds a leak" in price
    assert advice.startswith("DP-SGD, epsilon 2: Publish with differential privacy")
    assert advice.endswith("Do not publish the model without DP.")


def test_the_verdict_of_one_model_is_its_own(leaky):
    leak, price, advice = _report_wording.verdict(examples.make_report(leaky))
    assert leak == _entry_wording.attack_sentence(leaky, "record")
    assert price.startswith(f"The model has an accuracy of {_phrases.percent(leaky.utility.test)}")
    assert advice == _entry_wording.recommendation(leaky, seed=None)
    unknown = dataclasses.replace(leaky, utility=None)
    assert "not known" in _report_wording.verdict(examples.make_report(unknown))[1]


def test_of_several_models_with_dp_the_most_accurate_is_named(quiet):
    entries = [quiet]
    for epsilon, test in ((8.0, 0.9), (2.0, 0.7), (1.0, 0.8)):
        utility = dataclasses.replace(quiet.utility, test=test)
        entry = dataclasses.replace(promised(quiet, epsilon=epsilon), utility=utility)
        entries.append(dataclasses.replace(entry, name=f"DP-SGD, epsilon {epsilon:g}"))
    advice = _report_wording.verdict(examples.make_report(*entries))[2]
    assert advice.startswith("DP-SGD, epsilon 8: ")


def test_the_annex_has_a_row_for_each_topic(leaky, quiet):
    plain = examples.make_report(leaky)
    private = examples.make_report(leaky, promised(quiet, epsilon=2.0))
    for report in (plain, private):
        rows = [*_annex.nist(report), *_annex.edpb(report)]
        assert len(rows) == len({row.topic for row in rows}) == 12
        headings = re.findall(r"<h2>(.*?)</h2>", page.render(report))
        assert {row.section for row in rows if row.section} <= set(headings)
    assert _annex.nist(plain)[0].section is None
    assert _annex.nist(private)[0].section == "Guarantee"
    assert "limits it for every attacker" in _annex.edpb(private)[-1].text
    assert "limits" not in _annex.edpb(plain)[-1].text


def test_the_method_states_where_the_hyper_parameters_come_from(leaky):
    report = examples.make_report(leaky)
    assert "were not tuned on them" in dict(_report_wording.method(report))["Hyper-parameters"]
    settings = dataclasses.replace(report.settings, steps=50, clip_norm=2.0)
    given = dataclasses.replace(report, settings=settings)
    text = dict(_report_wording.method(given))["Hyper-parameters"]
    assert text.startswith("Given by the owner: clip norm, steps. If they were tuned")
