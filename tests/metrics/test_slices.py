"""The metrics of a part are those of its records alone; parts without metrics have a reason."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpriv import metrics
from jaxpriv.metrics import slices
from tests import oracles


def drawn(seed, n=400):
    rng = np.random.default_rng(seed)
    is_member, part = rng.random(n) < 0.5, rng.integers(4, size=n)
    return rng.normal(size=n) + part * is_member, is_member, part


@pytest.mark.parametrize("names", [np.arange(4), np.array(list("dacb")), np.array([0.5, 1, 2, -1])])
def test_each_part_is_measured_as_if_alone(names):
    scores, is_member, part = drawn(0)
    result = slices.measure(scores, is_member, part=names[part], confidence=0.9)
    assert result.num_parts == 4
    assert result.confidence == pytest.approx(0.975)  # Bonferroni
    assert [each.value for each in result.parts] == sorted(names.tolist())
    for each in result.parts:
        rows = names[part] == each.value
        assert each.measured == metrics.membership(
            scores[rows], is_member[rows], confidence=result.confidence
        )
        assert (each.num_members, each.num_nonmembers, each.reason) == (
            is_member[rows].sum(),
            (~is_member[rows]).sum(),
            None,
        )
    assert sum(each.num_members + each.num_nonmembers for each in result.parts) == 400


def test_the_exposed_part_is_found():
    scores, is_member, part = drawn(1)
    result = slices.measure(scores, is_member, part=part, confidence=0.95)
    auc = [each.measured.auc for each in result.parts]
    assert auc[0] < 0.6 < 0.9 < auc[3]


def test_what_cannot_be_measured_has_a_reason():
    scores, is_member = np.arange(6.0), np.array([1, 1, 0, 0, 1, 0])
    options = {"part": np.array([0, 0, 1, 1, 2, 2]), "confidence": 0.95, "expected": [3, 2, 1, 0]}
    result = slices.measure(scores, is_member, min_per_side=1, **options).parts
    assert [(s.value, s.reason, s.measured is None) for s in result] == [
        (3, "empty", True),
        (2, None, False),
        (1, "no members", True),
        (0, "no non-members", True),
    ]
    few = slices.measure(scores, is_member, min_per_side=2, **options).parts[1]
    assert (few.reason, few.measured) == ("fewer than 2 on a side", None)
    (only,) = slices.measure(scores, np.ones(6), part=np.ones(6, bool), confidence=0.95).parts
    assert (only.value, only.num_members, only.reason) == (True, 6, "no non-members")


def test_of_many_parts_the_largest_are_measured_and_all_are_counted():
    part = np.repeat(np.arange(250), np.where(np.arange(250) % 2, 8, 4))
    result = slices.measure(
        np.arange(len(part)), np.arange(len(part)) % 2, part=part, confidence=0.9, min_per_side=2
    )
    assert result.num_parts == 250
    assert [each.value for each in result.parts] == list(range(1, 200, 2))
    assert result.confidence == pytest.approx(1 - 0.1 / 100)


def test_arrays_of_any_kind_are_taken():
    scores, is_member, part = drawn(2)
    plain = slices.measure(scores, is_member, part=part, confidence=0.9)
    columns = slices.measure(
        scores[:, None], is_member[:, None], part=jnp.asarray(part), confidence=0.9
    )
    assert columns == plain


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, np.inf, -np.inf, -1e30]), max_size=40),
    st.integers(1, 12),
)
def test_equal_values_share_a_bin_and_bins_ascend(values, num_bins):
    values = np.array(values, float)
    bins = slices.percentile_bins(values, num_bins=num_bins)
    assert bins.shape == values.shape
    assert ((bins >= 0) & (bins < num_bins)).all()
    for value, rows in zip(values, bins, strict=True):
        assert (bins[values == value] == rows).all()
        assert (bins[values > value] >= rows).all()


@pytest.mark.parametrize("dtype", [np.float64, jnp.bfloat16, np.int32])
def test_distinct_values_fill_bins_evenly(dtype):
    values = np.random.default_rng(0).permutation(103).astype(dtype)
    bins = slices.percentile_bins(jnp.asarray(values), num_bins=10)
    assert set(np.bincount(bins, minlength=10)) == {10, 11}
    assert (np.argsort(np.asarray(values).astype(float)) == np.lexsort((values, bins))).all()


def test_empty_bins_are_listed():
    bins = slices.percentile_bins(np.array([1.0, 1, 1, 1, 5, 6]), num_bins=3)
    assert bins.tolist() == [0, 0, 0, 0, 2, 2]
    result = slices.measure(
        np.arange(6.0),
        np.tile([0, 1], 3),
        part=bins,
        confidence=0.9,
        expected=range(3),
        min_per_side=1,
    )
    assert [s.reason for s in result.parts] == [None, "empty", None]


def test_refuses_in_one_line():
    measure = oracles.unhooked(slices.measure)
    scores, is_member = np.arange(3.0), np.array([0, 1, 1])
    for part, more, message in (
        (np.arange(3), {"max_parts": 0}, "Expected max_parts >= 1"),
        (np.arange(3), {"min_per_side": 0}, "Expected min_per_side >= 1"),
        (np.arange(2), {}, "Expected equal lengths"),
        (np.array([np.nan, 1, 1]), {}, "Expected part without NaN, got 1 NaN"),
        (np.arange(3), {"expected": [0, 1]}, "Expected only the expected parts, got 2"),
        (np.arange(3), {"confidence": 1.0}, "Expected 0 < confidence < 1"),
    ):
        with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
            measure(scores, is_member, part=part, **{"confidence": 0.9, **more})
    with pytest.raises(ValueError, match="Expected scores without NaN"):
        measure(scores * np.nan, is_member, part=np.arange(3), confidence=0.9)
    with pytest.raises(ValueError, match="Expected num_bins >= 1"):
        slices.percentile_bins(scores, num_bins=0)
    with pytest.raises(ValueError, match="Expected values without NaN, got 3 NaN"):
        slices.percentile_bins(scores * np.nan, num_bins=2)
