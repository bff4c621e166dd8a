import math
import re

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from jaxpriv import accounting, identifiability
from jaxpriv.accounting import gaussian
from tests import oracles

RELATION = "add_or_remove_one"
EPSILON = st.floats(-6, 3).map(lambda x: 10.0**x)
RHO = st.floats(0.501, 0.9999)


def subsampled(noise_multiplier, steps=30, sampling_prob=0.2):
    return accounting.poisson_event(
        noise_multiplier=noise_multiplier, sampling_prob=sampling_prob, steps=steps
    )


def full_batch(noise_multiplier):
    return subsampled(noise_multiplier, sampling_prob=1.0)


@pytest.mark.parametrize(
    ("rho", "epsilon", "hundredth", "thousandth"),
    [
        (0.52, 0.0800, 0.010276, 0.008455),
        (0.53, 0.1201, 0.015423, 0.012691),
        (0.75, 1.0986, 0.140309, 0.115648),
        (0.9, 2.1972, 0.276312, 0.228879),
        (0.99, 4.5951, 0.540310, 0.457069),
    ],
)
def test_published_values(rho, epsilon, hundredth, thousandth):
    result = identifiability.epsilon_of_rho_beta(rho)
    assert result == pytest.approx(epsilon, abs=5e-5)
    assert identifiability.rho_beta(result) == pytest.approx(rho, rel=1e-14)
    for delta, advantage in ((0.01, hundredth), (0.001, thousandth)):
        bound = identifiability.classical_rho_alpha(result, delta=delta)
        assert bound == pytest.approx(advantage, abs=1e-6)
        back = identifiability.epsilon_of_classical_rho_alpha(bound, delta=delta)
        assert back == pytest.approx(result, rel=1e-10)


def test_equation_6_of_the_paper_lacks_a_factor_2():
    right = identifiability.epsilon_of_classical_rho_alpha(0.276312, delta=0.01)
    printed = math.sqrt(2 * math.log(1.25 / 0.01)) * stats.norm.ppf((0.276312 + 1) / 2)
    assert right == pytest.approx(2.1972, abs=1e-4)
    assert printed == pytest.approx(1.0986, abs=1e-4)


def test_section_5_3_of_the_paper_lacks_the_logarithm():
    assert identifiability.epsilon_of_rho_beta(0.9) == pytest.approx(math.log(0.9 / 0.1))
    assert identifiability.epsilon_of_rho_beta(0.9) != pytest.approx(0.9 / 0.1)


def test_exact_calibration_exceeds_the_classical_advantage_and_delta():
    epsilon = math.log(9)
    mu = gaussian.mu(epsilon, delta=0.01)
    assert math.sqrt(30) / mu == pytest.approx(5.699547, abs=1e-5)
    assert mu == pytest.approx(0.960993, abs=1e-6)
    assert gaussian.advantage(mu) == pytest.approx(0.369126, abs=1e-6)
    assert gaussian.advantage(mu) > identifiability.classical_rho_alpha(epsilon, delta=0.01)
    tail = identifiability.gaussian_violation_probability(0.9, mu=mu)
    assert tail == pytest.approx(0.035466, abs=1e-6)
    assert tail > 0.01


@pytest.mark.parametrize(
    ("delta", "z", "mu", "advantage"),
    [(0.01, 8.379923, 0.653613, 0.256186), (0.001, 9.951522, 0.550391, 0.216834)],
)
def test_classic_rdp_calibration_of_the_authors(delta, z, mu, advantage):
    def epsilon(mu):
        result = optimize.minimize_scalar(
            lambda order: order * mu**2 / 2 + math.log(1 / delta) / (order - 1),
            bounds=(1.001, 500),
            method="bounded",
        )
        return result.fun - math.log(9)

    result = optimize.brentq(epsilon, 0.1, 2)
    assert result == pytest.approx(mu, abs=1e-5)
    assert math.sqrt(30) / result == pytest.approx(z, abs=1e-4)
    assert gaussian.advantage(mu) == pytest.approx(advantage, abs=1e-6)
    by_rdp = identifiability.rdp_rho_alpha(7.0 * mu**2 / 2, order=7.0)
    assert by_rdp == pytest.approx(advantage, abs=1e-6)
    tail = identifiability.gaussian_violation_probability(0.9, mu=mu)
    if delta == 0.01:
        assert tail == pytest.approx(0.001203, abs=1e-6)
    assert tail < delta


@pytest.mark.parametrize(
    ("probability", "z", "advantage"), [(0.01, 6.802652, 0.312743), (0.001, 8.505904, 0.252522)]
)
def test_noise_for_a_belief_with_30_full_batch_steps(probability, z, advantage):
    mu = identifiability.mu_for_belief(0.9, violation_probability=probability)
    assert math.sqrt(30) / mu == pytest.approx(z, abs=1e-6)
    assert gaussian.advantage(mu) == pytest.approx(advantage, abs=1e-6)


@given(RHO, st.floats(-12, -0.01).map(lambda x: 10.0**x))
def test_mu_for_belief_inverts_the_violation_probability(rho, probability):
    mu = identifiability.mu_for_belief(rho, violation_probability=probability)
    result = identifiability.gaussian_violation_probability(rho, mu=mu)
    assert result == pytest.approx(probability, rel=1e-9)
    assert identifiability.gaussian_violation_probability(rho, mu=mu * 1.01) > result


def test_the_violation_probability_is_what_an_adversary_sees():
    rng, mu, rho, draws = np.random.default_rng(0), 1.4, 0.9, 200_000
    loss = mu * rng.normal(mu / 2, 1, draws)  # log-likelihood ratio of N(mu, 1) against N(0, 1)
    share = np.mean(1 / (1 + np.exp(-loss)) > rho)
    expected = identifiability.gaussian_violation_probability(rho, mu=mu)
    room = 4 * math.sqrt(expected * (1 - expected) / draws)
    assert abs(share - expected) < room
    wrong = identifiability.gaussian_violation_probability(rho, mu=1.5 * mu)
    assert abs(share - wrong) > room


@given(EPSILON, st.floats(0.01, 0.99))
def test_belief_is_bayes_rule(epsilon, prior):
    with mpmath.workdps(60):
        odds = mpmath.mpf(prior) / (1 - mpmath.mpf(prior)) * mpmath.exp(epsilon)
        expected = float(odds / (1 + odds))
    rho = identifiability.rho_beta(epsilon, prior=prior)
    assert rho == pytest.approx(expected, rel=1e-12)
    if rho < 1 - 1e-9:
        back = identifiability.epsilon_of_rho_beta(max(rho, prior), prior=prior)
        assert back == pytest.approx(epsilon, rel=1e-6, abs=1e-13)


def test_the_ends_are_reached_without_overflow():
    assert identifiability.rho_beta(0.0, prior=0.3) == pytest.approx(0.3)
    assert identifiability.rho_beta(math.inf) == 1
    assert identifiability.rho_beta(1e6) == 1
    assert identifiability.general_rho_alpha(math.inf, delta=0.1) == 1
    assert identifiability.general_rho_alpha(1e4, delta=0.0) == 1
    assert identifiability.general_rho_alpha(0.0, delta=0.1) == pytest.approx(0.1)
    assert identifiability.yeom_rho_alpha(1e4) == math.inf
    assert identifiability.proposition_2_rho_alpha(1e4, false_positive_rate=0.0) == 0


@given(EPSILON, st.floats(0, 1))
def test_the_general_bound_is_the_formula_and_lies_below_the_papers(epsilon, delta):
    with mpmath.workdps(60):
        e = mpmath.exp(epsilon)
        expected = float((e - 1 + 2 * mpmath.mpf(delta)) / (e + 1))
    bound = identifiability.general_rho_alpha(epsilon, delta=delta)
    assert bound == pytest.approx(expected, rel=1e-12)
    assert 0 <= bound <= 1
    assert identifiability.general_rho_alpha(epsilon, delta=0.0) <= identifiability.yeom_rho_alpha(
        epsilon
    )
    half = identifiability.proposition_2_rho_alpha(epsilon, false_positive_rate=0.5)
    assert half == pytest.approx(identifiability.yeom_rho_alpha(epsilon) / 2)


@given(st.floats(0.05, 4.0), st.floats(-8, -1).map(lambda x: 10.0**x))
def test_the_general_bound_covers_every_gaussian(mu, delta):
    epsilon = gaussian.epsilon(delta, mu=mu)
    assert identifiability.general_rho_alpha(epsilon, delta=delta) >= gaussian.advantage(mu) * (
        1 - 1e-9
    )
    assert identifiability.mu_for_advantage(gaussian.advantage(mu)) == pytest.approx(mu, rel=1e-9)


@given(st.floats(0.05, 4.0), st.floats(0.02, 0.98))
def test_bayes_accuracy_is_that_of_the_likelihood_ratio_test(mu, prior):
    result = identifiability.bayes_accuracy(lambda e: gaussian.delta(e, mu=mu), prior=prior)
    cut = mu / 2 + math.log((1 - prior) / prior) / mu
    best = prior * stats.norm.sf(cut - mu) + (1 - prior) * stats.norm.cdf(cut)
    assert result == pytest.approx(best, rel=1e-9)


def test_the_exact_advantage_is_the_total_variation():
    event = full_batch(4.0)
    mu = math.sqrt(30) / 4
    result = accounting.advantage_bound(event, relation=RELATION)
    assert result == pytest.approx(gaussian.advantage(mu), rel=1e-12)
    dpsgd = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.6)), 100)
    for relation, expected in ((RELATION, 0.485128), ("replace_one", 0.775972)):
        result = accounting.advantage_bound(dpsgd, relation=relation)
        assert result == pytest.approx(expected, abs=2e-4)
        assert result >= expected - 1e-6


@pytest.mark.parametrize("rho", [0.5, 0.52, 0.75, 0.9, 0.99, 1 - 1e-6])
@pytest.mark.parametrize("noise_multiplier", [2.0, 5.0, 20.0])
def test_the_general_violation_bound_is_above_the_truth(rho, noise_multiplier):
    event, mu = full_batch(noise_multiplier), math.sqrt(30) / noise_multiplier
    bound = identifiability.violation_probability(event, rho=rho, relation=RELATION)
    truth = identifiability.gaussian_violation_probability(rho, mu=mu)
    assert truth <= bound <= 1
    # The same minimum on another grid; the closed form is valid at negative e too.
    epsilon = identifiability.epsilon_of_rho_beta(rho)
    below = np.geomspace(1e-3, epsilon + 30, 4000)
    e = epsilon - below
    delta = stats.norm.cdf(mu / 2 - e / mu) - np.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)
    slow = min(1.0, float(np.min(delta / -np.expm1(-below))))
    assert bound == pytest.approx(slow, rel=1e-3, abs=1e-9)


def test_one_subsampled_step_violates_less_often_than_bounded():
    q, z, rho = 0.3, 0.6, 0.8
    bound = identifiability.violation_probability(
        subsampled(z, steps=1, sampling_prob=q), rho=rho, relation=RELATION
    )
    rng = np.random.default_rng(1)
    noise = z * rng.normal(size=400_000)
    with_record = noise + (rng.random(noise.size) < q)

    def loss(x):
        return np.log1p(q * np.expm1((2 * x - 1) / (2 * z**2)))

    ahead, behind = (
        np.mean(loss(with_record) > math.log(rho / (1 - rho))),
        np.mean(-loss(noise) > math.log(rho / (1 - rho))),
    )
    assert max(ahead, behind) < bound < 6 * max(ahead, behind)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_calibrated_advantage_never_overshoots(relation):
    z = identifiability.calibrate_advantage(subsampled, max_advantage=0.3, relation=relation)
    assert accounting.advantage_bound(subsampled(z), relation=relation) <= 0.3
    assert accounting.advantage_bound(subsampled(z / 1.001), relation=relation) > 0.3


def test_calibrated_belief_never_overshoots():
    def few(noise_multiplier):
        return subsampled(noise_multiplier, steps=3, sampling_prob=0.5)

    z = identifiability.calibrate_belief(
        few, max_belief=0.9, violation_probability=0.01, relation=RELATION
    )
    for factor, holds in ((1.0, True), (1 / 1.001, False)):
        result = identifiability.violation_probability(few(z * factor), rho=0.9, relation=RELATION)
        assert (result <= 0.01) == holds


def test_full_batch_calibration_is_the_closed_form_where_there_is_one():
    z = identifiability.calibrate_advantage(full_batch, max_advantage=0.2, relation=RELATION)
    smallest = math.sqrt(30) / identifiability.mu_for_advantage(0.2)
    assert smallest * (1 - 1e-12) <= z <= smallest * 1.0001
    z = identifiability.calibrate_belief(
        full_batch, max_belief=0.9, violation_probability=0.01, relation=RELATION
    )
    mu = math.sqrt(30) / z
    assert identifiability.gaussian_violation_probability(0.9, mu=mu) <= 0.01
    assert mu < identifiability.mu_for_belief(0.9, violation_probability=0.01)


@pytest.mark.parametrize(
    ("rho", "words"),
    [
        (0.5, "at most 1 to 1"),
        (0.52, "at most 1.1 to 1"),
        (0.75, "at most 3 to 1"),
        (0.9, "at most 9 to 1"),
        (0.99, "at most 99 to 1"),
        (0.9999, "at most 9,999 to 1"),
        (1.0, "unbounded odds"),
    ],
)
def test_odds_in_words(rho, words):
    assert identifiability.odds_in_words(rho) == words


@given(st.floats(0.5, 1.0, exclude_max=True))
def test_odds_are_never_understated(rho):
    words = identifiability.odds_in_words(rho)
    (number,) = re.fullmatch(r"at most ([\d,.e+]+) to 1", words).groups()
    odds = rho / (1 - rho)
    assert float(number.replace(",", "")) >= odds * (1 - 2.0**-49 * (1 + odds))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.rho_beta(-1.0), "Expected epsilon >= 0, got epsilon=-1.0."),
        (lambda i: i.rho_beta(math.nan), "Expected epsilon >= 0"),
        (lambda i: i.rho_beta(1.0, prior=0.0), "Expected 0 < prior < 1"),
        (lambda i: i.epsilon_of_rho_beta(0.4), "Expected rho >= prior=0.5, got rho=0.4."),
        (lambda i: i.epsilon_of_rho_beta(1.0), "Expected 0 < rho < 1"),
        (lambda i: i.odds_in_words(0.4), "Expected 0.5 <= rho <= 1"),
        (lambda i: i.classical_rho_alpha(0.0, delta=0.1), "Expected epsilon > 0"),
        (lambda i: i.epsilon_of_classical_rho_alpha(1.0, delta=0.1), "Expected 0 < advantage < 1"),
        (lambda i: i.rdp_rho_alpha(1.0, order=1.0), "Expected order > 1"),
        (lambda i: i.general_rho_alpha(1.0, delta=1.5), "Expected 0 <= delta <= 1"),
        (lambda i: i.proposition_2_rho_alpha(1.0, false_positive_rate=2.0), "false_positive_rate"),
        (lambda i: i.bayes_accuracy(lambda e: 0.0, prior=1.0), "Expected 0 < prior < 1"),
        (lambda i: i.gaussian_violation_probability(0.9, mu=0.0), "Expected mu > 0"),
        (lambda i: i.mu_for_belief(0.5, violation_probability=0.1), "Expected 0.5 < rho < 1"),
        (
            lambda i: i.calibrate_advantage(full_batch, max_advantage=0.0, relation=RELATION),
            "Expected 0 < max_advantage < 1",
        ),
        (
            lambda i: i.calibrate_belief(
                full_batch, max_belief=1.0, violation_probability=0.1, relation=RELATION
            ),
            "Expected 0.5 < max_belief < 1",
        ),
        (
            lambda i: i.calibrate_advantage(
                lambda z: dp.NoOpDpEvent(), max_advantage=0.1, relation=RELATION
            ),
            r"Every noise multiplier from 0.001 on meets max_advantage=0.1.",
        ),
        (
            lambda i: oracles.unhooked(i.violation_probability)(
                full_batch(1.0), rho=0.9, relation="swap"
            ),
            "Expected relation to be one of",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call(identifiability)
    assert "\n" not in str(info.value)


def test_odds_are_not_understated_where_beliefs_lose_digits():
    for epsilon in (9.5, 12.0, 20.0, 23.0, 27.0):
        words = identifiability.odds_in_words(identifiability.rho_beta(epsilon))
        odds = float(words.removeprefix("at most ").removesuffix(" to 1").replace(",", ""))
        assert math.exp(epsilon) <= odds <= math.exp(epsilon) * (1 + 1e-3)
    for epsilon in (35.0, 36.0, 40.0):
        words = identifiability.odds_in_words(identifiability.rho_beta(epsilon))
        assert words == "unbounded odds"


def test_the_loss_tail_is_the_violation_probability_of_its_belief():
    event = accounting.poisson_event(noise_multiplier=1.0, sampling_prob=0.1, steps=20)
    both = {"relation": "add_or_remove_one"}
    by_rho = identifiability.violation_probability(event, rho=0.9, **both)
    assert identifiability.loss_tail(event, epsilon=math.log(9), **both) == pytest.approx(by_rho)
    assert identifiability.gaussian_loss_tail(math.log(9), mu=0.960993) == pytest.approx(
        0.035466, abs=1e-6
    )
    assert identifiability.loss_tail(event, epsilon=60.0, **both) < 1e-9


@pytest.mark.parametrize("rho", [0.5 + 1e-6, 0.50005])
def test_a_belief_near_one_half_has_a_noise(rho):
    """Its epsilon is below 1e-3, and the bound is the quotient at an e between 0 and epsilon."""
    z = identifiability.calibrate_belief(
        dp.GaussianDpEvent, max_belief=rho, violation_probability=0.01, relation=RELATION
    )
    closed = 1 / identifiability.mu_for_belief(rho, violation_probability=0.01)
    assert closed <= z < 1.3 * closed


def test_the_general_bound_is_an_advantage():
    """At delta 1 both terms add to 1, which rounding exceeded."""
    for epsilon in np.linspace(0, 50, 501):
        assert 1 - 1e-12 < identifiability.general_rho_alpha(epsilon, delta=1.0) <= 1
