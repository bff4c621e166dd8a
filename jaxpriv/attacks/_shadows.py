"""What the attacks on shadow scores ask of their arrays.

In the shapes below `m` counts shadow models, `n` records and `a` those of a block.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

IsMember = Bool[Array | np.ndarray, "m n"] | Integer[Array | np.ndarray, "m n"]

_BLOCK = 2048
"""Records at a time: the temporaries stay in the cache, and memory does not grow with n."""


def blocks(n: int) -> Iterator[slice]:
    """Cuts n records into blocks; one empty block where there are none."""
    return (slice(i, i + _BLOCK) for i in range(0, max(n, 1), _BLOCK))


def without_nan(name: str, values: Shaped[Array | np.ndarray, "..."]) -> np.ndarray:
    """Gives the array as it is, in its own float type, or raises ValueError for NaN."""
    array = np.asarray(values)
    if np.isnan(array).any():
        raise ValueError(f"Expected {name} without NaN, got {np.isnan(array).sum()} NaN.")
    return array


def is_member(values: IsMember) -> Bool[np.ndarray, "m n"]:
    """Gives membership as bool, or raises ValueError for numbers other than 0 and 1."""
    array = np.asarray(values)
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError("Expected shadow_is_member to hold only 0 and 1, got other numbers.")
    return array.astype(bool, copy=False)


def fitting(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> None:
    """Raises ValueError unless shapes are [n], [m, n] and [m, n], or with queries q behind."""
    fits = inside.ndim == 2 and shadows.shape == (len(inside), *target.shape)
    if not (fits and target.ndim in (1, 2) and target.shape[0] == inside.shape[1]):
        raise ValueError(
            f"Expected shapes [n], [m, n] and [m, n], got {list(target.shape)}, "
            f"{list(shadows.shape)} and {list(inside.shape)}."
        )


def float64_block(
    shadows: Shaped[np.ndarray, "m n"], rows: slice, low: float = -np.inf, high: float = np.inf
) -> Float[np.ndarray, "m a"]:
    """Converts one block of records and clips it."""
    return np.clip(shadows[:, rows].astype(np.float64), low, high)
