"""Losses averaged over augmentations of an example, before its gradient is clipped."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxpriv import _check
from jaxpriv._types import Example, Loss

__all__ = ["augmented"]


def augmented(
    loss: Loss, augment: Callable[[PRNGKeyArray, Example], Example], *, multiplicity: int
) -> Loss:
    """Averages a loss over K random augmentations of its example.

    loss(params, example, key) = mean_k loss(params, augment(key_k, example), key'_k).

    The result is still the loss of one example, so clipping its gradient bounds the influence of
    the example and the augmentations have no privacy cost. They are unrolled rather than mapped,
    so that products keep their cheapest form.

    Args:
      loss: `loss(params, example, key)` of one example.
      augment: `augment(key, example)`, which returns an example of the same shapes.
      multiplicity: K, the number of augmentations; >= 1.

    Returns:
      The averaged loss, for `clipped_grad`.

    Raises:
      ValueError: if multiplicity is not a whole number >= 1.

    References:
      De et al., Unlocking High-Accuracy Differentially Private Image Classification through
      Scale, 2022, section 3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def flip(key, image):
      ...     return jnp.where(jax.random.bernoulli(key), image[::-1], image)
      >>> def loss(w, image, key):
      ...     return jnp.dot(w, image)
      >>> averaged = augmented(loss, flip, multiplicity=8)
      >>> gradient = jax.grad(averaged)(jnp.zeros(2), jnp.array([0.0, 1.0]), jax.random.key(0))
      >>> float(gradient.sum())
      1.0
    """
    _check.positive_int(multiplicity=multiplicity)

    def averaged(params, example, key):
        losses = []
        for copy_key in jax.random.split(key, multiplicity):
            augment_key, loss_key = jax.random.split(copy_key)
            losses.append(loss(params, augment(augment_key, example), loss_key))
        return jnp.stack(losses).mean()

    return averaged
