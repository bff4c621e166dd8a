"""Sentences and table cells about attribute inference and model inversion."""

from typing import NamedTuple

from jaxpriv.reports._phrases import (
    NBSP,
    capitalised,
    class_name,
    confidence_level,
    guarantee_text,
    interval,
    percent,
)
from jaxpriv.reports.findings import (
    AttributeAttack,
    AttributeGain,
    Entry,
    Inversion,
    InversionResult,
    InvertedModel,
    Report,
)


class AttributeRow(NamedTuple):
    """Cells of an attack on members or on non-members."""

    attack: str
    records: str
    accuracy: str
    imputation: str
    gain: str


class InversionRow(NamedTuple):
    """Cells of an inversion attack on a model."""

    attack: str
    is_strongest: bool
    named: str
    named_top_5: str
    distance: str
    one_minus_ssim: str
    closer: str


def points(share: float) -> str:
    """Formats a difference of shares in percentage points: 0.024 -> '+2.4'."""
    return f"{100 * share:+.1f}"


def attribute_rows(entry: Entry) -> list[AttributeRow]:
    """Formats attribute inference from a model; empty if none was run."""
    if entry.attribute is None:
        return []
    rows = []
    for attack in entry.attribute.attacks:
        for records, gain in (("members", attack.members), ("non-members", attack.nonmembers)):
            rows.append(
                AttributeRow(
                    attack=attack.title,
                    records=f"{gain.num_records:,} {records}",
                    accuracy=percent(gain.accuracy),
                    imputation=percent(gain.imputation),
                    gain=f"{points(gain.gain)} ({_points_interval(gain)})",
                )
            )
    return rows


def attribute_sentence(entry: Entry) -> str:
    """States whether a model adds to imputation; '' if no column was inferred."""
    inferred = entry.attribute
    if inferred is None:
        return ""
    attack = max(inferred.attacks, key=lambda attack: attack.members.gain_interval[0])
    members, nonmembers = attack.members, attack.nonmembers
    level = confidence_level(inferred.confidence)
    gains = (
        f"the gain is {points(members.gain)} points for members ({level} interval "
        f"{_points_interval(members)}) and {points(nonmembers.gain)} for non-members "
        f"({_points_interval(nonmembers)})"
    )
    return (
        f"Inference of {inferred.column!r}: {_verdict(attack)}; with the {attack.title}, {gains}. "
        f"Imputation without the model guesses {percent(members.imputation)} of the members."
    )


def _verdict(attack: AttributeAttack) -> str:
    if attack.members.gain_interval[0] <= 0:
        return "no attack is measurably better than imputation on members"
    if attack.nonmembers.gain_interval[0] > 0:
        return "the model adds to imputation, for non-members too, so it learned of the population"
    return "the model adds to imputation for members"


def _points_interval(gain: AttributeGain) -> str:
    low, high = gain.gain_interval
    return f"{points(low)} to {points(high)}".replace(" ", NBSP)


def inversion_sentences(report: Report) -> list[str]:
    """Summarises the inversion of each model; the reason if none was inverted, else empty."""
    inverted = report.inversion
    if inverted is None:
        return (
            [f"No model was inverted, since {report.no_inversion}."] if report.no_inversion else []
        )
    return [_model_sentence(model, inverted) for model in inverted.models]


def _model_sentence(model: InvertedModel, inverted: Inversion) -> str:
    attack = model.strongest_attack()
    guarantee = ""
    if model.promise is not None:
        guarantee = f", {guarantee_text(model.promise.stated())}"
    return (
        f"{model.name}{guarantee}, accuracy {percent(model.utility.test)}: of the reconstructions "
        f"by {attack.title}, {percent(attack.top_1)} are recognised "
        f"({confidence_level(inverted.confidence)} interval "
        f"{interval(attack.top_1_interval, as_percent=True)}; guessing recognises "
        f"{percent(1 / inverted.num_candidates)})."
    )


def referee_sentence(inverted: Inversion) -> str:
    """Describes the referee and the membership check."""
    return (
        f"A reconstruction is recognised if, of the held-out images of {inverted.num_candidates} "
        "classes, one of its own class has the largest correlation with it; this recognises "
        f"{percent(inverted.referee_accuracy)} of the training images "
        f"({interval(inverted.referee_interval, as_percent=True)}). Of images that do not depend "
        "on which images were used for training, "
        f"{percent(inverted.expected_closer)} are nearer to a training image than to a held-out "
        "one; a share whose interval lies above shows that training images were memorised."
    )


def inversion_rows(model: InvertedModel) -> list[InversionRow]:
    """Formats the attacks on a model."""
    return [
        InversionRow(
            attack=attack.title,
            is_strongest=attack.name == model.strongest,
            named=_share(attack.top_1, attack.top_1_interval),
            named_top_5=_share(attack.top_5, attack.top_5_interval),
            distance=_mean(attack.distance, attack.distance_interval),
            one_minus_ssim=_mean(attack.one_minus_ssim, attack.one_minus_ssim_interval),
            closer=_share(attack.closer, attack.closer_interval),
        )
        for attack in model.attacks
    ]


def _share(share: float | None, ends: tuple[float, float] | None) -> str:
    return "" if share is None else f"{percent(share)} ({interval(ends, as_percent=True)})"


def _mean(mean: float | None, ends: tuple[float, float] | None) -> str:
    return "" if mean is None else f"{mean:.3f} ({interval(ends)})"


def picture_text(
    position: int,
    attack: InversionResult | None,
    inverted: Inversion,
    names: tuple[str, ...] | None,
) -> str:
    """Describes a picture: 'class s1, training image' or 'class s1, by gradient descent'."""
    text = f"class {class_name(inverted.labels[position], names)}"
    return f"{text}, {'training image' if attack is None else f'by {attack.title}'}"


def reference_rows(report: Report) -> list[tuple[str, str]]:
    """Lists the attacks of both kinds with their references, for the method."""
    rows: dict[str, list[str]] = {}
    for entry in report.entries[:1]:
        for attack in entry.attribute.attacks if entry.attribute else ():
            rows.setdefault(attack.reference, []).append(attack.title)
    for model in report.inversion.models[:1] if report.inversion else ():
        for attack in model.attacks:
            rows.setdefault(attack.reference, []).append(f"inversion by {attack.title}")
    return [(capitalised("; ".join(titles)), reference) for reference, titles in rows.items()]
