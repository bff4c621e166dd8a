"""Tables and curves of the attacks on translation models, from `experiments.translation`'s rows."""

from collections.abc import Sequence
from typing import Any

from experiments import common, figures
from experiments.translation import ATTACKS, DECIDED


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


def table_of_aucs(rows: Sequence[dict[str, Any]]) -> str:
    """Formats the AUC of every attack, a row for each model."""
    return common.text_table(
        ("AUC", *(ATTACKS[name] for name in rows[0]["attacks"])),
        (
            (
                f"{each['kind']}, {each['size']:,} pairs, {each['epochs']} epochs, {each['seed']}",
                *(common.cell(attack["auc"]) for attack in each["attacks"].values()),
            )
            for each in rows
        ),
    )


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
