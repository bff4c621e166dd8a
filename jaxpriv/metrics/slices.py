"""Membership metrics in each part of a partition: an average may hide who is exposed.

In the shapes below `n` counts records.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped

from jaxpriv import _check
from jaxpriv.metrics import roc

MAX_PARTS = 100
"""Largest parts that `measure` measures, unless asked for more."""

MIN_PER_SIDE = 10
"""Members or non-members below which a part is not measured, unless asked for fewer."""


class Slice(NamedTuple):
    """One part of the records.

    value: what its records have in common, as in `part`.
    measured: None where nothing can be measured; then `reason` says why.
    reason: "empty", "no members", "no non-members" or "fewer than 10 on a side"; None where
      measured.
    """

    value: str | int | float | bool
    num_members: int
    num_nonmembers: int
    measured: roc.Membership | None
    reason: str | None


class Slices(NamedTuple):
    """The parts of a partition.

    parts: the largest ones, in the order of their values.
    num_parts: of the whole partition, so that it is known how many are left out.
    confidence: of each interval; all hold together at the confidence asked for (Bonferroni).
    """

    parts: tuple[Slice, ...]
    num_parts: int
    confidence: float


def measure(
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
    *,
    part: Shaped[Array | np.ndarray, " n"],
    confidence: float,
    expected: Sequence[str | int | float | bool] | None = None,
    max_parts: int = MAX_PARTS,
    min_per_side: int = MIN_PER_SIDE,
) -> Slices:
    """Measures an attack in each part of the records: a class, a group, right or wrong.

    Args:
      scores: [n] or [n, 1]; higher = more likely a member.
      is_member: [n] or [n, 1], bool or 0 and 1.
      part: the part of each record: a class, a name, `percentile_bins` of a loss.
      confidence: with which all intervals hold together, in (0, 1).
      expected: all parts that there should be, in the order wanted, so that empty ones are
        listed; without it those in `part`, sorted.
      max_parts: of more parts, those with most records are measured.
      min_per_side: a part with fewer members or fewer non-members is not measured.

    Returns:
      A slice for each measured part; parts that cannot be measured carry a reason.

    Raises:
      ValueError: if confidence is not in (0, 1), for NaN, unequal lengths, or a part that was not
        expected.
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
    each = 1 - (1 - confidence) / max(len(shown), 1)
    return Slices(
        parts=tuple(
            _slice(name, values[parts == name], truth[parts == name], each, min_per_side)
            for name in names
            if name in shown
        ),
        num_parts=len(names),
        confidence=each,
    )


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
