import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from jaxpriv.accounting import gaussian
from jaxpriv.audit import independent_runs as runs
from jaxpriv.metrics import intervals

CONFIDENCE = 0.95
TRUE_EPSILON = gaussian.epsilon(1e-5, mu=1.0)


def draw_scores(rng, mu, members, nonmembers):
    """The most powerful scores: means differ by mu, and the Gaussian trade-off is exact."""
    scores = np.concatenate([rng.normal(mu, 1, members), rng.normal(0, 1, nonmembers)])
    return scores, np.arange(members + nonmembers) < members


def epsilon(tp, members, fp, nonmembers, *, delta=1e-5, confidence=CONFIDENCE):
    counts = runs.Counts(tp, members, fp, nonmembers)
    return runs.epsilon_of_counts(counts, delta=delta, confidence=confidence)


@pytest.mark.parametrize(
    ("size", "ceiling", "mu"),
    [(100, 3.28135, 3.592769), (250, 4.20875, 4.359005), (1000, 5.60059, 5.359823)],
)
def test_ceilings_at_perfect_separation(size, ceiling, mu):
    assert epsilon(size, size, 0, size, delta=0.0) == pytest.approx(ceiling, abs=5e-6)
    perfect = runs.Counts(size, size, 0, size)
    assert runs.mu_of_counts(perfect, confidence=CONFIDENCE) == pytest.approx(mu, abs=1e-6)


def test_published_confusion():
    assert epsilon(450, 500, 50, 500) == pytest.approx(1.9035219, abs=1e-7)
    mu = runs.mu_of_counts(runs.Counts(450, 500, 50, 500), confidence=CONFIDENCE)
    assert mu == pytest.approx(2.255535, abs=1e-6)
    assert gaussian.epsilon(1e-5, mu=mu) == pytest.approx(11.605, abs=1e-3)


@given(st.integers(1, 300), st.integers(1, 300), st.data())
def test_bounds_are_the_formulas(members, nonmembers, data):
    tp, fp = data.draw(st.integers(0, members)), data.draw(st.integers(0, nonmembers))
    delta, confidence = data.draw(st.floats(0, 0.1)), data.draw(st.floats(0.5, 0.999))
    error = (1 - confidence) / 2
    tpr = stats.beta.ppf(error, tp, members - tp + 1) if tp else 0.0
    fpr = stats.beta.ppf(1 - error, fp + 1, nonmembers - fp) if fp < nonmembers else 1.0
    slow = [0.0]
    if tpr > delta:
        slow.append(math.log((tpr - delta) / fpr))
    if 1 - fpr > delta:
        slow.append(math.log((1 - fpr - delta) / (1 - tpr)))
    result = epsilon(tp, members, fp, nonmembers, delta=delta, confidence=confidence)
    assert result == pytest.approx(max(slow), rel=1e-7, abs=1e-7)
    mu = runs.mu_of_counts(runs.Counts(tp, members, fp, nonmembers), confidence=confidence)
    expected = max(0.0, float(stats.norm.ppf(tpr) - stats.norm.ppf(fpr)))
    assert mu == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_counting_is_at_or_above_the_threshold():
    scores, is_member = np.array([1.0, 2.0, 2.0, 3.0, np.inf]), np.array([0, 1, 0, 1, 1])
    assert runs.count(scores, is_member, threshold=2.0) == (3, 3, 1, 2)
    assert runs.count(scores, is_member, threshold=2.5) == (2, 3, 0, 2)


def slow_best(scores, is_member, bound):
    """Counts at every threshold, in a loop."""
    members = sorted(s for s, m in zip(scores, is_member, strict=True) if m)
    nonmembers = sorted(s for s, m in zip(scores, is_member, strict=True) if not m)
    tried = []
    for errors in (0, 3, 15, 63, 255):
        if errors == 0 or errors < len(nonmembers) / 2:
            cut = nonmembers[len(nonmembers) - 1 - errors]
            tried.append((sum(s > cut for s in members), errors))
        if errors == 0 or errors < len(members) / 2:
            cut = members[errors]
            tried.append((len(members) - errors, sum(s >= cut for s in nonmembers)))
    confidence = 1 - 0.9 * (1 - CONFIDENCE) / len(tried)
    return max(
        bound(runs.Counts(tp, len(members), fp, len(nonmembers)), confidence) for tp, fp in tried
    )


def slow_best_of_values(scores, is_member, bound):
    """Bounds the rates at the distinct scores of each side that has at most 8 of them."""
    sides = {
        flag: [s for s, m in zip(scores, is_member, strict=True) if m == flag] for flag in (0, 1)
    }
    error, bounds = 0.1 * (1 - CONFIDENCE) / 4, [0.0]  # for each side: its own rate, the other's
    for source, values in ((flag, set(side)) for flag, side in sides.items()):
        if len(values) > 8:
            continue
        slack = math.sqrt(-math.log(error) / 2 / len(sides[source]))
        for cut in values:
            counts = {flag: sum(s >= cut for s in side) for flag, side in sides.items()}
            level = 1 - error / len(values)
            if source:
                tpr = max(0.0, counts[1] / len(sides[1]) - slack)
                fpr = float(
                    intervals.clopper_pearson_upper(counts[0], len(sides[0]), confidence=level)
                )
            else:
                tpr = float(
                    intervals.clopper_pearson_lower(counts[1], len(sides[1]), confidence=level)
                )
                fpr = min(1.0, counts[0] / len(sides[0]) + slack)
            bounds.append(bound(tpr, fpr))
    return max(bounds)


@given(st.integers(0, 2**32 - 1), st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_the_search_tries_these_thresholds_and_pays_for_all(seed, members, nonmembers, rounded):
    scores, is_member = draw_scores(np.random.default_rng(seed), 2.0, members, nonmembers)
    scores = np.round(scores) if rounded else scores
    result = runs.epsilon_of_scores(scores, is_member, delta=1e-3, confidence=CONFIDENCE)
    slow = slow_best(
        scores,
        is_member,
        lambda c, confidence: runs.epsilon_of_counts(c, delta=1e-3, confidence=confidence),
    )
    values = slow_best_of_values(scores, is_member, lambda *rates: runs._epsilon(*rates, 1e-3))
    assert result == pytest.approx(max(slow, values), rel=1e-9)
    mu = runs.mu_of_scores(scores, is_member, confidence=CONFIDENCE)
    slow = slow_best(
        scores, is_member, lambda c, confidence: runs.mu_of_counts(c, confidence=confidence)
    )
    assert mu == pytest.approx(
        max(slow, slow_best_of_values(scores, is_member, runs._mu)), rel=1e-9
    )


@given(
    npst.arrays(np.float64, st.integers(2, 60), elements=st.floats(allow_nan=False)),
    st.data(),
)
def test_bounds_are_finite_for_all_scores_and_orders(scores, data):
    is_member = data.draw(npst.arrays(bool, scores.shape))
    is_member[:2] = [True, False]
    order = data.draw(st.permutations(range(len(scores))))
    for bound in (
        lambda s, m: runs.epsilon_of_scores(s, m, delta=1e-5, confidence=CONFIDENCE),
        lambda s, m: runs.mu_of_scores(s, m, confidence=CONFIDENCE),
    ):
        result = bound(scores, is_member)
        assert 0 <= result < math.inf
        assert bound(scores[order], is_member[order]) == result


def test_constant_and_reversed_scores_show_no_leak():
    is_member = np.arange(400) < 200
    for scores in (np.zeros(400), np.full(400, -np.inf), -1.0 * is_member):
        assert runs.epsilon_of_scores(scores, is_member, delta=0.0, confidence=CONFIDENCE) == 0
        assert runs.mu_of_scores(scores, is_member, confidence=CONFIDENCE) == 0
    # A TPR of at most delta shows no leak.
    assert epsilon(3, 100, 0, 100, delta=0.5) == 0
    assert epsilon(0, 100, 0, 100) == 0
    assert epsilon(100, 100, 100, 100) == 0


def shares_above(bound, truth, *, mu, draws, size, seed):
    rng = np.random.default_rng(seed)
    result = [bound(*draw_scores(rng, mu, size, size)) for _ in range(draws)]
    return np.mean(np.array(result) > truth), np.mean(result)


BOUNDS = {
    "epsilon": (
        lambda s, m: runs.epsilon_of_scores(s, m, delta=1e-5, confidence=CONFIDENCE),
        TRUE_EPSILON,
    ),
    "mu": (lambda s, m: runs.mu_of_scores(s, m, confidence=CONFIDENCE), 1.0),
}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize(
    ("draws", "size"), [(200, 60), pytest.param(1000, 200, marks=pytest.mark.slow)]
)
def test_the_bound_holds_at_its_confidence(name, draws, size):
    bound, truth = BOUNDS[name]
    # Failures of probability 5 % exceed this share with probability below 1e-3.
    limit = stats.binom.isf(1e-3, draws, 0.05) / draws
    null, _ = shares_above(bound, 0.0, mu=0.0, draws=draws, size=size, seed=0)
    assert null <= limit
    above, mean = shares_above(bound, truth, mu=1.0, draws=draws, size=size, seed=1)
    assert above <= limit
    assert mean > 0.2


@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_bound_covers_randomised_response(confidence):
    rng, size, draws = np.random.default_rng(8), 150, 300
    is_member = np.arange(2 * size) < size
    result, searched = [], []
    for _ in range(draws):
        truly = rng.random(2 * size) < 1 / (1 + math.exp(-1.0))
        scores = np.where(truly, is_member, ~is_member) + 1e-3 * rng.random(2 * size)
        counts = runs.count(scores, is_member, threshold=0.5)
        result.append(runs.epsilon_of_counts(counts, delta=0.0, confidence=confidence))
        searched.append(runs.epsilon_of_scores(scores, is_member, delta=0.0, confidence=confidence))
    limit = stats.binom.isf(1e-3, draws, 1 - confidence)
    assert np.sum(np.array(result) > 1.0) <= limit
    assert np.sum(np.array(searched) > 1.0) <= limit
    # The mechanism is the worst one for its epsilon, so the bound is nearly tight.
    assert np.mean(result) > (0.4 if confidence == 0.95 else 0.7)


def test_two_valued_scores_of_randomised_response_are_audited_without_a_threshold():
    """A threshold fixed in advance proves 0.91 on average, of the truth 1."""
    rng, is_member, draws = np.random.default_rng(3), np.arange(4000) % 2 == 0, 100
    p_truth = 1 / (1 + math.exp(-1.0))
    bounds = [
        runs.epsilon_of_scores(
            np.where(rng.random(4000) < p_truth, is_member, ~is_member).astype(float),
            is_member,
            delta=0.0,
            confidence=CONFIDENCE,
        )
        for _ in range(draws)
    ]
    assert np.sum(np.array(bounds) > 1.0) <= stats.binom.isf(1e-3, draws, 0.05)
    assert np.mean(bounds) > 0.8


def test_a_threshold_chosen_on_the_scores_for_free_would_be_caught():
    def greedy(scores, is_member):
        members = is_member[np.argsort(-scores)]
        tpr, fpr = np.cumsum(members), np.cumsum(~members)
        lower = intervals.clopper_pearson_lower(tpr, 200, confidence=0.75)
        upper = intervals.clopper_pearson_upper(fpr, 200, confidence=0.75)
        return float(np.max(stats.norm.ppf(lower) - stats.norm.ppf(upper)))

    def paid(scores, is_member):
        return runs.mu_of_scores(scores, is_member, confidence=0.5)

    limit = stats.binom.isf(1e-3, 100, 0.5) / 100
    null, _ = shares_above(greedy, 0.0, mu=0.0, draws=100, size=200, seed=0)
    assert null > limit
    null, _ = shares_above(paid, 0.0, mu=0.0, draws=100, size=200, seed=0)
    assert null <= limit


def test_power_is_near_that_of_the_best_fixed_threshold():
    rng = np.random.default_rng(5)
    draws = [draw_scores(rng, 2.0, 500, 500) for _ in range(20)]

    def fixed(bound):
        cuts = np.arange(-0.5, 3.5, 0.25)
        return max(
            np.mean([bound(runs.count(*draw, threshold=cut)) for draw in draws]) for cut in cuts
        )

    best = fixed(lambda c: runs.epsilon_of_counts(c, delta=1e-5, confidence=CONFIDENCE))
    assert np.mean([BOUNDS["epsilon"][0](*draw) for draw in draws]) > 0.9 * best
    best = fixed(lambda c: runs.mu_of_counts(c, confidence=CONFIDENCE))
    mean = np.mean([BOUNDS["mu"][0](*draw) for draw in draws])
    assert mean > 0.9 * best
    assert mean > 0.6 * 2.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon(1, 2, 1, 2, delta=1.0), "Expected 0 <= delta < 1, got delta=1.0."),
        (lambda: epsilon(1, 2, 1, 2, confidence=1.0), "Expected 0 < confidence < 1"),
        (lambda: epsilon(3, 2, 1, 2), "Expected 0 <= successes <= trials"),
        (lambda: epsilon(0, 0, 1, 2), "Expected num_members >= 1"),
        (
            lambda: runs.mu_of_scores(np.ones(3), np.ones(3), confidence=CONFIDENCE),
            "Expected members and non-members, got 3 and 0",
        ),
        (
            lambda: runs.mu_of_scores(np.array([0, np.nan]), np.arange(2), confidence=CONFIDENCE),
            "Expected scores without NaN",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)
