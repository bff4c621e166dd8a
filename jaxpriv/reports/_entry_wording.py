"""Sentences and table cells about one model of a report."""

from typing import NamedTuple

from jaxpriv import _rounding, accounting
from jaxpriv.reports._phrases import (
    NBSP,
    capitalised,
    class_name,
    confidence_level,
    epsilon_text,
    guarantee_text,
    interval,
    percent,
    units_name,
)
from jaxpriv.reports.findings import (
    AttackResult,
    Data,
    DefenceGuarantee,
    Entry,
    Findings,
    Slice,
    Slices,
)
from jaxpriv.reports.settings import Unit

_MIN_SHADOWS = 16
"""With fewer shadow models LiRA estimates a distribution from fewer than 8 of them."""

_WEAK_GAMMA = 0.1
"""Failure probability of a sampled guarantee above which the page calls it large."""

_TAGS = {
    "publish_with_dp": "publish with DP",
    "no_leak_found": "no leak found, no guarantee",
    "do_not_publish": "do not publish",
}

_TONES = {
    "publish_with_dp": "good",
    "no_leak_found": "",
    "do_not_publish": "bad",
}


class ExposedRow(NamedTuple):
    """A row of the table of exposed records: a description and the results."""

    records: str
    part: Slice


class RateRow(NamedTuple):
    """Cells with the true positive rate at a false positive rate."""

    fpr: str
    tpr: str
    interval: str
    note: str


def tag(entry: Entry) -> str:
    """Returns the recommendation for a model in a few words."""
    if entry.recommendation == "publish_with_dp" and _is_claim(entry):
        return "publish if the claim holds"
    return _TAGS[entry.recommendation]


def tone(entry: Entry) -> str:
    """Returns the CSS class of a recommendation: 'good', 'bad' or ''."""
    if entry.recommendation == "publish_with_dp" and _is_claim(entry):
        return ""
    return _TONES[entry.recommendation]


def _is_claim(entry: Entry) -> bool:
    return entry.promise is not None and entry.promise.is_claim


def recommendation(entry: Entry, *, seed: int | None) -> str:
    """States the recommendation for a model and its reason.

    Args:
      entry: results for the model.
      seed: seed that the report prints; None if the key was secret.
    """
    findings, promise = entry.findings, entry.promise
    if entry.recommendation == "publish_with_dp":
        assert promise is not None
        text = f"Publish with differential privacy at epsilon {epsilon_text(promise.stated())}."
        if promise.is_claim:
            text = (
                f"Publish if the claimed epsilon of {epsilon_text(promise.stated())} holds, which "
                "this report cannot verify: check the accounting of the training."
            )
        if findings.leaks:
            text += f" {_leak_beside_guarantee(entry)}"
        if seed is not None and not promise.is_claim:
            text += (
                " Train again without --seed first, since this report prints the seed, "
                "from which the noise can be redrawn."
            )
        return text
    exceeding = entry.exceeding_bound()
    if exceeding is not None:
        bound, confidence = exceeding
        return (
            "Do not publish: an audit proves epsilon of at least "
            f"{_rounding.down(bound, decimals=3)}, above the guarantee. "
            f"This happens by chance in at most {percent(1 - confidence, 2)} of runs. "
            "Look for an error in the training or in its accounting."
        )
    allowed = None if promise is None else promise.contradicted_auc(findings)
    if allowed is not None:
        return _contradiction(findings, allowed)
    reason = "the model has no guarantee"
    if entry.defence_guarantee is not None:
        reason = "the guarantee of its defence is not one of membership"
        if entry.defence_guarantee.kind == "sampled":
            reason = "the guarantee of its defence rests on sampled data sets"
    if promise is not None:
        reason = f"the guarantee is vacuous: {'; '.join(promise.vacuous)}"
    if entry.recommendation == "do_not_publish":
        return f"Do not publish: there is a leak, and {reason}."
    found_none = "No leak found by these attacks, which is not a guarantee"
    text = f"{found_none}." if promise is None else f"{found_none}; {reason}."
    if _reversed_titles(findings):
        text += " An AUC is below 0.5 by more than chance: check the sign of the scores first."
    return text


def _contradiction(findings: Findings, allowed: float) -> str:
    """States which AUC a claimed epsilon does not allow."""
    if allowed < 0.5:
        attack = findings.lowest_attack()
        limit = f"below {_rounding.down(allowed, decimals=3)}, the least"
    else:
        attack = findings.strongest_attack()
        limit = f"above {_rounding.up(allowed, decimals=3)}, the most"
    return (
        f"Do not publish: the AUC of {attack.metrics.auc:.3f} is {limit} that the claimed epsilon "
        "allows in expectation over trainings if members and non-members come from the same "
        "distribution. Look for an error in the training, in its accounting or in the choice "
        "of the non-members."
    )


def _reversed_titles(findings: Findings) -> list[str]:
    """Lists the attacks that give non-members higher scores than members."""
    return [a.title for a in findings.attacks if a.corrected_auc_interval[1] < 0.5]


def _leak_beside_guarantee(entry: Entry) -> str:
    """Compares the leak that the attacks find with a guarantee that nothing contradicts."""
    findings, promise = entry.findings, entry.promise
    assert promise is not None
    if not promise.is_claim:
        return "The leak that the attacks find is within this guarantee."
    if findings.no_audit is not None:
        return (
            "Whether the leak that the attacks find is within the claim was not audited, since "
            f"{findings.no_audit}."
        )
    return "The audit of the leak that the attacks find proves no epsilon above the claim."


def attack_sentence(entry: Entry, unit: Unit) -> str:
    """States how many attacks find a leak, and the AUC of the strongest attack."""
    findings = entry.findings
    attack, k = findings.strongest_attack(), len(findings.attacks)
    result = f"{len(findings.leaks)} of {k} attacks find a leak"
    if not findings.leaks:
        result = f"none of {k} attacks finds a leak" if k > 1 else "the attack finds no leak"
    elif len(findings.leaks) == 1:
        result = f"1 of {k} attacks finds a leak" if k > 1 else "the attack finds a leak"
    level = confidence_level(findings.corrected_confidence)
    text = (
        f"{capitalised(result)}; the strongest, {attack.title}, has AUC "
        f"{attack.metrics.auc:.3f} ({level} interval {interval(attack.corrected_auc_interval)}; "
        "0.5 is guessing)"
    )
    tpr = attack.metrics.tpr_at_fpr["0.01"]
    if tpr is not None:
        text += f" and identifies {percent(tpr)} of the member {units_name(unit)} at 1{NBSP}% FPR"
    return text + "."


def model_sentences(entry: Entry, unit: Unit) -> list[str]:
    """Summarises the guarantee of a model and the attacks on it, in sentences."""
    sentences = []
    if entry.promise is not None:
        label = "claimed guarantee" if entry.promise.is_claim else "guarantee"
        label = f"vacuous {label}" if entry.promise.vacuous else label
        note = ", which this report does not verify" if entry.promise.is_claim else ""
        text = guarantee_text(entry.promise.stated())
        if unit == "class":  # published epsilons of classes use either relation
            text = "; ".join(guarantee_text(each) for each in entry.promise.guarantees)
        sentences.append(f"{capitalised(label)}: {text}{note}.")
    if entry.defence_guarantee is not None:
        sentences.append(defence_sentence(entry.defence_guarantee))
    elif entry.defence is not None and entry.promise is None:
        sentences.append("The defence has no guarantee.")
    if entry.training is not None and entry.training.reference_records is not None:
        sentences.append(_reference_sentences(entry, unit, entry.training.reference_records))
    sentences.append(attack_sentence(entry, unit))
    if entry.promise is not None and not entry.promise.vacuous:
        guarantee = entry.promise.of("add_or_remove_one") or entry.promise.stated()
        bound = guarantee.advantage_bound
        every = "If the claim holds, for every attack," if _is_claim(entry) else "For every attack,"
        sentences.append(
            f"{every} true positive rate minus false positive rate is at most "
            f"{_rounding.up(100 * bound, decimals=0)}{NBSP}% in expectation over trainings."
        )
    return sentences


def defence_sentence(guarantee: DefenceGuarantee) -> str:
    """States the guarantee of a defence, what it protects and what is assumed."""
    epsilon = "unbounded"
    if guarantee.epsilon is not None:
        epsilon = f"at most {_rounding.up(guarantee.epsilon, decimals=2)}"
    stated = f"epsilon {epsilon} at delta {guarantee.delta:g}"
    label = "Guarantee of the defence"
    if guarantee.vacuous:
        label = f"Vacuous guarantee of the defence ({'; '.join(guarantee.vacuous)})"
    if guarantee.kind == "outputs":
        answers = "each answer" if guarantee.queries == 1 else f"{guarantee.queries} answers"
        return (
            f"{label}: {stated} for {answers}, which is local differential "
            "privacy of one vector of probabilities against vectors that differ in two entries "
            f"by an L1 distance of at most {guarantee.distance:g}. It is not membership privacy: "
            "it does not bound what the outputs reveal about a training record, and further "
            "answers cost more."
        )
    assert guarantee.gamma is not None
    assert guarantee.sensitivity is not None
    text = (
        f"{label}: {stated}, one record replaced, except with probability gamma "
        f"of at most {_rounding.up(guarantee.gamma, decimals=4)} over data sets from the source "
        f"(random differential privacy). It rests on {guarantee.num_pairs} pairs of trainings on "
        "records that the target was not trained on, whose largest distance of parameters is "
        f"{_rounding.up_significant(guarantee.sensitivity, digits=4)}; it is not a worst-case "
        "guarantee."
    )
    if guarantee.gamma > _WEAK_GAMMA:
        enough = accounting.random_dp.pairs_for(_WEAK_GAMMA)
        text += f" This gamma is large; {enough} pairs would give gamma {_WEAK_GAMMA:g}."
    if not guarantee.are_disjoint:
        text += " The pairs share records, so they are not independent, as gamma assumes."
    return text


def _reference_sentences(entry: Entry, unit: Unit, count: int) -> str:
    """Describes a defence in the training, and the records on which its model is attacked."""
    metrics = entry.findings.attacks[0].metrics
    judged = metrics.num_members + metrics.num_nonmembers
    return (
        "It is a heuristic: the target and each shadow model are trained against a membership "
        f"attack that compares their members with {count:,} reference records, on which they are "
        "not trained. The training depends on the reference records too, and nothing bounds what "
        f"the model reveals about them. Attacks and accuracy are measured on {judged:,} "
        f"{units_name(unit)} that are in no reference set."
    )


def notes(entry: Entry, data: Data) -> list[str]:
    """Lists reasons for caution about the results of a model, in sentences."""
    findings, lines = entry.findings, []
    if 0 < findings.num_shadows < _MIN_SHADOWS:
        lines.append(
            f"With only {findings.num_shadows} shadow models, LiRA estimates the score "
            "distributions of each record from half of them and may understate a leak. Use at "
            f"least {_MIN_SHADOWS}."
        )
    if entry.utility is not None and not entry.utility.is_useful():
        lines.append(
            f"This model is not useful: its test accuracy, {percent(entry.utility.test)} "
            f"({interval(entry.utility.test_interval, as_percent=True)}), is not measurably above "
            f"the {percent(entry.utility.majority)} of always predicting the most frequent class."
        )
    reversed_titles = _reversed_titles(findings)
    if reversed_titles:
        lines.append(
            f"AUC below 0.5: {', '.join(reversed_titles)}. Non-members have higher scores than "
            "members; the scores may be reversed."
        )
    if not data.by_coin:
        lines.append(
            "How members were chosen is not known. The results show a leak of the model only if "
            "members and non-members come from the same distribution."
        )
    return lines


def exposed_rows(entry: Entry, data: Data) -> list[ExposedRow]:
    """Selects slices for the page: both predictions, extreme losses, the most exposed class."""
    by = {slices.by: slices for slices in entry.findings.slices}
    rows = []
    if "prediction" in by:
        names = {"correct": "correctly classified", "wrong": "misclassified"}
        rows += [ExposedRow(names[str(p.value)], p) for p in by["prediction"].parts]
    if "loss decile" in by:
        deciles = sorted(by["loss decile"].parts, key=lambda part: int(part.value))
        filled = [part for part in deciles if part.num_members + part.num_nonmembers]
        rows += [
            ExposedRow("lowest tenth of the loss", filled[0]),
            ExposedRow("highest tenth of the loss", filled[-1]),
        ]
    if "class" in by:
        rows += _most_exposed(by["class"], data.class_names)
    return rows


def _most_exposed(slices: Slices, names: tuple[str, ...] | None) -> list[ExposedRow]:
    measured = [part for part in slices.parts if part.auc_interval is not None]
    if not measured:
        return []
    worst = max(measured, key=lambda part: part.auc_interval[0] if part.auc_interval else 0.0)
    name = class_name(worst.value, names)
    return [ExposedRow(f"class {name}, the most exposed of {slices.num_parts}", worst)]


def _rate_interval(bounds: tuple[float, float] | None) -> str:
    """Formats an interval of a TPR; one that begins at 0 is an upper bound."""
    if bounds is not None and bounds[0] == 0:
        return f"at most {percent(bounds[1])}"
    return interval(bounds, as_percent=True)


def rate_rows(attack: AttackResult) -> list[RateRow]:
    """Formats the TPR at each fixed FPR, with its interval and a note."""
    metrics, rows = attack.metrics, []
    for key, tpr in metrics.tpr_at_fpr.items():
        note = "coarse" if key in metrics.coarse else ""
        if tpr is None:
            note = f"not resolvable with {metrics.num_nonmembers:,} non-members"
        rows.append(
            RateRow(
                fpr=f"{100 * float(key):g}{NBSP}%",
                tpr="n/a" if tpr is None else percent(tpr),
                interval=_rate_interval(metrics.tpr_interval_at_fpr[key]),
                note=note,
            )
        )
    return rows


def audit_sentence(entry: Entry) -> str:
    """States the lower bound on the epsilon of a model, after the name of the model."""
    audit = entry.findings.audit
    if audit is None:
        return f"{entry.name}: no audit, since {entry.findings.no_audit}."
    text = f"{entry.name}: no epsilon above 0 is proven at delta = {audit.delta:g}"
    if audit.one_run:
        text = (
            f"{entry.name}: epsilon is at least {_rounding.down(audit.one_run, decimals=3)} at "
            f"delta = {audit.delta:g}, by {entry.findings.attack(audit.attack).title}"
        )
    if entry.promise is not None and entry.promise.is_exceeded(audit.one_run, audit.relation):
        text += ", which exceeds the guarantee"
    if audit.one_run_fdp is not None and audit.one_run_fdp > audit.one_run:
        bound = _rounding.down(audit.one_run_fdp, decimals=3)
        text += f"; if the trade-off function is Gaussian, at least {bound}"
    return f"{text}."


def canary_sentences(entry: Entry) -> list[str]:
    """Summarises the audit of a model by canaries; empty if there was none."""
    canaries = entry.canaries
    if canaries is None:
        return []

    def bound(kind: str, value: float, if_gaussian: float) -> str:
        text = f"by {kind} no epsilon above 0 is proven"
        if value > 0:
            text = f"by {kind} epsilon is at least {_rounding.down(value, decimals=3)}"
        if if_gaussian > value:
            text += f" ({_rounding.down(if_gaussian, decimals=3)} if the trade-off is Gaussian)"
        return text

    kinds = (
        bound("constant gradients", canaries.gradients, canaries.gradients_fdp),
        bound("wrong labels", canaries.labels, canaries.labels_fdp),
    )
    exceeds = entry.promise is not None and entry.promise.is_exceeded(
        canaries.largest, canaries.relation
    )
    ceiling = f"prove {_rounding.down(canaries.ceiling, decimals=3)}"
    if canaries.ceiling == 0:
        ceiling = "prove nothing at this delta; an audit needs a smaller one"
    return [
        f"{entry.name}, {canaries.num_canaries:,} canaries of each kind: {' and '.join(kinds)}, at "
        f"delta = {canaries.delta:g} and confidence {confidence_level(canaries.confidence)} each"
        f"{', which exceeds the guarantee' if exceeds else ''}. Correct guesses for all canaries "
        f"of a kind would {ceiling}."
    ]


def game_sentences(entry: Entry) -> list[str]:
    """Summarises the game of a model and its bounds; empty if none was played."""
    game, promise = entry.game, entry.promise
    if game is None or promise is None:
        return []
    stated = promise.stated()
    data_sets = f"with and without the record in row {game.row}"
    if game.replacement is not None:
        data_sets = f"with the record in row {game.row} or that in row {game.replacement}"
    level, repetitions = confidence_level(game.confidence), f"{game.repetitions:,} repetitions"
    sentences = [
        f"{entry.name}, {data_sets}: the advantage is {game.advantage:.3f} ({level} interval "
        f"{interval(game.advantage_interval)}, {repetitions}), and at most "
        f"{_rounding.up(stated.advantage_bound, decimals=3)} by the guarantee."
    ]
    bound = ""
    if stated.violation_probability is not None:
        limit = _rounding.up(stated.violation_probability, decimals=6)
        bound = f", and at most {limit} by the guarantee"
    sentences.append(
        "The probability that the belief in the true data set ends above "
        f"{_rounding.up(stated.rho_beta, decimals=3)} is {game.violations:.3f} ({level} interval "
        f"{interval(game.violations_interval)}){bound}."
    )
    if game.epsilon_lower_bound > 0:
        sentences.append(
            f"These trainings prove epsilon of at least "
            f"{_rounding.down(game.epsilon_lower_bound, decimals=3)} at delta = {stated.delta:g} "
            f"and confidence {confidence_level(game.bound_confidence)}."
        )
    return sentences
