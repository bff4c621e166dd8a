"""The command `jaxpriv audit`: lower bounds on epsilon from a file of scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from jaxpriv._names import Relation
from jaxpriv.cli import _common, _pages
from jaxpriv.reports.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from jaxpriv import units
    from jaxpriv.attacks import Attack as SuiteAttack
    from jaxpriv.attacks import Evidence
    from jaxpriv.audit import LowerBounds

__all__ = ["Audit", "run_audit"]

_AUDITED = ("signals", "negative_loss", "lira")
"""Attacks of the suite whose scores are audited; the bounds share the error probability."""


@dataclass(frozen=True, kw_only=True)
class Audit(_pages.Output):
    """Bound the epsilon of a training from below, independently of its claimed guarantee."""

    scores: tyro.conf.Positional[Path]
    """SCORES.npz: is_member [n] and scores [n] or logits [n, c]; a row is a training run or a
    canary, see --design. Canaries may have shadow_scores [m, n] and shadow_is_member [m, n]."""
    design: Literal["independent_runs", "one_run"]
    """Meaning of a row: one of several independent trainings, or a canary of one training with a
    fair coin of its own."""
    delta: float
    """Delta at which epsilon is bounded from below, in [0, 1)."""
    relation: Relation
    """Variation of the canaries: added or left out (add_or_remove_one), or exchanged for another
    record (replace_one)."""
    confidence: float = 0.95
    """Confidence level of each bound, in (0, 1)."""
    claimed_epsilon: float | None = None
    """Claimed epsilon, which is compared with the bounds."""


def run_audit(command: Audit, argv: Sequence[str]) -> _common.Answer:
    """Bounds epsilon from below by every method that the design allows.

    Args:
      command: parsed options.
      argv: arguments of the program, which the page prints.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if an option is out of range, if the file lacks scores or `is_member`, or if the
        output folder cannot be written to.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder, "scores.npz")
      ...     np.savez(path, scores=np.arange(200), is_member=np.arange(200) >= 100)
      ...     command = Audit(
      ...         scores=path, design="one_run", delta=1e-5, relation="add_or_remove_one"
      ...     )
      ...     answer = run_audit(command, [])
      >>> 3 < answer.json["lower_bounds"]["one_run"] < 5
      True
    """
    _pages.check_for_scores(command, command.scores, confidence=command.confidence)
    from jaxpriv import _check, audit

    settings = _settings(command)
    if command.claimed_epsilon is not None:
        _check.non_negative(claimed_epsilon=command.claimed_epsilon)
    _check.open_unit(confidence=command.confidence)
    evidence, truth = _common.load_scores(command.scores)
    results = _run_attacks(evidence, one_run=command.design == "one_run")
    canaries = _canaries(evidence, truth, results)
    corrected = 1 - (1 - command.confidence) / len(canaries)
    bounds = {
        name: audit.lower_bounds(
            scores,
            is_member,
            design=command.design,
            delta=command.delta,
            relation=command.relation,
            confidence=corrected,
        )
        for name, (scores, is_member) in canaries.items()
    }
    largest, sources = _largest(bounds)
    first = next(iter(bounds.values()))
    _, is_member = next(iter(canaries.values()))
    num_members = int(is_member.sum())
    result = {
        "lower_bounds": largest,
        "sources": sources,
        "mu": _largest_mu(bounds),
        "not_applicable": first.not_applicable,
        "assumptions": dict(audit.bounds.ASSUMPTIONS),
        "meaning": first.meaning,
        "confidence": command.confidence,
        "corrected_confidence": corrected,
        "delta": command.delta,
        "relation": command.relation,
        "design": command.design,
        "unit": "record" if evidence.unit_id is None else "group",
        "num_members": num_members,
        "num_nonmembers": int((~is_member).sum()),
        "not_used": _not_used(evidence, command.design),
        **_claim(command, largest, num_members=num_members),
    }
    lines = []
    if settings is not None:
        table = _audited_attacks(evidence, one_run=True)
        lines = _pages.write_scores(settings, results, table, command, argv, seed=0)
    return _common.Answer(result, [*_lines(result), *lines])


def _settings(command: Audit) -> Settings | None:
    """Returns the settings of the page; None if none is written."""
    if command.out is None:
        return None
    if command.design != "one_run":
        raise ValueError(
            "Expected --design one_run with --out, whose page is about the records of one model."
        )
    return Settings(
        scores=str(command.scores),
        by_coin=True,
        delta=command.delta,
        relation=command.relation,
        claimed_epsilon=command.claimed_epsilon,
    )


def _audited_attacks(evidence: "Evidence", *, one_run: bool) -> "Sequence[SuiteAttack]":
    from jaxpriv.attacks import suite

    table = suite.applicable([a for a in suite.attacks() if a.name in _AUDITED], evidence)
    if evidence.signals is not None:
        return [a for a in table if a.name == "signals" or (one_run and a.name == "lira")]
    return table


def _run_attacks(evidence: "Evidence", *, one_run: bool) -> "dict[str, np.ndarray]":
    """Returns the scores of all records by the name of the attack."""
    import jax

    from jaxpriv.attacks import suite

    if evidence.signals is None and not one_run:
        raise ValueError("Expected scores, one for each independent training, got none.")
    table = _audited_attacks(evidence, one_run=one_run)
    if not table:
        raise ValueError("Expected scores, or logits and labels, to audit, got neither.")
    key = jax.random.key(0)  # the audited attacks are deterministic
    return suite.run_all(key, evidence, table=table)


def _canaries(
    evidence: "Evidence", is_member: "np.ndarray", results: "dict[str, np.ndarray]"
) -> "dict[str, units.Canaries]":
    """Returns scores and membership of the units to audit, by the name of the attack."""
    from jaxpriv import units

    judged = evidence.judged
    unit = units.of_records(len(evidence), group=evidence.unit_id).subset(judged)
    return {
        name: units.canaries(unit, scores[judged], is_member[judged])
        for name, scores in results.items()
    }


def _largest(
    bounds: "dict[str, LowerBounds]",
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Returns the largest bound of each kind, and the attack that gives it."""
    from jaxpriv import audit

    largest: dict[str, float | None] = {}
    sources: dict[str, str] = {}
    for key in audit.bounds.KEYS:
        values = {name: getattr(bound, key) for name, bound in bounds.items()}
        given = {name: value for name, value in values.items() if value is not None}
        name = max(given, key=lambda name: given[name], default=None)
        largest[key] = None if name is None else given[name]
        if name is not None:
            sources[key] = name
    return largest, sources


def _largest_mu(bounds: "dict[str, LowerBounds]") -> dict[str, float | None]:
    keys = next(iter(bounds.values())).mu
    values = {key: [bound.mu[key] for bound in bounds.values()] for key in keys}
    return {
        key: max((mu for mu in mus if mu is not None), default=None) for key, mus in values.items()
    }


def _claim(command: Audit, largest: dict[str, float | None], *, num_members: int) -> dict[str, Any]:
    """Compares the claimed epsilon with the bounds."""
    from jaxpriv.audit import bounds
    from jaxpriv.metrics import verdict

    claim = command.claimed_epsilon
    if claim is None:
        return {
            "claimed_epsilon": None,
            "vacuous": [],
            "violation": None,
            "violated_by": [],
            "violation_without_assumption": None,
        }
    exceeded = [key for key, bound in largest.items() if bound is not None and bound > claim]
    # A training on canaries has at least as many records as it has members among the canaries.
    num_examples = num_members if command.design == "one_run" else None
    reasons = verdict.why_vacuous(epsilon=claim, delta=command.delta, num_examples=num_examples)
    return {
        "claimed_epsilon": claim,
        "vacuous": list(reasons),
        "violation": bool(exceeded),
        "violated_by": exceeded,
        "violation_without_assumption": bool(set(exceeded) - set(bounds.ASSUMPTIONS)),
    }


def _not_used(evidence: "Evidence", design: str) -> list[str]:
    """Lists arrays of the file that the audit does not use."""
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
    lines = [
        f"epsilon at delta {result['delta']:g} is at least, each with confidence "
        f"{result['confidence']:g}:",
        *_common.text_table(
            (f"  {key}", _bound_text(key, value, result))
            for key, value in result["lower_bounds"].items()
        ),
        f"Neighbouring data sets: {result['meaning']}",
    ]
    if result["design"] == "one_run":
        lines.append(
            "The bounds hold only if the membership of each canary was decided by a fair coin of "
            "its own."
        )
    if result["unit"] == "group":
        lines.append("A group is one canary; its score is the mean score of its rows.")
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


def _bound_text(key: str, value: float | None, result: dict[str, Any]) -> str:
    from jaxpriv import _rounding
    from jaxpriv.audit import bounds

    if value is None:
        return str(result["not_applicable"].get(key))
    text = _rounding.down(value, decimals=4)
    if len(set(result["sources"].values())) > 1 or result["sources"][key] != "signals":
        text += f"  from {result['sources'][key]}"
    if key in bounds.ASSUMPTIONS:
        text += f"  if {bounds.ASSUMPTIONS[key]}"
    return text
