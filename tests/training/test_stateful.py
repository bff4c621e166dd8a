"""SGD with mutable model state: a loop by hand, and what it refuses."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import sampling, training
from tests import oracles

X = jax.random.normal(jax.random.key(1), (40, 3))
Y = (X.sum(1) > 0).astype(jnp.int32)
SAMPLER = sampling.fixed_batch(40, batch_size=10)


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))


MODULE = Normalised()


def loss(params, model_state, batch, mask, key):
    x, y = batch
    logits, model_state = MODULE.apply(
        {"params": params, **model_state}, x, train=True, mutable=["batch_stats"]
    )
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), model_state


def initial():
    made = MODULE.init(jax.random.key(2), X[:1], train=False)
    return training.Variables(made["params"], {"batch_stats": made["batch_stats"]})


def test_steps_equal_a_loop_by_hand(keys):
    optimizer = optax.adam(0.1)
    alg = training.stateful_sgd(loss, optimizer, SAMPLER)
    params, model_state = initial()
    opt_state, state = optimizer.init(params), alg.init(initial())
    update = oracles.quick_jit(alg.update)
    for key in keys(3):
        rows, mask = SAMPLER.sample(key)
        state, info = update(key, state, (X[rows], Y[rows]), mask)
        (value, new_state), grads = jax.value_and_grad(loss, has_aux=True)(
            params, model_state, (X[rows], Y[rows]), mask, key
        )
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, opt_state, params)
        params, model_state = optax.apply_updates(params, updates), new_state
        np.testing.assert_allclose(info.loss, value, rtol=1e-5)
    expected = training.Variables(params, model_state)
    for found, wanted in zip(*map(jax.tree.leaves, (state.params, expected)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    mean = state.params.model_state["batch_stats"]["BatchNorm_0"]["mean"]
    assert np.abs(mean).max() > 1e-3


def test_a_loss_that_is_not_finite_is_counted(keys):
    alg = training.stateful_sgd(lambda *_: (jnp.float32(jnp.nan), 0.0), optax.sgd(0.1), SAMPLER)
    state = alg.init(training.Variables(jnp.zeros(2), jnp.float32(0)))
    _, info = alg.update(keys(1)[0], state, X[:10], jnp.ones(10, bool))
    assert (info.batch_size, info.num_nonfinite) == (10, 10)


def test_wrong_arguments_are_one_line(keys):
    with pytest.raises(ValueError, match=r"Expected loss\(params, model_state"):
        oracles.unhooked(training.stateful_sgd)(3, optax.sgd(0.1), SAMPLER)
    alg = training.stateful_sgd(lambda *_: jnp.float32(0), optax.sgd(0.1), SAMPLER)
    with pytest.raises(ValueError, match="Expected Variables"):
        alg.init({"w": jnp.zeros(2)})
    state = alg.init(training.Variables(jnp.zeros(2), jnp.float32(0)))
    with pytest.raises(ValueError, match="to return the mean loss and the new model_state"):
        alg.update(keys(1)[0], state, X[:10], jnp.ones(10, bool))
