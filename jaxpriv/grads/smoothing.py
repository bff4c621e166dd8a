"""Losses averaged over noise on the parameters, before their gradient is clipped."""

import jax
import jax.numpy as jnp

from jaxpriv import _check, _tree
from jaxpriv._types import Loss

__all__ = ["smoothed"]


def smoothed(loss: Loss, *, std: float, draws: int) -> Loss:
    """Averages a loss over K draws of Gaussian noise on its parameters.

    loss(params, example, key) = mean_k loss(params + Z_k, example, key'_k), Z_k ~ N(0, std^2 I),
    whose gradient is a Monte-Carlo estimate of the randomised smoothing E[g(params + Z)]. It is
    still the loss of one example, so clipping its gradient bounds the influence of the example.
    The noise is part of the training algorithm and gives no privacy. The bounds of
    `sensitivity.bound` need the exact expectation and do not hold for an estimate.

    Args:
      loss: `loss(params, example, key)` of one example.
      std: standard deviation of the noise on every parameter; > 0.
      draws: K, the number of draws; >= 1.

    Returns:
      The averaged loss, for `clipped_grad` or `training.sgd`.

    Raises:
      ValueError: if std is not positive or draws is not a whole number >= 1.

    References:
      Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning
      Models, 2023, equation 9.

    Example:
      >>> def loss(w, x, key):
      ...     return jnp.abs(w - x)
      >>> gradient = jax.grad(smoothed(loss, std=1.0, draws=4000))
      >>> slope = gradient(jnp.float32(0.5), jnp.float32(0.0), jax.random.key(0))
      >>> abs(float(slope) - 0.383) < 0.05  # 2 Phi(0.5) - 1, where the loss itself has slope 1
      True
    """
    _check.positive(std=std)
    _check.positive_int(draws=draws)

    def averaged(params, example, key):
        def one(draw_key):
            noise_key, loss_key = jax.random.split(draw_key)
            noise = _tree.normal_like(noise_key, params, std=std)
            moved = jax.tree.map(lambda p, z: p + z.astype(p.dtype), params, noise)
            return loss(moved, example, loss_key)

        return jnp.mean(jax.vmap(one)(jax.random.split(key, draws)))

    return averaged
