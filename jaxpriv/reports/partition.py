"""Splits the records of a report into members, non-members and a population of no model.

In the shapes below `n` counts the records of the pool and `p` those of the population.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, PRNGKeyArray

from jaxpriv import units
from jaxpriv.data import Dataset, num_duplicates
from jaxpriv.reports.findings import Data
from jaxpriv.reports.settings import Unit

_POPULATION_SHARE = 0.1
_MIN_RECORDS, _MIN_GROUPS = 40, 8
_MIN_PER_SIDE = 5
"""Members and non-members that the folds of the blind attack need."""


class Partition(NamedTuple):
    """Records of a report.

    pool: records that are members of the target or not.
    population: records on which no model is trained.
    is_member: whether the target is trained on each record of the pool.
    units: of the pool.
    """

    pool: Dataset
    population: Dataset
    is_member: Bool[np.ndarray, " n"]
    units: units.Units


def partition_records(key: PRNGKeyArray, dataset: Dataset, *, unit: Unit | None) -> Partition:
    """Sets a tenth of the records aside and tosses a fair coin for each unit of the others.

    Args:
      key: consumed.
      dataset: at least 40 records, of at least 8 groups where groups are the unit.
      unit: of privacy; None takes groups where the data have them, else records.

    Returns:
      Members and non-members, the pool, and the population. Whole units are on one side.

    Raises:
      ValueError: if there are too few records or groups, or no groups where they are the unit.
    """
    if len(dataset) < _MIN_RECORDS:
        raise ValueError(f"Expected at least {_MIN_RECORDS} records, got {len(dataset)}.")
    if unit == "group" and dataset.group is None:
        raise ValueError(f"Expected groups in {dataset.name} for the unit 'group', got none.")
    every = units.of_records(len(dataset), kind=unit, group=dataset.group)
    if every.kind == "group" and every.num_units < _MIN_GROUPS:
        raise ValueError(f"Expected at least {_MIN_GROUPS} groups, got {every.num_units}.")
    population_key, coin_key = jax.random.split(key)
    is_population = units.draw_share(population_key, every, share=_POPULATION_SHARE)
    pool_units = every.subset(~is_population)
    is_member = units.coins(coin_key, pool_units)
    smaller = min(is_member.sum(), (~is_member).sum())
    if smaller < _MIN_PER_SIDE:
        raise ValueError(
            f"Expected at least {_MIN_PER_SIDE} members and non-members, got {smaller}: "
            "too few records, or groups that are too large."
        )
    return Partition(
        pool=dataset.subset(~is_population),
        population=dataset.subset(is_population),
        is_member=is_member,
        units=pool_units,
    )


def describe(dataset: Dataset, partition: Partition) -> Data:
    """Counts the records of a report.

    Args:
      dataset: all records.
      partition: of them.

    Returns:
      Names and counts.
    """
    groups = None if dataset.group is None else units.groups(dataset.group)
    return Data(
        name=dataset.name,
        source=dataset.source,
        num_records=len(dataset),
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        notes=dataset.notes,
        not_private=dataset.not_private,
        num_members=int(partition.is_member.sum()),
        num_nonmembers=int((~partition.is_member).sum()),
        num_population=len(partition.population),
        num_groups=None if groups is None else groups.num_units,
        largest_group=None if groups is None else groups.largest,
        num_duplicates=num_duplicates(dataset),
        by_coin=True,
    )
