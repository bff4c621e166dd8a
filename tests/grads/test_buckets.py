"""Rows cut to few widths: the same sums and norms, at the widths that the rows need."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, sampling, training
from tests import oracles

WIDTH, ROWS = 9, 13


def loss(w, example, key):
    """Padding does not count."""
    del key
    x, length = example
    hidden = jnp.tanh(x @ w["in"])
    is_real = (jnp.arange(len(x)) < length)[:, None]
    return jnp.where(is_real, hidden, 0).sum(axis=0) @ w["out"]


def buckets(widths=(2, 4), rows=3):
    return grads.LengthBuckets(
        length=lambda example: example[1],
        cut=lambda example, width: (example[0][:width], example[1]),
        widths=widths,
        rows=rows,
    )


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    w = {"in": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "out": jnp.ones(4)}
    lengths = jnp.asarray(rng.permutation([1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 5, 7, 9]), jnp.int32)
    x = jnp.asarray(rng.normal(size=(ROWS, WIDTH, 3)), jnp.float32)
    return w, (x, lengths), jnp.asarray(rng.random(ROWS) < 0.7)


@pytest.mark.parametrize("make", [grads.clipped_grad, grads.explicit_clipped_grad])
@pytest.mark.parametrize("rows", [3, 100])
def test_clipped_sums_and_norms_are_those_without_buckets(problem, make, rows, keys):
    w, batch, mask = problem
    (key,) = keys(1)
    expected = oracles.clipped_sum(loss, w, batch, mask, key, clip_norm=0.8)
    assert (expected[1] > 0.8).any()
    result = jax.jit(make(loss, clip_norm=0.8, buckets=buckets(rows=rows)))(w, batch, mask, key)
    oracles.assert_same_sum(result, expected)


def test_values_keep_their_rows(problem, keys):
    w, batch, mask = problem
    (key,) = keys(1)
    grad = grads.clipped_grad(loss, clip_norm=0.8, buckets=buckets())
    _, values = jax.jit(grad.with_values)(w, batch, mask, key)
    each = [loss(w, (batch[0][i], batch[1][i]), key) for i in range(ROWS)]
    np.testing.assert_allclose(values, np.where(mask, each, 0), rtol=1e-5, atol=1e-6)


def test_sgd_with_buckets_is_sgd(problem, keys):
    w, batch, mask = problem
    (key,) = keys(1)
    sampler = sampling.fixed_batch(ROWS, batch_size=ROWS)
    results = []
    for options in ({}, {"buckets": buckets()}):
        alg = training.sgd(loss, optax.sgd(0.1), sampler, **options)
        results.append(jax.jit(alg.update)(key, alg.init(w), batch, mask))
    (plain, plain_info), (state, info) = results
    assert oracles.largest_difference(state.params, plain.params) < 1e-6
    assert float(info.loss) == pytest.approx(float(plain_info.loss), rel=1e-5)


def test_rows_are_computed_at_the_widths_that_they_need(problem, keys):
    """Two rows of lengths 1 and 2 are cut to 2; a NaN beyond that place would show."""
    w, (x, lengths), _ = problem
    (key,) = keys(1)
    grad = grads.clipped_grad(loss, clip_norm=1.0, buckets=buckets(rows=2))
    short = jnp.argsort(lengths)[jnp.array([0, 2])]
    rows = x[short].at[:, 2:].set(jnp.nan), lengths[short]
    clipped = jax.jit(grad)(w, rows, jnp.ones(2, bool), key)
    assert np.isfinite(clipped.norms).all()
    full = grads.clipped_grad(loss, clip_norm=1.0)
    assert np.isinf(jax.jit(full)(w, rows, jnp.ones(2, bool), key).norms).all()


def test_a_batch_without_rows_gives_zero(problem, keys):
    w, batch, _ = problem
    grad = grads.clipped_grad(loss, clip_norm=1.0, buckets=buckets())
    total, norms = jax.jit(grad)(w, batch, jnp.zeros(ROWS, bool), keys(1)[0])
    assert not any(np.asarray(leaf).any() for leaf in (*jax.tree.leaves(total), norms))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (4, 2)}, "increasing widths"),
        ({"widths": (0, 2)}, "width"),
        ({"rows": 0}, "rows"),
    ],
)
def test_impossible_buckets_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        oracles.unhooked(buckets)(**options)


def test_a_microbatch_size_beside_buckets_is_refused():
    sampler = sampling.fixed_batch(ROWS, batch_size=ROWS)
    options = {"microbatch_size": 4, "buckets": buckets()}
    with pytest.raises(ValueError, match="microbatch_size=None with buckets"):
        grads.clipped_grad(loss, clip_norm=1.0, **options)
    with pytest.raises(ValueError, match="microbatch_size=None with buckets"):
        training.sgd(loss, optax.sgd(0.1), sampler, **options)
