"""Figure 4 of yang2023, middle column: attacks on translation models, by training time.

Run:       python -m experiments run yang2023/nmt_fig4 --preset cpu
Time:      smoke 30 s, cpu 14 min on one core with the RNNs of rnnmia2022/fig6_7 in
           build/translation, about 20 min without (estimated), paper not run yet
Paper:     both networks reach about the same BLEU on members and on other sentences, and the attack
           on the recurrent one is more accurate
Ours:      not reproduced on 2,000 pairs (cpu, 2026-11-29): after 40 epochs both have a BLEU of 23
           on other sentences and 59 (RNN) and 99 on members, and PVMIA has 93 and 99 % (6 points,
           5 to 7); the attack on the transformer is more accurate at every stage

Needs Multi30K in JAXPRIV_DATA. The entropy of the predictions is averaged over the tokens of a
sentence, then over members or non-members. `test` compares the accuracies of PVMIA on the two
networks after the last stage, sentence by sentence: both are trained on the same pairs.
"""

from dataclasses import dataclass
from typing import Any

from experiments import common, figures, translation, translation_tables
from experiments.translation import Piece


@dataclass(frozen=True, kw_only=True)
class Settings:
    """piece: sizes. kinds: architectures."""

    piece: Piece
    kinds: dict[str, translation.Kind]


PRESETS = {
    "smoke": Settings(piece=translation.SMOKE, kinds=translation.SMALL_KINDS),
    "cpu": Settings(piece=Piece(stages=(10, 20, 40), tested=300), kinds=translation.KINDS),
    "paper": Settings(
        piece=Piece(size=13_000, stages=(5, 10, 20, 30, 50), tested=1000), kinds=translation.KINDS
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks both networks."""
    rows = translation.by_stage(settings.piece, settings.kinds)
    return {"rows": rows, "test": translation.compare_kinds(settings.piece, settings.kinds)}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws BLEU, entropies and accuracies against training time."""
    panels = translation_tables.curves(record["rows"], "epochs")
    for title, side in (("members", "member"), ("other sentences", "nonmember")):
        panels[f"entropy, {title}"] = [
            figures.Line(
                kind,
                [row["epochs"] for row in record["rows"] if row["kind"] == kind],
                [row["entropy"][side] for row in record["rows"] if row["kind"] == kind],
            )
            for kind in dict.fromkeys(row["kind"] for row in record["rows"])
        ]
    return {"time": figures.lines(panels, x="epochs", y="Multi30K")}


def table(record: dict[str, Any]) -> str:
    """Formats all rows, the entropies and the test."""
    entropies = common.text_table(
        ("entropy in nats", "members", "non-members"),
        (
            (
                f"{row['kind']}, {row['epochs']} epochs",
                *(f"{row['entropy'][side]:.2f}" for side in ("member", "nonmember")),
            )
            for row in record["rows"]
        ),
    )
    lines = [translation_tables.table(record["rows"]), entropies]
    return "\n\n".join([*lines, translation_tables.kinds_line(record["test"])])
