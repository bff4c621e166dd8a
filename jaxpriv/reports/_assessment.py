"""Runs attacks on evidence and measures their success.

Scores of records (`_run`) are averaged to scores of units (`units.canaries`), compared with one
correction for all attacks (`verdict.compare`), and stored as findings.

In the shapes below `n` counts records and `u` units of privacy.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _keys, _progress, audit, metrics, signals, units
from jaxpriv._names import Relation
from jaxpriv.attacks import Attack, blind, suite
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.metrics import accuracy, intervals, roc, slices, verdict
from jaxpriv.reports import _pictures, _score_files, findings
from jaxpriv.reports._score_files import Store
from jaxpriv.reports.findings import Findings

_ERROR = 0.05
"""Error probability that all attacks on a model share."""

_MAX_ROC_POINTS = 200

_NUM_EXPOSED = 10
"""Number of members that are listed."""

_NUM_BINS, _TAIL = 30, 0.01
"""Bins of a histogram of scores, and the share of the scores beyond each end of it."""

_LARGEST_EDGE = 1e300
"""Scores beyond it count as this number in a histogram, whose width would overflow."""

_FLAG_FPR = 0.01
"""Share of the non-members that an attack may flag when it flags a member."""


def blind_metrics(
    key: PRNGKeyArray,
    inputs: Shaped[np.ndarray, "n ..."],
    is_member: Bool[np.ndarray, " n"],
    unit: units.Units,
    *,
    store: Store,
) -> findings.Metrics:
    """Measures the blind attack, which distinguishes members by their inputs alone.

    Args:
      key: PRNG key.
      inputs: inputs of all records.
      is_member: true membership.
      unit: unit of each record; the records of a group are in one fold.
      store: storage of scores.

    Returns:
      Metrics of the out-of-fold scores.
    """
    rng = _keys.numpy_rng(key)
    group = None if unit.are_records else unit.index
    identity = _score_files.identity(key, inputs=inputs, is_member=is_member)
    scores = store.scores(
        "blind", identity, lambda: blind.score_records(rng, inputs, is_member, group=group)
    )
    canaries = units.canaries(unit, scores, is_member)
    return _metrics(canaries, confidence=1 - _ERROR)


def utility(
    evidence: Evidence, is_member: Bool[np.ndarray, " n"], unit: units.Units
) -> findings.Utility | None:
    """Measures the accuracy of the target on members and non-members.

    Args:
      evidence: evidence with logits and labels.
      is_member: true membership.
      unit: unit of each record; the records of a group are dependent.

    Returns:
      Accuracies and the baseline of the most frequent class; None without logits or labels.
    """
    correct, labels = evidence.correct, evidence.labels
    if correct is None or labels is None:
        return None
    test = correct[~is_member]
    if unit.are_records:
        low, high = intervals.clopper_pearson(int(test.sum()), len(test), confidence=1 - _ERROR)
    else:
        low, high = intervals.korn_graubard(test, unit.index[~is_member], confidence=1 - _ERROR)
    majority = np.bincount(labels[is_member]).argmax()
    return findings.Utility(
        train=float(correct[is_member].mean()),
        test=float(test.mean()),
        test_interval=(float(low), float(high)),
        majority=float((labels[~is_member] == majority).mean()),
    )


def assess(
    key: PRNGKeyArray,
    evidence: Evidence,
    is_member: Bool[np.ndarray, " n"],
    *,
    attacks: Sequence[Attack],
    unit: units.Units,
    delta: float,
    relation: Relation,
    no_audit: str | None = None,
    rows: Int[np.ndarray, " n"] | None = None,
    table_path: Path | None = None,
    show_inputs: bool = False,
    store: Store | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> Findings:
    """Runs every attack that the evidence supports, and measures its success.

    Args:
      key: PRNG key.
      evidence: outputs and records that the attacker has.
      is_member: true membership.
      attacks: table of attacks.
      unit: unit of each record; the score of a unit is the mean score of its records.
      delta: delta at which epsilon is bounded from below.
      relation: neighbouring relation of that bound.
      no_audit: reason why no audit applies; None if a fair coin decided each unit's membership.
      rows: number of each record in the user's data; None numbers them from 0.
      table_path: .csv file for the scores of all records; None writes none.
      show_inputs: whether the findings contain pictures of the most exposed members.
      store: storage of scores; None stores nothing.
      log: receives progress messages.

    Returns:
      The findings.

    Raises:
      ValueError: if no attack applies, or if there are no members or no non-members.
    """
    table = suite.applicable(attacks, evidence)
    if not table:
        reasons = "; ".join(f"{a.title} {suite.missing(a, evidence)}" for a in attacks)
        raise ValueError(f"Expected evidence for at least one attack, got none: {reasons}.")
    gap = _gap(evidence, is_member)
    one_run = functools.partial(_one_run, delta=delta, relation=relation)
    scores = _run(key, table, evidence, store or Store(None), log)
    judged = evidence.judged
    judged_units = unit.subset(judged)
    canaries = {
        name: units.canaries(judged_units, values[judged], is_member[judged])
        for name, values in scores.items()
    }
    comparison = verdict.compare(
        {name: canary.scores for name, canary in canaries.items()},
        next(iter(canaries.values())).is_member,
        confidence=1 - _ERROR,
        lower_bound=None if no_audit else lambda *a: one_run(*a).one_run or 0.0,
    )
    strongest = comparison.strongest
    rows = np.arange(len(is_member)) if rows is None else rows
    if table_path is not None:
        _score_files.write_table(table_path, rows, is_member, evidence, scores)
    return Findings(
        attacks=tuple(
            _result(attack, canaries[attack.name], comparison.attacks[attack.name], gap)
            for attack in table
        ),
        missing=_missing(attacks, evidence),
        corrected_confidence=comparison.corrected_confidence,
        strongest=strongest,
        leaks=comparison.leaks,
        gap_baseline=gap,
        slices=_slices(scores[strongest], evidence, is_member, unit),
        audit=None if no_audit else _audit(comparison, canaries, unit, one_run),
        no_audit=no_audit,
        num_shadows=evidence.num_shadows,
        histogram=_histogram(canaries[strongest]),
        exposed=_exposed(
            canaries,
            strongest,
            judged_units,
            rows[judged],
            None if evidence.labels is None else evidence.labels[judged],
            evidence.inputs[judged] if show_inputs and evidence.inputs is not None else None,
        ),
    )


def _gap(evidence: Evidence, is_member: Bool[np.ndarray, " n"]) -> float | None:
    correct = evidence.correct
    if correct is None:
        return None
    return accuracy.gap_baseline(
        train_accuracy=float(correct[is_member].mean()),
        test_accuracy=float(correct[~is_member].mean()),
    )


def _run(
    key: PRNGKeyArray,
    table: Sequence[Attack],
    evidence: Evidence,
    store: Store,
    log: Callable[[str], None],
) -> dict[str, Float[np.ndarray, " n"]]:
    """Returns the scores of each attack by name."""
    scores = {}
    with _progress.bar("attacking", len(table)) as advance:
        for i, attack in enumerate(table):
            log(f"  {i + 1} of {len(table)}: {attack.title}")
            attack_key = _keys.named(key, attack.name)
            identity = _score_files.identity(attack_key, **_score_files.arrays(evidence))
            scores[attack.name] = store.scores(
                attack.name, identity, lambda a=attack, k=attack_key: a.run(k, evidence)
            )
            advance(i + 1)
    return scores


def _result(
    attack: Attack, canaries: units.Canaries, strength: verdict.Strength, gap: float | None
) -> findings.AttackResult:
    measured = _metrics(canaries, confidence=1 - _ERROR)
    guesses, truth = canaries.scores > 0, canaries.is_member
    at_zero = (guesses[truth].mean() + (~guesses[~truth]).mean()) / 2
    return findings.AttackResult(
        name=attack.name,
        title=attack.title,
        reference=attack.reference,
        trains=attack.trains,
        metrics=measured,
        corrected_auc_interval=strength.auc_interval,
        epsilon_lower_bound=strength.epsilon_lower_bound,
        leaks=strength.leaks,
        below_gap=attack.trains and gap is not None and measured.balanced_accuracy < gap,
        accuracy_at_zero=float(at_zero) if attack.decision_at_zero else None,
        roc=_roc(canaries),
    )


def _metrics(canaries: units.Canaries, *, confidence: float) -> findings.Metrics:
    measured = metrics.membership(canaries.scores, canaries.is_member, confidence=confidence)
    return findings.Metrics(**measured._asdict())


def _roc(canaries: units.Canaries) -> findings.Roc:
    """Thins a ROC curve to `_MAX_ROC_POINTS` false positive rates, spaced geometrically."""
    curve = roc.roc_curve(canaries.scores, canaries.is_member)
    rates, last = np.unique(curve.fpr[::-1], return_index=True)
    tpr = curve.tpr[::-1][last]
    if len(rates) > _MAX_ROC_POINTS:
        # Geometric spacing keeps every low rate, which the logarithmic axes of the page magnify.
        wanted = np.geomspace(rates[1], 1, _MAX_ROC_POINTS - 1)
        chosen = np.unique(np.append(0, np.searchsorted(rates, wanted, "right") - 1))
        rates, tpr = rates[chosen], tpr[chosen]
    return findings.Roc(fpr=tuple(rates.tolist()), tpr=tuple(tpr.tolist()))


def _histogram(canaries: units.Canaries) -> findings.Histogram:
    """Counts the scores of members and non-members in bins of equal width.

    The first and the last bin also contain the scores beyond their outer edges, such as infinite
    ones.
    """
    scores = np.clip(np.asarray(canaries.scores, np.float64), -_LARGEST_EDGE, _LARGEST_EDGE)
    is_finite = np.isfinite(canaries.scores)
    low, high = np.quantile(scores[is_finite] if is_finite.any() else [0.0], (_TAIL, 1 - _TAIL))
    edges = np.linspace(low, high if high > low else low + max(1.0, abs(low)), _NUM_BINS + 1)
    clipped = np.clip(scores, edges[0], edges[-1])
    members, nonmembers = (
        np.histogram(clipped[side], edges)[0] for side in (canaries.is_member, ~canaries.is_member)
    )
    return findings.Histogram(
        edges=tuple(edges.tolist()),
        members=tuple(members.tolist()),
        nonmembers=tuple(nonmembers.tolist()),
    )


def _exposed(
    canaries: dict[str, units.Canaries],
    strongest: str,
    unit: units.Units,
    rows: Int[np.ndarray, " n"],
    labels: Int[np.ndarray, " n"] | None,
    inputs: Shaped[np.ndarray, "n ..."] | None,
) -> tuple[findings.Exposed, ...]:
    """Lists the member units with the highest scores of the strongest attack."""
    is_flagged = [
        canary.scores > _threshold(canary.scores[~canary.is_member]) for canary in canaries.values()
    ]
    num_flags = np.sum(is_flagged, axis=0)
    _, first = np.unique(unit.index, return_index=True)
    scores, is_member = canaries[strongest]
    members = np.flatnonzero(is_member)
    finite = np.nan_to_num(scores)
    # Among equal scores, records that more attacks flag come first.
    order = members[np.lexsort((-num_flags[members], -finite[members]))][:_NUM_EXPOSED]
    if unit.kind == "group":
        labels = None
    if inputs is not None and not _pictures.are_pictures(inputs):
        inputs = None
    return tuple(
        findings.Exposed(
            row=int(rows[first[i]]),
            label=None if labels is None else int(labels[first[i]]),
            score=float(finite[i]),
            num_flags=int(num_flags[i]),
            picture=None if inputs is None else _pictures.data_uri(inputs[first[i]]),
        )
        for i in order
    )


def _threshold(nonmembers: Float[np.ndarray, " k"]) -> float:
    """Returns the score that at most 1 % of the non-members exceed."""
    allowed = int(_FLAG_FPR * len(nonmembers))
    return float(np.sort(nonmembers)[len(nonmembers) - 1 - allowed])


def _one_run(
    scores: Float[np.ndarray, " u"],
    is_member: Bool[np.ndarray, " u"],
    confidence: float,
    *,
    delta: float,
    relation: Relation,
) -> audit.LowerBounds:
    return audit.lower_bounds(
        scores,
        is_member,
        design="one_run",
        delta=delta,
        relation=relation,
        confidence=confidence,
    )


def _audit(
    comparison: verdict.Comparison,
    canaries: dict[str, units.Canaries],
    unit: units.Units,
    one_run: Callable[..., audit.LowerBounds],
) -> findings.Audit:
    """Returns the largest bound, which holds since all bounds hold simultaneously."""
    bounds = {
        name: strength.epsilon_lower_bound or 0.0 for name, strength in comparison.attacks.items()
    }
    name = max(bounds, key=lambda name: (bounds[name], name == comparison.strongest))
    largest = one_run(*canaries[name], comparison.corrected_confidence)
    return findings.Audit(
        attack=name,
        one_run=largest.one_run or 0.0,
        one_run_fdp=largest.one_run_fdp,
        delta=largest.delta,
        relation=largest.relation,
        unit=unit.kind,
        confidence=comparison.corrected_confidence,
    )


def _missing(attacks: Sequence[Attack], evidence: Evidence) -> tuple[findings.MissingAttack, ...]:
    reasons = [(attack, suite.missing(attack, evidence)) for attack in attacks]
    return tuple(
        findings.MissingAttack(name=attack.name, title=attack.title, reason=reason)
        for attack, reason in reasons
        if reason
    )


def _slices(
    scores: Float[np.ndarray, " n"],
    evidence: Evidence,
    is_member: Bool[np.ndarray, " n"],
    unit: units.Units,
) -> tuple[findings.Slices, ...]:
    partitions: dict[str, tuple[np.ndarray, list[Any] | None]] = {}
    if evidence.labels is not None and unit.kind != "class":
        partitions["class"] = evidence.labels, None
    if evidence.correct is not None and evidence.logits is not None:
        prediction = np.where(evidence.correct, "correct", "wrong")
        partitions["prediction"] = prediction, ["correct", "wrong"]
        loss = -signals.score_records(signals.negative_loss, evidence.logits, evidence.labels)
        partitions["loss decile"] = slices.percentile_bins(loss, num_bins=10), list(range(10))
    rows = evidence.judged
    return tuple(
        _measure_parts(by, part[rows], expected, scores[rows], is_member[rows], unit.subset(rows))
        for by, (part, expected) in partitions.items()
    )


def _measure_parts(
    by: str,
    part: Shaped[np.ndarray, " n"],
    expected: list[Any] | None,
    scores: Float[np.ndarray, " n"],
    is_member: Bool[np.ndarray, " n"],
    unit: units.Units,
) -> findings.Slices:
    """Measures each part of a partition.

    Records of a unit that are in the same part count once, with their mean score.
    """
    values, code = np.unique(part, return_inverse=True)
    piece = unit.index * len(values) + code
    _, first = np.unique(piece, return_index=True)
    canaries = units.canaries(units.groups(piece), scores, is_member)
    measured = slices.measure(
        canaries.scores,
        canaries.is_member,
        part=part[first],
        confidence=1 - _ERROR,
        expected=expected,
    )
    return findings.Slices(
        by=by,
        num_parts=measured.num_parts,
        parts=tuple(_slice(each) for each in measured.parts),
        confidence=measured.confidence,
    )


def _slice(measured: slices.Slice) -> findings.Slice:
    result = measured.measured
    assert isinstance(measured.value, str | int)
    return findings.Slice(
        value=measured.value,
        num_members=measured.num_members,
        num_nonmembers=measured.num_nonmembers,
        auc=None if result is None else result.auc,
        auc_interval=None if result is None else result.auc_interval,
        tpr_at_1_percent_fpr=None if result is None else result.tpr_at_fpr["0.01"],
        reason=measured.reason,
    )
