"""Recurrent networks for series of numbers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["RNN"]


class RNN(nn.Module):
    """LSTM whose last output is classified.

    num_classes: number of outputs.
    width: width of the state.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = RNN(num_classes=3, width=16)
      >>> params = model.init(jax.random.key(0), jnp.zeros((20, 4)))
      >>> model.apply(params, jnp.zeros((5, 20, 4))).shape
      (5, 3)
    """

    num_classes: int
    width: int = 64

    @nn.compact
    def __call__(self, x: Float[Array, "*b t d"]) -> Float[Array, "*b k"]:
        outputs = jnp.asarray(nn.RNN(nn.OptimizedLSTMCell(self.width))(x))
        return nn.Dense(self.num_classes)(outputs[..., -1, :])
