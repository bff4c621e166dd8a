"""Noise is normal out to the tails that a guarantee needs, and divisors are powers of two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxpriv import _tree

_BITS = [(0, 0), (0, 1), (0, 2**32 - 1), (1, 7), (2, 0), (2**8, 3), (2**20, 9), (2**30, 0)]


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 5e-7), (np.float64, 1e-14)])
def test_bits_become_quantiles_down_to_2_to_the_minus_65(dtype, rtol):
    high, low = np.array([*_BITS, (2**31 - 1, 2**32 - 1)], np.uint32).T
    expected = special.ndtri((high + (low + 0.5) / 2**32) / 2**32)
    assert expected[0] < -9.1
    with jax.enable_x64(dtype == np.float64):
        below = _tree.normal_of_bits(jnp.asarray(high), jnp.asarray(low), np.dtype(dtype))
        above = _tree.normal_of_bits(jnp.asarray(high | 2**31), jnp.asarray(low), np.dtype(dtype))
        assert below.dtype == dtype
    np.testing.assert_allclose(below, expected, rtol=rtol, atol=1e-8)
    np.testing.assert_array_equal(above, -np.asarray(below))


def test_a_large_leaf_is_drawn_in_rows_of_different_noise():
    """2^18 + 1 entries are two rows of which the last entry is left out."""
    leaf = np.zeros(2**18 + 1, np.float32)
    noise = np.asarray(_tree.normal_like(jax.random.key(3), leaf, std=2.0)) / 2
    assert noise.shape == leaf.shape
    assert stats.kstest(noise, "norm").pvalue > 1e-3  # a fixed key, which is not a chance of CI
    assert abs(np.corrcoef(noise[: 2**17], noise[2**17 + 1 :])[0, 1]) < 4 / np.sqrt(2**17)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4 / np.sqrt(2**18)


def test_powers_of_two_have_finite_reciprocals():
    x = jnp.array([0.0, 1.2e-38, 3.0, 3e38, jnp.inf])
    found = np.asarray(_tree.power_of_two(x))
    np.testing.assert_array_equal(found, [0, 2.0**-126, 2.0, 2.0**126, np.inf])
