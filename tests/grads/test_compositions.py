"""Layers put together at random, against the loop over examples."""

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from jaxpriv import grads
from tests import oracles

LAYERS = {
    "dense": lambda: nn.Dense(4),
    "no_bias": lambda: nn.Dense(4, use_bias=False),
    "general": lambda: nn.DenseGeneral((2, 2)),
    "conv": lambda: nn.Conv(4, (3,)),
    "grouped": lambda: nn.Conv(4, (2,), feature_group_count=2),
    "transposed": lambda: nn.ConvTranspose(4, (2,)),
    "norm": nn.LayerNorm,
    "groups": lambda: nn.GroupNorm(2),
    "attention": lambda: nn.SelfAttention(2),
    "gru": lambda: nn.RNN(nn.GRUCell(4)),
    "lstm": lambda: nn.RNN(nn.LSTMCell(4), reverse=True),
}


class Stack(nn.Module):
    """Embedding, random layers (a name met twice is one module used twice), a readout."""

    names: tuple[str, ...]
    shared: bool
    tied: bool

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(7, 4)
        x = embed(ids)
        kept = {}
        for name in self.names:
            layer = kept.get(name) if self.shared else None
            kept[name] = layer = layer or LAYERS[name]()
            x = x + jnp.tanh(layer(x)).reshape(x.shape)
        return embed.attend(x) if self.tied else nn.Dense(2)(x)


def check_stack(names, shared, tied, clip_norm, seed):
    model = Stack(tuple(names), shared, tied)
    keys = jax.random.split(jax.random.key(seed), 4)
    ids = jax.random.randint(keys[0], (3, 5), 0, 7)
    weights = jax.random.uniform(keys[1], (3, 5))
    params = model.init(keys[2], ids[0])

    def loss(params, example, key):
        ids, weights = example
        return jnp.sum(jnp.sin(model.apply(params, ids)) * weights[:, None])

    mask = jnp.arange(3) != seed % 4
    args = params, (ids, weights), mask, keys[3]
    expected = oracles.clipped_sum(loss, *args, clip_norm=clip_norm)
    explicit = jax.jit(grads.explicit_clipped_grad(loss, clip_norm=clip_norm))(*args)
    found = jax.jit(grads.clipped_grad(loss, clip_norm=clip_norm))(*args)
    # A norm of two nearly equal numbers magnifies rounding: explicit gradients tell how much.
    noise = oracles.largest_difference(explicit.total, expected[0])
    assert noise < 1e-3
    oracles.assert_same_sum(found, expected, rtol=max(1e-5, 4 * noise))


COMPOSED = {
    "names": st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    "shared": st.booleans(),
    "tied": st.booleans(),
    "clip_norm": st.sampled_from([0.1, 1.0, 100.0]),
    "seed": st.integers(0, 99),
}


@hypothesis.settings(max_examples=6)
@given(**COMPOSED)
def test_compositions_equal_the_loop(names, shared, tied, clip_norm, seed):
    check_stack(names, shared, tied, clip_norm, seed)


def test_an_ill_conditioned_composition():
    check_stack(["attention", "attention", "conv", "groups"], False, False, 0.1, 0)


@pytest.mark.slow
@hypothesis.settings(max_examples=60)
@given(**COMPOSED)
def test_many_compositions_equal_the_loop(names, shared, tied, clip_norm, seed):
    check_stack(names, shared, tied, clip_norm, seed)
