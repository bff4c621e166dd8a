"""`jaxpriv data`: data sets by name."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from jaxpriv.cli import common


@dataclass(frozen=True, kw_only=True)
class DataList(common.Common):
    """List the data sets and what serves each here."""


@dataclass(frozen=True, kw_only=True)
class DataPath(common.Common):
    """Print the folder or file that a data set is read from."""

    name: tyro.conf.Positional[str]
    """Name of a data set (see `jaxpriv data list`)."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data sets by name; JAXPRIV_DATA names a folder of published raw files."""

    command: (
        Annotated[DataList, tyro.conf.subcommand("list")]
        | Annotated[DataPath, tyro.conf.subcommand("path")]
    )


def run_data_list(command: DataList, argv: list[str]) -> common.Answer:
    """Lists the data sets and what serves each."""
    del command, argv
    from jaxpriv import data

    sets = data.available()
    lines = [f"{'name':<19}{'records':>8}{'classes':>9}  {'served here by':<17}licence"]
    for one in sets:
        classes = "pairs" if one.num_classes is None else str(one.num_classes)
        here = ", ".join(one.sources) or "-"
        lines.append(f"{one.name:<19}{one.num_examples:>8}{classes:>9}  {here:<17}{one.licence}")
    lines.append("A set that nothing serves: `jaxpriv data path NAME` says what to add.")
    return common.Answer({"data": [asdict(one) for one in sets]}, lines)


def run_data_path(command: DataPath, argv: list[str]) -> common.Answer:
    """Prints where a data set would be read from."""
    del argv
    from jaxpriv import data

    path = data.path(command.name)
    if path is None:
        line = "made by a seeded generator, read from no file"
        return common.Answer({"name": command.name, "path": None}, [line])
    return common.Answer({"name": command.name, "path": str(path)}, [str(path)])
