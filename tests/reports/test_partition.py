"""Partition: members, non-members and population; whole units on one side."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxpriv import data
from jaxpriv.reports import partition

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits").subset(np.arange(400))


def test_a_tenth_is_population_and_coins_decide_the_rest(digits):
    split = partition.partition_records(KEY, digits, unit=None)
    assert len(split.population) == 40
    assert len(split.pool) == len(split.is_member) == 360
    assert abs(split.is_member.sum() - 180) < 48  # 5 standard deviations
    rows = np.concatenate([split.pool.x, split.population.x])
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(digits.x, axis=0))
    about = partition.describe(digits, split)
    assert (about.num_members, about.num_nonmembers) == (
        split.is_member.sum(), (~split.is_member).sum()
    )  # fmt: skip
    assert (about.num_records, about.num_population, about.num_groups) == (400, 40, None)
    assert about.by_coin


def test_groups_are_whole_where_they_are_the_unit(digits):
    grouped = dataclasses.replace(digits, group=np.arange(400) // 4)
    split = partition.partition_records(KEY, grouped, unit=None)
    assert split.units.kind == "group"
    assert len(split.population) == 40
    for part in (split.pool.group[split.is_member], split.pool.group[~split.is_member]):
        assert (np.unique(part, return_counts=True)[1] == 4).all()
    about = partition.describe(grouped, split)
    assert (about.num_groups, about.largest_group) == (100, 4)


def test_records_may_be_the_unit_of_grouped_data(digits):
    grouped = dataclasses.replace(digits, group=np.arange(400) // 4)
    split = partition.partition_records(KEY, grouped, unit="record")
    assert split.units.kind == "record"
    sides = [set(split.pool.group[side]) for side in (split.is_member, ~split.is_member)]
    assert sides[0] & sides[1]
    assert partition.describe(grouped, split).num_groups == 100


def test_a_population_takes_no_group_larger_than_a_tenth_where_others_are(digits):
    small = digits.subset(np.arange(100))
    group = np.concatenate([np.zeros(50, int), np.arange(1, 51)])
    for seed in range(5):
        grouped = dataclasses.replace(small, group=group)
        split = partition.partition_records(jax.random.key(seed), grouped, unit=None)
        assert len(split.population) == 10


@pytest.mark.parametrize(
    ("rows", "group", "unit", "message"),
    [
        (20, None, None, "at least 40 records, got 20"),
        (120, np.arange(120) // 30, None, "at least 8 groups, got 4"),
        (120, None, "group", "Expected groups in digits"),
        (400, None, "class", "at least 20 classes for the unit 'class', got 10"),
        (100, np.minimum(np.arange(100), 8), None, "groups that are too large"),
    ],
)
def test_what_cannot_be_split_is_one_line(digits, rows, group, unit, message):
    dataset = dataclasses.replace(digits.subset(np.arange(rows)), group=group)
    with pytest.raises(ValueError, match=message):
        partition.partition_records(KEY, dataset, unit=unit)


def test_at_most_the_given_number_of_records_is_used_in_whole_groups(digits):
    grouped = dataclasses.replace(digits, group=np.arange(400) // 4)
    split = partition.partition_records(KEY, grouped, unit=None, max_records=122)
    assert len(split.pool) + len(split.population) == 120
    assert (np.unique(split.pool.group, return_counts=True)[1] == 4).all()
    np.testing.assert_array_equal(split.pool.x, grouped.x[split.rows])
    described = partition.describe(grouped, split)
    assert (described.num_records, described.num_groups) == (120, 30)
    assert described.notes[-1] == "120 of 400 records are used, drawn at random."
    assert len(partition.partition_records(KEY, grouped, unit=None, max_records=400).pool) == 360
    with pytest.raises(ValueError, match="at least 40 records, got 36"):
        partition.partition_records(KEY, grouped, unit=None, max_records=39)
