"""Converts tables of text to data sets: label, groups, exclusions, missing values.

In the shapes below `n` counts records, `k` records that are used, and `d` features.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from jaxpriv import _files
from jaxpriv.data import _columns, _delimited, _digests, _labels, _preprocessing
from jaxpriv.data.dataset import Column, Dataset


def read(path: Path, options: _preprocessing.Options) -> tuple[Dataset, int]:
    """Reads a data set.

    Args:
      path: a table with a header.
      options: roles of the columns, and treatment of missing values.

    Returns:
      The data set, and the number of records that equal an earlier record in the file.

    Raises:
      ValueError: if the table is damaged, or if a column or a value does not fit.
    """
    table = _delimited.read(path, options.label)
    assert options.label is not None
    special = [name for name in (options.label, options.group) if name is not None]
    for name in [*special, *options.exclude, *(options.public_bounds or {})]:
        if table.names.count(name) != 1:
            raise ValueError(
                f"Expected one column {name!r} in {path}, got the columns {table.names[:20]}."
            )
    if len({*special, *options.exclude}) < len(special) + len(options.exclude):
        raise ValueError("Expected different columns as label, group and exclude.")
    skipped = {*special, *options.exclude}
    inputs = [i for i, name in enumerate(table.names) if name not in skipped]
    interpreted, notes = _columns.interpret(table, inputs)
    left_out = [column for column in interpreted if isinstance(column, _columns.LeftOut)]
    notes = [*table.notes, *notes, *(column.reason for column in left_out)]
    if options.exclude:
        notes.append(f"Left out {', '.join(options.exclude)} as requested.")
    columns = [c for c in interpreted if not isinstance(c, _columns.LeftOut)]
    _check_columns(path, columns, left_out, len(table.record))
    numbers = {column.name for column in columns if isinstance(column, _columns.Numbers)}
    for name in set(options.public_bounds or {}) - numbers:
        raise ValueError(f"Expected a column of numbers in public_bounds, got {name!r}.")
    keys = [_columns.categories(table, table.names.index(name)) for name in special]
    keep, not_private = _handle_missing(table, [*columns, *keys], special, options, notes)
    label = keys[0]._replace(codes=np.where(keep, keys[0].codes, -1))
    classes = _labels.from_text(options.label, label)
    for column in columns:
        if isinstance(column, _columns.Numbers):
            bounds = (options.public_bounds or {}).get(column.name)
            _preprocessing.centre(repr(column.name), column.values, bounds, notes, not_private)
    text = [c.name for c in columns if isinstance(c, _columns.Categories)]
    if text:
        notes.append(f"One input for each value of {', '.join(text)}.")
        not_private.append(
            f"The lists of values of {', '.join(text)} come from the records and are not covered "
            "by epsilon."
        )
    x = np.concatenate([_inputs(column)[keep] for column in columns], axis=1)
    y = classes.numbers[keep]
    dataset = Dataset(
        x=_float32(x, columns, table, keep),
        y=y,
        name=path.stem,
        num_classes=len(classes.names),
        class_names=classes.names,
        source=f"{path}, label {options.label}",
        notes=(*notes, *classes.notes),
        not_private=tuple(not_private),
        group=_preprocessing.renumber(keys[1].codes[keep]) if len(keys) > 1 else None,
        columns=_named_inputs(columns),
    )
    return dataset, _digests.count_duplicates(x, y)


def _check_columns(
    path: Path, columns: list[_columns.Column], left_out: list[_columns.LeftOut], n: int
) -> None:
    """Raises ValueError if there are no inputs, or if columns of text would make too many."""
    if not columns:
        reasons = " ".join(column.reason for column in left_out[:5])
        raise ValueError(
            f"Expected at least one input column beside the label in {path}. {reasons}".strip()
        )
    for column in columns:
        size = len(column.values) if isinstance(column, _columns.Categories) else 1
        if size > _columns.MAX_CATEGORIES:
            raise ValueError(
                f"Expected numbers or at most {_columns.MAX_CATEGORIES} values in the column "
                f"{column.name!r} of {path}, got {size} values: leave it out by "
                f"exclude=[{column.name!r}]."
            )
    width = sum(len(c.values) + 1 if isinstance(c, _columns.Categories) else 1 for c in columns)
    if n * width * 4 > max(_files.GIB, 20 * _files.checked_size(path)):
        raise ValueError(
            f"Expected at most 20 times its size from {path}, got {n} rows of {width} inputs."
        )


def _handle_missing(
    table: _delimited.Table,
    columns: list[_columns.Column],
    special: list[str],
    options: _preprocessing.Options,
    notes: list[str],
) -> tuple[Bool[np.ndarray, " n"], list[str]]:
    """Refuses, drops or fills missing cells.

    Returns:
      A mask of the records to use, and sentences on what is not private.
    """
    n = len(table.record)
    gaps = {c.name: c.is_missing() for c in columns if c.is_missing().any()}
    if not gaps:
        return np.ones(n, bool), []
    counts = ", ".join(_count_missing(c) for c in [c for c in columns if c.name in gaps][:10])
    if options.missing == "refuse":
        name, gap = next(iter(gaps.items()))
        row = int(np.argmax(gap))
        cell = table.columns[table.names.index(name)][row].as_py()
        raise ValueError(
            f"Expected no missing values in {table.path}, got {counts}, the first in line "
            f"{table.line(row)} ({cell!r} in {name!r}): choose missing='drop' or missing='median' "
            "(--missing)."
        )
    dropping = gaps if options.missing == "drop" else {k: gaps[k] for k in special if k in gaps}
    keep = ~np.logical_or.reduce([*dropping.values(), np.zeros(n, bool)])
    if dropping:
        notes.append(f"Dropped {int((~keep).sum())} of {n} records with missing values ({counts}).")
    if not keep.any():
        raise ValueError(f"Expected a record without missing values in {table.path}, got none.")
    not_private: list[str] = []
    for column in columns:
        if column.name in gaps and column.name not in dropping:
            _fill(column, keep, options.public_bounds or {}, notes, not_private)
    return keep, not_private


def _count_missing(column: _columns.Column) -> str:
    """Describes the missing cells of a column."""
    text = f"{int(column.is_missing().sum())} in {column.name!r}"
    if not isinstance(column, _columns.Numbers):
        return text
    cells = [repr(cell) for cell in column.examples]
    return f"{text} ({', '.join(cells[:3])}{', ...' if len(cells) > 3 else ''})"


def _fill(
    column: _columns.Column,
    keep: Bool[np.ndarray, " n"],
    public_bounds: Mapping[str, _preprocessing.Bounds],
    notes: list[str],
    not_private: list[str],
) -> None:
    """Fills the missing cells of a column in place."""
    gap, name = column.is_missing(), column.name
    count = int((gap & keep).sum())
    if isinstance(column, _columns.Categories):
        column.codes[gap] = len(column.values)
        column.values.append("missing")
        notes.append(f"Replaced {count} missing values of {name!r} by the category 'missing'.")
        return
    shown = ", ".join(repr(cell) for cell in list(column.examples)[:5])
    if name in public_bounds:
        low, high = public_bounds[name]
        column.values[gap] = (low + high) / 2
        notes.append(
            f"Replaced {count} missing values of {name!r} ({shown}) by {(low + high) / 2:g}, the "
            "middle of its public bounds."
        )
        return
    column.values[gap] = _preprocessing.median(name, column.values)
    note = f"Replaced {count} missing values of {name!r} ({shown}) by the median."
    notes.append(note)
    not_private.append(f"{note} The median is not covered by epsilon.")


def _named_inputs(columns: list[_columns.Column]) -> tuple[Column, ...]:
    """Returns the inputs that each column occupies."""
    result, start = [], 0
    for column in columns:
        width = len(column.values) if isinstance(column, _columns.Categories) else 1
        result.append(Column(column.name, tuple(range(start, start + width))))
        start += width
    return tuple(result)


def _inputs(column: _columns.Column) -> Float[np.ndarray, "n d"]:
    if isinstance(column, _columns.Numbers):
        return column.values[:, None]
    return (column.codes[:, None] == np.arange(len(column.values))).astype(np.float64)


def _float32(
    x: Float[np.ndarray, "k d"],
    columns: list[_columns.Column],
    table: _delimited.Table,
    keep: Bool[np.ndarray, " n"],
) -> Float[np.ndarray, "k d"]:
    """Converts inputs to float32; raises ValueError if one is out of range."""
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    bad = ~np.isfinite(narrow)
    if bad.any():
        row, position = (int(i) for i in np.argwhere(bad)[0])
        widths = [_inputs(column).shape[1] for column in columns]
        column = columns[int(np.searchsorted(np.cumsum(widths), position, side="right"))]
        row = int(np.flatnonzero(keep)[row])
        cell = table.columns[table.names.index(column.name)][row].as_py()
        raise ValueError(
            f"Expected finite float32 numbers in {table.path}, got {cell!r} in line "
            f"{table.line(row)}, column {column.name!r}."
        )
    return narrow
