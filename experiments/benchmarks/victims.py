"""The four models of the DP-SGD benchmark, their batches and their loss, in flax.linen."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class MLP(nn.Module):
    """600-1024-512-256-100, tanh."""

    @nn.compact
    def __call__(self, x):
        for width in (1024, 512, 256):
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(100)(x)


class CNN(nn.Module):
    """16@8x8/2, pool, 32@4x4/2, pool, 32, 10."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(16, (8, 8), strides=2, padding=3)(x))
        x = nn.max_pool(x, (2, 2), (1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), strides=2, padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), (1, 1))
        x = nn.relu(nn.Dense(32)(x.reshape(-1)))
        return nn.Dense(10)(x)


class LSTM(nn.Module):
    """Embedding 64, hidden 128, the last state classified."""

    @nn.compact
    def __call__(self, ids):
        x = nn.RNN(nn.OptimizedLSTMCell(128))(nn.Embed(5000, 64)(ids))
        return nn.Dense(2)(x[-1])


class Transformer(nn.Module):
    """Two encoder layers of width 128 with 4 heads, the mean classified."""

    @nn.compact
    def __call__(self, ids):
        x = nn.Embed(5000, 128)(ids) + nn.Embed(64, 128)(jnp.arange(ids.shape[0]))
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
            hidden = nn.gelu(nn.Dense(512)(nn.LayerNorm()(x)))
            x = x + nn.Dense(128)(hidden)
        return nn.Dense(2)(nn.LayerNorm()(x).mean(0))


class Victim(NamedTuple):
    """A model, and the shape of one input: token ids where `vocabulary` is not 0."""

    module: nn.Module
    shape: tuple[int, ...]
    num_classes: int
    vocabulary: int


VICTIMS = {
    "mlp": Victim(MLP(), (600,), 100, 0),
    "cnn": Victim(CNN(), (28, 28, 1), 10, 0),
    "lstm": Victim(LSTM(), (64,), 2, 5000),
    "transformer": Victim(Transformer(), (64,), 2, 5000),
}


def loss_of(victim: Victim):
    """Cross-entropy of one example, as `loss(params, example, key)`."""

    def loss(params, example, key):
        del key
        x, y = example
        logits: Any = victim.module.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    return loss


def batch_of(victim: Victim, *, size: int):
    """Random inputs and labels, the same in every run."""
    key = jax.random.key(0)
    if victim.vocabulary:
        x = jax.random.randint(key, (size, *victim.shape), 0, victim.vocabulary)
    else:
        x = jax.random.normal(key, (size, *victim.shape))
    return x, jnp.arange(size) % victim.num_classes
