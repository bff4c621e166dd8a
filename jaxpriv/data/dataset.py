"""Data sets as frozen arrays.

In the shapes below `n` counts records and `m` selected records; features are `[n, d]`, series
`[n, t, d]` and images `[n, h, w, c]`.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxpriv import _check, units
from jaxpriv.data import _digests

__all__ = ["Column", "Dataset", "num_duplicates"]


class Column(NamedTuple):
    """A named column of a table.

    name: name in the header.
    inputs: columns of the features that it occupies: one for numbers, otherwise one for each value.

    Example:
      >>> Column("colour", (3, 4)).inputs
      (3, 4)
    """

    name: str
    inputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Records with labels; the arrays are read-only views.

    x: features or images; images and binary features lie in [0, 1].
    y: class of each record, 0 to num_classes - 1.
    name: name of the data set.
    num_classes: number of classes.
    source: files from which the arrays were read.
    group: person or household of each record, if records of a group are dependent.
    is_test: whether the publisher assigned a record to the test part, if there is one.
    class_names: names of the classes in the order of their numbers; "0", "1", ... by default.
    notes: sentences on what was converted, left out or imputed.
    not_private: sentences on preprocessing that depends on the records and is not covered by
      epsilon.
    columns: the columns of a table that are inputs, in their order; empty if they have no names.

    Raises:
      ValueError: if the lengths differ, a label is outside 0 to num_classes - 1, or there are no
        records.

    Example:
      >>> import numpy as np
      >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
      >>> dataset = Dataset(x=x, y=y, name="toy", num_classes=2, source="made by hand")
      >>> len(dataset), dataset.class_names
      (4, ('0', '1'))
    """

    x: Float[np.ndarray, "n ..."]
    y: Int[np.ndarray, " n"]
    name: str
    num_classes: int
    source: str
    group: Int[np.ndarray, " n"] | None = None
    is_test: Bool[np.ndarray, " n"] | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_private: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        if len(self.y) == 0:
            raise ValueError(f"Expected at least one record in {self.name}, got none.")
        for field in ("x", "y", "group", "is_test"):
            array = getattr(self, field)
            if array is not None:
                _check.same_length(**{"y": self.y, field: array})
                frozen = array.view()
                frozen.setflags(write=False)
                object.__setattr__(self, field, frozen)
        names = self.class_names or tuple(map(str, range(self.num_classes)))
        if len(names) != self.num_classes:
            raise ValueError(
                f"Expected {self.num_classes} class_names for {self.name}, got {len(names)}."
            )
        object.__setattr__(self, "class_names", names)
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"Expected labels from 0 to {self.num_classes - 1} in {self.name}, "
                f"got {low} to {high}."
            )

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Int[np.ndarray, " m"] | Bool[np.ndarray, " n"]) -> "Dataset":
        """Selects records, in the order given.

        Args:
          indices: positions, or a mask over all records.

        Returns:
          The selected records; classes keep their numbers.

        Example:
          >>> import numpy as np
          >>> from jaxpriv import data
          >>> data.load("digits").subset(np.array([0, 3, 1])).y
          array([0, 3, 1], dtype=int32)
        """
        return replace(
            self,
            x=self.x[indices],
            y=self.y[indices],
            group=None if self.group is None else self.group[indices],
            is_test=None if self.is_test is None else self.is_test[indices],
        )

    def take_classes(self, classes: Sequence[int]) -> "Dataset":
        """Selects the records of some classes, renumbered 0, 1, ... in the order given.

        Args:
          classes: distinct class numbers.

        Returns:
          The records of these classes, in the order of this data set.

        Raises:
          ValueError: if a class does not exist or is repeated.

        Example:
          >>> from jaxpriv import data
          >>> sevens_and_twos = data.load("digits").take_classes([7, 2])
          >>> sevens_and_twos.class_names, len(sevens_and_twos)
          (('7', '2'), 356)
        """
        for c in classes:
            if c not in range(self.num_classes):
                raise ValueError(f"Expected classes from 0 to {self.num_classes - 1}, got {c}.")
        if len(set(classes)) < max(len(classes), 1):
            raise ValueError(f"Expected different classes, got {list(classes)}.")
        new = np.full(self.num_classes, -1, self.y.dtype)
        new[list(classes)] = np.arange(len(classes))
        is_selected = new[self.y] >= 0
        if not is_selected.any():
            raise ValueError(f"Expected records of the classes {list(classes)}, got none.")
        # Select before renumbering: an old class number may exceed the new number of classes.
        selected = self.subset(is_selected)
        return replace(
            selected,
            y=new[selected.y],
            num_classes=len(classes),
            class_names=tuple(self.class_names[c] for c in classes),
        )

    def split(
        self,
        rng: np.random.Generator,
        *,
        sizes: Mapping[str, int | float],
        by: str | None = None,
    ) -> dict[str, "Dataset"]:
        """Splits the records into disjoint random parts, such as members, shadow and test.

        A split by group draws groups in random order. A part takes groups until the next one
        would exceed its size, so every group is in one part and no part exceeds its size.

        Args:
          rng: random generator.
          sizes: size of each part by name; an integer counts records, a fraction in (0, 1) is a
            share of all records.
          by: "row" or "group"; None splits by group if the data set has groups.

        Returns:
          The parts by name, with records in the order of this data set.

        Raises:
          ValueError: if the sizes exceed the number of records, or if a part would be empty.

        Example:
          >>> import numpy as np
          >>> from jaxpriv import data
          >>> digits = data.load("digits")
          >>> parts = digits.split(np.random.default_rng(0), sizes={"member": 500, "test": 0.2})
          >>> {name: len(part) for name, part in parts.items()}
          {'member': 500, 'test': 359}
        """
        by = by or ("row" if self.group is None else "group")
        _check.one_of(("row", "group"), by=by)
        if by == "group" and self.group is None:
            raise ValueError(f"Expected a group in {self.name} to split by, got none.")
        counts = {name: _record_count(name, size, len(self)) for name, size in sizes.items()}
        if sum(counts.values()) > len(self):
            raise ValueError(
                f"Expected sizes of at most {len(self)} together, got {sum(counts.values())}."
            )
        unit = units.of_records(len(self), group=None if by == "row" else self.group)
        parts = {}
        for name, indices in units.draw(rng, unit, sizes=counts).items():
            if len(indices) == 0:
                raise ValueError(f"Expected at least one {by} in {name}, got size {sizes[name]}.")
            parts[name] = self.subset(indices)
        _warn_if_shared(parts)
        return parts


def num_duplicates(dataset: Dataset) -> int:
    """Counts the records that equal an earlier record in features and class.

    Args:
      dataset: records.

    Returns:
      Number of records that would have to be removed to make all records distinct.

    Example:
      >>> import numpy as np
      >>> from jaxpriv import data
      >>> digits = data.load("digits")
      >>> num_duplicates(digits.subset(np.array([0, 1, 0])))
      1
    """
    return _digests.count_duplicates(dataset.x, dataset.y)


def _record_count(name: str, size: int | float, n: int) -> int:
    """Converts a size to a number of records: integers are counts, other numbers shares."""
    if isinstance(size, int):
        _check.positive_int(**{name: size})
        return size
    _check.open_unit(**{name: size})
    return int(size * n)


def _warn_if_shared(parts: Mapping[str, Dataset]) -> None:
    """Warns if a record of one part equals a record of another part."""
    seen: set[bytes] = set()
    num_shared = 0
    for dataset in parts.values():
        digests = _digests.row_digests(dataset.x, dataset.y)
        num_shared += sum(digest in seen for digest in digests)
        seen.update(digests)
    if num_shared:
        warnings.warn(
            f"{num_shared} records equal one in another part: a duplicate between members and "
            "non-members spoils an audit.",
            stacklevel=3,
        )
