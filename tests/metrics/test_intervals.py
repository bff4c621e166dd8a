"""Intervals solve their equations, cover at their confidence, and agree with SciPy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special, stats
from sklearn.metrics import roc_auc_score

from jaxpriv.metrics import intervals
from tests import oracles

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def slow_delong(scores, is_member):
    """AUC, DeLong's variance and its degrees of freedom, computed from every pair."""
    pairs = scores[is_member][:, None] - scores[~is_member][None, :]
    wins = np.where(pairs > 0, 1.0, np.where(pairs == 0, 0.5, 0.0))
    m, k = wins.shape
    first, second = wins.mean(1).var(ddof=1) / m, wins.mean(0).var(ddof=1) / k
    variance = first + second
    spread = first**2 / (m - 1) + second**2 / (k - 1)
    return wins.mean(), variance, variance**2 / spread if spread > 0 else math.inf


def auc_coverage(rng, *, members, nonmembers, shift, repetitions):
    truth = stats.norm.cdf(shift / math.sqrt(2))
    is_member = np.arange(members + nonmembers) < members
    hits = 0
    for _ in range(repetitions):
        scores = rng.normal(size=is_member.size) + shift * is_member
        _, lower, upper = intervals.delong(scores, is_member, confidence=0.95)
        hits += lower <= truth <= upper
    return hits / repetitions


@given(counts, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_clopper_pearson_solves_its_tail_equations(count, confidence):
    k, n = count
    lower, upper = intervals.clopper_pearson(k, n, confidence=confidence)
    tail = (1 - confidence) / 2
    assert 0 <= lower <= k / n <= upper <= 1
    if k > 0:
        assert stats.binom.sf(k - 1, n, lower) == pytest.approx(tail, rel=1e-6)
    if k < n:
        assert stats.binom.cdf(k, n, upper) == pytest.approx(tail, rel=1e-6)


@given(counts)
def test_clopper_pearson_is_scipys(count):
    k, n = count
    expected = stats.binomtest(k, n).proportion_ci(0.95, "exact")
    result = intervals.clopper_pearson(k, n, confidence=0.95)
    np.testing.assert_allclose(result, (expected.low, expected.high), rtol=1e-8, atol=1e-12)


def test_clopper_pearson_at_the_ends():
    assert intervals.clopper_pearson(0, 0, confidence=0.95) == (0.0, 1.0)
    lower, upper = intervals.clopper_pearson(0, 10, confidence=0.95)
    assert (lower, upper) == (0.0, pytest.approx(1 - 0.025**0.1))
    lower, upper = intervals.clopper_pearson(10, 10, confidence=0.95)
    assert (lower, upper) == (pytest.approx(0.025**0.1), 1.0)


def test_clopper_pearson_takes_arrays_and_numbers():
    k, n = np.array([[0, 3], [5, 10]]), np.array([[0, 9], [10, 10]])
    lower, upper = intervals.clopper_pearson(k, n, confidence=0.9)
    for index in np.ndindex(k.shape):
        scalars = intervals.clopper_pearson(int(k[index]), int(n[index]), confidence=0.9)
        assert all(type(bound) is float for bound in scalars)
        assert scalars == (lower[index], upper[index])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_clopper_pearson_takes_counts_of_small_types(dtype):
    largest = int(np.iinfo(dtype).max)
    expected = intervals.clopper_pearson(largest, 1000, confidence=0.95)
    assert intervals.clopper_pearson(dtype(largest), 1000, confidence=0.95) == expected
    bounds = intervals.clopper_pearson(
        np.full(1, largest, dtype), np.array([1000]), confidence=0.95
    )
    np.testing.assert_array_equal(np.ravel(bounds), expected)


def test_one_sided_bounds_spend_the_whole_error_on_their_side():
    two_sided = intervals.clopper_pearson(7, 20, confidence=0.9)
    assert intervals.clopper_pearson_lower(7, 20, confidence=0.95) == pytest.approx(two_sided[0])
    assert intervals.clopper_pearson_upper(7, 20, confidence=0.95) == pytest.approx(two_sided[1])


@pytest.mark.parametrize("p", [0.003, 0.1, 0.5])
def test_clopper_pearson_covers_for_every_probability(p):
    k = np.arange(101)
    lower, upper = intervals.clopper_pearson(k, np.full(101, 100), confidence=0.95)
    chance = stats.binom.pmf(k, 100, p)
    assert chance[p < lower].sum() <= 0.025
    assert chance[p > upper].sum() <= 0.025


@pytest.mark.parametrize("count", [(-1, 3), (4, 3), (1, -1)])
def test_clopper_pearson_refuses_impossible_counts(count):
    with pytest.raises(ValueError, match=r"^Expected 0 <= successes <= trials, got .*\.$"):
        intervals.clopper_pearson(*count, confidence=0.95)


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan, -1.0])
def test_intervals_refuse_a_confidence_outside_the_unit_interval(confidence):
    for call in (
        lambda: intervals.clopper_pearson(1, 2, confidence=confidence),
        lambda: intervals.clopper_pearson_lower(1, 2, confidence=confidence),
        lambda: intervals.clopper_pearson_upper(1, 2, confidence=confidence),
        lambda: intervals.delong(np.arange(2.0), np.array([0, 1]), confidence=confidence),
    ):
        with pytest.raises(ValueError, match="Expected 0 < confidence < 1"):
            call()


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=4, max_size=40))
def test_delong_is_the_sum_over_all_pairs(rows):
    scores = np.array([score for score, _ in rows], float)
    is_member = np.array([member for _, member in rows])
    if min(is_member.sum(), (~is_member).sum()) < 2:
        return
    auc, lower, upper = intervals.delong(scores, is_member, confidence=0.9)
    slow_auc, variance, degrees = slow_delong(scores, is_member)
    assert auc == pytest.approx(slow_auc, abs=1e-12)
    assert 0 <= lower <= auc <= upper <= 1
    if variance > 0:
        half = stats.t.ppf(0.95, degrees) * math.sqrt(variance) / (auc * (1 - auc))
        odds = math.log(auc / (1 - auc))
        np.testing.assert_allclose(
            (lower, upper), 1 / (1 + np.exp([half - odds, -half - odds])), rtol=1e-9
        )


@pytest.mark.parametrize(
    ("members", "nonmembers", "shift"),
    oracles.slow_after(1, [(50, 400, 0.0), (200, 200, 0.0), (200, 200, 2.0)]),
)
def test_delong_covers_at_its_confidence(members, nonmembers, shift):
    rng = np.random.default_rng(20261127)
    repetitions = 3000
    coverage = auc_coverage(
        rng, members=members, nonmembers=nonmembers, shift=shift, repetitions=repetitions
    )
    chance = 3 * math.sqrt(0.95 * 0.05 / repetitions)
    assert 0.94 - chance < coverage < 0.96 + chance


def test_delong_covers_for_few_members():
    """With the quantile of a normal distribution, 0.90 of the intervals would cover."""
    coverage = auc_coverage(
        np.random.default_rng(5), members=5, nonmembers=200, shift=0.0, repetitions=1500
    )
    assert coverage > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1500)


def test_the_degrees_of_freedom_are_those_of_brunner_and_munzel():
    """Their statistic is that of the AUC without the logit; SciPy has the p-value."""
    rng = np.random.default_rng(8)
    members, nonmembers = rng.normal(size=6) + 1, rng.normal(size=30)
    scores, is_member = np.concatenate([members, nonmembers]), np.arange(36) < 6
    auc, variance, degrees = slow_delong(scores, is_member)
    found = stats.brunnermunzel(nonmembers, members, alternative="less")
    assert found.pvalue == pytest.approx(
        stats.t.cdf((0.5 - auc) / math.sqrt(variance), degrees), rel=1e-9
    )


def test_delong_lies_on_the_score_scale_of_ranks():
    rng = np.random.default_rng(3)
    scores, is_member = rng.normal(size=50), rng.random(50) < 0.5
    plain = intervals.delong(scores, is_member, confidence=0.95)
    assert intervals.delong(np.exp(scores), is_member, confidence=0.95) == plain
    order = rng.permutation(50)
    assert intervals.delong(scores[order], is_member[order], confidence=0.95) == plain


@pytest.mark.parametrize(("members", "nonmembers"), [(5, 9), (9, 5), (1, 1), (1, 7)])
def test_separated_scores_have_the_exact_bound(members, nonmembers):
    is_member = np.arange(members + nonmembers) < members
    scores = is_member + np.linspace(0, 0.5, is_member.size)
    alike = 0.025 ** (1 / min(members, nonmembers))
    assert intervals.delong(scores, is_member, confidence=0.95) == (1.0, pytest.approx(alike), 1.0)
    auc, lower, upper = intervals.delong(-scores, is_member, confidence=0.95)
    assert (auc, lower, upper) == (0.0, 0.0, pytest.approx(1 - alike))


def test_equal_scores_are_no_certainty():
    is_member = np.arange(20) < 8
    auc, lower, upper = intervals.delong(np.ones(20), is_member, confidence=0.95)
    assert auc == 0.5
    assert 0.5 - lower == pytest.approx(upper - 0.5) == pytest.approx((1 - 0.025 ** (1 / 8)) / 2)


def test_separated_scores_cover_a_population_that_is_not_separated():
    # A member fails with probability 1 - A and then lies below every non-member: of all
    # populations with this AUC, the one that looks separated most often.
    truth, pairs = 0.93, 30
    _, lower, _ = intervals.delong(
        np.repeat([1.0, 0.0], pairs), np.repeat([True, False], pairs), confidence=0.95
    )
    assert truth**pairs > 0.025
    assert lower < truth


def test_a_single_member_has_a_wide_interval():
    scores, is_member = np.arange(11.0), np.arange(11) == 7
    auc, lower, upper = intervals.delong(scores, is_member, confidence=0.95)
    assert auc == 0.7
    assert lower < 0.1
    assert upper > 0.95


def test_delong_agrees_with_the_bootstrap_on_many_records():
    rng = np.random.default_rng(2)
    is_member = np.arange(1500) < 500
    scores = rng.normal(size=1500) + is_member
    auc, lower, upper = intervals.delong(scores, is_member, confidence=0.95)
    drawn = stats.bootstrap(
        (scores[is_member], scores[~is_member]),
        lambda members, nonmembers: stats.mannwhitneyu(members, nonmembers).statistic / 500_000,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=rng,
    ).confidence_interval
    assert auc == pytest.approx(roc_auc_score(is_member, scores))
    # Ends are 2.5 % quantiles of 1,000 draws: 0.09 deviations of error.
    deviation = (upper - lower) / (2 * 1.96)
    np.testing.assert_allclose(drawn, (lower, upper), atol=0.4 * deviation)
    narrow = intervals.delong(scores, is_member, confidence=0.8)
    assert abs(drawn[0] - narrow.lower) > 0.4 * deviation


def test_clusters_of_one_trial_give_clopper_and_pearson_with_one_trial_less():
    successes = np.arange(60) < 45
    lower, upper = intervals.korn_graubard(successes, np.arange(60), confidence=0.95)
    # The variance between clusters divides by 59, so that 59 of 60 trials are effective.
    x = 0.75 * 59
    assert lower == pytest.approx(stats.beta.ppf(0.025, x, 59 - x + 1))
    assert upper == pytest.approx(stats.beta.ppf(0.975, x + 1, 59 - x))


def test_the_interval_for_clusters_covers_and_that_for_trials_does_not():
    """Each cluster has a rate of its own, of mean 0.7."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(40), rng.integers(5, 40, 40))
    hits = np.zeros(2)
    for _ in range(500):
        rates = rng.beta(2.1, 0.9, 40)
        successes = rng.random(len(cluster)) < rates[cluster]
        given = [
            intervals.korn_graubard(successes, cluster, confidence=0.95),
            intervals.clopper_pearson(int(successes.sum()), len(cluster), confidence=0.95),
        ]
        hits += [low <= 0.7 <= high for low, high in given]
    # Standard error 0.01 at 0.95.
    assert hits[0] / 500 > 0.91
    assert hits[1] / 500 < 0.7


@pytest.mark.parametrize("value", [False, True])
def test_a_proportion_without_variation_is_bounded_by_the_number_of_clusters(value):
    found = intervals.korn_graubard(np.full(100, value), np.arange(100) // 10, confidence=0.95)
    expected = intervals.clopper_pearson(10 if value else 0, 10, confidence=0.95)
    np.testing.assert_allclose(found, expected)
    assert intervals.korn_graubard(np.full(9, value), np.zeros(9), confidence=0.95) == (0, 1)
    with pytest.raises(ValueError, match="Expected at least one trial"):
        intervals.korn_graubard(np.full(0, value), np.zeros(0), confidence=0.95)


@pytest.mark.parametrize("size", [49, 50, 98, 103])
def test_clusters_of_equal_shares_have_no_variation_by_rounding(size):
    """1/49 times 49 is not 1 in float64, and a variance of 1e-34 would count every trial."""
    successes, cluster = np.arange(5 * size) % size == 0, np.arange(5 * size) // size
    _, upper = intervals.korn_graubard(successes, cluster, confidence=0.95)
    assert upper == pytest.approx(special.betaincinv(5 / size + 1, 5 - 5 / size, 0.975))


def discordant(n, only_first, only_second):
    """Outcomes of n pairs with the given numbers of discordant ones."""
    pair = np.arange(n)
    return pair < only_first, (pair >= only_first) & (pair < only_first + only_second)


def lowest_coverage(n, most):
    """Lowest coverage over a grid, by all outcomes of at most `most` discordant pairs.

    More of them count as missed; `grid` has the expected numbers of discordant pairs of each kind.
    """
    counts = [(b, c) for b in range(most + 1) for c in range(most + 1 - b)]
    b, c = np.array(counts).T
    results = [intervals.paired_difference(*discordant(n, *k), confidence=0.95) for k in counts]
    lower, upper = (np.array([getattr(x, end) for x in results]) for end in ("lower", "upper"))
    arrangements = special.gammaln([n + 1])[0] - sum(
        special.gammaln(k + 1) for k in (b, c, n - b - c)
    )
    grid = np.concatenate([np.linspace(0, 4, 21), np.linspace(5, 20, 16)])
    if most == n:
        grid = np.union1d(grid, n * np.linspace(0.025, 1, 40))
    limit = n if most == n else most / 3
    lowest = 1.0  # 0.85 of Agresti and Min's interval, 0.91 of Tango's at n = 20
    for p, q in itertools.product(grid / n, grid / n):
        if (p + q) * n > limit + 1e-9:
            continue
        rest = max(0.0, 1 - p - q)
        chance = np.exp(
            arrangements + sum(special.xlogy(k, x) for k, x in ((b, p), (c, q), (n - b - c, rest)))
        )
        # The ends are rounded, and may be the difference itself.
        covers = (lower <= p - q + 1e-12) & (p - q <= upper + 1e-12)
        lowest = min(lowest, chance[covers].sum())
    return lowest


@pytest.mark.parametrize(
    ("n", "most", "lowest"),
    oracles.slow_after(
        3, [(20, 20, 0.9534), (50, 50, 0.9545), (200, 60, 0.9649), (200, 200, 0.9550)]
    ),
)
def test_paired_differences_cover_for_all_shares(n, most, lowest):
    assert lowest_coverage(n, most) == pytest.approx(lowest, abs=1e-4)
    assert lowest >= 0.95


def test_few_discordant_pairs_have_the_bounds_of_clopper_and_pearson():
    none = intervals.paired_difference(*discordant(1000, 0, 0), confidence=0.95)
    bound = 1 - 0.025 ** (1 / 1000)
    assert none == (0.0, pytest.approx(-bound), pytest.approx(bound))
    few = intervals.paired_difference(*discordant(500, 7, 0), confidence=0.9)
    assert few.upper == pytest.approx(intervals.clopper_pearson(7, 500, confidence=0.9)[1])
    assert few.lower < intervals.clopper_pearson(7, 500, confidence=0.9)[0]
    # Without concordant pairs the difference is 2 p - 1.
    ends = intervals.clopper_pearson(14, 20, confidence=0.95)
    every = intervals.paired_difference(*discordant(20, 14, 6), confidence=0.95)
    assert every[1:] == pytest.approx([2 * p - 1 for p in ends])


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), *[st.integers(0, n)] * 2)))
@example((2, 1, 0))
@example((5, 0, 1))
def test_paired_differences_are_antisymmetric_and_contain_their_value(counts):
    n, b, c = counts
    first, second = discordant(n, b, min(c, n - b))
    result = intervals.paired_difference(first, second, confidence=0.9)
    assert -1 <= result.lower <= result.value <= result.upper <= 1
    mirrored = intervals.paired_difference(second, first, confidence=0.9)
    assert mirrored == (-result.value, -result.upper, -result.lower)
    # One person for each pair: the variance between persons divides by n - 1.
    if n > 1:
        people = intervals.paired_difference(first, second, confidence=0.9, cluster=np.arange(n))
        assert people.lower <= result.lower + 1e-9
        assert people.upper >= result.upper - 1e-9


def test_many_pairs_have_the_interval_of_wald():
    n, b, c = 200_000, 30_000, 20_000
    result = intervals.paired_difference(*discordant(n, b, c), confidence=0.95)
    half = 1.959964 * math.sqrt((b + c) / n - ((b - c) / n) ** 2) / math.sqrt(n)
    assert result[1:] == pytest.approx((result.value - half, result.value + half), abs=0.02 * half)


@pytest.mark.parametrize(("p", "q"), [(0.2, 0.1), (0.04, 0.0)])
@pytest.mark.parametrize("size", [1, 5, 20])
def test_paired_differences_of_people_cover_at_their_confidence(p, q, size):
    """All records of a person have the same outcome."""
    rng = np.random.default_rng(0)
    people, repetitions = 40, 300
    person = np.repeat(np.arange(people), size)
    hits = np.zeros(2)
    for _ in range(repetitions):
        u = rng.random(people)[person]
        first, second = u < p, u > 1 - q
        for i, cluster in enumerate((person, None)):
            result = intervals.paired_difference(first, second, confidence=0.95, cluster=cluster)
            hits[i] += result.lower <= p - q <= result.upper
    chance = 3 * math.sqrt(0.95 * 0.05 / repetitions)
    assert hits[0] / repetitions > 0.95 - chance
    if size > 1:
        assert hits[1] / repetitions < 0.95 - chance


def test_a_positive_correlation_between_people_does_not_narrow_the_interval():
    """Each person has records of both kinds, so that the difference hardly varies."""
    first, second = discordant(10, 1, 1)
    first, second = (np.tile(np.concatenate([x, 0 * x]), 15) > 0 for x in (first, second))
    people = np.arange(300) // 10
    result = intervals.paired_difference(first, second, confidence=0.95, cluster=people)
    shares = [intervals.share(x, confidence=0.95, cluster=people) for x in (first, second)]
    apart = math.hypot(shares[0].value - shares[0].lower, shares[1].upper - shares[1].value)
    assert result.lower < -apart


def test_one_person_leaves_the_difference_open():
    first, second = discordant(10, 6, 1)
    result = intervals.paired_difference(first, second, confidence=0.95, cluster=np.zeros(10))
    assert result == (0.5, -1.0, 1.0)


def test_shares_are_those_of_clopper_pearson():
    successes = np.arange(12) % 3 == 0
    result = intervals.share(successes, confidence=0.9)
    assert result == (4 / 12, *intervals.clopper_pearson(4, 12, confidence=0.9))
    people = np.arange(12) // 2
    result = intervals.share(successes, confidence=0.9, cluster=people)
    assert result == (4 / 12, *intervals.korn_graubard(successes, people, confidence=0.9))
    none = np.zeros(0, bool)
    with pytest.raises(ValueError, match="at least one trial"):
        intervals.share(none, confidence=0.9)
    with pytest.raises(ValueError, match="at least one trial"):
        intervals.paired_difference(none, none, confidence=0.9)
