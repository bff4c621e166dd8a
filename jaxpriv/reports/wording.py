"""Sentences and table cells of a report, from its stored findings."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxpriv import _rounding
from jaxpriv._names import Relation
from jaxpriv.reports.findings import (
    AttackResult,
    Data,
    Entry,
    Guarantee,
    Report,
    Slice,
    Slices,
    Training,
    exceeds,
)
from jaxpriv.reports.settings import Unit

MIN_SHADOWS = 16
"""Below this, LiRA estimates its distributions from fewer than 8 models a side."""

_NBSP = "\N{NO-BREAK SPACE}"

_RELATIONS = {
    "add_or_remove_one": "one {} added or removed",
    "replace_one": "one {} replaced",
}

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

_LIMITS = (
    "An attack that finds no leak proves nothing, since a stronger one may exist. Only epsilon "
    "bounds every attack.",
    "The accuracies and attack results on this page are computed from the members and are not "
    "covered by any epsilon.",
)

_TRAINING_LIMITS = (
    "Each epsilon covers the publication of one model. Publishing several adds up.",
    "The guarantee is for exact arithmetic; floating-point noise is not covered.",
    "jax.random is not a cryptographically secure generator: anyone who learns the seed can "
    "subtract the noise.",
    "Choosing hyper-parameters on the same records costs privacy too; that cost is not included.",
    "Shadow models come in complementary pairs, so they are independent in pairs only.",
    "The classes, the number of members, which columns of a table are numbers, and the values of "
    "a text column are assumed to be public.",
)

_GROUP_LIMIT = (
    "The guarantee for a group follows from that of a record by the group-privacy conversion at "
    "the largest group of the data, whose size is assumed to be public."
)

_RECORD_LIMIT = (
    "Each record is attacked by itself, and intervals treat the records of a model as independent."
)


class ExposedRow(NamedTuple):
    """A row of the table of exposed records."""

    records: str
    part: Slice


class RateRow(NamedTuple):
    """True positive rate at a false positive rate, as text."""

    fpr: str
    tpr: str
    interval: str
    note: str


def percent(share: float, digits: int = 1) -> str:
    """Formats a share: 0.9123 -> '91.2 %', with a no-break space."""
    return f"{100 * share:.{digits}f}{_NBSP}%"


def interval(ends: Sequence[float] | None, *, as_percent: bool = False) -> str:
    """Formats an interval: (0.5, 0.6) -> '0.500 to 0.600', or in percent; '' for None."""
    if ends is None:
        return ""
    low, high = ends
    text = f"{100 * low:.1f} to {100 * high:.1f} %" if as_percent else f"{low:.3f} to {high:.3f}"
    return text.replace(" ", _NBSP)


def confidence_level(confidence: float) -> str:
    """Formats a confidence level: 0.95 -> '95 %', 0.995454 -> '99.55 %'."""
    return f"{100 * confidence:.4g}{_NBSP}%"


def unit_name(unit: Unit, size: int = 1) -> str:
    """Names the unit of privacy: 'record', or 'group of up to 12 records'."""
    return "record" if unit == "record" else f"group of up to {size} records"


def units_name(unit: Unit) -> str:
    """Names several units: 'records' or 'groups'."""
    return f"{unit}s"


def relation_name(relation: Relation, unit: Unit = "record", size: int = 1) -> str:
    """Names a neighbouring relation in words: 'one record added or removed'."""
    return _RELATIONS[relation].format(unit_name(unit, size))


def epsilon_text(guarantee: Guarantee, digits: int = 2) -> str:
    """Formats the epsilon of a guarantee, rounded up; 'unbounded' without one."""
    return (
        "unbounded"
        if guarantee.epsilon is None
        else _rounding.up(guarantee.epsilon, decimals=digits)
    )


def guarantee_text(guarantee: Guarantee) -> str:
    """Formats a guarantee: 'epsilon = 2.00 at delta = 0.0001 (one record added or removed)'."""
    neighbours = relation_name(guarantee.relation, guarantee.unit, guarantee.size)
    epsilon = f"epsilon = {epsilon_text(guarantee)}"
    if guarantee.epsilon is None:
        epsilon = "no finite epsilon"
    return f"{epsilon} at delta = {guarantee.delta:g} ({neighbours})"


def tag(entry: Entry) -> str:
    """Names the recommendation for a model in a few words."""
    return _TAGS[entry.recommendation]


def tone(entry: Entry) -> str:
    """Returns the style of a recommendation: 'good', 'bad' or ''."""
    return _TONES[entry.recommendation]


def recommendation(entry: Entry, *, seed: int | None) -> str:
    """States what to do with a model, and why.

    Args:
      entry: the model.
      seed: seed that the report prints; None where the key was secret.

    Returns:
      One or two sentences.
    """
    findings, promise = entry.findings, entry.promise
    if entry.recommendation == "publish_with_dp":
        assert promise is not None
        text = f"Publish with differential privacy at epsilon {epsilon_text(promise.stated())}."
        if findings.leaks:
            text += " The leak that the attacks find is within this guarantee."
        if seed is not None:
            text += (
                " Train again without --seed first: this report prints the seed, "
                "from which the noise can be redrawn."
            )
        return text
    if findings.audit is not None and exceeds(findings.audit, promise):
        bound = _rounding.down(findings.audit.one_run, decimals=3)
        return (
            f"Do not publish: the audit proves epsilon of at least {bound}, above the guarantee. "
            f"Chance does this in at most {percent(1 - findings.audit.confidence, 2)} of runs. "
            "Look for an error in the training or in its accounting."
        )
    lacking = "there is no guarantee"
    if promise is not None:
        lacking = f"the guarantee is vacuous: {'; '.join(promise.vacuous)}"
    if entry.recommendation == "do_not_publish":
        return f"Do not publish: there is a leak, and {lacking}."
    return f"No leak found by these attacks, which is not a guarantee; {lacking}."


def attack_sentence(entry: Entry, unit: Unit) -> str:
    """States what the attacks reach.

    Args:
      entry: the model.
      unit: of privacy.

    Returns:
      A sentence with the strongest attack, its AUC and the interval that decides.
    """
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
        text += f" and identifies {percent(tpr)} of the member {units_name(unit)} at 1{_NBSP}% FPR"
    return text + "."


def model_sentences(entry: Entry, unit: Unit) -> list[str]:
    """Summarises one model: guarantee and attacks.

    Args:
      entry: the model.
      unit: of privacy.

    Returns:
      Sentences.
    """
    sentences = []
    if entry.promise is not None:
        vacuous = "A vacuous guarantee" if entry.promise.vacuous else "Guarantee"
        sentences.append(f"{vacuous}: {guarantee_text(entry.promise.stated())}.")
    sentences.append(attack_sentence(entry, unit))
    if entry.promise is not None and not entry.promise.vacuous:
        bound = entry.promise.of("add_or_remove_one").advantage_bound
        sentences.append(
            "For every attack, true positive rate minus false positive rate is at most "
            f"{_rounding.up(100 * bound, decimals=0)}{_NBSP}% in expectation over trainings."
        )
    return sentences


def notes(entry: Entry, data: Data) -> list[str]:
    """Lists reservations about the results of one model.

    Args:
      entry: the model.
      data: counts of the records.

    Returns:
      Sentences; empty where there is nothing to add.
    """
    findings, lines = entry.findings, []
    if 0 < findings.num_shadows < MIN_SHADOWS:
        lines.append(
            f"{findings.num_shadows} shadow models are few: LiRA estimates the score distributions "
            "of each record from half of them and may understate a leak. Use at least "
            f"{MIN_SHADOWS}."
        )
    if entry.utility is not None and not entry.utility.is_useful():
        lines.append(
            f"This model is of no use: its accuracy on non-members, {percent(entry.utility.test)} "
            f"({interval(entry.utility.test_interval, as_percent=True)}), is not measurably above "
            f"the {percent(entry.utility.majority)} of always answering the most frequent class."
        )
    reversed_attacks = [a.title for a in findings.attacks if a.corrected_auc_interval[1] < 0.5]
    if reversed_attacks:
        lines.append(
            f"AUC below 0.5: {', '.join(reversed_attacks)}. Non-members get higher scores than "
            "members; the scores may be reversed."
        )
    if not data.by_coin:
        lines.append(
            "How members were chosen is not known. The results show a leak of the model only if "
            "members and non-members come from the same distribution."
        )
    return lines


def exposed_rows(entry: Entry, data: Data) -> list[ExposedRow]:
    """Selects the parts of the records that the page shows for one model.

    Args:
      entry: the model.
      data: its class names.

    Returns:
      Both predictions, the lowest and highest loss, and the most exposed class.
    """
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


def class_name(value: str | int, names: tuple[str, ...] | None) -> str:
    """Names a class: its own name where there is one, else its number."""
    return str(value) if names is None or isinstance(value, str) else names[value]


def _most_exposed(slices: Slices, names: tuple[str, ...] | None) -> list[ExposedRow]:
    measured = [part for part in slices.parts if part.auc_interval is not None]
    if not measured:
        return []
    worst = max(measured, key=lambda part: part.auc_interval[0] if part.auc_interval else 0.0)
    name = class_name(worst.value, names)
    return [ExposedRow(f"class {name}, the most exposed of {slices.num_parts}", worst)]


def rate_rows(attack: AttackResult) -> list[RateRow]:
    """Formats the TPR at each fixed FPR, with its interval and a note.

    Args:
      attack: its result.

    Returns:
      A row for each FPR.
    """
    metrics, rows = attack.metrics, []
    for key, tpr in metrics.tpr_at_fpr.items():
        note = "coarse" if key in metrics.coarse else ""
        if tpr is None:
            note = f"not resolvable with {metrics.num_nonmembers:,} non-members"
        rows.append(
            RateRow(
                fpr=f"{100 * float(key):g}{_NBSP}%",
                tpr="n/a" if tpr is None else percent(tpr),
                interval=interval(metrics.tpr_at_fpr_interval[key], as_percent=True),
                note=note,
            )
        )
    return rows


def audit_sentence(entry: Entry) -> str:
    """States what the audit proves of one model.

    Args:
      entry: the model.

    Returns:
      A sentence that begins with the name of the model.
    """
    audit = entry.findings.audit
    if audit is None:
        return f"{entry.name}: no audit, since {entry.findings.no_audit}."
    text = f"{entry.name}: no epsilon above 0 is proven at delta = {audit.delta:g}"
    if audit.one_run:
        text = (
            f"{entry.name}: epsilon is at least {_rounding.down(audit.one_run, decimals=3)} at "
            f"delta = {audit.delta:g}, by {entry.findings.attack(audit.attack).title}"
        )
    if exceeds(audit, entry.promise):
        text += ", which exceeds the guarantee"
    if audit.one_run_fdp is not None and audit.one_run_fdp > audit.one_run:
        bound = _rounding.down(audit.one_run_fdp, decimals=3)
        text += f"; if the trade-off function is Gaussian, at least {bound}"
    return f"{text}."


def blind_sentence(report: Report) -> str:
    """States whether members and non-members differ before any model is trained.

    Args:
      report: with or without a blind attack.

    Returns:
      A sentence; empty where the blind attack did not run.
    """
    if report.blind is None:
        return ""
    text = (
        f"Blind baseline (inputs alone, no model): AUC {report.blind.auc:.3f}, 95{_NBSP}% interval "
        f"{interval(report.blind.auc_interval)}."
    )
    if report.blind.auc_interval[0] <= 0.5:
        return text
    if report.data.by_coin:
        return (
            f"{text} The inputs of members and non-members differ by chance in this run; an attack "
            "may recognise that difference instead of membership. Repeat the report without --seed "
            "or with another one."
        )
    return (
        f"{text} The inputs of members and non-members differ; an attack may recognise that "
        "difference instead of membership."
    )


def gap_sentence(report: Report) -> str:
    """States the gap baseline of each model.

    Args:
      report: any.

    Returns:
      A sentence; empty where no model has labels and logits.
    """
    gaps = [
        f"{percent(entry.findings.gap_baseline)} ({entry.name})"
        for entry in report.entries
        if entry.findings.gap_baseline is not None
    ]
    if not gaps:
        return ""
    return (
        f"Gap baseline (correctly classified records are called members): balanced accuracy "
        f"{', '.join(gaps)}. An attack that is trained and reaches less at its best threshold is "
        "marked."
    )


def resolution_sentences(report: Report) -> list[str]:
    """States which false positive rates the non-members resolve.

    Args:
      report: any.

    Returns:
      A sentence for the coarse rates and one for those that are not resolved.
    """
    metrics = report.entries[0].findings.strongest_attack().metrics
    coarse = [f"{100 * float(key):g}{_NBSP}%" for key in metrics.coarse]
    lacking = [
        f"{100 * float(key):g}{_NBSP}%" for key, tpr in metrics.tpr_at_fpr.items() if tpr is None
    ]
    sentences = []
    if coarse:
        sentences.append(
            f"The TPR at {' and '.join(coarse)} FPR is coarse: it rests on fewer than 10 false "
            "positives."
        )
    if lacking:
        sentences.append(
            f"{metrics.num_nonmembers:,} non-members do not resolve an FPR of "
            f"{' or '.join(lacking)}."
        )
    return sentences


def method(report: Report) -> list[tuple[str, str]]:
    """Describes how the report was made.

    Args:
      report: any.

    Returns:
      Terms and their descriptions.
    """
    data, entries = report.data, report.entries
    rows = [("Records", _records_text(data)), ("Members", _membership_text(report))]
    trainings = {
        entry.name: entry.training
        for entry in entries
        if entry.training is not None and entry.defence is None
    }
    for training in list(trainings.values())[:1]:
        rows.append(("Network", f"{capitalised(training.model)}; {training.inputs}."))
    rows += [(name, _training_text(training)) for name, training in trainings.items()]
    defences = dict.fromkeys(entry.defence for entry in entries if entry.defence is not None)
    if defences:
        rows.append(("Defences", _defences_text(list(defences))))
    rows.append(("Shadow models", _shadows_text(report)))
    titles: dict[str, list[str]] = {}
    for attack in entries[0].findings.attacks:
        titles.setdefault(attack.reference, []).append(attack.title)
    rows += [(capitalised("; ".join(names)), reference) for reference, names in titles.items()]
    return rows


def limits(data: Data, *, unit: Unit, trained: bool) -> tuple[str, ...]:
    """Lists what a report does not cover.

    Args:
      data: counts of the records.
      unit: of privacy.
      trained: whether the report trained the models itself.

    Returns:
      Sentences.
    """
    lines = [*_LIMITS, *(_TRAINING_LIMITS if trained else ())]
    if unit == "record":
        lines.append(_RECORD_LIMIT)
    if unit == "record" and data.num_groups is not None:
        lines.append(
            f"The records form {data.num_groups:,} groups, whose records are dependent. The unit "
            "is a record nevertheless: groups are less protected, members and non-members share "
            "groups, and the intervals are too narrow."
        )
    if unit == "group" and trained:
        lines.append(_GROUP_LIMIT)
    lines += [f"Not covered by epsilon: {sentence}" for sentence in data.not_private]
    return tuple(lines)


def _records_text(data: Data) -> str:
    text = data.source
    if data.num_duplicates:
        text += (
            f". {data.num_duplicates:,} of them equal another one: a duplicate between members "
            "and non-members hides leaks from these attacks"
        )
    return " ".join([f"{text}.", *data.notes])


def _membership_text(report: Report) -> str:
    data = report.data
    if not data.by_coin:
        return "As stated in the file; how members were chosen is not known."
    unit = "record" if report.unit == "record" else "group"
    return (
        f"A fair coin for each {unit} decided whether the model is trained on it; the other "
        f"{data.num_nonmembers:,} records serve as test set and as non-members. "
        f"{data.num_population:,} further records are used by no model, for attacks that need such."
    )


def _training_text(training: Training) -> str:
    text = (
        f"{training.optimizer}, learning rate {training.learning_rate:g}, {training.steps:,} "
        f"steps, Poisson sampling with probability {training.sampling_prob:g}"
    )
    if training.noise_multiplier is not None:
        text += (
            f", clip norm {training.clip_norm:g}, noise multiplier {training.noise_multiplier:.4f}"
            "; epsilon by privacy loss distributions"
        )
    return f"{text}."


def _defences_text(titles: Sequence[str]) -> str:
    return (
        f"{capitalised(', '.join(titles))}. The attacker of a defence is adaptive: the outputs of "
        "the shadow models pass through the defence too."
    )


def _shadows_text(report: Report) -> str:
    count = report.entries[0].findings.num_shadows
    if not count:
        return "None."
    if not report.data.by_coin:
        return f"{count}, as stated in the file."
    return (
        f"{count} for each model, trained in the same way on random halves of the same records; "
        "each record is in half of them. The attacked model is not among them."
    )


def headline(report: Report) -> str:
    """Describes the records of a report in one sentence.

    Args:
      report: any.

    Returns:
      The sentence.
    """
    data = report.data
    groups = "" if data.num_groups is None else f" in {data.num_groups:,} groups"
    population = f", {data.num_population:,} that no model uses" if data.num_population else ""
    return (
        f"{capitalised(data.name)}: {data.num_records:,} records{groups}; {data.num_members:,} "
        f"members (used for training), {data.num_nonmembers:,} non-members{population}."
    )


def summary(report: Report) -> str:
    """Summarises a report for the terminal: a line for the records and a few for each model.

    Args:
      report: any.

    Returns:
      Lines of text.
    """
    lines = [headline(report)]
    for entry in report.entries:
        sentences = model_sentences(entry, report.unit)
        if entry.utility is not None:
            sentences.insert(0, f"Accuracy on non-members: {percent(entry.utility.test)}.")
        sentences += notes(entry, report.data)
        lines.append(f"{entry.name}. {' '.join(sentences)}")
        lines.append(f"  {recommendation(entry, seed=report.run.seed)}")
    return "\n".join(lines).replace(_NBSP, " ")


def capitalised(text: str) -> str:
    """Returns the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
