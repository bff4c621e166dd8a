"""`jaxpriv audit`: lower bounds on epsilon from a file of scores."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from jaxpriv._names import Relation
from jaxpriv.cli import attack, common

if TYPE_CHECKING:
    import numpy as np

    from jaxpriv import units
    from jaxpriv.attacks import Evidence

_ASSUMPTIONS = {
    "clopper_pearson": None,
    "gdp": "the trade-off function is Gaussian",
    "one_run": None,
    "one_run_fdp": "the trade-off function is Gaussian",
}

_CANDIDATES = ("signals", "negative_loss", "lira")
"""Attacks of the suite whose scores are audited; the error probability is shared among them."""


@dataclass(frozen=True, kw_only=True)
class Audit(common.Common):
    """Bound the epsilon of a training from below, whatever was promised."""

    scores: tyro.conf.Positional[Path]
    """SCORES.npz: is_member [n] and scores [n] or logits [n, c]; a row is a training run or a
    canary, see --design. Canaries may have shadow_scores [m, n] and shadow_is_member [m, n]."""
    design: Literal["independent_runs", "one_run"]
    """Whether rows are independent trainings, or canaries of one training with a fair coin each."""
    delta: float
    """Delta at which epsilon is bounded from below, in [0, 1)."""
    relation: Relation
    """How canaries were varied: added or left out (add_or_remove_one), or exchanged for another
    record (replace_one)."""
    confidence: float = 0.95
    """Confidence level of each bound, in (0, 1)."""
    claimed_epsilon: float | None = None
    """Claimed epsilon; the answer states whether a bound exceeds it."""


def run_audit(command: Audit, argv: list[str]) -> common.Answer:
    """Bounds epsilon from below by every method that the design allows."""
    del argv
    from jaxpriv import _check, audit
    from jaxpriv.metrics import verdict

    claim = command.claimed_epsilon
    if claim is not None:
        _check.non_negative(claimed_epsilon=claim)
    _check.open_unit(confidence=command.confidence)
    evidence, truth = attack.load(command.scores)
    candidates = _candidates(evidence, truth, one_run=command.design == "one_run")
    corrected = 1 - (1 - command.confidence) / len(candidates)
    bounds = {
        name: audit.lower_bounds(
            scores,
            is_member,
            design=command.design,
            delta=command.delta,
            relation=command.relation,
            confidence=corrected,
        )
        for name, (scores, is_member) in candidates.items()
    }
    largest, source = _largest(bounds)
    first = next(iter(bounds.values()))
    _, is_member = next(iter(candidates.values()))
    exceeded = [k for k, v in largest.items() if claim is not None and v is not None and v > claim]
    proved = [key for key in exceeded if _ASSUMPTIONS[key] is None]
    # A training on canaries has at least as many records as there are members among them.
    num_examples = int(is_member.sum()) if command.design == "one_run" else None
    result = {
        "lower_bounds": largest,
        "sources": source,
        "mu": {
            key: max((mu for b in bounds.values() if (mu := b.mu[key]) is not None), default=None)
            for key in first.mu
        },
        "not_applicable": first.not_applicable,
        "assumptions": {key: text for key, text in _ASSUMPTIONS.items() if text},
        "meaning": first.meaning,
        "confidence": command.confidence,
        "corrected_confidence": corrected,
        "delta": command.delta,
        "relation": command.relation,
        "design": command.design,
        "unit": "record" if evidence.unit_id is None else "group",
        "num_members": int(is_member.sum()),
        "num_nonmembers": int((~is_member).sum()),
        "not_used": _not_used(evidence, command.design),
        "claimed_epsilon": claim,
        "vacuous": []
        if claim is None
        else list(
            verdict.why_vacuous(epsilon=claim, delta=command.delta, num_examples=num_examples)
        ),
        "violation": None if claim is None else bool(exceeded),
        "violated_by": exceeded,
        "violation_without_assumption": None if claim is None else bool(proved),
    }
    return common.Answer(result, _lines(result))


def _candidates(
    evidence: "Evidence", is_member: "np.ndarray", *, one_run: bool
) -> "dict[str, units.Canaries]":
    """Scores and memberships of the units to audit, by the attack that gave the scores."""
    import jax

    from jaxpriv import units
    from jaxpriv.attacks import suite

    table = suite.applicable([a for a in suite.attacks() if a.name in _CANDIDATES], evidence)
    if evidence.signals is not None:
        table = [a for a in table if a.name == "signals" or (one_run and a.name == "lira")]
    elif not one_run:
        raise ValueError("Expected scores, one for each independent training, got none.")
    if not table:
        raise ValueError("Expected scores, or logits and labels, to audit, got neither.")
    judged = evidence.judged
    unit = units.of_records(len(evidence), group=evidence.unit_id).subset(judged)
    key = jax.random.key(0)  # none of these attacks draws
    return {
        a.name: units.canaries(unit, a.run(key, evidence)[judged], is_member[judged]) for a in table
    }


def _largest(bounds: dict[str, Any]) -> tuple[dict[str, float | None], dict[str, str]]:
    """The largest bound of each kind, and the attack that it comes from."""
    from jaxpriv import audit

    largest: dict[str, float | None] = {}
    source: dict[str, str] = {}
    for key in audit.bounds.KEYS:
        values = {name: getattr(bound, key) for name, bound in bounds.items()}
        given = {name: value for name, value in values.items() if value is not None}
        name = max(given, key=lambda name: given[name], default=None)
        largest[key] = None if name is None else given[name]
        if name is not None:
            source[key] = name
    return largest, source


def _not_used(evidence: "Evidence", design: str) -> list[str]:
    """Arrays of the file that play no part in the audit."""
    used = {"signals", "revealed", "revealed_is_member", "unit_id"}
    if design == "one_run":
        used |= {"shadow_signals", "shadow_logits", "shadow_is_member"}
        if evidence.signals is None or evidence.shadow_signals is None:
            used |= {"logits", "labels"}
    names = {"signals": "scores", "shadow_signals": "shadow_scores", "unit_id": "group"}
    present = (
        "logits",
        "labels",
        "inputs",
        "shadow_signals",
        "shadow_logits",
        "shadow_is_member",
        "population",
    )
    return [
        names.get(name, name)
        for name in present
        if getattr(evidence, name) is not None and name not in used
    ]


def _lines(result: dict[str, Any]) -> list[str]:
    from jaxpriv import _rounding

    lines = [
        f"epsilon at delta {result['delta']:g} is at least, each with confidence "
        f"{result['confidence']:g}:"
    ]
    for key, value in result["lower_bounds"].items():
        if value is None:
            text = result["not_applicable"].get(key)
        else:
            text = _rounding.down(value, decimals=4)
            if len(set(result["sources"].values())) > 1 or result["sources"][key] != "signals":
                text += f"  from {result['sources'][key]}"
            if _ASSUMPTIONS[key]:
                text += f"  if {_ASSUMPTIONS[key]}"
        lines.append(f"  {key:<16} {text}")
    lines.append(result["meaning"])
    if result["unit"] == "group":
        lines.append("A group is one canary, judged by the mean score of its rows.")
    if result["not_used"]:
        lines.append(f"not used: {', '.join(result['not_used'])}")
    claim = result["claimed_epsilon"]
    if claim is not None:
        exceeded = result["violated_by"]
        text = f"exceeded by {', '.join(exceeded)}" if exceeded else "not refuted"
        if exceeded and not result["violation_without_assumption"]:
            text += ": a violation if the trade-off function is Gaussian, no proof of one otherwise"
        lines.append(f"claimed epsilon {claim:g}: {text}")
        if result["vacuous"]:
            lines.append(f"The claim is vacuous: {'; '.join(result['vacuous'])}.")
    return lines
