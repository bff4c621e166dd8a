"""Membership inference attacks: score arrays in, scores out; higher = more likely a member."""

from jaxpriv.attacks import (
    blind,
    label_only,
    lira,
    neural,
    quantile,
    rmia,
    runner,
    shadow_classifier,
    threshold,
)

__all__ = [
    "blind",
    "label_only",
    "lira",
    "neural",
    "quantile",
    "rmia",
    "runner",
    "shadow_classifier",
    "threshold",
]
