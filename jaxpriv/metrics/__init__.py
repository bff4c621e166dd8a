"""How well scores tell members from non-members, and how sure one may be of it."""

from jaxpriv.metrics import intervals, roc, scores, slices
from jaxpriv.metrics.roc import (
    at_fpr,
    at_threshold,
    attack_accuracy,
    gap_baseline,
    membership,
    roc_curve,
)

__all__ = [
    "at_fpr",
    "at_threshold",
    "attack_accuracy",
    "gap_baseline",
    "intervals",
    "membership",
    "roc",
    "roc_curve",
    "scores",
    "slices",
]
