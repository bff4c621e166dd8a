"""Convolutional networks for small images."""

from collections.abc import Sequence

import flax.linen as nn
from jaxtyping import Array, Float

__all__ = ["CNN"]

_LARGEST_INPUT = 64
"""Images are averaged over 2x2 windows until their longer side has at most this many pixels."""

_LARGEST_SIDE = 8
"""Feature maps are pooled until their longer side has at most this many pixels."""


class CNN(nn.Module):
    """Convolutional network: 3x3 convolutions with ReLU and 2x2 max-pooling, then a hidden layer.

    Without batch normalisation, so that each example has its own gradient. Images larger than 64
    pixels are first averaged over 2x2 windows, which bounds the time of a step. Maps that are
    still larger than 8 pixels after the last block are averaged likewise, so the number of
    parameters stays moderate for larger images.

    num_classes: number of outputs.
    channels: channels of each convolution.
    width: width of the hidden layer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = CNN(num_classes=10)
      >>> params = model.init(jax.random.key(0), jnp.zeros((28, 28, 1)))
      >>> model.apply(params, jnp.zeros((5, 28, 28, 1))).shape
      (5, 10)
    """

    num_classes: int
    channels: Sequence[int] = (16, 32)
    width: int = 64

    @nn.compact
    def __call__(self, x: Float[Array, "*b h w c"]) -> Float[Array, "*b k"]:
        x = _shrink(x, _LARGEST_INPUT)
        for channels in self.channels:
            x = nn.relu(nn.Conv(channels, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2), "SAME")
        x = _shrink(x, _LARGEST_SIDE)
        x = nn.relu(nn.Dense(self.width)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(self.num_classes)(x)


def _shrink(x: Float[Array, "*b h w c"], largest: int) -> Float[Array, "*b h2 w2 c"]:
    """Averages over 2x2 windows until the longer side has at most `largest` pixels."""
    while max(x.shape[-3:-1]) > largest:
        x = nn.avg_pool(x, (2, 2), (2, 2), "SAME", count_include_pad=False)
    return x
