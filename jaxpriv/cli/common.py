"""What the commands share. Imports nothing heavy."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

RelationName = Literal["add_or_remove_one", "replace_one"]

Told = tuple[dict[str, Any], list[str]]
"""The JSON object of a command, and its lines for people."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    json: bool = False
    """Print one JSON object on standard output."""
    seed: int = 0
    """Of everything random."""


def log(text: str) -> None:
    """Tells something that is no result."""
    print(text, file=sys.stderr)
