"""Shared by the commands. Imports nothing heavy."""

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxpriv._names import Relation

RelationName = Relation


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
