"""The command `jaxpriv attack`: membership inference from a file of scores or logits."""

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from jaxpriv.cli import _common, _pages
from jaxpriv.reports.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from jaxpriv.attacks import Attack as SuiteAttack
    from jaxpriv.attacks import Evidence
    from jaxpriv.metrics.slices import Slice, Slices
    from jaxpriv.metrics.verdict import Comparison

__all__ = ["Attack", "run_attack"]


@dataclass(frozen=True, kw_only=True)
class Attack(_pages.Output):
    """Evaluate membership inference from a file of scores or logits of any framework."""

    scores: tyro.conf.Positional[Path]
    """SCORES.npz: is_member [n] and scores [n] (higher = more likely a member) or logits [n, c];
    optional labels [n], inputs [n, ...], group [n], shadow_scores [m, n] or shadow_logits
    [m, n, c] with shadow_is_member [m, n], and population_logits, population_labels, ..."""
    confidence: float = 0.95
    """Confidence level of the intervals, in (0, 1)."""
    seed: int = 0
    """Random seed of the attacks that train a network."""


def run_attack(command: Attack, argv: Sequence[str]) -> _common.Answer:
    """Runs every attack that the file supports, and measures its success.

    Args:
      command: parsed options.
      argv: arguments of the program, which the page prints.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if the file is damaged or lacks `is_member`, or if the output folder cannot be
        written to.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder, "scores.npz")
      ...     np.savez(path, scores=[1.0, 3.0, 2.0, 4.0], is_member=[0, 0, 1, 1])
      ...     answer = run_attack(Attack(scores=path), [])
      >>> answer.json["auc"], answer.json["strongest"]
      (0.75, 'signals')
    """
    _pages.check_for_scores(command, command.scores, confidence=command.confidence)
    import jax

    from jaxpriv.attacks import suite
    from jaxpriv.metrics import verdict

    evidence, truth = _common.load_scores(command.scores)
    table = suite.attacks()
    applicable = suite.applicable(table, evidence)
    judged = evidence.judged
    results = suite.run_all(jax.random.key(command.seed), evidence, table=table)
    scores = {name: values[judged] for name, values in results.items()}
    is_member = truth[judged]
    comparison = verdict.compare(scores, is_member, confidence=command.confidence)
    accuracy = _accuracy(evidence, truth)
    gap = None if accuracy is None else accuracy["gap_baseline"]
    attacks = {
        attack.name: _measure(attack, scores[attack.name], is_member, comparison, gap=gap)
        for attack in applicable
    }
    given = attacks.get("signals")
    slices = _slices(evidence, truth, scores[comparison.strongest], confidence=command.confidence)
    missing = {attack.name: suite.missing(attack, evidence) for attack in table}
    result = {
        **{key: None if given is None else given[key] for key in _GIVEN},
        "num_members": int(is_member.sum()),
        "num_nonmembers": int((~is_member).sum()),
        "scores_may_be_reversed": given is not None and given["auc_interval"][1] < 0.5,
        "attacks": attacks,
        "strongest": comparison.strongest,
        "leaks": list(comparison.leaks),
        "confidence": command.confidence,
        "corrected_confidence": comparison.corrected_confidence,
        "accuracy": accuracy,
        "gap_baseline": gap,
        "slices": {by: [_slice(part) for part in parts.parts] for by, parts in slices.items()},
        "num_parts": {by: parts.num_parts for by, parts in slices.items()},
        "not_applicable": {name: reason for name, reason in missing.items() if reason},
    }
    lines = _pages.write_scores(
        Settings(scores=str(command.scores)), results, table, command, argv, seed=command.seed
    )
    return _common.Answer(result, [*_lines(result, evidence), *lines])


_MAX_LISTED = 10
"""In partitions with more parts the text counts the parts without metrics."""

_GIVEN = (
    "auc",
    "auc_interval",
    "balanced_accuracy",
    "advantage",
    "tpr_at_fpr",
    "tpr_interval_at_threshold",
    "tpr_interval_at_fpr",
    "coarse",
)
"""Metrics of the given scores, which are repeated at the top of the JSON object."""


def _accuracy(evidence: "Evidence", is_member: "np.ndarray") -> dict[str, float] | None:
    """Computes the accuracies of the target, and the baselines that need no attack."""
    import numpy as np

    from jaxpriv import metrics

    correct, labels = evidence.correct, evidence.labels
    if correct is None or labels is None or not 0 < is_member.sum() < len(is_member):
        return None
    train, test = float(correct[is_member].mean()), float(correct[~is_member].mean())
    _, counts = np.unique(labels, return_counts=True)
    return {
        "train": train,
        "test": test,
        "majority_class": float(counts.max() / len(labels)),
        "gap_baseline": metrics.gap_baseline(train_accuracy=train, test_accuracy=test),
    }


def _measure(
    attack: "SuiteAttack",
    scores: "np.ndarray",
    is_member: "np.ndarray",
    comparison: "Comparison",
    *,
    gap: float | None,
) -> dict[str, Any]:
    from jaxpriv import metrics

    result = metrics.membership(scores, is_member, confidence=comparison.confidence)
    guess = scores > 0
    at_zero = float((guess[is_member].mean() + (~guess[~is_member]).mean()) / 2)
    return {
        **result._asdict(),
        "title": attack.title,
        "accuracy_at_zero": at_zero if attack.decision_at_zero else None,
        "below_gap": attack.trains and gap is not None and result.balanced_accuracy < gap,
        "corrected_auc_interval": comparison.attacks[attack.name].auc_interval,
        "leaks": comparison.attacks[attack.name].leaks,
    }


def _slices(
    evidence: "Evidence", is_member: "np.ndarray", scores: "np.ndarray", *, confidence: float
) -> "dict[str, Slices]":
    """Measures the strongest attack by class, group, prediction and decile of the loss."""
    import numpy as np

    from jaxpriv import signals
    from jaxpriv.metrics import slices

    partitions: dict[str, tuple[Any, Any]] = {}
    if evidence.labels is not None:
        partitions["class"] = evidence.labels, None
    if evidence.unit_id is not None:
        partitions["group"] = evidence.unit_id, None
    if evidence.correct is not None:
        prediction = np.where(evidence.correct, "right", "wrong")
        partitions["prediction"] = prediction, ("right", "wrong")
        loss = -signals.score_records(signals.negative_loss, *evidence.require("logits", "labels"))
        partitions["loss decile"] = slices.percentile_bins(loss, num_bins=10), range(10)
    rows = evidence.judged
    return {
        by: slices.measure(
            scores, is_member[rows], part=part[rows], confidence=confidence, expected=expected
        )
        for by, (part, expected) in partitions.items()
    }


def _slice(part: "Slice") -> dict[str, Any]:
    measured = part.measured
    return {
        "value": part.value,
        "num_members": part.num_members,
        "num_nonmembers": part.num_nonmembers,
        "auc": None if measured is None else measured.auc,
        "auc_interval": None if measured is None else measured.auc_interval,
        "tpr_at_1_percent_fpr": None if measured is None else measured.tpr_at_fpr["0.01"],
        "reason": part.reason,
    }


def _lines(result: dict[str, Any], evidence: "Evidence") -> list[str]:
    from jaxpriv.attacks import lira

    lines = [f"{result['num_members']} members, {result['num_nonmembers']} non-members"]
    accuracy = result["accuracy"]
    if accuracy is not None:
        lines += [
            f"accuracy: {accuracy['train']:.4f} on members, {accuracy['test']:.4f} on non-members, "
            f"{accuracy['majority_class']:.4f} for the largest class alone",
            f"gap baseline: {result['gap_baseline']:.4f}, the balanced accuracy of calling "
            "correctly classified records members",
        ]
    strongest = result["attacks"][result["strongest"]]
    low, high = strongest["corrected_auc_interval"]
    lines.append(
        f"strongest of {len(result['attacks'])}: {strongest['title']}, AUC {strongest['auc']:.4f}  "
        f"[{low:.4f}, {high:.4f}] at confidence {result['corrected_confidence']:.4f}"
        f"{', corrected for their number' if len(result['attacks']) > 1 else ''}"
    )
    names = [result["attacks"][name]["title"] for name in result["leaks"]]
    summary = f"attacks that find a leak: {', '.join(names)}" if names else "no leak found"
    if result["scores_may_be_reversed"]:
        summary += "; the scores given may be reversed, see below"
    lines.append(summary)
    for attack in result["attacks"].values():
        lines += _attack_lines(attack, result["gap_baseline"])
        if attack["title"] == "scores as given" and result["scores_may_be_reversed"]:
            lines.append(
                "  The interval lies below 1/2: the scores may be reversed. Expected higher = more "
                "likely a member."
            )
    for by, parts in result["slices"].items():
        lines += _slice_lines(by, parts, result["num_parts"][by], strongest["title"])
    if 0 < evidence.num_shadows < lira.MIN_SHADOWS:
        lines.append(
            f"With only {evidence.num_shadows} shadow models LiRA is unreliable; use at least "
            f"{lira.MIN_SHADOWS}."
        )
    if evidence.unit_id is not None:
        lines.append("Records of one group are dependent: the intervals are too narrow for groups.")
    lines.append(
        "TPR intervals are those at the FPR itself and include the error of the threshold; those "
        "that begin at 0 bound the TPR from above only."
    )
    reasons: dict[str, list[str]] = {}
    for name, reason in result["not_applicable"].items():
        reasons.setdefault(reason, []).append(name)
    lines += [f"not run: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return lines


def _attack_lines(attack: dict[str, Any], gap: float | None) -> list[str]:
    low, high = attack["auc_interval"]
    rows = [
        ("  AUC", f"{attack['auc']:.4f}  [{low:.4f}, {high:.4f}]"),
        (
            "  balanced accuracy",
            f"{attack['balanced_accuracy']:.4f}  (best threshold, same records)",
        ),
        ("  advantage", f"{attack['advantage']:.4f}"),
    ]
    for fpr, tpr in attack["tpr_at_fpr"].items():
        text = f"not resolvable with {attack['num_nonmembers']} non-members"
        if tpr is not None:
            low, high = attack["tpr_interval_at_fpr"][fpr]
            coarse = "  coarse" if fpr in attack["coarse"] else ""
            text = f"{tpr:.4f}  [{low:.4f}, {high:.4f}]{coarse}"
        rows.append((f"  TPR at {100 * float(fpr):g} % FPR", text))
    lines = [f"{attack['title']}:", *_common.text_table(rows)]
    if attack["below_gap"]:
        lines.append(f"  below the gap baseline of {gap:.4f}: it did not learn membership")
    return lines


def _slice_lines(
    by: str, parts: list[dict[str, Any]], num_parts: int, attack_title: str
) -> list[str]:
    shown = f", the {len(parts)} largest of {num_parts}" if num_parts > len(parts) else ""
    lines = [f"{attack_title} by {by}{shown}:"]
    listed = parts
    if len(parts) > _MAX_LISTED:
        listed = [part for part in parts if part["reason"] is None]
        reasons = collections.Counter(part["reason"] for part in parts if part["reason"])
        lines += [f"  {count} not measured: {reason}" for reason, count in reasons.items()]
    rows = []
    for part in listed:
        text = part["reason"]
        if text is None:
            low, high = part["auc_interval"]
            text = f"AUC {part['auc']:.4f}  [{low:.4f}, {high:.4f}]"
        counts = f"{part['num_members']} members, {part['num_nonmembers']} non-members"
        rows.append((f"  {part['value']}", f"{text}  ({counts})"))
    return [*lines, *(_common.text_table(rows) if rows else [])]
