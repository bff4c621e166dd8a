"""Layers of flax.linen against the loop over examples, in every configuration that they accept."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import grads
from jaxpriv.grads import _ghost_factors
from tests import oracles

IMAGE, SERIES = (7, 6, 4), (9, 4)


def check_layer(model, shape, *, ghosts, batch=3, ids=None, method=None, call=None):
    """The clipped sum of a nonlinear loss equals the loop's, and the named leaves are not explicit.

    ghosts: leaf names (last part of the path); "all" for all but biases and scales of norms.
    """
    keys = jax.random.split(jax.random.key(5), 4)
    x = jax.random.normal(keys[0], (batch, *shape)) if ids is None else ids
    params = model.init(keys[1], x[0])
    call = call or (lambda params, x: model.apply(params, x, method=method))

    def loss(params, x, key):
        leaves = jax.tree.leaves(call(params, x))
        return sum(jnp.sum(jnp.sin(leaf + 0.3) ** 2) for leaf in leaves)

    params = jax.tree.map(lambda p, k=keys[2]: p + 0.1 * jax.random.normal(k, p.shape), params)
    grad = grads.clipped_grad(loss, clip_norm=0.8)
    choices = grad.explain(params, x[0], keys[3], batch_size=batch).choices
    explicit = {c.leaf.split("'")[-2] for c in choices if c.method == "explicit"}
    assert not explicit & ({"kernel", "embedding"} if ghosts == "all" else set(ghosts))
    mask = jnp.arange(batch) != 1
    expected = oracles.clipped_sum(loss, params, x, mask, keys[3], clip_norm=0.8)
    oracles.assert_same_sum(jax.jit(grad)(params, x, mask, keys[3]), expected)
    return choices


DENSE = {
    "dense": (nn.Dense(5), (4,)),
    "dense_positions": (nn.Dense(5), (3, 2, 4)),
    "dense_many_positions": (nn.Dense(2), (30, 3)),
    "dense_few_positions": (nn.Dense(40), (2, 30)),
    "dense_no_bias": (nn.Dense(5, use_bias=False), (4,)),
    "general": (nn.DenseGeneral((2, 3)), (5, 4)),
    "general_axes": (nn.DenseGeneral((2, 3), axis=(-3, -1)), (2, 3, 4, 5)),
    "general_first": (nn.DenseGeneral(3, axis=0), (4, 5)),
    "general_single": (nn.DenseGeneral(3, axis=(-2, -1)), (4, 5)),
}


@pytest.mark.parametrize("name", oracles.slow_after(5, DENSE))
def test_dense(name):
    check_layer(*DENSE[name], ghosts="all")


CONV = {
    "2d": nn.Conv(3, (3, 2)),
    "valid": nn.Conv(3, (3, 3), padding="VALID"),
    "strides": nn.Conv(3, (3, 3), strides=(2, 1)),
    "even_window": nn.Conv(3, (4, 2), strides=2),
    "dilated": nn.Conv(3, (2, 3), kernel_dilation=(2, 1)),
    "input_dilated": nn.Conv(3, (3, 2), input_dilation=(1, 2), padding=((1, 1), (2, 0))),
    "groups": nn.Conv(6, (3, 3), feature_group_count=2),
    "depthwise": nn.Conv(8, (2, 2), feature_group_count=4, strides=2),
    "padding_int": nn.Conv(3, (3, 3), padding=2),
    "padding_pairs": nn.Conv(3, (3, 3), padding=((2, 0), (0, 1)), strides=2),
    "circular": nn.Conv(3, (3, 2), padding="CIRCULAR", kernel_dilation=2),
    "reflect": nn.Conv(3, (3, 3), padding="REFLECT"),
    "same_lower": nn.Conv(3, (2, 2), padding="SAME_LOWER", strides=(1, 2)),
    "no_bias": nn.Conv(3, (2, 2), use_bias=False),
    "many_channels": nn.Conv(40, (3, 3), padding="VALID", strides=3),
}


@pytest.mark.parametrize("name", oracles.slow_after(5, CONV))
def test_conv(name):
    check_layer(CONV[name], IMAGE, ghosts="all")


@pytest.mark.parametrize(
    "module",
    oracles.slow_after(
        1,
        [
            nn.Conv(3, (3,)),
            nn.Conv(3, 3, strides=2, padding="VALID"),
            nn.Conv(3, (3,), padding="CAUSAL", kernel_dilation=2),
            nn.Conv(4, (2,), padding=[1], feature_group_count=2),
        ],
    ),
)
def test_conv_1d(module):
    check_layer(module, SERIES, ghosts="all")


def test_conv_over_several_images_of_one_example():
    check_layer(nn.Conv(3, (2, 2)), (2, *IMAGE), ghosts="all")


@pytest.mark.parametrize(
    "module",
    oracles.slow_after(
        2,
        [
            nn.ConvTranspose(3, (3, 3)),
            nn.ConvTranspose(3, (3, 2), strides=(2, 3)),
            nn.ConvTranspose(3, (2, 2), strides=(3, 3), padding="VALID"),
            nn.ConvTranspose(3, (3, 3), strides=(2, 2), padding="VALID", kernel_dilation=(2, 1)),
            nn.ConvTranspose(3, (2, 3), strides=(2, 2), padding=((1, 1), (0, 2)), use_bias=False),
        ],
    ),
)
def test_conv_transpose(module):
    check_layer(module, (4, 3, 2), ghosts="all")


@pytest.mark.slow
def test_unusual_configurations():
    check_layer(nn.ConvTranspose(2, (3, 3), padding="CIRCULAR"), (4, 3, 2), ghosts="all")
    check_layer(nn.ConvTranspose(2, (2, 2), transpose_kernel=True), (4, 3, 2), ghosts="all")
    mask = jnp.ones((2, 2, 4, 3)).at[0].set(0.0)
    check_layer(nn.Conv(3, (2, 2), mask=mask), IMAGE, ghosts=())
    check_layer(nn.DenseGeneral(3, batch_dims=(0,), axis=-1), (2, 4), ghosts="all")
    check_layer(nn.Dense(3, dot_general=jax.lax.dot_general), (4,), ghosts="all")
    check_layer(nn.ConvLocal(2, (2, 2)), (3, 3, 2), ghosts="all")


NORMS = [
    nn.LayerNorm(),
    nn.LayerNorm(reduction_axes=(-2, -1), feature_axes=(-2, -1)),
    nn.RMSNorm(),
    nn.GroupNorm(num_groups=2),
    nn.InstanceNorm(),
    nn.PReLU(),
    nn.BatchNorm(use_running_average=True),
]


@pytest.mark.parametrize("module", oracles.slow_after(3, NORMS), ids=lambda m: type(m).__name__)
def test_norms_and_scales_are_explicit(module):
    if isinstance(module, nn.BatchNorm):
        stats = module.init(jax.random.key(0), jnp.ones(IMAGE))["batch_stats"]

        def call(params, x):
            return module.apply({"params": params["params"], "batch_stats": stats}, x)

        wrapped = _WithoutStatistics(module)
        check_layer(wrapped, IMAGE, ghosts=(), call=call)
    else:
        check_layer(module, IMAGE, ghosts=())


class _WithoutStatistics:
    """Initialises the trainable leaves alone."""

    def __init__(self, module):
        self.module = module

    def init(self, key, x):
        return {"params": self.module.init(key, x)["params"]}


IDS = jnp.array([[0, 3, 3, 1, 9, 3], [1, 1, 1, 1, 1, 1], [5, 4, 3, 2, 1, 0]])


class Tied(nn.Module):
    """An embedding that also gives the logits, and is looked up twice."""

    def setup(self):
        self.embed = nn.Embed(10, 4)
        self.dense = nn.Dense(4)

    def __call__(self, ids):
        x = jnp.tanh(self.dense(self.embed(ids))) + self.embed(ids[::-1])
        return self.embed.attend(x)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8])
def test_embed_with_repeated_ids(dtype):
    check_layer(nn.Embed(10, 4), (6,), ids=IDS.astype(dtype), ghosts="all")


def test_embed_of_a_long_sequence(monkeypatch):
    """Past the longest Gram, equal ids are added up by sorting."""
    monkeypatch.setattr(_ghost_factors, "_MAX_GRAM", 3)
    check_layer(nn.Embed(10, 4), (6,), ids=IDS, ghosts="all")
    check_layer(Tied(), (6,), ids=IDS, ghosts="all")


def test_a_tied_embedding_is_one_leaf():
    choices = check_layer(Tied(), (6,), ids=IDS, ghosts="all")
    (method,) = [c.method for c in choices if "embedding" in c.leaf]
    assert method in ("gram + lookup", "gradient")


def test_padding_tokens_without_weight_change_nothing():
    ids = IDS

    def loss(params, example, key):
        ids, weight = example
        return jnp.sum(jnp.sum(jnp.sin(model.apply(params, ids)), -1) * weight)

    class Causal(nn.Module):
        @nn.compact
        def __call__(self, ids):
            return nn.Dense(3)(nn.Embed(10, 4)(ids))

    model = Causal()
    params = model.init(jax.random.key(0), ids[0])
    weight = jnp.broadcast_to((jnp.arange(6) < 4).astype(jnp.float32), (3, 6))
    grad = jax.jit(grads.clipped_grad(loss, clip_norm=0.5))
    args = (jnp.ones(3, bool), jax.random.key(1))
    padded = grad(params, (ids.at[:, 4:].set(7), weight), *args)
    other = grad(params, (ids.at[:, 4:].set(0), weight), *args)
    short = grad(params, (ids[:, :4], weight[:, :4]), *args)
    for again in (other, short):
        oracles.assert_same_sum(again, padded)


@pytest.mark.parametrize("qkv", oracles.slow_after(1, [None, 12]))
def test_self_attention(qkv):
    model = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=qkv)
    check_layer(model, (5, 8), ghosts="all")


class CrossAttention(nn.Module):
    @nn.compact
    def __call__(self, x):
        mask = jnp.tril(jnp.ones((1, 5, 5), bool))
        y = nn.SelfAttention(2)(nn.LayerNorm()(x), mask=mask)
        return nn.MultiHeadDotProductAttention(2)(y, jnp.sin(x[:3]))


@pytest.mark.slow
def test_masked_self_and_cross_attention():
    check_layer(CrossAttention(), (5, 8), ghosts={"kernel"})


CELLS = {
    "lstm": nn.LSTMCell,
    "optimised_lstm": nn.OptimizedLSTMCell,
    "gru": nn.GRUCell,
    "simple": nn.SimpleCell,
    "residual": lambda size: nn.SimpleCell(size, residual=True),
    "custom": lambda size: nn.LSTMCell(size, gate_fn=nn.hard_sigmoid, activation_fn=jnp.sin),
}


@pytest.mark.parametrize("cell", oracles.slow_after(2, CELLS))
def test_recurrent_cells(cell):
    check_layer(nn.RNN(CELLS[cell](5)), (6, 4), ghosts="all")


LENGTHS = jnp.array([4])


@pytest.mark.parametrize(
    ("options", "arguments"),
    oracles.slow_after(
        2,
        [
            ({}, {"seq_lengths": LENGTHS, "reverse": True, "keep_order": True}),
            ({"return_carry": True, "reverse": True}, {"seq_lengths": LENGTHS}),
            ({"reverse": True}, {}),
            ({"reverse": True, "keep_order": True}, {}),
            ({}, {"return_carry": True}),
            ({"time_major": True}, {"return_carry": True}),
        ],
    ),
)
@pytest.mark.parametrize("cell", oracles.slow_after(1, [nn.LSTMCell, nn.GRUCell]))
def test_recurrent_options(cell, options, arguments):
    model = nn.RNN(cell(5), **options)

    def call(params, x):
        return model.apply(params, x, **arguments)

    shape = (6, 1, 4) if options.get("time_major") else (1, 6, 4)
    check_layer(model, shape, ghosts="all", call=call)


class SharedCell(nn.Module):
    """One cell of the parent's in two RNNs, the second started from the first one's end."""

    def setup(self):
        cell = nn.GRUCell(4)
        self.encode = nn.RNN(cell, return_carry=True)
        self.decode = nn.RNN(cell)

    def __call__(self, x):
        carry, ys = self.encode(x)
        return self.decode(jnp.cos(ys), initial_carry=carry)


def test_a_shared_cell_and_a_handed_over_state():
    check_layer(SharedCell(), (6, 4), ghosts="all")


@pytest.mark.slow
def test_bidirectional():
    model = nn.Bidirectional(nn.RNN(nn.LSTMCell(4)), nn.RNN(nn.GRUCell(3)))
    check_layer(model, (6, 4), ghosts="all")


@pytest.mark.slow
def test_other_cells_and_cells_stepped_by_hand():
    check_layer(nn.RNN(nn.MGUCell(4)), (5, 4), ghosts="all")
    check_layer(_CellByHand(), (5, 4), ghosts="all")


class _CellByHand(nn.Module):
    """A cell stepped by a Python loop."""

    @nn.compact
    def __call__(self, x):
        cell = nn.LSTMCell(4)
        carry = cell.initialize_carry(jax.random.key(0), x[0].shape)
        for row in x:
            carry, y = cell(carry, row)
        return y


class Lifted(nn.Module):
    """nn.scan and nn.remat over layers, nn.vmap over copies."""

    @nn.compact
    def __call__(self, x):
        block = nn.scan(
            nn.remat(_Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        x, _ = block()(x, None)
        x = nn.remat(nn.Dense)(4, name="again")(x)
        copies = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True})
        return copies(3)(x)


class _Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return jnp.tanh(nn.Dense(4)(x)), None


def test_lifted_layers():
    check_layer(Lifted(), (3, 4), ghosts="all")


def test_batch_statistics_are_refused_by_path():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.BatchNorm(name="norm")(nn.Dense(3)(x), use_running_average=not train)

    model, x = Net(), jnp.ones((4, 5, 2))
    variables = model.init(jax.random.key(0), x[0], train=False)

    def loss(params, x, key, *, train):
        all_variables = {"params": params, "batch_stats": variables["batch_stats"]}
        out, _ = model.apply(all_variables, x, train=train, mutable=["batch_stats"])
        return jnp.sum(out**2)

    args = (variables["params"], x, jnp.ones(4, bool), jax.random.key(0))
    for make in (grads.clipped_grad, grads.explicit_clipped_grad):
        grad = make(lambda p, x, k: loss(p, x, k, train=True), clip_norm=1.0)
        with pytest.raises(ValueError, match=r"BatchNorm at 'norm'.*GroupNorm") as caught:
            grad(*args)
        assert "\n" not in str(caught.value)
        fine = make(lambda p, x, k: loss(p, x, k, train=False), clip_norm=1.0)(*args)
        assert np.isfinite(fine.norms).all()
