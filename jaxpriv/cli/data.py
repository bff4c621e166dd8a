"""The command `jaxpriv data`, which lists data sets and their paths."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from jaxpriv.cli import _common

__all__ = ["Data", "DataList", "DataPath", "run_data_list", "run_data_path"]


@dataclass(frozen=True, kw_only=True)
class DataList(_common.Common):
    """List the data sets and the sources that are available here."""


@dataclass(frozen=True, kw_only=True)
class DataPath(_common.Common):
    """Print the folder or file that a data set is read from."""

    name: tyro.conf.Positional[str]
    """Name of a data set (see `jaxpriv data list`)."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data sets by name; JAXPRIV_DATA is the folder of published raw files."""

    command: (
        Annotated[DataList, tyro.conf.subcommand("list")]
        | Annotated[DataPath, tyro.conf.subcommand("path")]
    )


def run_data_list(command: DataList, argv: Sequence[str]) -> _common.Answer:
    """Lists the data sets and the sources that are available on this machine.

    Args:
      command: parsed options.
      argv: arguments of the program; not used.

    Returns:
      JSON object and lines of text.

    Example:
      >>> answer = run_data_list(DataList(), [])
      >>> answer.lines[0].split()
      ['name', 'records', 'classes', 'served', 'here', 'by', 'licence']
      >>> answer.lines[1].split()[:4]
      ['digits', '1797', '10', 'package']
    """
    del command, argv
    from jaxpriv import data

    listings = data.available()
    rows = [
        (
            listing.name,
            str(listing.num_examples),
            "pairs" if listing.num_classes is None else str(listing.num_classes),
            ", ".join(listing.sources) or "-",
            listing.licence,
        )
        for listing in listings
    ]
    header = ("name", "records", "classes", "served here by", "licence")
    lines = _common.text_table(rows, header=header, right=(1, 2))
    lines.append("For a data set without a source, `jaxpriv data path NAME` describes what to add.")
    return _common.Answer({"data": [asdict(listing) for listing in listings]}, lines)


def run_data_path(command: DataPath, argv: Sequence[str]) -> _common.Answer:
    """Returns the path from which a data set would be read.

    Args:
      command: parsed options.
      argv: arguments of the program; not used.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if the data set does not exist, or if no source of it is available.

    Example:
      >>> run_data_path(DataPath(name="synthetic_purchase"), []).lines
      ['made by a seeded generator, read from no file']
    """
    del argv
    from jaxpriv import data

    path = data.path(command.name)
    if path is None:
        line = "made by a seeded generator, read from no file"
        return _common.Answer({"name": command.name, "path": None}, [line])
    return _common.Answer({"name": command.name, "path": str(path)}, [str(path)])
