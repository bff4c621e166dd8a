"""Data sets are frozen and split into disjoint parts."""

import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpriv import data


def make(n=30, *, classes=3, group=None, is_test=None, x=None):
    rng = np.random.default_rng(0)
    return data.Dataset(
        x=rng.normal(size=(n, 4)).astype(np.float32) if x is None else x,
        y=(np.arange(n) % classes).astype(np.int32),
        name="made",
        num_classes=classes,
        source="a test",
        group=group,
        is_test=is_test,
    )


def where(part, whole):
    """Positions of a part's records, which are all different."""
    return [int(np.flatnonzero((whole.x == row).all(1))[0]) for row in part.x]


def test_arrays_are_frozen_and_the_callers_are_not():
    x = np.zeros((3, 2), np.float32)
    loaded = make(3, x=x)
    with pytest.raises(ValueError, match="read-only"):
        loaded.x[0, 0] = 1
    x[0, 0] = 1
    assert len(loaded) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.array([0, 1, 3])}, "Expected labels from 0 to 2"),
        ({"y": np.array([0, -1, 2])}, "Expected labels from 0 to 2"),
        ({"y": np.array([0, 1])}, "Expected "),
        ({"group": np.array([0, 1])}, "Expected "),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "at least one record"),
    ],
)
def test_refuses_arrays_that_do_not_fit(change, message):
    good = {"x": np.zeros((3, 2)), "y": np.array([0, 1, 2])}
    with pytest.raises((ValueError, TypeError), match=message):
        data.Dataset(**{**good, **change}, name="made", num_classes=3, source="a test")


def test_subset_and_classes():
    group = np.arange(6) // 2
    loaded = make(6, group=group, is_test=np.arange(6) > 3)
    assert loaded.subset(np.array([4, 0])).group.tolist() == [2, 0]
    some = loaded.take_classes([2, 0])
    assert some.y.tolist() == [1, 0, 1, 0]
    assert where(some, loaded) == [0, 2, 3, 5]
    assert some.num_classes == 2
    for classes, message in (([3], "from 0 to 2"), ([0, 0], "different"), ([], "different")):
        with pytest.raises(ValueError, match=message):
            loaded.take_classes(classes)
    with pytest.raises(ValueError, match="got none"):
        loaded.subset(np.array([0, 3])).take_classes([1])


@given(st.integers(0, 2**32), st.lists(st.integers(1, 10), min_size=1, max_size=3))
def test_parts_by_row_are_disjoint_and_of_the_size_asked(seed, sizes):
    loaded = make(30)
    asked = {f"part{i}": size for i, size in enumerate(sizes)}
    parts = loaded.split(np.random.default_rng(seed), sizes=asked)
    at = [i for part in parts.values() for i in where(part, loaded)]
    assert [len(p) for p in parts.values()] == sizes
    assert len(set(at)) == len(at)


@given(st.integers(0, 2**32))
def test_parts_by_group_share_no_group(seed):
    rng = np.random.default_rng(seed)
    loaded = make(60, group=rng.integers(0, 12, 60))
    parts = loaded.split(rng, sizes={"member": 0.4, "test": 0.5})
    groups = [set(part.group.tolist()) for part in parts.values()]
    assert not groups[0] & groups[1]
    assert len(parts["member"]) <= 24
    # Short by less than one group.
    assert len(parts["member"]) > 24 - np.bincount(loaded.group).max()
    for part in parts.values():
        assert len(part) == np.isin(loaded.group, part.group).sum()


def test_every_record_is_equally_likely_to_be_drawn():
    loaded, drawn = make(10), np.zeros(10)
    for seed in range(400):
        part = loaded.split(np.random.default_rng(seed), sizes={"a": 0.3, "b": 0.5})["b"]
        drawn[where(part, loaded)] += 1
    assert abs(drawn / 400 - 0.5).max() < 5 * np.sqrt(0.25 / 400)


@pytest.mark.parametrize(
    ("sizes", "by", "message"),
    [
        ({"a": 20, "b": 0.5}, None, "at most 30"),
        ({"a": 0}, None, "Expected a >= 1"),
        ({"a": 1.5}, None, "Expected 0 < a < 1"),
        ({"a": 0.01}, None, "Expected at least one row in a"),
        ({"a": 0.5}, "group", "Expected a group"),
        ({"a": 0.5}, "person", "row, group"),
    ],
)
def test_split_refuses(sizes, by, message):
    with pytest.raises(ValueError, match=message):
        make(30).split(np.random.default_rng(0), sizes=sizes, by=by)


def test_a_group_larger_than_a_part_is_said():
    loaded = make(30, group=np.zeros(30, int))
    with pytest.raises(ValueError, match="at least one group in a"):
        loaded.split(np.random.default_rng(0), sizes={"a": 0.5})
    assert len(loaded.split(np.random.default_rng(0), sizes={"a": 0.5}, by="row")["a"]) == 15


def test_duplicates_are_counted_and_warned_about():
    x = np.repeat(np.arange(4, dtype=np.float32), 3)[:, None]
    x[1] = -0.0
    loaded = make(12, classes=3, x=x)
    assert data.num_duplicates(loaded) == 0
    same = data.Dataset(x=x, y=np.zeros(12, int), name="made", num_classes=1, source="a test")
    assert data.num_duplicates(same) == 8
    with pytest.warns(UserWarning, match="spoils an audit"):
        same.split(np.random.default_rng(0), sizes={"member": 6, "test": 6})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.split(np.random.default_rng(0), sizes={"member": 6, "test": 6})


def test_class_names_and_notes_follow_the_records():
    made = make(6)
    assert made.class_names == ("0", "1", "2")
    named = dataclasses.replace(made, class_names=("a", "b", "c"), notes=("n",), not_private=("p",))
    part = named.take_classes([2, 0])
    assert (part.class_names, part.notes, part.not_private) == (("c", "a"), ("n",), ("p",))
    assert named.subset(np.arange(2)).class_names == ("a", "b", "c")
    with pytest.raises(ValueError, match="Expected 3 class_names for made, got 2"):
        dataclasses.replace(made, class_names=("a", "b"))
