"""Data sets as frozen arrays.

In shapes `n` counts records and `m` chosen ones; features are `[n, d]`, images `[n, h, w, c]`.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxpriv import _check, units

_HASHED_ROWS = 1024  # at a time, which bounds the memory


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Records with labels; the arrays are read-only views.

    x: features or images; images and binary features in [0, 1].
    y: class of each record, 0 to num_classes - 1.
    name: name of the data set.
    num_classes: number of classes.
    source: files that the arrays come from.
    group: person or household of each record, where the records of one are dependent.
    is_test: whether the publisher put a record into the test part, where there is one.
    class_names: names of the classes in the order of their numbers; "0", "1", ... by default.
    notes: sentences on what was converted, left out or imputed.
    not_private: sentences on preprocessing that depends on the records and that no epsilon
      covers.
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

    def __post_init__(self):
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
        """
        return replace(
            self,
            x=self.x[indices],
            y=self.y[indices],
            group=None if self.group is None else self.group[indices],
            is_test=None if self.is_test is None else self.is_test[indices],
        )

    def published_parts(self) -> tuple["Dataset", "Dataset"]:
        """Returns the training and the test part as published.

        Raises:
          ValueError: if the data set has one part only.
        """
        if self.is_test is None:
            raise ValueError(f"Expected published parts in {self.name}, got one pool: use split.")
        return self.subset(~self.is_test), self.subset(self.is_test)

    def take_classes(self, classes: Sequence[int]) -> "Dataset":
        """Selects the records of some classes, renumbered 0, 1, ... in the order given.

        Args:
          classes: different class numbers.

        Returns:
          The records of these classes, in the order of this data set.

        Raises:
          ValueError: if a class does not exist or is repeated.
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
        # In two steps, since an old class number may exceed the new number of classes.
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
        """Splits into disjoint random parts, such as member, reference, shadow and test.

        By group, groups are drawn in random order and a part takes them until the next one would
        exceed its size, so no group is in two parts and no part exceeds its size.

        Args:
          rng: random generator.
          sizes: size of each part by name: a whole number counts records, a fraction in (0, 1)
            is a share of all records.
          by: "row" or "group"; None splits by group if the data set has groups.

        Returns:
          The parts, by the same names; records in the order of this data set.

        Raises:
          ValueError: if the sizes exceed the records, or a part would be empty.
        """
        by = by or ("row" if self.group is None else "group")
        _check.one_of(("row", "group"), by=by)
        if by == "group" and self.group is None:
            raise ValueError(f"Expected a group in {self.name} to split by, got none.")
        counts = {name: _count(name, size, len(self)) for name, size in sizes.items()}
        if sum(counts.values()) > len(self):
            raise ValueError(
                f"Expected sizes of at most {len(self)} together, got {sum(counts.values())}."
            )
        unit = units.of_records(len(self), group=None if by == "row" else self.group)
        parts = {}
        for name, indices in units.draw(rng, unit, sizes=counts).items():
            if len(indices) == 0:
                raise ValueError(f"Expected a whole {by} in {name}, got size {sizes[name]}.")
            parts[name] = self.subset(indices)
        _warn_of_shared(parts)
        return parts


def _count(name: str, size: int | float, n: int) -> int:
    """Converts a size to a number of records: whole numbers are counts, others fractions."""
    if isinstance(size, int):
        _check.positive_int(**{name: size})
        return size
    _check.open_unit(**{name: size})
    return int(size * n)


def _warn_of_shared(parts: Mapping[str, Dataset]) -> None:
    seen: set[bytes] = set()
    shared = 0
    for part in parts.values():
        digests = row_digests(part.x, part.y)
        shared += sum(d in seen for d in digests)
        seen.update(digests)
    if shared:
        warnings.warn(
            f"{shared} records equal one in another part: a duplicate between members and "
            "non-members spoils an audit.",
            stacklevel=3,
        )


def row_digests(x: Shaped[np.ndarray, "n ..."], y: Shaped[np.ndarray, "n ..."]) -> list[bytes]:
    """Hashes each record with its label, such that equal records have equal hashes.

    Args:
      x: features of any type.
      y: labels.

    Returns:
      Hashes of 16 bytes.
    """
    digests = []
    for start in range(0, len(x), _HASHED_ROWS):
        block, labels = x[start : start + _HASHED_ROWS], y[start : start + _HASHED_ROWS]
        if block.dtype.kind == "f":
            block = block + block.dtype.type(0)  # -0.0 becomes 0.0
        rows = np.ascontiguousarray(block).reshape(len(block), -1)
        digests += [
            hashlib.blake2b(row.tobytes() + str(label).encode(), digest_size=16).digest()
            for row, label in zip(rows, labels.tolist(), strict=True)
        ]
    return digests


def num_duplicates(dataset: Dataset) -> int:
    """Counts records that equal an earlier one in features and class.

    Args:
      dataset: any data set.

    Returns:
      The number of records that would be removed to make all distinct.
    """
    return len(dataset) - len(set(row_digests(dataset.x, dataset.y)))


def num_shared(first: Dataset, second: Dataset) -> int:
    """Counts records of `second` that are also in `first`, by features and class.

    Args:
      first: for instance the members.
      second: for instance the non-members.

    Returns:
      The number of records of `second`; an audit needs 0.
    """
    digests = set(row_digests(first.x, first.y))
    return sum(digest in digests for digest in row_digests(second.x, second.y))


def standardiser(train: Dataset) -> Callable[[Dataset], Dataset]:
    """Makes features of mean 0 and standard deviation 1 on the training part.

    The mean and deviation are those of each channel of images, and of each feature of other
    records; a feature that is constant in training is only shifted. Where the training part has
    members, mean and deviation are not private.

    Args:
      train: the training part.

    Returns:
      A function that standardises any part with the mean and deviation of the training part.
    """
    axes = tuple(range(train.x.ndim - 1)) if train.x.ndim == 4 else (0,)
    mean = train.x.mean(axes, dtype=np.float64).astype(train.x.dtype)
    deviation = train.x.std(axes, dtype=np.float64).astype(train.x.dtype)
    scale = np.where(deviation > 0, deviation, 1)

    def apply(dataset: Dataset) -> Dataset:
        return replace(dataset, x=(dataset.x - mean) / scale)

    return apply
