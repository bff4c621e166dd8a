"""Saves the evidence of a report, so that its owner can attack the models again.

In the shapes below `n` counts records.
"""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from jaxpriv import signals
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.attacks.evidence import Evidence

_MAX_LOGIT_BYTES = 64 * 2**20
"""Larger logits are stored as signals."""


def save(
    path: Path,
    evidence: Evidence,
    is_member: Bool[np.ndarray, " n"],
    *,
    keep_inputs: bool,
) -> bool:
    """Saves outputs and memberships; returns whether they are logits.

    Logits of more than 64 MB are replaced by the logit-scaled confidence, which LiRA needs.

    Args:
      path: file to write, readable by its owner only.
      evidence: what the attackers had.
      is_member: true membership.
      keep_inputs: whether the file contains the inputs of the records.
    """
    population = evidence.population
    if not keep_inputs:
        evidence = dataclasses.replace(evidence, inputs=None)
        population = population and dataclasses.replace(population, inputs=None)
    has_logits = _logit_bytes(evidence) + _logit_bytes(population) <= _MAX_LOGIT_BYTES
    if not has_logits:
        target, shadows = evidence.logits, evidence.shadow_logits
        evidence = dataclasses.replace(
            evidence,
            logits=None,
            shadow_logits=None,
            signals=_confidences(target, evidence.labels),
            shadow_signals=_confidences(shadows, evidence.labels),
        )
        population = None
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = dataclasses.replace(evidence, population=population)
    evidence_lib.save(path, stored, is_member, private=True)
    return has_logits


def _logit_bytes(evidence: Evidence | None) -> int:
    if evidence is None or evidence.labels is None:
        return 0
    return sum(a.nbytes for a in (evidence.logits, evidence.shadow_logits) if a is not None)


def _confidences(logits: np.ndarray | None, labels: np.ndarray | None) -> np.ndarray | None:
    if logits is None:
        return None
    return signals.score_records(signals.logit_confidence, logits, labels)
