"""Adaptive clipping, averages, augmentations, accumulation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxpriv import accounting, grads, sampling, training
from jaxpriv.models import MLP
from tests import oracles

N = 200
X = jax.random.normal(jax.random.key(6), (N, 3)) * jnp.linspace(0.1, 5, N)[:, None]
PARAMS = {"w": jnp.zeros(3)}


def linear(params, x, key):
    return jnp.dot(params["w"], x)


def adaptive(*, z=1.0, count_noise=5.0, quantile=0.5, rate=0.2, q=0.5, loss=linear, first=1.0):
    return training.adaptive_dpsgd(
        grads.clipped_grad(loss, clip_norm=first),
        optax.sgd(1.0),
        sampling.poisson(N, sampling_prob=q),
        noise_multiplier=z,
        count_noise=count_noise,
        target_quantile=quantile,
        rate=rate,
    )


@pytest.mark.parametrize(("quantile", "first"), [(0.2, 100.0), (0.5, 0.01), (0.9, 0.01)])
def test_the_clip_norm_finds_the_quantile(quantile, first):
    """The gradient of a linear loss is the record, so the norms are known."""
    alg = adaptive(quantile=quantile, q=1.0, first=first)
    state, _ = training.fit(jax.random.key(0, impl="rbg"), alg, PARAMS, X, steps=250)
    share = float(np.mean(np.linalg.norm(X, axis=1) <= state.clip_norm))
    # Noise of 5 in 200 a step, averaged by the rate of 0.2.
    assert abs(share - quantile) < 0.06


def test_sum_and_count_together_are_one_release_of_the_stated_multiplier():
    """z^-2 = z_sum^-2 + (2 s_b)^-2, and what is charged is z."""
    alg = adaptive(z=1.5, count_noise=4.0)
    plain = training.dpsgd(
        grads.clipped_grad(linear, clip_norm=1.0),
        optax.sgd(1.0),
        sampling.poisson(N, sampling_prob=0.5),
        noise_multiplier=1.5,
    )
    assert alg.event(9) == plain.event(9)
    joint = accounting.gaussian.epsilon(1e-5, mu=1 / 1.5)
    parts = math.hypot(math.sqrt(1.5**-2 - 1 / 64), 1 / 8)
    assert accounting.gaussian.epsilon(1e-5, mu=parts) == pytest.approx(joint)


def test_noise_on_the_sum_grows_to_pay_for_the_count(keys):
    alg = adaptive(z=1.5, count_noise=1.0, q=1.0, loss=lambda p, x, k: 0.0 * linear(p, x, k))

    def draw_noise(key):
        state, _ = alg.update(key, alg.init(PARAMS), X, jnp.ones(N, bool))
        return state.params["w"] * N, state.clip_norm

    noise, clip_norms = jax.jit(jax.vmap(draw_noise))(keys(900))
    sigma = 1 / math.sqrt(1.5**-2 - 0.25)
    assert stats.kstest(np.ravel(noise), "norm", (0, sigma)).pvalue > 1e-4
    for wrong in (1.5, 1.5 * sigma):
        assert stats.kstest(np.ravel(noise), "norm", (0, wrong)).pvalue < 1e-8
    # All norms are zero, so every example is below: log C = -0.2 (1 + noise / N - 0.5).
    counted = (np.log(clip_norms) / -0.2 + 0.5 - 1) * N
    assert stats.kstest(np.asarray(counted, np.float64), "norm", (0, 1.0)).pvalue > 1e-4
    assert stats.kstest(np.asarray(counted, np.float64), "norm", (0, 1.5)).pvalue < 1e-6


def test_noise_follows_the_clip_norm(keys):
    alg = adaptive(z=1.0, count_noise=50.0, q=1.0, loss=lambda p, x, k: 0.0 * linear(p, x, k))
    start = alg.init(PARAMS)._replace(clip_norm=jnp.float32(0.01))

    def draw_noise(key):
        return alg.update(key, start, X, jnp.ones(N, bool))[0].params["w"] * N

    noise = np.ravel(jax.jit(jax.vmap(draw_noise))(keys(300)))
    assert stats.kstest(noise, "norm", (0, 0.01 / math.sqrt(1 - 1e-4))).pvalue > 1e-4


def test_vanishing_gradients_do_not_take_the_clip_norm_along(keys):
    """It stops at a millionth of the first one, far above where float32 squares vanish."""
    alg = adaptive(q=1.0, loss=lambda p, x, k: 1e-24 * linear(p, x, k), rate=1.0)
    state, _ = training.fit(keys(1)[0], alg, PARAMS, X, steps=60)
    assert state.clip_norm == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"z": 0.0}, "noise_multiplier > 0"),
        ({"count_noise": 0.4}, "count_noise > noise_multiplier / 2"),
        ({"quantile": 1.0}, "target_quantile < 1"),
        ({"rate": -1.0}, "rate > 0"),
    ],
)
def test_adaptive_clipping_refuses(changes, said):
    with pytest.raises(ValueError, match=said):
        adaptive(**changes)


def test_averages_follow_their_recursion_and_leave_the_algorithm_alone(keys):
    (key,) = keys(1)
    plain = adaptive()
    alg = training.averaged(plain, decay=0.8)
    state, averaged = plain.init(PARAMS), alg.init(PARAMS)
    expected = np.zeros(3)
    step, average = jax.jit(plain.update), jax.jit(alg.update)
    for t in range(1, 6):
        step_key = jax.random.fold_in(key, t)
        state, _ = step(step_key, state, X, jnp.ones(N, bool))
        averaged, _ = average(step_key, averaged, X, jnp.ones(N, bool))
        d = min(0.8, (1 + t) / (10 + t))
        expected = d * expected + (1 - d) * np.asarray(state.params["w"])
        np.testing.assert_allclose(averaged.params["w"], expected, rtol=1e-5)
        np.testing.assert_array_equal(averaged.inner.params["w"], state.params["w"])
    assert averaged.step == 5
    assert alg.event(3) == plain.event(3)
    with pytest.raises(ValueError, match="decay"):
        training.averaged(plain, decay=1.0)


def test_augmentations_are_averaged_before_clipping(keys):
    """Equal to the loop that clips the mean gradient of the same augmentations."""
    model = MLP(widths=(4,), num_classes=2)
    params = model.init(keys(1)[0], X[0])

    def loss(params, x, key):
        return jnp.sum(jnp.sin(model.apply(params, x)))

    def shift(key, x):
        return x + jax.random.normal(key, x.shape)

    many = grads.augmented(loss, shift, multiplicity=3)
    mask, (key,) = jnp.ones(4, bool), keys(1)
    result = jax.jit(grads.clipped_grad(many, clip_norm=0.3))(params, X[:4], mask, key)
    expected = oracles.clipped_sum(many, params, X[:4], mask, key, clip_norm=0.3)
    oracles.assert_same_sum(result, expected)
    grad = grads.clipped_grad(many, clip_norm=0.3)
    choices = grad.explain(params, X[0], key, batch_size=4).choices
    assert all(c.method != "explicit" for c in choices if "kernel" in c.leaf)
    only = grads.augmented(loss, lambda key, x: x, multiplicity=4)
    once = jax.jit(grads.clipped_grad(only, clip_norm=0.3))(params, X[:4], mask, key)
    oracles.assert_same_sum(once, grads.clipped_grad(loss, clip_norm=0.3)(params, X[:4], mask, key))
    with pytest.raises(ValueError, match="multiplicity"):
        grads.augmented(loss, shift, multiplicity=0)


def test_accumulating_microbatches_is_one_step_with_one_noise(keys):
    """A Poisson batch worked on in pieces: same update, same event as in one piece."""
    (key,) = keys(1)
    sampler = sampling.poisson(N, sampling_prob=0.2)
    states, events = [], []
    for size in (None, 7):
        grad = grads.clipped_grad(linear, clip_norm=1.0, microbatch_size=size)
        alg = training.dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=1.0)
        states.append(training.fit(key, alg, PARAMS, X, steps=12)[0])
        events.append(alg.event(12))
    np.testing.assert_allclose(states[0].params["w"], states[1].params["w"], rtol=1e-5, atol=1e-7)
    assert events[0] == events[1]


def test_variants_lower_for_accelerators(keys):
    alg = training.averaged(adaptive(), decay=0.9)
    oracles.assert_lowers(alg.update, keys(1)[0], alg.init(PARAMS), X[:8], jnp.ones(8, bool))
