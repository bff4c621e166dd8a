"""The Gaussian privacy module: its noise, its single draw, its settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import training
from jaxpriv.defences import base, gaussian
from tests import oracles

PARAMS = training.Variables(
    {"w": jnp.ones((40, 50)), "v": jnp.ones((40, 50), jnp.bfloat16)}, jnp.ones(2000)
)


def test_every_number_has_its_own_noise_of_the_stated_deviation():
    noised = gaussian.release(jax.random.key(0), PARAMS, sigma=0.3)
    assert jax.tree.map(lambda x: x.dtype, noised) == jax.tree.map(lambda x: x.dtype, PARAMS)
    noise = [np.ravel(np.asarray(x, np.float64)) - 1 for x in jax.tree.leaves(noised)]
    for values in noise:
        assert stats.kstest(values, "norm", (0, 0.3)).pvalue > 1e-4
        assert stats.kstest(values, "norm", (0, 0.4)).pvalue < 1e-4
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(noise[a], noise[b])[0, 1]) < 5 / np.sqrt(2000)


def test_a_module_answers_from_one_draw():
    module = gaussian.GaussianModule.of(
        jax.random.key(0), lambda w, x: w @ x, jnp.ones((2, 3)), sigma=1.0
    )
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(module(x), module(x))
    assert not np.allclose(module(x), 6.0)


def test_integers_are_refused_and_not_left_without_noise():
    with pytest.raises(ValueError, match=r"float parameters, got int32 in \['n'\]"):
        gaussian.release(jax.random.key(0), {"n": jnp.int32(3), "w": jnp.ones(2)}, sigma=0.1)


def test_settings_come_from_text():
    defence = base.from_text("gaussian:sigma=0.05")
    assert (defence.parameter_noise, defence.num_pairs, defence.delta) == (0.05, 0, None)
    assert defence.guarantee is None
    defence = base.from_text("gaussian:sigma=0.05,pairs=20,delta=1e-4")
    assert (defence.num_pairs, defence.delta) == (20, 1e-4)
    for text, message in (
        ("gaussian", r"gaussian:sigma=NUMBER,\[pairs=NUMBER\]"),
        ("gaussian:sigma=0", "sigma > 0"),
        ("gaussian:sigma=1,pairs=-2", "pairs >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            base.from_text(text)


def test_utility_loss():
    assert gaussian.utility_loss(0.6, 0.8) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="clean > 0"):
        gaussian.utility_loss(0.5, 0.0)


def test_numpy_parameters_in_double_precision_are_noised_without_a_warning():
    noised = oracles.unhooked(gaussian.release)(
        jax.random.key(0), {"w": np.zeros(3), "b": 0.0}, sigma=0.1
    )
    assert all(bool(jnp.all(leaf != 0)) for leaf in jax.tree.leaves(noised))
