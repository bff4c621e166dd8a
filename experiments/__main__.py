"""Lists and runs the experiments.

Usage: python -m experiments list
       python -m experiments run PAPER/NAME --preset smoke|cpu|paper [--out FOLDER]
"""

import argparse
import importlib
import sys
from pathlib import Path

from experiments import common

ROOT = Path(__file__).parent


def found() -> dict[str, str]:
    """Every experiment, and the first line of its record."""
    result = {}
    for path in sorted(ROOT.glob("*/*.py")):
        text = path.read_text("utf8")
        if "\ndef run(" in text and "\nRun: " in text:
            result[f"{path.parent.name}/{path.stem}"] = text.split('"""')[1].splitlines()[0]
    return result


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    run = commands.add_parser("run")
    run.add_argument("name", choices=sorted(found()), metavar="PAPER/NAME")
    run.add_argument("--preset", choices=common.PRESETS, required=True)
    run.add_argument("--out", type=Path, default=ROOT / "results")
    given = parser.parse_args(argv)
    if given.command == "list":
        print("\n".join(f"{name:32}{line}" for name, line in found().items()))
        return 0
    module = importlib.import_module(f"experiments.{given.name.replace('/', '.')}")
    record = {"experiment": given.name, "preset": given.preset, **common.machine()}
    record |= module.run(given.preset)
    path = given.out / f"{given.name.replace('/', '-')}-{given.preset}.json"
    common.write(path, record)
    for figure, svg in getattr(module, "plots", lambda record: {})(record).items():
        path.with_name(f"{path.stem}-{figure}.svg").write_text(svg, "utf8")
    print(module.table(record))
    print(f"written: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
