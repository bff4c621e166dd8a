"""Multilayer perceptrons."""

from collections.abc import Callable, Sequence

import flax.linen as nn
from jaxtyping import Array, Float

__all__ = ["MLP"]


class MLP(nn.Module):
    """Multilayer perceptron.

    widths: widths of the hidden layers.
    num_classes: number of outputs.
    activation: activation after each hidden layer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = MLP(widths=(32, 32), num_classes=10)
      >>> params = model.init(jax.random.key(0), jnp.zeros(64))
      >>> model.apply(params, jnp.zeros((8, 64))).shape
      (8, 10)
    """

    widths: Sequence[int]
    num_classes: int
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b c"]:
        for width in self.widths:
            x = self.activation(nn.Dense(width)(x))
        return nn.Dense(self.num_classes)(x)
