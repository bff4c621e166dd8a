"""Membership inference attacks. Scores are higher for records that are more likely members."""

from jaxpriv.attacks import (
    attribute,
    blind,
    cross_target,
    evidence,
    floor_map,
    forest,
    inversion,
    known_noise,
    label_only,
    lira,
    neural,
    quantile,
    reference,
    rmia,
    sequence,
    shadow_classifier,
    suite,
    threshold,
)
from jaxpriv.attacks._needs import Need
from jaxpriv.attacks._networks import Training
from jaxpriv.attacks._runs import Run
from jaxpriv.attacks._tables import Attack
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.attacks.suite import applicable, missing, run_all

__all__ = [
    "Attack",
    "Evidence",
    "Need",
    "Run",
    "Training",
    "applicable",
    "attribute",
    "blind",
    "cross_target",
    "evidence",
    "floor_map",
    "forest",
    "inversion",
    "known_noise",
    "label_only",
    "lira",
    "missing",
    "neural",
    "quantile",
    "reference",
    "rmia",
    "run_all",
    "sequence",
    "shadow_classifier",
    "suite",
    "threshold",
]
