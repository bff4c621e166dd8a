"""Shared by the commands that write a page: the output folder, the key, and interrupted runs."""

import dataclasses
import os
import secrets
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpriv.cli import _common

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import PRNGKeyArray

    from jaxpriv.attacks import Attack
    from jaxpriv.reports import Folders, Report, Settings

_CONFIDENCE = 0.95
"""Confidence level of the intervals of a page."""

_CHECKPOINTS, _EVIDENCE = ".checkpoints", "evidence"


@dataclass(frozen=True, kw_only=True)
class Output(_common.Common):
    """Options of the commands that can write a page."""

    out: Path | None = None
    """Output folder for the page, report.html, and its numbers, report.json. Default: no page."""
    overwrite: bool = False
    """Replace the report in the output folder when the new one is complete."""
    pdf: bool = False
    """Print the page to report.pdf, which requires Chromium or Chrome."""


def write(
    make: "Callable[[PRNGKeyArray, Folders], Report]",
    command: Output,
    argv: Sequence[str],
    *,
    out: Path,
    seed: int | None,
    resume: bool = False,
) -> "tuple[Report, list[str]]":
    """Makes a report and writes it into the output folder.

    Args:
      make: `make(key, folders) -> report`.
      command: options; `check` has accepted them.
      argv: arguments of the program, which the page prints.
      out: output folder.
      seed: random seed; None draws a secret key.
      resume: whether to continue the interrupted report in the folder.

    Returns:
      The report, and lines of text with the paths of its files.

    Raises:
      ValueError: if the report is impossible. A folder without any results is removed.
    """
    import jax

    from jaxpriv import reports

    folder, is_new = out / _CHECKPOINTS, not out.exists()
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    elif not folder.exists():
        _common.log(f"no interrupted report in {out}: starting from the beginning")
    key = secret_key(folder) if seed is None else jax.random.key(seed)
    folders = reports.Folders(checkpoints=folder, evidence=folder / _EVIDENCE)
    try:
        report = make(key, folders)
    except ValueError:
        _discard_unused(folder, out if is_new else None)
        raise
    run = dataclasses.replace(report.run, command=shlex.join(["jaxpriv", *argv]), seed=seed)
    report = dataclasses.replace(report, run=run)
    # The old report is removed only after the new one is complete.
    shutil.rmtree(out / _EVIDENCE, ignore_errors=True)
    (folder / _EVIDENCE).rename(out / _EVIDENCE)
    page = reports.write(report, out)
    page.with_suffix(".pdf").unlink(missing_ok=True)  # that of a report which was replaced
    shutil.rmtree(folder)  # before anything else can fail, since it has the secret key
    lines = [f"Report: {page}"]
    if command.pdf:
        lines.append(f"PDF: {reports.write_pdf(page)}")
    return report, lines


def write_scores(
    settings: "Settings",
    results: "Mapping[str, np.ndarray]",
    attacks: "Sequence[Attack]",
    command: Output,
    argv: Sequence[str],
    *,
    seed: int | None,
) -> list[str]:
    """Writes the page of a file of scores whose attacks have run.

    Args:
      settings: settings with `scores`.
      results: scores of all records, by the name of the attack.
      attacks: table of attacks; those without results are listed as not applicable.
      command: options; without `out` nothing is written.
      argv: arguments of the program.
      seed: random seed of the attacks.

    Returns:
      Lines of text with the paths of the files.
    """
    from jaxpriv import reports

    if command.out is None:
        return []

    def stored(attack: "Attack") -> "Attack":
        scores = results.get(attack.name)
        if scores is None:
            return attack
        return dataclasses.replace(attack, run=lambda key, evidence: scores)

    def make(key: "PRNGKeyArray", folders: "Folders") -> "Report":
        table = [stored(attack) for attack in attacks]
        return reports.assemble_outputs(key, settings, attacks=table, folders=folders)

    return write(make, command, argv, out=command.out, seed=seed)[1]


def check_for_scores(command: Output, scores: Path, *, confidence: float) -> None:
    """Raises ValueError as `check`, or if the page would have another confidence level."""
    check(command, command.out, inputs=(scores,))
    if command.out is not None and confidence != _CONFIDENCE:
        raise ValueError(
            f"Expected --confidence {_CONFIDENCE} with --out, the level of the intervals of the "
            f"page, got {confidence}."
        )


def check(
    command: Output,
    out: Path | None,
    *,
    resume: bool = False,
    inputs: Sequence[str | Path | None] = (),
) -> None:
    """Raises ValueError if the folder cannot be written to, or if files would be lost.

    Args:
      command: options.
      out: output folder; None writes no page.
      resume: whether to continue the interrupted report in the folder.
      inputs: files that the command reads.
    """
    if out is None:
        if command.overwrite or command.pdf:
            flag = "--overwrite" if command.overwrite else "--pdf"
            raise ValueError(f"Expected --out, the folder of the page, with {flag}.")
        return
    if command.pdf:
        from jaxpriv import reports

        reports.find_browser()
    parent = out
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ValueError(f"Expected a folder to write to, got {out}: {parent} is a file.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"Expected a folder to write to, got {out}: {parent} is not writable.")
    if not out.exists():
        return
    _check_replaced(out, [path for path in inputs if path is not None])
    if command.overwrite:
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


def _check_replaced(out: Path, inputs: Sequence[str | Path]) -> None:
    """Raises ValueError if a new report in the folder would remove files of another kind."""
    names = {path.name for path in out.iterdir()}
    evidence = out / _EVIDENCE
    results = names & {"report.html", "report.pdf", _EVIDENCE}
    if results and not names & {"report.json", _CHECKPOINTS}:
        raise ValueError(
            f"Expected a report to replace in {out}, got {', '.join(sorted(results))} without "
            "report.json: choose another folder."
        )
    if _EVIDENCE not in names:
        foreign = []
    elif evidence.is_symlink() or not evidence.is_dir():
        foreign = [_EVIDENCE]
    else:
        names = {path.name for path in evidence.iterdir()}
        foreign = [n for n in names if not n.endswith((".csv", ".npz")) and n[0] != "."]
    if foreign:
        raise ValueError(
            f"Expected only files of a report in {evidence}, which is replaced, got "
            f"{sorted(foreign)[0]}: choose another folder."
        )
    for path in inputs:
        if any(
            Path(path).resolve().is_relative_to((out / name).resolve())
            for name in (_EVIDENCE, _CHECKPOINTS)
        ):
            raise ValueError(
                f"Expected an input outside of the report that is replaced, got {path}: choose "
                "another folder for --out."
            )


def secret_key(folder: Path) -> "PRNGKeyArray":
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


def _discard_unused(folder: Path, out: Path | None) -> None:
    """Removes the folders of a report that was refused before anything was computed."""
    if any(path.name != "key" for path in folder.glob("*")):
        return
    shutil.rmtree(folder, ignore_errors=True)
    if out is not None and out.exists():
        out.rmdir()
