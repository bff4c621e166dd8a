"""Input checks and blockwise iteration for attacks on shadow signals.

In the shapes below `m` counts shadow models, `n` records and `a` the records of a block.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxpriv import _check

IsMember = Bool[Array | np.ndarray, "m n"] | Integer[Array | np.ndarray, "m n"]

_BLOCK = 2048
"""Number of records of a block: temporaries stay in the cache, and memory does not grow with n."""


def blocks(n: int) -> Iterator[slice]:
    """Divides n records into blocks; if n is 0, one empty block."""
    return (slice(i, i + _BLOCK) for i in range(0, max(n, 1), _BLOCK))


def as_bool(values: IsMember) -> Bool[np.ndarray, "m n"]:
    """Returns membership as bool, or raises ValueError for numbers other than 0 and 1."""
    return _check.membership(values, name="shadow_is_member")


def have_in_and_out(is_member: Bool[np.ndarray, "m n"]) -> Bool[np.ndarray, " n"]:
    """Returns whether each record has both an IN and an OUT shadow model."""
    num_in = is_member.sum(axis=0)
    return (num_in > 0) & (num_in < len(is_member))


def have_out(is_member: Bool[np.ndarray, "m n"]) -> Bool[np.ndarray, " n"]:
    """Returns whether each record has an OUT shadow model."""
    return is_member.sum(axis=0) < len(is_member)


def check_shapes(target: np.ndarray, shadows: np.ndarray, is_member: np.ndarray) -> None:
    """Raises ValueError unless shapes are [n], [m, n] and [m, n]; signals may add an axis q."""
    fits = is_member.ndim == 2 and shadows.shape == (len(is_member), *target.shape)
    if not (fits and target.ndim in (1, 2) and target.shape[0] == is_member.shape[1]):
        raise ValueError(
            f"Expected shapes [n], [m, n] and [m, n], got {list(target.shape)}, "
            f"{list(shadows.shape)} and {list(is_member.shape)}."
        )


def float64_block(
    shadows: Shaped[np.ndarray, "m n"], rows: slice, low: float = -np.inf, high: float = np.inf
) -> Float[np.ndarray, "m a"]:
    """Converts one block of records to float64 and clips it."""
    return np.clip(shadows[:, rows].astype(np.float64), low, high)
