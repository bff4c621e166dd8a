"""Unit of privacy: a record, a group of records (person, household), or a class.

All records of a unit have the same membership coin, shadow half and part of a split. In the
shapes below `n` counts records, `u` units and `m` models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._names import UnitKind

__all__ = [
    "Canaries",
    "Units",
    "canaries",
    "classes",
    "coins",
    "draw",
    "draw_share",
    "groups",
    "halves",
    "of_records",
    "records",
    "subclasses",
]

_PLURALS: dict[UnitKind, str] = {"record": "records", "group": "groups", "class": "classes"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """The unit of each record.

    kind: kind of the units, "record", "group" or "class".
    index: unit of each record, in 0..u-1.
    sizes: number of records of each unit, at least 1.

    Example:
      >>> units = groups(np.array(["ann", "bob", "ann", "cem"]))
      >>> units.num_units, units.largest, units.index.tolist()
      (3, 2, [0, 1, 0, 2])
    """

    kind: UnitKind
    index: Int[np.ndarray, " n"]
    sizes: Int[np.ndarray, " u"]

    @property
    def num_records(self) -> int:
        """Number of records, n."""
        return len(self.index)

    @property
    def num_units(self) -> int:
        """Number of units, u."""
        return len(self.sizes)

    @property
    def largest(self) -> int:
        """Number of records of the largest unit, for the group-privacy conversion."""
        return int(self.sizes.max(initial=0))

    @property
    def are_records(self) -> bool:
        """Whether every unit has one record."""
        return self.largest <= 1

    def count(self, number: int) -> str:
        """Formats a number of units, as in "1 group" or "2 classes"."""
        return f"{number:,} {self.kind if number == 1 else _PLURALS[self.kind]}"

    def subset(self, rows: Bool[np.ndarray, " n"] | Int[np.ndarray, " k"]) -> "Units":
        """Returns the units of the selected records, renumbered in the same order."""
        _, index, sizes = np.unique(self.index[rows], return_inverse=True, return_counts=True)
        return Units(kind=self.kind, index=index, sizes=sizes)


class Canaries(NamedTuple):
    """One score and one coin for each unit, for an audit of one run."""

    scores: Float[np.ndarray, " u"]
    is_member: Bool[np.ndarray, " u"]


def records(n: int) -> Units:
    """Makes every record a unit.

    Args:
      n: number of records; >= 1.

    Returns:
      The units; record i is unit i.

    Raises:
      ValueError: if n < 1.

    Example:
      >>> records(3).index.tolist()
      [0, 1, 2]
    """
    _check.positive_int(n=n)
    return Units(kind="record", index=np.arange(n), sizes=np.ones(n, np.int64))


def groups(values: Shaped[Array | np.ndarray, " n"]) -> Units:
    """Makes every group of records a unit.

    Args:
      values: group (person, household) of each record; numbers or text.

    Returns:
      The units, numbered by sorted value.

    Raises:
      ValueError: for another shape than [n], no records, or records without a value.

    Example:
      >>> units = groups(np.array(["bob", "ann", "bob"]))
      >>> units.index.tolist(), units.sizes.tolist()
      ([1, 0, 1], [1, 2])
    """
    return _of_values("group", values)


def classes(labels: Shaped[Array | np.ndarray, " n"]) -> Units:
    """Makes every class a unit.

    Args:
      labels: class of each record; numbers or text.

    Returns:
      The units, numbered by sorted label.

    Raises:
      ValueError: for another shape than [n], no records, or records without a value.

    Example:
      >>> classes(np.array([3, 7, 3])).index.tolist()
      [0, 1, 0]
    """
    return _of_values("class", labels)


def subclasses(
    rng: np.random.Generator,
    inputs: Shaped[Array | np.ndarray, "n ..."],
    labels: Int[Array | np.ndarray, " n"],
    *,
    num_subclasses: int,
) -> Int[np.ndarray, " n"]:
    """Divides each class into subclasses by k-means of its inputs.

    The partition depends on the data: adding or removing one record can move other records of its
    class to another subclass. A guarantee of subclasses, as of `sampling.by_subclass`, takes the
    partition as given, so it holds only if the partition is public (as when a person's photographs
    are divided by session) or its computation is accounted for. With the partition computed here
    from private records, neither is true: state the epsilon as conditional on the partition.

    Args:
      rng: random generator.
      inputs: inputs of the records, of any shape.
      labels: class of each record.
      num_subclasses: number of subclasses k of each class.

    Returns:
      Subclass of each record within its class, in 0..k-1. A class with fewer than k different
      inputs has empty subclasses.

    Raises:
      ValueError: if the lengths differ, there are no records, num_subclasses is not positive, or
        inputs are not finite numbers.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020.

    Example:
      >>> inputs = np.array([[0.0], [9.0], [0.1], [5.0], [9.1]])
      >>> labels = np.array([0, 0, 0, 1, 0])
      >>> parts = subclasses(np.random.default_rng(0), inputs, labels, num_subclasses=2)
      >>> bool(parts[0] == parts[2]), bool(parts[0] == parts[1]), int(parts[3])
      (True, False, 0)
    """
    from sklearn.cluster import KMeans

    _check.positive_int(num_subclasses=num_subclasses)
    _check.same_length(inputs=inputs, labels=labels)
    classes_of_records = classes(labels)
    values = _check.real_array("inputs", inputs).reshape(len(labels), -1)
    if not np.isfinite(values).all():
        raise ValueError("Expected finite inputs, got infinite ones.")
    result = np.zeros(len(labels), np.int32)
    for unit in range(classes_of_records.num_units):
        rows = np.flatnonzero(classes_of_records.index == unit)
        # k-means needs at least as many different points as clusters.
        points = values[rows].astype(np.float64)
        num_clusters = min(num_subclasses, len(np.unique(points, axis=0)))
        seed = int(rng.integers(2**32))
        k_means = KMeans(num_clusters, n_init="auto", random_state=seed)
        result[rows] = k_means.fit_predict(points)
    return result


def of_records(
    n: int,
    *,
    kind: UnitKind | None = None,
    group: Shaped[Array | np.ndarray, " n"] | None = None,
    labels: Shaped[Array | np.ndarray, " n"] | None = None,
) -> Units:
    """Makes units of n records, of a given kind.

    Args:
      n: number of records.
      kind: kind of the units; None chooses groups if `group` is given, otherwise records.
      group: group of each record.
      labels: class of each record.

    Returns:
      The units.

    Raises:
      ValueError: if the array that the kind needs is missing or of another length, or the kind is
        unknown.

    Example:
      >>> of_records(3).kind, of_records(3, group=np.array([5, 5, 8])).kind
      ('record', 'group')
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
    """Flips a fair coin for each unit.

    Args:
      key: PRNG key.
      units: units of n records.

    Returns:
      Whether each record is a member; equal within a unit, independent between units.

    Example:
      >>> is_member = coins(jax.random.key(0), groups(np.array([0, 0, 1, 1, 2])))
      >>> bool(is_member[0] == is_member[1]), is_member.shape
      (True, (5,))
    """
    return np.asarray(jax.random.bernoulli(key, 0.5, (units.num_units,)))[units.index]


def halves(key: PRNGKeyArray, units: Units, *, num_models: int) -> Bool[np.ndarray, "m n"]:
    """Draws complementary random halves of the records, without dividing units.

    Units are added in random order if they fit into the half.

    Args:
      key: PRNG key.
      units: units of n records; at least two.
      num_models: number of models, m; even.

    Returns:
      Whether record j is a member of model i; model i + m/2 is the complement of model i. A half
      of the first m/2 models has (n + 1) // 2 records, or fewer if no further unit fits.

    Raises:
      ValueError: if num_models is odd, or there are fewer than two units.

    Example:
      >>> is_member = halves(jax.random.key(0), records(6), num_models=4)
      >>> is_member.sum(axis=1).tolist(), bool((is_member[2] == ~is_member[0]).all())
      ([3, 3, 3, 3], True)
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
    """Draws disjoint random subsets of at most the given sizes, without dividing units.

    Units are added to a subset in random order until the next one would exceed its size.

    Args:
      rng: random generator.
      units: units of n records.
      sizes: maximum number of records of each subset, by name.

    Returns:
      The rows of each subset, ascending. A subset may be empty if its next unit does not fit.

    Raises:
      ValueError: if the sizes add up to more than n, or one is negative.

    Example:
      >>> households = groups(np.array([0, 0, 1, 1, 2, 2]))
      >>> subsets = draw(np.random.default_rng(0), households, sizes={"train": 4, "test": 2})
      >>> {name: len(rows) for name, rows in subsets.items()}
      {'train': 4, 'test': 2}
    """
    _check.non_negative_int(**sizes)
    if sum(sizes.values()) > units.num_records:
        raise ValueError(
            f"Expected sizes of at most {units.num_records} together, got {sum(sizes.values())}."
        )
    order = rng.permutation(units.num_units)
    subset, start = np.full(units.num_units, -1), 0
    for i, size in enumerate(sizes.values()):
        stop = start + np.searchsorted(np.cumsum(units.sizes[order[start:]]), size, side="right")
        subset[order[start:stop]] = i
        start = stop
    return {name: np.flatnonzero(subset[units.index] == i) for i, name in enumerate(sizes)}


def draw_share(key: PRNGKeyArray, units: Units, *, share: float) -> Bool[np.ndarray, " n"]:
    """Draws random units until they have at least a given share of the records.

    Units larger than the share are drawn only if all units are.

    Args:
      key: PRNG key.
      units: units of n records.
      share: share of the records, in (0, 1).

    Returns:
      Whether each record is drawn; at least one unit is.

    Raises:
      ValueError: if share is not in (0, 1).

    Example:
      >>> int(draw_share(jax.random.key(0), records(100), share=0.1).sum())
      10
    """
    _check.open_unit(share=share)
    target_size = units.num_records * share
    order = np.asarray(jax.random.permutation(key, units.num_units))
    is_small = units.sizes[order] <= max(1, target_size)
    order = order[is_small] if is_small.any() else order
    num_drawn = 1 + np.searchsorted(np.cumsum(units.sizes[order]), target_size)
    return np.isin(units.index, order[:num_drawn])


def canaries(
    units: Units,
    scores: Shaped[Array | np.ndarray, "..."],
    is_member: Shaped[Array | np.ndarray, "..."],
) -> Canaries:
    """Reduces the scores of records to the mean score of each unit.

    A unit has one coin, so its records are one canary. An audit remains valid for any function of
    the scores. Infinite scores are replaced by the extreme finite ones.

    Args:
      units: units of n records.
      scores: [n] or [n, 1]; higher = more likely a member.
      is_member: [n] or [n, 1]; equal within a unit.

    Returns:
      Score and membership of each unit.

    Raises:
      ValueError: for unequal lengths, NaN, or a unit whose records differ in membership.

    Example:
      >>> households = groups(np.array([0, 0, 1]))
      >>> canaries(households, np.array([1.0, 3.0, 0.5]), np.array([True, True, False]))
      Canaries(scores=array([2. , 0.5]), is_member=array([ True, False]))
    """
    values = _check.scores(scores)
    truth = _check.membership(_check.scores(is_member, name="is_member"))
    _check.same_length(units=units.index, scores=values, is_member=truth)
    members = np.bincount(units.index, truth, minlength=units.num_units)
    num_mixed = int(((members > 0) & (members < units.sizes)).sum())
    if num_mixed:
        raise ValueError(
            f"Expected one membership for all records of a {units.kind}, got both in "
            f"{units.count(num_mixed)}."
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
    try:
        num_missing = int((array != array).sum())
        _, index, sizes = np.unique(array, return_inverse=True, return_counts=True)
    except TypeError:
        raise ValueError(
            f"Expected numbers or text as the {kind} of each record, got both, or None."
        ) from None
    if num_missing:
        raise ValueError(f"Expected a {kind} of each record, got {num_missing} NaN.")
    return Units(kind=kind, index=index, sizes=sizes)


def _fill(
    order: Int[np.ndarray, " u"], sizes: Int[np.ndarray, " u"], size: int
) -> Bool[np.ndarray, " u"]:
    """Selects units in the given order if they fit into the remaining size."""
    is_selected, remaining = np.zeros(len(sizes), bool), size
    for i in order:
        is_selected[i] = sizes[i] <= remaining
        remaining -= sizes[i] * is_selected[i]
    return is_selected
