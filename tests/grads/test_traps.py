"""Inputs on which recognising products goes wrong easily: each equals the loop over examples."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import grads
from tests import oracles

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 4, 6))
W = jax.random.normal(jax.random.key(2), (6, 6))


def check_sums(loss, params, batch=X, *, clip_norm=0.7, rtol=1e-5):
    """The clipped sum equals the loop's; returns the method of each leaf."""
    mask = jnp.ones(len(jax.tree.leaves(batch)[0]), bool)
    grad = grads.clipped_grad(loss, clip_norm=clip_norm)
    result = jax.jit(grad)(params, batch, mask, KEY)
    expected = oracles.clipped_sum(loss, params, batch, mask, KEY, clip_norm=clip_norm)
    oracles.assert_same_sum(result, expected, rtol=rtol)
    first = jax.tree.map(lambda x: x[0], batch)
    return [c.method for c in grad.explain(params, first, KEY, batch_size=3).choices]


def test_unused_leaves_beside_a_layer():
    """A `bias` that the layer does not read is not part of the gradient."""
    dense = nn.Dense(2, use_bias=False)
    params = {"params": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
    grad = grads.clipped_grad(lambda p, x, k: jnp.sum(dense.apply(p, x)) ** 2, clip_norm=1e3)
    result = grad(params, jnp.ones((1, 3)), jnp.ones(1, bool), KEY)
    assert float(result.norms[0]) == pytest.approx(29.393877, rel=1e-6)
    assert not result.total["params"]["bias"].any()


def test_complex_inputs():
    """y = x W for complex x: |dW| is that of the real and imaginary parts together."""

    def loss(w, x, key):
        rotated = x.astype(complex) * jnp.exp(jnp.linspace(0.0, 2.0, 6).astype(complex) * 1j)
        return jnp.sum(jnp.abs(rotated @ w.astype(complex)) ** 2)

    assert check_sums(loss, W) == ["explicit"]


def test_a_tied_table_whose_one_use_has_no_cotangent():
    embed = nn.Embed(5, 3)
    params = embed.init(KEY, jnp.zeros(1, jnp.int32))

    def loss(params, ids, key):
        attended = embed.apply(params, jnp.ones((1, 3)), method="attend")
        return embed.apply(params, ids).sum() + 0.0 * attended.sum()

    grad = grads.clipped_grad(loss, clip_norm=10.0)
    result = grad(params, jnp.array([[1]]), jnp.ones(1, bool), KEY)
    assert float(result.norms[0]) == pytest.approx(3**0.5, rel=1e-5)


def test_shared_scopes_of_a_dense_and_an_embedding():
    class Shared(nn.Module):
        def setup(self):
            self.dense = nn.Dense(4)
            self.embed = nn.Embed(5, 4)
            nn.share_scope(self, self.dense)
            nn.share_scope(self, self.embed)

        def __call__(self, ids):
            return self.dense(self.embed(ids))

    model, ids = Shared(), jnp.array([[0, 1, 1], [4, 2, 0]])
    params = model.init(KEY, ids[0])
    check_sums(lambda p, ids, k: jnp.sum(jnp.sin(model.apply(p, ids))), params, ids)


@pytest.mark.parametrize("size", [1e30, 1e25, 1e-25])
@pytest.mark.parametrize("shape", [(6,), (4, 6)])
def test_a_finite_gradient_too_large_to_square_is_clipped(size, shape):
    """A gradient of 1e30 counts with the clip norm; it is not dropped."""

    def loss(w, x, key):
        return size * jnp.sum(x @ w["kernel"] + w["bias"])

    params = {"kernel": W, "bias": jnp.zeros(6)}
    for make in (grads.clipped_grad, grads.explicit_clipped_grad):
        x = jnp.ones((1, *shape))
        result = jax.jit(make(loss, clip_norm=1.0))(params, x, jnp.ones(1, bool), KEY)
        t = shape[0] if len(shape) == 2 else 1
        np.testing.assert_allclose(result.norms, size * t * (36 + 6) ** 0.5, rtol=1e-5)
        expected = min(1.0, float(result.norms[0]))
        assert oracles.tree_norm(result.total) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("left", "right"), [(1.0, 2e38), (1e-6, 2e38), (1e19, 1.7e19)])
@pytest.mark.parametrize(("positions", "size"), [(1, 2), (4, 40)])
def test_a_gradient_near_the_largest_float_does_not_exceed_the_clip_norm(
    left, right, positions, size
):
    """XLA flushes the reciprocals of numbers above 2^126 to 0, and a norm of 0 clips nothing."""

    def loss(w, example, key):
        x, factor = example
        return factor * jnp.sum(x @ w)

    x = jnp.zeros((1, positions, size)).at[0, 0].set(left), jnp.full(1, right)
    for make in (grads.clipped_grad, grads.explicit_clipped_grad):
        grad = make(loss, clip_norm=1.0)
        result = jax.jit(grad)(jnp.zeros((size, size)), x, jnp.ones(1, bool), KEY)
        assert float(result.norms[0]) >= 0.99 * min(left * right * size, 3.4e38)
        assert oracles.tree_norm(result.total) <= 1 + 1e-5


@pytest.mark.parametrize("constant", [1e-24, 2**-63.4, 2.0**64, 1e30])
@pytest.mark.parametrize("positions", [1, 4])
@pytest.mark.parametrize("remat", [False, True])
def test_a_constant_cotangent_is_scaled_before_it_is_squared(constant, positions, remat):
    """XLA turns (c / s)^2 into c^2 / s^2 for a constant c, and c^2 underflows or overflows."""

    def product(w, x):
        return constant * jnp.sum(x @ w)

    def loss(w, x, key):
        return (jax.checkpoint(product, prevent_cse=False) if remat else product)(w, x)

    x = jnp.full((2, positions, 3), 1e25 if constant < 1 else 1e-10)
    result = jax.jit(grads.clipped_grad(loss, clip_norm=1.0))(
        jnp.zeros(3), x, jnp.ones(2, bool), KEY
    )
    expected = constant * positions * float(x[0, 0, 0]) * np.sqrt(3)
    np.testing.assert_allclose(result.norms, expected, rtol=1e-5)
    assert oracles.tree_norm(result.total) == pytest.approx(min(2.0, 2 * expected), rel=1e-5)


@jax.custom_vjp
def straight_through(w):
    return jnp.round(w * 4) / 4


straight_through.defvjp(lambda w: (straight_through(w), None), lambda _, g: (2.0 * g,))


def test_a_quantiser_of_the_weights_keeps_its_own_rule():
    assert check_sums(lambda w, x, k: jnp.sum(jnp.sin(x @ straight_through(w))), W) == ["explicit"]


@jax.custom_jvp
def quantised_product(x, w):
    return x @ jnp.round(w)


@quantised_product.defjvp
def _quantised_jvp(primals, tangents):
    x, w = primals
    return quantised_product(x, w), tangents[0] @ w + 3.0 * (x @ tangents[1])


def test_a_product_with_its_own_rule_keeps_it():
    assert check_sums(lambda w, x, k: jnp.sum(jnp.sin(quantised_product(x, w))), W) == ["explicit"]


@pytest.mark.parametrize("remat", [False, True])
def test_parameters_cast_to_half_precision_stay_below_the_clip_norm(remat):
    """Totals are not rounded to bfloat16, which would exceed C by up to one part in 256."""

    def forward(w, x):
        return jnp.sum(jnp.tanh(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)))

    forward = jax.checkpoint(forward) if remat else forward
    grad = grads.clipped_grad(lambda w, x, k: forward(w, x).astype(jnp.float32), clip_norm=1e-2)
    for i in range(3):
        clipped = jax.jit(grad)(W, X[i : i + 1], jnp.ones(1, bool), KEY)
        assert oracles.tree_norm(clipped.total) <= 1e-2 * (1 + 1e-6)
        assert oracles.tree_norm(clipped.total) >= 1e-2 * (1 - 1e-5)
    choices = grad.explain(W, X[0], KEY, batch_size=3).choices
    assert [c.method for c in choices] != ["explicit"]


@pytest.mark.parametrize("narrow", ["cast", "leaf"])
def test_half_precision_outside_a_rematerialised_region_stays_below_the_clip_norm(narrow):
    """A second backward pass would round the sum, and not the norm, of the half-precision leaf."""
    half = W.astype(jnp.bfloat16) if narrow == "leaf" else W

    def loss(p, x, key):
        first = x.astype(jnp.bfloat16) @ p["half"].astype(jnp.bfloat16)
        inner = jax.checkpoint(lambda w, x: jnp.sum(jnp.tanh(x @ w)))
        return inner(p["w"], first.astype(jnp.float32))

    grad = jax.jit(grads.clipped_grad(loss, clip_norm=1e-2))
    for i in range(3):
        clipped = grad({"half": half, "w": W.T}, X[i : i + 1], jnp.ones(1, bool), KEY)
        assert oracles.tree_norm(clipped.total) <= 1e-2 * (1 + 1e-6)
        assert {leaf.dtype for leaf in jax.tree.leaves(clipped.total)} == {jnp.dtype("float32")}


def test_the_same_leaf_twice_in_one_concatenate():
    def loss(w, x, key):
        return jnp.sum(jnp.sin(x @ jnp.concatenate([w, w], axis=1)))

    assert check_sums(loss, W) == ["explicit"]


def test_overlapping_and_disjoint_slices():
    def loss(start):
        return lambda w, x, key: jnp.sum(jnp.sin(x @ w[:, :4])) + jnp.sum(x @ w[:, start:])

    assert check_sums(loss(3), W) == ["explicit"]
    assert check_sums(loss(4), W) != ["explicit"]


def test_a_traced_start_outside_a_lookup():
    def loss(w, x, key):
        start = (x[0, 0] > 0).astype(jnp.int32)
        return jnp.sum(jnp.sin(x[:, :3] @ jax.lax.dynamic_slice_in_dim(w, start, 3)))

    assert check_sums(loss, W) == ["explicit"]


def test_zero_sizes():
    params = {"none": jnp.ones((0, 6)), "w": W}

    def loss(p, x, key):
        empty = x[:0] @ p["w"]
        none = jnp.zeros((4, 0)) @ p["none"]
        return jnp.sum(jnp.sin(x @ p["w"])) + jnp.sum(empty) + jnp.sum(none)

    check_sums(loss, params)

    def no_positions(p, x, key):
        return jnp.sum(x[:0] @ p["w"]) + jnp.sum(x)

    check_sums(no_positions, params)


def test_an_empty_scan():
    def loss(w, x, key):
        def step(carry, row):
            return jnp.tanh(carry @ w + row), None

        return jnp.sum(x @ w) + jnp.sum(jax.lax.scan(step, x[0], x[:0])[0])

    check_sums(loss, W)


def test_parameters_carried_through_a_scan():
    def unchanged(w, x, key):
        def step(carry, row):
            h, w = carry
            return (jnp.tanh(h @ w + row), w), None

        (h, w), _ = jax.lax.scan(step, (x[0], w), x)
        return jnp.sum(h @ w)

    def changed(w, x, key):
        def step(carry, row):
            h, w = carry
            return (jnp.tanh(h @ w + row), 0.9 * w), None

        return jnp.sum(jax.lax.scan(step, (x[0], w), x)[0][0])

    def swapped(p, x, key):
        def step(carry, row):
            h, a, b = carry
            return (jnp.tanh(h @ a + row), b, a), None

        return jnp.sum(jax.lax.scan(step, (x[0], *p), x)[0][0])

    assert check_sums(unchanged, W) != ["explicit"]
    assert check_sums(changed, W) == ["explicit"]
    assert check_sums(swapped, (W, W.T)) == ["explicit"] * 2


def test_parameters_returned_by_a_scan():
    def loss(w, x, key):
        _, rows = jax.lax.scan(lambda c, row: (c, w), 0.0, x)
        return jnp.sum(rows * x[:, None]) + jnp.sum(x @ w)

    assert check_sums(loss, W) == ["explicit"]


@pytest.mark.slow
def test_a_loss_closed_over_tracers_of_an_outer_trace(keys):
    (key,) = keys(1)

    def sum_for(scale):
        def loss(w, x, key):
            return jnp.sum(jnp.sin(scale * (x @ w)))

        return grads.clipped_grad(loss, clip_norm=0.5)(W, X, jnp.ones(3, bool), key)

    scales = jnp.array([0.5, 2.0])
    for program in (jax.vmap(sum_for), jax.jit(lambda s: jax.lax.map(sum_for, s))):
        both = program(scales)
        for i in range(2):
            alone = sum_for(scales[i])
            oracles.assert_same_sum(jax.tree.map(lambda x, i=i: x[i], both), alone)
    slope = jax.jvp(lambda s: sum_for(s).norms, (scales[0],), (jnp.float32(1.0),))[1]
    assert jnp.isfinite(slope).all()


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int8])
def test_gather_modes_and_negative_ids(mode, dtype):
    ids = jnp.array([[0, 5, 2], [1, 1, 4]])
    if mode != "promise_in_bounds":
        ids = ids.at[0, 1].set(7).at[1, 0].set(-2 if dtype != jnp.uint8 else 100)

    def loss(w, ids, key):
        rows = w.at[ids].get(mode=mode, fill_value=0.5)
        return jnp.sum(jnp.sin(rows) * jnp.arange(1.0, 4.0)[:, None])

    assert check_sums(loss, W, ids.astype(dtype)) == ["lookup"]


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_lookups_under_vmap(mode):
    def loss(w, ids, key):
        rows = jax.vmap(lambda i: w.at[i].get(mode=mode, fill_value=0.5))(ids)
        return jnp.sum(jnp.sin(rows) * jnp.arange(1.0, 4.0)[:, None])

    assert check_sums(loss, W, jnp.array([[0, 5, 2], [1, 1, 4]])) == ["lookup"]


def test_negative_and_uneven_padding():
    kernel = jax.random.normal(KEY, (3, 6, 2))

    def loss(w, x, key):
        y = jax.lax.conv_general_dilated(
            x[None], w, (1,), [(-1, 2)], dimension_numbers=("NWC", "WIO", "NWC")
        )
        return jnp.sum(jnp.sin(y))

    assert check_sums(loss, kernel, jnp.tile(X, (1, 2, 1))) != ["explicit"]


@pytest.mark.parametrize(
    "dimensions", [("NCW", "OIW", "NCW"), ("NWC", "OWI", "NWC"), ("CWN", "WIO", "WNC")]
)
def test_dimension_orders_of_convolutions(dimensions):
    sizes = {"W": 3, "I": 3, "O": 4}
    kernel = jax.random.normal(KEY, tuple(sizes[d] for d in dimensions[1]))

    def loss(w, x, key):
        x = x.transpose([{"N": 0, "W": 1, "C": 2}[d] for d in dimensions[0]])
        y = jax.lax.conv_general_dilated(
            x,
            w,
            (2,),
            "SAME",
            rhs_dilation=(2,),
            feature_group_count=2,
            dimension_numbers=dimensions,
        )
        return jnp.sum(jnp.sin(y))

    assert check_sums(loss, kernel, jax.random.normal(KEY, (3, 2, 8, 6))) != ["explicit"]


def test_both_gates_share_one_product():
    """A sum of two products, split before it is added: one cotangent serves both."""
    params = {"x": jax.random.normal(KEY, (6, 8)), "h": jax.random.normal(KEY, (4, 8))}

    def loss(p, x, key):
        def step(h, row):
            a, b = jnp.split(row @ p["x"], 2)
            c, d = jnp.split(h @ p["h"], 2)
            return jnp.tanh(a + c) * jax.nn.sigmoid(b + d), None

        return jnp.sum(jax.lax.scan(step, jnp.zeros(4), x)[0])

    assert "explicit" not in check_sums(loss, params)


def test_rows_that_do_not_count_may_hold_anything_under_remat():
    def loss(w, x, key):
        return jnp.sum(jax.checkpoint(lambda w, x: jnp.log(jnp.abs(x @ w)))(w, x))

    grad = jax.jit(grads.clipped_grad(loss, clip_norm=0.5))
    mask = jnp.array([True, False, True])
    clean = grad(W, X, mask, KEY)
    dirty = grad(W, X.at[1].set(jnp.nan).at[2].set(jnp.inf), mask, KEY)
    alone = grad(W, X, jnp.array([True, False, False]), KEY)
    assert jnp.isfinite(clean.total).all()
    np.testing.assert_allclose(dirty.total, alone.total, rtol=1e-5)
    nothing = grad(W, X * jnp.nan, mask, KEY)
    assert not nothing.total.any()
    choices = grads.clipped_grad(loss, clip_norm=0.5).explain(W, X[0], KEY, batch_size=3).choices
    assert [c.method for c in choices] == ["second pass"]


def test_a_leaf_used_twice_in_a_rematerialised_region():
    """The norm of a sum is not that of its terms, so the operands are recorded instead."""

    def loss(w, x, key):
        return jnp.sum(jax.checkpoint(lambda w, x: jnp.tanh(x @ w) @ w.T)(w, x))

    assert check_sums(loss, W) in (["gram"], ["gradient"])
