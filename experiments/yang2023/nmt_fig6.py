"""Figure 6 of yang2023, middle column: what translation models retain of earlier batches.

Run:       python -m experiments run yang2023/nmt_fig6 --preset cpu
Time:      smoke 30 s, cpu 4 min on one core with the RNN of rnnmia2022/fig3 in build/translation,
           about 8 min without (estimated), paper not run yet
Paper:     the accuracy on early batches falls to 50 % for the feed-forward network, and stays above
           it for the recurrent one
Ours:      not reproduced on 2,000 pairs (cpu, 2026-11-29): of five parts PVMIA recognises the
           first with 64 % (60 to 67) and the last with 83 % on the transformer, with 53 % (49 to
           57) and 79 % on the RNN, so the feed-forward network retains more; PRMIA has 63 and 66 %
           on the first parts

Needs Multi30K in JAXPRIV_DATA. The training set is cut into parts that are trained on one after the
other. The accuracy at the end is that on the members of one part and on the non-members.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments import figures, translation, translation_tables
from experiments.translation import Piece


@dataclass(frozen=True, kw_only=True)
class Settings:
    """piece: sizes. kinds: architectures."""

    piece: Piece
    kinds: dict[str, translation.Kind]


PRESETS = {
    "smoke": Settings(
        piece=dataclasses.replace(translation.SMOKE, parts=2),
        kinds={"RNN": translation.SMALL_KINDS["RNN"]},
    ),
    "cpu": Settings(piece=Piece(parts=5, stages=(10,), tested=200), kinds=translation.KINDS),
    "paper": Settings(
        piece=Piece(size=13_000, parts=20, stages=(10,), tested=500), kinds=translation.KINDS
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains both networks part by part, and attacks them."""
    rows = []
    for name, kind in settings.kinds.items():
        rows += translation.by_part(settings.piece, name, kind)
    return {"rows": rows}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws BLEU and accuracies against the order of the parts."""
    return {
        "order": figures.lines(
            translation_tables.curves(record["rows"], "part"),
            x="part of the training set",
            y="Multi30K",
        )
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return translation_tables.table_by_part(record["rows"])
