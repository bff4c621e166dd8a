"""The Dirichlet mechanism against Monte-Carlo, random search, limits and published values."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special

from jaxpriv import accounting
from jaxpriv.accounting import dirichlet
from jaxpriv.accounting.dirichlet import Dirichlet
from tests import oracles

EPSILONS = (0.5, 1.0, 3.0, 10.0)


def seven(k):
    return Dirichlet(concentration=k, floor=0.01, distance=0.1, num_classes=7)


@pytest.mark.parametrize(
    ("k", "deltas", "epsilon"),
    [
        (0.1, (0.646319, 0.584813, 0.392012, 0.096669), 55.8823),
        (1.0, (0.646920, 0.585357, 0.392377, 0.096759), 55.8870),
        (10.0, (0.685325, 0.623169, 0.419004, 0.103331), 56.2155),
        (100.0, (0.960124, 0.949747, 0.887796, 0.469874), 65.6118),
    ],
)
def test_the_curve_has_the_checked_values(k, deltas, epsilon):
    values = [dirichlet.delta(seven(k), epsilon=e) for e in EPSILONS]
    np.testing.assert_allclose(values, deltas, atol=6e-7)
    assert dirichlet.epsilon(seven(k), delta=1e-5) == pytest.approx(epsilon, abs=6e-5)


def test_an_interior_pair_has_the_checked_values():
    pair = {"concentration": 10.0, "p": (0.3, 0.2), "p_neighbour": (0.25, 0.25)}
    values = [dirichlet.delta_of_pair(e, **pair) for e in (0.5, 1.0)]
    np.testing.assert_allclose(values, (0.054747, 0.010562), atol=6e-7)


def log_gamma_draws(rng, shape, size):
    """Logarithms of gamma variables, which do not underflow at a small shape."""
    return np.log(rng.standard_gamma(shape + 1, size)) + np.log(rng.random(size)) / shape


def monte_carlo(rng, epsilon, k, p, neighbour, size):
    """delta = E[(1 - e^(epsilon - L))_+] under p, from draws of the two entries, and its error."""
    a, b, a2, b2 = (k * x for x in (*p, *neighbour))
    log_i, log_j = log_gamma_draws(rng, a, size), log_gamma_draws(rng, b, size)
    total = np.logaddexp(log_i, log_j)
    constants = [math.lgamma(x) for x in (a2, b2, a, b)]
    loss = constants[0] + constants[1] - constants[2] - constants[3]
    loss = loss + (a - a2) * (log_i - total) + (b - b2) * (log_j - total)
    gain = -np.expm1(np.minimum(epsilon - loss, 0))
    return gain.mean(), gain.std() / math.sqrt(size)


def random_setting(rng):
    k, n = 10 ** rng.uniform(-2, 3), int(rng.integers(2, 12))
    floor = rng.uniform(0.02, 0.9) / n
    distance = 2 * rng.uniform(0.05, 0.95) * (1 - n * floor)
    return Dirichlet(concentration=k, floor=floor, distance=distance, num_classes=n)


def worst_pair(mechanism):
    half, floor = mechanism.distance / 2, mechanism.floor
    if mechanism.num_classes > 2:
        return (floor + half, floor), (floor, floor + half)
    return (1 - floor, floor), (1 - floor - half, floor + half)


def check_against_monte_carlo(size, count):
    rng = np.random.default_rng(20261129)
    for _ in range(count):
        mechanism = random_setting(rng)
        target = rng.uniform(0.01, 0.9) * dirichlet.delta(mechanism, epsilon=0.0)
        epsilon = dirichlet.epsilon(mechanism, delta=target)
        value = dirichlet.delta(mechanism, epsilon=epsilon)
        estimate, error = monte_carlo(
            rng, epsilon, mechanism.concentration, *worst_pair(mechanism), size
        )
        assert abs(value - estimate) < 4 * error + 1e-9, mechanism
        assert abs(1.05 * value - estimate) > 4 * error or value < 100 * error  # it has power


def test_the_curve_equals_monte_carlo():
    check_against_monte_carlo(10**6, 50)


@pytest.mark.slow
def test_the_curve_equals_monte_carlo_with_ten_million_draws():
    check_against_monte_carlo(10**7, 50)


def random_neighbours(rng, mechanism, count):
    """Neighbours anywhere in the domain, and many near its corners."""
    n, floor = mechanism.num_classes, mechanism.floor
    largest = 1 - (n - 2) * floor if n > 2 else 1.0
    smallest = 2 * floor + mechanism.distance / 2 if n > 2 else 1.0
    total = smallest + (largest - smallest) * rng.beta(0.3, 1, count)
    half = mechanism.distance / 2 * rng.beta(3, 0.3, count)
    small = floor + (total - half - 2 * floor) * rng.beta(0.3, 0.3, count)
    first, second = np.stack([small + half, total - small - half]), np.stack([small, total - small])
    swap = rng.random(count) < 0.5
    return np.where(swap, second, first), np.where(swap, first, second)


@pytest.mark.parametrize("seed", range(4))
def test_no_neighbour_exceeds_the_supremum(seed):
    rng = np.random.default_rng(seed)
    for _ in range(6):
        mechanism = random_setting(rng)
        p, neighbour = random_neighbours(rng, mechanism, 4000)
        assert min(p.min(), neighbour.min()) >= mechanism.floor - 1e-12
        assert (np.abs(p - neighbour).sum(axis=0) <= mechanism.distance + 1e-12).all()
        epsilons = np.array([0.0, 0.3, 1.0, 3.0, 10.0, 30.0])
        values = dirichlet._pair_curve(epsilons, mechanism.concentration, *p, *neighbour)
        supremum = [dirichlet.delta(mechanism, epsilon=float(e)) for e in epsilons]
        assert (values <= np.array(supremum) * (1 + 1e-9) + 1e-280).all(), mechanism


def test_no_neighbour_on_a_grid_exceeds_the_supremum():
    mechanism = Dirichlet(concentration=20.0, floor=0.05, distance=0.4, num_classes=4)
    axis = np.linspace(0.05, 0.85, 41)
    p_i, p_j, q_i = (x.ravel() for x in np.meshgrid(axis, axis, axis))
    q_j = p_i + p_j - q_i
    valid = (q_j >= 0.05 - 1e-12) & (np.abs(p_i - q_i) <= 0.2 + 1e-12) & (p_i + p_j <= 0.9 + 1e-12)
    assert valid.sum() > 5000
    entries = [x[valid] for x in (p_i, p_j, q_i, q_j)]
    epsilons = np.array([0.0, 1.0, 4.0])
    values = dirichlet._pair_curve(epsilons, 20.0, *entries).max(axis=0)
    supremum = np.array([dirichlet.delta(mechanism, epsilon=float(e)) for e in epsilons])
    np.testing.assert_allclose(values, supremum, rtol=1e-9)  # the corner is on the grid


@pytest.mark.parametrize("k", [1e-9, 1e-4, 0.01, 1.0, 1e3, 1e6, 1e9])
def test_the_curve_is_monotone_and_a_probability_at_any_concentration(k):
    epsilons = np.concatenate([np.linspace(0, 60, 200), np.geomspace(61, 1e7, 100)])
    values = dirichlet._curve(seven(k), epsilons)
    assert ((values >= 0) & (values <= 1)).all()
    assert (np.diff(values) <= 1e-12).all()


def test_a_small_concentration_buys_no_more_than_its_limit():
    for e in EPSILONS:
        limit = 0.05 / 0.07 * math.exp(-0.01 * e / 0.05)
        assert dirichlet.delta(seven(1e-9), epsilon=e) == pytest.approx(limit, rel=1e-6)
        assert dirichlet.delta(seven(1e-9), epsilon=e) >= limit


def test_the_curve_increases_with_the_concentration():
    for e in (0.0, 1.0, 10.0, 50.0):
        values = [dirichlet.delta(seven(k), epsilon=e) for k in np.geomspace(1e-6, 1e4, 41)]
        assert (np.diff(values) >= -1e-10).all()


def integrated_tail(a, b, t):
    """log P[logit y > t] by integration over the logit, whose density is expit^a expit(-)^b / B."""

    def log_density(u):
        return a * special.log_expit(u) + b * special.log_expit(-u) - special.betaln(a, b)

    mode = max(t, math.log(a / b))
    peak = log_density(mode)
    points = [mode + x / min(a, b, 1.0) for x in (0, 1, 5, 30, 100)]
    edges = sorted({t, *(p for p in points if p > t)})
    pieces = [
        integrate.quad(lambda u: math.exp(log_density(u) - peak), low, high, epsrel=1e-12)[0]
        for low, high in itertools.pairwise(edges)
    ]
    return peak + math.log(sum(pieces))


@pytest.mark.parametrize(
    ("a", "b", "t"),
    [(0.6, 0.1, 60.0), (0.6, 0.1, 5.0), (60.0, 10.0, 3.0), (10.0, 60.0, 20.0), (40.0, 900.0, 2.0)],
)
def test_tails_have_digits_far_out(a, b, t):
    value = dirichlet._log_upper_tail(*np.array([[a], [b], [t]]))[0]
    assert value == pytest.approx(integrated_tail(a, b, t), rel=1e-8)


def test_both_tails_add_up_to_one():
    for a, b, t in [(0.006, 0.001, 5.0), (0.6, 0.1, 45.0), (60.0, 10.0, 1.0), (2.0, 3.0, -50.0)]:
        upper, lower = dirichlet._log_upper_tail(*np.array([[a, b], [b, a], [t, -t]]))
        assert math.exp(upper) + math.exp(lower) == pytest.approx(1, abs=1e-12)


def test_epsilon_inverts_delta_from_above():
    for mechanism in (seven(0.1), seven(300.0)):
        for target in (0.3, 1e-3, 1e-12):
            value = dirichlet.epsilon(mechanism, delta=target)
            assert dirichlet.delta(mechanism, epsilon=value) <= target
            assert dirichlet.delta(mechanism, epsilon=value * (1 - 1e-9)) > target * (1 - 1e-6)
    assert dirichlet.epsilon(seven(1.0), delta=0.9) == 0


def composed_by_monte_carlo(mechanism, epsilon, queries, size=200_000):
    """delta of several queries at the worst pair, from sums of losses."""
    rng = np.random.default_rng(5)
    p, _ = worst_pair(mechanism)
    k = mechanism.concentration
    i, j = (log_gamma_draws(rng, k * x, (queries, size)) for x in p)
    loss = (k * (p[0] - p[1]) * (i - j)).sum(axis=0)  # the constants of a swapped pair cancel
    gain = -np.expm1(np.minimum(epsilon - loss, 0))
    return gain.mean(), gain.std() / math.sqrt(size)


@pytest.mark.parametrize(("k", "queries"), [(0.1, 2), (10.0, 4), (100.0, 3)])
def test_composition_is_at_the_truth_and_not_below(k, queries):
    mechanism = Dirichlet(concentration=k, floor=0.05, distance=0.1, num_classes=5)
    epsilons = (0.0, 1.0, 4.0)
    for e in epsilons:
        value = dirichlet.delta(mechanism, epsilon=e, queries=queries)
        estimate, error = composed_by_monte_carlo(mechanism, e, queries)
        assert estimate - 4 * error <= value <= estimate + 4 * error + 1e-4
    target = dirichlet.delta(mechanism, epsilon=4.0, queries=queries)
    assert dirichlet.epsilon(mechanism, delta=target, queries=queries) == pytest.approx(4, abs=1e-3)


def test_the_total_variation_after_a_few_draws_is_that_of_the_specification():
    for k in (0.1, 1.0, 10.0):
        assert 0.975 < dirichlet.delta(seven(k), epsilon=0.0, queries=4) < 0.99
        assert dirichlet.delta(seven(k), epsilon=0.0, queries=16) > 0.9995


def test_one_query_composes_to_itself():
    composed = dirichlet._composed(seven(10.0), 1)
    for e in (0.0, 1.0, 30.0):
        exact = dirichlet.delta(seven(10.0), epsilon=e)
        assert exact - 1e-15 <= composed.get_delta_for_epsilon(e) <= exact + 1e-5


def test_one_query_resolves_no_delta_below_1e_290():
    mechanism = Dirichlet(concentration=1.0, floor=0.01, distance=0.1, num_classes=7)
    assert dirichlet.epsilon(mechanism, delta=1e-300) == math.inf
    assert dirichlet.epsilon(mechanism, delta=1e-290) < math.inf


@pytest.mark.parametrize("p", [(0.9, 0.9), (0.3, 0.2, 0.1)])
def test_entries_of_no_probability_vector_are_refused(p):
    with pytest.raises(ValueError, match="two entries each, of sum at most 1"):
        oracles.unhooked(dirichlet.delta_of_pair)(1.0, concentration=1.0, p=p, p_neighbour=p)


def test_several_queries_resolve_no_delta_of_1e_14():
    assert dirichlet.epsilon(seven(1.0), delta=1e-14, queries=4) == math.inf


def test_two_classes_compose_from_the_larger_of_both_directions():
    mechanism = Dirichlet(concentration=5.0, floor=0.1, distance=0.3, num_classes=2)
    one = dirichlet.delta(mechanism, epsilon=0.5)
    two = dirichlet.delta(mechanism, epsilon=0.5, queries=2)
    assert one < two < 2 * dirichlet.delta(mechanism, epsilon=0.25)


@pytest.mark.parametrize("queries", [1, 3])
def test_calibration_returns_the_largest_concentration(queries):
    options = {"floor": 0.05, "distance": 0.1, "num_classes": 7}
    target = {"epsilon": 12.0 * queries, "delta": 1e-4}
    k = dirichlet.calibrate(**target, **options, queries=queries)

    def epsilon(k):
        return dirichlet.epsilon(Dirichlet(concentration=k, **options), delta=1e-4, queries=queries)

    assert epsilon(k) <= target["epsilon"] < epsilon(1.01 * k)


def test_calibration_states_that_no_concentration_is_private_enough():
    options = {"delta": 1e-5, "floor": 0.01, "distance": 0.1, "num_classes": 7}
    with pytest.raises(ValueError, match=r"No concentration reaches epsilon=50.0.*tends to 55\.88"):
        dirichlet.calibrate(epsilon=50.0, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concentration": 0.0}, "concentration > 0"),
        ({"concentration": 1e10}, "concentration <= 1e[+]09"),
        ({"floor": 0.2}, "floor of at most 1 / num_classes"),
        ({"distance": 1.9}, "distance of at most 2"),
        ({"num_classes": 1}, "num_classes >= 2"),
        ({"distance": math.nan}, "distance > 0"),
    ],
)
def test_impossible_mechanisms_are_refused(change, message):
    options = {"concentration": 1.0, "floor": 0.01, "distance": 0.1, "num_classes": 7}
    with pytest.raises(ValueError, match=message):
        Dirichlet(**(options | change))


def test_the_printed_bound_is_negative_for_a_small_concentration():
    options = {"floor": 0.01, "distance": 0.1, "num_classes": 7, "tail": 0.1}
    printed = accounting.rnnmia2022_printed_epsilon_no_guarantee(concentration=0.1, **options)
    assert -2.8 < printed < -2.78
    with pytest.raises(ValueError, match="tail below"):
        accounting.rnnmia2022_printed_epsilon_no_guarantee(
            concentration=0.1, **(options | {"tail": 0.2})
        )
