"""Tables and curves of the attacks on translation models, from `experiments.translation`'s rows."""

from collections.abc import Sequence
from typing import Any

from experiments import common, figures
from experiments.translation import ATTACKS
from experiments.translation_measures import DECIDED, DECISIONS


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Formats rows: BLEU, and accuracy and TPR of PVMIA and PRMIA."""
    columns = (
        "model", "pairs", "epochs", "seed", "BLEU", "of members",
        *(f"{name} {what}" for name in ("PVMIA", "PRMIA") for what in ("accuracy", "TPR at 1 %")),
    )  # fmt: skip
    return common.text_table(
        columns,
        (
            (
                each["kind"],
                f"{each['size']:,}",
                str(each["epochs"]),
                str(each["seed"]),
                f"{each['bleu']:.1f}",
                f"{each['bleu_of_members']:.1f}",
                *(
                    common.percent(each["attacks"][name][key])
                    for name in DECIDED
                    for key in ("accuracy", "tpr_at_1_percent_fpr")
                ),
            )
            for each in rows
        ),
    )


def table_by_part(rows: Sequence[dict[str, Any]]) -> str:
    """Formats the rows of `by_part`."""
    columns = ("model", "part", "BLEU", "of members", "of them at the end", "PVMIA, %", "PRMIA, %")
    return common.text_table(
        columns,
        (
            (
                each["kind"],
                str(each["part"]),
                *(
                    f"{each[f'bleu{which}']:.1f}"
                    for which in ("", "_of_members", "_of_members_at_end")
                ),
                *(common.percent(each["attacks"][name]["accuracy"]) for name in DECIDED),
            )
            for each in rows
        ),
    )


def table_of_attacks(rows: Sequence[dict[str, Any]]) -> str:
    """Formats a row for each model and attack: accuracy of those that decide, AUC and TPR."""
    return common.text_table(
        ("model", "attack", "accuracy, %", "AUC", "TPR at 1 % FPR, %"),
        (
            (
                label_of(each),
                ATTACKS[name],
                common.percent(attack["accuracy"]) if "accuracy" in attack else "",
                common.cell(attack["auc"]),
                resolved(attack, 1),
            )
            for each in rows
            for name, attack in each["attacks"].items()
        ),
    )


def table_of_users(rows: Sequence[dict[str, Any]]) -> str:
    """Formats the attacks that decide on users with several sentences."""
    cells = [
        (
            label_of(each),
            str(group["sentences"]),
            str(group["members"]),
            str(group["nonmembers"]),
            ATTACKS[name],
            common.percent(group["attacks"][name]["accuracy"]),
            common.cell(group["attacks"][name]["auc"]),
            resolved(group["attacks"][name], 10),
        )
        for each in rows
        for group in each["users"]
        for name in DECISIONS
        if name in group["attacks"]
    ]
    is_synthetic = any(group["synthetic"] for each in rows for group in each["users"])
    text = common.text_table(
        (
            "model", "sentences of a user", "members", "non-members", "attack", "accuracy, %",
            "AUC", "TPR at 10 % FPR, %",
        ),
        cells,
    )  # fmt: skip
    note = "users are synthetic: random members, or random non-members, as the corpus names nobody"
    return f"{text}\n{note}" if is_synthetic else text


def label_of(row: dict[str, Any]) -> str:
    """Names the model of a row."""
    return f"{row['kind']}, {row['size']:,} pairs, {row['epochs']} epochs, {row['seed']}"


def resolved(attack: dict[str, Any], percent: int) -> str:
    """Formats a TPR, or a dash if there are too few non-members for its FPR."""
    is_resolvable = attack["resolvable" if percent == 1 else f"resolvable_at_{percent}"]
    return common.percent(attack[f"tpr_at_{percent}_percent_fpr"]) if is_resolvable else "-"


def test_line(test: dict[str, Any]) -> str:
    """Formats the result of `compare`."""
    names = {"probability_vectors": "PVMIA", "rank_histogram": "PRMIA"}
    first, second = (names[test[side]] for side in ("first", "second"))
    winner = "neither wins" if test["winner"] is None else f"{names[test['winner']]} wins"
    return (
        f"accuracy of {first} minus {second}, percent: {common.percent(test['difference'])}, "
        f"p = {test['p_value']:.3g}: {winner}"
    )


def kinds_line(test: dict[str, Any] | None) -> str:
    """Formats the result of `compare_kinds`."""
    if test is None:
        return ""
    first, second = test["kinds"]
    difference = common.percent(test["difference"])
    return f"accuracy of PVMIA on the {first} minus that on the {second}, percent: {difference}"


def curves(
    rows: Sequence[dict[str, Any]], x: str, series: str = "kind"
) -> dict[str, list[figures.Line]]:
    """Collects lines of BLEU and of both accuracies against a field of the rows."""
    panels: dict[str, list[figures.Line]] = {"BLEU": [], "accuracy of PVMIA": []}
    panels["accuracy of PRMIA"] = []
    for name in dict.fromkeys(str(each[series]) for each in rows):
        chosen = sorted((each for each in rows if str(each[series]) == name), key=lambda r: r[x])
        places = [each[x] for each in chosen]
        panels["BLEU"].append(figures.Line(name, places, [each["bleu"] for each in chosen]))
        for title, attack in zip(("PVMIA", "PRMIA"), DECIDED, strict=True):
            triples = [each["attacks"][attack]["accuracy"] for each in chosen]
            line = figures.Line(
                name, places, [t[0] for t in triples], [(t[1], t[2]) for t in triples]
            )
            panels[f"accuracy of {title}"].append(line)
    return panels
