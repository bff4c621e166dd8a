"""Per-example clipped gradients."""

from jaxpriv.grads import microbatching
from jaxpriv.grads._per_example import ClippedSum
from jaxpriv.grads.augmentation import augmented
from jaxpriv.grads.clipping import ClippedGrad, clipped_grad, explicit_clipped_grad

__all__ = [
    "ClippedGrad",
    "ClippedSum",
    "augmented",
    "clipped_grad",
    "explicit_clipped_grad",
    "microbatching",
]
