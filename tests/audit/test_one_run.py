import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import optimize, stats

from jaxpriv.accounting import gaussian
from jaxpriv.audit import one_run

CONFIDENCE = 0.95


def canaries(rng, mu, size):
    """Scores of canaries with independent Gaussian noise: mu-Gaussian differential privacy."""
    is_member = rng.random(size) < 0.5
    return rng.normal(mu * is_member), is_member


def epsilon(correct, guesses, total=None, *, delta=0.0, confidence=CONFIDENCE):
    result = one_run.Guesses(correct, guesses, total or guesses)
    return one_run.epsilon_of_guesses(result, delta=delta, confidence=confidence)


def mu(correct, guesses, total=None, *, confidence=CONFIDENCE):
    return one_run.mu_of_guesses(
        one_run.Guesses(correct, guesses, total or guesses), confidence=confidence
    )


@pytest.mark.parametrize(("guesses", "ceiling"), [(100, 3.49297), (250, 4.41827), (1000, 5.80907)])
def test_ceilings_at_perfect_guesses(guesses, ceiling):
    assert epsilon(guesses, guesses) == pytest.approx(ceiling, abs=5e-6)
    assert epsilon(guesses, guesses, delta=1e-5) < ceiling
    assert epsilon(guesses, guesses, 2 * guesses, delta=1e-5) < epsilon(
        guesses, guesses, delta=1e-5
    )


@given(st.integers(1, 200), st.data())
def test_at_delta_0_the_bound_is_clopper_pearsons_in_log_odds(guesses, data):
    correct = data.draw(st.integers(0, guesses))
    confidence = data.draw(st.floats(0.5, 0.999))
    share = stats.beta.ppf(1 - confidence, correct, guesses - correct + 1) if correct else 0.0
    expected = math.log(share / (1 - share)) if share > 0.5 else 0.0
    result = epsilon(correct, guesses, confidence=confidence)
    assert result == pytest.approx(expected, rel=1e-7, abs=1e-7)


def slow_p_value(correct, guesses, total, epsilon, delta):
    """Theorem 5.2, term by term."""
    q = 1 / (1 + math.exp(-epsilon))
    pmf = [stats.binom.pmf(i, guesses, q) for i in range(guesses + 1)]
    slope = max((sum(pmf[correct - i : correct]) / i for i in range(1, correct + 1)), default=0.0)
    return sum(pmf[correct:]) + 2 * total * delta * slope


@pytest.mark.parametrize(
    ("correct", "guesses", "total", "delta"),
    [(60, 64, 1000, 1e-5), (190, 200, 200, 1e-4), (80, 100, 400, 1e-3), (12, 12, 50, 1e-6)],
)
def test_with_delta_the_p_value_of_the_bound_is_the_error(correct, guesses, total, delta):
    result = epsilon(correct, guesses, total, delta=delta)
    for epsilon_, p in ((result - 1e-6, 0.05), (result + 1e-6, 0.05)):
        assert slow_p_value(correct, guesses, total, epsilon_, delta) == pytest.approx(p, rel=1e-4)
    assert slow_p_value(correct, guesses, total, result, delta) <= 0.05 * (1 + 1e-9)


def slow_tail(correct, guesses, total, mu):
    """The largest P[t >= correct] that coin flips allow, by linear programmes.

    The concave blow-up Phi(Phi^-1(h) + mu) is replaced by its tangents, which lie above it: the
    programme is a relaxation, and gets as tight as the tangents are dense.
    """
    t = np.arange(guesses + 1)
    at = stats.norm.cdf(np.linspace(-7, 3, 150))
    a = stats.norm.ppf(at)
    slopes = np.exp(-mu * a - mu**2 / 2)
    values = stats.norm.cdf(a + mu)
    rows, limits = [], []
    for j in range(guesses):
        right, missed = t * (t > j) / total, (guesses - t) * (t >= j) / total
        for h, slope, value in zip(at, slopes, values, strict=True):
            rows.append(right - slope * missed)
            limits.append(value - slope * h)
    result = optimize.linprog(
        -(t >= correct).astype(float),
        A_ub=np.array(rows),
        b_ub=limits,
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    return -result.fun


@pytest.mark.parametrize(
    ("correct", "guesses", "total"),
    [(10, 10, 10), (18, 20, 20), (14, 15, 60), (10, 12, 12), (9, 12, 12)],
)
def test_the_mu_bound_is_where_no_distribution_of_guesses_is_left(correct, guesses, total):
    result = mu(correct, guesses, total)
    assert slow_tail(correct, guesses, total, result + 0.02) >= 0.05
    if result > 0:
        assert slow_tail(correct, guesses, total, result - 0.02) <= 0.05 * 1.03


@given(st.integers(2, 60), st.data())
def test_bounds_grow_with_right_guesses_and_fall_with_confidence(guesses, data):
    correct = data.draw(st.integers(0, guesses - 1))
    total = guesses + data.draw(st.integers(0, 50))
    for bound in (epsilon, mu):
        result = bound(correct, guesses, total)
        assert 0 <= result <= bound(correct + 1, guesses, total) < math.inf
        assert bound(correct, guesses, total, confidence=0.99) <= result
    assert epsilon(correct, guesses, total, delta=1e-3) <= epsilon(correct, guesses, total)


def test_guesses_are_the_highest_in_and_the_lowest_out():
    scores = np.array([9.0, 7.0, 5.0, 3.0, 1.0, -np.inf])
    is_member = np.array([1, 0, 1, 0, 1, 0])
    for (guess_in, guess_out), correct in {
        (1, 0): 1, (2, 0): 1, (3, 0): 2, (0, 1): 1, (0, 2): 1, (3, 3): 4, (1, 1): 2,
    }.items():  # fmt: skip
        result = one_run.guess(scores, is_member, guess_in=guess_in, guess_out=guess_out)
        assert result == (correct, guess_in + guess_out, 6)


@given(
    npst.arrays(np.int64, st.integers(2, 30), elements=st.integers(0, 3)),
    st.data(),
)
def test_ties_count_as_wrongly_as_any_order_of_rows_could_break_them(scores, data):
    is_member = np.arange(len(scores)) % 2 == 0
    size = data.draw(st.integers(1, len(scores) // 2))
    result = one_run.guess(scores, is_member, guess_in=size, guess_out=size)
    rng, worst = np.random.default_rng(0), len(scores)
    for _ in range(40):
        order = np.lexsort([rng.random(len(scores)), scores])
        ranked = is_member[order]
        worst = min(worst, ranked[-size:].sum() + (~ranked[:size]).sum())
    assert result.correct <= worst
    order = rng.permutation(len(scores))
    assert one_run.guess(scores[order], is_member[order], guess_in=size, guess_out=size) == result


def test_one_side_with_ties_is_exactly_the_worst_order():
    scores, is_member = np.array([2, 1, 1, 1, 1, 0]), np.array([1, 1, 1, 0, 0, 0])
    for size, correct in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 3)):
        assert one_run.guess(scores, is_member, guess_in=size, guess_out=0).correct == correct


def test_nothing_is_proved_by_constant_or_reversed_scores_even_if_rows_are_sorted():
    is_member = np.arange(400) < 200
    for scores in (np.zeros(400), np.full(400, np.inf), -1.0 * is_member):
        assert one_run.epsilon_of_scores(scores, is_member, delta=0.0, confidence=CONFIDENCE) == 0
        assert one_run.mu_of_scores(scores, is_member, confidence=CONFIDENCE) == 0


def shares_above(bound, truth, *, mu, draws, size, seed):
    rng = np.random.default_rng(seed)
    result = [bound(*canaries(rng, mu, size)) for _ in range(draws)]
    return np.mean(np.array(result) > truth), np.mean(result)


BOUNDS = {
    "epsilon": (
        lambda s, m: one_run.epsilon_of_scores(s, m, delta=1e-5, confidence=CONFIDENCE),
        gaussian.epsilon(1e-5, mu=1.0),
    ),
    "mu": (lambda s, m: one_run.mu_of_scores(s, m, confidence=CONFIDENCE), 1.0),
}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize(
    ("draws", "size"), [(200, 100), pytest.param(1000, 400, marks=pytest.mark.slow)]
)
def test_the_bound_holds_at_its_confidence(name, draws, size):
    bound, truth = BOUNDS[name]
    # Failures of probability 5 % exceed this share with probability below 1e-3.
    limit = stats.binom.isf(1e-3, draws, 0.05) / draws
    null, _ = shares_above(bound, 0.0, mu=0.0, draws=draws, size=size, seed=0)
    assert null <= limit
    above, mean = shares_above(bound, truth, mu=1.0, draws=draws, size=size, seed=1)
    assert above <= limit
    assert mean > 0.1


def randomised_response(rng, epsilon, size, *, leak=0.0):
    """Randomised response with odds e^epsilon; with probability `leak` all bits are true."""
    is_member = rng.random(size) < 0.5
    truly = rng.random(size) < 1 / (1 + math.exp(-epsilon))
    answers = is_member if rng.random() < leak else np.where(truly, is_member, ~is_member)
    return answers + 1e-3 * rng.random(size), is_member


@pytest.mark.parametrize("leak", [0.0, 0.03])
def test_the_guess_bound_covers_the_mechanism_that_attains_it(leak):
    rng, draws, size = np.random.default_rng(3), 400, 200

    def above(delta):
        result = []
        for _ in range(draws):
            scores, is_member = randomised_response(rng, 1.0, size, leak=leak)
            right = int(((scores > 0.5) == is_member).sum())
            result.append(epsilon(right, size, delta=delta))
        return np.sum(np.array(result) > 1.0)

    assert above(leak) <= stats.binom.isf(1e-3, draws, 0.05)
    # A bound that is too large is detected, as the mechanism is tight at delta 0.
    if leak == 0:
        result = [
            epsilon(
                int((s > 0.5).astype(int)[m].sum() + (s <= 0.5)[~m].sum()), size, confidence=0.5
            )
            for s, m in (randomised_response(rng, 1.0, size) for _ in range(draws))
        ]
        assert np.sum(np.array(result) > 1.0) > stats.binom.isf(1e-3, draws, 0.05)


@given(st.integers(0, 2**32 - 1), st.integers(2, 120), st.booleans())
def test_the_search_tries_these_plans_and_pays_for_all(seed, size, rounded):
    scores, is_member = canaries(np.random.default_rng(seed), 2.0, size)
    scores, is_member[:2] = np.round(scores) if rounded else scores, [True, False]
    parts = {1.0: 0.05, 0.5: 0.25, 0.25: 0.6, 0.125: 0.1}
    assert sum(parts.values()) == pytest.approx(1, abs=1e-12)
    slow_epsilon, slow_mu = [0.0], [0.0]
    for share, part in parts.items():
        side = max(1, math.floor(size * share / 2))
        result = one_run.guess(scores, is_member, guess_in=side, guess_out=side)
        slow_epsilon.append(epsilon(*result, delta=1e-5, confidence=1 - 0.05 * part))
        slow_mu.append(mu(*result, confidence=1 - 0.05 * part))
    assert BOUNDS["epsilon"][0](scores, is_member) == pytest.approx(max(slow_epsilon), rel=1e-6)
    assert BOUNDS["mu"][0](scores, is_member) == pytest.approx(max(slow_mu), rel=1e-3)


def test_guesses_chosen_after_a_look_at_the_coins_would_be_caught():
    rng, draws = np.random.default_rng(4), 100
    above = 0
    for _ in range(draws):
        scores, is_member = canaries(rng, 0.0, 100)
        result = [
            one_run.guess(scores, is_member, guess_in=side, guess_out=side)
            for side in range(1, 51, 2)
        ]
        above += max(epsilon(*g) for g in result) > 0
    assert above > stats.binom.isf(1e-3, draws, 0.05)


def test_power_is_near_that_of_the_best_fixed_number_of_guesses():
    rng = np.random.default_rng(6)
    draws = [canaries(rng, 2.0, 1000) for _ in range(15)]

    def fixed(bound):
        return max(
            np.mean([bound(one_run.guess(*d, guess_in=side, guess_out=side)) for d in draws])
            for side in (30, 60, 90, 120, 200, 500 - 60)
        )

    best = fixed(lambda g: epsilon(*g, delta=1e-5))
    assert np.mean([BOUNDS["epsilon"][0](*d) for d in draws]) > 0.8 * best
    best = fixed(lambda g: mu(*g))
    assert np.mean([BOUNDS["mu"][0](*d) for d in draws]) > 0.75 * best


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon(1, 2, delta=1.0), "Expected 0 <= delta < 1, got delta=1.0."),
        (lambda: epsilon(1, 2, confidence=0.0), "Expected 0 < confidence < 1"),
        (lambda: epsilon(3, 2), "Expected 0 <= correct <= guesses <= canaries"),
        (lambda: mu(1, 4, 3), "Expected 0 <= correct <= guesses <= canaries"),
        (lambda: mu(0, 0, 3), "Expected 0 <= correct <= guesses <= canaries"),
        (
            lambda: one_run.guess(np.arange(4), np.arange(4) % 2, guess_in=3, guess_out=2),
            "Expected 1 to 4 guesses, got guess_in=3, guess_out=2.",
        ),
        (
            lambda: one_run.mu_of_scores(np.ones(9), np.ones(9), confidence=CONFIDENCE),
            "Expected members and non-members, got 9 and 0",
        ),
        (
            lambda: one_run.mu_of_scores(
                np.arange(100.0), np.arange(100) < 80, confidence=CONFIDENCE
            ),
            "Expected fair coins, got 80 members of 100 canaries; without coins",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)
