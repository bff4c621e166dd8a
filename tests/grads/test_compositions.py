"""Layers put together at random, against the loop over examples: both in float64.

Some compositions are ill-conditioned (a norm of two nearly equal numbers), where no float32
result is right to 1e-5, the loop's neither. In float64 only a wrong rule can differ; float32
is held against the float64 truth, by what the explicit path loses there.
"""

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from jaxpriv import grads
from tests import oracles
from tests.grads import forced

LAYERS = {
    "dense": lambda dtype: nn.Dense(4, param_dtype=dtype),
    "no_bias": lambda dtype: nn.Dense(4, use_bias=False, param_dtype=dtype),
    "general": lambda dtype: nn.DenseGeneral((2, 2), param_dtype=dtype),
    "conv": lambda dtype: nn.Conv(4, (3,), param_dtype=dtype),
    "grouped": lambda dtype: nn.Conv(4, (2,), feature_group_count=2, param_dtype=dtype),
    "transposed": lambda dtype: nn.ConvTranspose(4, (2,), param_dtype=dtype),
    "norm": lambda dtype: nn.LayerNorm(param_dtype=dtype),
    "groups": lambda dtype: nn.GroupNorm(2, param_dtype=dtype),
    "attention": lambda dtype: nn.SelfAttention(2, param_dtype=dtype),
    "gru": lambda dtype: nn.RNN(nn.GRUCell(4, param_dtype=dtype)),
    "lstm": lambda dtype: nn.RNN(nn.LSTMCell(4, param_dtype=dtype), reverse=True),
}


class Stack(nn.Module):
    """Embedding, random layers (a name met twice is one module used twice), a readout."""

    names: tuple[str, ...]
    shared: bool
    tied: bool
    dtype: jax.typing.DTypeLike

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(7, 4, param_dtype=self.dtype)
        x = embed(ids)
        layers = {}
        for name in self.names:
            layer = layers.get(name) if self.shared else None
            layers[name] = layer = layer or LAYERS[name](self.dtype)
            x = x + jnp.tanh(layer(x)).reshape(x.shape)
        return embed.attend(x) if self.tied else nn.Dense(2, param_dtype=self.dtype)(x)


def problem(names, shared, tied, seed, dtype):
    """A loss and its arguments, the same numbers in every type."""
    keys = jax.random.split(jax.random.key(seed), 4)
    ids = jax.random.randint(keys[0], (3, 5), 0, 7)
    weights = jax.random.uniform(keys[1], (3, 5), jnp.float32).astype(dtype)
    params = Stack(names, shared, tied, jnp.float32).init(keys[2], ids[0])
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    model = Stack(names, shared, tied, dtype)

    def loss(params, example, key):
        ids, weights = example
        return jnp.sum(jnp.sin(model.apply(params, ids)) * weights[:, None])

    return loss, (params, (ids, weights), jnp.arange(3) != seed % 4, keys[3])


def check_stack(names, shared, tied, clip_norm, seed):
    with forced.looped(seed % 2 == 0):
        _check_stack(tuple(names), shared, tied, clip_norm, seed)


def _check_stack(names, shared, tied, clip_norm, seed):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # flax's norms mix types
        loss, args = problem(names, shared, tied, seed, jnp.float64)
        expected = oracles.clipped_sum(loss, *args, clip_norm=clip_norm)
        result = oracles.quick_jit(grads.clipped_grad(loss, clip_norm=clip_norm))(*args)
        oracles.assert_same_sum(result, expected, rtol=RTOL)
    loss, args = problem(names, shared, tied, seed, jnp.float32)
    explicit = oracles.quick_jit(grads.explicit_clipped_grad(loss, clip_norm=clip_norm))(*args)
    result = jax.jit(grads.clipped_grad(loss, clip_norm=clip_norm))(*args)
    lost = oracles.largest_difference(explicit.total, expected[0])
    assert oracles.largest_difference(result.total, expected[0]) <= max(1e-5, 4 * lost)


RTOL = 1e-9

COMPOSED = {
    "names": st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    "shared": st.booleans(),
    "tied": st.booleans(),
    "clip_norm": st.sampled_from([0.1, 1.0, 100.0]),
    "seed": st.integers(0, 99),
}


@hypothesis.settings(max_examples=2)
@given(**COMPOSED)
def test_compositions_equal_the_loop(names, shared, tied, clip_norm, seed):
    check_stack(names, shared, tied, clip_norm, seed)


@pytest.mark.slow
def test_an_ill_conditioned_composition():
    check_stack(["attention", "attention", "conv", "groups"], False, False, 0.1, 0)


@pytest.mark.slow
@hypothesis.settings(max_examples=20)
@given(**COMPOSED)
def test_many_compositions_equal_the_loop(names, shared, tied, clip_norm, seed):
    check_stack(names, shared, tied, clip_norm, seed)
