"""Random differential privacy against the checked values and a simulation."""

import math

import numpy as np
import pytest

from jaxpriv.accounting import gaussian, random_dp

GAMMAS = {
    1: 1.0,
    10: 0.434623,
    100: 0.159724,
    200: 0.117152,
    500: 0.077440,
    1000: 0.056468,
    10_000: 0.019526,
}


@pytest.mark.parametrize(("num_pairs", "gamma"), GAMMAS.items())
def test_gamma_has_the_checked_values(num_pairs, gamma):
    value = random_dp.failure_probabilities(num_pairs, confidence=0.95).gamma
    assert value == pytest.approx(gamma, abs=6e-7)


@pytest.mark.parametrize(
    ("gamma", "num_pairs"), [(0.1, 285), (0.08, 466), (0.05, 1305), (0.01, 41971)]
)
def test_the_inverse_has_the_checked_values(gamma, num_pairs):
    assert random_dp.pairs_for(gamma) == num_pairs
    smaller = random_dp.failure_probabilities(num_pairs - 1, confidence=0.95).gamma
    assert random_dp.failure_probabilities(num_pairs, confidence=0.95).gamma <= gamma < smaller


def test_the_bounds_hold_for_uniform_distances():
    """A further distance exceeds the largest of n uniform ones with probability 1 - largest."""
    exceeded = 1 - np.random.default_rng(0).random((20_000, 50)).max(axis=1)
    bounds = random_dp.failure_probabilities(50, confidence=0.95)
    assert abs(exceeded.mean() - bounds.exchangeable) < 5 * exceeded.std() / math.sqrt(20_000)
    share = (exceeded <= bounds.with_confidence).mean()
    assert abs(share - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 20_000)
    assert exceeded.mean() < bounds.gamma


@pytest.mark.parametrize(
    ("sensitivity", "noise_std", "epsilon"),
    [(0.013209, 0.01, 5.312557), (0.11678, 0.05, 10.819299), (0.093682, 0.05, 8.176235)],
)
def test_the_module_has_the_checked_epsilons(sensitivity, noise_std, epsilon):
    promise = random_dp.gaussian_module(
        sensitivity=sensitivity, noise_std=noise_std, delta=1e-4, num_pairs=500
    )
    assert promise.epsilon == pytest.approx(epsilon, abs=6e-7)
    exact = gaussian.epsilon(1e-4, mu=sensitivity / noise_std)
    assert promise.epsilon >= exact
    assert promise.gamma >= 0.0774


def test_equal_parameters_cost_nothing():
    promise = random_dp.gaussian_module(sensitivity=0.0, noise_std=1.0, delta=1e-5, num_pairs=3)
    assert promise.epsilon == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensitivity": -1.0}, "sensitivity >= 0"),
        ({"noise_std": 0.0}, "noise_std > 0"),
        ({"num_pairs": 0}, "num_pairs >= 1"),
        ({"delta": 1.0}, "delta < 1"),
    ],
)
def test_arguments_out_of_range_are_refused(change, message):
    options = {"sensitivity": 1.0, "noise_std": 1.0, "delta": 1e-5, "num_pairs": 10}
    with pytest.raises(ValueError, match=message):
        random_dp.gaussian_module(**(options | change))
    with pytest.raises(ValueError, match="gamma"):
        random_dp.pairs_for(0.0)
