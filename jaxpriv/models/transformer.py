"""Transformers for sequences of tokens."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["Classifier"]

_HIDDEN_FACTOR = 4
"""Width of the hidden layer of a block, in widths of the model."""


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
      >>> import jax, jax.numpy as jnp
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
