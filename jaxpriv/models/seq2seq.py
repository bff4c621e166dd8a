"""Recurrent encoder and decoder with attention, for translation.

In the shapes below `s` counts tokens of the source, `t` tokens of the target and `h` the width.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["Seq2Seq"]

_MASKED = -1e9
"""Attention score of a padded place."""


class Seq2Seq(nn.Module):
    """Bidirectional LSTM encoder, LSTM decoder, and dot attention of the decoder to the encoder.

    Each place of the target predicts the following token. Padding of source and target changes
    neither the logits of real tokens nor their gradients. In training, dropout needs a key named
    "dropout".

    num_source_tokens, num_target_tokens: sizes of the vocabularies.
    embedding: width of the embeddings.
    hidden: width h of decoder and attention, even; each direction of the encoder has half of it.
    dropout: rate of dropout on embeddings and attention.

    Raises:
      ValueError: if hidden is odd, when the parameters are made or used.

    References:
      Luong, Pham and Manning, Effective Approaches to Attention-based Neural Machine Translation,
      2015, sections 3 and 3.1 (dot).

    Example:
      >>> import jax
      >>> model = Seq2Seq(num_source_tokens=20, num_target_tokens=30, embedding=4, hidden=6)
      >>> source, target = jnp.zeros(7, jnp.int32), jnp.zeros(5, jnp.int32)
      >>> params = model.init(jax.random.key(0), source, jnp.int32(7), target)
      >>> model.apply(params, source, jnp.int32(7), target).shape
      (5, 30)
    """

    num_source_tokens: int
    num_target_tokens: int
    embedding: int = 150
    hidden: int = 200
    dropout: float = 0.2

    def setup(self) -> None:
        if self.hidden % 2:
            raise ValueError(f"Expected an even hidden, got hidden={self.hidden}.")
        self.embed_source = nn.Embed(self.num_source_tokens, self.embedding)
        self.embed_target = nn.Embed(self.num_target_tokens, self.embedding)
        half = self.hidden // 2
        self.encoder = nn.Bidirectional(
            nn.RNN(nn.OptimizedLSTMCell(half), return_carry=True),
            nn.RNN(nn.OptimizedLSTMCell(half), return_carry=True),
            return_carry=True,
        )
        self.cell = nn.OptimizedLSTMCell(self.hidden)
        self.decoder = nn.RNN(self.cell)
        self.combine = nn.Dense(self.hidden)
        self.output = nn.Dense(self.num_target_tokens)
        self.drop = nn.Dropout(self.dropout)

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
        carry, memory = self.encode(source, source_length, deterministic=deterministic)
        inputs = self.drop(self.embed_target(target), deterministic=deterministic)
        states = jnp.asarray(self.decoder(inputs[None], initial_carry=_batched(carry)))[0]
        return self._attend(states, memory, source_length, deterministic)

    def encode(
        self, source: Int[Array, " s"], length: Int[Array, ""], *, deterministic: bool = True
    ) -> tuple[Any, Float[Array, "s h"]]:
        """Reads a source.

        Args:
          source: tokens of the source.
          length: number of real tokens.
          deterministic: whether dropout is left out.

        Returns:
          The state from which the decoder starts, and the outputs that it attends to.
        """
        inputs = self.drop(self.embed_source(source), deterministic=deterministic)
        carries, outputs = self.encoder(inputs[None], seq_lengths=length[None])
        (forward_c, forward_h), (backward_c, backward_h) = carries
        carry = (
            jnp.concatenate([forward_c[0], backward_c[0]]),
            jnp.concatenate([forward_h[0], backward_h[0]]),
        )
        return carry, outputs[0]

    def step(
        self,
        carry: Any,
        token: Int[Array, ""],
        memory: Float[Array, "s h"],
        source_length: Int[Array, ""],
    ) -> tuple[Any, Float[Array, " v"]]:
        """Decodes one token.

        Args:
          carry: state of the decoder, at first that of `encode`.
          token: last token of the target so far.
          memory: outputs of the encoder.
          source_length: number of real tokens of the source.

        Returns:
          The next state, and the logits of the next token.
        """
        carry, state = self.cell(carry, self.embed_target(token))
        logits = self._attend(jnp.asarray(state)[None], memory, source_length, True)
        return carry, logits[0]

    def _attend(
        self,
        states: Float[Array, "t h"],
        memory: Float[Array, "s h"],
        source_length: Int[Array, ""],
        deterministic: bool,
    ) -> Float[Array, "t v"]:
        scores = states @ memory.T
        is_real = jnp.arange(len(memory)) < source_length
        weights = nn.softmax(jnp.where(is_real, scores, _MASKED))
        # Padded outputs of the encoder may hold anything.
        context = weights @ jnp.where(is_real[:, None], memory, 0)
        joined = nn.tanh(self.combine(jnp.concatenate([context, states], axis=1)))
        return self.output(self.drop(joined, deterministic=deterministic))


def _batched(carry: Any) -> Any:
    return tuple(part[None] for part in carry)
