"""Steps of SGD and DP-SGD: the update rule, the noise, the odd cases."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxpriv import grads, sampling, training
from tests import oracles

N = 40
X = jax.random.normal(jax.random.key(3), (N, 3))
PARAMS = {"a": jnp.zeros(3), "b": jnp.zeros(3)}


def loss(params, x, key):
    return jnp.sum((params["a"] - x) ** 2) / 2 + jnp.dot(params["b"], x)


def flat_loss(params, x, key):
    return 0.0 * loss(params, x, key)


def private(loss=loss, *, z=1.0, sampler=None, clip_norm=0.5, rate=1.0):
    grad = grads.clipped_grad(loss, clip_norm=clip_norm)
    sampler = sampler or sampling.poisson(N, sampling_prob=0.25)
    return training.dpsgd(grad, optax.sgd(rate), sampler, noise_multiplier=z)


def test_without_noise_a_step_is_the_clipped_sum_over_the_expected_size(keys):
    (key,) = keys(1)
    alg = private(z=0.0)
    mask = jnp.arange(20) < 13
    state, info = jax.jit(alg.update)(key, alg.init(PARAMS), X[:20], mask)
    total, norms = oracles.clipped_sum(loss, PARAMS, X[:20], mask, key, clip_norm=0.5)
    for name in PARAMS:
        np.testing.assert_allclose(state.params[name], -total[name] / 10.0, rtol=1e-5)
    assert state.step == 1
    assert info.batch_size == 13
    assert info.clipped_share == pytest.approx(np.mean(norms[:13] > 0.5))
    assert info.mean_norm == pytest.approx(norms[:13].mean(), rel=1e-5)


def test_the_divisor_is_public_whatever_was_drawn(keys):
    """One record or ten: the same record moves the parameters by the same amount."""
    (key,) = keys(1)
    alg = private(z=0.0)
    x = jnp.broadcast_to(X[0], (10, 3))
    moved = [
        alg.update(key, alg.init(PARAMS), x, jnp.arange(10) < count)[0].params["a"]
        for count in (1, 10)
    ]
    np.testing.assert_allclose(10 * moved[0], moved[1], rtol=1e-5)


def _noise(keys, *, z, mask, draws=600):
    """[draws, 2, 3]: what noise did to the parameters, in units of the noise on the sum."""
    alg = private(flat_loss, z=z)

    def draw_noise(key):
        state, _ = alg.update(key, alg.init(PARAMS), X[:20], mask)
        return jnp.stack([state.params["a"], state.params["b"]]) * -10.0

    return np.asarray(jax.jit(jax.vmap(draw_noise))(keys(draws)), np.float64)


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_noise_has_the_stated_level_at_any_batch_size(keys, rows):
    """Std z C on the sum: sigma is accepted, 2/3 and 3/2 of it are rejected."""
    noise = _noise(keys, z=1.6, mask=jnp.arange(20) < rows).ravel()
    sigma = 1.6 * 0.5
    assert stats.kstest(noise, "norm", (0, sigma)).pvalue > 1e-4
    for wrong in (2 / 3 * sigma, 3 / 2 * sigma):
        assert stats.kstest(noise, "norm", (0, wrong)).pvalue < 1e-8


def test_noise_is_independent_between_leaves_entries_and_runs(keys):
    noise = _noise(keys, z=1.0, mask=jnp.zeros(20, bool)).reshape(600, 6)
    correlation = np.corrcoef(noise.T)[np.triu_indices(6, 1)]
    # 15 correlations of 600 draws, each of standard error 1/sqrt(600).
    assert np.abs(correlation).max() < 4.5 / math.sqrt(600)
    shifted = [np.corrcoef(noise[1:, i], noise[:-1, i])[0, 1] for i in range(6)]
    assert np.abs(shifted).max() < 4.5 / math.sqrt(600)


def test_noise_is_independent_between_steps(keys):
    """The steps of `fit` themselves: increments of the parameters under a flat loss."""
    alg = private(flat_loss, z=1.0)
    seen = []

    def record(params, step):
        seen.append(np.concatenate(list(params.values())))
        return training.Evaluation({})

    training.fit(
        keys(1)[0],
        alg,
        PARAMS,
        X,
        steps=800,
        evaluate=record,
    )
    assert len(seen) == 80
    increments = np.diff(np.stack(seen), axis=0)
    sigma = math.sqrt(10) * 0.5 / 10.0
    assert stats.kstest(increments.ravel(), "norm", (0, sigma)).pvalue > 1e-4
    assert stats.kstest(increments.ravel(), "norm", (0, 1.5 * sigma)).pvalue < 1e-4
    lagged = np.corrcoef(increments[1:].ravel(), increments[:-1].ravel())[0, 1]
    assert abs(lagged) < 4.5 / math.sqrt(increments[1:].size)


def test_an_empty_batch_is_noised_applied_and_counted(keys):
    (key,) = keys(1)
    alg = private(z=1.0)
    state, info = alg.update(key, alg.init(PARAMS), X[:20], jnp.zeros(20, bool))
    assert state.step == 1
    assert info.batch_size == 0
    assert info.clipped_share == 0
    assert all(leaf.all() for leaf in jax.tree.leaves(state.params))


def test_sgd_is_optax_on_the_mean_gradient(keys):
    (key,) = keys(1)
    alg = training.sgd(loss, optax.adam(0.1), sampling.fixed_batch(N, batch_size=8))
    mask = jnp.arange(8) < 5
    state, info = jax.jit(alg.update)(key, alg.init(PARAMS), X[:8], mask)

    def mean(params):
        return jnp.stack([loss(params, x, key) for x in X[:5]]).mean()

    optimizer = optax.adam(0.1)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(jax.grad(mean)(PARAMS), optimizer.init(PARAMS), PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(state.params[name], updates[name], rtol=1e-4)
    assert info.loss == pytest.approx(float(mean(PARAMS)), rel=1e-5)


def test_half_precision_parameters_keep_their_type(keys):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)

    def loss(params, x, key):
        return jnp.dot(params["a"], x.astype(jnp.bfloat16)) + params["b"].sum()

    alg = training.dpsgd(
        grads.clipped_grad(loss, clip_norm=1.0),
        optax.adam(0.1),
        sampling.full_batch(N),
        noise_multiplier=1.0,
    )
    state, _ = training.fit(keys(1)[0], alg, params, X, steps=3)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("bfloat16")}


def test_events_name_what_is_spent():
    import dp_accounting

    event = private(z=1.5).event(7)
    assert event.count == 7
    assert event.event.noise_multiplier == 1.5
    plain = training.sgd(loss, optax.sgd(1.0), sampling.fixed_batch(N, batch_size=4)).event(3)
    assert isinstance(plain, dp_accounting.NonPrivateDpEvent)


def test_steps_lower_for_accelerators(keys):
    key, mask = keys(1)[0], jnp.ones(8, bool)
    for alg in (private(), training.sgd(loss, optax.adam(0.1), sampling.full_batch(N))):
        oracles.assert_lowers(alg.update, key, alg.init(PARAMS), X[:8], mask)
        oracles.assert_lowers(alg.sampler.sample, key)


@pytest.mark.parametrize("z", [-1.0, math.nan, math.inf])
def test_refuses_bad_noise(z):
    with pytest.raises(ValueError, match="noise_multiplier >= 0"):
        private(z=z)


def test_refuses_a_sampler_without_a_guarantee():
    with pytest.raises(ValueError, match=r"use sampling\.poisson"):
        private(sampler=sampling.fixed_batch(N, batch_size=4))
