"""Sentences as records: a loss that padding does not change, and private training on them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import accounting, data, grads, models, sampling, training
from jaxpriv.training import translation
from tests import oracles

MODEL = models.Seq2Seq(num_source_tokens=9, num_target_tokens=7, embedding=3, hidden=4, dropout=0.0)


@pytest.fixture(scope="module")
def pairs():
    sources, targets = ["a b c d", "a", "d c", "b b b", "c a"], ["x y", "x", "y x z", "z", "y y"]
    vocabularies = [
        data.Vocabulary.build(side, min_count=1, lower=True) for side in (sources, targets)
    ]
    source = data.pad(sources, vocabularies[0], max_length=8)
    target = data.pad(targets, vocabularies[1], max_length=8)
    joined = translation.make_pairs(source.tokens, source.mask, target.tokens, target.mask)
    return jax.tree.map(jnp.asarray, joined)


@pytest.fixture(scope="module")
def params(pairs):
    first = jax.tree.map(lambda leaf: leaf[0], pairs)
    return oracles.quick_jit(MODEL.init)(jax.random.key(0), *first[:3])


def test_lengths_are_those_of_the_sentences(pairs):
    assert pairs.source_length.tolist() == [6, 3, 4, 5, 4]
    assert pairs.target_length.tolist() == [4, 3, 5, 3, 4]


def test_the_loss_is_the_mean_over_the_tokens_of_the_translation(pairs, params):
    first = jax.tree.map(lambda leaf: leaf[0], pairs)
    result = translation.loss(MODEL)(params, first, jax.random.key(1))
    logits = translation.reference_logits(MODEL, params, first)
    log_p = jax.nn.log_softmax(logits)
    tokens = first.target[1:4]
    expected = -np.mean([log_p[i, token] for i, token in enumerate(tokens)])
    assert float(result) == pytest.approx(float(expected), rel=1e-5)


def test_dropout_draws_from_the_key(pairs, params):
    first = jax.tree.map(lambda leaf: leaf[0], pairs)
    loss = translation.loss(MODEL.clone(dropout=0.5))
    losses = [float(loss(params, first, jax.random.key(i))) for i in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_private_training_on_buckets_equals_that_at_full_width(pairs, params):
    """The sampler and its guarantee do not change: only padding is left out."""
    sampler = sampling.poisson(5, sampling_prob=0.5, capacity=5)
    states = []
    for options in ({}, {"buckets": translation.buckets(widths=(4,), rows=2)}):
        grad = grads.clipped_grad(translation.loss(MODEL), clip_norm=0.5, **options)
        alg = training.dpsgd(grad, optax.sgd(0.1), sampler, noise_multiplier=0.01)
        state, _ = training.fit(jax.random.key(2), alg, params, pairs, steps=2)
        states.append(state.params)
        epsilon = accounting.epsilon(alg.event(2), delta=1e-5, relation="add_or_remove_one")
        assert np.isfinite(epsilon)
    assert oracles.largest_difference(states[1], states[0]) < 1e-5
    assert oracles.largest_difference(states[1], params) > 1e-3


def test_sentences_without_an_end_are_refused():
    tokens, mask = np.array([[1, 2], [1, 0]]), np.array([[True, True], [True, False]])
    with pytest.raises(ValueError, match="a start and an end in every sentence"):
        translation.make_pairs(tokens, np.ones((2, 2), bool), tokens, mask)
