"""Canaries: their gradients, their absence, and their scores."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxpriv import grads, sampling, training
from jaxpriv.audit import canaries
from tests import oracles

PARAMS = {"a": jnp.array([0.5, -1.0, 2.0]), "b": jnp.ones((2, 2))}
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
TWO = canaries.Dirac(jnp.array([[1, 3], [6, 0]]), jnp.array([3.0, -0.5]))


def loss(params, x, key):
    return jnp.sum((params["a"] - x) ** 2) / 2 + params["b"].sum() * x[0]


def test_dirac_canaries_are_constant_gradients_in_their_entries():
    """Entries count along the flattened leaves, and the norm is that of the scale."""
    tagged_loss = canaries.loss_with_canaries(loss, canaries=TWO)
    for tag, expected in ((0, [0, 1, 0, 1, 0, 0, 0]), (1, [1, 0, 0, 0, 0, 0, 1])):
        row = canaries.Tagged(jnp.zeros(3), jnp.int32(tag))
        grad = jax.grad(tagged_loss)(PARAMS, row, jax.random.key(0))
        flat = np.concatenate([np.ravel(grad["a"]), np.ravel(grad["b"])])
        np.testing.assert_allclose(flat, float(TWO.scales[tag]) / 2**0.5 * np.array(expected))


def test_absent_rows_add_nothing_to_a_clipped_sum(keys):
    """The sum equals that of a loop over the ordinary rows and the members among the canaries."""
    (key,) = keys(1)
    data = canaries.with_inputs(canaries.ordinary(X[:3]), X[3:], np.array([True, False, True]))
    data = canaries.with_dirac(data, TWO, np.array([False, True]))
    assert data.tag.tolist() == [-1, -1, -1, -1, -2, -1, -2, 1]
    clipped = grads.clipped_grad(canaries.loss_with_canaries(loss, canaries=TWO), clip_norm=0.7)
    batch = jax.tree.map(jnp.asarray, data)
    total, norms = clipped(PARAMS, batch, jnp.ones(8, bool), key)
    ordinary = jnp.asarray(X[[0, 1, 2, 3, 5]])
    expected, _ = oracles.clipped_sum(loss, PARAMS, ordinary, np.ones(5, bool), key, clip_norm=0.7)
    expected["a"][0] -= 0.5 / np.sqrt(2)
    expected["b"][1, 1] -= 0.5 / np.sqrt(2)
    for name in PARAMS:
        np.testing.assert_allclose(total[name], expected[name], rtol=1e-5, atol=1e-6)
    assert norms[4] == norms[6] == 0
    assert norms[7] == pytest.approx(0.5)


def test_scores_of_a_training_have_the_mean_and_the_noise_of_its_steps(keys):
    """Over k full batches a member is moved by k C, and noise by sqrt(k) z C, times the rate."""
    fit_key, canary_key, coin_key = keys(3)
    params, count, steps, z, rate = jnp.zeros(600), 600, 4, 3.0, 0.5
    dirac = canaries.dirac(canary_key, params, count=count, scale=5.0)
    assert len(set(dirac.positions[:, 0].tolist())) == count
    is_member = np.asarray(jax.random.bernoulli(coin_key, shape=(count,)))
    data = canaries.with_dirac(canaries.ordinary(np.zeros(1, np.float32)), dirac, is_member)
    tagged_loss = canaries.loss_with_canaries(lambda w, x, key: x * w[0], canaries=dirac)
    alg = training.dpsgd(
        grads.clipped_grad(tagged_loss, clip_norm=1.0),
        optax.sgd(rate),
        sampling.full_batch(count + 1),
        noise_multiplier=z,
    )
    state, _ = training.fit(fit_key, alg, params, data, steps=steps)
    # A canary's score has its scale as a factor.
    scores = np.asarray(dirac.scores(before=params, after=state.params)) / 5.0
    unit = rate / (count + 1)
    for members, mean in ((is_member, steps * unit), (~is_member, 0.0)):
        noise = (scores[members] - mean) / (unit * z * np.sqrt(steps))
        assert stats.kstest(noise, "norm").pvalue > 1e-5
        assert stats.kstest(noise + 0.5, "norm").pvalue < 1e-5


def test_a_canary_can_be_a_class_of_several_rows(keys):
    """One step equals a loop over the mean gradients of the classes that the coins include."""
    (key,) = keys(1)
    classes = np.array([0, 0, 1, 2, 2, 3])
    data = canaries.with_inputs(canaries.ordinary(X[:3]), X[3:], np.array([True, True, False]))
    sampler = sampling.by_class(classes, num_classes=4, sampling_prob=1.0)
    alg = training.class_dpsgd(
        grads.clipped_grad(canaries.loss_with_canaries(loss), clip_norm=0.7),
        optax.sgd(1.0),
        sampler,
        noise_multiplier=0.0,
    )
    indices, mask = sampler.sample(key)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], data)
    state, _ = alg.update(key, alg.init(PARAMS), batch, mask)
    total = np.zeros(7)
    for included in (0, 1, 2):
        rows = X[classes == included]
        mean = np.concatenate([(PARAMS["a"] - rows).mean(axis=0), np.full(4, rows[:, 0].mean())])
        total += mean * min(1, 0.7 / np.linalg.norm(mean))
    moved = [np.ravel(PARAMS[name] - state.params[name]) for name in PARAMS]
    np.testing.assert_allclose(np.concatenate(moved), total / 4, rtol=1e-5, atol=1e-6)


def test_update_scores_are_inner_products_with_gradients(keys):
    after = jax.tree.map(lambda leaf: leaf * 1.5 - 0.2, PARAMS)
    scores = canaries.update_scores(loss, jnp.asarray(X), keys(6), before=PARAMS, after=after)
    for x, score in zip(X, scores, strict=True):
        grad = jax.grad(loss)(PARAMS, x, jax.random.key(0))
        expected = sum(np.sum(grad[n] * (PARAMS[n] - after[n])) for n in PARAMS)
        assert float(score) == pytest.approx(float(expected), rel=1e-5)
    losses = canaries.loss_scores(loss, PARAMS, jnp.asarray(X), keys(6))
    assert float(losses[2]) == pytest.approx(-float(loss(PARAMS, X[2], None)), rel=1e-6)


def test_wrong_labels_are_uniform_over_the_other_classes():
    labels = np.repeat(np.arange(4), 3000)
    wrong = canaries.mislabelled(np.random.default_rng(1), labels, num_classes=4)
    counts = np.bincount(4 * labels + wrong, minlength=16).reshape(4, 4)
    assert (np.diag(counts) == 0).all()
    others = counts[~np.eye(4, dtype=bool)]
    assert stats.chisquare(others, np.full(12, 1000)).pvalue > 1e-5


def test_a_crafted_input_is_the_last_singular_vector_at_the_mean_norm():
    inputs = np.random.default_rng(2).normal(size=(40, 2, 3)) * [1.0, 2.0, 0.1]
    canary = canaries.crafted(inputs)
    _, _, vectors = np.linalg.svd(inputs.reshape(40, 6), full_matrices=False)
    norm = np.linalg.norm(inputs.reshape(40, 6), axis=1).mean()
    assert abs(canary.ravel() @ vectors[-1]) == pytest.approx(norm, rel=1e-9)
    assert np.linalg.norm(canary) == pytest.approx(norm, rel=1e-9)
    assert canaries.blank(inputs).shape == canary.shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: canaries.dirac(jax.random.key(0), PARAMS, count=8, scale=1.0), "at most 7"),
        (lambda: canaries.dirac(jax.random.key(0), PARAMS, count=1, scale=0.0), "scale > 0"),
        (
            lambda: canaries.with_inputs(canaries.ordinary(X), X[:2], np.ones(3, bool)),
            "equal lengths",
        ),
        (
            lambda: canaries.with_inputs(canaries.ordinary(X), X[:1, :2], np.ones(1, bool)),
            r"like the records, float32\[3\], got float32\[2\]",
        ),
        (
            lambda: canaries.with_inputs(canaries.ordinary(X), (X[:1],), np.ones(1, bool)),
            "same leaves",
        ),
        (
            lambda: canaries.with_dirac(
                canaries.with_dirac(canaries.ordinary(X), TWO, np.ones(2, bool)),
                TWO,
                np.ones(2, bool),
            ),
            "without Dirac canaries",
        ),
        (
            lambda: oracles.unhooked(canaries.crafted)(np.ones((2, 3), np.uint8)),
            "float inputs, got uint8",
        ),
        (
            lambda: canaries.mislabelled(np.random.default_rng(0), np.array([0, 3]), num_classes=3),
            "below num_classes",
        ),
    ],
)
def test_misuse_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("coins", "got"), [([1, -1], "only 0 and 1 .*got -1"), ([1.0, np.nan], "without NaN")]
)
def test_coins_of_minus_one_do_not_insert_every_canary(coins, got):
    """A canary that is in the data whatever its coin hides what the training reveals."""
    for append, rows in ((canaries.with_inputs, X[:2]), (canaries.with_dirac, TWO)):
        with pytest.raises(ValueError, match=got):
            oracles.unhooked(append)(canaries.ordinary(X), rows, np.array(coins))
    data = oracles.unhooked(canaries.with_inputs)(canaries.ordinary(X), X[:2], [1, 0])
    assert data.tag[-2:].tolist() == [canaries.ORDINARY, canaries.ABSENT]


def test_dirac_rows_of_a_loss_that_lacks_the_canaries_are_not_copies_of_the_first_row():
    data = canaries.with_dirac(canaries.ordinary(X[:3]), TWO, np.array([True, False]))
    gradient = jax.vmap(jax.grad(canaries.loss_with_canaries(loss)), in_axes=(None, 0, None))
    found = gradient(PARAMS, data, jax.random.key(0))["a"]
    assert np.isnan(found[3]).all()
    np.testing.assert_allclose(found[:3], PARAMS["a"] - X[:3], rtol=1e-6)
    assert not found[4].any()  # the absent canary
