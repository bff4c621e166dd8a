"""Multilayer perceptrons."""

from collections.abc import Callable, Sequence

import flax.linen as nn
from jaxtyping import Array, Float


class MLP(nn.Module):
    """Dense layers with an activation between them.

    widths: of the hidden layers.
    num_classes: logits that come out.
    activation: after each hidden layer.
    """

    widths: Sequence[int]
    num_classes: int
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b c"]:
        for width in self.widths:
            x = self.activation(nn.Dense(width)(x))
        return nn.Dense(self.num_classes)(x)
