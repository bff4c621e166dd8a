"""AlexNet for images of 32 x 32 pixels."""

import flax.linen as nn
from jaxtyping import Array, Float

__all__ = ["AlexNet"]

_SMALLEST = 29
"""Width of the smallest image of which the poolings leave a pixel."""


class AlexNet(nn.Module):
    """AlexNet for images of 32 x 32 pixels: five convolutions with ReLU, three poolings, one layer.

    Convolutions of 64 channels with 11 x 11 windows and stride 4, 192 with 5 x 5 windows, and 384,
    256 and 256 with 3 x 3 windows; max-pooling after the first, the second and the last. It has no
    normalisation, so every example has its own gradient, and it can be trained by DP-SGD.

    num_classes: number of outputs.
    dropout: probability with which an input of the last layer is dropped in training.

    References:
      Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural
      Networks, 2012, whose windows are for larger images.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model, image = AlexNet(num_classes=100), jnp.zeros((32, 32, 3))
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), image)
      >>> sum(leaf.size for leaf in jax.tree.leaves(shapes))
      2495396
    """

    num_classes: int
    dropout: float = 0.2

    @nn.compact
    def __call__(
        self, x: Float[Array, "*b h w c"], *, deterministic: bool = True
    ) -> Float[Array, "*b k"]:
        x = nn.relu(nn.Conv(64, (11, 11), strides=4, padding=5)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(192, (5, 5))(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        for channels in (384, 256, 256):
            x = nn.relu(nn.Conv(channels, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        if not x.size:
            raise ValueError(f"Expected images of at least {_SMALLEST} x {_SMALLEST} pixels.")
        x = x.reshape(*x.shape[:-3], -1)
        x = nn.Dropout(self.dropout, deterministic=deterministic)(x)
        return nn.Dense(self.num_classes)(x)
