"""The command `jaxpriv report`: trains, attacks, accounts, and writes a page."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpriv.cli import _common, _pages
from jaxpriv.reports.settings import Settings

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    from jaxpriv import reports

__all__ = ["Report", "run_report"]


@dataclass(frozen=True, kw_only=True)
class Report(_pages.Output):
    """Train models with and without DP, attack them, and write report.html and report.json."""

    settings: Annotated[Settings, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=Settings
    )
    config: Path | None = None
    """TOML file of settings; its keys are the flags below, which take precedence."""
    seed: int | None = None
    """Random seed. It is printed in the report, so do not release a model trained with it.
    Default: a secret key."""
    resume: bool = False
    """Continue the interrupted report in the output folder, with the same settings."""
    out: Path = Path("report")
    """Output folder."""


def run_report(command: Report, argv: Sequence[str]) -> _common.Answer:
    """Trains models, attacks them, accounts for them, and writes the report.

    Args:
      command: parsed options.
      argv: arguments of the program, which the report prints.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if the settings are impossible, or if the output folder cannot be written to.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder, "clinic.npz")
      ...     np.savez(path, scores=np.arange(60), is_member=np.arange(60) >= 30)
      ...     command = Report(settings=Settings(scores=str(path)), out=Path(folder, "report"))
      ...     answer = run_report(command, ["report", "--scores", "clinic.npz"])
      >>> answer.json["entries"][0]["recommendation"]
      'do_not_publish'
    """
    settings = command.settings
    settings.check_subject()
    inputs = (
        settings.scores, settings.data, settings.members, settings.nonmembers,
        settings.shadows_file,
    )  # fmt: skip
    _pages.check(command, command.out, resume=command.resume, inputs=inputs)
    from jaxpriv import data, reports

    dataset = None
    if settings.trains:
        name = settings.data or "digits"
        settings = dataclasses.replace(settings, data=name)
        dataset = data.load(
            name,
            label=settings.label,
            group=settings.group,
            exclude=settings.exclude,
            missing=settings.missing,
            log=_common.log,
        )

    def make(key: "PRNGKeyArray", folders: "reports.Folders") -> "reports.Report":
        if dataset is None:
            return reports.assemble_outputs(key, settings, folders=folders, log=_common.log)
        return reports.assemble(key, dataset, settings, folders=folders, log=_common.log)

    report, lines = _pages.write(
        make, command, argv, out=command.out, seed=command.seed, resume=command.resume
    )
    header, *rows = reports.model_rows(report)
    table = _common.text_table(rows, header=header, right=(1, 2))
    return _common.Answer(reports.as_json(report), [*table, "", reports.summary(report), *lines])
