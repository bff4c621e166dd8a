"""What only a GPU can show: products stay exact there, and models train side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.benchmarks import victims
from jaxpriv import grads, sampling, training
from tests import oracles

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", sorted(victims.VICTIMS))
def test_ghost_sums_equal_explicit_ones(name, keys):
    """Ghost norms ask for full precision; explicit gradients are compared at it, too."""
    victim = victims.VICTIMS[name]
    data = victims.batch_of(victim, size=16)
    params = victim.module.init(jax.random.key(0), data[0][0])
    args = (params, data, jnp.arange(16) < 13, keys(1)[0])
    loss = victims.loss_of(victim)
    with jax.default_matmul_precision("highest"):
        ghost = jax.jit(grads.clipped_grad(loss, clip_norm=0.1))(*args)
        explicit = jax.jit(grads.explicit_clipped_grad(loss, clip_norm=0.1))(*args)
    oracles.assert_same_sum(ghost, explicit, rtol=1e-4)
    assert oracles.tree_norm(ghost.total) <= 13 * 0.1 * (1 + 1e-5)


def test_one_example_never_exceeds_the_clip_norm_at_default_precision(keys):
    victim = victims.VICTIMS["mlp"]
    data = victims.batch_of(victim, size=4)
    params = victim.module.init(jax.random.key(0), data[0][0])
    grad = jax.jit(grads.clipped_grad(victims.loss_of(victim), clip_norm=0.01))
    for i in range(4):
        found = grad(params, data, jnp.arange(4) == i, keys(1)[0])
        assert oracles.tree_norm(found.total) <= 0.01 * (1 + 1e-4)


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
def test_a_subnormal_activation_counts_in_the_norm(make, keys):
    """A GPU multiplies by subnormal numbers, which a CPU takes for 0."""

    def loss(w, example, key):
        x, factor = example
        return factor * jnp.dot(w, x)

    batch = jnp.full((2, 3), 5e-39), jnp.full(2, 1e38)
    found = jax.jit(make(loss, clip_norm=0.1))(jnp.zeros(3), batch, jnp.ones(2, bool), keys(1)[0])
    np.testing.assert_allclose(found.norms, 0.5 * np.sqrt(3), rtol=1e-4)
    assert oracles.tree_norm(found.total) <= 0.2 * (1 + 1e-5)


def test_models_train_side_by_side(keys):
    def loss(params, x, key):
        return jnp.sum((params["w"] - x) ** 2)

    sampler = sampling.poisson(20, sampling_prob=0.3)
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    alg = training.dpsgd(grad, optax.adam(0.1), sampler, noise_multiplier=1.0)
    x, members = jax.random.normal(jax.random.key(1), (60, 3)), np.arange(60).reshape(3, 20)
    params = {"w": jnp.zeros((3, 3))}
    states, info = training.fit_many(
        keys(3), lambda size, _: alg, params, x, members=members, steps=5
    )
    assert info.strategy == "vmap"
    for i, key in enumerate(keys(3)):
        alone, _ = training.fit(key, alg, {"w": params["w"][i]}, x[members[i]], steps=5)
        np.testing.assert_allclose(states.params["w"][i], alone.params["w"], rtol=1e-5, atol=1e-6)
