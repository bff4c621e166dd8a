"""Names of privacy relations and units of privacy. Imports the standard library only."""

from typing import Literal

Relation = Literal["add_or_remove_one", "replace_one"]
RELATIONS: tuple[Relation, ...] = ("add_or_remove_one", "replace_one")

Unit = Literal["record", "group"]
UNITS: tuple[Unit, ...] = ("record", "group")
