"""Data sets as frozen arrays.

In shapes `n` counts records and `m` chosen ones; features are `[n, d]`, images `[n, h, w, c]`.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxpriv import _check, units


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Records with labels; the arrays are read-only views.

    x: features or images; images and binary features in [0, 1].
    y: class of each record, 0 to num_classes - 1.
    name: what it is called here.
    num_classes: number of labels.
    source: where the arrays came from, and what was done to them.
    group: the person or household that a record belongs to, where records of one are dependent.
    is_test: whether its publisher put a record into the test part, where there is one.
    class_names: names of the classes 0, 1, ..., where they have names.
    """

    x: Float[np.ndarray, "n ..."]
    y: Int[np.ndarray, " n"]
    name: str
    num_classes: int
    source: str
    group: Int[np.ndarray, " n"] | None = None
    is_test: Bool[np.ndarray, " n"] | None = None
    class_names: tuple[str, ...] | None = None

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
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise ValueError(
                f"Expected {self.num_classes} class names in {self.name}, "
                f"got {len(self.class_names)}."
            )
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"Expected labels from 0 to {self.num_classes - 1} in {self.name}, "
                f"got {low} to {high}."
            )

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Int[np.ndarray, " m"] | Bool[np.ndarray, " n"]) -> "Dataset":
        """Takes some of the records, in the order given.

        Args:
          indices: positions, or a mask over all records.

        Returns:
          Those records; classes keep their numbers.
        """
        return replace(
            self,
            x=self.x[indices],
            y=self.y[indices],
            group=None if self.group is None else self.group[indices],
            is_test=None if self.is_test is None else self.is_test[indices],
        )

    def published_parts(self) -> tuple["Dataset", "Dataset"]:
        """The training and the test part as published.

        Raises:
          ValueError: if the publisher made no such split.
        """
        if self.is_test is None:
            raise ValueError(f"Expected published parts in {self.name}, found one pool: use split.")
        return self.subset(~self.is_test), self.subset(self.is_test)

    def take_classes(self, classes: Sequence[int]) -> "Dataset":
        """Keeps the records of some classes, renumbered 0, 1, ... in the order given.

        Args:
          classes: different class numbers.

        Returns:
          Their records, in the order of this data set.

        Raises:
          ValueError: if a class is not there, or named twice.
        """
        for c in classes:
            if c not in range(self.num_classes):
                raise ValueError(f"Expected classes from 0 to {self.num_classes - 1}, got {c}.")
        if len(set(classes)) < max(len(classes), 1):
            raise ValueError(f"Expected different classes, got {list(classes)}.")
        new = np.full(self.num_classes, -1, self.y.dtype)
        new[list(classes)] = np.arange(len(classes))
        is_kept = new[self.y] >= 0
        if not is_kept.any():
            raise ValueError(f"Expected records of the classes {list(classes)}, found none.")
        # In two steps, since a class number of before may not be one of after.
        kept = self.subset(is_kept)
        names = self.class_names and tuple(self.class_names[c] for c in classes)
        return replace(kept, y=new[kept.y], num_classes=len(classes), class_names=names)

    def split(
        self,
        rng: np.random.Generator,
        *,
        sizes: Mapping[str, int | float],
        by: str | None = None,
    ) -> dict[str, "Dataset"]:
        """Splits into disjoint random parts, such as member, reference, shadow and test.

        By group, whole groups are drawn in random order and a part takes them until the next
        would exceed its size: it holds at most that many records, and no group is in two parts.

        Args:
          rng: consumed.
          sizes: of each part by name: a whole number counts records, a fraction in (0, 1) is of
            all records.
          by: "row" or "group"; by group wherever there is one, unless said otherwise.

        Returns:
          The parts, by the same names; records in the order of this data set.

        Raises:
          ValueError: if the sizes exceed the records, or a part would be empty.
        """
        by = by or ("row" if self.group is None else "group")
        _check.one_of(("row", "group"), by=by)
        if by == "group" and self.group is None:
            raise ValueError(f"Expected a group in {self.name} to split by, found none.")
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
    """A size in records: whole numbers are counts, others fractions."""
    if isinstance(size, int):
        _check.positive_int(**{name: size})
        return size
    _check.open_unit(**{name: size})
    return int(size * n)


def _warn_of_shared(parts: Mapping[str, Dataset]) -> None:
    seen: set[bytes] = set()
    shared = 0
    for part in parts.values():
        digests = _digests(part)
        shared += sum(d in seen for d in digests)
        seen.update(digests)
    if shared:
        warnings.warn(
            f"{shared} records equal one in another part: a duplicate between members and "
            "non-members spoils an audit.",
            stacklevel=3,
        )


def _digests(dataset: Dataset) -> list[bytes]:
    # Adding zero makes -0.0 equal 0.0 in bytes too.
    return [
        hashlib.blake2b((x + 0.0).tobytes() + bytes(str(y), "ascii"), digest_size=16).digest()
        for x, y in zip(dataset.x, dataset.y, strict=True)
    ]


def num_duplicates(dataset: Dataset) -> int:
    """Counts records that equal an earlier one in features and class.

    Args:
      dataset: any.

    Returns:
      How many would go if each were kept once.
    """
    return len(dataset) - len(set(_digests(dataset)))


def num_shared(first: Dataset, second: Dataset) -> int:
    """Counts records of `second` that also are in `first`, by features and class.

    Args:
      first: for instance the members.
      second: for instance the non-members.

    Returns:
      The number of records of `second`; an audit needs 0.
    """
    held = set(_digests(first))
    return sum(d in held for d in _digests(second))


def standardiser(train: Dataset) -> Callable[[Dataset], Dataset]:
    """Makes features of mean 0 and deviation 1, as measured on the training part alone.

    Images are measured by channel, other records by feature; what is constant in training is
    only shifted. Measured on members, mean and deviation are themselves not private.

    Args:
      train: the training part.

    Returns:
      A function that standardises any part with the training part's numbers.
    """
    axes = tuple(range(train.x.ndim - 1)) if train.x.ndim == 4 else (0,)
    mean = train.x.mean(axes, dtype=np.float64).astype(train.x.dtype)
    deviation = train.x.std(axes, dtype=np.float64).astype(train.x.dtype)
    scale = np.where(deviation > 0, deviation, 1)

    def apply(dataset: Dataset) -> Dataset:
        return replace(dataset, x=(dataset.x - mean) / scale)

    return apply
