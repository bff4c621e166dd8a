"""The program: one parser, one place where errors become a line."""

import json
import sys
import warnings
from typing import Annotated

import tyro

from jaxpriv.cli import common, data, privacy, report, scores

Command = (
    Annotated[report.Report, tyro.conf.subcommand("report")]
    | Annotated[scores.Attack, tyro.conf.subcommand("attack")]
    | Annotated[scores.Audit, tyro.conf.subcommand("audit")]
    | Annotated[privacy.Epsilon, tyro.conf.subcommand("epsilon")]
    | Annotated[privacy.Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[privacy.Identify, tyro.conf.subcommand("identify")]
    | Annotated[data.Data, tyro.conf.subcommand("data")]
)

_RUN = {
    report.Report: report.run_report,
    scores.Attack: scores.run_attack,
    scores.Audit: scores.run_audit,
    privacy.Epsilon: privacy.run_epsilon,
    privacy.Calibrate: privacy.run_calibrate,
    privacy.Identify: privacy.run_identify,
    data.DataList: data.run_data_list,
    data.DataPath: data.run_data_path,
}


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
    command = command.command if isinstance(command, data.Data) else command
    warnings.showwarning = lambda message, *_: common.log(f"warning: {message}")
    try:
        result, lines = _RUN[type(command)](command, argv)
    except (ValueError, OSError) as e:
        common.log(f"error: {e}")
        return 2
    except (ArithmeticError, MemoryError) as e:
        told = str(e) or type(e).__name__
        common.log(f"error: Expected numbers that can be computed with, got {told}.")
        return 2
    print(json.dumps(result, allow_nan=False) if command.json else "\n".join(lines))
    return 0
