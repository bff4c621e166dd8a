"""Transformer for translation, and decoding of both models: padding, caches, beams, parameters."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, models
from tests import oracles

BOS, EOS = 1, 2
MODELS = {
    "lstm": models.Seq2Seq(num_source_tokens=9, num_target_tokens=5, embedding=3, hidden=4),
    "transformer": models.Transformer(
        num_source_tokens=9,
        num_target_tokens=5,
        width=4,
        num_layers=2,
        num_heads=2,
        hidden=6,
        max_length=5,
    ),
}
SOURCE, TARGET = jnp.array([3, 8, 1, 5]), jnp.array([1, 4, 2])


@pytest.fixture(scope="module", params=MODELS)
def trained(request):
    """A model with parameters that make its outputs depend on everything that it reads."""
    model = MODELS[request.param]
    params = oracles.quick_jit(model.init)(jax.random.key(3), SOURCE, jnp.int32(4), TARGET)
    return model, jax.tree.map(lambda p: 2 * p, params)


def loss(model, params, source, target):
    logits = model.apply(params, source, jnp.int32(4), target)[:3]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([4, 2, 3]))
    return losses.sum(), logits


@pytest.fixture(scope="module")
def small():
    """A transformer of one block; tests of the LSTM are in test_seq2seq."""
    model = MODELS["transformer"].clone(num_layers=1)
    params = oracles.quick_jit(model.init)(jax.random.key(3), SOURCE, jnp.int32(4), TARGET)
    return model, jax.tree.map(lambda p: 2 * p, params)


def test_padding_changes_neither_logits_nor_gradients(small):
    model, params = small
    both = oracles.quick_jit(jax.value_and_grad(lambda p, s, t: loss(model, p, s, t), has_aux=True))
    (_, plain), grad = both(params, SOURCE, TARGET)
    padded = jnp.append(SOURCE, jnp.array([6, 6])), jnp.append(TARGET, jnp.array([3, 0]))
    (_, logits), padded_grad = both(params, *padded)
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-5)
    assert oracles.largest_difference(padded_grad, grad) < 1e-5
    (_, other), _ = both(params, SOURCE.at[3].set(6), TARGET)
    assert np.abs(np.asarray(other - plain)).max() > 1e-3  # real tokens count
    (_, later), _ = both(params, SOURCE, TARGET.at[2].set(3))
    np.testing.assert_allclose(later[:2], plain[:2], rtol=1e-5, atol=1e-6)  # causal


def test_decoding_step_by_step_equals_teacher_forcing(trained):
    model, params = trained
    forced = oracles.quick_jit(model.apply)(params, SOURCE, jnp.int32(4), TARGET)
    carry, memory = model.apply(params, SOURCE, jnp.int32(4), method="encode")
    step = oracles.quick_jit(
        lambda carry, token: model.apply(params, carry, token, memory, jnp.int32(4), method="step")
    )
    for token, expected in zip(TARGET, forced, strict=True):
        carry, logits = step(carry, token)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


T = 3


@pytest.fixture(scope="module")
def sequences(trained):
    """Log-probability of every translation of at most T tokens, from teacher forcing."""
    model, params = trained
    every = [
        tokens
        for n in range(1, T + 1)
        for tokens in itertools.product(range(5), repeat=n)
        if EOS not in tokens[:-1] and (tokens[-1] == EOS or n == T)
    ]

    @oracles.quick_jit
    def log_probs(target):
        logits = model.apply(params, SOURCE, jnp.int32(4), target[:-1])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), target[1:, None], axis=1)
        return chosen[:, 0]

    padded = np.array([[BOS, *tokens, *(T - len(tokens)) * [EOS]] for tokens in every])
    each = np.asarray(jax.vmap(log_probs)(jnp.asarray(padded)), np.float64)
    return {
        tokens: float(row[: len(tokens)].sum()) for tokens, row in zip(every, each, strict=True)
    }


def decode(trained, **options):
    model, params = trained
    function = jax.jit(
        lambda source: models.beam_search(
            model, params, source, jnp.int32(4), max_length=T, bos=BOS, eos=EOS, **options
        )
    )
    decoded = function(SOURCE)
    return tuple(decoded.tokens[: decoded.length].tolist()), float(decoded.log_prob)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_that_drops_nothing_finds_the_best_of_all_translations(
    trained, sequences, length_penalty
):
    """There are at most 1 + 4 * 5^2 translations in the beam."""
    best = max(sequences, key=lambda tokens: sequences[tokens] / len(tokens) ** length_penalty)
    tokens, log_prob = decode(trained, width=105, length_penalty=length_penalty)
    assert tokens == best
    assert log_prob == pytest.approx(sequences[best], rel=1e-4)


def test_one_beam_is_greedy_and_two_are_the_slow_search(trained, sequences):
    model, params = trained

    def slow(width):
        beams = [((), 0.0)]
        for _ in range(T):
            candidates = [b for b in beams if b[0] and b[0][-1] == EOS]
            for tokens, _ in beams:
                if not tokens or tokens[-1] != EOS:
                    candidates += [((*tokens, v), prefix((*tokens, v))) for v in range(5)]
            beams = sorted(candidates, key=lambda b: -b[1])[:width]
        return beams[0]

    def prefix(tokens):
        """Probability of the beginning: the sum over all translations that have it."""
        parts = [p for full, p in sequences.items() if full[: len(tokens)] == tokens]
        return float(np.logaddexp.reduce(parts))

    greedy = models.greedy(model, params, SOURCE, jnp.int32(4), max_length=T, bos=BOS, eos=EOS)
    assert tuple(greedy.tokens[: greedy.length].tolist()) == slow(1)[0]
    assert decode(trained, width=2) == (slow(2)[0], pytest.approx(slow(2)[1], rel=1e-4))


def test_a_defence_answers_in_place_of_the_model(trained):
    """Every place has an answer of its own, which is certain of one of two tokens here."""
    model, params = trained
    options = {"max_length": T, "bos": BOS, "eos": EOS}

    def respond(key, logits):
        return jnp.where(jnp.arange(5) == jax.random.randint(key, (), 3, 5), 0.0, -jnp.inf)

    def answer(key, place):
        (place_key,) = jax.random.split(jax.random.fold_in(key, place), 1)
        return int(respond(place_key, jnp.zeros(5)).argmax())

    for seed in range(2):
        key = jax.random.key(seed)
        decoded = models.greedy(
            model, params, SOURCE, jnp.int32(4), respond=respond, key=key, **options
        )
        assert decoded.tokens.tolist() == [answer(key, place) for place in range(T)]
        assert decoded.log_prob == 0
    with pytest.raises(ValueError, match="together"):
        models.greedy(model, params, SOURCE, jnp.int32(4), respond=respond, **options)


def test_sentences_of_a_batch_are_decoded_each_for_itself(trained):
    model, params = trained
    sources = jnp.stack([SOURCE, SOURCE[::-1]])
    lengths = jnp.array([4, 2])

    def decode(source, length):
        return models.greedy(model, params, source, length, max_length=T, bos=BOS, eos=EOS)

    batched = jax.jit(jax.vmap(decode))(sources, lengths)
    for i in range(2):
        alone = decode(sources[i], lengths[i])
        assert batched.tokens[i].tolist() == alone.tokens.tolist()
        assert batched.log_prob[i] == pytest.approx(float(alone.log_prob), rel=1e-4)


def test_a_cache_that_is_too_short_is_refused():
    model = MODELS["transformer"]
    with pytest.raises(ValueError, match="max_length of at most 5, that of the model, got 6"):
        models.greedy(model, {}, SOURCE, jnp.int32(4), max_length=6, bos=BOS, eos=EOS)


def test_the_number_of_parameters_is_near_that_of_the_paper():
    """3,225,714 in the paper, which states neither widths nor vocabularies: with 5,292 tokens each,
    as for the LSTM, it is within 0.2 %."""
    model = models.Transformer(num_source_tokens=5292, num_target_tokens=5292)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, jnp.int32(4), TARGET)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert count == 3_229_100
    assert abs(count / 3_225_714 - 1) < 2e-3


def test_ghost_norms_of_padded_sentences_are_those_of_explicit_gradients(small):
    """A sentence is the unit, and its norm counts all its tokens but no padding."""
    model, params = small

    def sentence_loss(params, example, key):
        del key
        source, source_length, target, target_length = example
        logits = model.apply(params, source, source_length, target[:-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target[1:])
        is_real = jnp.arange(len(losses)) < target_length - 1
        return jnp.where(is_real, losses, 0).sum()

    batch = (
        jnp.array([[3, 8, 1, 5, 7], [2, 4, 0, 0, 0], [6, 6, 6, 0, 0]]),
        jnp.array([5, 2, 3]),
        jnp.array([[1, 4, 4, 3, 2], [1, 3, 2, 0, 0], [1, 2, 0, 0, 0]]),
        jnp.array([5, 3, 2]),
    )
    mask = jnp.array([True, True, False])
    grad = grads.clipped_grad(sentence_loss, clip_norm=0.5)
    result = oracles.quick_jit(grad)(params, batch, mask, jax.random.key(1))
    expected = oracles.clipped_sum(
        sentence_loss, params, batch, mask, jax.random.key(1), clip_norm=0.5
    )
    oracles.assert_same_sum(result, expected, rtol=1e-4)
    explained = grad.explain(
        params, jax.tree.map(lambda leaf: leaf[0], batch), jax.random.key(1), batch_size=3
    )
    matrices = [choice for choice in explained.choices if len(choice.shape) > 1]
    assert matrices
    assert not any(choice.reason for choice in matrices)


@pytest.mark.parametrize(
    ("width", "num_heads", "message"), [(100, 8, "multiple of num_heads=8"), (15, 3, "even width")]
)
def test_widths_that_do_not_fit_are_named(width, num_heads, message):
    model = models.Transformer(
        num_source_tokens=5, num_target_tokens=6, width=width, num_heads=num_heads
    )
    tokens = jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(model.init, jax.random.key(0), tokens, jnp.int32(3), tokens)
    bert = models.Bert(num_tokens=5, width=width, num_layers=1, num_heads=8, hidden=4)
    with pytest.raises(ValueError, match="multiple of num_heads=8"):
        jax.eval_shape(bert.init, jax.random.key(0), tokens, jnp.int32(3))
