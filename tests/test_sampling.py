import itertools
import math
import warnings

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import sampling
from tests import oracles

SURE, NEVER = 1e-4, 1e-8


def draw(sampler, keys):
    indices, mask = jax.jit(jax.vmap(sampler.sample))(keys)
    return np.asarray(indices), np.asarray(mask)


def included(sampler, keys):
    """Returns which records are in each batch: one row per draw, one column per record."""
    indices, mask = draw(sampler, keys)
    table = np.zeros((len(keys), sampler.num_examples), bool)
    rows = np.repeat(np.arange(len(keys))[:, None], indices.shape[1], axis=1)
    table[rows[mask], indices[mask]] = True
    assert table.sum() == mask.sum(), "an index twice"
    return table


def cut(n, *, sampling_prob, capacity):
    with pytest.warns(UserWarning, match=f"overflows capacity={capacity}"):
        return sampling.poisson(n, sampling_prob=sampling_prob, capacity=capacity)


@pytest.mark.parametrize(("n", "q"), [(200, 0.1), (30, 0.7), (3000, 0.002)])
def test_records_enter_with_the_stated_probability(keys, n, q):
    table = included(sampling.poisson(n, sampling_prob=q), keys(1500))
    hits, trials = int(table.sum()), table.size

    def pvalue(prob):
        return stats.binomtest(hits, trials, prob).pvalue

    assert pvalue(q) > SURE
    assert pvalue(2 * q / 3) < NEVER
    assert pvalue(min(3 * q / 2, 1 - 1e-9)) < NEVER
    # Each record does, not only the mean over records.
    spread = ((table.sum(0) - 1500 * q) ** 2).sum() / (1500 * q * (1 - q))
    assert SURE < stats.chi2.cdf(spread, n) < 1 - SURE


def test_records_are_independent_of_each_other(keys):
    n, q, draws = 40, 0.3, 4000
    table = included(sampling.poisson(n, sampling_prob=q), keys(draws))
    sizes = np.bincount(table.sum(1), minlength=n + 1)

    def pvalue(expected):
        frequent = expected * draws > 5
        observed = np.append(sizes[frequent], sizes[~frequent].sum())
        return stats.chisquare(
            observed, draws * np.append(expected[frequent], 1 - expected[frequent].sum())
        ).pvalue

    assert pvalue(stats.binom.pmf(np.arange(n + 1), n, q)) > SURE
    # Records that enter in pairs would double the variance of the size.
    assert pvalue(stats.norm.pdf(np.arange(n + 1), n * q, math.sqrt(2 * n * q * (1 - q)))) < NEVER
    agree = np.array(
        [(table[:, i] & table[:, j]).sum() for i, j in itertools.combinations(range(n), 2)]
    )
    z = (agree - draws * q**2) / math.sqrt(draws * q**2 * (1 - q**2))
    assert np.abs(z).max() < stats.norm.isf(SURE / (2 * len(z)))


def test_steps_are_independent_of_each_other(keys):
    table = included(sampling.poisson(300, sampling_prob=0.2), keys(600))
    contingency = np.zeros((2, 2))
    for before, after in itertools.product((0, 1), (0, 1)):
        contingency[before, after] = ((table[:-1] == before) & (table[1:] == after)).sum()
    assert stats.chi2_contingency(contingency).pvalue > SURE


def test_a_cut_batch_is_a_uniform_subset_of_the_records_that_entered(keys):
    n, q, capacity = 4, 0.7, 2
    sampler, draws = cut(n, sampling_prob=q, capacity=capacity), keys(12_000)
    table = included(sampler, draws)
    bits = np.asarray(jax.vmap(lambda key: jax.random.bits(key, (n,), jnp.uint32))(draws))
    entered = bits < math.floor(q * 2**32)
    assert not (table & ~entered).any()
    assert (table.sum(1) == np.minimum(entered.sum(1), capacity)).all()
    for members in [s for k in (3, 4) for s in itertools.combinations(range(n), k)]:
        rows = (entered == np.isin(np.arange(n), members)).all(1)
        pairs = [tuple(np.flatnonzero(row)) for row in table[rows]]
        counts = [pairs.count(pair) for pair in itertools.combinations(members, capacity)]
        assert sum(counts) == rows.sum() > 500
        assert stats.chisquare(counts).pvalue > SURE
        first = np.array([sum(counts) - 2 * len(counts), *[2] * (len(counts) - 1)])
        assert stats.chisquare(counts, first * sum(counts) / first.sum()).pvalue < NEVER


def test_a_cut_batch_favours_no_part_of_a_large_data_set(keys):
    sampler = cut(1000, sampling_prob=0.1, capacity=50)
    indices, mask = draw(sampler, keys(400))
    assert mask.mean() > 0.999
    assert stats.chisquare(np.bincount(indices[mask] // 100, minlength=10)).pvalue > SURE


def test_rows_beyond_the_batch_are_padding(keys):
    sampler = sampling.poisson(500, sampling_prob=0.02)
    indices, mask = draw(sampler, keys(300))
    assert indices.shape == mask.shape == (300, sampler.capacity)
    assert not indices[~mask].any()
    assert ((indices >= 0) & (indices < 500)).all()
    assert (np.sort(mask, axis=1)[:, ::-1] == mask).all()
    empty = sampling.poisson(50, sampling_prob=1e-9)
    assert not draw(empty, keys(20))[1].any()


def test_the_default_capacity_is_six_deviations_and_at_most_n():
    assert sampling.poisson(10**6, sampling_prob=0.1).capacity == 100_000 + 6 * 300
    assert sampling.poisson(10, sampling_prob=0.5).capacity == 10
    assert sampling.poisson(10, sampling_prob=0.5, capacity=99).capacity == 10
    assert sampling.poisson(1000, sampling_prob=0.1).expected_batch_size == 100


@pytest.mark.parametrize("n", [1, 7, 100, 20_000, 10**7])
@pytest.mark.parametrize("q", [1e-6, 1e-3, 0.02, 0.5, 0.99, 1.0])
def test_the_default_capacity_hardly_ever_overflows(n, q):
    sampler = sampling.poisson(n, sampling_prob=q)
    assert stats.binom.sf(sampler.capacity, n, q) <= 1e-7


@pytest.mark.parametrize(("n", "q"), [(20_000, 0.02), (300, 0.3), (10**6, 1e-5)])
def test_overflow_warns_exactly_when_it_is_likely_enough_to_matter(n, q):
    warned = []
    for capacity in range(1, math.ceil(n * q + 9 * math.sqrt(n * q) + 20)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sampling.poisson(n, sampling_prob=q, capacity=capacity)
        warned.append(bool(caught))
        chance = stats.binom.sf(capacity, n, q)
        assert chance <= 1e-7 if not caught else chance > 1e-9
    assert warned == sorted(warned, reverse=True)
    assert warned[0]
    assert not warned[-1]


@pytest.mark.parametrize(
    "sampler",
    [
        sampling.poisson(300, sampling_prob=0.1),
        sampling.full_batch(12),
        sampling.fixed_batch(50, batch_size=7),
    ],
    ids=lambda s: f"{type(s).__name__}-{s.num_examples}",
)
def test_transforms(keys, sampler):
    some = keys(2)
    for got in (draw(sampler, some), jax.jit(jax.vmap(sampler.sample))(some)):
        for i, key in enumerate(some):
            eager = sampler.sample(key)
            jitted = jax.jit(sampler.sample)(key)
            for a, b, c in zip(eager, jitted, got, strict=True):
                assert a.shape == (sampler.capacity,)
                np.testing.assert_array_equal(a, b)
                np.testing.assert_array_equal(a, c[i])
    oracles.assert_lowers(sampler.sample, some[0])


def test_fixed_batches_are_distinct_and_uniform(keys):
    sampler = sampling.fixed_batch(20, batch_size=5)
    table = included(sampler, keys(2000))
    assert (table.sum(1) == 5).all()
    assert sampler.expected_batch_size == 5
    assert stats.chisquare(table.sum(0)).pvalue > SURE


def test_events_name_what_was_drawn():
    cut_event = sampling.poisson(1000, sampling_prob=0.1).event(noise_multiplier=1.5, steps=7)
    step = dp.dp_event.TruncatedSubsampledGaussianDpEvent(
        1000, 0.1, math.ceil(100 + 6 * math.sqrt(90)), 1.5
    )
    assert cut_event == dp.SelfComposedDpEvent(step, 7)
    uncut = sampling.poisson(10, sampling_prob=0.5).event(noise_multiplier=1.5, steps=7)
    step = dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.5))
    assert uncut == dp.SelfComposedDpEvent(step, 7)
    full = sampling.full_batch(10).event(noise_multiplier=1.5, steps=7)
    assert full == dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.5), 7)
    indices, mask = sampling.full_batch(10).sample(jax.random.key(0))
    np.testing.assert_array_equal(indices, np.arange(10))
    assert mask.all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sampling.poisson(0, sampling_prob=0.1), "Expected n >= 1"),
        (lambda: sampling.poisson(10, sampling_prob=0.0), "Expected 0 < sampling_prob <= 1"),
        (lambda: sampling.poisson(10, sampling_prob=1.1), "Expected 0 < sampling_prob <= 1"),
        (lambda: sampling.poisson(10, sampling_prob=math.nan), "Expected 0 < sampling_prob <= 1"),
        (lambda: sampling.poisson(10, sampling_prob=0.1, capacity=0), "Expected capacity >= 1"),
        (
            lambda: sampling.poisson(10, sampling_prob=1.0, capacity=9),
            "Expected capacity >= n at sampling_prob=1",
        ),
        (lambda: sampling.fixed_batch(10, batch_size=11), "Expected batch_size <= n"),
        (lambda: sampling.fixed_batch(10, batch_size=0), "Expected batch_size >= 1"),
        (
            lambda: sampling.fixed_batch(10, batch_size=2).event(noise_multiplier=1.0, steps=1),
            "use sampling.poisson",
        ),
        (
            lambda: oracles.unhooked(sampling.poisson)(1.5, sampling_prob=0.1),
            "Expected a whole number for n",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)
