"""Networks for the membership of a record, from the outputs of a model.

Attacks train them against a finished model, and adversarial regularisation against one that learns
at the same time. In the shapes below `c` counts classes, `t` steps and `d` features of a step.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Integer

__all__ = ["MembershipNet", "RecurrentMembershipNet"]


class MembershipNet(nn.Module):
    """Network for the log odds of membership, with towers for f(x), for y and for both.

    Dense layers 1024-512-64 on f(x), 512-64 on the one-hot y, 256-64-1 on both, with ReLU between
    them; weights are drawn from N(0, 0.01^2) and biases are 0.

    References:
      Nasr et al., Machine Learning with Membership Privacy using Adversarial Regularization,
      2018, Figure 3.

    Example:
      >>> shapes = jax.eval_shape(MembershipNet().init, jax.random.key(0), jnp.zeros(10), 3)
      >>> sum(leaf.size for leaf in jax.tree.leaves(shapes))
      656897
    """

    @nn.compact
    def __call__(
        self, prediction: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
    ) -> Float[Array, ""]:
        dense = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.01))

        def tower(x, *widths):
            for width in widths:
                x = nn.relu(dense(width)(x))
            return x

        from_output = tower(prediction, 1024, 512, 64)
        from_label = tower(jax.nn.one_hot(label, len(prediction)), 512, 64)
        joined = tower(jnp.concatenate([from_output, from_label]), 256, 64)
        return dense(1)(joined)[0]


class RecurrentMembershipNet(nn.Module):
    """Network for the log odds of membership of a series: an LSTM, then ReLU layers.

    width: width of every layer.
    num_layers: number of ReLU layers; >= 1.

    Example:
      >>> net = RecurrentMembershipNet(width=4, num_layers=2)
      >>> params = net.init(jax.random.key(0), jnp.zeros((9, 14)), jnp.int32(9))
      >>> net.apply(params, jnp.zeros((9, 14)), jnp.int32(3)).shape
      ()
    """

    width: int = 64
    num_layers: int = 1

    @nn.compact
    def __call__(self, steps: Float[Array, "t d"], length: Int[Array, ""]) -> Float[Array, ""]:
        cells = nn.RNN(nn.OptimizedLSTMCell(self.width), return_carry=True)
        (_, x), _ = cells(steps[None], seq_lengths=length[None])
        x = x[0]
        for _ in range(self.num_layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)[0]
