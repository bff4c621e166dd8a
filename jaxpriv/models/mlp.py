"""Multilayer perceptrons."""

import functools
from collections.abc import Callable, Sequence

import flax.linen as nn
from jaxtyping import Array, Float

__all__ = ["MLP"]


class MLP(nn.Module):
    """Multilayer perceptron.

    widths: widths of the hidden layers.
    num_classes: number of outputs.
    activation: activation after each hidden layer.
    init_std: standard deviation of the initial weights and biases, which are normal; None takes the
      initialisers of Flax.
    dropout: probability with which a hidden unit is dropped in training.

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
    init_std: float | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "*b d"], *, deterministic: bool = True
    ) -> Float[Array, "*b c"]:
        dense = nn.Dense
        if self.init_std is not None:
            normal = nn.initializers.normal(self.init_std)
            dense = functools.partial(nn.Dense, kernel_init=normal, bias_init=normal)
        for width in self.widths:
            x = self.activation(dense(width)(x))
            if self.dropout:
                x = nn.Dropout(self.dropout, deterministic=deterministic)(x)
        return dense(self.num_classes)(x)
