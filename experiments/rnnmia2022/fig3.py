"""Figure 3 of rnnmia2022: attacks on translation models by training time and by order of batches.

Run:       python -m experiments run rnnmia2022/fig3 --preset cpu
Time:      smoke 30 s, cpu 9 min on one core, paper not run yet; resumable by build/translation
Paper:     recurrent, all of Multi30K: BLEU of the test sentences is highest at epoch 20 and stays
           there, and the attack gains little afterwards; batches that came early remain vulnerable
Ours:      not reproduced on 2,000 pairs (cpu, 2026-11-29): from epoch 10 to 20 to 40 BLEU grows
           from 8 to 15 to 23 and the accuracy of PVMIA from 69 to 84 to 93 %; of five parts of the
           training set, PVMIA has 53 % (49 to 57) on the first and 79 % on the last, PRMIA 66 %
           (63 to 69) and 74 %

Needs Multi30K in JAXPRIV_DATA. In `order` the training set is cut into parts that are trained on
one after the other, and the accuracy at the end is that on the members of one part and on the
non-members.
"""

from dataclasses import dataclass
from typing import Any

from experiments import figures, translation, translation_tables
from experiments.translation import Piece


@dataclass(frozen=True, kw_only=True)
class Settings:
    """by_time, by_order: sizes of both halves; None leaves the order out. kind: architecture."""

    by_time: Piece
    by_order: Piece | None
    kind: translation.Kind = translation.LSTM


PRESETS = {
    "smoke": Settings(
        by_time=translation.SMOKE, by_order=None, kind=translation.SMALL_KINDS["RNN"]
    ),
    "cpu": Settings(
        by_time=Piece(stages=(10, 20, 40), tested=300),
        by_order=Piece(parts=5, stages=(10,), tested=200),
    ),
    "paper": Settings(
        by_time=Piece(size=13_000, stages=(5, 10, 20, 30, 50), tested=1000),
        by_order=Piece(size=13_000, parts=20, stages=(10,), tested=500),
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Attacks a model after each stage, and another by the order of its batches."""
    kinds = {"RNN": settings.kind}
    order = [] if settings.by_order is None else _by_order(settings.by_order, settings.kind)
    return {"rows": translation.by_stage(settings.by_time, kinds), "order": order}


def _by_order(piece: Piece, kind: translation.Kind) -> list[dict[str, Any]]:
    rows = translation.by_part(piece, "RNN", kind)
    return [{**row, "position": piece.size // piece.parts * row["part"]} for row in rows]


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws BLEU and accuracies against training time, and against the order."""
    panels = translation_tables.curves(record["rows"], "epochs")
    pictures = {"time": figures.lines(panels, x="epochs", y="Multi30K")}
    if record["order"]:
        panels = translation_tables.curves(record["order"], "position")
        pictures["order"] = figures.lines(panels, x="pairs trained on so far", y="Multi30K")
    return pictures


def table(record: dict[str, Any]) -> str:
    """Formats all rows."""
    texts = [translation_tables.table(record["rows"])]
    if record["order"]:
        texts.append(translation_tables.table_by_part(record["order"]))
    return "\n\n".join(texts)
