"""Densely connected convolutional networks for images of 32 x 32 pixels."""

import functools
import math
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["DenseNet"]

_NUM_BLOCKS, _BOTTLENECK, _COMPRESSION = 3, 4, 0.5
_GROUPS = 6
"""Largest number of groups of a GroupNorm; it divides all channels of growth rate 12."""

_SMALLEST = 4
"""Width of the smallest image of which the averages leave a pixel."""


class DenseNet(nn.Module):
    """DenseNet-BC: three blocks in which every layer sees the outputs of all earlier ones.

    A layer is a 1 x 1 convolution to four times the growth rate and a 3 x 3 convolution to the
    growth rate, each after normalisation and ReLU. Between blocks the channels are halved and the
    maps averaged over 2 x 2 windows.

    num_classes: number of outputs.
    depth: number of layers with parameters; 4 more than a multiple of 6.
    growth_rate: channels that a layer adds.
    norm: "group" normalises each example alone, so the network can be trained by DP-SGD and by
      adversarial regularisation. "batch" is that of the paper, whose state mixes the examples of a
      batch: train it by `training.stateful_sgd`, without privacy.

    References:
      Huang et al., Densely Connected Convolutional Networks, 2017.

    Example:
      >>> import jax
      >>> model, image = DenseNet(num_classes=4, depth=10), jnp.zeros((32, 32, 3))
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), image)
      >>> sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))
      20734
    """

    num_classes: int
    depth: int = 100
    growth_rate: int = 12
    norm: Literal["group", "batch"] = "group"

    @nn.compact
    def __call__(self, x: Float[Array, "*b h w c"], *, train: bool = False) -> Float[Array, "*b k"]:
        num_layers, rest = divmod(self.depth - 4, 2 * _NUM_BLOCKS)
        if num_layers < 1 or rest:
            raise ValueError(f"Expected a depth of 6 k + 4, got {self.depth}.")
        conv = functools.partial(nn.Conv, use_bias=False)
        x = conv(2 * self.growth_rate, (3, 3))(x)
        for block in range(_NUM_BLOCKS):
            for _ in range(num_layers):
                y = conv(_BOTTLENECK * self.growth_rate, (1, 1))(self._activated(x, train))
                y = conv(self.growth_rate, (3, 3))(self._activated(y, train))
                x = jnp.concatenate([x, y], axis=-1)
            if block < _NUM_BLOCKS - 1:
                channels = int(x.shape[-1] * _COMPRESSION)
                x = conv(channels, (1, 1))(self._activated(x, train))
                x = nn.avg_pool(x, (2, 2), (2, 2), count_include_pad=False)
                if not x.size:
                    raise ValueError(
                        f"Expected images of at least {_SMALLEST} x {_SMALLEST} pixels."
                    )
        x = self._activated(x, train).mean(axis=(-3, -2))
        return nn.Dense(self.num_classes)(x)

    def _activated(self, x: Array, train: bool) -> Array:
        groups = math.gcd(x.shape[-1], _GROUPS)
        norm: Callable[[Array], Array] = nn.GroupNorm(groups, reduction_axes=(-3, -2, -1))
        if self.norm == "batch":
            norm = nn.BatchNorm(use_running_average=not train, momentum=0.9)
        return nn.relu(norm(x))
