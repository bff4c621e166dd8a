"""Translation by an LSTM encoder and decoder: padding, teacher forcing, attention, parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, models

MODEL = models.Seq2Seq(num_source_tokens=9, num_target_tokens=11, embedding=3, hidden=4)
SOURCE, TARGET = jnp.array([3, 8, 1, 5]), jnp.array([1, 7, 2])


@pytest.fixture(scope="module")
def params():
    return MODEL.init(jax.random.key(0), SOURCE, jnp.int32(4), TARGET)


def test_padding_changes_neither_logits_nor_gradients(params):
    """Real tokens are followed by padding of any kind on both sides."""

    def loss(params, source, target):
        logits = MODEL.apply(params, source, jnp.int32(4), target)[:3]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([7, 2, 4]))
        return losses.sum(), logits

    both = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, plain), grad = both(params, SOURCE, TARGET)
    padded = jnp.append(SOURCE, jnp.array([6, 6])), jnp.append(TARGET, jnp.array([9, 0]))
    (_, logits), padded_grad = both(params, *padded)
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), padded_grad, grad
    )


def test_decoding_step_by_step_equals_teacher_forcing(params):
    forced = MODEL.apply(params, SOURCE, jnp.int32(4), TARGET)
    carry, memory = MODEL.apply(params, SOURCE, jnp.int32(4), method="encode")
    for token, expected in zip(TARGET, forced, strict=True):
        carry, logits = MODEL.apply(params, carry, token, memory, jnp.int32(4), method="step")
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_attention_is_the_softmax_of_inner_products(params):
    """With one real source token the context is that token's output, whatever the state."""
    carry, memory = MODEL.apply(params, SOURCE[:1], jnp.int32(1), method="encode")
    weights = params["params"]
    _, logits = MODEL.apply(params, carry, jnp.int32(1), memory, jnp.int32(1), method="step")
    embedded = weights["embed_target"]["embedding"][1]
    _, state = nn.OptimizedLSTMCell(4).apply({"params": weights["cell"]}, carry, embedded)
    joined = jnp.tanh(
        jnp.concatenate([memory[0], state]) @ weights["combine"]["kernel"]
        + weights["combine"]["bias"]
    )
    expected = joined @ weights["output"]["kernel"] + weights["output"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_the_number_of_parameters_is_near_that_of_the_paper():
    """3,213,191 in the paper, which does not state its vocabularies: with 5,292 tokens each it is
    within 0.1 %."""
    model = models.Seq2Seq(num_source_tokens=5292, num_target_tokens=5292)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, jnp.int32(4), TARGET)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert count == 3_213_092
    assert abs(count / 3_213_191 - 1) < 1e-3


def test_clipped_gradients_of_sentences_equal_the_loop(params):
    """A sentence is the unit: its norm counts all its tokens."""

    def loss(params, example, key):
        source, length, target = example
        logits = MODEL.apply(params, source, length, target[:-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, target[1:]).sum()

    batch = (
        jnp.array([[3, 8, 1, 5], [2, 2, 0, 0]]),
        jnp.array([4, 2]),
        jnp.array([[1, 7, 2], [1, 3, 9]]),
    )
    key = jax.random.key(1)
    clipped = grads.clipped_grad(loss, clip_norm=0.5)
    total, norms = jax.jit(clipped)(params, batch, jnp.ones(2, bool), key)
    grad = jax.jit(jax.grad(loss))
    each = [grad(params, jax.tree.map(lambda x, i=i: x[i], batch), key) for i in (0, 1)]
    expected_norms = [float(optax.tree.norm(grad)) for grad in each]
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-4)
    factors = [min(1, 0.5 / norm) for norm in expected_norms]
    expected = jax.tree.map(lambda a, b: factors[0] * a + factors[1] * b, *each)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), total, expected
    )


def test_an_odd_width_is_refused():
    """The decoder would be narrower than asked for."""
    model = models.Seq2Seq(num_source_tokens=5, num_target_tokens=6, hidden=5)
    tokens = jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="Expected an even hidden, got hidden=5"):
        jax.eval_shape(model.init, jax.random.key(0), tokens, jnp.int32(3), tokens)
