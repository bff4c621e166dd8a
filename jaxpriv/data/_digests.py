"""Finds equal records by their hashes.

In the shapes below `n` counts records.
"""

import hashlib

import numpy as np
from jaxtyping import Shaped

_ROWS_PER_BLOCK = 1024  # bounds the memory for copies


def row_digests(x: Shaped[np.ndarray, "n ..."], y: Shaped[np.ndarray, "n ..."]) -> list[bytes]:
    """Hashes each record with its label; equal records have equal hashes.

    Args:
      x: features of any type.
      y: labels.

    Returns:
      A hash of 16 bytes for each record.
    """
    digests = []
    for start in range(0, len(x), _ROWS_PER_BLOCK):
        block, labels = x[start : start + _ROWS_PER_BLOCK], y[start : start + _ROWS_PER_BLOCK]
        if block.dtype.kind == "f":
            block = block + block.dtype.type(0)  # -0.0 becomes 0.0
        rows = np.ascontiguousarray(block).reshape(len(block), -1)
        digests += [
            hashlib.blake2b(row.tobytes() + str(label).encode(), digest_size=16).digest()
            for row, label in zip(rows, labels.tolist(), strict=True)
        ]
    return digests


def count_duplicates(x: Shaped[np.ndarray, "n ..."], y: Shaped[np.ndarray, "n ..."]) -> int:
    """Counts the records that equal an earlier record."""
    return len(x) - len(set(row_digests(x, y)))
