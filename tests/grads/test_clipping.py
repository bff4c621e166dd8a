"""clipped_grad against the loop over examples, for Dense layers and everything beside them."""

import math

import flax.linen as nn
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given

from jaxpriv import grads
from tests import oracles
from tests.grads import forced


class Tied(nn.Module):
    """Dense over positions, one module applied twice, a layer without a rule, dropout."""

    @nn.compact
    def __call__(self, x, *, dropout_key=None):
        shared = nn.Dense(6, name="shared")
        x = nn.tanh(shared(nn.Dense(6, name="first")(x)))
        x = nn.LayerNorm(name="norm")(shared(x))
        if dropout_key is not None:
            x = nn.Dropout(0.5, deterministic=False)(x, rng=dropout_key)
        return nn.Dense(3, use_bias=False, name="last")(x).sum(0)


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


MODEL = Tied()
X = jax.random.normal(jax.random.key(1), (7, 4, 5))
Y = jnp.arange(7) % 3
MASK = jnp.arange(7) != 2
PARAMS = MODEL.init(jax.random.key(0), X[0])


def plain_loss(params, example, key):
    x, y = example
    return cross_entropy(MODEL.apply(params, x), y)


def dropout_loss(params, example, key):
    x, y = example
    return cross_entropy(MODEL.apply(params, x, dropout_key=key), y)


def penalised_loss(params, example, key):
    kernel = params["params"]["shared"]["kernel"]
    return plain_loss(params, example, key) + 0.1 * jnp.sum(kernel**2)


def raw_product_loss(params, example, key):
    x, _ = example
    first = params["params"]["first"]
    hidden = nn.tanh(x @ first["kernel"]).sum()
    return plain_loss(params, example, key) + hidden


def inner_vmap_loss(params, example, key):
    x, _ = example
    dense = nn.Dense(6)
    rows = jax.vmap(lambda row: dense.apply({"params": params["params"]["first"]}, row))(x)
    return plain_loss(params, example, key) + jnp.sum(jnp.sin(rows))


def inner_scan_loss(params, example, key):
    x, _ = example
    dense = nn.Dense(6)

    def step(carry, row):
        return carry + dense.apply({"params": params["params"]["first"]}, row).sum(), None

    return plain_loss(params, example, key) + jax.lax.scan(step, jnp.float32(0), x)[0]


def inner_jit_cond_grad_loss(params, example, key):
    x, y = example
    base = jax.jit(plain_loss)(params, example, key)
    branch = jax.lax.cond(y > 0, lambda p: plain_loss(p, example, key), lambda p: base, params)
    slope = jax.grad(lambda x: MODEL.apply(params, x).sum())(x)
    return base + branch + jnp.sum(slope**2)


LOSSES = [
    plain_loss,
    dropout_loss,
    penalised_loss,
    raw_product_loss,
    inner_vmap_loss,
    inner_scan_loss,
    inner_jit_cond_grad_loss,
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize(
    "make", oracles.slow_after(1, [grads.clipped_grad, grads.explicit_clipped_grad])
)
def test_equals_the_loop_over_examples(loss, make, keys):
    (key,) = keys(1)
    clip_norms = (0.3, 50.0)
    makes = [make(loss, clip_norm=c) for c in clip_norms]
    result = jax.jit(lambda *args: [grad(*args) for grad in makes])(PARAMS, (X, Y), MASK, key)
    for clipped, clip_norm in zip(result, clip_norms, strict=True):
        expected = oracles.clipped_sum(loss, PARAMS, (X, Y), MASK, key, clip_norm=clip_norm)
        oracles.assert_same_sum(clipped, expected)


@pytest.mark.parametrize("size", oracles.slow_after(2, [3, 100, 1, 2, 7]))
def test_microbatched_equals_whole(size, keys):
    (key,) = keys(1)
    full = jax.jit(grads.clipped_grad(dropout_loss, clip_norm=0.5))(PARAMS, (X, Y), MASK, key)
    parts = grads.clipped_grad(dropout_loss, clip_norm=0.5, microbatch_size=size)
    oracles.assert_same_sum(jax.jit(parts)(PARAMS, (X, Y), MASK, key), full)


def test_jit_equals_eager_and_vmap_equals_loop(keys):
    grad = grads.clipped_grad(dropout_loss, clip_norm=0.5)
    many = keys(3)
    batched = jax.jit(jax.vmap(grad, in_axes=(None, None, None, 0)))(PARAMS, (X, Y), MASK, many)
    for i, call in enumerate((grad, jax.jit(grad), jax.jit(grad))):
        expected = call(PARAMS, (X, Y), MASK, many[i])
        oracles.assert_same_sum(jax.tree.map(lambda leaf, i=i: leaf[i], batched), expected)


def test_traces_once(keys):
    traced = []

    def loss(params, example, key):
        traced.append(1)
        return plain_loss(params, example, key)

    step = jax.jit(grads.clipped_grad(loss, clip_norm=1.0))
    for key in keys(3):
        step(PARAMS, (X, Y), MASK, key)
    assert len(traced) == 1


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
def test_lowers_for_accelerators(make, keys):
    oracles.assert_lowers(make(plain_loss, clip_norm=1.0), PARAMS, (X, Y), MASK, keys(1)[0])


def test_kernels_need_no_explicit_gradients():
    grad = grads.clipped_grad(plain_loss, clip_norm=1.0)
    choices = grad.explain(PARAMS, (X[0], Y[0]), jax.random.key(0), batch_size=7).choices
    explicit = {choice.leaf for choice in choices if choice.method == "explicit"}
    assert explicit == {"['params']['norm']['scale']"}


def test_no_per_example_kernel_gradient_is_made():
    """1,000 examples of a 1,000 x 1,000 kernel would be 4 GB; shapes in the program tell."""
    dense = nn.Dense(1000)
    params = jax.eval_shape(dense.init, jax.random.key(0), jnp.ones(1000))
    args = (params, jnp.ones((1000, 1000)), jnp.ones(1000, bool), jax.random.key(0))
    grad = grads.clipped_grad(lambda p, x, key: dense.apply(p, x).sum(), clip_norm=1.0)
    text = str(jax.make_jaxpr(grad)(*args))
    assert "1000,1000]" in text
    assert "1000,1000,1000]" not in text


def test_frozen_parameters_are_outside_norm_and_sum(keys):
    (key,) = keys(1)
    frozen, trainable = PARAMS["params"]["first"], dict(PARAMS["params"])
    del trainable["first"]

    def loss(params, example, key):
        return plain_loss({"params": {**params, "first": frozen}}, example, key)

    result = jax.jit(grads.clipped_grad(loss, clip_norm=0.4))(trainable, (X, Y), MASK, key)
    expected = oracles.clipped_sum(loss, trainable, (X, Y), MASK, key, clip_norm=0.4)
    assert set(result.total) == {"shared", "norm", "last"}
    oracles.assert_same_sum(result, expected)


def test_the_same_array_in_two_leaves_stays_two_parameters(keys):
    (key,) = keys(1)
    kernel = jnp.eye(5)
    params = {"a": {"kernel": kernel}, "b": {"kernel": kernel}}

    def loss(params, x, key):
        dense = nn.Dense(5, use_bias=False)
        hidden = jnp.tanh(dense.apply({"params": params["a"]}, x))
        return jnp.sum(dense.apply({"params": params["b"]}, hidden) ** 2)

    result = jax.jit(grads.clipped_grad(loss, clip_norm=1.0))(params, X, MASK, key)
    oracles.assert_same_sum(result, oracles.clipped_sum(loss, params, X, MASK, key, clip_norm=1.0))


def test_plain_jax_and_unused_leaves(keys):
    (key,) = keys(1)
    params = {"w": jnp.arange(5.0), "unused": jnp.ones(3)}

    def loss(params, x, key):
        return jnp.sum(x @ params["w"])

    result = jax.jit(grads.clipped_grad(loss, clip_norm=1.0))(params, X, MASK, key)
    oracles.assert_same_sum(result, oracles.clipped_sum(loss, params, X, MASK, key, clip_norm=1.0))
    assert not result.total["unused"].any()


def test_a_scalar_bias_in_a_vmap(keys):
    """vmap adds a scalar to an array without a broadcast, so their ranks differ."""
    (key,) = keys(1)
    params = {"w": jnp.arange(5.0), "b": jnp.float32(0.5)}

    def loss(params, x, key):
        return jnp.sum(jax.vmap(lambda row: params["w"] @ row + params["b"])(x) ** 2)

    result = jax.jit(grads.clipped_grad(loss, clip_norm=1.0))(params, X, MASK, key)
    oracles.assert_same_sum(result, oracles.clipped_sum(loss, params, X, MASK, key, clip_norm=1.0))


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
@pytest.mark.parametrize("bad", oracles.slow_after(1, [jnp.nan, jnp.inf, 3e38]))
def test_a_non_finite_example_contributes_zero(make, bad, keys):
    (key,) = keys(1)
    grad = jax.jit(make(plain_loss, clip_norm=0.5))
    poisoned = X.at[4].set(bad)
    result = grad(PARAMS, (poisoned, Y), MASK, key)
    without = grad(PARAMS, (X, Y), MASK.at[4].set(False), key)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(result.total))
    if not np.isfinite(result.norms[4]):
        oracles.assert_same_sum(result._replace(norms=without.norms), without)


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
def test_padding_may_hold_anything(make, keys):
    (key,) = keys(1)
    grad = jax.jit(make(plain_loss, clip_norm=0.5))
    result = grad(PARAMS, (X.at[2].set(jnp.nan), Y), MASK, key)
    oracles.assert_same_sum(result, grad(PARAMS, (X, Y), MASK, key))
    assert result.norms[2] == 0


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
def test_empty_batches_batches_of_one_and_zero_gradients(make, keys):
    (key,) = keys(1)
    grad = jax.jit(make(plain_loss, clip_norm=0.5))
    empty = grad(PARAMS, (X, Y), jnp.zeros(7, bool), key)
    assert all(not leaf.any() for leaf in jax.tree.leaves(empty))
    clipped = grad(PARAMS, (X[:1], Y[:1]), jnp.ones(1, bool), key)
    assert oracles.tree_norm(clipped.total) == pytest.approx(
        min(0.5, float(clipped.norms[0])), rel=1e-5
    )
    flat = jax.jit(make(lambda p, e, k: 0.0 * plain_loss(p, e, k), clip_norm=0.5))
    still = flat(PARAMS, (X, Y), MASK, key)
    assert all(not leaf.any() for leaf in jax.tree.leaves(still))


@given(scale=st.floats(-10, 10).map(lambda e: 10.0**e), row=st.integers(0, 6))
def test_no_example_counts_for_more_than_the_clip_norm(scale, row):
    """Sensitivity: one example's share of the sum has norm at most C (1 + 1e-5)."""
    only = jnp.arange(7) == row
    total, norms = _one_row(jnp.float32(scale), only)
    assert oracles.tree_norm(total) <= 0.7 * (1 + 1e-5)
    assert oracles.tree_norm(total) == pytest.approx(min(0.7, float(norms[row])), rel=1e-4)


@jax.jit
def _one_row(scale, only):
    def loss(params, example, key):
        return scale * plain_loss(params, example, key)

    grad = grads.clipped_grad(loss, clip_norm=0.7)
    return grad(PARAMS, (X, Y), only, jax.random.key(0))


class Half(nn.Module):
    @nn.compact
    def __call__(self, x):
        with jax.numpy_dtype_promotion("standard"):
            x = nn.tanh(nn.Dense(16, dtype=jnp.bfloat16)(x))
        return nn.Dense(3)(x.astype(jnp.float32))


def test_half_precision_keeps_float32_sums_within_its_rounding(keys):
    """bfloat16 activations round to 8 bits; norms and sums are float32 of those."""
    (key,) = keys(1)
    model = Half()
    params = model.init(jax.random.key(0), X[0, 0])

    def loss(params, example, key):
        x, y = example
        return cross_entropy(model.apply(params, x[0]), y)

    result = jax.jit(grads.clipped_grad(loss, clip_norm=0.5))(params, (X, Y), MASK, key)
    exact = oracles.clipped_sum(loss, params, (X, Y), MASK, key, clip_norm=0.5)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype("float32")}
    oracles.assert_same_sum(result, exact, rtol=2e-2)
    clipped = jax.jit(grads.clipped_grad(loss, clip_norm=1e-3))(
        params, (X[:1], Y[:1]), MASK[:1], key
    )
    assert oracles.tree_norm(clipped.total) <= 1e-3 * (1 + 1e-5)


def test_sensitivity_doubles_for_replacement():
    grad = grads.clipped_grad(plain_loss, clip_norm=1.5)
    assert grad.clip_norm == 1.5
    assert grad.sensitivity("add_or_remove_one") == 1.5
    assert grad.sensitivity("replace_one") == 3.0
    with pytest.raises(ValueError, match="Expected relation to be one of"):
        oracles.unhooked(grads.ClippedGrad.sensitivity)(grad, "swap")


@pytest.mark.parametrize("clip_norm", [0, -1.0, math.inf, math.nan, "one"])
def test_refuses_a_clip_norm_that_bounds_nothing(clip_norm):
    with pytest.raises(ValueError, match="clip_norm"):
        oracles.unhooked(grads.clipped_grad)(plain_loss, clip_norm=clip_norm)


@pytest.mark.parametrize("size", [0, -2, 1.5])
def test_refuses_a_bad_microbatch_size(size):
    with pytest.raises(ValueError, match="microbatch_size"):
        oracles.unhooked(grads.clipped_grad)(plain_loss, clip_norm=1.0, microbatch_size=size)


def test_refuses_a_loss_without_a_key():
    with pytest.raises(
        ValueError, match=r"Expected loss\(params, example, key\), got loss\(p, e\)"
    ):
        grads.clipped_grad(lambda p, e: jnp.sum(p), clip_norm=1.0)
    grads.clipped_grad(lambda p, e, key=None: jnp.sum(p), clip_norm=1.0)


def test_refuses_what_does_not_fit(keys):
    (key,) = keys(1)
    grad = grads.clipped_grad(plain_loss, clip_norm=1.0)
    with pytest.raises(ValueError, match="Expected 7 rows as in the mask"):
        grad(PARAMS, (X[:3], Y), MASK, key)
    with pytest.raises(ValueError, match="real floating-point params, got int32"):
        grad({"n": jnp.arange(3)}, (X, Y), MASK, key)
    with pytest.raises(ValueError, match="real and imaginary parts as two leaves"):
        grad({"n": jnp.ones(3, complex)}, (X, Y), MASK, key)
    rows = grads.clipped_grad(lambda p, e, k: MODEL.apply(p, e[0]), clip_norm=1.0)
    with pytest.raises(ValueError, match="to be a real scalar"):
        rows(PARAMS, (X, Y), MASK, key)
    with_aux = grads.clipped_grad(lambda p, e, k: (plain_loss(p, e, k), e), clip_norm=1.0)
    with pytest.raises(ValueError, match="returns one scalar, got a tuple"):
        with_aux(PARAMS, (X, Y), MASK, key)


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
@pytest.mark.parametrize("size", oracles.slow_after(1, [3, None]))
def test_losses_come_with_the_sum_in_the_same_pass(make, size, keys):
    (key,) = keys(1)
    grad = make(dropout_loss, clip_norm=0.5, microbatch_size=size)
    clipped, values = jax.jit(grad.with_values)(PARAMS, (X, Y), MASK, key)
    oracles.assert_same_sum(clipped, jax.jit(grad)(PARAMS, (X, Y), MASK, key))
    expected = [
        dropout_loss(PARAMS, (X[i], Y[i]), k) for i, k in enumerate(jax.random.split(key, 7))
    ]
    np.testing.assert_allclose(values, jnp.where(MASK, jnp.stack(expected), 0), rtol=1e-5)


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
def test_an_empty_batch_and_python_floats_as_parameters(make, keys):
    (key,) = keys(1)
    grad = make(lambda p, x, k: p["a"] * jnp.sum(x) + jnp.sum(p["b"]), clip_norm=2.0)
    params = {"a": 0.5, "b": jnp.ones(2)}
    total, norms = grad(params, jnp.zeros((0, 3)), jnp.zeros(0, bool), key)
    assert norms.shape == (0,)
    assert not jnp.any(total["b"])
    result = grad(params, jnp.ones((2, 3)), jnp.ones(2, bool), key)
    np.testing.assert_allclose(result.norms, [math.sqrt(11.0)] * 2, rtol=1e-6)


@pytest.mark.parametrize("bad", oracles.slow_after(1, [jnp.nan, jnp.inf, 3e38]))
def test_in_a_loop_over_examples_what_has_no_weight_may_hold_anything(bad, keys):
    (key,) = keys(1)
    expected = oracles.clipped_sum(
        plain_loss, PARAMS, (X, Y), MASK.at[4].set(False), key, clip_norm=0.5
    )
    with forced.looped():
        grad = jax.jit(grads.clipped_grad(plain_loss, clip_norm=0.5))
        result = grad(PARAMS, (X.at[2].set(bad).at[4].set(bad), Y), MASK, key)
    assert result.norms[2] == 0
    if np.isfinite(result.norms[4]):  # LayerNorm brings a large example back
        result = grad(PARAMS, (X.at[2].set(bad), Y), MASK.at[4].set(False), key)
    oracles.assert_same_sum(result._replace(norms=result.norms.at[4].set(0)), expected)


def test_a_loop_over_no_examples_gives_zero(keys):
    with forced.looped():
        result = jax.jit(grads.clipped_grad(plain_loss, clip_norm=0.5))(
            PARAMS, (X[:0], Y[:0]), MASK[:0], keys(1)[0]
        )
    assert result.norms.shape == (0,)
    assert all(not leaf.any() for leaf in jax.tree.leaves(result.total))


def test_in_a_loop_over_examples_leaves_keep_types_of_their_own():
    with jax.enable_x64(True), forced.looped():
        params = {"a": jnp.ones((5, 6), jnp.float32), "b": jnp.ones((6, 3), jnp.float64)}

        def loss(params, x, key):
            hidden = jnp.tanh(x.astype(jnp.float32) @ params["a"])
            return jnp.sum(jnp.sin(hidden.astype(jnp.float64) @ params["b"]))

        # At many positions the gradients are multiplied out in the loop.
        args = (params, jnp.tile(X, (1, 20, 1)), MASK, jax.random.key(0))
        result = jax.jit(grads.clipped_grad(loss, clip_norm=0.4))(*args)
        expected = oracles.clipped_sum(loss, *args, clip_norm=0.4)
        oracles.assert_same_sum(result, expected)
        assert result.total["a"].dtype == jnp.float32
        assert result.total["b"].dtype == jnp.float64
