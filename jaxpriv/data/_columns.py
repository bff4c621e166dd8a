"""Classifies each column of a table of text as numbers, categories or an identifier.

A column passes through these steps: pyarrow encodes its distinct cells and, if all cells are plain
numbers, their values (`_cells`); otherwise each distinct cell is parsed with a decimal point and
with a decimal comma (`_parse_numbers`); the share of cells that parse decides between numbers and
categories, and the number of distinct values between categories and identifiers (`_interpret`).

In the shapes below `n` counts records.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxpriv.data._delimited import Table

MISSING_TEXT = {"", "?", "na", "n/a", "nan", "null", "#n/a", "\\n", "<na>"}
_MISSING_NUMBER = MISSING_TEXT | {"-", "--", ".", "none", "n.a.", "missing"}
MAX_CATEGORIES = 1000

_MIN_NUMBER_SHARE = 0.9
"""Share of the cells with a value that must be numbers in a column of numbers."""

_IDENTIFIER_SHARE = 0.8
"""Distinct values per record above which a column of text identifies its records."""

_MIN_IDENTIFIER_VALUES = 20
_MAX_EXACT_INT = 2**53  # float64 has gaps between the integers beyond
_IDENTIFIER_NAME = re.compile(
    r"|(.*[\W_])?(id|ids|ID|Id|uuid|guid|index|idx|rowid|row|nr|no|key|unnamed: ?0)|.*[a-z](ID|Id)"
)

_NUMBER_OF_EQUAL_NAMES = re.compile(r" ?\(\d+\)$")
"""What `_delimited` appends to equal names."""

# Digits padded by zeros, or more digits than float64 resolves.
_CODE = r"^0[0-9]|[0-9]{16}"
_SPACES = "'\u2019\u00a0\u202f "
_POINT = re.compile(rf"[+-]?(\d{{1,3}}([,{_SPACES}]\d{{3}})+|\d+)?(\.\d*)?([eE][+-]?\d+)?")
_COMMA = re.compile(rf"[+-]?(\d{{1,3}}([.{_SPACES}]\d{{3}})+|\d+)?(,\d*)?([eE][+-]?\d+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.I)
_AFFIXES = "$\u20ac\u00a3\u00a5% "


class Numbers(NamedTuple):
    """A column of numbers.

    name: name of the column.
    values: NaN where a value is missing.
    examples: text of the cells that count as missing, with the number of times each occurs.
    """

    name: str
    values: Float[np.ndarray, " n"]
    examples: dict[str, int]

    def is_missing(self) -> Bool[np.ndarray, " n"]:
        """Returns a mask of the records without a value."""
        return np.isnan(self.values)


class Categories(NamedTuple):
    """A column of text.

    name: name of the column.
    codes: index into `values`; -1 where a value is missing.
    values: distinct cells, sorted.
    """

    name: str
    codes: Int[np.ndarray, " n"]
    values: list[str]

    def is_missing(self) -> Bool[np.ndarray, " n"]:
        """Returns a mask of the records without a value."""
        return self.codes < 0


class LeftOut(NamedTuple):
    """A column that is not an input, with the reason in a sentence."""

    name: str
    reason: str


Column = Numbers | Categories


class _Cells(NamedTuple):
    """A column as its distinct cells, and as numbers if pyarrow can read all of them.

    cells, counts: distinct cells and the number of times each occurs.
    codes: index of each record's cell in `cells`.
    num_fractions: number of cells whose point cannot be a separator of thousands.
    """

    name: str
    cells: list[str]
    counts: list[int]
    codes: Int[np.ndarray, " n"]
    values: Float[np.ndarray, " n"] | None
    num_fractions: int


def interpret(table: Table, indices: Sequence[int]) -> tuple[list[Column | LeftOut], list[str]]:
    """Interprets some columns of a table.

    A column is numeric if nine of ten of its cells with a value are numbers; its other cells
    count as missing. Currency signs, percent signs and separators of thousands are accepted, and
    decimal commas if a column or the file uses them.

    Args:
      table: parsed table.
      indices: positions of the columns.

    Returns:
      The columns, and sentences on how they were read.
    """
    columns = [_cells(table, i) for i in indices]
    prefers_comma = _prefers_comma(columns, table.header.separator)
    notes: list[str] = []
    return [_interpret(column, prefers_comma, notes) for column in columns], notes


def categories(table: Table, index: int) -> Categories:
    """Reads a column as text, even if its cells are numbers."""
    return _categories(_cells(table, index))


def _cells(table: Table, index: int) -> _Cells:
    column = table.columns[index]
    values, num_fractions = _cast(column)
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    cells = encoded.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(cells)).tolist()
    return _Cells(table.names[index], cells, counts, codes, values, num_fractions)


def _cast(column: Any) -> tuple[Float[np.ndarray, " n"] | None, int]:
    """Converts a column of plain numbers, or returns None, and counts its fractions."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute
    is_missing = compute.is_in(
        compute.utf8_lower(column), value_set=pa.array(sorted(_MISSING_NUMBER))
    )
    present = column.filter(compute.invert(is_missing))
    if len(present) == 0 or compute.any(compute.match_substring_regex(present, _CODE)).as_py():
        return None, 0
    try:
        numbers = compute.cast(present, pa.float64())
    except pa.ArrowInvalid:
        return None, 0
    values = np.full(len(column), np.nan)
    values[~is_missing.to_numpy(zero_copy_only=False)] = numbers.to_numpy()
    points = compute.match_substring_regex(present, r"\.([0-9]{0,2}|[0-9]{4,})$")
    return values, compute.sum(points).as_py()


def _interpret(column: _Cells, prefers_comma: bool, notes: list[str]) -> Column | LeftOut:
    n, name = len(column.codes), column.name
    if column.values is not None and (column.num_fractions or not prefers_comma):
        return _number_column(column, column.values)
    present = [
        (cell, count)
        for cell, count in zip(column.cells, column.counts, strict=True)
        if cell.lower() not in _MISSING_NUMBER
    ]
    num_present = sum(count for _, count in present)
    if not present:
        return LeftOut(name, f"Left out the column {name!r}, which has no values.")
    if not _are_codes([cell for cell, _ in present]):
        numbers = _parse_numbers(column, present, prefers_comma, notes)
        share = sum(c for cell, c in present if numbers[cell] is not None) / num_present
        if share >= _MIN_NUMBER_SHARE:
            parsed = [numbers.get(cell) for cell in column.cells]
            values = np.array([np.nan if v is None else v for v in parsed])[column.codes]
            return _number_column(column, values)
    result = _categories(column)
    if len(result.values) > max(_IDENTIFIER_SHARE * n, _MIN_IDENTIFIER_VALUES):
        return LeftOut(
            name,
            f"Left out the column {name!r}: {len(result.values)} different values in {n} records "
            "identify a record or are free text.",
        )
    return result


def _number_column(column: _Cells, values: Float[np.ndarray, " n"]) -> Numbers | LeftOut:
    missing = np.unique(column.codes[np.isnan(values)]).tolist()
    examples = {column.cells[code]: column.counts[code] for code in missing}
    if reason := _identifier_reason(column.name, values):
        return LeftOut(column.name, reason)
    return Numbers(column.name, values, examples)


def _identifier_reason(name: str, values: Float[np.ndarray, " n"]) -> str:
    """Returns the reason why a column of numbers is an identifier, or an empty string."""
    n = len(values)
    if n <= _MIN_IDENTIFIER_VALUES or (values != np.floor(values)).any():
        return ""
    if (np.diff(values) == 1).all() and values[0] in (0, 1):
        return f"Left out the column {name!r}, which numbers the records."
    header = _NUMBER_OF_EQUAL_NAMES.sub("", name)
    is_named_so = any(map(_IDENTIFIER_NAME.fullmatch, (header, header.lower())))
    if is_named_so and len(np.unique(values)) == n:
        return f"Left out the column {name!r}, an identifier: its {n} values all differ."
    return ""


def _are_codes(cells: list[str]) -> bool:
    """Returns whether digits are codes: padded by zeros to one length, or inexact as floats."""
    if not all(cell.isascii() and cell.isdigit() for cell in cells):
        return False
    is_padded = any(cell[0] == "0" for cell in cells) and len(cells[0]) > 1
    return (is_padded and len({len(cell) for cell in cells}) == 1) or any(
        len(cell) > 15 and int(cell) > _MAX_EXACT_INT for cell in cells
    )


def _categories(column: _Cells) -> Categories:
    values = sorted(cell for cell in column.cells if cell.lower() not in MISSING_TEXT)
    position = {cell: i for i, cell in enumerate(values)}
    codes = np.array([position.get(cell, -1) for cell in column.cells], np.int64)[column.codes]
    return Categories(column.name, codes, values)


def _prefers_comma(columns: list[_Cells], separator: str) -> bool:
    """Decides whether cells that can be read both ways, such as 1,234, have decimal commas."""
    only_comma = only_point = 0
    for column in columns:
        if column.values is not None:
            only_point += column.num_fractions
            continue
        for cell, count in zip(column.cells, column.counts, strict=True):
            if "," in cell or "." in cell:
                comma = _parse_number(cell, is_comma=True)
                point = _parse_number(cell, is_comma=False)
                only_comma += count * (comma is not None and point is None)
                only_point += count * (point is not None and comma is None)
    return only_comma > only_point or (only_comma == only_point and separator == ";")


def _parse_numbers(
    column: _Cells, present: list[tuple[str, int]], prefers_comma: bool, notes: list[str]
) -> dict[str, float | None]:
    """Parses the cells with the decimal mark that makes more of them numbers."""
    readings = [
        {cell: _parse_number(cell, is_comma=is_comma) for cell, _ in present}
        for is_comma in (False, True)
    ]
    num_parsed = [sum(c for cell, c in present if read[cell] is not None) for read in readings]
    is_ambiguous = num_parsed[0] == num_parsed[1]
    is_comma = prefers_comma if is_ambiguous else num_parsed[1] > num_parsed[0]
    differing = [cell for cell, _ in present if readings[0][cell] != readings[1][cell]]
    if differing and is_comma:
        notes.append(f"Read the numbers of {column.name!r} with decimal commas.")
    elif differing and is_ambiguous:
        cell = differing[0]
        notes.append(f"Read {cell!r} in {column.name!r} as {readings[0][cell]:g}.")
    if any(cell.endswith("%") for cell, _ in present):
        notes.append(f"Read percentages in {column.name!r} as their numbers, 10 for 10%.")
    return readings[is_comma]


def _parse_number(cell: str, *, is_comma: bool) -> float | None:
    """Parses a number with the given decimal mark; returns None if the cell is not a number."""
    text = cell.strip(_AFFIXES).replace("\u2212", "-")
    if _INFINITE.fullmatch(text):
        return float(text)
    pattern = _COMMA if is_comma else _POINT
    if not text or not pattern.fullmatch(text) or not any(map(str.isdigit, text)):
        return None
    thousands = _SPACES + ("." if is_comma else ",")
    text = text.translate({ord(character): None for character in thousands})
    try:
        return float(text.replace(",", "."))
    except ValueError:  # digits of other scripts, or an exponent alone
        return None
