"""The unit of privacy: a record, a group of records (a person, a household), or a class.

Records of one unit share one fate: one membership coin, one shadow half, one part of a split. In
the shapes below `n` counts records, `u` units and `m` models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._names import UnitKind

_PLURALS: dict[UnitKind, str] = {"record": "records", "group": "groups", "class": "classes"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """The unit of each record.

    kind: what a unit is.
    index: unit of each record, in 0..u-1.
    sizes: records of each unit, all at least 1.
    """

    kind: UnitKind
    index: Int[np.ndarray, " n"]
    sizes: Int[np.ndarray, " u"]

    @property
    def num_records(self) -> int:
        """n."""
        return len(self.index)

    @property
    def num_units(self) -> int:
        """u."""
        return len(self.sizes)

    @property
    def largest(self) -> int:
        """Records of the largest unit, as the group-privacy conversion needs it."""
        return int(self.sizes.max(initial=0))

    @property
    def are_records(self) -> bool:
        """Whether every record is a unit by itself."""
        return self.largest <= 1

    def count(self, number: int) -> str:
        """Names a number of units: "1 group", "2 classes"."""
        return f"{number:,} {self.kind if number == 1 else _PLURALS[self.kind]}"

    def subset(self, rows: Bool[np.ndarray, " n"] | Int[np.ndarray, " k"]) -> "Units":
        """Returns the units of the chosen records, numbered anew in the same order."""
        _, index, sizes = np.unique(self.index[rows], return_inverse=True, return_counts=True)
        return Units(kind=self.kind, index=index, sizes=sizes)


class Canaries(NamedTuple):
    """One score and one coin for each unit, as audits of one run need them."""

    scores: Float[np.ndarray, " u"]
    is_member: Bool[np.ndarray, " u"]


def records(n: int) -> Units:
    """Makes every record a unit.

    Args:
      n: records; >= 1.

    Returns:
      The units, record i being unit i.

    Raises:
      ValueError: if n < 1.
    """
    _check.positive_int(n=n)
    return Units(kind="record", index=np.arange(n), sizes=np.ones(n, np.int64))


def groups(values: Shaped[Array | np.ndarray, " n"]) -> Units:
    """Makes every group of records a unit.

    Args:
      values: the person or household of each record; numbers or text.

    Returns:
      The units, numbered by sorted value.

    Raises:
      ValueError: for another shape than [n], or no records.
    """
    return _of_values("group", values)


def classes(labels: Shaped[Array | np.ndarray, " n"]) -> Units:
    """Makes every class a unit.

    Args:
      labels: the class of each record; numbers or text.

    Returns:
      The units, numbered by sorted label.

    Raises:
      ValueError: for another shape than [n], or no records.
    """
    return _of_values("class", labels)


def of_records(
    n: int,
    *,
    kind: UnitKind | None = None,
    group: Shaped[Array | np.ndarray, " n"] | None = None,
    labels: Shaped[Array | np.ndarray, " n"] | None = None,
) -> Units:
    """Makes the units of n records from what is known of them.

    Args:
      n: records.
      kind: of the units; None takes groups where there are some, else records.
      group: the group of each record.
      labels: the class of each record.

    Returns:
      The units.

    Raises:
      ValueError: if the arrays that the kind needs are missing or of another length, or the kind
        is unknown.
    """
    kind = kind or ("record" if group is None else "group")
    if kind == "record":
        return records(n)
    _check.one_of(_PLURALS, unit=kind)
    values = group if kind == "group" else labels
    if values is None:
        raise ValueError(f"Expected a {kind} of each record for the unit {kind!r}, got none.")
    units = _of_values(kind, values)
    if units.num_records != n:
        raise ValueError(f"Expected a {kind} of each of {n} records, got {units.num_records}.")
    return units


def coins(key: PRNGKeyArray, units: Units) -> Bool[np.ndarray, " n"]:
    """Tosses a fair coin for each unit.

    Args:
      key: consumed.
      units: of n records.

    Returns:
      Whether each record is a member; equal within a unit, independent between units.
    """
    return np.asarray(jax.random.bernoulli(key, 0.5, (units.num_units,)))[units.index]


def halves(key: PRNGKeyArray, units: Units, *, num_models: int) -> Bool[np.ndarray, "m n"]:
    """Draws complementary random halves of the records, in whole units.

    Units are taken in random order as long as they fit into the half.

    Args:
      key: consumed.
      units: of n records; at least two.
      num_models: m; even.

    Returns:
      Whether record j is a member of model i; model i + m/2 is the complement of model i. A half
      has (n + 1) // 2 records in the first m/2 models, or falls short of that by less than the
      smallest unit that it leaves out.

    Raises:
      ValueError: if num_models is odd, or there are fewer than two units.
    """
    _check.positive_int(num_models=num_models)
    if num_models % 2:
        raise ValueError(f"Expected an even num_models, got {num_models}.")
    if units.num_units < 2:
        raise ValueError(
            f"Expected at least two {_PLURALS[units.kind]}, got {units.count(units.num_units)}."
        )
    size = (units.num_records + 1) // 2
    keys = jax.random.split(key, num_models // 2)
    orders = np.asarray(jax.vmap(lambda k: jax.random.permutation(k, units.num_units))(keys))
    if units.are_records:
        first = (orders < size)[:, units.index]
    else:
        first = np.stack([_fill(order, units.sizes, size) for order in orders])[:, units.index]
    return np.concatenate([first, ~first])


def draw(
    rng: np.random.Generator, units: Units, *, sizes: Mapping[str, int]
) -> dict[str, Int[np.ndarray, " _"]]:
    """Draws disjoint random parts of at most the given numbers of records, in whole units.

    Units are taken in random order; a part takes them until the next one would exceed its size.

    Args:
      rng: advanced.
      units: of n records.
      sizes: records of each part, by name.

    Returns:
      The rows of each part, ascending. A part is empty where no whole unit fits.

    Raises:
      ValueError: if the sizes exceed n together, or one is negative.
    """
    _check.non_negative(**sizes)
    if sum(sizes.values()) > units.num_records:
        raise ValueError(
            f"Expected sizes of at most {units.num_records} together, got {sum(sizes.values())}."
        )
    order = rng.permutation(units.num_units)
    part, start = np.full(units.num_units, -1), 0
    for i, size in enumerate(sizes.values()):
        stop = start + np.searchsorted(np.cumsum(units.sizes[order[start:]]), size, side="right")
        part[order[start:stop]] = i
        start = stop
    return {name: np.flatnonzero(part[units.index] == i) for i, name in enumerate(sizes)}


def draw_share(key: PRNGKeyArray, units: Units, *, share: float) -> Bool[np.ndarray, " n"]:
    """Draws as many whole random units as first reach a share of the records.

    Units larger than the share are drawn only where all are.

    Args:
      key: consumed.
      units: of n records.
      share: of the records, in (0, 1).

    Returns:
      Whether each record is drawn; at least one unit is.

    Raises:
      ValueError: if share is not in (0, 1).
    """
    _check.open_unit(share=share)
    wanted = units.num_records * share
    order = np.asarray(jax.random.permutation(key, units.num_units))
    is_small = units.sizes[order] <= max(1, wanted)
    order = order[is_small] if is_small.any() else order
    enough = 1 + np.searchsorted(np.cumsum(units.sizes[order]), wanted)
    return np.isin(units.index, order[:enough])


def canaries(
    units: Units,
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
) -> Canaries:
    """Reduces the scores of records to one score for each unit, the mean over its records.

    One coin decides over a unit, so its records are one canary. Any function of the scores keeps
    an audit valid. Infinite scores count as the extreme finite ones.

    Args:
      units: of n records.
      scores: [n] or [n, 1]; higher = more likely a member.
      is_member: [n] or [n, 1]; equal within a unit.

    Returns:
      Score and membership of each unit.

    Raises:
      ValueError: for unequal lengths, NaN, or a unit whose records differ in membership.
    """
    values = _check.scores(scores)
    truth = _check.membership(_check.scores(is_member, name="is_member"))
    _check.same_length(units=units.index, scores=values, is_member=truth)
    members = np.bincount(units.index, truth, minlength=units.num_units)
    mixed = int(((members > 0) & (members < units.sizes)).sum())
    if mixed:
        raise ValueError(
            f"Expected one membership for all records of a {units.kind}, got both in "
            f"{units.count(mixed)}."
        )
    if units.are_records:
        order = np.argsort(units.index)
        return Canaries(values[order], truth[order])
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (-1.0, 1.0)
    totals = np.bincount(units.index, np.clip(values, low, high), minlength=units.num_units)
    return Canaries(totals / units.sizes, members > 0)


def _of_values(kind: UnitKind, values: Any) -> Units:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"Expected a {kind} of each record, [n], got shape {list(array.shape)}.")
    _, index, sizes = np.unique(array, return_inverse=True, return_counts=True)
    return Units(kind=kind, index=index, sizes=sizes)


def _fill(
    order: Int[np.ndarray, " u"], sizes: Int[np.ndarray, " u"], size: int
) -> Bool[np.ndarray, " u"]:
    """Takes units in the given order as long as they fit."""
    taken, left = np.zeros(len(sizes), bool), size
    for i in order:
        taken[i] = sizes[i] <= left
        left -= sizes[i] * taken[i]
    return taken
