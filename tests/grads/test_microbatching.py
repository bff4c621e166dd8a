"""Batches in pieces give what whole batches give; the suggested size follows the memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, sampling, training
from jaxpriv.grads import _ghost_cost, _ghost_plan, _microbatching
from tests import oracles

W = jax.random.normal(jax.random.key(0), (6, 6))
X = jax.random.normal(jax.random.key(1), (70, 4, 6))
MASK = jnp.arange(70) % 5 != 0


def loss(w, x, key):
    noise = jax.random.normal(key, x.shape)
    return jnp.mean(jnp.sin((x + 0.1 * noise) @ w) ** 2)


def with_cache(monkeypatch, num_bytes):
    rates = _ghost_cost._rates()._replace(cache=num_bytes)
    monkeypatch.setattr(_ghost_cost, "_rates", lambda: rates)


def suggested(batch_size):
    key = jax.random.key(0)
    return _microbatching.suggested_size(loss, W, X[0], key, batch_size=batch_size)


def test_the_suggested_size_follows_the_caches(monkeypatch):
    with_cache(monkeypatch, None)
    assert suggested(1000) == 1000
    with_cache(monkeypatch, 2**30)
    assert suggested(1000) == 1000
    with_cache(monkeypatch, 1)
    assert suggested(1000) == 32
    assert suggested(20) == 20
    with_cache(monkeypatch, 2**17)
    assert 32 < suggested(1000) < 1000
    assert suggested(1000).bit_count() == 1


def test_only_what_depends_on_the_example_counts_as_activations():
    def alone(w, x, key):
        return jnp.sum(jnp.tanh(x @ w))

    def with_large_parameters(w, x, key):
        large = jnp.tile(w, (100, 100)) ** 2
        return jnp.sum(jnp.tanh(x @ w)) + large.sum()

    small, large = (working_set(f, W, X[0]) for f in (alone, with_large_parameters))
    assert large - small < 1000


def working_set(loss, params, example):
    return _ghost_plan.make_plan(loss, params, example, jax.random.key(0)).working_set


def scanned(w, xs, key):
    def step(carry, x):
        return jnp.tanh(carry @ w + x), None

    return jax.lax.scan(step, jnp.zeros(w.shape[0]), xs)[0].sum()


def test_the_activations_of_all_iterations_of_a_scan_count():
    short, long = (working_set(scanned, W, jnp.ones((n, 6))) for n in (10, 100))
    assert long > 9 * short


def test_a_scan_of_large_weights_counts_as_one_iteration():
    large = jnp.ones((200, 200))
    short, long = (working_set(scanned, large, jnp.ones((n, 200))) for n in (10, 100))
    assert long == short


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
def test_automatic_pieces_equal_the_whole(make, monkeypatch, keys):
    (key,) = keys(1)
    with_cache(monkeypatch, 1)
    full = jax.jit(make(loss, clip_norm=0.1))(W, X, MASK, key)
    pieces = jax.jit(make(loss, clip_norm=0.1, microbatch_size="auto"))(W, X, MASK, key)
    oracles.assert_same_sum(pieces, full)


@pytest.mark.parametrize("size", ["auto", 1, 16, 70, 1000])
def test_sgd_in_pieces_equals_sgd(size, monkeypatch, keys):
    (key,) = keys(1)
    with_cache(monkeypatch, 1)
    sampler = sampling.fixed_batch(70, batch_size=70)
    steps = []
    for microbatch_size in (None, size):
        alg = training.sgd(loss, optax.sgd(0.1), sampler, microbatch_size=microbatch_size)
        steps.append(jax.jit(alg.update)(key, alg.init(W), X, MASK))
    (full, full_info), (pieces, info) = steps
    np.testing.assert_allclose(pieces.params, full.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(info.loss, full_info.loss, rtol=1e-5)
    assert info.batch_size == full_info.batch_size == MASK.sum()


@pytest.mark.parametrize("size", [0, -1, 1.5, "some"])
def test_refuses_a_size_that_is_no_number_of_rows(size):
    sampler = sampling.fixed_batch(70, batch_size=70)
    with pytest.raises(ValueError, match="microbatch_size"):
        oracles.unhooked(training.sgd)(loss, optax.sgd(0.1), sampler, microbatch_size=size)
