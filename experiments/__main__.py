"""List and run the experiments."""

import dataclasses
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments import common

ROOT = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class List:
    """List the experiments."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run an experiment, write its record and plots, and print its table."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PAPER/NAME")]
    """Name of the experiment, as listed."""
    preset: Literal["smoke", "cpu", "paper"]
    """Size: seconds for a test, two cores, or the setting of the paper on a GPU."""
    out: Path = ROOT / "results"
    """Folder of the record (JSON) and the plots (SVG)."""


def experiments() -> dict[str, str]:
    """Returns the first line of the record of every experiment, by name."""
    result = {}
    for path in sorted(ROOT.glob("*/*.py")):
        text = path.read_text("utf8")
        if "\ndef run(" in text and "\nRun: " in text:
            result[f"{path.parent.name}/{path.stem}"] = text.split('"""')[1].splitlines()[0]
    return result


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    command = tyro.cli(List | Run, args=argv, prog="python -m experiments", description=__doc__)
    known = experiments()
    if isinstance(command, List):
        print(common.text_table(("experiment", "measures"), known.items()))
        return 0
    if command.name not in known:
        print(f"error: no experiment {command.name!r}; see `list`", file=sys.stderr)
        return 2
    module = importlib.import_module(f"experiments.{command.name.replace('/', '.')}")
    settings = module.PRESETS[command.preset]
    record = {
        "experiment": command.name,
        "preset": command.preset,
        **common.machine(),
        "settings": dataclasses.asdict(settings),
    }
    record |= module.run(settings)
    path = command.out / f"{command.name.replace('/', '-')}-{command.preset}.json"
    common.write(path, record)
    for figure, svg in getattr(module, "plots", lambda record: {})(record).items():
        path.with_name(f"{path.stem}-{figure}.svg").write_text(svg, "utf8")
    print(module.table(record))
    print(f"written: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
