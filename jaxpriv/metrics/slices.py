"""Membership metrics in each part of a partition: an average may hide who is exposed.

In the shapes below `n` counts records.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped

from jaxpriv import _check
from jaxpriv.metrics import intervals, roc


class Slice(NamedTuple):
    """One part of the records.

    value: what its records have in common, as in `by`.
    measured: None where nothing can be measured; then `reason` says why.
    reason: "empty", "no members" or "no non-members"; None where measured.
    """

    value: str | int | float | bool
    num_members: int
    num_nonmembers: int
    measured: roc.Membership | None
    reason: str | None


def by(
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    by: Shaped[Array | np.ndarray, " n"],
    confidence: float,
    expected: Sequence[str | int | float | bool] | None = None,
    max_slices: int = 100,
) -> tuple[Slice, ...]:
    """Measures an attack in each part of the records: a class, a group, right or wrong.

    Each interval covers by itself: of 100 parts at 95 %, five miss. Bonferroni's
    1 - (1 - confidence) / parts covers all of them at once.

    Args:
      scores: [n] or [n, 1]; higher = more likely a member.
      is_member: [n] or [n, 1], bool or 0 and 1.
      by: the part of each record: a class, a name, `percentile_bins` of a loss.
      confidence: coverage of each interval, in (0, 1).
      expected: all parts there should be, in the order wanted; without it those in `by`, sorted.
      max_slices: more parts are refused, as `by` is then hardly a partition.

    Returns:
      A slice for each part; parts that cannot be measured say why.

    Raises:
      ValueError: if confidence is not in (0, 1), for NaN, unequal lengths, too many parts, or a
        part that was not expected.
    """
    _check.open_unit(confidence=confidence)
    values, inside = intervals.columns(scores, is_member)
    part = np.asarray(by)
    _check.same_length(scores=values, by=part)
    if part.dtype.kind in "fV" and np.isnan(part).any():
        raise ValueError(f"Expected by without NaN, got {np.isnan(part).sum()} NaN.")
    found = np.unique(part)
    names = list(found.tolist() if expected is None else expected)
    if len(names) > max_slices:
        raise ValueError(
            f"Expected at most {max_slices} slices, got {len(names)}; percentile_bins makes few."
        )
    strange = [name for name in found.tolist() if name not in names]
    if strange:
        raise ValueError(f"Expected by to hold only the expected parts, got {strange[0]!r}.")
    return tuple(_slice(name, values, inside, part == name, confidence) for name in names)


def percentile_bins(
    values: Shaped[Array | np.ndarray, " n"], *, num_bins: int
) -> Int[np.ndarray, " n"]:
    """Cuts records into bins of about equal size by rank, lowest values first.

    Equal values share a bin, the one of the first of them; so bins may be empty.

    Args:
      values: e.g. the loss of each record; may be infinite.
      num_bins: e.g. 10 for deciles.

    Returns:
      The bin of each record, in 0..num_bins-1.

    Raises:
      ValueError: for NaN, or if num_bins < 1.
    """
    _check.positive_int(num_bins=num_bins)
    numbers = np.asarray(values).astype(np.float64)
    if np.isnan(numbers).any():
        raise ValueError(f"Expected values without NaN, got {np.isnan(numbers).sum()} NaN.")
    rank = np.searchsorted(np.sort(numbers), numbers, "left")
    return rank * num_bins // max(numbers.size, 1)


def _slice(
    name: str | int | float | bool,
    scores: np.ndarray,
    is_member: np.ndarray,
    chosen: np.ndarray,
    confidence: float,
) -> Slice:
    mine, inside = scores[chosen], is_member[chosen]
    num_members = int(inside.sum())
    counts = num_members, inside.size - num_members
    if min(counts) > 0:
        measured = roc.membership(mine, inside, confidence=confidence)
        return Slice(name, *counts, measured=measured, reason=None)
    missing = "no non-members" if num_members else "no members"
    return Slice(name, *counts, measured=None, reason=missing if inside.size else "empty")
