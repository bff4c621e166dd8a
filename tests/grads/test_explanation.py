"""explain(): which way each parameter goes; and what that does to the memory."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxpriv import grads
from jaxpriv.grads import _ghost_cost
from jaxpriv.grads._ghost_factors import Outer
from tests import oracles
from tests.grads import forced


class Reader(nn.Module):
    """Embedding, LSTM, norm, a readout of one position."""

    @nn.compact
    def __call__(self, ids):
        x = nn.LayerNorm(name="norm")(
            nn.RNN(nn.OptimizedLSTMCell(8), name="rnn")(nn.Embed(50, 8)(ids))
        )
        return nn.Dense(200, name="wide")(nn.Dense(3, name="small")(x)).sum(0)


def explained(**settings):
    model, ids = Reader(), jnp.zeros(6, jnp.int32)
    params = model.init(jax.random.key(0), ids)["params"]

    def loss(params, ids, key):
        return jnp.sum(model.apply({"params": params}, ids) ** 2)

    grad = grads.clipped_grad(loss, clip_norm=1.0, **settings)
    params["unused"] = jnp.ones(3)
    explanation = grad.explain(params, ids, jax.random.key(0), batch_size=32)
    return {choice.leaf: choice for choice in explanation.choices}, str(explanation)


def test_each_parameter_has_its_method():
    choices, text = explained()
    methods = {leaf: choice.method for leaf, choice in choices.items()}
    assert methods["['Embed_0']['embedding']"] == "lookup"
    assert methods["['norm']['scale']"] == "explicit"
    assert methods["['unused']"] == "unused"
    assert methods["['small']['kernel']"] in ("gram", "gradient")
    assert methods["['wide']['kernel']"] in ("gram", "gradient")
    # The four kernels on the input, and those on the hidden state, are joined by the cell.
    assert choices["['OptimizedLSTMCell_0']['ii']['kernel']"].num_leaves == 4
    assert len(text.splitlines()) == 4 + len(choices)
    assert "with 3 more" in text


def explain_plain(loss, params, x=None):
    x = jnp.ones(3) if x is None else x
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    return grad.explain(params, x, jax.random.key(0), batch_size=4)


def test_many_positions_are_multiplied_out_and_one_is_an_outer_product():
    def methods(positions):
        explanation = explain_plain(lambda w, x, k: (x @ w).sum(), jnp.ones((8, 8)), positions)
        return explanation.choices[0].method

    assert methods(jnp.ones((256, 8))) == "gradient"
    assert methods(jnp.ones((2, 8))) == "gram"
    assert methods(jnp.ones(8)) == "outer product"


REASONS = {
    "read by integer_pow": lambda w, x: jnp.sum(jnp.tanh(x @ w)) + jnp.sum(w**3),
    "read by square": lambda w, x: jnp.sum(jnp.tanh(x @ w)) + jnp.sum(jnp.square(w)),
    "used through two different views": lambda w, x: jnp.sum((x @ w) ** 2) + (x @ w[:, :2]).sum(),
    "inside a cond": lambda w, x: jax.lax.cond(x[0] > 0, lambda w: (x @ w).sum(), jnp.sum, w),
    "both operands of dot_general are parameters": lambda w, x: (x @ (w @ w)).sum(),
    "read by stop_gradient": lambda w, x: (x @ jax.lax.stop_gradient(w)).sum(),
    "concatenated with another array": lambda w, x: (
        x @ jnp.concatenate([w, jnp.zeros_like(w)], 1)
    ).sum(),
    "meets complex numbers": lambda w, x: jnp.abs(x.astype(complex) @ w.astype(complex)).sum(),
}


@pytest.mark.parametrize("reason", REASONS)
def test_an_explicit_leaf_has_a_reason_and_advice(reason):
    (choice,) = explain_plain(lambda w, x, key: REASONS[reason](w, x), jnp.ones((3, 3))).choices
    assert choice.method == "explicit"
    assert choice.reason.startswith(reason)
    assert choice.advice


def test_the_share_of_parameters_without_explicit_gradients():
    params = {"kernel": jnp.ones((3, 4)), "scale": jnp.ones(4)}
    explanation = explain_plain(lambda p, x, key: (x @ p["kernel"] * p["scale"]).sum(), params)
    assert explanation.ghost_share == pytest.approx(12 / 16)
    assert all(not choice.advice for choice in explanation.choices if choice.method != "explicit")


def test_memory_is_what_the_arrays_take():
    choices, _ = explained()
    lookup = choices["['Embed_0']['embedding']"]
    assert lookup.bytes == 32 * 6 * (4 + 8 * 4)
    assert lookup.explicit_bytes == 32 * 50 * 8 * 4
    small, _ = explained(microbatch_size=8)
    assert small["['Embed_0']['embedding']"].bytes == lookup.bytes / 4


def temporary(grad, *args):
    """Bytes that the compiled program takes beside its inputs and outputs."""
    return jax.jit(grad).lower(*args).compile().memory_analysis().temp_size_in_bytes


def test_a_large_embedding_fits():
    """Vocabulary 50,000, batch 256: explicit gradients would take 3.3 GB."""
    embed, batch = nn.Embed(50_000, 64), 256
    ids = jax.ShapeDtypeStruct((batch, 32), jnp.int32)
    params = jax.eval_shape(embed.init, jax.random.key(0), jnp.zeros(32, jnp.int32))
    args = (params, ids, jax.ShapeDtypeStruct((batch,), bool), jax.random.key(0))

    def by_module(params, ids, key):
        return jnp.sum(jnp.sin(embed.apply(params, ids)))

    def by_hand(params, ids, key):
        return jnp.sum(jnp.sin(params["params"]["embedding"][ids]))

    assert temporary(grads.clipped_grad(by_module, clip_norm=1.0), *args) < 2**28
    assert temporary(grads.clipped_grad(by_hand, clip_norm=1.0), *args) < 2**28
    explicit = grads.explicit_clipped_grad(by_hand, clip_norm=1.0)
    assert temporary(explicit, *args) > 2**31
    pieces = grads.explicit_clipped_grad(by_hand, clip_norm=1.0, microbatch_size=16)
    assert temporary(pieces, *args) < 2**31


def test_nnx_models_go_by_split_and_merge(keys):
    """Random state, where there is any, is rebuilt from the key."""
    model = nnx.Sequential(nnx.Linear(4, 5, rngs=nnx.Rngs(0)), nnx.Linear(5, 2, rngs=nnx.Rngs(1)))
    structure, params = nnx.split(model, nnx.Param)

    def loss(params, x, key):
        return jnp.sum(jnp.tanh(nnx.merge(structure, params)(x)) ** 2)

    x, mask, (key,) = jax.random.normal(jax.random.key(1), (5, 4)), jnp.arange(5) < 4, keys(1)
    result = grads.clipped_grad(loss, clip_norm=0.2)(params, x, mask, key)
    oracles.assert_same_sum(result, oracles.clipped_sum(loss, params, x, mask, key, clip_norm=0.2))


def test_refuses_an_empty_batch_size():
    grad = grads.clipped_grad(lambda p, x, k: jnp.sum(p * x), clip_norm=1.0)
    with pytest.raises(ValueError, match="batch_size >= 1"):
        grad.explain(jnp.ones(2), jnp.ones(2), jax.random.key(0), batch_size=0)


def test_memory_of_a_gradient_that_is_multiplied_out_for_the_whole_batch():
    def choice():
        positions = jnp.ones((256, 8))
        return explain_plain(lambda w, x, k: (x @ w).sum(), jnp.ones((8, 8)), positions).choices[0]

    with forced.looped(False):
        stored = choice()
    assert (stored.method, stored.bytes) == ("gradient", 4 * 8 * 8 * 4)
    with forced.looped():  # only the two sides are stored
        assert choice().bytes == 4 * 2 * 256 * 8 * 4


def test_cotangents_of_equal_width_share_a_gram_product(monkeypatch):
    """At 64 positions a product of 64 by 512 alone is multiplied out; beside 128 by 512 it is not.

    The comparison of the cost model, at a rate at which the shared product decides it.
    """
    rates = _ghost_cost.Rates(loops=True, gram=1.0, total=0.0, entry=0.0, cache=None)
    monkeypatch.setattr(_ghost_cost, "_rates", lambda: rates)
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    small, large = (Outer(shape((64, i)), shape((64, 512))) for i in (64, 128))
    assert _ghost_cost.multiply_out([small])
    assert not _ghost_cost.multiply_out([small, large])
