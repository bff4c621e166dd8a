import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpriv.accounting import gaussian
from tests import oracles

MU = st.floats(-6, 4).map(lambda x: 10.0**x)
DELTA = st.floats(-200, -0.001).map(lambda x: 10.0**x)
# Where delta is neither 0 nor 1 in float64: epsilon = mu (mu/2 - a), a the Gaussian quantile.
QUANTILE = st.floats(-35, 4)


def exact_delta(epsilon, mu):
    with mpmath.workdps(120):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@given(MU, QUANTILE)
def test_delta_is_the_formula_in_high_precision(mu, quantile):
    epsilon = max(mu * (mu / 2 - quantile), 0.0)
    exact = exact_delta(epsilon, mu)
    assert abs(gaussian.delta(epsilon, mu=mu) - exact) <= 1e-8 * exact


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (1.0, 1e-5, 4.377178),
        (0.013209 / 0.01, 1e-4, 5.312557),
        (0.11678 / 0.05, 1e-4, 10.819299),
        (0.093682 / 0.05, 1e-4, 8.176235),
        (2 / 1.6, 1e-3, 4.145447),
    ],
)
def test_published_values(mu, delta, epsilon):
    assert gaussian.epsilon(delta, mu=mu) == pytest.approx(epsilon, abs=6e-7)
    assert gaussian.mu(epsilon, delta=delta) == pytest.approx(mu, rel=1e-6)


@given(MU, QUANTILE)
def test_inverses_undo_delta(mu, quantile):
    epsilon = max(mu * (mu / 2 - quantile), 0.0)
    delta = gaussian.delta(epsilon, mu=mu)
    if not 0 < delta < 1 - 1e-9:
        return
    # Where epsilon is far below mu, delta hardly depends on it, so the error is in units of mu.
    result = gaussian.epsilon(delta, mu=mu)
    assert result == pytest.approx(epsilon, rel=1e-7, abs=1e-7 * mu)
    assert gaussian.mu(epsilon, delta=delta) == pytest.approx(mu, rel=1e-7)


@given(MU, st.floats(-3, 6).map(lambda x: 10.0**x), st.floats(1.01, 10.0))
def test_delta_falls_with_epsilon_and_grows_with_mu(mu, epsilon, factor):
    delta = gaussian.delta(epsilon, mu=mu)
    assert gaussian.delta(epsilon * factor, mu=mu) <= delta
    assert gaussian.delta(epsilon, mu=mu * factor) >= delta


@given(MU, DELTA, st.floats(1.01, 10.0))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, delta, factor):
    epsilon = gaussian.epsilon(delta, mu=mu)
    assert 0 <= epsilon < math.inf
    assert gaussian.epsilon(delta, mu=mu * factor) >= epsilon
    assert gaussian.epsilon(min(delta * factor, 0.999), mu=mu) <= epsilon


def test_nothing_is_nan_at_the_ends():
    values = (0.0, 1e-9, 1.0, 700.0, 1e4, 1e6)
    for mu, epsilon in itertools.product((1e-6, 1e-3, 1.0, 30.0, 1e4), values):
        assert 0 <= gaussian.delta(epsilon, mu=mu) <= 1
    for epsilon, delta in itertools.product(values, (1e-300, 1e-5, 0.5, 1 - 1e-9)):
        mu = gaussian.mu(epsilon, delta=delta)
        assert gaussian.delta(epsilon, mu=mu) == pytest.approx(delta, rel=1e-6)


def test_epsilon_of_very_little_noise_is_bounded():
    for mu in (1e7, 1e9, 1e20):
        assert mu**2 / 2 < gaussian.epsilon(1e-5, mu=mu) < mu**2 / 2 * (1 + 1e-6)
    assert gaussian.epsilon(1e-5, mu=1e200) == math.inf


def test_epsilon_is_zero_exactly_where_delta_covers_the_advantage():
    advantage = gaussian.advantage(0.7)
    assert advantage == pytest.approx(2 * float(mpmath.ncdf(0.35)) - 1, rel=1e-14)
    assert gaussian.delta(0.0, mu=0.7) == pytest.approx(advantage, rel=1e-14)
    assert gaussian.epsilon(advantage * (1 + 1e-12), mu=0.7) == 0
    assert 0 < gaussian.epsilon(advantage * (1 - 1e-6), mu=0.7) < 1e-5
    assert gaussian.advantage(0.960993) == pytest.approx(0.369126, abs=1e-6)


def test_noise_std_is_exact_where_the_classical_formula_is_false():
    exact = gaussian.noise_std(8.0, delta=0.01, sensitivity=3.0)
    assert gaussian.delta(8.0, mu=3.0 / exact) == pytest.approx(0.01, rel=1e-12)
    classical = gaussian.classical_noise_std(8.0, delta=0.01, sensitivity=3.0)
    assert gaussian.delta(8.0, mu=3.0 / classical) == pytest.approx(0.0178, abs=5e-5)
    assert classical == pytest.approx(3.0 * math.sqrt(2 * math.log(125)) / 8)
    assert gaussian.classical_noise_std(1.0, delta=1e-5, sensitivity=1.0) > gaussian.noise_std(
        1.0, delta=1e-5, sensitivity=1.0
    )


def test_trade_off_is_the_dual_of_delta():
    rates = np.array([0.0, 0.001, 0.2, 0.7, 1.0])
    epsilons = np.linspace(-8, 12, 4001)

    def line(e):
        # delta at a negative epsilon, by the symmetry of the pair.
        return 1 - math.exp(e) + math.exp(e) * gaussian.delta(-e, mu=1.3) if e < 0 else None

    deltas = [line(e) if e < 0 else gaussian.delta(e, mu=1.3) for e in epsilons]
    dual = [max(0.0, np.max(1 - np.array(deltas) - np.exp(epsilons) * r)) for r in rates]
    np.testing.assert_allclose(gaussian.trade_off(rates, mu=1.3), dual, atol=2e-4)
    assert gaussian.trade_off(0.2, mu=1.3) == pytest.approx(float(dual[2]), abs=2e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian.delta(-1.0, mu=1.0), "Expected epsilon >= 0"),
        (lambda: gaussian.delta(math.inf, mu=1.0), "Expected epsilon >= 0"),
        (lambda: gaussian.delta(1.0, mu=0.0), "Expected mu > 0"),
        (lambda: gaussian.epsilon(0.0, mu=1.0), "Expected 0 < delta < 1"),
        (lambda: gaussian.epsilon(1e-5, mu=math.nan), "Expected mu > 0"),
        (lambda: gaussian.mu(1.0, delta=1.0), "Expected 0 < delta < 1"),
        (lambda: gaussian.advantage(-1.0), "Expected mu > 0"),
        (lambda: gaussian.noise_std(1.0, delta=0.1, sensitivity=0.0), "Expected sensitivity > 0"),
        (
            lambda: gaussian.classical_noise_std(0.0, delta=0.1, sensitivity=1.0),
            "Expected epsilon > 0",
        ),
        (lambda: gaussian.trade_off(1.5, mu=1.0), "Expected every false_positive_rate"),
        (lambda: oracles.unhooked(gaussian.advantage)("x"), "Expected a static number for mu"),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)
