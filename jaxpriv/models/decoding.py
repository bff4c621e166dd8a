"""Greedy and beam decoding of one sentence by a translation model; the caller maps and jits.

A model has `encode(source, length) -> (carry, memory)` and `step(carry, token, memory, length) ->
(carry, logits)`, as `Seq2Seq` and `Transformer` do. In the shapes below `s` counts tokens of the
source, `t` those of a translation, `v` the vocabulary and `w` the beams.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxpriv import _check
from jaxpriv._types import Params

__all__ = ["Decoded", "Respond", "beam_search", "greedy"]

Respond = Callable[[PRNGKeyArray, Float[Array, " v"]], Float[Array, " v"]]
"""`respond(key, logits) -> logits`, a random answer in place of the model's at one place."""


class Decoded(NamedTuple):
    """A translation.

    tokens: tokens after the start of the sentence, up to the first end token; then end tokens.
    length: number of tokens, the end token included.
    log_prob: log-probability of these tokens under the model, or under the answers of its output
      defence, in nats.
    """

    tokens: Int[Array, " t"]
    length: Int[Array, ""]
    log_prob: Float[Array, ""]


def greedy(
    model: nn.Module,
    params: Params,
    source: Int[Array, " s"],
    source_length: Int[Array, ""],
    *,
    max_length: int,
    bos: int,
    eos: int,
    respond: Respond | None = None,
    key: PRNGKeyArray | None = None,
) -> Decoded:
    """Translates a sentence by its most probable token at each place.

    Args:
      model: the module.
      params: its variables.
      source: tokens of the source.
      source_length: number of real tokens of the source.
      max_length: t, the largest number of tokens; a longer translation is cut.
      bos: token that starts a sentence.
      eos: token that ends a sentence.
      respond: output defence, as for `beam_search`.
      key: its PRNG key.

    Returns:
      The translation.

    Raises:
      ValueError: if max_length is not a whole number >= 1, or larger than that of the model, or
        only one of respond and key is given.

    Example:
      >>> from jaxpriv import models
      >>> model = models.Seq2Seq(num_source_tokens=5, num_target_tokens=6, embedding=2, hidden=2)
      >>> source = jnp.array([1, 4, 2])
      >>> params = jax.eval_shape(model.init, jax.random.key(0), source, jnp.int32(3), source)
      >>> def decode(params):
      ...     return greedy(model, params, source, jnp.int32(3), max_length=4, bos=1, eos=2)
      >>> jax.eval_shape(decode, params).tokens.shape
      (4,)
    """
    return beam_search(
        model,
        params,
        source,
        source_length,
        width=1,
        max_length=max_length,
        bos=bos,
        eos=eos,
        respond=respond,
        key=key,
    )


class _Beams(NamedTuple):
    """Translations under construction, most probable first.

    place: number of tokens decoded so far.
    carry: states of the decoder, with leading axis w.
    """

    place: Int[Array, ""]
    tokens: Int[Array, "w t"]
    lengths: Int[Array, " w"]
    log_probs: Float[Array, " w"]
    has_ended: Bool[Array, " w"]
    carry: Any


def beam_search(
    model: nn.Module,
    params: Params,
    source: Int[Array, " s"],
    source_length: Int[Array, ""],
    *,
    width: int,
    max_length: int,
    bos: int,
    eos: int,
    length_penalty: float = 0.0,
    respond: Respond | None = None,
    key: PRNGKeyArray | None = None,
) -> Decoded:
    """Translates a sentence by beam search.

    Each step extends the w most probable translations so far by every token; one that has ended
    stays as it is. Of the final ones, that with the largest log_prob / length^length_penalty is
    returned.

    Args:
      model: the module.
      params: its variables.
      source: tokens of the source.
      source_length: number of real tokens of the source.
      width: w, the number of beams; 1 is greedy decoding.
      max_length: t, the largest number of tokens; a longer translation is cut.
      bos: token that starts a sentence.
      eos: token that ends a sentence.
      length_penalty: exponent of the length; 0 prefers the most probable translation.
      respond: output defence, as of `defences.dirichlet`; each beam has an answer of its own at
        every place.
      key: PRNG key of the answers.

    Returns:
      The translation.

    Raises:
      ValueError: if width or max_length is not a whole number >= 1, max_length is larger than that
        of the model, length_penalty is negative, or only one of respond and key is given.

    Example:
      >>> from jaxpriv import models
      >>> model = models.Seq2Seq(num_source_tokens=5, num_target_tokens=6, embedding=2, hidden=2)
      >>> source = jnp.array([1, 4, 2])
      >>> params = jax.eval_shape(model.init, jax.random.key(0), source, jnp.int32(3), source)
      >>> sizes = {"width": 3, "max_length": 4, "bos": 1, "eos": 2}
      >>> def decode(params):
      ...     return beam_search(model, params, source, jnp.int32(3), **sizes)
      >>> jax.eval_shape(decode, params).tokens.shape
      (4,)
    """
    _check.positive_int(width=width, max_length=max_length)
    _check.non_negative(length_penalty=length_penalty)
    if (respond is None) != (key is None):
        raise ValueError("Expected respond and key together, got one of them.")
    limit = getattr(model, "max_length", max_length)
    if max_length > limit:
        raise ValueError(
            f"Expected max_length of at most {limit}, that of the model, got {max_length}."
        )
    carry, memory = model.apply(params, source, source_length, method="encode")

    def step(carry: Any, token: Array) -> Any:
        return model.apply(params, carry, token, memory, source_length, method="step")

    def extend(beams: _Beams) -> _Beams:
        place = beams.place
        last = jnp.where(place == 0, bos, beams.tokens[:, jnp.maximum(place - 1, 0)])
        carry, logits = jax.vmap(step)(beams.carry, last)
        if respond is not None and key is not None:
            keys = jax.random.split(jax.random.fold_in(key, place), width)
            logits = jax.vmap(respond)(keys, logits)
        log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
        is_end = jnp.arange(log_p.shape[1]) == eos
        # An ended translation has one continuation, of probability 1.
        frozen = jnp.where(is_end, 0.0, -jnp.inf)
        log_p = jnp.where(beams.has_ended[:, None], frozen, log_p)
        totals = (beams.log_probs[:, None] + log_p).ravel()
        log_probs, chosen = jax.lax.top_k(totals, width)
        parent, token = jnp.divmod(chosen, log_p.shape[1])
        parent, token = parent.astype(jnp.int32), token.astype(jnp.int32)
        had_ended = beams.has_ended[parent]
        return _Beams(
            place + 1,
            beams.tokens[parent].at[:, place].set(token),
            beams.lengths[parent] + jnp.where(had_ended, 0, 1),
            log_probs,
            had_ended | (token == eos),
            jax.tree.map(lambda leaf: leaf[parent], carry),
        )

    start = _Beams(
        jnp.int32(0),
        jnp.full((width, max_length), eos, jnp.int32),
        jnp.zeros(width, jnp.int32),
        # The beams are equal at first, so only one of them counts.
        jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf),
        jnp.zeros(width, bool),
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (width, *leaf.shape)), carry),
    )
    beams = jax.lax.while_loop(
        lambda beams: (beams.place < max_length) & ~beams.has_ended.all(), extend, start
    )
    weight = beams.lengths.astype(jnp.float32) ** length_penalty
    best = jnp.argmax(beams.log_probs / weight)
    return Decoded(beams.tokens[best], beams.lengths[best], beams.log_probs[best])
