"""Several augmentations of one example, averaged before its gradient is clipped."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxpriv import _check
from jaxpriv._types import Example, Loss


def augmented(
    loss: Loss, augment: Callable[[PRNGKeyArray, Example], Example], *, multiplicity: int
) -> Loss:
    """Averages a loss over K random augmentations of its example.

    The result is still the loss of one example, so clipping its gradient bounds the example's
    whole influence: the augmentations cost no privacy. They are unrolled rather than mapped, so
    that layers keep their ghost rules.

    Args:
      loss: `loss(params, example, key)` of one example.
      augment: (key, example) -> example of the same shapes.
      multiplicity: K >= 1.

    Returns:
      A loss to give to `clipped_grad`.

    Raises:
      ValueError: if multiplicity is not a whole number >= 1.

    References:
      De et al., Unlocking High-Accuracy Differentially Private Image Classification through
      Scale, 2022, section 3.
    """
    _check.positive_int(multiplicity=multiplicity)

    def averaged(params, example, key):
        losses = []
        for one in jax.random.split(key, multiplicity):
            augment_key, loss_key = jax.random.split(one)
            losses.append(loss(params, augment(augment_key, example), loss_key))
        return jnp.stack(losses).mean()

    return averaged
