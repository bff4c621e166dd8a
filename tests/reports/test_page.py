"""The page and report.json: functions of stored findings."""

import dataclasses
import json
import re
import shutil
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pydantic
import pytest

from jaxpriv import _files, reports, units
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.reports import _phrases, assembly, findings, page, plots
from jaxpriv.reports.subjects import Subject
from tests.reports import examples

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report():
    plain = examples.make_entries(leak=1.0)
    private = examples.make_entries(leak=0.0, promise=examples.make_promise())
    return examples.make_report(*plain, *private)


def stored_schema():
    return (resources.files("jaxpriv.reports") / "report.schema.json").read_text("utf8")


def test_the_stored_schema_is_the_generated_one():
    assert stored_schema() == page.schema()


def test_a_report_survives_its_json_and_follows_its_schema(report, tmp_path):
    written = reports.write(report, tmp_path / "out")
    assert written == tmp_path / "out" / "report.html"
    text = (tmp_path / "out" / "report.json").read_text("utf8")
    assert reports.read(tmp_path / "out" / "report.json") == report
    validator = jsonschema.Draft202012Validator(json.loads(stored_schema()))
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert document == reports.as_json(report)
    validator.validate(document)
    for broken in ({**document, "entries": []}, {**document, "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(broken)


@pytest.mark.parametrize("number", [np.inf, np.nan, -1.0])
def test_findings_refuse_numbers_that_json_or_the_field_does_not_have(number):
    with pytest.raises(pydantic.ValidationError):
        examples.make_guarantee("replace_one", epsilon=number)


def test_an_unbounded_epsilon_is_null_and_said_so(report):
    unbounded = examples.make_guarantee("replace_one", epsilon=None)
    stored = reports.as_json(report)
    assert stored["entries"][0]["promise"] is None
    dumped = pydantic.TypeAdapter(findings.Guarantee).dump_python(unbounded, mode="json")
    assert (dumped["epsilon"], dumped["unbounded"]) == (None, True)
    assert _phrases.epsilon_text(unbounded) == "unbounded"


def test_the_page_stands_alone_and_shows_the_numbers(report):
    html = reports.render(report)
    assert not re.search(r'(src|href)="(?!#)', html)
    assert html.count("<svg") == 5
    assert not re.search(r"\bnan\b", re.sub(r"<svg.*?</svg>", "", html, flags=re.S).lower())
    for entry in report.entries:
        strongest = entry.findings.strongest_attack()
        assert f"{strongest.metrics.auc:.3f}" in html
        assert strongest.title in html
        assert f"{100 * entry.utility.test:.1f}" in html
    assert "at most 7.4 to 1" in html
    assert "≤ 30.0&nbsp;%" in html
    assert "1.2346" in html
    assert "&lt;data &amp; more&gt;" in html
    assert "A limit." in html
    assert "class malignant" in html or "class benign" in html or "class unclear" in html


def test_every_table_cell_of_the_attacks_is_one_of_the_findings(report):
    html = reports.render(report)
    table = html.split('<table class="dense">')[1].split("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.S)[1:]
    results = [attack for entry in report.entries for attack in entry.findings.attacks]
    assert len(rows) == len(results)
    for row, attack in zip(rows, results, strict=True):
        assert attack.title in row
        assert f"<td>{attack.metrics.auc:.3f}</td>" in row
        assert f"<td>{'yes' if attack.leaks else 'no'}</td>" in row
        is_strongest = attack.name in {entry.findings.strongest for entry in report.entries}
        assert ('class="strongest"' in row) <= is_strongest


def test_a_printed_seed_voids_the_guarantee_and_the_page_says_so(report):
    assert "no\n    epsilon holds" not in reports.render(report)
    seeded = dataclasses.replace(report, run=dataclasses.replace(report.run, seed=5))
    html = reports.render(seeded)
    assert "no\n    epsilon holds" in html
    assert "Train again without --seed first" in html


def test_a_report_of_a_file_needs_neither_training_nor_labels():
    rng = np.random.default_rng(0)
    is_member = rng.random(300) < 0.5
    only = Evidence(signals=rng.normal(size=300) + is_member)
    (entry,) = assembly.examine(
        examples.KEY,
        Subject("Given model", only, is_member, None, None),
        defences=(),
        attacks=examples.cheap_attacks(),
        unit=units.records(300),
        delta=1e-5,
        relation="add_or_remove_one",
        no_audit="how members were chosen is not known",
    )
    assert [attack.name for attack in entry.findings.attacks] == ["signals"]
    assert entry.recommendation == "do_not_publish"
    data = examples.make_data(by_coin=False, num_classes=None, class_names=None)
    html = reports.render(examples.make_report(entry, data=data))
    assert "not stated" in html
    assert "no audit, since how members were chosen is not known" in html
    assert "LiRA online (needs" in html


def test_a_failed_write_leaves_the_old_report(report, tmp_path, monkeypatch):
    reports.write(report, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files.os, "replace", fails)
    changed = dataclasses.replace(report, run=dataclasses.replace(report.run, seconds=9.0))
    with pytest.raises(ValueError, match="No space left"):
        reports.write(changed, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_output_that_is_a_file_is_refused(report, tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match="Expected a writable folder"):
        reports.write(report, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 1}', None])
def test_what_is_no_report_is_refused_on_reading(tmp_path, text):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(ValueError, match=r"Expected a report at .*report\.json") as error:
        reports.read(tmp_path / "report.json")
    assert "\n" not in str(error.value)


def test_figures_are_reproducible_and_take_their_colours_from_the_page():
    curve = plots.Curve("one", [0.0, 0.5, 1.0], [0.0, 0.5, 1.0])
    interval = plots.Intervals("one", [(0.4, 0.5, 0.6), None])
    bounds = [plots.Bounds("plain", 0.5, None), plots.Bounds("private", None, 2.0)]
    for draw in (
        lambda: plots.roc_svg([curve], smallest=1e-3),
        lambda: plots.lines_svg([curve], x="rows", y="share"),
        lambda: plots.intervals_svg(["LiRA", "loss"], [interval], x="AUC"),
        lambda: plots.bounds_svg(bounds),
        lambda: plots.histograms_svg([plots.Histogram("LiRA", [0, 1, 2], [0.2, 0.8], [1, 0])]),
        lambda: plots.beliefs_svg([plots.Beliefs("one", [1, 2], [0, 0], [0.5, 0.6], [1, 1], 0.9)]),
    ):
        svg = draw()
        assert svg == draw()
        assert svg.startswith('<svg role="img" aria-label="')
        colours = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", svg)
        assert not re.search(r"#[0-9a-f]{6}\b", colours)
        assert "no upper bound" in svg or "private" not in svg


def test_long_names_leave_room_for_the_bounds():
    name = "Without DP, adversarial regularisation, lambda 3, k 5"
    svg = plots.bounds_svg([plots.Bounds(name, 0.5, None)])
    lines = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert " ".join(line for line in lines if line in name) == name
    assert max(len(line) for line in lines if line in name) < 30


def test_the_game_has_a_section_where_it_was_played(report):
    assert "Identifiability game" not in reports.render(report)
    plain, private = report.entries
    private = dataclasses.replace(private, game=examples.make_game())
    page = reports.render(dataclasses.replace(report, entries=(plain, private)))
    assert "<h2>Identifiability game</h2>" in page
    assert 'aria-label="belief in the true data set after each step"' in page
    assert "the advantage is 0.120" in page


def test_a_title_replaces_the_name_of_the_data(report):
    titled = dataclasses.replace(
        report, settings=dataclasses.replace(report.settings, title="Ward 7 & others")
    )
    assert "<h1>Ward 7 &amp; others</h1>" in reports.render(titled)
    assert "<title>Ward 7 &amp; others</title>" in reports.render(titled)
    assert "<h1>Privacy report: patients</h1>" in reports.render(report)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_page_is_printed_to_a_pdf(tmp_path):
    html = reports.write(examples.make_report(*examples.make_entries(leak=1.0)), tmp_path)
    pdf = reports.write_pdf(html)
    assert pdf == tmp_path / "report.pdf"
    assert pdf.read_bytes().startswith(b"%PDF")


def test_a_pdf_without_a_browser_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="Expected Chromium or Chrome"):
        reports.find_browser()


def test_the_stored_report_of_purchases_is_read_and_shown():
    stored = reports.read(ROOT / "experiments" / "results" / "report-full.json")
    html = reports.render(stored)
    for entry in stored.entries:
        assert entry.name in html
        assert f"{entry.findings.strongest_attack().metrics.auc:.3f}" in html
    assert stored.data.num_groups == 1031
