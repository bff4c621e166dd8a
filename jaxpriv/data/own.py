"""Bring your own: an .npz, a .csv, or a folder of images by class.

In shapes `n` counts records and `d` features.
"""

import csv
import os
import warnings
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from jaxpriv import _files
from jaxpriv.data import images
from jaxpriv.data.base import Dataset, num_duplicates

_MOST_VALUES = 1000  # of a column of text, each of which becomes an input
_KEYS = ("x", "y", "group", "x_test", "y_test")


def load_own(path: str | os.PathLike[str], *, label: str | None = None) -> Dataset:
    """Reads the user's own data. Never unpickles; warns of duplicate records.

    Args:
      path: an .npz with `x` [n, d], [n, h, w] or [n, h, w, c] and `y` [n] (or one-hot), and
        optionally `group` [n], `x_test`, `y_test` (images of bytes are scaled to [0, 1]); a
        .csv with a header; or a folder with one folder of images for each class.
      label: the csv's column of classes; required there, refused elsewhere. All other columns
        are inputs: numbers as they are, text as one input for each value.

    Returns:
      The data; `source` says what was done to it.

    Raises:
      ValueError: one line, if anything in it is missing, damaged or ambiguous: NaN, labels that
        are negative, fractions or leave a number out, one class alone, the wrong rank.
    """
    path = Path(path)
    if (label is not None) != (path.suffix.lower() == ".csv"):
        told = "the label column of" if label is None else "no label column for"
        raise ValueError(f"Expected {told} {path}, got label={label!r}.")
    if path.is_dir():
        dataset = images.read_folder(path, name=path.resolve().name)
    elif label is not None:
        dataset = _csv(path, label)
    elif path.suffix.lower() == ".npz":
        dataset = _npz(path)
    else:
        raise ValueError(f"Expected a folder, an .npz or a .csv file, got {path}.")
    if dataset.num_classes < 2:
        raise ValueError(f"Expected at least two classes in {path}, got one.")
    copies = num_duplicates(dataset)
    if copies:
        warnings.warn(
            f"{copies} of {len(dataset)} records in {path} equal another one: a duplicate between "
            "members and non-members spoils an audit.",
            stacklevel=2,
        )
    return dataset


def _npz(path: Path) -> Dataset:
    with _files.open_npz(path, "data") as archive:
        names = archive.namelist()
        held = {k: _files.npz_array(archive, k) for k in _KEYS if f"{k}.npy" in names}
    for key in _KEYS[:2]:
        if key not in held:
            raise ValueError(
                f"Expected the array {key!r} in {path.name}, found {sorted(names)[:20]}."
            )
    if ("x_test" in held) != ("y_test" in held):
        raise ValueError("Expected x_test and y_test together, found one.")
    x, told = _features("x", held["x"])
    y, one_hot = _labels("y", held["y"])
    is_test = None
    if "x_test" in held:
        more, _ = _features("x_test", held["x_test"])
        labels, _ = _labels("y_test", held["y_test"])
        if more.shape[1:] != x.shape[1:] or held["x"].dtype != held["x_test"].dtype:
            raise ValueError(
                f"Expected x_test like x, {held['x'].dtype} of {x.shape[1:]}, "
                f"got {held['x_test'].dtype} of {more.shape[1:]}."
            )
        _same_length("y_test", labels, "x_test", more)
        is_test = np.repeat([False, True], [len(x), len(more)])
        x, y = np.concatenate([x, more]), np.concatenate([y, labels])
    else:
        _same_length("y", y, "x", x)
    return Dataset(
        x=x,
        y=y,
        name=path.stem,
        num_classes=_consecutive(y),
        source=f"{path}{told}{', one-hot labels taken as numbers' if one_hot else ''}",
        group=_group(held["group"], len(y)) if "group" in held else None,
        is_test=is_test,
    )


def _same_length(first: str, a: np.ndarray, second: str, b: np.ndarray) -> None:
    if len(a) != len(b):
        raise ValueError(f"Expected as many {first} as {second}, got {len(a)} and {len(b)}.")


def _features(name: str, held: Shaped[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."], str]:
    """Features as float32, images with channels, and what was done."""
    if held.dtype.kind not in "bfiu":
        raise ValueError(f"Expected {name} as numbers, got {held.dtype}.")
    if held.ndim not in (2, 3, 4) or held.size == 0:
        raise ValueError(
            f"Expected {name} of shape [n, d], [n, h, w] or [n, h, w, c], got {held.shape}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        x, told = held.astype(np.float32), ""
    if held.ndim > 2 and held.dtype == np.uint8:
        x, told = x / np.float32(255), ", bytes scaled to [0, 1]"
    bad = ~np.isfinite(x)
    if bad.any():
        where = int(np.argwhere(bad)[0][0])
        raise ValueError(
            f"Expected finite float32 numbers in {name}, got NaN or infinity in row {where}."
        )
    return x[..., None] if held.ndim == 3 else x, told


def _labels(name: str, held: Shaped[np.ndarray, "..."]) -> tuple[Int[np.ndarray, " n"], bool]:
    """Class numbers, and whether they came one-hot."""
    if held.ndim == 2 and held.shape[1] > 1 and held.dtype.kind in "bfiu":
        if not (np.isin(held, (0, 1)).all() and (held.sum(1) == 1).all()):
            raise ValueError(f"Expected {name} as [n] classes, or one-hot rows of one 1 each.")
        return held.argmax(1).astype(np.int32), True
    if held.ndim != 1 or len(held) == 0:
        raise ValueError(f"Expected {name} of shape [n] or one-hot [n, c], got {held.shape}.")
    if held.dtype.kind not in "biu":
        raise ValueError(f"Expected {name} as whole numbers, got {held.dtype}.")
    if held.min() < 0:
        raise ValueError(f"Expected {name} >= 0, got {held.min()}.")
    if held.max() > len(held) + 2**16:
        raise ValueError(f"Expected {name} from 0 to k - 1 with none left out, got {held.max()}.")
    return held.astype(np.int32), False


def _consecutive(y: Int[np.ndarray, " n"]) -> int:
    """The number of classes, each of which must occur."""
    present = np.unique(y)
    missing = np.setdiff1d(np.arange(present[-1] + 1), present)
    if len(missing):
        raise ValueError(
            f"Expected labels from 0 to {present[-1]} with none left out, found no {missing[0]}."
        )
    if len(present) < 2:
        raise ValueError("Expected at least two classes, got one.")
    return len(present)


def _group(held: Shaped[np.ndarray, "..."], n: int) -> Int[np.ndarray, " n"]:
    if held.shape != (n,) or held.dtype.kind not in "biuU":
        raise ValueError(
            f"Expected group as whole numbers or text of shape ({n},), with any test rows last, "
            f"got {held.dtype} of {held.shape}."
        )
    return np.unique(held, return_inverse=True)[1].astype(np.int32)


class _Column(NamedTuple):
    """What a first pass over a csv learned of a column; `values` is None for numbers."""

    name: str
    values: dict[str, int] | None


def _csv(path: Path, label: str) -> Dataset:
    """Reads twice, so that no more is held than the arrays that come out."""
    rows = _rows(path)
    header = [name.strip() for name in next(rows, [])]
    if label not in header or header.count(label) > 1:
        raise ValueError(f"Expected one column {label!r} in {path.name}, found {header[:20]}.")
    at = header.index(label)
    columns, n = _columns(path, header, at)
    if n == 0 or len(columns) < 2:
        raise ValueError(f"Expected records and at least one input column in {path.name}.")
    inputs = [(i, column) for i, column in enumerate(columns) if i != at]
    width = sum(1 if c.values is None else len(c.values) for _, c in inputs)
    if n * width * 4 > max(_files.GIB, 20 * _files.require(path)):
        raise ValueError(
            f"Expected at most 20 times its size from {path.name}, got {n} rows of {width} inputs."
        )
    x, y = np.zeros((n, width), np.float32), _Classes()
    with np.errstate(over="ignore", invalid="ignore"):
        for row, cells in zip(x, _records(path), strict=True):
            _fill(row, cells, inputs)
            y.add(cells[at])
    labels, num_classes, told, class_names = y.done(label)
    text = [c.name for _, c in inputs if c.values is not None]
    told += f", one input for each value of {', '.join(text)}" if text else ""
    return Dataset(
        x=_features(path.name, x)[0],
        y=labels,
        name=path.stem,
        num_classes=num_classes,
        source=f"{path}, label {label}{told}",
        class_names=class_names,
    )


def _fill(row: Float[np.ndarray, " d"], cells: list[str], inputs: list[tuple[int, _Column]]):
    start = 0
    for i, column in inputs:
        if column.values is None:
            row[start] = float(cells[i])
            start += 1
        else:
            row[start + column.values[cells[i]]] = 1
            start += len(column.values)


def _rows(path: Path) -> Iterator[list[str]]:
    _files.require(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            yield from csv.reader(stream)
    except UnicodeDecodeError:
        raise ValueError(f"Expected UTF-8 text in {path}.") from None
    except (csv.Error, OSError) as e:
        raise ValueError(f"Expected a csv file at {path}: {_files.one_line(e)}.") from None


def _records(path: Path) -> Iterator[list[str]]:
    rows = _rows(path)
    width = len(next(rows, []))
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != width:
            raise ValueError(
                f"Expected {width} values in row {number} of {path.name}, got {len(row)}."
            )
        yield [cell.strip() for cell in row]


def _columns(path: Path, header: list[str], at: int) -> tuple[list[_Column], int]:
    """Finds which columns are numbers and which values the others have."""
    values: list[dict[str, int]] = [{} for _ in header]
    is_number, n = [True] * len(header), 0
    for n, cells in enumerate(_records(path), 1):
        for i, cell in enumerate(cells):
            if cell in ("", "?") or cell.lower() in ("nan", "na", "n/a", "null"):
                raise ValueError(
                    f"Expected a value in column {header[i]!r}, found {cell!r} in record {n}."
                )
            if i == at:
                continue
            is_number[i] = is_number[i] and _is_number(cell)
            if len(values[i]) <= _MOST_VALUES:
                values[i].setdefault(cell, len(values[i]))
    for name, held, numeric in zip(header, values, is_number, strict=True):
        if not numeric and len(held) > _MOST_VALUES:
            raise ValueError(
                f"Expected numbers or at most {_MOST_VALUES} values in column {name!r}, found more."
            )
    ordered = [{v: i for i, v in enumerate(sorted(held))} for held in values]
    pairs = zip(header, ordered, is_number, strict=True)
    return [_Column(name, None if numeric else held) for name, held, numeric in pairs], n


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


class _Classes:
    """Collects a csv's labels: whole numbers as they are, text in sorted order."""

    def __init__(self):
        self._numbers, self._of = array("q"), {}

    def add(self, cell: str) -> None:
        """Takes the next label."""
        self._numbers.append(self._of.setdefault(cell, len(self._of)))
        if len(self._of) > 2**16:
            raise ValueError("Expected at most 65536 classes in the label column, found more.")

    def done(self, label: str) -> tuple[Int[np.ndarray, " n"], int, str, tuple[str, ...] | None]:
        """All labels, the number of classes, what was done, and the classes' names if text."""
        cells, numbers = list(self._of), np.frombuffer(self._numbers, np.int64)
        if all(_is_number(cell) for cell in cells):
            if not all(len(c) < 10 and c.removeprefix("-").isdecimal() for c in cells):
                raise ValueError(f"Expected whole numbers or text in {label!r}, got fractions.")
            y, _ = _labels(label, np.array([int(c) for c in cells])[numbers])
            return y, _consecutive(y), "", None
        rank = {cell: i for i, cell in enumerate(sorted(cells))}
        y = np.array([rank[cell] for cell in cells], np.int32)[numbers]
        return y, _consecutive(y), ", classes in sorted order", tuple(sorted(cells))
