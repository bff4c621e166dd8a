"""The files of a report: report.json, and report.html, which needs no other file."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pydantic

from jaxpriv import _files, _rounding, identifiability
from jaxpriv.reports import plots, wording
from jaxpriv.reports.findings import REPORT, Report

PAGE, JSON, SCHEMA = "report.html", "report.json", "report.schema.json"


def render(report: Report) -> str:
    """Renders the page.

    Args:
      report: typed findings.

    Returns:
      One self-contained HTML document.
    """
    folder = resources.files("jaxpriv.reports")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        percent=wording.percent,
        interval=wording.interval,
        level=wording.confidence_level,
        up=lambda bound, decimals=2: _rounding.up(bound, decimals=decimals),
    )
    template = environment.from_string((folder / "page.html.j2").read_text("utf8"))
    return template.render(
        report=report,
        w=wording,
        odds=identifiability.odds_in_words,
        aucs=_aucs(report),
        bounds=plots.bounds_svg(_bounds(report), unit=report.unit),
        roc=plots.roc_svg(_curves(report), smallest=_smallest_rate(report)),
    )


def write(report: Report, out: str | os.PathLike[str]) -> Path:
    """Writes report.json and report.html; each file is replaced as a whole.

    Args:
      report: typed findings.
      out: folder; created if missing.

    Returns:
      The path of the page.

    Raises:
      ValueError: if the folder cannot be written.
    """
    folder, page = Path(out), render(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _files.write_whole(folder / JSON, REPORT.dump_json(report, indent=1) + b"\n")
        _files.write_whole(folder / PAGE, page.encode())
    except OSError as e:
        raise ValueError(f"Expected a writable folder, got {folder}: {e.strerror}.") from None
    return folder / PAGE


def as_json(report: Report) -> dict[str, Any]:
    """Returns the report as the objects of report.json.

    Args:
      report: typed findings.

    Returns:
      Nested dictionaries, lists, numbers and strings.
    """
    return REPORT.dump_python(report, mode="json")


def read(path: str | os.PathLike[str]) -> Report:
    """Reads a report.json.

    Args:
      path: the file.

    Returns:
      The findings, validated.

    Raises:
      ValueError: if the file cannot be read or does not follow the schema.
    """
    try:
        return REPORT.validate_json(Path(path).read_bytes())
    except OSError as e:
        raise ValueError(f"Expected a report at {path}: {e.strerror}.") from None
    except pydantic.ValidationError as e:
        first = e.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"Expected a report at {path}: {place} {first['msg']}.") from None


def schema() -> str:
    """Generates the JSON schema of report.json, as the package stores it.

    Returns:
      The text of report.schema.json.
    """
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **REPORT.json_schema(mode="serialization"),
        "title": "jaxpriv privacy report",
    }
    return json.dumps(document, indent=1) + "\n"


def _curves(report: Report) -> list[plots.Curve]:
    curves = []
    for entry in report.entries:
        attack = entry.findings.strongest_attack()
        name = f"{entry.name}: {attack.title}, AUC {attack.metrics.auc:.3f}"
        curves.append(plots.Curve(name=name, x=attack.roc.fpr, y=attack.roc.tpr))
    return curves


def _aucs(report: Report) -> str:
    """Figure of the AUC of each attack on each model, in the order of the attacks' titles."""
    titles = dict.fromkeys(a.title for entry in report.entries for a in entry.findings.attacks)
    series = []
    for entry in report.entries:
        results = {attack.title: attack for attack in entry.findings.attacks}
        points = []
        for title in titles:
            attack = results.get(title)
            low, high = attack.corrected_auc_interval if attack else (0.0, 0.0)
            points.append((low, attack.metrics.auc, high) if attack else None)
        series.append(plots.Intervals(name=entry.name, points=points))
    return plots.intervals_svg(list(titles), series, x="AUC (0.5 is guessing)")


def _bounds(report: Report) -> list[plots.Bounds]:
    """Audit and guarantee of each model, both for a unit added or removed."""
    rows = []
    for entry in report.entries:
        audit, promise = entry.findings.audit, entry.promise
        rows.append(
            plots.Bounds(
                name=entry.name,
                lower=None if audit is None else audit.one_run,
                upper=None if promise is None else promise.of("add_or_remove_one").epsilon,
            )
        )
    return rows


def _smallest_rate(report: Report) -> float:
    """Lower end of the ROC axes: a power of ten below 1 / number of non-members."""
    count = report.entries[0].findings.strongest_attack().metrics.num_nonmembers
    return 10.0 ** -len(str(count))
