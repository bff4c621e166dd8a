"""Every algorithm and every attack keeps the contract of its kind."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, metrics, sampling, training
from jaxpriv.attacks import lira, threshold
from tests import oracles

X = jax.random.normal(jax.random.key(8), (30, 4))
PARAMS = {"w": jnp.zeros(4), "b": jnp.zeros(())}


def loss(params, x, key):
    return (jnp.dot(params["w"], x) + params["b"] - 1.0) ** 2


def _private():
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    return grad, optax.adam(0.1), sampling.poisson(30, sampling_prob=0.3)


ALGORITHMS = {
    "sgd": lambda: training.sgd(loss, optax.adam(0.1), sampling.poisson(30, sampling_prob=0.3)),
    "dpsgd": lambda: training.dpsgd(*_private(), noise_multiplier=1.0),
    "adaptive_dpsgd": lambda: training.adaptive_dpsgd(
        *_private(), noise_multiplier=1.0, count_noise=2.0, target_quantile=0.5
    ),
    "averaged": lambda: training.averaged(
        training.dpsgd(*_private(), noise_multiplier=1.0), decay=0.9
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms(name, keys):
    alg = ALGORITHMS[name]()
    assert isinstance(alg, training.Algorithm)
    hash(alg)  # a static argument of the compiled loop
    a, b = keys(2)
    indices, mask = alg.sampler.sample(a)
    batch, state = X[indices], alg.init(PARAMS)
    assert state.step == 0
    new, info = jax.jit(alg.update)(b, state, batch, mask)
    again, _ = alg.update(b, state, batch, mask)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert new.step == 1
    assert int(info.batch_size) == int(mask.sum())
    for x, y in zip(jax.tree.leaves(new.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert all(x.dtype == y.dtype for x, y in zip(*map(jax.tree.leaves, (new, state)), strict=True))
    oracles.assert_lowers(alg.update, b, state, batch, mask)
    assert alg.event(5) == alg.event(5)
    with pytest.raises(ValueError, match="steps"):
        alg.event(0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_train_many_as_one(name, keys):
    alg = ALGORITHMS[name]()
    many = jax.tree.map(lambda p: jnp.stack([p, p + 1]), PARAMS)
    members = np.stack([np.arange(30), np.arange(30)])
    states, _ = training.fit_many(
        keys(2), lambda size, _: alg, many, X, members=members, steps=3, hyper=None
    )
    for i, key in enumerate(keys(2)):
        alone, _ = training.fit(key, alg, jax.tree.map(lambda p, i=i: p[i], many), X, steps=3)
        for x, y in zip(*map(jax.tree.leaves, (states.params, alone.params)), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-6)


def trained_threshold(scores, shadow_scores, shadow_is_member):
    return threshold.apply(threshold.fit(shadow_scores, shadow_is_member), scores)


@pytest.mark.parametrize("attack", [lira.online, lira.offline, trained_threshold])
def test_attacks_score_members_higher_whatever_the_order(attack):
    rng = np.random.default_rng(0)
    is_member, shadow_is_member = rng.random(300) < 0.5, rng.random((16, 300)) < 0.5
    scores = rng.normal(2.0 * is_member)
    shadow_scores = rng.normal(2.0 * shadow_is_member)
    found = np.asarray(attack(scores, shadow_scores, shadow_is_member))
    assert found.shape == (300,)
    assert np.isfinite(found).all()
    assert metrics.membership(found, is_member).auc > 0.8
    order = rng.permutation(300)
    shuffled = attack(scores[order], shadow_scores[:, order], shadow_is_member[:, order])
    np.testing.assert_allclose(shuffled, found[order], rtol=1e-9)
