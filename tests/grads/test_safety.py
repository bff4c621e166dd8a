"""No record counts for more than the clip norm, however float32 and flax may conspire."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen.dtypes import promote_dtype

from jaxpriv import grads
from tests import oracles

KEY = jax.random.key(0)


def contribution(loss, params, example, *, clip_norm):
    """Norm of one record's share of the sum, over the clip norm."""
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], example)
    grad = jax.jit(grads.clipped_grad(loss, clip_norm=clip_norm))
    return oracles.tree_norm(grad(params, batch, jnp.ones(1, bool), KEY).total) / clip_norm


def assert_same_as_loop(loss, params, batch, *, clip_norm=1.0):
    mask = jnp.ones(len(jax.tree.leaves(batch)[0]), bool)
    result = jax.jit(grads.clipped_grad(loss, clip_norm=clip_norm))(params, batch, mask, KEY)
    expected = oracles.clipped_sum(loss, params, batch, mask, KEY, clip_norm=clip_norm)
    oracles.assert_same_sum(result, expected)


@pytest.mark.parametrize(
    "ids", oracles.slow_after(1, [[7, 1, 9, -9], [-1, 4, -1, 4], [0, -5, 0, 2], [3, 3, -2, 8]])
)
@pytest.mark.parametrize("tied", [False, True])
def test_negative_and_absent_ids(ids, tied):
    """Row -1 is the last row; what is out of range has none. Norm and sum agree on both."""
    embed = nn.Embed(5, 3)
    params = embed.init(KEY, jnp.zeros(4, jnp.int32))

    def loss(params, ids, key):
        rows = embed.apply(params, ids) * jnp.arange(1.0, 5.0)[:, None]
        total = 3.0 * jnp.where(jnp.isnan(rows), 0.0, rows).sum()
        if tied:
            total += jnp.sum(jnp.sin(embed.apply(params, jnp.ones((2, 3)), method="attend")))
        return total

    assert_same_as_loop(loss, params, jnp.array([ids, [0, 1, 2, 3]]))
    assert contribution(loss, params, jnp.array(ids), clip_norm=0.1) <= 1 + 1e-5


def test_a_table_of_one_row():
    embed = nn.Embed(1, 3)
    params = embed.init(KEY, jnp.zeros(1, jnp.int32))

    def loss(params, ids, key):
        attended = embed.apply(params, jnp.ones((1, 3)), method="attend")
        return 100 * jnp.sum(jnp.sin(embed.apply(params, ids))) - 100 * jnp.sum(attended)

    assert_same_as_loop(loss, params, jnp.array([[0, 5, -1], [0, 0, 0]]))


@pytest.mark.parametrize(("inputs", "outputs", "scale"), [(784, 1024, 255.0), (512, 512, 1.0)])
@pytest.mark.parametrize("noise", [0.0, 1e-3, 1e-1])
def test_positions_that_nearly_cancel(inputs, outputs, scale, noise):
    """A Gram product cannot see what is left of them; the sum can."""
    dense = nn.Dense(outputs, use_bias=False)
    params = {"params": {"kernel": jnp.zeros((inputs, outputs))}}
    rng = np.random.default_rng(0)

    def loss(params, x, key):
        y = dense.apply(params, x)
        return (y[0] - y[1]).sum()

    grad = jax.jit(grads.clipped_grad(loss, clip_norm=0.1))
    worst = 0.0
    for _ in range(10):
        first = scale * rng.random(inputs)
        x = np.stack([first, first + noise * rng.normal(size=inputs)]).astype(np.float32)
        result = grad(params, jnp.asarray(x)[None], jnp.ones(1, bool), KEY)
        worst = max(worst, oracles.tree_norm(result.total) / 0.1)
    assert worst <= 1 + 1e-5


@pytest.mark.parametrize("exponent", [-30, -24, -20, -16, -10, 10, 15])
def test_gradients_too_small_or_large_to_square(exponent):
    """One position or two, tiny cotangents on large inputs."""
    dense = nn.Dense(3, use_bias=False)
    params = {"params": {"kernel": jnp.zeros((4, 3))}}
    factor = 10.0**exponent

    def loss(params, x, key):
        return factor * dense.apply(params, x).sum()

    for shape in ((4,), (2, 4)):
        for clip_norm in (1e-8, 1.0):
            grad = jax.jit(grads.clipped_grad(loss, clip_norm=clip_norm))
            for size in (1.0, 1e6, 1e18):
                result = grad(params, jnp.full((1, *shape), size), jnp.ones(1, bool), KEY)
                assert oracles.tree_norm(result.total) <= clip_norm * (1 + 1e-5)


def test_a_clip_norm_below_what_float32_squares_is_refused():
    with pytest.raises(ValueError, match="clip_norm >= 1e-12"):
        grads.clipped_grad(lambda p, x, k: jnp.sum(p), clip_norm=1e-13)


def test_axes_in_any_order():
    """Flax sorts the contracted axes."""
    dense = nn.DenseGeneral(4, axis=(-1, -2))
    x = jax.random.normal(KEY, (3, 5, 6, 7))
    params = dense.init(KEY, x[0])
    assert_same_as_loop(lambda p, x, k: jnp.sum(jnp.sin(dense.apply(p, x))), params, x)


def test_a_promotion_of_the_users_own_is_explicit():
    def heavier(inputs, kernel, bias, dtype):
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=dtype)
        return inputs, 10 * kernel, bias

    dense = nn.Dense(4, promote_dtype=heavier)
    x = jax.random.normal(KEY, (3, 5))
    params = dense.init(KEY, x[0])
    assert_same_as_loop(lambda p, x, k: jnp.sum(jnp.sin(dense.apply(p, x))), params, x)


@pytest.mark.parametrize("calls_inside", [True, False])
@pytest.mark.parametrize("on_input", [True, False])
def test_interceptors_of_the_users_own_are_respected(calls_inside, on_input):
    def triple(next_fun, args, kwargs, context):
        if context.method_name != "__call__":
            return next_fun(*args, **kwargs)
        return next_fun(3 * args[0]) if on_input else 3 * next_fun(*args)

    dense = nn.Dense(4)
    x = jax.random.normal(KEY, (3, 5))
    params = dense.init(KEY, x[0])

    def loss(params, x, key):
        if not calls_inside:
            return jnp.sum(jnp.sin(dense.apply(params, x)))
        with nn.intercept_methods(triple):
            return jnp.sum(jnp.sin(dense.apply(params, x)))

    if calls_inside:
        assert_same_as_loop(loss, params, x)
    else:
        with nn.intercept_methods(triple):
            assert_same_as_loop(loss, params, x)


class SharedScope(nn.Module):
    """A Dense in its parent's scope, beside another Dense and a parameter that nobody reads."""

    def setup(self):
        self.own = nn.Dense(4)
        self.other = nn.Dense(4)
        nn.share_scope(self, self.own)
        self.unused = self.param("unused", nn.initializers.ones, (2,))

    def __call__(self, x):
        return self.own(jnp.tanh(self.other(x)))


def test_shared_scopes():
    model = SharedScope()
    x = jax.random.normal(KEY, (3, 4))
    params = model.init(KEY, x[0])
    assert_same_as_loop(lambda p, x, k: jnp.sum(jnp.sin(model.apply(p, x))), params, x)


@pytest.mark.parametrize("cell", oracles.slow_after(1, [nn.GRUCell, nn.SimpleCell, nn.LSTMCell]))
def test_arguments_by_name_in_any_order(cell):
    rnn = nn.RNN(cell(4))
    x = jax.random.normal(KEY, (3, 5, 2))
    params = rnn.init(KEY, x[0])
    start = jnp.full(4, 0.3)
    carry = (start, start) if cell is nn.LSTMCell else start

    def loss(params, x, key):
        return jnp.sum(jnp.sin(rnn.apply(params, initial_carry=carry, inputs=x)))

    assert_same_as_loop(loss, params, x)


def test_a_convolution_with_nothing_to_say():
    """The window is larger than the image: no output, a zero gradient."""
    conv = nn.Conv(2, (5, 5), padding="VALID")
    params = conv.init(KEY, jnp.ones((5, 5, 1)))
    x = jnp.ones((2, 3, 3, 1))
    assert_same_as_loop(lambda p, x, k: jnp.sum(conv.apply(p, x)), params, x)


def test_explaining_the_oracle_says_explicit():
    dense = nn.Dense(2)
    params = dense.init(KEY, jnp.ones(3))

    def loss(params, x, key):
        return dense.apply(params, x).sum()

    args = (params, jnp.ones(3), KEY)
    explicit = grads.explicit_clipped_grad(loss, clip_norm=1.0).explain(*args, batch_size=4)
    assert {choice.method for choice in explicit.choices} == {"explicit"}
    ghost = grads.clipped_grad(loss, clip_norm=1.0).explain(*args, batch_size=4)
    assert {choice.method for choice in ghost.choices} == {"outer product"}
