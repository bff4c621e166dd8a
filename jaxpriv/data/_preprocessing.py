"""Options of the user's files, and the preprocessing that tables and arrays share.

In shapes `n` counts records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.data.dataset import row_digests

Bounds = tuple[float | int, float | int]
_MAX_FLOAT32_INT = 2**24


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a file of the user is read; see `catalogue.load`."""

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
        """Raises ValueError if options were given that a source does not use."""
        for name in names:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(f"Expected no {name} for {source}, got {name}={value!r}.")


def count_duplicates(x: Shaped[np.ndarray, "n ..."], y: Shaped[np.ndarray, "n ..."]) -> int:
    """Counts records that equal an earlier one, as the file has them."""
    return len(x) - len(set(row_digests(x, y)))


def renumber(values: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Numbers the different values from 0, in sorted order."""
    return np.unique(values, return_inverse=True)[1].astype(np.int32)


def median(name: str, values: Float[np.ndarray, " n"]) -> float:
    """Computes the median of the values that are not NaN; raises ValueError if all are."""
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
    """Shifts a column, in place, if float32 would make different values of it equal.

    Args:
      name: of the column, for the sentences.
      values: NaN where one is missing.
      bounds: public bounds of the column; None takes the offset from the values.
      notes: gets a sentence if the column is shifted.
      not_private: gets a sentence if the offset depends on the values.
    """
    finite = values[~np.isnan(values)]
    if not len(finite):
        return
    low, high = float(finite.min()), float(finite.max())
    largest = max(abs(low), abs(high))
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
