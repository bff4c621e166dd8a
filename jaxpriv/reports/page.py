"""Reads and writes the files of a report: report.json, the self-contained report.html, a PDF."""

import json
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pydantic

from jaxpriv import _files, _rounding, identifiability
from jaxpriv.reports import (
    _annex,
    _entry_wording,
    _inference_wording,
    _phrases,
    _report_wording,
    plots,
)
from jaxpriv.reports.findings import Report

__all__ = ["as_json", "find_browser", "read", "render", "schema", "write", "write_pdf"]

_PAGE, _JSON, _PDF = "report.html", "report.json", "report.pdf"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PRINT_SECONDS = 120
_REPORT: pydantic.TypeAdapter[Report] = pydantic.TypeAdapter(Report)


def render(report: Report) -> str:
    """Renders a report as an HTML page.

    Args:
      report: stored findings.

    Returns:
      A self-contained HTML document.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> from jaxpriv import reports
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60) % 30, is_member=np.arange(60) < 30)
      ...     settings = reports.Settings(scores=path)
      ...     report = reports.assemble_outputs(jax.random.key(0), settings)
      >>> html = render(report)
      >>> "<h1>Privacy report: clinic</h1>" in html, html.count("<svg")
      (True, 4)
    """
    folder = resources.files("jaxpriv.reports")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        percent=_phrases.percent,
        interval=_phrases.interval,
        up=lambda bound, decimals=2: _rounding.up(bound, decimals=decimals),
    )
    template = environment.from_string((folder / "page.html.j2").read_text("utf8"))
    return template.render(
        report=report,
        phrases=_phrases,
        model=_entry_wording,
        text=_report_wording,
        inference=_inference_wording,
        odds=identifiability.odds_in_words,
        aucs=_aucs(report),
        bounds=plots.bounds_svg(_bounds(report), unit=report.unit),
        utility=_utility(report),
        annex=_annex,
        beliefs=_beliefs(report),
        histograms=_histograms(report),
        roc=plots.roc_svg(_curves(report), smallest=_smallest_rate(report)),
    )


def write(report: Report, out: str | os.PathLike[str]) -> Path:
    """Writes report.json and report.html; each file is written completely or not at all.

    Args:
      report: stored findings.
      out: folder; created if it does not exist.

    Returns:
      The path of the page.

    Raises:
      ValueError: if the folder cannot be written to.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> from jaxpriv import reports
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60) % 30, is_member=np.arange(60) < 30)
      ...     settings = reports.Settings(scores=path)
      ...     report = reports.assemble_outputs(jax.random.key(0), settings)
      ...     page = write(report, f"{folder}/report")
      ...     names = sorted(path.name for path in page.parent.iterdir())
      >>> names
      ['report.html', 'report.json']
    """
    folder, page = Path(out), render(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _files.write_whole(folder / _JSON, _REPORT.dump_json(report, indent=1) + b"\n")
        _files.write_whole(folder / _PAGE, page.encode())
    except OSError as e:
        raise ValueError(f"Expected a writable folder, got {folder}: {e.strerror}.") from None
    return folder / _PAGE


def find_browser() -> str:
    """Returns the path of Chromium or Chrome.

    Raises:
      ValueError: if neither is found on the search path.

    Example:
      >>> find_browser()  # doctest: +SKIP
      '/usr/bin/chromium'
    """
    for name in _BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise ValueError(
        "Expected Chromium or Chrome on the search path for a PDF, found none; print report.html "
        "from another browser instead."
    )


def write_pdf(page: str | os.PathLike[str]) -> Path:
    """Prints a page to report.pdf beside it; the file is written completely or not at all.

    Args:
      page: a report.html.

    Returns:
      The path of the PDF.

    Raises:
      ValueError: without a browser, or if it fails.

    Example:
      >>> write_pdf("report/report.html")  # doctest: +SKIP
      PosixPath('report/report.pdf')
    """
    page, browser = Path(page).resolve(), find_browser()
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, _PDF)
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder}",
            f"--print-to-pdf={printed}",
            page.as_uri(),
        ]
        if os.name == "posix" and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # the sandbox refuses to run as root
        try:
            subprocess.run(command, capture_output=True, timeout=_PRINT_SECONDS, check=False)
            content = printed.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as e:
            raise ValueError(
                f"Expected {Path(browser).name} to print {page.name}, got {type(e).__name__}."
            ) from None
    _files.write_whole(page.with_name(_PDF), content)
    return page.with_name(_PDF)


def as_json(report: Report) -> dict[str, object]:
    """Converts a report to the objects of report.json.

    Args:
      report: stored findings.

    Returns:
      Nested dictionaries, lists, numbers and strings.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> from jaxpriv import reports
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60) % 30, is_member=np.arange(60) < 30)
      ...     settings = reports.Settings(scores=path)
      ...     report = reports.assemble_outputs(jax.random.key(0), settings)
      >>> as_json(report)["unit"]
      'record'
    """
    return _REPORT.dump_python(report, mode="json")


def read(path: str | os.PathLike[str]) -> Report:
    """Reads and validates a report.json.

    Args:
      path: the file.

    Returns:
      The stored findings.

    Raises:
      ValueError: if the file cannot be read or does not follow the schema.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> from jaxpriv import reports
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60) % 30, is_member=np.arange(60) < 30)
      ...     settings = reports.Settings(scores=path)
      ...     report = reports.assemble_outputs(jax.random.key(0), settings)
      ...     page = write(report, folder)
      ...     restored = read(page.with_name("report.json"))
      >>> restored == report
      True
    """
    try:
        return _REPORT.validate_json(Path(path).read_bytes())
    except OSError as e:
        raise ValueError(f"Expected a report at {path}: {e.strerror}.") from None
    except pydantic.ValidationError as e:
        first = e.errors(include_url=False)[0]
        location = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"Expected a report at {path}: {location} {first['msg']}.") from None


def schema() -> str:
    """Generates the JSON schema of report.json.

    Returns:
      The text of report.schema.json, which is part of the package.

    Example:
      >>> json.loads(schema())["title"]
      'jaxpriv privacy report'
    """
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_REPORT.json_schema(mode="serialization"),
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
    """Draws the AUC of each attack on each model; rows are the titles of the attacks."""
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


def _utility(report: Report) -> str:
    """Draws the accuracy of each model without defence; '' for fewer than two models."""
    measured = [
        (entry.name, entry.utility)
        for entry in report.entries
        if entry.utility is not None and entry.defence is None
    ]
    if len(measured) < 2:
        return ""
    points = [
        (utility.test_interval[0], utility.test, utility.test_interval[1])
        for _, utility in measured
    ]
    return plots.intervals_svg(
        [name for name, _ in measured],
        [plots.Intervals("", points)],
        x=f"accuracy on {_phrases.tested_on(report.unit)} (dotted: most frequent class)",
        mark=measured[0][1].majority,
    )


def _histograms(report: Report) -> str:
    """Draws the distribution of the scores of the strongest attack on each model; '' for none."""
    panels = []
    for entry in report.entries:
        histogram = entry.findings.histogram
        if histogram is None:
            continue
        members, nonmembers = (
            [count / max(1, sum(counts)) for count in counts]
            for counts in (histogram.members, histogram.nonmembers)
        )
        name = f"{entry.name}: {entry.findings.strongest_attack().title}"
        panels.append(plots.Histogram(name, histogram.edges, members, nonmembers))
    return plots.histograms_svg(panels) if panels else ""


def _beliefs(report: Report) -> str:
    """Draws the beliefs of the games; '' if none was played."""
    panels = []
    for entry in report.entries:
        game, promise = entry.game, entry.promise
        if game is not None and promise is not None:
            quantiles = game.belief_low, game.belief_median, game.belief_high
            rho = promise.stated().rho_beta
            panels.append(plots.Beliefs(entry.name, game.steps, *quantiles, rho))
    return plots.beliefs_svg(panels) if panels else ""


def _bounds(report: Report) -> list[plots.Bounds]:
    """Returns audit and guarantee of each model, both under the relation of the audit."""
    rows = []
    for entry in report.entries:
        audit = entry.findings.audit
        relation = "add_or_remove_one" if audit is None else audit.relation
        guarantee = entry.promise and entry.promise.of(relation)
        rows.append(
            plots.Bounds(
                name=entry.name,
                lower=None if audit is None else audit.one_run,
                upper=guarantee and guarantee.epsilon,
            )
        )
    return rows


def _smallest_rate(report: Report) -> float:
    """Returns the lower end of the ROC axes, a power of ten below 1 / number of non-members."""
    count = report.entries[0].findings.strongest_attack().metrics.num_nonmembers
    return 10.0 ** -len(str(count))
