"""Names shared by the library and the command line; imports the standard library only."""

from typing import Literal, get_args

Relation = Literal["add_or_remove_one", "replace_one"]
"""How neighbouring data sets differ: by a record that is added or left out, or by its value."""

RELATIONS: tuple[Relation, ...] = get_args(Relation)

UnitKind = Literal["record", "group", "class"]
"""Unit of privacy, which one membership coin includes or excludes."""
