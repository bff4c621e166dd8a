"""Random JAX functions of random parameters: factors equal explicit gradients.

A program is a list of operations on x [4, 6]; each reads parameters through a random
rearrangement, so that leaves are shared, sliced, joined, stacked and cast in every combination.
"""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from jaxpriv import grads
from tests import oracles
from tests.grads import forced

SHAPES = {
    "a": (6, 6),
    "b": (6, 6),
    "tall": (12, 6),
    "half": (6, 3),
    "stack": (3, 6, 6),
    "groups": (2, 3, 3),
    "bias": (6,),
}

SQUARES = {
    "whole": lambda p: p["a"],
    "other": lambda p: p["b"],
    "transposed": lambda p: p["a"].T,
    "reversed": lambda p: p["b"][::-1],
    "reshaped": lambda p: p["b"].reshape(2, 3, 6).reshape(6, 6),
    "top": lambda p: p["tall"][:6],
    "bottom": lambda p: p["tall"][6:],
    "even": lambda p: p["tall"][::2],
    "odd": lambda p: p["tall"][1::2],
    "split": lambda p: jnp.split(p["tall"], 2)[0].T,
    "joined": lambda p: jnp.concatenate([p["half"], p["a"][:, 3:]], axis=1),
    "doubled": lambda p: jnp.concatenate([p["half"], p["half"]], axis=1),
    "mixed": lambda p: jnp.concatenate([p["half"], jnp.ones((6, 3))], axis=1),
    "layer": lambda p: p["stack"][1],
    "last_layer": lambda p: p["stack"][-1][:, ::-1],
    "cast": lambda p: p["a"].astype(jnp.float16).astype(jnp.float32),
    "expanded": lambda p: p["b"][None, :, None].squeeze((0, 2)),
    "scaled": lambda p: 0.5 * p["b"],
    "product": lambda p: p["a"] @ p["b"],
}


def _scan_constant(p, square, x):
    def step(x, _):
        return jnp.tanh(x @ square + p["bias"]), None

    return jax.lax.scan(step, x, length=3)[0]


def _scan_rows(p, square, x):
    def step(x, row):
        return x + jnp.tanh(x @ row), None

    return jax.lax.scan(step, x @ square, p["stack"])[0]


def _scan_carried(p, square, x):
    def step(carry, row):
        x, w = carry
        return (jnp.tanh(x @ w + row), w), x.sum()

    (x, w), sums = jax.lax.scan(step, (x, square), x)
    return x @ w + sums.sum()


def _scan_in_scan(p, square, x):
    def outer(x, row):
        def inner(x, _):
            return jnp.tanh(x @ row) @ square, None

        return jax.lax.scan(inner, x, length=2)[0], None

    return jax.lax.scan(outer, x, p["stack"])[0]


def _remat_rows(p, square, x):
    @jax.checkpoint
    def step(x, row):
        return jnp.tanh(x @ row), None

    return jax.lax.scan(step, jax.checkpoint(lambda x, w: x @ w)(x, square), p["stack"])[0]


OPERATIONS = {
    "product": lambda p, w, x: x @ w,
    "transposed": lambda p, w, x: (w @ x.T).T,
    "vmap": lambda p, w, x: jax.vmap(lambda row: row @ w)(x),
    "jit": lambda p, w, x: jax.jit(jnp.dot)(x, w),
    "einsum": lambda p, w, x: jnp.einsum("td,dhk->thk", x, w.reshape(6, 2, 3)).reshape(4, 6),
    "lookup": lambda p, w, x: x + w[jnp.array([0, 3, 3, -1])],
    "take": lambda p, w, x: x + jnp.take(w, jnp.array([5, 9, 1, 1]), axis=0, mode="clip"),
    "row": lambda p, w, x: x + jax.lax.dynamic_index_in_dim(w, jnp.argmax(x[0]), 0),
    "groups": lambda p, w, x: (
        jnp.einsum("tgi,gio->tgo", x.reshape(4, 2, 3), p["groups"]).reshape(4, 6) @ w
    ),
    "convolution": lambda p, w, x: (
        jax.lax.conv_general_dilated(
            x[None],
            p["stack"],
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
        )[0]
        @ w
    ),
    "bias": lambda p, w, x: x @ w + p["bias"],
    "penalty": lambda p, w, x: x + jnp.sum(w**2),
    "cond": lambda p, w, x: jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x),
    "scan_constant": _scan_constant,
    "scan_rows": _scan_rows,
    "scan_carried": _scan_carried,
    "scan_in_scan": _scan_in_scan,
    "remat_rows": _remat_rows,
    "remat": lambda p, w, x: jax.checkpoint(lambda w, x: jnp.tanh(x @ w) @ w.T)(w, x),
}

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(sorted(SQUARES))),
    min_size=1,
    max_size=3,
)


def check_program(program, seed, jit=jax.jit):
    keys = jax.random.split(jax.random.key(seed), len(SHAPES) + 2)
    params = {
        name: 0.5 * jax.random.normal(k, shape)
        for (name, shape), k in zip(SHAPES.items(), keys, strict=False)
    }
    x = jax.random.normal(keys[-1], (3, 4, 6))

    def loss(params, x, key):
        for operation, square in program:
            x = jnp.sin(OPERATIONS[operation](params, SQUARES[square](params), x) + 0.3)
        return jnp.sum(x * jnp.arange(6.0))

    mask, clip_norm = jnp.arange(3) != seed % 4, 10.0 ** (seed % 3)
    args = (params, x, mask, keys[-2])
    explicit = oracles.quick_jit(grads.explicit_clipped_grad(loss, clip_norm=clip_norm))(*args)
    with forced.looped(seed % 2 == 0):
        result = jit(grads.clipped_grad(loss, clip_norm=clip_norm))(*args)
    rtol = 3e-3 if any(square == "cast" for _, square in program) else 1e-4
    oracles.assert_same_sum(result, explicit, rtol=rtol)


@hypothesis.settings(max_examples=8)
@given(program=PROGRAMS, seed=st.integers(0, 99))
def test_random_functions(program, seed):
    check_program(program, seed)


@pytest.mark.slow
@hypothesis.settings(max_examples=40)
@given(program=PROGRAMS, seed=st.integers(0, 99))
def test_many_random_functions(program, seed):
    check_program(program, seed)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_with_every_rearrangement(operation):
    for seed, square in enumerate(SQUARES):
        check_program([(operation, square)], seed, oracles.quick_jit)
