"""The models of the DP-SGD benchmark beyond flax.linen's layers, as losses with their parameters.

Each is the MLP or the transformer of `victims`, written for another library, or with its layers
scanned, rematerialised or adapted by low-rank products.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.benchmarks import victims

WIDTHS = (600, 1024, 512, 256, 100)
RANK = 4


class Problem(NamedTuple):
    """A loss `(params, example, key)`, its parameters, and the victim that makes its batches."""

    loss: Callable[..., Any]
    params: Any
    victim: victims.Victim


def _problem(params: Any, apply: Callable[[Any, Any], Any], victim: str) -> Problem:
    def loss(params, example, key):
        del key
        x, y = example
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y)

    return Problem(loss, params, victims.VICTIMS[victim])


def of_victim(victim: victims.Victim) -> Problem:
    """Returns a model of `victims`, in flax.linen."""
    x, _ = victims.batch_of(victim, size=1)
    params = victim.module.init(jax.random.key(1), x[0])
    return Problem(victims.loss_of(victim), params, victim)


def mlp_nnx() -> Problem:
    """Returns the MLP in flax.nnx."""
    from flax import nnx

    rngs = nnx.Rngs(0)
    layers = [nnx.Linear(i, o, rngs=rngs) for i, o in itertools.pairwise(WIDTHS)]
    parts = [part for layer in layers for part in (layer, jnp.tanh)][:-1]
    structure, params = nnx.split(nnx.Sequential(*parts), nnx.Param)
    return _problem(params, lambda params, x: nnx.merge(structure, params)(x), "mlp")


def mlp_equinox() -> Problem:
    """Returns the MLP in Equinox."""
    import equinox as eqx

    keys = jax.random.split(jax.random.key(0), len(WIDTHS) - 1)
    layers = [
        eqx.nn.Linear(i, o, key=k)
        for (i, o), k in zip(itertools.pairwise(WIDTHS), keys, strict=True)
    ]
    params, static = eqx.partition(layers, eqx.is_inexact_array)

    def apply(params, x):
        *hidden, last = eqx.combine(params, static)
        for layer in hidden:
            x = jnp.tanh(layer(x))
        return last(x)

    return _problem(params, apply, "mlp")


def transformer_nnx() -> Problem:
    """Returns the transformer in flax.nnx."""
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.norms = nnx.List([nnx.LayerNorm(128, rngs=rngs) for _ in range(2)])
            self.attention = nnx.MultiHeadAttention(4, 128, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(128, 512, rngs=rngs), nnx.Linear(512, 128, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.down(nnx.gelu(self.up(self.norms[1](x))))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.tokens = nnx.Embed(5000, 128, rngs=rngs)
            self.positions = nnx.Embed(64, 128, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(2)])
            self.norm, self.head = nnx.LayerNorm(128, rngs=rngs), nnx.Linear(128, 2, rngs=rngs)

        def __call__(self, ids):
            x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[0]))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x).mean(0))

    structure, params, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)
    return _problem(params, lambda p, x: nnx.merge(structure, p, rest)(x), "transformer")


def transformer_equinox() -> Problem:
    """Returns the transformer in Equinox."""
    import equinox as eqx

    key = jax.random.key(0)

    def layer(key):
        a, b, c = jax.random.split(key, 3)
        attention = eqx.nn.MultiheadAttention(
            4,
            128,
            use_query_bias=True,
            use_key_bias=True,
            use_value_bias=True,
            use_output_bias=True,
            key=a,
        )
        linears = (eqx.nn.Linear(128, 512, key=b), eqx.nn.Linear(512, 128, key=c))
        return eqx.nn.LayerNorm(128), attention, eqx.nn.LayerNorm(128), *linears

    layers = [layer(k) for k in jax.random.split(key, 2)]
    tables = (eqx.nn.Embedding(5000, 128, key=key), eqx.nn.Embedding(64, 128, key=key))
    model = (tables, layers, eqx.nn.LayerNorm(128), eqx.nn.Linear(128, 2, key=key))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def apply(params, ids):
        (tokens, positions), layers, norm, head = eqx.combine(params, static)
        x = jax.vmap(tokens)(ids) + jax.vmap(positions)(jnp.arange(ids.shape[0]))
        for first, attention, second, up, down in layers:
            y = jax.vmap(first)(x)
            x = x + attention(y, y, y)
            hidden = jax.nn.gelu(jax.vmap(up)(jax.vmap(second)(x)))
            x = x + jax.vmap(down)(hidden)
        return head(jax.vmap(norm)(x).mean(0))

    return _problem(params, apply, "transformer")


class _Block(nn.Module):
    """A layer of the transformer; `rank` adds low-rank adapters to its two wide products."""

    rank: int = 0

    @nn.compact
    def __call__(self, x, _):
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
        hidden = nn.gelu(self._product(512, "up", nn.LayerNorm()(x)))
        return x + self._product(128, "down", hidden), None

    def _product(self, width, name, x):
        y = nn.Dense(width, name=name)(x)
        if self.rank:
            low = nn.Dense(self.rank, use_bias=False, name=f"{name}_adapter_in")(x)
            y = y + nn.Dense(width, use_bias=False, name=f"{name}_adapter_out")(low)
        return y


class _Scanned(nn.Module):
    remat: bool = False
    rank: int = 0

    @nn.compact
    def __call__(self, ids):
        x = nn.Embed(5000, 128)(ids) + nn.Embed(64, 128)(jnp.arange(ids.shape[0]))
        block = nn.remat(_Block) if self.remat else _Block
        layers = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        x, _ = layers(self.rank)(x, None)
        return nn.Dense(2)(nn.LayerNorm()(x).mean(0))


def transformer_scan(*, remat: bool = False) -> Problem:
    """Returns the transformer with its layers scanned, and rematerialised if asked for."""
    model = _Scanned(remat=remat)
    params = model.init(jax.random.key(1), jnp.zeros(64, jnp.int32))
    return _problem(params, model.apply, "transformer")


def transformer_lora() -> Problem:
    """Returns the scanned transformer, frozen, with trainable low-rank adapters."""
    model = _Scanned(rank=RANK)
    params = model.init(jax.random.key(1), jnp.zeros(64, jnp.int32))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    is_adapter = ["adapter" in jax.tree_util.keystr(path) for path, _ in leaves]
    structure = jax.tree.structure(params)
    adapters = [leaf for (_, leaf), yes in zip(leaves, is_adapter, strict=True) if yes]

    def apply(adapters, x):
        trained = iter(adapters)
        merged = [
            next(trained) if yes else leaf
            for (_, leaf), yes in zip(leaves, is_adapter, strict=True)
        ]
        return model.apply(jax.tree.unflatten(structure, merged), x)

    return _problem(adapters, apply, "transformer")


class _Recurrent(nn.Module):
    cell: type[nn.RNNCellBase]
    width: int

    @nn.compact
    def __call__(self, ids):
        cell = self.cell(self.width)  # pyright: ignore[reportCallIssue]
        return nn.Dense(2)(nn.RNN(cell)(nn.Embed(5000, self.width)(ids))[-1])


def recurrent(cell: type[nn.RNNCellBase], *, width: int, length: int) -> Problem:
    """Returns a classifier of token sequences, in flax.linen, by the last state of a cell."""
    return of_victim(victims.Victim(_Recurrent(cell, width), (length,), 2, 5000))


RECURRENT: dict[str, Callable[[], Problem]] = {
    f"{name}_{width}x{length}": functools.partial(recurrent, cell, width=width, length=length)
    for name, cell in (("lstm", nn.OptimizedLSTMCell), ("gru", nn.GRUCell))
    for width, length in ((16, 64), (16, 512), (64, 64), (128, 64), (256, 64))
}
"""Cell, width and length -> problem."""

PROBLEMS: dict[str, Callable[[], Problem]] = {
    **{name: functools.partial(of_victim, victim) for name, victim in victims.VICTIMS.items()},
    "mlp_nnx": mlp_nnx,
    "mlp_equinox": mlp_equinox,
    "transformer_nnx": transformer_nnx,
    "transformer_equinox": transformer_equinox,
    "transformer_scan": transformer_scan,
    "transformer_remat": lambda: transformer_scan(remat=True),
    "transformer_lora": transformer_lora,
}
