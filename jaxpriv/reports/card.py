"""A report as files: report.json, and report.html that needs nothing beside itself."""

import json
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from jaxpriv import identifiability
from jaxpriv.reports import plots, tables


def render_html(report: dict[str, Any], *, date: str) -> str:
    """Renders the page.

    Args:
      report: from `run.run_report`.
      date: of the run, for the head of the page.

    Returns:
      One self-contained HTML document.
    """
    folder = resources.files("jaxpriv.reports")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=tables.percent, interval=tables.interval, upper=tables.upper)
    environment.filters.update(lower=tables.lower)
    template = environment.from_string((folder / "card.html.j2").read_text("utf8"))
    curves = [
        {"name": m["name"], "auc": m["attacks"]["lira"]["auc"], **m["attacks"]["lira"]["roc"]}
        for m in report["models"]
    ]
    bounds = [
        {
            "name": m["name"],
            "lower": m["audit"] and m["audit"]["one_run"],
            "upper": m["guarantee"] and m["guarantee"]["add_or_remove_one"]["epsilon"],
        }
        for m in report["models"]
    ]
    smallest = 10 ** -len(str(report["data"]["num_nonmembers"]))
    return template.render(
        report=report,
        date=date,
        summary=tables.summary(report),
        relation_name=tables.relation_name,
        finding=tables.finding,
        tpr_rows=tables.tpr_rows,
        attack_name=tables.attack_name,
        exposed=tables.exposed,
        odds=identifiability.odds_in_words,
        bounds=plots.bounds_svg(bounds),
        roc=plots.roc_svg(curves, smallest=smallest),
    )


def write_report(report: dict[str, Any], out: str | os.PathLike[str], *, date: str) -> Path:
    """Writes report.json and report.html; a file is there whole or not at all.

    Args:
      report: from `run.run_report`.
      out: folder; made when missing.
      date: of the run.

    Returns:
      The path of the page.

    Raises:
      ValueError: if `out` is not a folder that can be written.
    """
    folder = Path(out)
    page = render_html(report, date=date)
    text = json.dumps({"date": date, **report}, indent=1, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "report.json", text)
        _replace(folder / "report.html", page)
    except OSError as e:
        raise ValueError(f"Expected a folder to write to, got {folder}: {e.strerror}.") from None
    return folder / "report.html"


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
