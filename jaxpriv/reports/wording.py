"""Summarises a report as text for the terminal.

The sentences of the page are in `page.html.j2` (headings, captions), `_report_wording` (records,
baselines, method, limits), `_entry_wording` (one model: recommendation, attacks, audit),
`_inference_wording` (attribute inference, inversion) and `_phrases` (numbers, units).
"""

from jaxpriv.reports import _entry_wording, _inference_wording, _phrases, _report_wording
from jaxpriv.reports.findings import Report

__all__ = ["model_rows", "summary"]


def summary(report: Report) -> str:
    """Summarises a report in a line on the records, two on each model and one on each inversion.

    Args:
      report: stored findings.

    Returns:
      Lines of text.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> from jaxpriv import reports
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60) % 30, is_member=np.arange(60) < 30)
      ...     settings = reports.Settings(scores=path)
      ...     report = reports.assemble_outputs(jax.random.key(0), settings)
      >>> lines = summary(report).splitlines()
      >>> lines[0]
      'Clinic: 60 records; 30 members (used for training), 30 non-members.'
      >>> lines[2]
      '  No leak found by these attacks, which is not a guarantee.'
    """
    lines = [_report_wording.headline(report)]
    for entry in report.entries:
        sentences = _entry_wording.model_sentences(entry, report.unit)
        if entry.utility is not None:
            sentences.insert(0, f"Accuracy on non-members: {_phrases.percent(entry.utility.test)}.")
        sentences += [text for text in [_inference_wording.attribute_sentence(entry)] if text]
        sentences += _entry_wording.notes(entry, report.data)
        lines.append(f"{entry.name}. {' '.join(sentences)}")
        lines.append(f"  {_entry_wording.recommendation(entry, seed=report.run.seed)}")
    inversion = _inference_wording.inversion_sentences(report)
    lines += ["Model inversion.", *(f"  {sentence}" for sentence in inversion)] if inversion else []
    return "\n".join(lines).replace(_phrases.NBSP, " ")


def model_rows(report: Report) -> list[tuple[str, ...]]:
    """Formats the numbers of each model as a row of cells.

    Args:
      report: stored findings.

    Returns:
      The header, then a row for each model: its name, accuracy on non-members, epsilon, the AUC of
      the strongest attack with its corrected interval, leaks, recommendation.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> from jaxpriv import reports
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60) % 30, is_member=np.arange(60) < 30)
      ...     settings = reports.Settings(scores=path)
      ...     report = reports.assemble_outputs(jax.random.key(0), settings)
      >>> model_rows(report)[1][2:]
      ('not stated', '0.500 (0.353 to 0.647)', '0 of 1', 'no leak found, no guarantee')
    """
    rows: list[tuple[str, ...]] = [
        ("model", "accuracy", "epsilon", "AUC, strongest attack", "leaks", "recommendation")
    ]
    for entry in report.entries:
        findings, utility = entry.findings, entry.utility
        attack = findings.strongest_attack()
        epsilon = "unbounded" if entry.training else "not stated"
        if entry.promise is not None:
            epsilon = _phrases.epsilon_text(entry.promise.stated())
        cells = (
            entry.name,
            "" if utility is None else _phrases.percent(utility.test),
            epsilon,
            f"{attack.metrics.auc:.3f} ({_phrases.interval(attack.corrected_auc_interval)})",
            f"{len(findings.leaks)} of {len(findings.attacks)}",
            _entry_wording.tag(entry),
        )
        rows.append(tuple(cell.replace(_phrases.NBSP, " ") for cell in cells))
    return rows
