"""Units of privacy: coins, halves and draws never split one, and canaries have one score each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpriv import training, units
from tests import oracles

GROUPS = np.repeat(np.array(list("dbaec")), [5, 1, 3, 2, 4])


def keeps_units_together(unit, chosen):
    """Whether no unit is split by a choice of records."""
    return all(len(set(chosen[unit.index == i])) == 1 for i in range(unit.num_units))


@pytest.mark.parametrize(
    ("unit", "kind", "sizes"),
    [
        (units.records(4), "record", [1, 1, 1, 1]),
        (units.groups(GROUPS), "group", [3, 1, 4, 5, 2]),
        (units.classes(np.array([7, 3, 7])), "class", [1, 2]),
        (units.of_records(3), "record", [1, 1, 1]),
        (units.of_records(3, group=np.array([5, 5, 1])), "group", [1, 2]),
        (units.of_records(3, kind="record", group=np.array([5, 5, 1])), "record", [1, 1, 1]),
        (units.of_records(3, kind="class", labels=np.array([0, 1, 0])), "class", [2, 1]),
    ],
)
def test_units_are_numbered_by_sorted_value(unit, kind, sizes):
    assert (unit.kind, unit.sizes.tolist()) == (kind, sizes)
    assert np.bincount(unit.index).tolist() == sizes
    assert (unit.num_records, unit.num_units, unit.largest) == (sum(sizes), len(sizes), max(sizes))
    assert unit.are_records == (max(sizes) == 1)


def test_counts_are_in_words():
    assert units.groups(GROUPS).count(1) == "1 group"
    assert units.classes(GROUPS).count(2) == "2 classes"
    assert units.records(3).count(12_345) == "12,345 records"


@pytest.mark.parametrize("unit", [units.records(400), units.groups(np.arange(400) // 3)])
def test_coins_are_fair_and_whole(unit, keys):
    drawn = np.stack([units.coins(key, unit) for key in keys(200)])
    assert all(keeps_units_together(unit, row) for row in drawn[:5])
    per_unit = drawn[:, np.unique(unit.index, return_index=True)[1]]
    assert abs(per_unit.mean() - 0.5) < 5 * 0.5 / np.sqrt(per_unit.size)
    pairs = (per_unit[:, 0] == per_unit[:, 1]).mean()
    assert abs(pairs - 0.5) < 5 * 0.5 / np.sqrt(200)  # independent of each other


@pytest.mark.parametrize("group", [None, np.arange(60) // 4, np.minimum(np.arange(60), 30)])
def test_halves_are_complementary_whole_and_half(group, keys):
    unit = units.of_records(60, group=group)
    halves = units.halves(keys(1)[0], unit, num_models=6)
    assert halves.shape == (6, 60)
    assert (halves[:3] == ~halves[3:]).all()
    assert all(keeps_units_together(unit, row) for row in halves)
    assert (halves[:3].sum(1) <= 30).all()
    assert (halves[:3].sum(1) > 30 - unit.sizes.min() - 1).all()
    if unit.largest < 30:
        assert len(np.unique(halves, axis=0)) == 6


@given(st.lists(st.integers(0, 6), min_size=4, max_size=30), st.integers(0, 10), st.integers(0, 10))
def test_drawn_parts_are_disjoint_whole_and_no_larger_than_asked(values, first, second):
    unit = units.groups(np.array(values))
    sizes = {"a": min(first, len(values) // 2), "b": min(second, len(values) // 2)}
    parts = units.draw(np.random.default_rng(0), unit, sizes=sizes)
    assert not set(parts["a"]) & set(parts["b"])
    for name, rows in parts.items():
        assert len(rows) <= sizes[name]
        assert keeps_units_together(unit, np.isin(np.arange(len(values)), rows))


def test_single_records_fill_every_part():
    parts = units.draw(np.random.default_rng(0), units.records(20), sizes={"a": 7, "b": 13})
    assert sorted([*parts["a"], *parts["b"]]) == list(range(20))


@pytest.mark.parametrize("group", [None, np.arange(200) // 7])
def test_a_share_is_reached_by_the_last_unit_and_not_before(group, keys):
    unit = units.of_records(200, group=group)
    for key in keys(10):
        drawn = units.draw_share(key, unit, share=0.1)
        assert keeps_units_together(unit, drawn)
        assert 20 <= drawn.sum() < 20 + unit.largest
    giant = units.groups(np.minimum(np.arange(200), 100))
    assert units.draw_share(keys(1)[0], giant, share=0.1).sum() == 20  # the group of 100 stays


def test_canaries_are_means_over_units():
    unit = units.groups(np.array([0, 1, 0, 2, 2, 2]))
    is_member = np.array([1, 0, 1, 1, 1, 1])
    scores, truth = units.canaries(unit, np.array([1.0, 5.0, 3.0, 0.0, np.inf, -np.inf]), is_member)
    assert scores.tolist() == [2.0, 5.0, (0 + 5 + 0) / 3]
    assert truth.tolist() == [True, False, True]
    values = np.array([[3.0], [-np.inf]])
    scores, truth = units.canaries(units.records(2), values, np.array([0, 1]))
    assert scores.tolist() == [3.0, -np.inf]  # single records keep their scores


def test_a_subset_is_numbered_anew():
    unit = units.groups(GROUPS).subset(GROUPS != "b")
    assert (unit.kind, unit.num_units, unit.sizes.tolist()) == ("group", 4, [3, 4, 5, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: units.records(0), "n >= 1"),
        (lambda key: units.classes(np.zeros(0)), "a class of each record"),
        (
            lambda key: units.groups(np.array(["a", None, "b"], object)),
            "numbers or text as the group",
        ),
        (lambda key: units.groups(np.array(["a", 1], object)), "numbers or text as the group"),
        (lambda key: units.groups(np.array([1.0, np.nan, np.nan])), "a group .* got 2 NaN"),
        (lambda key: units.classes(np.array([0, np.nan], object)), "a class .* got 1 NaN"),
        (lambda key: units.of_records(10, group=np.arange(3)), "a group of each of 10 records"),
        (lambda key: units.of_records(3, kind="class"), "a class of each record for the unit"),
        (lambda key: units.of_records(3, kind="group"), "a group of each record for the unit"),
        (
            lambda key: oracles.unhooked(units.of_records)(3, kind="pixel"),
            "unit to be one of record, group, class",
        ),
        (lambda key: units.halves(key, units.records(4), num_models=3), "an even num_models"),
        (lambda key: units.halves(key, units.records(1), num_models=2), "at least two records"),
        (
            lambda key: units.halves(key, units.groups(np.zeros(4)), num_models=2),
            "at least two groups, got 1 group",
        ),
        (lambda key: units.draw_share(key, units.records(4), share=1.0), "0 < share < 1"),
        (
            lambda key: units.draw(np.random.default_rng(0), units.records(4), sizes={"a": 5}),
            "sizes of at most 4 together, got 5",
        ),
        (
            lambda key: units.canaries(units.groups(np.zeros(2)), np.zeros(2), np.arange(2)),
            "one membership for all records of a group, got both in 1 group",
        ),
    ],
)
def test_refuses_in_one_line(call, message, keys):
    with pytest.raises(ValueError, match=rf"^Expected {message}"):
        call(keys(1)[0])


@pytest.mark.parametrize("group", [[0, 1, 2], list(range(11)), []])
def test_halves_of_shadow_models_need_a_group_for_each_record(group, keys):
    halves = oracles.unhooked(training.shadows.halves)
    with pytest.raises(ValueError, match=r"^Expected a group of each"):
        halves(keys(1)[0], 10, num_models=2, group=np.array(group))


def clusters(num_classes=3, per_class=20):
    """Classes of two clusters that are far apart, in random order of rows."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(num_classes), per_class)
    cluster = np.tile(np.arange(2), num_classes * per_class // 2)
    inputs = 50.0 * cluster[:, None, None] + rng.normal(size=(len(labels), 2, 3))
    order = rng.permutation(len(labels))
    return inputs[order].astype(np.float32), labels[order], cluster[order]


def test_subclasses_are_the_clusters_of_each_class():
    inputs, labels, cluster = clusters()
    parts = units.subclasses(np.random.default_rng(0), inputs, labels, num_subclasses=2)
    assert set(parts) == {0, 1}
    for label in range(3):
        agree = parts[labels == label] == cluster[labels == label]
        assert agree.all() or not agree.any()  # clusters have no order
    again = units.subclasses(np.random.default_rng(0), inputs, labels, num_subclasses=2)
    np.testing.assert_array_equal(parts, again)


def test_subclasses_of_a_class_do_not_depend_on_other_classes():
    inputs, labels, _ = clusters()
    changed = np.where((labels == 2)[:, None, None], -3 * inputs**2, inputs)
    first, second = (
        units.subclasses(np.random.default_rng(0), x, labels, num_subclasses=3)
        for x in (inputs, changed)
    )
    np.testing.assert_array_equal(first[labels != 2], second[labels != 2])


def test_a_class_with_few_different_inputs_has_empty_subclasses():
    inputs, labels = np.array([[1], [1], [2], [7]], np.uint8), np.array([0, 0, 0, 5])
    parts = units.subclasses(np.random.default_rng(0), inputs, labels, num_subclasses=4)
    assert parts[0] == parts[1] != parts[2]
    assert parts[3] == 0
    assert parts.max() < 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_subclasses": 0}, "num_subclasses >= 1"),
        ({"labels": np.zeros(3, int)}, "equal lengths"),
        ({"inputs": np.array([[1.0], [np.inf]])}, "finite inputs"),
        ({"inputs": np.array([[1.0], [np.nan]])}, "without NaN"),
    ],
)
def test_subclasses_refuse_bad_input(changes, message):
    arguments = {"inputs": np.zeros((2, 1)), "labels": np.zeros(2, int), "num_subclasses": 1}
    arguments |= changes
    with pytest.raises(ValueError, match=message):
        oracles.unhooked(units.subclasses)(np.random.default_rng(0), **arguments)
