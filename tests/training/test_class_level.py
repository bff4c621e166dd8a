"""Class-level DP-SGD: the sensitivity of a class, the noise, and independence between classes."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxpriv import grads, sampling, training
from jaxpriv.grads import _microbatching
from tests import oracles

CLASSES, ROWS, CLIP_NORM = 5, 4, 0.5
LABELS = np.array([4, 0, 2, 2, 4, 2, 0, 4, 4])  # classes 1 and 3 are empty
X = jax.random.normal(jax.random.key(3), (len(LABELS), 3))
PARAMS = {"w": jax.random.normal(jax.random.key(4), (3, 4)), "b": jnp.ones(4)}


def loss(params, x, key):
    return jnp.sum(jnp.tanh(x @ params["w"]) * params["b"]) ** 2


def stochastic_loss(params, x, key):
    return loss(params, x * jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype), key)


def make(loss=loss, *, z=0.0, q=1.0, labels=LABELS, rows=None, chunk=None, clip_norm=CLIP_NORM):
    grad = grads.clipped_grad(loss, clip_norm=clip_norm, microbatch_size=chunk)
    sampler = sampling.by_class(labels, num_classes=CLASSES, sampling_prob=q, rows=rows)
    return training.class_dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=z)


def moved(alg, state):
    """The noisy sum that a step of plain SGD at rate 1 has applied."""
    scale = alg.sampler.expected_batch_size
    return jax.tree.map(lambda p, s: scale * np.asarray(p - s, np.float64), PARAMS, state.params)


def slow_sum(loss, classes, clip_norm):
    """The clipped mean gradients of classes, in float64."""
    total = jax.tree.map(lambda p: np.zeros(p.shape), PARAMS)
    grad = oracles.quick_jit(jax.grad(loss))
    for x in classes:
        each = [grad(PARAMS, row, jax.random.key(0)) for row in x]
        mean = jax.tree.map(lambda *g: np.mean(np.asarray(g, np.float64), axis=0), *each)
        weight = min(1.0, clip_norm / oracles.tree_norm(mean))
        total = jax.tree.map(lambda t, m, w=weight: t + w * m, total, mean)
    return total


@pytest.mark.parametrize(("q", "clip_norm", "clipped_share"), [(1.0, 3.0, 1 / 3), (0.3, 0.5, 1.0)])
def test_a_step_adds_the_clipped_mean_gradients_of_the_sampled_classes(
    keys, q, clip_norm, clipped_share
):
    alg = make(q=q, clip_norm=clip_norm)
    key, other = keys(2)
    indices, mask = alg.sampler.sample(key)
    state, info = oracles.quick_jit(alg.update)(other, alg.init(PARAMS), X[indices], mask)
    drawn = [np.asarray(X[i[m]]) for i, m in zip(indices, mask, strict=True) if m.any()]
    assert 0 < len(drawn) < 3 if q < 1 else len(drawn) == 3
    assert oracles.largest_difference(moved(alg, state), slow_sum(loss, drawn, clip_norm)) < 1e-5
    assert info.batch_size == len(drawn)
    assert info.num_nonfinite == 0
    assert info.clipped_share == pytest.approx(clipped_share)


_STEP = jax.jit(
    lambda batch, mask: make().update(jax.random.key(0), make().init(PARAMS), batch, mask)
)


def summed(batch, mask):
    state, info = _STEP(batch, mask)
    return moved(make(), state), info


def data(seed, scale):
    """Records of all classes, with some that are infinite, and padding of any content."""
    rng = np.random.default_rng(seed)
    batch = (10.0**scale * rng.normal(size=(CLASSES, ROWS, 3))).astype(np.float32)
    mask = rng.random((CLASSES, ROWS)) < 0.6
    batch[rng.random((CLASSES, ROWS)) < 0.1] = rng.choice([np.inf, np.nan, 1e30])
    return batch, mask


def distance(first, second):
    return oracles.tree_norm(jax.tree.map(lambda a, b: a - b, first, second))


@given(st.integers(0, 10**6), st.integers(-3, 3), st.integers(0, CLASSES - 1))
def test_the_sensitivity_is_that_of_a_class(seed, scale, changed):
    batch, mask = data(seed, scale)
    total, _ = summed(batch, mask)
    others, other_mask = data(seed + 1, scale)
    without, replaced, replaced_mask = mask.copy(), batch.copy(), mask.copy()
    without[changed] = False
    replaced[changed], replaced_mask[changed] = others[changed], other_mask[changed]
    room = 1e-5 * CLASSES * CLIP_NORM
    assert distance(total, summed(batch, without)[0]) <= CLIP_NORM + room
    assert distance(total, summed(replaced, replaced_mask)[0]) <= 2 * CLIP_NORM + room


def test_the_sensitivity_is_attained():
    """Records that oppose each other: the test above is about the smallest possible bound."""
    x = jnp.where(jnp.arange(CLASSES)[:, None, None] == 0, 9.0, 0.0) * jnp.ones((CLASSES, ROWS, 3))

    def linear(params, x, key):
        return jnp.sum(x) * jnp.sum(params["b"])

    alg, mask = make(linear), jnp.ones((CLASSES, ROWS), bool)
    step = oracles.quick_jit(lambda y: alg.update(jax.random.key(0), alg.init(PARAMS), y, mask)[0])
    totals = [moved(alg, step(y)) for y in (x, -x)]
    assert distance(*totals) == pytest.approx(2 * CLIP_NORM, rel=1e-5)


@pytest.mark.parametrize("content", [np.nan, np.inf, 1e30, -7.0])
def test_a_class_depends_on_no_record_of_another_class(content):
    """Padding holds records of other classes, and a masked gradient may be 0 times infinity."""
    batch, mask = np.ones((CLASSES, ROWS, 3), np.float32), np.ones((CLASSES, ROWS), bool)
    mask[1:3, 2:], mask[3] = False, False
    expected, _ = summed(batch, mask)
    padded = np.where(mask[:, :, None], batch, np.float32(content))
    np.testing.assert_equal(summed(padded, mask)[0], expected)
    # The records of class 4 reach the sum through its own gradient alone.
    changed, kept = batch.copy(), mask.copy()
    changed[4] = content
    kept[4] = False
    difference = distance(summed(changed, mask)[0], summed(batch, kept)[0])
    assert difference <= CLIP_NORM * (1 + 1e-5)


def test_a_class_without_a_finite_gradient_counts_as_zero(keys):
    batch, mask = np.ones((CLASSES, ROWS, 3), np.float32), np.ones((CLASSES, ROWS), bool)
    batch[1, 2], batch[3, 0] = np.nan, np.inf
    finite = mask.copy()
    finite[[1, 3]] = False
    total, info = summed(batch, mask)
    assert oracles.largest_difference(total, summed(batch, finite)[0]) < 1e-6
    assert (int(info.batch_size), int(info.num_nonfinite)) == (5, 2)
    with pytest.warns(UserWarning, match="2 of 6 per-example gradients"):
        training.fit(keys(1)[0], make(), PARAMS, X.at[0].set(np.nan), steps=2)


@pytest.mark.parametrize("sampled", [0, 1, CLASSES])
def test_noise_has_the_stated_level_whatever_was_sampled(keys, sampled):
    """Std z S on the sum: sigma is accepted, 2/3 and 3/2 of it are rejected."""
    alg = make(lambda params, x, key: 0.0 * loss(params, x, key), z=1.6, q=0.4)
    batch = jnp.ones((CLASSES, ROWS, 3))
    mask = jnp.broadcast_to(jnp.arange(CLASSES)[:, None] < sampled, (CLASSES, ROWS))

    def noisy_sum(key):
        state, _ = alg.update(key, alg.init(PARAMS), batch, mask)
        leaves = zip(*map(jax.tree.leaves, (PARAMS, state.params)), strict=True)
        return jnp.concatenate([(p - s).ravel() for p, s in leaves]) * 0.4 * CLASSES

    noise = np.asarray(jax.jit(jax.vmap(noisy_sum))(keys(300)), np.float64)
    sigma = 1.6 * CLIP_NORM
    assert stats.kstest(noise.ravel(), "norm", (0, sigma)).pvalue > 1e-4
    for wrong in (2 / 3 * sigma, 3 / 2 * sigma):
        assert stats.kstest(noise.ravel(), "norm", (0, wrong)).pvalue < 1e-8
    correlation = np.corrcoef(noise.T)[np.triu_indices(noise.shape[1], 1)]
    assert np.abs(correlation).max() < 5 / math.sqrt(300)


@pytest.mark.parametrize("chunk", [2, "auto"])
def test_classes_processed_a_few_at_a_time_give_the_same(keys, chunk):
    key, other = keys(2)
    indices, mask = make(q=0.6).sampler.sample(key)
    whole, some = (
        oracles.quick_jit(alg.update)(other, alg.init(PARAMS), X[indices], mask)[0]
        for alg in (make(stochastic_loss, q=0.6), make(stochastic_loss, q=0.6, chunk=chunk))
    )
    assert oracles.largest_difference(some.params, whole.params) < 1e-6


def test_wider_padding_gives_the_same(keys):
    key, other = keys(2)
    states = []
    for rows in (4, 7):
        alg = make(stochastic_loss, q=0.6, rows=rows)
        indices, mask = alg.sampler.sample(key)
        update = oracles.quick_jit(alg.update)
        states.append(update(other, alg.init(PARAMS), X[indices], mask)[0])
    assert oracles.largest_difference(states[1].params, states[0].params) < 1e-6


def test_microbatches_without_a_class_are_skipped(keys):
    computed = []

    def sum_rows(batch, mask, keys):
        jax.debug.callback(lambda m: computed.append(int(m.sum())), mask)
        return jnp.where(mask, batch, 0).sum(), batch

    batch, mask = jnp.arange(1.0, 8.0), jnp.array([True] * 3 + [False] * 4)
    program = jax.jit(lambda: _microbatching.accumulate(sum_rows, batch, mask, keys(7), size=2))
    total, entries = program()
    jax.effects_barrier()
    assert total == 6
    assert entries.tolist() == [1, 2, 3, 4, 0, 0, 0]
    assert sorted(computed) == [1, 2]


def test_models_have_their_own_classes_in_fit_many(keys):
    labels = jnp.asarray(LABELS)
    members = np.array([[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]])

    def make_alg(k, labels):
        assert k == 6
        return make(stochastic_loss, z=1.0, q=0.6, labels=labels, rows=4, chunk=2)

    params = jax.tree.map(lambda p: jnp.stack([p, p]), PARAMS)
    states, info = training.fit_many(
        keys(2),
        make_alg,
        params,
        X,
        members=members,
        steps=3,
        hyper=labels[members],
        strategy="vmap",
    )
    assert info.info.batch_size.max() <= 3
    for i, key in enumerate(keys(2)):
        rows = members[i]
        alone, _ = training.fit(key, make_alg(6, LABELS[rows]), PARAMS, X[rows], steps=3)
        one = jax.tree.map(lambda p, i=i: p[i], states.params)
        assert oracles.largest_difference(one, alone.params) < 1e-5


def test_a_run_continues_from_its_checkpoints(keys, tmp_path):
    checkpoints = training.Checkpoints(directory=tmp_path / "run")

    def fit(steps, labels=LABELS, checkpoints=checkpoints):
        alg = make(z=1.0, q=0.6, labels=labels)
        return training.fit(keys(1)[0], alg, PARAMS, X, steps=steps, checkpoints=checkpoints)[0]

    fit(4)
    continued, at_once = fit(8), fit(8, checkpoints=None)
    for a, b in zip(*map(jax.tree.leaves, (continued, at_once)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"algorithm\.sampler\.table"):
        fit(8, labels=LABELS[::-1].copy())


def test_an_epoch_and_delta_count_classes(keys):
    """5 classes at q = 1/20 are an epoch of 20 steps; 0.01 is below 1/5 and above 1/900."""
    x, labels = jnp.tile(X, (100, 1)), np.tile(LABELS, 100)
    ends = []

    def evaluate(params, step):
        ends.append(step)
        return training.Evaluation({})

    budget = training.Budget(epsilon=50.0, delta=0.01, relation="add_or_remove_one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, history = training.fit(
            keys(1)[0],
            make(z=2.0, q=0.05, labels=labels),
            PARAMS,
            x,
            steps=40,
            budget=budget,
            evaluate=evaluate,
        )
    assert ends == [20, 40]
    assert 0 < history.epsilon < 50


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make(z=-1.0), "noise_multiplier >= 0"),
        (lambda: summed_by(lambda params, x, key: x), "return a scalar, got shape"),
        (
            lambda: with_sampler(training.class_dpsgd, sampling.poisson(9, sampling_prob=0.5)),
            r"such as sampling\.by_class\(\.\.\.\), got Poisson",
        ),
        (lambda: with_sampler(training.dpsgd, make().sampler), r"use training\.class_dpsgd"),
        (lambda: training.sgd(loss, optax.sgd(1.0), make().sampler), r"use training\.class_dpsgd"),
    ],
)
def test_refuses_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def with_sampler(make_alg, sampler):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    return oracles.unhooked(make_alg)(grad, optax.sgd(1.0), sampler, noise_multiplier=1.0)


def summed_by(loss):
    alg = make(loss)
    mask = jnp.ones((CLASSES, ROWS), bool)
    return alg.update(jax.random.key(0), alg.init(PARAMS), jnp.ones((CLASSES, ROWS, 3)), mask)
