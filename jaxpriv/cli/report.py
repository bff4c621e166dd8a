"""`jaxpriv report`: trains, attacks, accounts, and writes a page."""

import datetime
import os
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpriv.cli import common


@dataclass(frozen=True, kw_only=True)
class Report(common.Common):
    """Train a plain and a private model, attack both, and write report.html and report.json."""

    seed: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Of everything random, and printed in the report: not for a release. Default: secret."""
    epsilon: tuple[float, ...] = ()
    """Train a DP-SGD model at each of these."""
    delta: float | None = None
    """Of every epsilon; below 1 / number of members."""
    relation: common.RelationName | None = None
    """By which neighbouring data sets differ."""
    no_dp: bool = False
    """Report on the plain model alone."""
    data: str = "digits"
    """Data set (`jaxpriv data list`), or an .npz, a .csv or a folder of images by class."""
    label: str | None = None
    """Column of classes, for a .csv."""
    shadows: int = 16
    """Shadow models the attacks learn from; even."""
    resume: bool = False
    """Go on where a killed report with the same settings stopped."""
    out: Path = Path("report")
    """Folder for the report."""


def run_report(command: Report, argv: list[str]) -> common.Told:
    """Trains, attacks, accounts and writes the page."""
    if command.no_dp == bool(command.epsilon):
        raise ValueError("Expected either --epsilon with --delta and --relation, or --no-dp.")
    if command.epsilon and (command.delta is None or command.relation is None):
        raise ValueError("Expected --delta and --relation beside --epsilon.")
    if command.no_dp and (command.delta is not None or command.relation is not None):
        raise ValueError("Expected neither --delta nor --relation beside --no-dp.")
    import jax

    from jaxpriv import data, reports

    settings = reports.Settings(
        epsilons=command.epsilon,
        delta=command.delta,
        relation=command.relation,
        shadows=command.shadows,
    )
    if command.out.exists() and not command.out.is_dir():
        raise ValueError(f"Expected a folder to write to, got the file {command.out}.")
    dataset = data.load(command.data, label=command.label, log=common.log)
    folder = command.out / ".checkpoints"
    if not command.resume:
        shutil.rmtree(folder, ignore_errors=True)
    key = _secret_key(folder) if command.seed is None else jax.random.key(command.seed)
    report = reports.run_report(key, dataset, settings, checkpoints=folder, log=common.log)
    report |= {"command": shlex.join(["jaxpriv", *argv]), "seed": command.seed}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    page = reports.write_report(report, command.out, date=date)
    shutil.rmtree(folder, ignore_errors=True)
    return report, [reports.summary(report), f"Report: {page}"]


def _secret_key(folder: Path) -> Any:
    """A key that nobody can guess, kept beside the checkpoints until the report is written."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    path = folder / "key"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(8))
        os.replace(path.with_suffix(".new"), path)
    bits = jnp.asarray(np.frombuffer(path.read_bytes(), np.uint32))
    return jax.random.wrap_key_data(bits, impl="threefry2x32")
