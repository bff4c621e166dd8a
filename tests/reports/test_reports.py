"""The report: what it holds, that the page shows it, that nothing is half-written."""

import dataclasses
import json
import math
import re
from importlib import resources

import jax
import jsonschema
import numpy as np
import pytest

from jaxpriv import accounting, data, reports, sampling
from jaxpriv.reports import card, plots, pools, run, tables

DATE = "2026-11-27"
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def report():
    """A small one: 400 records, 4 shadow models, few steps."""
    digits = data.load("digits")
    dataset = dataclasses.replace(digits, x=digits.x[:401], y=digits.y[:401])
    settings = reports.Settings(
        epsilons=(2.0,),
        delta=1e-4,
        relation="add_or_remove_one",
        shadows=4,
        width=8,
        steps=30,
        plain_steps=60,
        attack_steps=2,
    )
    made = reports.run_report(KEY, dataset, settings)
    return {**made, "command": "jaxpriv report <digits & more>", "seed": None}


def test_it_matches_its_schema(report, tmp_path):
    reports.write_report(report, tmp_path / "out", date=DATE)
    schema = json.loads((resources.files("jaxpriv.reports") / "card.schema.json").read_text())
    held = json.loads((tmp_path / "out" / "report.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(held)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({**held, "models": []})


def test_the_guarantee_is_what_the_accountant_says_under_both_relations(report):
    plain, private = report["models"]
    assert plain["guarantee"] is None
    event = sampling.poisson(report["data"]["num_members"], sampling_prob=0.1).event(
        noise_multiplier=private["noise_multiplier"], steps=30
    )
    for relation, promise in private["guarantee"].items():
        assert promise["epsilon"] == accounting.epsilon(event, delta=1e-4, relation=relation)
        assert promise["advantage_bound"] == accounting.advantage_bound(event, relation=relation)
        assert promise["rho_beta"] == pytest.approx(1 / (1 + math.exp(-promise["epsilon"])))
        assert 0 < promise["violation_probability"] < 0.01
    assert 1.99 < private["guarantee"]["add_or_remove_one"]["epsilon"] <= 2
    assert private["guarantee"]["replace_one"]["epsilon"] > 2


def test_members_and_non_members_are_counted(report):
    counted = report["data"]
    members, others = counted["num_members"], counted["num_nonmembers"]
    assert members + others + counted["num_population"] == 401
    assert counted["num_population"] == 41
    # Fair coins: 180 +- 5 standard deviations.
    assert abs(members - 180) < 48
    for model in report["models"]:
        for attack in model["attacks"].values():
            assert (attack["num_members"], attack["num_nonmembers"]) == (members, others)
            assert attack["coarse"] == ("0.01",)
            assert attack["tpr_at_fpr"]["0.001"] is None
        for parts in model["slices"].values():
            assert sum(part["num_members"] for part in parts) == members


def test_the_audit_is_of_coins_and_below_the_promise(report):
    for model in report["models"]:
        audit = model["audit"]
        assert (audit["design"], audit["relation"]) == ("one_run", "add_or_remove_one")
        assert audit["one_run"] >= 0
        assert audit["clopper_pearson"] is None
    private = report["models"][1]
    assert private["audit"]["one_run"] <= private["guarantee"]["add_or_remove_one"]["epsilon"]
    assert "do not publish" not in reports.render_html(report, date=DATE)
    broken = {**private, "audit": {**private["audit"], "one_run": 2.5}}
    page = reports.render_html({**report, "models": [report["models"][0], broken]}, date=DATE)
    assert "do not publish" in page


def test_a_shift_between_members_and_others_is_said(report):
    fair = {**report["blind"], "auc_interval": (0.4, 0.6)}
    assert "differ in" not in reports.render_html({**report, "blind": fair}, date=DATE)
    shifted = {**report["blind"], "auc_interval": (0.6, 0.7)}
    assert "differ in" in reports.render_html({**report, "blind": shifted}, date=DATE)


def test_the_exposed_are_named(report):
    rows = tables.exposed(report["models"][0])
    assert rows[0]["records"].startswith("predicted")
    assert any("most exposed of 10" in row["records"] for row in rows)


def test_equal_seeds_give_equal_reports(report):
    """To the bit, all but the seconds."""
    digits = data.load("digits")
    dataset = dataclasses.replace(digits, x=digits.x[:401], y=digits.y[:401])
    again = reports.run_report(KEY, dataset, reports.Settings(**report["settings"]))
    ours = {k: v for k, v in report.items() if k not in ("seconds", "command", "seed")}
    assert {k: v for k, v in again.items() if k != "seconds"} == ours


def test_groups_are_split_whole_and_said(report):
    digits = data.load("digits").subset(np.arange(120))
    grouped = dataclasses.replace(digits, group=np.arange(120) // 3)
    settings = reports.Settings(
        epsilons=(), delta=None, relation=None, shadows=4, width=2, plain_steps=2, attack_steps=2
    )
    made = reports.run_report(KEY, grouped, settings)
    assert made["data"]["num_groups"] == 40
    assert made["data"]["num_population"] == 12
    assert made["models"][0]["audit"] is None
    assert run.GROUP_LIMIT in made["limits"]
    assert run.GROUP_LIMIT not in report["limits"]
    members = pools.make_split(KEY, grouped).members
    assert len(members) % 3 == 0
    assert (members.reshape(-1, 3) // 3 == members.reshape(-1, 3)[:, :1] // 3).all()
    few = dataclasses.replace(digits, group=np.arange(120) // 30)
    with pytest.raises(ValueError, match="at least 8 groups"):
        pools.make_split(KEY, few)
    page = reports.render_html({**made, "command": "", "seed": None}, date=DATE)
    assert "by 40 groups" in page


def test_inputs_are_a_fixed_function_of_the_record():
    x = np.array([[0.5, -1.0, 1.0, -np.e, 1e6]], np.float32)
    one = data.Dataset(
        x=np.repeat(x, 2, 0), y=np.array([0, 1]), name="one", num_classes=2, source="here"
    )
    expected = [0.5, -1, 1, -2, 1 + np.log(1e6)]
    np.testing.assert_allclose(pools._inputs(one)[0], expected, rtol=1e-6)
    images = dataclasses.replace(one, x=np.full((2, 3, 2, 1), 0.25, np.float32))
    assert pools._inputs(images).shape == (2, 6)


def test_the_page_stands_alone_and_shows_the_numbers(report):
    page = reports.render_html(report, date=DATE)
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "<svg" in page
    assert "nan" not in re.sub(r"<svg.*</svg>", "", page, flags=re.S).lower()
    private = report["models"][1]
    for promise in private["guarantee"].values():
        assert tables.upper(promise["epsilon"], 3) in page
    assert f"{private['noise_multiplier']:.4f}" in page
    assert f"{private['attacks']['lira']['auc']:.3f}" in page
    assert f"not resolvable with {report['data']['num_nonmembers']} non-members" in page
    assert "at most 7.4 to 1, but with probability" in page
    assert "coarse" in page
    assert "&lt;digits &amp; more&gt;" in page
    for limit in report["limits"]:
        assert limit.split(";")[0] in page
    assert "cryptographically secure" in page


def test_words_follow_the_interval(report):
    plain = report["models"][0]
    leaky = {**plain["attacks"]["lira"], "auc": 0.7, "auc_interval": (0.65, 0.75)}
    quiet = {**leaky, "auc": 0.51, "auc_interval": (0.47, 0.55)}
    silent = {**plain, "leaks": [], "audit": {**plain["audit"], "one_run": 0.0}}
    assert tables.finding(silent) == "no leak detected"
    assert tables.finding({**silent, "leaks": ["rmia"]}) == "membership leaks"
    proved = {**silent, "audit": {**plain["audit"], "one_run": 0.1}}
    assert tables.finding(proved) == "membership leaks"
    assert tables.finding({**silent, "audit": None}) == "no leak detected"
    told = tables.summary({**report, "models": [{**silent, "attacks": {"lira": leaky}}]})
    assert "better than chance (AUC 0.700" in told
    other = {**silent, "attacks": {"lira": quiet}, "leaks": ["rmia"]}
    assert "others do better than chance: relative" in tables.summary({**report, "models": [other]})


def test_bounds_are_rounded_up():
    assert tables.upper(1.0001) == "1.01"
    assert tables.upper(2.0) == "2.00"
    assert tables.upper(0.3, 1) == "0.3"
    assert tables.upper(0.4, 0) == "1"
    assert tables.lower(0.4566, 3) == "0.456"
    assert tables.lower(0.457, 3) == "0.457"


def test_the_sentence_on_any_attack_is_about_one_record_more(report):
    """By its own coin a record is in or out, all others being what they are."""
    private = report["models"][1]
    most = private["guarantee"]["add_or_remove_one"]["advantage_bound"]
    assert f"is at most {tables.upper(100 * most, 0)}\N{NO-BREAK SPACE}%" in tables.summary(report)
    grouped = {**report, "data": {**report["data"], "num_groups": 40}}
    assert "Whatever the attack" not in tables.summary(grouped)


def test_a_printed_seed_voids_the_guarantee_and_the_page_says_so(report):
    assert "no epsilon holds" not in reports.render_html(report, date=DATE)
    assert "no epsilon holds" in reports.render_html({**report, "seed": 5}, date=DATE)


def test_the_figure_starts_where_nothing_is_resolved():
    curve = {"name": "a", "auc": 0.5, "fpr": [0.0, 0.5, 1.0], "tpr": [0.0, 0.5, 1.0]}
    svg = plots.roc_svg([curve], smallest=1e-3)
    assert svg.startswith("<svg")
    assert svg == plots.roc_svg([curve], smallest=1e-3)
    assert "AUC 0.500" in svg


def test_curves_are_drawn_by_name():
    svg = plots.lines_svg([{"name": "bound", "x": [30, 300], "y": [0.1, 0.4]}], x="rows", y="share")
    assert svg.startswith("<svg")
    assert all(word in svg for word in ("bound", "rows", "share"))


def test_a_failed_write_leaves_the_old_report(report, tmp_path, monkeypatch):
    reports.write_report(report, tmp_path, date=DATE)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(card.os, "replace", fails)
    with pytest.raises(ValueError, match="No space left"):
        reports.write_report({**report, "seconds": 1e9}, tmp_path, date=DATE)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_output_that_is_a_file_is_refused(report, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="Expected a folder"):
        reports.write_report(report, tmp_path / "file", date=DATE)
    assert (tmp_path / "file").read_text() == "mine"


def test_too_few_records_are_refused(report):
    digits = data.load("digits")
    tiny = dataclasses.replace(digits, x=digits.x[:20], y=digits.y[:20])
    with pytest.raises(ValueError, match="at least 40 records"):
        reports.run_report(KEY, tiny, reports.Settings(**report["settings"]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilons": (-1.0,)}, "epsilon > 0"),
        ({"epsilons": (math.inf,)}, "epsilon > 0"),
        ({"delta": 1.5}, "delta < 1"),
        ({"shadows": 5}, "even number of shadows"),
    ],
)
def test_settings_refuse_what_cannot_be(changes, said):
    given = {"epsilons": (2.0,), "delta": 1e-4, "relation": "replace_one", **changes}
    with pytest.raises(ValueError, match=said):
        reports.Settings(**given)


def test_plain_alone_needs_no_privacy_parameters():
    settings = reports.Settings(epsilons=(), delta=None, relation=None)
    assert np.isfinite(settings.plain_learning_rate)


def test_an_epsilon_whose_belief_rounds_to_1_is_reported():
    digits = data.load("digits").subset(np.arange(60))
    settings = reports.Settings(
        epsilons=(40.0,),
        delta=1e-4,
        relation="add_or_remove_one",
        shadows=4,
        width=2,
        steps=2,
        plain_steps=2,
        attack_steps=2,
    )
    made = reports.run_report(KEY, digits, settings)
    assert made["models"][1]["guarantee"]["add_or_remove_one"]["rho_beta"] == 1
    page = reports.render_html({**made, "command": "", "seed": None}, date=DATE)
    assert "unbounded odds, but with probability" in page


def test_a_population_takes_no_group_larger_than_a_tenth_where_others_are():
    digits = data.load("digits").subset(np.arange(100))
    group = np.concatenate([np.zeros(50, int), np.arange(1, 51)])
    for seed in range(5):
        grouped = dataclasses.replace(digits, group=group)
        split = pools.make_split(jax.random.key(seed), grouped)
        assert len(split.population_y) == 10
    halves = dataclasses.replace(digits, group=np.minimum(np.arange(100), 8))
    with pytest.raises(ValueError, match="groups too large"):
        pools.make_split(KEY, halves)
