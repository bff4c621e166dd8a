"""One loss for each library, or none: `clipped_grad` takes them all, by the same products."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxpriv import grads
from tests import oracles

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 5, 4))


def of_linen():
    model = nn.Sequential([nn.Dense(6), nn.tanh, nn.RNN(nn.GRUCell(6)), nn.Dense(2)])
    params = model.init(KEY, X[0])
    return params, lambda params, x, key: model.apply(params, x)


def of_nnx():
    """Random state is not closed over: it is rebuilt from the key of the example."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(4, 6, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.head = nnx.Linear(6, 2, rngs=rngs)

        def __call__(self, x):
            return self.head(self.dropout(jnp.tanh(self.dense(x))))

    structure, params, random = nnx.split(Model(nnx.Rngs(0)), nnx.Param, nnx.RngState)

    def apply(params, x, key):
        return nnx.merge(structure, params, _with_key(random, key))(x)

    return params, apply


def _with_key(random, key):
    """Puts a key in the place of every key of a random state."""

    def replace(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return key if is_key else jnp.zeros_like(leaf)

    return jax.tree.map(replace, random)


def of_nnx_recurrent():
    model = nnx.RNN(nnx.OptimizedLSTMCell(4, 5, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    structure, params, random = nnx.split(model, nnx.Param, nnx.RngState)

    def apply(params, x, key):
        return nnx.merge(structure, params, _with_key(random, key))(x)

    return params, apply


def of_equinox():
    first_key, second_key = jax.random.split(KEY)
    layers = [
        eqx.nn.Linear(4, 6, key=first_key),
        eqx.nn.LayerNorm(6, use_weight=False),
        eqx.nn.Linear(6, 2, key=second_key),
    ]
    params, static = eqx.partition(layers, eqx.is_inexact_array)

    def apply(params, x, key):
        first, norm, last = eqx.combine(params, static)
        return jax.vmap(lambda row: last(jnp.tanh(norm(first(row)))))(x)

    return params, apply


def of_haiku():
    def forward(x):
        lstm = hk.LSTM(6)
        y, _ = hk.dynamic_unroll(lstm, jnp.tanh(hk.Linear(6)(x)), lstm.initial_state(None))
        return hk.Linear(2)(y)

    model = hk.without_apply_rng(hk.transform(forward))
    return model.init(KEY, X[0]), lambda params, x, key: model.apply(params, x)


def of_plain_jax():
    params = [jax.random.normal(KEY, (4, 6)), jnp.zeros(6), jax.random.normal(KEY, (6, 2))]
    return params, lambda p, x, key: jnp.tanh(x @ p[0] + p[1]) @ p[2]


LIBRARIES = {
    "linen": of_linen,
    "nnx": of_nnx,
    "nnx_recurrent": of_nnx_recurrent,
    "equinox": of_equinox,
    "haiku": of_haiku,
    "plain": of_plain_jax,
}


@pytest.mark.parametrize("library", oracles.slow_after(2, LIBRARIES))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_library_by_the_same_products(library):
    with jax.numpy_dtype_promotion("standard"):
        params, apply = LIBRARIES[library]()

        def loss(params, x, key):
            return jnp.sum(jnp.sin(apply(params, x, key)))

        grad, mask = grads.clipped_grad(loss, clip_norm=0.4), jnp.arange(3) != 1
        result = jax.jit(grad)(params, X, mask, KEY)
        expected = oracles.clipped_sum(loss, params, X, mask, KEY, clip_norm=0.4)
        oracles.assert_same_sum(result, expected)
        explanation = grad.explain(params, X[0], KEY, batch_size=3)
    assert explanation.ghost_share >= 0.9, str(explanation)


def test_batch_statistics_of_nnx_are_refused():
    model = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    structure, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(running):
        def loss(params, x, key):
            copy = jax.tree.map(lambda v: v + 0, rest)
            merged = nnx.merge(structure, params, copy)
            return jnp.sum(merged(x, use_running_average=running) ** 2)

        return loss

    for make in (grads.clipped_grad, grads.explicit_clipped_grad):
        with pytest.raises(ValueError, match="GroupNorm"):
            make(loss(False), clip_norm=1.0)(params, X, jnp.ones(3, bool), KEY)
        make(loss(True), clip_norm=1.0)(params, X, jnp.ones(3, bool), KEY)
