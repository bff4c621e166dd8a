"""Worst-case sensitivities against the checked values, limits and real trainings."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv.sensitivity import recursive_bound, theorem_5_2

FIRST = {"learning_rate": 0.01, "lipschitz": 1.0, "smoothing_std": 0.1, "steps": 100}
SECOND = {"learning_rate": 0.001, "lipschitz": 1.0, "smoothing_std": 1.0, "steps": 1000}


def printed(learning_rate, lipschitz, smoothing_std, steps, batch_size, clip_norm):
    beta = lipschitz / smoothing_std
    growth = (1 + learning_rate * beta) ** steps - 1
    return 2 * clip_norm * growth / ((batch_size - 1) * beta)


def test_the_checked_values():
    first, second = ({"batch_size": 128, "clip_norm": c} for c in (1.0, 10.0))
    assert printed(**FIRST, **first) == pytest.approx(21.700177, abs=6e-7)
    assert theorem_5_2(**FIRST, **first) == pytest.approx(2.0)  # the trivial bound is smaller
    assert recursive_bound(**FIRST, **first) == pytest.approx(1.174001, abs=6e-7)
    assert theorem_5_2(**SECOND, **second) == pytest.approx(0.270382, abs=6e-7)
    assert recursive_bound(**SECOND, **second) == pytest.approx(0.267055, abs=6e-7)


@pytest.mark.parametrize("smoothing_std", [1e-12, 1e-3, 0.1, 10.0, 1e12])
def test_the_recursion_is_the_smaller_bound_and_both_are_finite(smoothing_std):
    options = {"learning_rate": 0.01, "lipschitz": 2.0, "batch_size": 8, "clip_norm": 1.0}
    for steps in (1, 50, 100_000):
        bounds = [
            bound(**options, smoothing_std=smoothing_std, steps=steps)
            for bound in (recursive_bound, theorem_5_2)
        ]
        assert 0 < bounds[0] <= bounds[1] * (1 + 1e-9) <= 2 * 0.01 * steps * (1 + 1e-8)


def test_a_flat_loss_has_the_limit_of_equal_gradients():
    options = {"learning_rate": 0.1, "lipschitz": 1e-9, "smoothing_std": 1.0, "steps": 10}
    for bound, divisor in ((theorem_5_2, 4), (recursive_bound, 5)):
        value = bound(**options, batch_size=5, clip_norm=1.0)
        assert value == pytest.approx(2 * 0.1 * 10 / divisor, rel=1e-6)


def test_no_training_on_neighbours_moves_farther():
    """SGD on E|theta + Z - x|, whose slope is exactly 2 Phi((theta - x) / sigma) - 1."""
    std, steps, m, rate = 0.5, 2, 4, 0.3
    bound = recursive_bound(
        learning_rate=rate, lipschitz=1.0, smoothing_std=std, steps=steps, batch_size=m,
        clip_norm=1.0,
    )  # fmt: skip

    def train(x):
        def step(theta, _):
            gradient = jax.scipy.special.erf((theta - x) / (std * jnp.sqrt(2.0)))
            return theta - rate * jnp.clip(gradient, -1, 1).mean(), None

        return jax.lax.scan(step, jnp.float32(0), length=steps)[0]

    x = jnp.asarray(3 * np.random.default_rng(0).normal(size=(300, m + 1)), jnp.float32)
    first, second = jax.vmap(train)(x[:, :m]), jax.vmap(train)(x[:, 1:])
    moved = jnp.abs(first - second)
    assert float(moved.max()) <= bound
    assert float(moved.max()) > 0.5 * bound


@pytest.mark.parametrize("bound", [theorem_5_2, recursive_bound])
def test_arguments_out_of_range_are_refused(bound):
    good = {**FIRST, "batch_size": 4, "clip_norm": 1.0}
    bad = {"batch_size": 1, "steps": 0, "clip_norm": -1.0, "smoothing_std": 0.0, "lipschitz": 0.0}
    for name, value in itertools.chain(bad.items(), [("learning_rate", 0.0)]):
        with pytest.raises(ValueError, match=name):
            bound(**(good | {name: value}))


@pytest.mark.parametrize("learning_rate", [0.123, 0.9])
def test_a_million_rounded_steps_are_covered(learning_rate):
    """Rounding of equal terms has one direction and fell 2e-11 below the sum."""
    options = {"lipschitz": 1e-30, "smoothing_std": 1.0, "batch_size": 3, "clip_norm": 1.0}
    bound = recursive_bound(learning_rate=learning_rate, steps=10**6, **options)
    exact = Fraction(learning_rate) * Fraction(2, 3) * 10**6  # at most, as beta adds to it
    assert 0 <= float((Fraction(bound) - exact) / exact) < 1e-8


def test_a_lipschitz_constant_that_underflows_gives_no_bound_of_zero():
    options = {"learning_rate": 0.001, "steps": 10, "batch_size": 5, "clip_norm": 1.0}
    bound = theorem_5_2(lipschitz=5e-324, smoothing_std=10.0, **options)
    assert bound == pytest.approx(2 * 0.001 * 10 / 4)
