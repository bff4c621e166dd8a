"""Splits the records of a report into members, non-members and a population.

In the shapes below `n` counts the records of the pool and `p` those of the population.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from jaxpriv import _keys, units
from jaxpriv.data import Dataset, num_duplicates
from jaxpriv.reports.findings import Data
from jaxpriv.reports.settings import Unit

__all__ = ["Partition", "describe", "hold_out", "partition_records"]

_POPULATION_SHARE = 0.1
_MIN_RECORDS, _MIN_GROUPS, _MIN_CLASSES = 40, 8, 20
_TEST_SHARE = 0.2
"""Share of each class that is held out for accuracy, if a class is the unit."""

_MIN_PER_SIDE = 5
"""Smallest number of members and of non-members, for the folds of the blind attack."""


class Partition(NamedTuple):
    """Records of a report.

    pool: members and non-members of the target.
    population: records on which no model is trained.
    is_member: whether the target is trained on each record of the pool.
    units: unit of privacy of each record of the pool.
    rows, population_rows: number of each record of the pool and of the population in the data.
    is_held_out: records of the pool on which a model of all classes is tested, if a class is the
      unit; None otherwise.
    """

    pool: Dataset
    population: Dataset
    is_member: Bool[np.ndarray, " n"]
    units: units.Units
    rows: Int[np.ndarray, " n"]
    population_rows: Int[np.ndarray, " p"]
    is_held_out: Bool[np.ndarray, " n"] | None = None


def partition_records(
    key: PRNGKeyArray, dataset: Dataset, *, unit: Unit | None, max_records: int | None = None
) -> Partition:
    """Sets a tenth of the records aside and tosses a fair coin for each remaining unit.

    Args:
      key: PRNG key.
      dataset: at least 40 records, and at least 8 groups or 20 classes if those are the unit.
      unit: unit of privacy; None takes groups if the data have them, and records otherwise.
      max_records: number of records to use at most, drawn as whole units; None uses all.

    Returns:
      Pool, membership and population; the records of a unit are never separated.

    Raises:
      ValueError: if there are too few records, groups or classes, or if groups are the unit and
        the data have none.

    Example:
      >>> import jax
      >>> from jaxpriv import data
      >>> split = partition_records(jax.random.key(0), data.load("digits"), unit=None)
      >>> len(split.pool), len(split.population), split.units.kind
      (1617, 180, 'record')
    """
    if unit == "group" and dataset.group is None:
        raise ValueError(f"Expected groups in {dataset.name} for the unit 'group', got none.")
    used = _draw_records(key, dataset, unit=unit, max_records=max_records)
    dataset = dataset.subset(used)
    if len(dataset) < _MIN_RECORDS:
        raise ValueError(f"Expected at least {_MIN_RECORDS} records, got {len(dataset)}.")
    all_units = units.of_records(len(dataset), kind=unit, group=dataset.group, labels=dataset.y)
    fewest = {"record": 0, "group": _MIN_GROUPS, "class": _MIN_CLASSES}[all_units.kind]
    if all_units.num_units < fewest:
        plural = "classes for the unit 'class'" if all_units.kind == "class" else "groups"
        raise ValueError(f"Expected at least {fewest} {plural}, got {all_units.num_units}.")
    # The population is drawn first, so that one fair coin per remaining unit decides membership,
    # which the one-run audit requires.
    population_key, coin_key = jax.random.split(key)
    is_population = units.draw_share(population_key, all_units, share=_POPULATION_SHARE)
    pool_units = all_units.subset(~is_population)
    is_member = units.coins(coin_key, pool_units)
    smaller = min(is_member.sum(), (~is_member).sum())
    if smaller < _MIN_PER_SIDE:
        raise ValueError(
            f"Expected at least {_MIN_PER_SIDE} members and non-members, got {smaller}: "
            f"too few records, or {'classes' if unit == 'class' else 'groups'} that are too large."
        )
    is_held_out = None
    if unit == "class":
        is_held_out = hold_out(_keys.numpy_rng(_keys.named(key, "held out")), pool_units)
    return Partition(
        pool=dataset.subset(~is_population),
        population=dataset.subset(is_population),
        is_member=is_member,
        units=pool_units,
        rows=used[~is_population],
        population_rows=used[is_population],
        is_held_out=is_held_out,
    )


def _draw_records(
    key: PRNGKeyArray, dataset: Dataset, *, unit: Unit | None, max_records: int | None
) -> Int[np.ndarray, " r"]:
    """Returns the rows that are used, ascending."""
    if max_records is None or max_records >= len(dataset):
        return np.arange(len(dataset))
    rng = _keys.numpy_rng(_keys.named(key, "records"))
    all_units = units.of_records(len(dataset), kind=unit, group=dataset.group, labels=dataset.y)
    return units.draw(rng, all_units, sizes={"used": max_records})["used"]


def hold_out(rng: np.random.Generator, classes: units.Units) -> Bool[np.ndarray, " n"]:
    """Draws a fifth of the records of each class, on which accuracy is measured.

    Args:
      rng: random generator.
      classes: class of each of n records.

    Returns:
      Whether each record is held out: at least one of each class with two.

    Example:
      >>> classes = units.classes(np.repeat([0, 1, 2], [10, 3, 1]))
      >>> held_out = hold_out(np.random.default_rng(0), classes)
      >>> np.bincount(classes.index, held_out).tolist()
      [2.0, 1.0, 0.0]
    """
    counts = np.maximum(1, np.round(_TEST_SHARE * classes.sizes))
    counts = np.minimum(counts, classes.sizes - 1)
    order = rng.permutation(classes.num_records)
    order = order[np.argsort(classes.index[order], kind="stable")]
    rank = (
        np.arange(classes.num_records)
        - (np.cumsum(classes.sizes) - classes.sizes)[classes.index[order]]
    )
    result = np.zeros(classes.num_records, bool)
    result[order] = rank < counts[classes.index[order]]
    return result


def describe(dataset: Dataset, partition: Partition) -> Data:
    """Describes the records of a report and counts them.

    Args:
      dataset: all records.
      partition: split of these records.

    Returns:
      Names and counts.

    Example:
      >>> import jax
      >>> from jaxpriv import data
      >>> digits = data.load("digits")
      >>> split = partition_records(jax.random.key(0), digits, unit=None)
      >>> described = describe(digits, split)
      >>> described.num_records, described.num_members + described.num_nonmembers
      (1797, 1617)
    """
    rows = np.concatenate([partition.rows, partition.population_rows])
    used, notes = dataset.subset(np.sort(rows)), dataset.notes
    if len(used) < len(dataset):
        notes = (*notes, f"{len(used):,} of {len(dataset):,} records are used, drawn at random.")
    groups = None if used.group is None else units.groups(used.group)
    return Data(
        name=dataset.name,
        source=dataset.source,
        num_records=len(used),
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        notes=notes,
        not_private=dataset.not_private,
        num_members=int(partition.is_member.sum()),
        num_nonmembers=int((~partition.is_member).sum()),
        num_population=len(partition.population),
        num_groups=None if groups is None else groups.num_units,
        largest_group=None if groups is None else groups.largest,
        num_duplicates=num_duplicates(used),
        by_coin=True,
    )
