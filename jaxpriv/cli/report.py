"""The command `jaxpriv report`: trains, attacks, accounts, and writes a page."""

import dataclasses
import os
import secrets
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpriv.cli import _common
from jaxpriv.reports.settings import Settings

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

__all__ = ["Report", "run_report"]

_CHECKPOINTS, _EVIDENCE = ".checkpoints", "evidence"


@dataclass(frozen=True, kw_only=True)
class Report(_common.Common):
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
    overwrite: bool = False
    """Replace the report in the output folder when the new one is complete."""
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
    settings, out = command.settings, command.out
    settings.check_subject()
    _check_out(out, resume=command.resume, overwrite=command.overwrite)
    import jax

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
    folder, is_new = out / _CHECKPOINTS, not out.exists()
    if not command.resume:
        shutil.rmtree(folder, ignore_errors=True)
    elif not folder.exists():
        _common.log(f"no interrupted report in {out}: starting from the beginning")
    key = _secret_key(folder) if command.seed is None else jax.random.key(command.seed)
    folders = reports.Folders(checkpoints=folder, evidence=folder / _EVIDENCE)
    try:
        if dataset is None:
            report = reports.assemble_outputs(key, settings, folders=folders, log=_common.log)
        else:
            report = reports.assemble(key, dataset, settings, folders=folders, log=_common.log)
    except ValueError:
        _discard_unused(folder, out if is_new else None)
        raise
    command_line = shlex.join(["jaxpriv", *argv])
    run = dataclasses.replace(report.run, command=command_line, seed=command.seed)
    report = dataclasses.replace(report, run=run)
    # The old report is removed only after the new one is complete.
    shutil.rmtree(out / _EVIDENCE, ignore_errors=True)
    (folder / _EVIDENCE).rename(out / _EVIDENCE)
    page = reports.write(report, out)
    shutil.rmtree(folder)
    return _common.Answer(reports.as_json(report), [reports.summary(report), f"Report: {page}"])


def _check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Raises ValueError if the folder cannot be written to, or if files would be lost."""
    parent = out
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ValueError(f"Expected a folder to write to, got {out}: {parent} is a file.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"Expected a folder to write to, got {out}: {parent} is not writable.")
    if overwrite or not out.exists():
        return
    names = {path.name for path in out.iterdir()}
    if names - {_CHECKPOINTS, _EVIDENCE}:
        raise ValueError(
            f"Expected an empty folder for --out, got {out} with {len(names)} entries; "
            "add --overwrite to replace the report in it."
        )
    if names and not resume:
        raise ValueError(
            f"Expected an empty folder for --out, got the interrupted report in {out}; "
            "add --resume to continue it, or --overwrite to start again."
        )


def _discard_unused(folder: Path, out: Path | None) -> None:
    """Removes the folders of a report that was refused before anything was computed."""
    if any(path.name != "key" for path in folder.glob("*")):
        return
    shutil.rmtree(folder, ignore_errors=True)
    if out is not None and out.exists():
        out.rmdir()


def _secret_key(folder: Path) -> "PRNGKeyArray":
    """Returns a secret random key, which is stored until the report is complete."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxpriv import _files

    path = folder / "key"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _files.write_whole(path, secrets.token_bytes(8), private=True)
    bits = jnp.asarray(np.frombuffer(path.read_bytes(), np.uint32))
    return jax.random.wrap_key_data(bits, impl="threefry2x32")
