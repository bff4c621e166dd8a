"""How well scores tell members from non-members, and how sure one may be of it."""

from jaxpriv.metrics import intervals, roc, scores
from jaxpriv.metrics.roc import at_fpr, membership, roc_curve

__all__ = ["at_fpr", "intervals", "membership", "roc", "roc_curve", "scores"]
