"""Transformers for sequences of tokens: a classifier, and an encoder and decoder for translation.

In the shapes below `s` counts tokens of the source, `t` tokens of the target, `k` the keys of an
attention, `w` the width, `e` that of the encoder, `v` the tokens of the target vocabulary and `l`
the blocks of the decoder.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxpriv import _check

__all__ = ["Cache", "Classifier", "Decoder", "Transformer"]

_HIDDEN_FACTOR = 4
"""Width of the hidden layer of a block, in widths of the model."""

_MASKED = -1e9
"""Attention score of a place that must not be read."""

_LONGEST_WAVE = 1e4
"""Wave length of the slowest sinusoid of the positions, divided by 2 pi."""


class Classifier(nn.Module):
    """Transformer encoder whose mean output is classified.

    Each block normalises its input first (pre-norm). Positions are learned. All tokens count alike;
    a data set with padding has a token for it.

    num_tokens: size of the vocabulary; ids are in 0..num_tokens-1.
    num_classes: number of outputs.
    width: width of the embeddings; a multiple of `num_heads`.
    num_layers: number of blocks.
    num_heads: number of attention heads.

    Example:
      >>> import jax
      >>> model = Classifier(num_tokens=100, num_classes=2, width=16)
      >>> params = model.init(jax.random.key(0), jnp.zeros(12, int))
      >>> model.apply(params, jnp.zeros((5, 12), int)).shape
      (5, 2)
    """

    num_tokens: int
    num_classes: int
    width: int = 64
    num_layers: int = 2
    num_heads: int = 4

    @nn.compact
    def __call__(self, ids: Int[Array, "*b t"]) -> Float[Array, "*b k"]:
        positions = nn.Embed(ids.shape[-1], self.width)(jnp.arange(ids.shape[-1]))
        x = nn.Embed(self.num_tokens, self.width)(ids) + positions
        for _ in range(self.num_layers):
            x = x + nn.MultiHeadDotProductAttention(self.num_heads)(nn.LayerNorm()(x))
            hidden = nn.gelu(nn.Dense(_HIDDEN_FACTOR * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        return nn.Dense(self.num_classes)(nn.LayerNorm()(x).mean(axis=-2))


class Cache(NamedTuple):
    """State of the decoder between two tokens.

    position: number of tokens decoded so far.
    keys, values: keys and values of these tokens in each block; places after them are zero.
    """

    position: Int[Array, ""]
    keys: Float[Array, "l t w"]
    values: Float[Array, "l t w"]


class Decoder(nn.Module):
    """Decoder of a transformer, for any encoder.

    num_tokens: size of the vocabulary.
    width: width w of all layers but the hidden ones; a multiple of `num_heads`, and even.
    num_layers: number of blocks.
    num_heads: number of attention heads.
    hidden: width of the hidden layer of a block.
    dropout: rate of dropout on embeddings and on the output of every layer of a block.
    max_length: largest number of tokens that `step` decodes.
    """

    num_tokens: int
    width: int
    num_layers: int
    num_heads: int
    hidden: int
    dropout: float
    max_length: int

    def setup(self) -> None:
        sizes = (self.width, self.num_heads, self.hidden, self.dropout)
        self.embed = nn.Embed(self.num_tokens, self.width)
        self.blocks = [_DecoderBlock(*sizes) for _ in range(self.num_layers)]
        self.norm = nn.LayerNorm()
        self.output = nn.Dense(self.num_tokens)
        self.drop = nn.Dropout(self.dropout)

    def start(self, encoded: Float[Array, "s e"]) -> tuple[Cache, Float[Array, "l 2 s w"]]:
        """Prepares the decoding of a source.

        Args:
          encoded: outputs of the encoder.

        Returns:
          The state before the first token, and the keys and values of the source in each block.
        """
        memory = jnp.stack([jnp.stack(block.cross.keys_values(encoded)) for block in self.blocks])
        empty = jnp.zeros((self.num_layers, self.max_length, self.width), memory.dtype)
        return Cache(jnp.int32(0), empty, empty), memory

    def __call__(
        self,
        target: Int[Array, " t"],
        memory: Float[Array, "l 2 s w"],
        source_length: Int[Array, ""],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "t v"]:
        """Computes the logits of the token after each token of the target.

        Args:
          target: tokens of the target, the first of which starts the sentence.
          memory: keys and values of the source.
          source_length: number of real tokens of the source.
          deterministic: whether dropout is left out.

        Returns:
          Logits [t, v] of the following tokens.
        """
        x = _embed(self.embed, target, jnp.arange(len(target)))
        x = self.drop(x, deterministic=deterministic)
        is_earlier = jnp.tril(jnp.ones((len(target), len(target)), bool))
        is_source = jnp.arange(memory.shape[2]) < source_length
        for block, cross in zip(self.blocks, memory, strict=True):
            x, _ = block(x, cross, is_earlier, is_source, deterministic)
        return self.output(self.norm(x))

    def step(
        self,
        carry: Cache,
        token: Int[Array, ""],
        memory: Float[Array, "l 2 s w"],
        source_length: Int[Array, ""],
    ) -> tuple[Cache, Float[Array, " v"]]:
        """Decodes one token, as the step of a translation model.

        Args:
          carry: state of the decoder.
          token: last token of the target so far.
          memory: keys and values of the source.
          source_length: number of real tokens of the source.

        Returns:
          The next state, and the logits of the next token.
        """
        x = _embed(self.embed, token[None], carry.position[None])
        is_earlier = (jnp.arange(self.max_length) <= carry.position)[None]
        is_source = jnp.arange(memory.shape[2]) < source_length
        pasts = []
        for i, block in enumerate(self.blocks):
            past = carry.keys[i], carry.values[i]
            x, past = block(x, memory[i], is_earlier, is_source, True, past, carry.position)
            pasts.append(past)
        keys, values = (jnp.stack(parts) for parts in zip(*pasts, strict=True))
        logits = self.output(self.norm(x))[0]
        return Cache(carry.position + 1, keys, values), logits


class Transformer(nn.Module):
    """Transformer encoder and decoder, for translation.

    Each place of the target predicts the following token. Padding of source and target changes
    neither the logits of real tokens nor their gradients. Positions are sinusoids. Each block
    normalises its input (pre-norm), which trains without a warm-up; Vaswani et al. normalise the
    output. In training, dropout needs a key named "dropout".

    num_source_tokens, num_target_tokens: sizes of the vocabularies.
    width: width w of all layers but the hidden ones; a multiple of `num_heads`, and even.
    num_layers: number of blocks of the encoder and of the decoder.
    num_heads: number of attention heads.
    hidden: width of the hidden layer of a block.
    dropout: rate of dropout on embeddings and on the output of every layer of a block.
    max_length: largest number of tokens that `step` decodes.

    References:
      Vaswani et al., Attention Is All You Need, 2017, section 3.

    Example:
      >>> import jax
      >>> model = Transformer(
      ...     num_source_tokens=20, num_target_tokens=30, width=8, num_layers=1, num_heads=2
      ... )
      >>> source, target = jnp.zeros(7, jnp.int32), jnp.zeros(5, jnp.int32)
      >>> params = jax.eval_shape(model.init, jax.random.key(0), source, jnp.int32(7), target)
      >>> jax.eval_shape(model.apply, params, source, jnp.int32(7), target).shape
      (5, 30)
    """

    num_source_tokens: int
    num_target_tokens: int
    width: int = 128
    num_layers: int = 3
    num_heads: int = 8
    hidden: int = 384
    dropout: float = 0.1
    max_length: int = 64

    def setup(self) -> None:
        sizes = (self.width, self.num_heads, self.hidden, self.dropout)
        self.embed_source = nn.Embed(self.num_source_tokens, self.width)
        self.encoder = [_EncoderBlock(*sizes) for _ in range(self.num_layers)]
        self.norm = nn.LayerNorm()
        self.drop = nn.Dropout(self.dropout)
        self.decoder = Decoder(
            num_tokens=self.num_target_tokens,
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            hidden=self.hidden,
            dropout=self.dropout,
            max_length=self.max_length,
        )

    def __call__(
        self,
        source: Int[Array, " s"],
        source_length: Int[Array, ""],
        target: Int[Array, " t"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "t v"]:
        """Computes the logits of the token after each token of the target.

        Args:
          source: tokens of the source.
          source_length: number of real tokens of the source; >= 1.
          target: tokens of the target, the first of which starts the sentence.
          deterministic: whether dropout is left out.

        Returns:
          Logits [t, v] of the following tokens.
        """
        _, memory = self.encode(source, source_length, deterministic=deterministic)
        return self.decoder(target, memory, source_length, deterministic=deterministic)

    def encode(
        self, source: Int[Array, " s"], length: Int[Array, ""], *, deterministic: bool = True
    ) -> tuple[Cache, Float[Array, "l 2 s w"]]:
        """Reads a source.

        Args:
          source: tokens of the source.
          length: number of real tokens.
          deterministic: whether dropout is left out.

        Returns:
          The state from which the decoder starts, and the keys and values of the source that each
          block of the decoder attends to.
        """
        x = _embed(self.embed_source, source, jnp.arange(len(source)))
        x = self.drop(x, deterministic=deterministic)
        is_source = jnp.arange(len(source)) < length
        for block in self.encoder:
            x = block(x, is_source, deterministic)
        return self.decoder.start(self.norm(x))

    def step(
        self,
        carry: Cache,
        token: Int[Array, ""],
        memory: Float[Array, "l 2 s w"],
        source_length: Int[Array, ""],
    ) -> tuple[Cache, Float[Array, " v"]]:
        """Decodes one token.

        Args:
          carry: state of the decoder, at first that of `encode`.
          token: last token of the target so far.
          memory: keys and values of the source.
          source_length: number of real tokens of the source.

        Returns:
          The next state, and the logits of the next token.
        """
        return self.decoder.step(carry, token, memory, source_length)


class _Attention(nn.Module):
    """Attention with several heads, with keys and values computed apart."""

    width: int
    num_heads: int

    def setup(self) -> None:
        _check.heads(self.width, self.num_heads)
        self.query, self.key = nn.Dense(self.width), nn.Dense(self.width)
        self.value, self.out = nn.Dense(self.width), nn.Dense(self.width)

    def keys_values(self, x: Float[Array, "k e"]) -> tuple[Float[Array, "k w"], Array]:
        return self.key(x), self.value(x)

    def __call__(
        self,
        x: Float[Array, "t w"],
        keys_values: tuple[Array, Array] | Float[Array, "2 k w"],
        is_read: Bool[Array, "#t k"],
    ) -> Float[Array, "t w"]:
        heads = (self.num_heads, self.width // self.num_heads)
        query, key, value = (
            part.reshape(-1, *heads) for part in (self.query(x), keys_values[0], keys_values[1])
        )
        scores = jnp.einsum("thd,khd->htk", query, key) / heads[1] ** 0.5
        weights = nn.softmax(jnp.where(is_read, scores, _MASKED))
        return self.out(jnp.einsum("htk,khd->thd", weights, value).reshape(x.shape))


class _FeedForward(nn.Module):
    """Two dense layers with a ReLU between them."""

    width: int
    hidden: int

    @nn.compact
    def __call__(self, x: Float[Array, "t w"]) -> Float[Array, "t w"]:
        return nn.Dense(self.width)(nn.relu(nn.Dense(self.hidden)(x)))


class _EncoderBlock(nn.Module):
    width: int
    num_heads: int
    hidden: int
    dropout: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "s w"], is_source: Bool[Array, " s"], deterministic: bool
    ) -> Float[Array, "s w"]:
        drop = nn.Dropout(self.dropout, deterministic=deterministic)
        attention = _Attention(self.width, self.num_heads)
        normed = nn.LayerNorm()(x)
        x = x + drop(attention(normed, attention.keys_values(normed), is_source[None]))
        return x + drop(_FeedForward(self.width, self.hidden)(nn.LayerNorm()(x)))


class _DecoderBlock(nn.Module):
    width: int
    num_heads: int
    hidden: int
    dropout: float

    def setup(self) -> None:
        self.attention = _Attention(self.width, self.num_heads)
        self.cross = _Attention(self.width, self.num_heads)
        self.feed_forward = _FeedForward(self.width, self.hidden)
        self.norm, self.cross_norm = nn.LayerNorm(), nn.LayerNorm()
        self.feed_forward_norm = nn.LayerNorm()
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self,
        x: Float[Array, "t w"],
        cross: Float[Array, "2 s w"],
        is_earlier: Bool[Array, "t k"],
        is_source: Bool[Array, " s"],
        deterministic: bool,
        past: tuple[Array, Array] | None = None,
        position: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, "t w"], tuple[Array, Array]]:
        """Applies the block to a whole target, or to the token that follows the `past`."""
        normed = self.norm(x)
        keys, values = self.attention.keys_values(normed)
        if past is not None:
            keys, values = past[0].at[position].set(keys[0]), past[1].at[position].set(values[0])
        attended = self.attention(normed, (keys, values), is_earlier)
        x = x + self.drop(attended, deterministic=deterministic)
        attended = self.cross(self.cross_norm(x), cross, is_source[None])
        x = x + self.drop(attended, deterministic=deterministic)
        hidden = self.feed_forward(self.feed_forward_norm(x))
        return x + self.drop(hidden, deterministic=deterministic), (keys, values)


def _embed(
    table: nn.Embed, tokens: Int[Array, " t"], positions: Int[Array, " t"]
) -> Float[Array, "t w"]:
    x = table(tokens)
    scale = jnp.asarray(table.features**0.5, x.dtype)
    return x * scale + _sinusoids(positions, table.features)


def _sinusoids(positions: Int[Array, " t"], width: int) -> Float[Array, "t w"]:
    """Computes sines and cosines of the positions at wave lengths in a geometric series."""
    if width % 2:
        raise ValueError(f"Expected an even width, got width={width}.")
    rates = _LONGEST_WAVE ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
