"""`jaxpriv attack` and `jaxpriv audit`: from anybody's scores."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from jaxpriv.cli import common

_ASSUMES = {
    "clopper_pearson": "",
    "gdp": "  if the trade-off is Gaussian",
    "one_run": "",
    "one_run_fdp": "  if the trade-off is Gaussian",
}


@dataclass(frozen=True, kw_only=True)
class Attack(common.Common):
    """Membership metrics, from anybody's scores: higher = more likely a member."""

    scores: tyro.conf.Positional[Path]
    """SCORES.npz: scores [n], is_member [n]; optional shadow_scores, shadow_is_member [m, n]."""
    confidence: float = 0.95
    """Of the intervals."""


@dataclass(frozen=True, kw_only=True)
class Audit(common.Common):
    """Lower bounds on epsilon: what training spent at least, whatever was promised."""

    scores: tyro.conf.Positional[Path]
    """SCORES.npz: scores [n], is_member [n]; a row is a training run or a canary, see --design."""
    design: Literal["independent_runs", "one_run"]
    """Rows are independent trainings, or canaries of one training with a fair coin each."""
    delta: float
    """At which epsilon is bounded."""
    relation: common.RelationName
    """By which a row's record entered: added or left out, or exchanged."""
    confidence: float = 0.95
    """With which each bound holds."""
    claimed_epsilon: float | None = None
    """What is promised: tell whether a bound exceeds it."""


def run_attack(command: Attack, argv: list[str]) -> common.Told:
    """Measures the scores as given, and every attack that the file allows."""
    del argv
    from jaxpriv import data, metrics
    from jaxpriv.reports import measure

    held = data.load_scores(command.scores)
    result = metrics.membership(
        held.scores, held.is_member, confidence=command.confidence
    )._asdict()
    result |= measure.attacks_on_scores(held, confidence=command.confidence)
    lines = _told("scores as given", result)
    for name, found in result["attacks"].items():
        lines += _told(name, found)
        if found["below_gap"]:
            lines.append(f"  below the gap baseline of {result['gap_baseline']:.4f}")
    for kind, parts in result["slices"].items():
        lines += _parts(kind, parts)
    lines.append("TPR intervals are given the threshold, whose own error is not in them.")
    return result, lines


def _parts(kind: str, parts: list[dict[str, Any]]) -> list[str]:
    lines = [f"by {kind}:"]
    for part in parts:
        found = part["reason"] or "AUC {:.4f}  [{:.4f}, {:.4f}]".format(
            part["auc"], *part["auc_interval"]
        )
        counts = f"{part['num_members']} members, {part['num_nonmembers']} non-members"
        lines.append(f"  {part['value']!s:<18} {found}  ({counts})")
    return lines


def _told(name: str, found: dict[str, Any]) -> list[str]:
    low, high = found["auc_interval"]
    lines = [
        f"{name}: {found['num_members']} members, {found['num_nonmembers']} non-members",
        f"  AUC                {found['auc']:.4f}  [{low:.4f}, {high:.4f}]",
        f"  balanced accuracy  {found['balanced_accuracy']:.4f}  (best threshold, same records)",
        f"  advantage          {found['advantage']:.4f}",
    ]
    for fpr, tpr in found["tpr_at_fpr"].items():
        label = f"  TPR at {100 * float(fpr):g} % FPR"
        if tpr is None:
            lines.append(f"{label:<21}not resolvable with {found['num_nonmembers']} non-members")
            continue
        low, high = found["tpr_at_fpr_interval"][fpr]
        coarse = "  coarse" if fpr in found["coarse"] else ""
        lines.append(f"{label:<21}{tpr:.4f}  [{low:.4f}, {high:.4f}]{coarse}")
    return lines


def run_audit(command: Audit, argv: list[str]) -> common.Told:
    """Bounds epsilon from below by every method that the design allows."""
    del argv
    from jaxpriv import _check, audit, data

    if command.claimed_epsilon is not None:
        _check.non_negative(claimed_epsilon=command.claimed_epsilon)
    held = data.load_scores(command.scores)
    found = audit.lower_bounds(
        held.scores,
        held.is_member,
        design=command.design,
        delta=command.delta,
        relation=command.relation,
        confidence=command.confidence,
    )
    bounds = {key: getattr(found, key) for key in audit.bounds.KEYS}
    claim = command.claimed_epsilon
    broken = [k for k, v in bounds.items() if claim is not None and v is not None and v > claim]
    sure = [key for key in broken if not _ASSUMES[key]]
    result = {
        "lower_bounds": bounds,
        "mu": found.mu,
        "not_applicable": found.not_applicable,
        "meaning": found.meaning,
        "confidence": found.confidence,
        "delta": found.delta,
        "relation": found.relation,
        "design": found.design,
        "num_members": int(held.is_member.sum()),
        "num_nonmembers": int((~held.is_member).sum()),
        "claimed_epsilon": claim,
        "violation": None if claim is None else bool(broken),
        "violated_by": broken,
        "violation_without_assumption": None if claim is None else bool(sure),
    }
    lines = [
        f"epsilon at delta {found.delta:g} is at least, each with confidence {found.confidence:g}:"
    ]
    for key, value in bounds.items():
        told = found.not_applicable.get(key) if value is None else f"{_down(value)}{_ASSUMES[key]}"
        lines.append(f"  {key:<16} {told}")
    lines.append(found.meaning)
    if claim is not None:
        told = f"exceeded by {', '.join(broken)}" if broken else "not refuted"
        if broken and not sure:
            told += ": a violation if the trade-off is Gaussian, and no proof of one if it is not"
        lines.append(f"claimed epsilon {claim:g}: {told}")
    return result, lines


def _down(bound: float) -> str:
    return f"{math.floor(bound * 1e4) / 1e4:.4f}"
