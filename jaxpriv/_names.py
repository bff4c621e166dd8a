"""Names that the library and the command line share. Imports the standard library only."""

from typing import Literal, get_args

Relation = Literal["add_or_remove_one", "replace_one"]
"""How neighbouring data sets differ."""

RELATIONS: tuple[Relation, ...] = get_args(Relation)

UnitKind = Literal["record", "group", "class"]
"""What one membership coin decides: a record, a group of records, or a whole class."""

UNIT_KINDS: tuple[UnitKind, ...] = get_args(UnitKind)
