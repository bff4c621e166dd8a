"""Converts labels of any kind to class numbers and names, with classes in sorted order.

In the shapes below `n` counts records.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from jaxpriv.data import _columns

_MAX_FRACTIONS = 100
"""Distinct labels that are not integers; more of them indicate a regression."""

_MAX_CLASSES_OF_ANY_SIZE = 20
"""More classes than this must have two records each on average."""


class Classes(NamedTuple):
    """Classes of the records.

    numbers: class of each record; -1 where the label is missing.
    names: names of the classes in the order of their numbers.
    notes: sentences on how the labels were read.
    """

    numbers: Int[np.ndarray, " n"]
    names: tuple[str, ...]
    notes: tuple[str, ...]


def from_text(name: str, column: _columns.Categories) -> Classes:
    """Reads a column of labels; classes are sorted as numbers if all are numbers, else as text.

    Args:
      name: name of the column.
      column: its cells.

    Returns:
      The classes that occur.

    Raises:
      ValueError: if there is only one class, or too many for a classification.
    """
    try:
        if any("_" in value for value in column.values):
            raise ValueError
        values = np.array([float(value) for value in column.values])
        is_number = bool(np.isfinite(values).all())
    except ValueError:
        values, is_number = np.array(column.values), False
    if not is_number:
        values = np.array(column.values)
    is_present = column.codes >= 0
    numbers = np.full(len(column.codes), -1, np.int32)
    classes = _classes(name, values[column.codes[is_present]], is_text=not is_number)
    numbers[is_present] = classes.numbers
    return classes._replace(numbers=numbers)


def from_array(name: str, labels: Shaped[np.ndarray, "..."]) -> Classes:
    """Reads an array of labels: numbers or text [n] or [n, 1], or one-hot rows.

    Args:
      name: name of the array.
      labels: stored array.

    Returns:
      The classes that occur.

    Raises:
      ValueError: as `from_text`, or if the array has another shape or type.
    """
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "bfiu":
        if not (np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all()):
            raise ValueError(f"Expected {name} as [n] classes, or one-hot rows of one 1 each.")
        classes = _classes(name, labels.argmax(1), is_text=False)
        return classes._replace(notes=(f"Read {name} as one-hot rows.", *classes.notes))
    if labels.ndim not in (1, 2) or labels.shape[1:] not in ((), (1,)) or len(labels) == 0:
        raise ValueError(f"Expected {name} of shape [n] or one-hot [n, c], got {labels.shape}.")
    if labels.dtype.kind not in "biufUS":
        raise ValueError(f"Expected {name} as numbers or text, got {labels.dtype}.")
    labels = labels.reshape(-1)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.argmin(np.isfinite(labels)))
        raise ValueError(f"Expected a label for each record, got {labels[row]} in {name}[{row}].")
    if labels.dtype.kind == "S":
        try:
            labels = np.array([label.decode("utf-8") for label in labels.tolist()])
        except UnicodeDecodeError as e:
            raise ValueError(f"Expected {name} as text in UTF-8, got {e.object!r}.") from None
    return _classes(name, labels, is_text=labels.dtype.kind == "U")


def _classes(name: str, labels: Shaped[np.ndarray, " n"], *, is_text: bool) -> Classes:
    values, numbers = np.unique(labels, return_inverse=True)
    if len(values) < 2:
        raise ValueError(f"Expected at least two classes in {name!r}, got {len(values)}.")
    if len(values) > max(_MAX_CLASSES_OF_ANY_SIZE, len(labels) / 2):
        raise ValueError(
            f"Expected classes with several records each in {name!r}, got {len(values)} different "
            f"values in {len(labels)} records."
        )
    are_integers = is_text or bool((values == np.floor(values.astype(np.float64))).all())
    if not are_integers and len(values) > _MAX_FRACTIONS:
        raise ValueError(
            f"Expected classes in {name!r}, got {len(values)} different fractions: make classes "
            "of them first."
        )
    if is_text:
        names = tuple(map(str, values))
    else:
        names = tuple(str(int(v)) if are_integers else f"{float(v):.10g}" for v in values)
    plain = names == tuple(map(str, range(len(names))))
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    notes = () if plain else (f"Classes in the order of {name!r}: {shown}.",)
    return Classes(numbers.astype(np.int32), names, notes)
