"""Options of the user's files, and preprocessing shared by tables, arrays and images.

In the shapes below `n` counts records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from jaxpriv import _check

Bounds = tuple[float | int, float | int]
_MAX_FLOAT32_INT = 2**24  # float32 has gaps between the integers beyond


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for reading a file of the user; see `catalogue.load`.

    label, group: columns of the class and of the person or household; for tables.
    exclude: columns that are left out; for tables.
    missing: treatment of missing values, "refuse", "drop" or "median".
    public_bounds: (low, high) of columns, fixed without looking at the records; for tables.

    Raises:
      ValueError: if an option is not of the expected form.

    Example:
      >>> options = Options(label="outcome", missing="median", public_bounds={"age": (0, 120)})
      >>> options.exclude
      ()
    """

    label: str | None = None
    group: str | None = None
    exclude: Sequence[str] = ()
    missing: str = "refuse"
    public_bounds: Mapping[str, Bounds] | None = None

    def __post_init__(self) -> None:
        _check.one_of(("refuse", "drop", "median"), missing=self.missing)
        if isinstance(self.exclude, str):
            raise ValueError(f"Expected exclude as a list of columns, got {self.exclude!r}.")
        for name, bounds in (self.public_bounds or {}).items():
            if len(bounds) != 2 or not -np.inf < bounds[0] < bounds[1] < np.inf:
                raise ValueError(
                    f"Expected public_bounds of {name!r} as (low, high), got {bounds}."
                )

    def check_defaults(self, source: object, *names: str) -> None:
        """Raises ValueError if one of the named options is set, since the source ignores it."""
        for name in names:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(f"Expected no {name} for {source}, got {name}={value!r}.")


def bytes_to_unit(pixels: UInt8[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Scales bytes to float32 numbers in [0, 1], in a new array."""
    unit = pixels.astype(np.float32, order="C")
    unit /= 255
    return unit


def renumber(values: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Replaces each value by its rank among the distinct values, from 0."""
    return np.unique(values, return_inverse=True)[1].astype(np.int32)


def median(name: str, values: Float[np.ndarray, " n"]) -> float:
    """Returns the median of the values that are not NaN; raises ValueError if there are none."""
    present = values[~np.isnan(values)]
    if not len(present):
        raise ValueError(f"Expected values in {name}, got none: leave it out.")
    return float(np.median(present))


def centre(
    name: str,
    values: Float[np.ndarray, " n"],
    bounds: Bounds | None,
    notes: list[str],
    not_private: list[str],
) -> None:
    """Shifts a column, in place, if float32 would make distinct values equal.

    Args:
      name: name of the column, for the sentences.
      values: NaN where a value is missing.
      bounds: public bounds of the column; None takes the offset from the values.
      notes: a sentence is appended if the column is shifted.
      not_private: a sentence is appended if the offset depends on the values.
    """
    finite = values[~np.isnan(values)]
    if not len(finite):
        return
    low, high = float(finite.min()), float(finite.max())
    largest = max(abs(low), abs(high))
    # Only large or narrow columns can lose values; the sorting below is too slow for every column.
    if not (low < high and (largest > _MAX_FLOAT32_INT or high - low < 1e-3 * largest)):
        return
    count = len(np.unique(finite))
    with np.errstate(over="ignore"):
        narrow = finite.astype(np.float32)
    if not np.isfinite(narrow).all() or len(np.unique(narrow)) == count:
        return
    offset = np.floor(low) if bounds is None else bounds[0]
    values -= offset
    remaining = len(np.unique((finite - offset).astype(np.float32)))
    note = f"Subtracted {offset:.17g} from {name}, whose values float32 does not resolve"
    equal = count - remaining
    note += f"; {equal} of {count} values are still equal." if equal else "."
    notes.append(note)
    if bounds is None:
        not_private.append(f"{note} The offset is not covered by epsilon.")
