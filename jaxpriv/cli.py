"""The command line: parses, then calls functions. `--help` imports no jax."""

import datetime
import json
import math
import os
import secrets
import shlex
import shutil
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

RelationName = Literal["add_or_remove_one", "replace_one"]


@dataclass(frozen=True, kw_only=True)
class _Common:
    json: bool = False
    """Print one JSON object on standard output."""
    seed: int = 0
    """Of everything random."""


@dataclass(frozen=True, kw_only=True)
class Report(_Common):
    """Train a plain and a private model, attack both, and write report.html and report.json."""

    seed: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Of everything random, and printed in the report: not for a release. Default: secret."""
    epsilon: tuple[float, ...] = ()
    """Train a DP-SGD model at each of these."""
    delta: float | None = None
    """Of every epsilon; below 1 / number of members."""
    relation: RelationName | None = None
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


@dataclass(frozen=True, kw_only=True)
class Attack(_Common):
    """Membership metrics, from anybody's scores: higher = more likely a member."""

    scores: tyro.conf.Positional[Path]
    """SCORES.npz: scores [n], is_member [n]; optional shadow_scores, shadow_is_member [m, n]."""
    confidence: float = 0.95
    """Of the intervals."""


@dataclass(frozen=True, kw_only=True)
class Epsilon(_Common):
    """What DP-SGD with Poisson sampling spends."""

    noise_multiplier: float
    """Standard deviation of the noise / clip norm."""
    sampling_prob: float
    """Chance of each record to be in a batch; 1: full batch."""
    steps: int
    """Noisy gradient steps."""
    delta: float
    """Chance with which epsilon may fail."""
    relation: RelationName
    """By which neighbouring data sets differ."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(_Common):
    """The smallest noise multiplier that keeps a promise; never one that overshoots it."""

    epsilon: float
    """To be kept."""
    delta: float
    """Chance with which epsilon may fail."""
    sampling_prob: float
    """Chance of each record to be in a batch; 1: full batch."""
    steps: int
    """Noisy gradient steps."""
    relation: RelationName
    """By which neighbouring data sets differ."""


@dataclass(frozen=True, kw_only=True)
class DataList(_Common):
    """The data sets, and what serves each here."""


@dataclass(frozen=True, kw_only=True)
class DataPath(_Common):
    """The folder or file that a data set is read from."""

    name: tyro.conf.Positional[str]
    """As `jaxpriv data list` has it."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data sets by name; JAXPRIV_DATA names a folder of published raw files."""

    command: (
        Annotated[DataList, tyro.conf.subcommand("list")]
        | Annotated[DataPath, tyro.conf.subcommand("path")]
    )


Command = (
    Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Attack, tyro.conf.subcommand("attack")]
    | Annotated[Epsilon, tyro.conf.subcommand("epsilon")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Data, tyro.conf.subcommand("data")]
)


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: words after the program's name; default: the process's own.

    Returns:
      The exit status: 0, or 2 for what the user can mend.
    """
    argv = sys.argv[1:] if argv is None else argv
    command = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType]
        prog="jaxpriv",
        description="How much a model leaks about its training data.",
        args=argv,
        config=(
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.OmitSubcommandPrefixes,
            tyro.conf.OmitArgPrefixes,
        ),
    )
    command = command.command if isinstance(command, Data) else command
    warnings.showwarning = lambda message, *_: _log(f"warning: {message}")
    try:
        result, lines = _RUN[type(command)](command, argv)
    except (ValueError, OSError) as e:
        _log(f"error: {e}")
        return 2
    print(json.dumps(result, allow_nan=False) if command.json else "\n".join(lines))
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr)


def _run_report(command: Report, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
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
    dataset = data.load(command.data, label=command.label, log=_log)
    folder = command.out / ".checkpoints"
    if not command.resume:
        shutil.rmtree(folder, ignore_errors=True)
    key = _secret_key(folder) if command.seed is None else jax.random.key(command.seed)
    report = reports.run_report(key, dataset, settings, checkpoints=folder, log=_log)
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


def _run_attack(command: Attack, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    del argv
    from jaxpriv import data, metrics

    held = data.load_scores(command.scores)
    result = metrics.membership(
        held.scores, held.is_member, confidence=command.confidence
    )._asdict()
    if held.shadow_scores is not None and held.shadow_is_member is not None:
        from jaxpriv.attacks import lira

        ratios = lira.online(held.scores, held.shadow_scores, held.shadow_is_member)
        result["lira"] = metrics.membership(
            ratios, held.is_member, confidence=command.confidence
        )._asdict()
    lines = _told("scores as given", result)
    return result, lines + (
        _told("LiRA on the shadow scores", result["lira"]) if "lira" in result else []
    )


def _told(name: str, found: dict[str, Any]) -> list[str]:
    low, high = found["auc_interval"]
    lines = [
        f"{name}: {found['num_members']} members, {found['num_nonmembers']} non-members",
        f"  AUC                {found['auc']:.4f}  [{low:.4f}, {high:.4f}]",
        f"  balanced accuracy  {found['balanced_accuracy']:.4f}  (best threshold, same records)",
        f"  advantage          {found['advantage']:.4f}",
    ]
    for fpr, tpr in found["tpr_at_fpr"].items():
        label = f"  TPR at {100 * float(fpr):g} % FPR"
        if tpr is None:
            lines.append(f"{label:<21}not resolvable with {found['num_nonmembers']} non-members")
            continue
        low, high = found["tpr_at_fpr_interval"][fpr]
        coarse = "  coarse" if fpr in found["coarse"] else ""
        lines.append(f"{label:<21}{tpr:.4f}  [{low:.4f}, {high:.4f}]{coarse}")
    return lines


def _run_epsilon(command: Epsilon, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    del argv
    from jaxpriv import accounting

    event = accounting.poisson_event(
        noise_multiplier=command.noise_multiplier,
        sampling_prob=command.sampling_prob,
        steps=command.steps,
    )
    spent = accounting.epsilon(event, delta=command.delta, relation=command.relation)
    return _spent(command, spent, command.noise_multiplier)


def _run_calibrate(command: Calibrate, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    del argv
    from jaxpriv import accounting

    def make_event(noise_multiplier: float):
        return accounting.poisson_event(
            noise_multiplier=noise_multiplier,
            sampling_prob=command.sampling_prob,
            steps=command.steps,
        )

    noise_multiplier = accounting.calibrate_event(
        make_event, epsilon=command.epsilon, delta=command.delta, relation=command.relation
    )
    spent = accounting.epsilon(
        make_event(noise_multiplier), delta=command.delta, relation=command.relation
    )
    result, lines = _spent(command, spent, noise_multiplier)
    return {**result, "target_epsilon": command.epsilon}, lines


def _spent(
    command: Epsilon | Calibrate, spent: float, noise_multiplier: float
) -> tuple[dict[str, Any], list[str]]:
    """The answer of both accounting commands. No n is known here: nothing is truncated."""
    unbounded = spent == float("inf")
    method = (
        "closed form of the Gaussian mechanism"
        if command.sampling_prob == 1
        else "privacy loss distribution, plain Poisson sampling"
    )
    result = {
        "epsilon": None if unbounded else spent,
        "unbounded": unbounded,
        "delta": command.delta,
        "relation": command.relation,
        "method": method,
        "noise_multiplier": noise_multiplier,
        "sampling_prob": command.sampling_prob,
        "steps": command.steps,
    }
    lines = [
        f"epsilon           {'unbounded' if unbounded else f'{math.ceil(spent * 1e4) / 1e4:.4f}'}",
        f"delta             {command.delta:g}",
        f"relation          {command.relation}",
        f"noise multiplier  {noise_multiplier:.6g}",
        f"method            {method}",
    ]
    return result, lines


def _run_data_list(command: DataList, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    del command, argv
    from jaxpriv import data

    sets = data.available()
    lines = [f"{'name':<19}{'records':>8}{'classes':>9}  {'served here by':<17}licence"]
    for one in sets:
        classes = "pairs" if one.num_classes is None else str(one.num_classes)
        here = ", ".join(one.sources) or "-"
        lines.append(f"{one.name:<19}{one.num_examples:>8}{classes:>9}  {here:<17}{one.licence}")
    lines.append("A set that nothing serves: `jaxpriv data path NAME` says what to add.")
    return {"data": [asdict(one) for one in sets]}, lines


def _run_data_path(command: DataPath, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    del argv
    from jaxpriv import data

    found = data.path(command.name)
    told = "made by a seeded generator, read from no file" if found is None else str(found)
    return {"name": command.name, "path": None if found is None else str(found)}, [told]


_RUN = {
    DataList: _run_data_list,
    DataPath: _run_data_path,
    Report: _run_report,
    Attack: _run_attack,
    Epsilon: _run_epsilon,
    Calibrate: _run_calibrate,
}

if __name__ == "__main__":
    sys.exit(main())
