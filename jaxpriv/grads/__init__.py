"""Per-example clipped gradients."""

from jaxpriv.grads import augmentation, buckets, clipping, smoothing
from jaxpriv.grads._explanation import Choice, Explanation
from jaxpriv.grads._microbatching import MicrobatchSize
from jaxpriv.grads._per_example import ClippedSum
from jaxpriv.grads.augmentation import augmented
from jaxpriv.grads.buckets import LengthBuckets
from jaxpriv.grads.clipping import ClippedGrad, clipped_grad, explicit_clipped_grad
from jaxpriv.grads.smoothing import smoothed

__all__ = [
    "Choice",
    "ClippedGrad",
    "ClippedSum",
    "Explanation",
    "LengthBuckets",
    "MicrobatchSize",
    "augmentation",
    "augmented",
    "buckets",
    "clipped_grad",
    "clipping",
    "explicit_clipped_grad",
    "smoothed",
    "smoothing",
]
