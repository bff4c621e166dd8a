"""Shared by the commands: their result, common options, text tables, reading of score files.

Heavy packages are imported inside the functions, so that `--help` is fast.
"""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from jaxpriv.attacks import Evidence

SENSITIVITY_FACTOR = {"add_or_remove_one": 1.0, "replace_one": 2.0}
"""Sensitivity of a sum of clipped gradients, in clip norms."""

_MAX_LINE = 1000


class Answer(NamedTuple):
    """Result of a command: the JSON object, and the lines that are printed without --json."""

    json: dict[str, Any]
    lines: list[str]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command."""

    json: bool = False
    """Print one JSON object on standard output."""


def log(text: str) -> None:
    """Prints a message to standard error."""
    print(text, file=sys.stderr)


def text_table(
    rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), right: Sequence[int] = ()
) -> list[str]:
    """Formats rows of cells as lines of aligned columns, two spaces apart.

    Args:
      rows: cells of each row.
      header: names of the columns; none if empty.
      right: positions of the columns that are aligned to the right.

    Returns:
      Lines without trailing spaces.
    """
    from rich.console import Console
    from rich.table import Table

    cells = [*([header] if header else []), *rows]
    table = Table.grid(padding=(0, 2, 0, 0))
    for i in range(len(cells[0])):
        table.add_column(justify="right" if i in right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    text = io.StringIO()
    # Cells may contain brackets and colons, which are neither markup nor emoji.
    Console(file=text, width=_MAX_LINE, markup=False, emoji=False, highlight=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def check_records(records: int | None, *, delta: float | None) -> None:
    """Raises ValueError unless a number of records is positive and stands beside a delta."""
    from jaxpriv import _check

    if records is None:
        return
    _check.positive_int(records=records)
    if delta is None:
        raise ValueError("Expected --delta with --records, which decides whether it is vacuous.")


def vacuous_lines(reasons: Sequence[str]) -> list[str]:
    """States why a guarantee is vacuous, in at most one line."""
    return [f"This guarantee is vacuous: {'; '.join(reasons)}."] if reasons else []


def load_scores(path: Path) -> "tuple[Evidence, np.ndarray]":
    """Reads a file of scores with the true membership.

    Args:
      path: a SCORES.npz.

    Returns:
      The evidence, and whether each record is a member.

    Raises:
      ValueError: if `is_member` is missing, or if `evidence.load` refuses the file.
    """
    from jaxpriv.attacks import evidence

    loaded, is_member = evidence.load(path)
    if is_member is None:
        raise ValueError(f"Expected the array 'is_member' in {path.name}, got none.")
    loaded.check_judged(is_member)
    return loaded, is_member
