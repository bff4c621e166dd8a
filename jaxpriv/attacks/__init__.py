"""Membership inference attacks: signals or queries in, scores out; higher = likelier a member."""

from jaxpriv.attacks import (
    blind,
    cross_target,
    evidence,
    label_only,
    lira,
    neural,
    quantile,
    rmia,
    shadow_classifier,
    suite,
    threshold,
)
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.attacks.suite import Attack, Training, applicable, missing

__all__ = [
    "Attack",
    "Evidence",
    "Training",
    "applicable",
    "blind",
    "cross_target",
    "evidence",
    "label_only",
    "lira",
    "missing",
    "neural",
    "quantile",
    "rmia",
    "shadow_classifier",
    "suite",
    "threshold",
]
