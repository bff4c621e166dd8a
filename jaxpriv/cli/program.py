"""Parses arguments, runs a command, and prints errors as a single line."""

import contextlib
import dataclasses
import io
import json
import sys
import warnings
from typing import Annotated, Any

import tyro

import jaxpriv
from jaxpriv.cli import _common, accounting, attack, audit, data, identify, report
from jaxpriv.reports.settings import Settings, read_toml

__all__ = ["main"]

_RUN = {
    report.Report: report.run_report,
    attack.Attack: attack.run_attack,
    audit.Audit: audit.run_audit,
    accounting.Epsilon: accounting.run_epsilon,
    accounting.Calibrate: accounting.run_calibrate,
    identify.Identify: identify.run_identify,
    data.DataList: data.run_data_list,
    data.DataPath: data.run_data_path,
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command and prints its result.

    Args:
      argv: arguments after the name of the program; None takes those of the process.

    Returns:
      The exit status, 0 or, for an error that the user can correct, 2.

    Example:
      >>> main(["data", "path", "synthetic_purchase"])
      made by a seeded generator, read from no file
      0
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--version"]:
        print(f"jaxpriv {jaxpriv.__version__}")
        return 0
    warnings.showwarning = lambda message, *_: _common.log(f"warning: {message}")
    try:
        command = _parse(argv)
        _check_seed(command)
        answer = _RUN[type(command)](command, argv)
    except (ValueError, OSError) as e:
        _common.log(f"error: {e}")
        return 2
    except KeyboardInterrupt:
        resumable = bool(argv) and argv[0] == "report"
        _common.log("interrupted" + ("; --resume continues the report" if resumable else ""))
        return 130
    except (ArithmeticError, MemoryError) as e:
        reason = str(e) or type(e).__name__
        _common.log(f"error: The computation overflowed or ran out of memory: {reason}.")
        return 2
    result, lines = answer
    print(json.dumps(result, allow_nan=False) if command.json else "\n".join(lines))
    return 0


def _parse(argv: list[str]) -> Any:
    """Parses the arguments; raises ValueError with a single line for wrong usage."""
    _check_repeated(argv)
    default = report.Report()
    config = _config_path(argv)
    if config is not None:
        default = report.Report(settings=read_toml(config))
    command_type = (
        Annotated[report.Report, tyro.conf.subcommand("report", default=default)]
        | Annotated[attack.Attack, tyro.conf.subcommand("attack")]
        | Annotated[audit.Audit, tyro.conf.subcommand("audit")]
        | Annotated[accounting.Epsilon, tyro.conf.subcommand("epsilon")]
        | Annotated[accounting.Calibrate, tyro.conf.subcommand("calibrate")]
        | Annotated[identify.Identify, tyro.conf.subcommand("identify")]
        | Annotated[data.Data, tyro.conf.subcommand("data")]
    )
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            command = tyro.cli(
                command_type,  # pyright: ignore[reportArgumentType]
                prog="jaxpriv",
                description="Measure how much a model leaks about its training data.",
                args=_joined(argv),
                config=(
                    tyro.conf.FlagCreatePairsOff,
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.OmitArgPrefixes,
                ),
            )
    except SystemExit as e:
        if e.code in (0, None):
            raise
        raise ValueError(_one_line(printed.getvalue())) from None
    return command.command if isinstance(command, data.Data) else command


def _check_seed(command: Any) -> None:
    seed = getattr(command, "seed", None)
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"Expected a seed of at least 0 and below 2^32, got {seed}.")


_LISTS = {f"--{f.name}" for f in dataclasses.fields(Settings) if f.default == ()}
"""Options of several values."""


def _check_repeated(argv: list[str]) -> None:
    """Raises ValueError if an option of one value is repeated, since only one would count."""
    names = [word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--")]
    for name in names:
        if names.count(name) > 1 and name not in _LISTS:
            raise ValueError(f"Expected {name} once, got it {names.count(name)} times.")


def _joined(argv: list[str]) -> list[str]:
    """Joins the values of a repeated option of several values, of which the last one would count.

    `--defence a --defence b` becomes `--defence a b`.
    """
    if argv[:1] != ["report"]:
        return argv
    words: list[str] = []
    values: dict[str, list[str]] = {}
    into = words
    for word in argv:
        name, _, value = word.partition("=")
        if name in _LISTS:
            into = values.setdefault(name, [])
            into += [value] if "=" in word else []
        else:
            into = words if word.startswith("--") else into
            into.append(word)
    return words + [word for name, given in values.items() for word in (name, *given)]


def _config_path(argv: list[str]) -> str | None:
    """Returns the value of --config, since its settings become defaults of the other flags."""
    if argv[:1] != ["report"]:
        return None
    for i, word in enumerate(argv):
        if word == "--config" and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


def _one_line(box: str) -> str:
    """Joins the parser's message to a line, without the help texts of the arguments.

    The message consists of sections between rules. Options are indented by 4 and help texts by 8.
    In a terminal the message has a frame, and otherwise an indentation of 2.
    """
    margin = 1 if "│" in box else 2
    sections: list[str] = [""]
    for line in box.splitlines()[1:]:
        text = line.strip("╭╮╰╯│")[margin:].rstrip()
        if not text.strip("─-"):
            sections.append("")
        elif text.startswith(" " * 4) and not text.startswith(" " * 8):
            joint = " " if sections[-1].endswith(":") else ", "
            sections[-1] += f"{joint}{text.strip()}"
        elif not text.startswith(" "):
            sections[-1] += f" {text}"
    message, *rest = [text.strip().rstrip(".") for text in sections if text]
    hints = ("Perhaps you meant", "Available subcommands")
    parts = [message, *(text for text in rest if text.startswith(hints))]
    return f"{message[:1].upper()}{'. '.join(parts)[1:]}. See jaxpriv --help."
