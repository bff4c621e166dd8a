"""Sentences about a report as a whole: records, baselines, method and limits.

Verdict and recommendation of each model are in `_entry_wording`; their rules are in
`metrics.verdict`.
"""

from collections.abc import Sequence

from jaxpriv.reports._entry_wording import attack_sentence, recommendation
from jaxpriv.reports._inference_wording import reference_rows
from jaxpriv.reports._phrases import (
    NBSP,
    capitalised,
    epsilon_text,
    interval,
    percent,
    tested_on,
)
from jaxpriv.reports.findings import Data, Entry, Report, Training
from jaxpriv.reports.settings import Unit

_LIMITS = (
    "An attack that finds no leak proves nothing, since a stronger attack may exist. Only epsilon "
    "bounds every attack.",
    "The accuracies and attack results on this page are computed from the members and are not "
    "covered by any epsilon.",
)

_TRAINING_LIMITS = (
    "Each epsilon covers the publication of one model. The epsilons of several published models "
    "add up.",
    "The guarantee holds for exact arithmetic and does not cover floating-point noise.",
    "jax.random is not a cryptographically secure generator: anyone who learns the seed can "
    "subtract the noise.",
    "Choosing hyper-parameters on the same records also costs privacy; that cost is not included.",
    "Shadow models are trained in complementary pairs; the two models of a pair are dependent.",
    "The classes, the number of members, which columns of a table are numbers, and the values of "
    "a text column are assumed to be public.",
)

_GROUP_LIMIT = (
    "The guarantee for a group follows from that of a record by the group-privacy conversion at "
    "the largest group of the data, whose size is assumed to be public."
)

_CLASS_LIMITS = (
    "The unit is a class: the attacks compare the classes that a model is trained on with those "
    "that it is not. A model without DP predicts no class that it was not trained on, so they "
    "succeed on it easily. The set of classes is assumed to be public.",
    "The accuracy is that of a further model, trained in the same way on four fifths of the "
    "records of every class and tested on the rest. The attacked model has half of the classes.",
    "Epsilon of a class is stated under both relations; under replace_one, neighbours have other "
    "records of one class.",
)

_RECORD_LIMIT = (
    "Each record is attacked separately, and intervals treat the records of a model as independent."
)


def headline(report: Report) -> str:
    """Describes the records of a report in a sentence."""
    data = report.data
    groups = "" if data.num_groups is None else f" in {data.num_groups:,} groups"
    population = f", {data.num_population:,} used by no model" if data.num_population else ""
    return (
        f"{capitalised(data.name)}: {data.num_records:,} records{groups}; {data.num_members:,} "
        f"members (used for training), {data.num_nonmembers:,} non-members{population}."
    )


def verdict(report: Report) -> list[str]:
    """Sums a report up in three sentences: the leak, the price of privacy, what to do.

    Of several models with DP, the one that may be published with the highest accuracy is named.
    """
    plain = [entry for entry in report.entries if entry.defence is None]
    first = plain[0]
    private = [
        entry
        for entry in plain
        if entry.recommendation == "publish_with_dp" and entry.utility is not None
    ]
    chosen = max(private, key=lambda e: e.utility.test if e.utility else 0.0) if private else first
    leak = attack_sentence(first, report.unit)
    if len(plain) > 1:
        leak = f"{first.name}: {leak[0].lower()}{leak[1:]}"
    return [leak, _price(first, chosen, report.unit), _advice(report, first, chosen)]


def _price(first: Entry, chosen: Entry, unit: Unit) -> str:
    utility, guarantee = chosen.utility, chosen.promise
    if utility is None:
        return "The accuracy of the model is not known."
    accuracy = (
        f"an accuracy of {percent(utility.test)} on {tested_on(unit)} (95{NBSP}% interval "
        f"{interval(utility.test_interval, as_percent=True)})"
    )
    if chosen is first or first.utility is None:
        return f"The model has {accuracy}."
    assert guarantee is not None
    count = len(chosen.findings.leaks)
    leaks = "no attack finds a leak" if not count else f"{count} attacks find a leak"
    return (
        f"With differential privacy at epsilon {epsilon_text(guarantee.stated())} the model has "
        f"{accuracy}, against {percent(first.utility.test)} without, and {leaks}."
    )


def _advice(report: Report, first: Entry, chosen: Entry) -> str:
    seed = report.run.seed
    if chosen is first:
        return recommendation(first, seed=seed)
    advice = f"{chosen.name}: {recommendation(chosen, seed=seed)}"
    if first.recommendation == "do_not_publish":
        advice += f" Do not publish the model {first.name[0].lower()}{first.name[1:]}."
    return advice


def blind_sentence(report: Report) -> str:
    """States whether the inputs of members and non-members differ; '' without a blind attack."""
    if report.blind is None:
        return ""
    text = (
        f"Blind baseline (inputs alone, no model): AUC {report.blind.auc:.3f}, 95{NBSP}% interval "
        f"{interval(report.blind.auc_interval)}."
    )
    if report.blind.auc_interval[0] <= 0.5:
        return text
    if report.data.by_coin:
        return (
            f"{text} The inputs of members and non-members differ by chance in this run; an attack "
            "may recognise that difference instead of membership. Repeat the report without --seed "
            "or with another seed."
        )
    return (
        f"{text} The inputs of members and non-members differ; an attack may recognise that "
        "difference instead of membership."
    )


def gap_sentence(report: Report) -> str:
    """States the gap baseline of each model; '' if no model has labels and logits."""
    gaps = [
        f"{percent(entry.findings.gap_baseline)} ({entry.name})"
        for entry in report.entries
        if entry.findings.gap_baseline is not None
    ]
    if not gaps:
        return ""
    return (
        "The gap baseline calls correctly classified records members. Its balanced accuracy is "
        f"{', '.join(gaps)}. A trained attack is marked if it does not reach that accuracy at its "
        "best threshold."
    )


def resolution_sentences(report: Report) -> list[str]:
    """Lists the false positive rates that are coarse, and those that cannot be resolved."""
    metrics = report.entries[0].findings.strongest_attack().metrics
    coarse = [f"{100 * float(key):g}{NBSP}%" for key in metrics.coarse]
    lacking = [
        f"{100 * float(key):g}{NBSP}%" for key, tpr in metrics.tpr_at_fpr.items() if tpr is None
    ]
    sentences = []
    if coarse:
        sentences.append(
            f"The TPR at {' and '.join(coarse)} FPR is coarse, since it is estimated from fewer "
            "than 10 false positives."
        )
    if lacking:
        sentences.append(
            f"{metrics.num_nonmembers:,} non-members do not resolve an FPR of "
            f"{' or '.join(lacking)}."
        )
    return sentences


def method(report: Report) -> list[tuple[str, str]]:
    """Describes the method of a report in pairs of a term and its description."""
    data, entries = report.data, report.entries
    rows = [("Records", _records_text(data)), ("Members", _membership_text(report))]
    trainings = {
        entry.name: entry.training
        for entry in entries
        if entry.training is not None
        and (entry.defence is None or entry.training.reference_records is not None)
    }
    for training in list(trainings.values())[:1]:
        rows.append(("Network", f"{capitalised(training.model)}; {training.inputs}."))
    rows += [(name, _training_text(training)) for name, training in trainings.items()]
    if trainings:
        rows.append(("Hyper-parameters", _hyper_parameters_text(report)))
    defences = dict.fromkeys(entry.defence for entry in entries if entry.defence is not None)
    if defences:
        rows.append(("Defences", _defences_text(list(defences))))
    rows.append(("Shadow models", _shadows_text(report)))
    titles: dict[str, list[str]] = {}
    for attack in entries[0].findings.attacks:
        titles.setdefault(attack.reference, []).append(attack.title)
    rows += [(capitalised("; ".join(names)), reference) for reference, names in titles.items()]
    return rows + reference_rows(report)


def limits(data: Data, *, unit: Unit, trained: bool) -> tuple[str, ...]:
    """Lists the limits of a report in sentences.

    Args:
      data: counts of the records.
      unit: unit of privacy.
      trained: whether the report trained the models.
    """
    lines = [*_LIMITS, *(_TRAINING_LIMITS if trained else ())]
    if unit == "record":
        lines.append(_RECORD_LIMIT)
    if unit == "record" and data.num_groups is not None:
        lines.append(
            f"The records form {data.num_groups:,} groups, whose records are dependent, but the "
            "unit is a record. So groups are less protected, members and non-members share groups, "
            "and the intervals are too narrow."
        )
    if unit == "group" and trained:
        lines.append(_GROUP_LIMIT)
    if unit == "class":
        lines += _CLASS_LIMITS
    lines += [f"Not covered by epsilon: {sentence}" for sentence in data.not_private]
    return tuple(lines)


def _records_text(data: Data) -> str:
    text = data.source
    if data.num_duplicates:
        text += (
            f". {data.num_duplicates:,} of them equal another record; a duplicate between members "
            "and non-members hides leaks from these attacks"
        )
    return " ".join([f"{text}.", *data.notes])


def _membership_text(report: Report) -> str:
    data = report.data
    if not data.by_coin:
        return "As stated in the file; how members were chosen is not known."
    unit = report.unit
    if not report.settings.trains:
        return (
            f"As stated in the file; according to its owner, a fair coin decided for each {unit} "
            "whether the model was trained on it. The audit relies on this."
        )
    return (
        f"A fair coin for each {unit} decided whether the model is trained on it; the remaining "
        f"{data.num_nonmembers:,} records serve as "
        f"{'' if unit == 'class' else 'test set and as '}non-members. "
        f"{data.num_population:,} further records are used by no model; some attacks need them."
    )


def _training_text(training: Training) -> str:
    rate = training.learning_rate
    batches = f"batches of {training.batch_size} records"
    if training.sampling_prob is not None:
        batches = f"Poisson sampling with probability {training.sampling_prob:g}"
    text = (
        f"{training.optimizer}, {'' if rate is None else f'learning rate {rate:g}, '}"
        f"{training.steps:,} steps, {batches}"
    )
    if training.noise_multiplier is not None:
        text += (
            f", clip norm {training.clip_norm:g}, noise multiplier {training.noise_multiplier:.4f}"
            "; epsilon by privacy loss distributions"
        )
    return f"{text}."


_HYPER_PARAMETERS = (
    "model", "width", "sampling_prob", "clip_norm", "steps", "learning_rate", "plain_steps",
    "plain_learning_rate",
)  # fmt: skip


def _hyper_parameters_text(report: Report) -> str:
    given = [name for name in _HYPER_PARAMETERS if report.settings.is_given(name)]
    if not given:
        return "Defaults, which do not depend on these records; they were not tuned on them."
    names = ", ".join(name.replace("_", " ") for name in given)
    return (
        f"Given by the owner: {names}. If they were tuned on these records, that cost is not "
        "included in epsilon. The others are defaults, which do not depend on these records."
    )


def _defences_text(titles: Sequence[str]) -> str:
    return (
        f"{capitalised(', '.join(titles))}. The attacker of a defence is adaptive: the shadow "
        "models and their outputs also pass through the defence."
    )


def _shadows_text(report: Report) -> str:
    count = report.entries[0].findings.num_shadows
    if not count:
        return "None."
    if not report.settings.trains:
        return f"{count}, as stated in the file."
    return (
        f"{count} for each model, trained in the same way on random halves of the same records, "
        "so that each record is a member of half of them. The attacked model is not among them."
    )
