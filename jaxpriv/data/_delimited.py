"""Reads tables of text, separated by commas, semicolons, tabs or vertical bars.

This module decodes the file, detects separator and header, and lets pyarrow split the rest into
cells of text; `_columns` reads their numbers, and `_tables` treats missing values. After an error
it scans the file once more for the line number.

In the shapes below `n` counts records.
"""

import codecs
import csv
import io
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxpriv import _files

SUFFIXES = (".csv", ".tsv", ".txt")
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MAX_PREAMBLE = 30  # lines before the header
_BLOCK_BYTES = 2**24  # length of the longest record that pyarrow parses
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Table(NamedTuple):
    """A table of text cells without surrounding white space.

    path: the file.
    names: names of the columns, which all differ.
    columns: a pyarrow array of strings for each column.
    record: number of each row in the file, from 0; rows of empty cells are left out.
    header: the header as it stands in the file.
    notes: sentences on how the file was read.
    """

    path: Path
    names: list[str]
    columns: list[Any]
    record: Int[np.ndarray, " n"]
    header: "_Header"
    notes: list[str]

    def line(self, row: int) -> int:
        """Returns the line of the file on which a row ends, from 1."""
        raw, _ = _decode(self.path)
        return _line_of(raw, self.header, int(self.record[row]))


class _Header(NamedTuple):
    names: list[str]
    separator: str
    first_line: int  # from 1
    last_line: int
    num_bytes: int  # up to the end of the header


def read(path: Path, label: str | None) -> Table:
    """Reads a table.

    Args:
      path: a file in UTF-8, or in UTF-16 with a byte-order mark.
      label: name of a column that must exist.

    Returns:
      The table.

    Raises:
      ValueError: if the file does not exist or is not text, if the header lacks the column, or
        if a record has more or fewer cells than the header.
    """
    raw, notes = _decode(path)
    header = _find_header(raw, path, None if label is None else [label])
    if label is None or header.names.count(label) != 1:
        wanted = f"one column {label!r}"
        if label is None:
            wanted = "a label column, as label='COLUMN' (--label COLUMN),"
        columns = f"whose columns are {_listed(header.names)}"
        if len(header.names) == 1:
            columns = (
                f"whose only column is {header.names[0]!r}: separate columns by commas, "
                "semicolons, tabs or vertical bars"
            )
        raise ValueError(f"Expected {wanted} in {path}, {columns}.")
    if header.separator != ",":
        notes.append(f"Columns are separated by {_SEPARATORS[header.separator]}.")
    if header.first_line > 1:
        notes.append(f"Skipped {header.first_line - 1} lines before the header.")
    columns = _parse(raw, header, path)
    is_empty = np.logical_and.reduce([_is_empty(column) for column in columns])
    record = np.flatnonzero(~is_empty)
    if is_empty.any():
        notes.append(f"Left out {int(is_empty.sum())} rows of empty cells.")
        columns = [column.take(record) for column in columns]
    if not len(record):
        raise ValueError(f"Expected records below the header of {path}, got none.")
    names = _distinct(header.names)
    if names != header.names:
        renamed = [new for new, old in zip(names, header.names, strict=True) if new != old]
        notes.append(f"Numbered columns of equal names: {_listed(renamed)}.")
    return Table(path, names, columns, record, header, notes)


def _distinct(names: list[str]) -> list[str]:
    """Appends numbers to equal names: a, b, a becomes a (1), b, a (2)."""
    counts, taken = Counter(names), set(names)
    numbers = {name: itertools.count(1) for name in counts}

    def numbered(name: str) -> str:
        labels = (f"{name} ({number})".strip() for number in numbers[name])
        label = next(label for label in labels if label not in taken)
        taken.add(label)
        return label

    return [name if counts[name] == 1 else numbered(name) for name in names]


def _decode(path: Path) -> tuple[bytes, list[str]]:
    """Returns the file as UTF-8 without a byte-order mark, and notes."""
    raw = _files.read_bytes(path)
    if raw.startswith(_UTF16):
        try:
            return raw.decode("utf-16").encode(), ["Decoded from UTF-16."]
        except UnicodeDecodeError:
            raise ValueError(f"Expected whole UTF-16 text in {path}.") from None
    raw = raw.removeprefix(codecs.BOM_UTF8)
    decoder, start = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        for start in range(0, len(raw), _BLOCK_BYTES):
            decoder.decode(raw[start : start + _BLOCK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, start + e.start) + 1
        raise ValueError(
            f"Expected UTF-8 text in {path}, got the byte 0x{e.object[e.start]:02x} in line "
            f"{line}: save it as UTF-8, for example by iconv -f WINDOWS-1252 -t UTF-8."
        ) from None
    return raw, []


def _find_header(raw: bytes, path: Path, wanted: list[str] | None) -> _Header:
    """Finds the first line with the wanted columns, or else the line with the most columns."""
    lines = list(io.StringIO(raw[:_BLOCK_BYTES].decode("utf-8", "ignore"), newline=""))
    lines = lines[: _MAX_PREAMBLE + 1]
    candidates = [header for s in _SEPARATORS for header in _rows(lines, s)]
    if wanted is not None:
        with_wanted = [h for h in candidates if set(wanted) <= set(h.names)]
        candidates = with_wanted or candidates
    if not candidates:
        raise ValueError(f"Expected a table with a header in {path}, got no text.")
    return max(candidates, key=lambda header: (len(header.names), -header.first_line))


def _rows(lines: list[str], separator: str) -> list[_Header]:
    rows, first = [], 1
    reader = csv.reader(lines, delimiter=separator)
    try:
        for row in reader:
            names = [name.strip() for name in row]
            num_bytes = len("".join(lines[: reader.line_num]).encode())
            if any(names):
                rows.append(_Header(names, separator, first, reader.line_num, num_bytes))
            first = reader.line_num + 1
    except csv.Error:
        pass  # a cell that is too long for a header
    return rows


def _parse(raw: bytes, header: _Header, path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as pa_csv

    invalid: list[Any] = []

    def record_invalid(row: Any) -> str:
        invalid.append(row)
        return "error"

    names = [str(i) for i in range(len(header.names))]
    buffer = pa.py_buffer(raw)
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(buffer.slice(header.num_bytes)),
            read_options=pa_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=_BLOCK_BYTES
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=header.separator,
                newlines_in_values=True,
                invalid_row_handler=record_invalid,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, OverflowError) as e:
        if invalid:
            line = _line_of(raw, header, invalid[0].number - 1)
            raise ValueError(
                f"Expected {len(names)} values in line {line} of {path}, as in its header, "
                f"got {invalid[0].actual_columns}."
            ) from None
        if "Empty CSV" in str(e):
            raise ValueError(f"Expected records below the header of {path}, got none.") from None
        raise ValueError(f"Expected a table in {path}: {_files.one_line(e)}.") from None
    trim: Any = pc.utf8_trim_whitespace  # pyright: ignore[reportAttributeAccessIssue]
    return [trim(table[name]).combine_chunks() for name in names]


def _is_empty(column: Any) -> np.ndarray:
    import pyarrow.compute as pc

    equal: Any = pc.equal  # pyright: ignore[reportAttributeAccessIssue]
    return equal(column, "").to_numpy(zero_copy_only=False)


def _line_of(raw: bytes, header: _Header, record: int) -> int:
    """Returns the line on which a record ends; blank lines are not records."""
    text = io.StringIO(raw[header.num_bytes :].decode("utf-8", "replace"), newline="")
    reader = csv.reader(text, delimiter=header.separator)
    number = -1
    try:
        for row in reader:
            number += bool(row)
            if number == record:
                break
    except csv.Error:
        pass
    return header.last_line + reader.line_num


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
