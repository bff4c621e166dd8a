"""Membership metrics in each part of a partition, since an average can hide an exposed part.

In the shapes below `n` counts records.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped

from jaxpriv import _check
from jaxpriv._types import Column
from jaxpriv.metrics import roc

__all__ = ["Slice", "Slices", "measure", "percentile_bins"]


class Slice(NamedTuple):
    """The metrics of one part of the records.

    value: value of `part` that its records share.
    measured: metrics of the part; None if it cannot be measured.
    reason: why it cannot be measured: "empty", "no members", "no non-members" or "fewer than 10
      on a side"; None if it is measured.
    """

    value: str | int | float | bool
    num_members: int
    num_nonmembers: int
    measured: roc.Membership | None
    reason: str | None


class Slices(NamedTuple):
    """The metrics of the parts of a partition.

    parts: the largest parts, in the order of their values.
    num_parts: number of parts of the partition, including those left out of `parts`.
    confidence: confidence level of each interval, corrected such that all intervals hold at once
      with the requested confidence (Bonferroni).
    """

    parts: tuple[Slice, ...]
    num_parts: int
    confidence: float


def measure(
    scores: Column,
    is_member: Column,
    *,
    part: Shaped[Array | np.ndarray, " n"],
    confidence: float,
    expected: Sequence[str | int | float | bool] | None = None,
    max_parts: int = 100,
    min_per_side: int = 10,
) -> Slices:
    """Measures an attack in each part of a partition of the records.

    Args:
      scores: [n] or [n, 1]; higher = more likely a member.
      is_member: [n] or [n, 1], bool or 0 and 1.
      part: part of each record, such as its class, its group, or a bin of `percentile_bins`.
      confidence: confidence level at which all intervals hold at once, in (0, 1).
      expected: all values that `part` may have, in the order of the result, so that empty parts
        are listed. Default: the values in `part`, sorted.
      max_parts: maximum number of parts to measure; the largest ones are.
      min_per_side: minimum number of members and of non-members of a part to be measured.

    Returns:
      The metrics of each part, or the reason why it cannot be measured.

    Raises:
      ValueError: if confidence is not in (0, 1), for NaN, unequal lengths, or a part that is not
        expected.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.metrics import slices
      >>> is_member, label = np.arange(80) % 2 == 0, np.arange(80) // 40
      >>> scores = np.arange(80) + 50 * is_member * label  # only class 1 leaks
      >>> result = slices.measure(scores, is_member, part=label, confidence=0.95)
      >>> [(each.value, round(each.measured.auc, 2)) for each in result.parts]
      [(0, 0.47), (1, 1.0)]
    """
    _check.open_unit(confidence=confidence)
    _check.positive_int(max_parts=max_parts, min_per_side=min_per_side)
    values, truth = _check.scores_and_membership(scores, is_member)
    parts = np.asarray(part)
    _check.same_length(scores=values, part=parts)
    if parts.dtype.kind in "fV" and np.isnan(parts).any():
        raise ValueError(f"Expected part without NaN, got {np.isnan(parts).sum()} NaN.")
    present, sizes = np.unique(parts, return_counts=True)
    size = dict(zip(present.tolist(), sizes.tolist(), strict=True))
    names = list(size if expected is None else expected)
    unexpected = [name for name in size if name not in names]
    if unexpected:
        raise ValueError(f"Expected only the expected parts, got {unexpected[0]!r}.")
    by_size = sorted(names, key=lambda name: -size.get(name, 0))
    shown = set(by_size[:max_parts])
    corrected = 1 - (1 - confidence) / max(len(shown), 1)
    return Slices(
        parts=tuple(
            _slice(name, values[parts == name], truth[parts == name], corrected, min_per_side)
            for name in names
            if name in shown
        ),
        num_parts=len(names),
        confidence=corrected,
    )


def percentile_bins(
    values: Shaped[Array | np.ndarray, " n"], *, num_bins: int
) -> Int[np.ndarray, " n"]:
    """Assigns records to bins of about equal size by rank, lowest values first.

    Equal values share the bin of the first of them, so bins may be empty.

    Args:
      values: value of each record, such as its loss; may be infinite.
      num_bins: number of bins, such as 10 for deciles.

    Returns:
      The bin of each record, in 0..num_bins-1.

    Raises:
      ValueError: for NaN, or if num_bins < 1.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.metrics import slices
      >>> slices.percentile_bins(np.array([0.1, 0.3, 0.2, 5.0]), num_bins=2).tolist()
      [0, 1, 0, 1]
    """
    _check.positive_int(num_bins=num_bins)
    numbers = _check.scores(values, name="values")
    rank = np.searchsorted(np.sort(numbers), numbers, "left")
    return rank * num_bins // max(numbers.size, 1)


def _slice(
    name: str | int | float | bool,
    scores: np.ndarray,
    is_member: np.ndarray,
    confidence: float,
    min_per_side: int,
) -> Slice:
    members = int(is_member.sum())
    counts = members, is_member.size - members
    if min(counts) >= min_per_side:
        measured = roc.membership(scores, is_member, confidence=confidence)
        return Slice(name, *counts, measured=measured, reason=None)
    reason = f"fewer than {min_per_side} on a side"
    if not min(counts):
        reason = "empty" if not is_member.size else "no non-members" if members else "no members"
    return Slice(name, *counts, measured=None, reason=reason)
