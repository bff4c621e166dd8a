"""Smoothed losses against the exact expectation of a kink."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import grads


def kink(params, x, key):
    return jnp.abs(params["w"] - x).sum()


def test_the_gradient_is_that_of_the_expectation(keys):
    params, x = {"w": jnp.array([0.5, -1.0])}, jnp.zeros(2)
    gradient = jax.grad(grads.smoothed(kink, std=0.8, draws=20_000))(params, x, keys(1)[0])["w"]
    expected = 2 * stats.norm.cdf(np.array([0.5, -1.0]) / 0.8) - 1
    np.testing.assert_allclose(gradient, expected, atol=5 / np.sqrt(20_000))
    np.testing.assert_array_equal(np.sign(gradient), [1, -1])


def test_a_clipped_gradient_takes_it(keys):
    grad = grads.clipped_grad(grads.smoothed(kink, std=0.1, draws=3), clip_norm=0.5)
    batch, mask = jnp.ones((4, 2)), jnp.ones(4, bool)
    total, norms = grad({"w": jnp.zeros(2)}, batch, mask, keys(1)[0])
    assert float(jnp.linalg.norm(total["w"])) <= 2.0 * (1 + 1e-5)
    assert (norms > 1).all()


@pytest.mark.parametrize(("std", "draws"), [(0.0, 1), (1.0, 0)])
def test_options_out_of_range_are_refused(std, draws):
    with pytest.raises(ValueError, match=r"std > 0|draws >= 1"):
        grads.smoothed(kink, std=std, draws=draws)
