"""Metrics of membership attacks, with confidence intervals."""

from jaxpriv.metrics import accuracy, image, intervals, roc, slices, text, verdict
from jaxpriv.metrics.accuracy import attack_accuracy, gap_baseline
from jaxpriv.metrics.roc import at_fpr, at_threshold, membership, roc_curve

__all__ = [
    "accuracy",
    "at_fpr",
    "at_threshold",
    "attack_accuracy",
    "gap_baseline",
    "image",
    "intervals",
    "membership",
    "roc",
    "roc_curve",
    "slices",
    "text",
    "verdict",
]
