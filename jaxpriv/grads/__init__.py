"""Per-example clipped gradients."""

from jaxpriv.grads.clipping import ClippedGrad, clipped_grad, explicit_clipped_grad
from jaxpriv.grads.per_example import ClippedSum

__all__ = ["ClippedGrad", "ClippedSum", "clipped_grad", "explicit_clipped_grad"]
