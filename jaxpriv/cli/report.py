"""`jaxpriv report`: trains, attacks, accounts, and writes a page."""

import dataclasses
import os
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxpriv.cli import common
from jaxpriv.reports.settings import Settings

CHECKPOINTS, EVIDENCE = ".checkpoints", "evidence"


@dataclass(frozen=True, kw_only=True)
class Report(common.Common):
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
    """Continue the interrupted report in the output folder; settings must be the same."""
    overwrite: bool = False
    """Replace the report in the output folder, once the new one is complete."""
    out: Path = Path("report")
    """Output folder."""


def run_report(command: Report, argv: list[str]) -> common.Answer:
    """Trains, attacks, accounts and writes the page."""
    settings, out = command.settings, command.out
    settings.check_subject()
    _check_out(out, resume=command.resume, overwrite=command.overwrite)
    import jax

    from jaxpriv import data, reports

    dataset = None
    if settings.scores is None:
        name = settings.data or "digits"
        settings = dataclasses.replace(settings, data=name)
        dataset = data.load(
            name,
            label=settings.label,
            group=settings.group,
            exclude=settings.exclude,
            missing=settings.missing,
            log=common.log,
        )
    folder, is_new = out / CHECKPOINTS, not out.exists()
    if not command.resume:
        shutil.rmtree(folder, ignore_errors=True)
    elif not folder.exists():
        common.log(f"no interrupted report in {out}: starting from the beginning")
    key = _secret_key(folder) if command.seed is None else jax.random.key(command.seed)
    folders = reports.Folders(checkpoints=folder, evidence=folder / EVIDENCE)
    try:
        if dataset is None:
            report = reports.assemble_scores(key, settings, folders=folders, log=common.log)
        else:
            report = reports.assemble(key, dataset, settings, folders=folders, log=common.log)
    except ValueError:
        _discard_unused(folder, out if is_new else None)
        raise
    command_line = shlex.join(["jaxpriv", *argv])
    run = dataclasses.replace(report.run, command=command_line, seed=command.seed)
    report = dataclasses.replace(report, run=run)
    # Only now does a report that is overwritten lose its files.
    shutil.rmtree(out / EVIDENCE, ignore_errors=True)
    (folder / EVIDENCE).rename(out / EVIDENCE)
    page = reports.write(report, out)
    shutil.rmtree(folder)
    return common.Answer(reports.as_json(report), [reports.summary(report), f"Report: {page}"])


def _check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses an output folder that cannot be written, or whose files would be lost."""
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
    if names - {CHECKPOINTS, EVIDENCE}:
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


def _secret_key(folder: Path) -> Any:
    """Returns a secret random key, stored beside the checkpoints until the report is written."""
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
