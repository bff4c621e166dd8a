"""Per-example clipped gradients."""

from jaxpriv.grads.augmentation import augmented
from jaxpriv.grads.clipping import ClippedGrad, clipped_grad, explicit_clipped_grad
from jaxpriv.grads.per_example import ClippedSum

__all__ = ["ClippedGrad", "ClippedSum", "augmented", "clipped_grad", "explicit_clipped_grad"]
