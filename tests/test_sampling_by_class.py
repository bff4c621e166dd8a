"""Samplers of classes: whole classes enter, each with its probability, and none is cut."""

import math

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxpriv import sampling
from tests import oracles

LABELS = np.array([4, 0, 2, 2, 4, 2, 0, 4, 4])  # classes 1 and 3 are empty


def by_class(labels=LABELS, *, q=0.4, num_classes=5, rows=None):
    return sampling.by_class(labels, num_classes=num_classes, sampling_prob=q, rows=rows)


def entered(sampler, keys):
    """[draws, classes]: whether each class enters; checks that its records are all drawn."""
    indices, mask = map(np.asarray, jax.jit(jax.vmap(sampler.sample))(keys))
    of_class = [set(np.flatnonzero(label == LABELS)) for label in range(5)]
    table = np.zeros((len(keys), 5), bool)
    for draw in range(len(keys)):
        for row in range(5):
            drawn = indices[draw, row][mask[draw, row]].tolist()
            if drawn:
                label = LABELS[drawn[0]]
                assert sorted(drawn) == sorted(of_class[label])
                assert not table[draw, label]
                table[draw, label] = True
    assert not indices[~mask].any()
    return table


def test_each_class_enters_as_a_whole_with_its_probability(keys):
    draws, q = 600, 0.4
    table = entered(by_class(q=q), keys(draws))
    assert not table[:, [1, 3]].any()
    counts = table[:, [0, 2, 4]].sum(axis=0)
    for count in counts:
        assert stats.binomtest(int(count), draws, q).pvalue > 1e-4
        for wrong in (2 / 3 * q, 3 / 2 * q):
            assert stats.binomtest(int(count), draws, wrong).pvalue < 1e-8
    correlation = np.corrcoef(table[:, [0, 2, 4]].T)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 4.5 / math.sqrt(draws)


def test_classes_that_enter_come_first_and_none_is_cut(keys):
    sampler = by_class(np.arange(40) % 20, q=0.9, num_classes=20)
    _, mask = oracles.quick_jit(jax.vmap(sampler.sample))(keys(50))
    enters = np.asarray(mask.any(axis=2))
    assert (np.sort(enters, axis=1)[:, ::-1] == enters).all()
    assert enters.sum(axis=1).max() == 20  # above the mean by more than any capacity would allow
    assert mask.shape == (50, sampler.capacity, 2)
    empty = by_class(q=1e-9)
    assert not oracles.quick_jit(jax.vmap(empty.sample))(keys(20))[1].any()
    assert by_class(q=1.0).sample(keys(1)[0])[1].sum() == len(LABELS)


def test_the_divisor_counts_classes_whatever_their_records():
    sampler = by_class(q=0.4)
    assert sampler.expected_batch_size == pytest.approx(0.4 * 5)
    assert (sampler.num_examples, sampler.num_units) == (9, 5)
    assert by_class(np.zeros(9, int)).expected_batch_size == sampler.expected_batch_size


@given(st.lists(st.integers(0, 6), min_size=12, max_size=12), st.sampled_from([None, 12]))
def test_the_table_lists_the_records_of_each_class(labels, rows):
    labels = np.array(labels)
    largest = np.bincount(labels).max()
    sampler = by_class(labels, num_classes=7, rows=rows)
    assert sampler.table.shape == (7, rows or largest)
    for label in range(7):
        listed = np.asarray(sampler.table[label][: sampler.sizes[label]])
        np.testing.assert_array_equal(listed, np.flatnonzero(labels == label))
        assert not sampler.table[label][sampler.sizes[label] :].any()


def test_transforms(keys):
    sampler, some = by_class(), keys(2)
    batched = oracles.quick_jit(jax.vmap(sampler.sample))(some)
    for i, key in enumerate(some):
        for a, b, c in zip(sampler.sample(key), jax.jit(sampler.sample)(key), batched, strict=True):
            assert a.shape == (5, 4)
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c[i])
    oracles.assert_lowers(sampler.sample, some[0])

    def traced(labels):
        return by_class(labels, rows=4).sample(some[0])

    for a, b in zip(jax.jit(traced)(LABELS), sampler.sample(some[0]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("outside", [-1, -5, 5])
def test_a_record_of_a_traced_label_outside_the_range_is_in_no_class(outside):
    """Counted for class 0, it would add record 0, of class 4, to another class."""
    labels = np.where(np.arange(9) == 1, outside, LABELS)

    @jax.jit
    def table_and_sizes(labels):
        sampler = by_class(labels, q=1.0, rows=4)
        return sampler.table, sampler.sizes

    table, sizes = table_and_sizes(labels)
    assert sizes.tolist() == [1, 0, 3, 0, 4]
    assert table.tolist() == [[6, 0, 0, 0], [0] * 4, [2, 3, 5, 0], [0] * 4, [0, 4, 7, 8]]


def test_traced_subclasses_of_a_narrow_type_remain_apart():
    """In int8, subclass 49 of class 6 would be 349 - 256 = 93, a subclass of class 1."""

    def sizes(labels, subclasses):
        return sampling.by_subclass(
            labels, subclasses, num_classes=10, num_subclasses=50, sampling_prob=1.0, rows=1
        ).sizes

    labels = np.arange(10, dtype=np.int8), np.full(10, 49, np.int8)
    expected = np.arange(49, 500, 50).tolist()
    assert np.flatnonzero(jax.jit(sizes)(*labels)).tolist() == expected


def test_the_event_is_that_of_classes():
    event = by_class().event(noise_multiplier=1.5, steps=7)
    step = dp.PoissonSampledDpEvent(0.4, dp.GaussianDpEvent(1.5))
    assert event == dp.SelfComposedDpEvent(step, 7)
    full = by_class(q=1.0).event(noise_multiplier=1.5, steps=7)
    assert full == dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.5), 7)


def test_subclasses_are_sampled_like_classes(keys):
    subclasses = np.array([0, 1, 2, 2, 0, 0, 1, 1, 0])
    sampler = sampling.by_subclass(
        LABELS, subclasses, num_classes=5, num_subclasses=3, sampling_prob=0.2
    )
    plain = by_class(3 * LABELS + subclasses, q=0.2, num_classes=15)
    assert sampler.expected_batch_size == pytest.approx(3.0)
    for a, b in zip(sampler.sample(keys(1)[0]), plain.sample(keys(1)[0]), strict=True):
        np.testing.assert_array_equal(a, b)


def by_subclass(subclasses, **changes):
    sizes = {"num_classes": 5, "num_subclasses": 2} | changes
    return sampling.by_subclass(LABELS, subclasses, sampling_prob=0.1, **sizes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: by_class(num_classes=4), r"labels in 0\.\.3, got 4"),
        (lambda: by_class(num_classes=0), "num_classes >= 1"),
        (lambda: by_class(q=0.0), "0 < sampling_prob <= 1"),
        (lambda: by_class(rows=3), "rows >= 4, the number of records of the largest class, got 3"),
        (lambda: by_class(LABELS[:0]), "label of each record, got none"),
        (lambda: jax.eval_shape(lambda y: by_class(y).table, jnp.asarray(LABELS)), "Expected rows"),
        (lambda: by_subclass(np.full(9, 2)), r"subclasses in 0\.\.1, got 2"),
        (lambda: by_subclass(np.zeros(9, int), num_subclasses=0), "num_subclasses >= 1"),
        (
            lambda: jax.eval_shape(
                lambda y: (
                    sampling.by_subclass(
                        y, np.full(9, 2), num_classes=5, num_subclasses=2, sampling_prob=0.1, rows=9
                    ).table
                ),
                jnp.asarray(LABELS),
            ),
            r"subclasses in 0\.\.1, got 2",
        ),
        (
            lambda: oracles.unhooked(sampling.by_subclass)(
                LABELS, np.zeros(8, int), num_classes=5, num_subclasses=2, sampling_prob=0.1
            ),
            "equal lengths",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)
