"""Shapes of models that public code has: sums and norms equal the loop, both in float64.

At least nine tenths of the parameters need no explicit gradients where they enter by products.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from jaxpriv import grads
from tests import oracles
from tests.grads import forced

SHARE = 0.9
IDS = jax.random.randint(jax.random.key(3), (3, 6), 0, 11)
X = jax.random.normal(jax.random.key(4), (3, 6, 8))


def check_sums(loss, params, batch, *, share=SHARE, only=None):
    """Compares with the loop in float64, and the share of `only` (or all) leaves by factors."""
    mask, key = jnp.arange(3) != 1, jax.random.key(5)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        params, batch = jax.tree.map(_to_float64, (params, batch))
        grad = grads.clipped_grad(loss, clip_norm=0.7)
        with forced.looped():
            result = jax.jit(grad)(params, batch, mask, key)
        expected = oracles.clipped_sum(loss, params, batch, mask, key, clip_norm=0.7)
        oracles.assert_same_sum(result, expected, rtol=1e-9)
        first = jax.tree.map(lambda x: x[0], batch)
        explanation = grad.explain(params, first, key, batch_size=3)
    choices = [c for c in explanation.choices if only is None or only in c.leaf]
    explanation = explanation._replace(choices=tuple(choices))
    assert explanation.ghost_share >= share, str(explanation)
    return explanation


def _to_float64(x):
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def draw(**shapes):
    """Random parameters of these shapes."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {
        name: 0.5 * jax.random.normal(k, shape)
        for (name, shape), k in zip(shapes.items(), keys, strict=True)
    }


def of_module(module, *inputs):
    """A loss of a flax.linen module, and its parameters."""
    params = module.init(jax.random.key(1), *(x[0] for x in inputs))

    def loss(params, example, key):
        return jnp.sum(jnp.sin(module.apply(params, *example)))

    return loss, params, inputs


class Block(nn.Module):
    """A transformer block whose parameters are boxed with the names of mesh axes."""

    @nn.compact
    def __call__(self, x, _):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        attention = nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        x = x + attention
        hidden = nn.gelu(nn.Dense(16, kernel_init=init)(nn.LayerNorm()(x)))
        return x + nn.Dense(8, kernel_init=init)(hidden), None


def _scanned(block):
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=2,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


class Transformer(nn.Module):
    tied: bool
    remat: bool

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(11, 8)
        x = embed(ids) + nn.Embed(6, 8)(jnp.arange(6))
        block = nn.remat(Block) if self.remat else Block
        x = nn.LayerNorm()(_scanned(block)()(x, None)[0])
        return embed.attend(x) if self.tied else nn.Dense(11)(x)


@pytest.mark.parametrize(
    ("tied", "remat"),
    [(True, True), pytest.param(False, False, marks=pytest.mark.slow)],
)
def test_transformers_with_scanned_layers(tied, remat):
    explanation = check_sums(*of_module(Transformer(tied, remat), IDS))
    methods = {choice.method for choice in explanation.choices}
    assert ("second pass" in methods) == remat


class ViT(nn.Module):
    @nn.compact
    def __call__(self, image):
        x = nn.Conv(8, (4, 4), strides=(4, 4), padding="VALID")(image).reshape(-1, 8)
        cls = self.param("cls", nn.initializers.normal(), (1, 8))
        x = jnp.concatenate([cls, x]) + self.param("position", nn.initializers.normal(), (5, 8))
        return nn.Dense(3)(_scanned(Block)()(x, None)[0][0])


@pytest.mark.slow
def test_a_vision_transformer():
    check_sums(*of_module(ViT(), jax.random.normal(jax.random.key(0), (3, 8, 8, 3))))


@pytest.mark.slow
def test_relative_attention():
    params = draw(q=(8, 2, 4), k=(8, 2, 4), v=(8, 2, 4), o=(2, 4, 8), bias=(4, 2))

    def loss(p, x, key):
        q, k, v = (jnp.einsum("td,dhk->htk", x, p[n]) for n in "qkv")
        distance = jnp.abs(jnp.arange(6)[:, None] - jnp.arange(6)[None, :])
        bias = jnp.take(p["bias"], jnp.minimum(distance, 3), axis=0)
        weights = jax.nn.softmax(jnp.einsum("htk,hsk->hts", q, k) + bias.transpose(2, 0, 1))
        return jnp.sum(jnp.sin(jnp.einsum("hts,hsk,hkd->td", weights, v, p["o"])))

    check_sums(loss, params, X)


def test_low_rank_adapters_of_a_frozen_base():
    frozen = jax.random.normal(jax.random.key(2), (8, 8))
    params = draw(a=(8, 2), b=(2, 8), head=(8, 3))

    def loss(p, x, key):
        x = jnp.tanh(x @ frozen.astype(x.dtype) + 0.5 * (x @ p["a"] @ p["b"]))
        return jnp.sum(jnp.sin(x @ p["head"]))

    check_sums(loss, params, X, share=1.0)


@pytest.mark.slow
def test_a_graph_network_with_segment_sums():
    params = draw(message=(16, 8), update=(16, 8), readout=(8, 2))
    senders = jax.random.randint(jax.random.key(6), (3, 10), 0, 6)
    receivers = jax.random.randint(jax.random.key(7), (3, 10), 0, 6)

    def loss(p, example, key):
        nodes, senders, receivers = example
        for _ in range(2):
            pairs = jnp.concatenate([nodes[senders], nodes[receivers]], axis=-1)
            messages = jax.ops.segment_sum(jnp.tanh(pairs @ p["message"]), receivers, 6)
            nodes = jnp.tanh(jnp.concatenate([nodes, messages], axis=-1) @ p["update"])
        return jnp.sum(jnp.sin(nodes.sum(0) @ p["readout"]))

    check_sums(loss, params, (X, senders, receivers), share=1.0)


@pytest.mark.slow
def test_a_mixture_of_experts_with_the_top_two():
    params = draw(router=(8, 4), up=(4, 8, 16), down=(4, 16, 8))

    def loss(p, x, key):
        logits = x @ p["router"]
        top, chosen = jax.lax.top_k(jax.nn.softmax(logits), 2)
        gates = (jax.nn.one_hot(chosen, 4, dtype=x.dtype) * top[..., None]).sum(-2)
        hidden = jax.nn.relu(jnp.einsum("td,edh->eth", x, p["up"]))
        return jnp.sum(jnp.sin(jnp.einsum("eth,ehd,te->td", hidden, p["down"], gates)))

    check_sums(loss, params, X, share=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["s4", "lru"])
def test_state_spaces_by_associative_scan(model):
    params = draw(into=(8, 5), out=(5, 8), skip=(8, 8), rate=(5,), phase=(5,))

    def loss(p, x, key):
        decay = jnp.exp(-jnp.exp(p["rate"]))
        if model == "s4":
            elements = (jnp.broadcast_to(decay, (6, 5)), x @ p["into"])
        else:
            eigenvalue = decay * jnp.exp(1j * p["phase"])
            elements = (jnp.broadcast_to(eigenvalue, (6, 5)), (x @ p["into"]).astype(complex))

        def combine(a, b):
            return a[0] * b[0], b[0] * a[1] + b[1]

        _, states = jax.lax.associative_scan(combine, elements)
        return jnp.sum(jnp.sin(states.real @ p["out"] + x @ p["skip"]))

    check_sums(loss, params, X, share=0.0)
    for name in ("into", "out", "skip"):
        check_sums(loss, params, X, share=1.0, only=name)


class Seq2Seq(nn.Module):
    """LSTM encoder and decoder with teacher forcing, by nn.scan over a cell of its own."""

    @nn.compact
    def __call__(self, source, target):
        scan = nn.scan(
            nn.OptimizedLSTMCell, variable_broadcast="params", split_rngs={"params": False}
        )
        embed = nn.Embed(11, 8)
        zeros = (jnp.zeros(7), jnp.zeros(7))
        carry, _ = scan(7, name="encoder")(zeros, embed(source))
        _, states = scan(7, name="decoder")(carry, embed(target[:-1]))
        return nn.Dense(11)(states)


@pytest.mark.slow
def test_translation_with_teacher_forcing():
    explanation = check_sums(*of_module(Seq2Seq(), IDS, IDS[:, ::-1]))
    assert all(choice.num_leaves == 4 for choice in explanation.choices if "coder" in choice.leaf)


class Agent(nn.Module):
    """A recurrent actor-critic whose state is reset where an episode ends."""

    @nn.compact
    def __call__(self, observations, resets):
        def step(cell, carry, inputs):
            x, reset = inputs
            carry = jnp.where(reset, jnp.zeros_like(carry), carry)
            return cell(carry, x)

        x = nn.relu(nn.Dense(8)(observations))
        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        _, states = scan(nn.GRUCell(8), jnp.zeros(8), (x, resets))
        return jnp.concatenate([nn.Dense(4)(states), nn.Dense(1)(states)], axis=-1)


@pytest.mark.slow
def test_a_recurrent_agent():
    resets = jax.random.bernoulli(jax.random.key(1), 0.3, (3, 6))
    check_sums(*of_module(Agent(), X, resets))


@pytest.mark.slow
def test_a_variational_autoencoder():
    params = draw(up=(48, 16), mean=(16, 4), scale=(16, 4), down=(4, 16), out=(16, 48))

    def loss(p, x, key):
        x = x.reshape(-1)
        hidden = jnp.tanh(x @ p["up"])
        mean, log_std = hidden @ p["mean"], hidden @ p["scale"]
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
        reconstruction = jnp.tanh(z @ p["down"]) @ p["out"]
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_std) - 1 - 2 * log_std)
        return jnp.mean((reconstruction - x) ** 2) + 0.1 * divergence

    check_sums(loss, params, X, share=1.0)


def test_one_kernel_for_queries_keys_and_values():
    """GPT-2's Conv1D: one product, split afterwards; its token table is also the output."""
    params = draw(wte=(11, 8), wpe=(6, 8), qkv=(8, 24), qkv_bias=(24,), out=(8, 8))

    def loss(p, ids, key):
        x = p["wte"][ids] + p["wpe"][jnp.arange(6)]
        q, k, v = jnp.split(x @ p["qkv"] + p["qkv_bias"], 3, axis=-1)
        scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), q @ k.T, -1e9)
        x = x + jax.nn.softmax(scores) @ v @ p["out"]
        return jnp.sum(jnp.sin(x @ p["wte"].T))

    check_sums(loss, params, IDS, share=1.0)


def test_mixed_precision_by_casting_the_parameters():
    params = draw(up=(8, 16), down=(16, 3))

    def loss(p, x, key):
        p, x = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (p, x))
        return jnp.sum(jnp.tanh(x @ p["up"]) @ p["down"]).astype(jnp.float32)

    mask, key = jnp.ones(3, bool), jax.random.key(0)
    grad = grads.clipped_grad(loss, clip_norm=0.1)
    result = jax.jit(grad)(params, X, mask, key)
    expected = oracles.clipped_sum(loss, params, X, mask, key, clip_norm=0.1)
    oracles.assert_same_sum(result, expected, rtol=3e-2)
    assert grad.explain(params, X[0], key, batch_size=3).ghost_share == 1.0


@pytest.mark.slow
def test_an_l2_penalty_is_explicit_with_advice():
    params = draw(kernel=(8, 8), head=(8, 2))

    def loss(p, x, key):
        penalty = sum(jnp.sum(w**2) for w in jax.tree.leaves(p))
        return jnp.sum(jnp.sin(jnp.tanh(x @ p["kernel"]) @ p["head"])) + 1e-2 * penalty

    explanation = check_sums(loss, params, X, share=0.0)
    assert {c.advice for c in explanation.choices} == {"put weight decay into the optimiser"}
