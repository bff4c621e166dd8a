"""Figure 7 of yang2023, middle column: attacks on translation models with an L2 penalty.

Run:       python -m experiments run yang2023/nmt_fig7 --preset cpu
Time:      smoke 30 s, cpu 25 min on one core with the models of nmt_fig4 in build/translation,
           about 30 min without (estimated), paper not run yet
Paper:     the accuracy on the feed-forward network falls as the penalty grows, that on the
           recurrent one only marginally; the penalties are not stated
Ours:      the other way round (cpu, 2026-11-29): from penalty 0 to 0.001 the accuracy of PVMIA
           falls from 84 to 64 % on the RNN, whose BLEU falls from 15 to 7, and from 97 to 91 % on
           the transformer, whose BLEU rises from 22 to 28

Needs Multi30K in JAXPRIV_DATA. The penalty is on the weights, through the gradient of Adam. The
paper describes one on activations, as well as L2 regularisation.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments import figures, translation, translation_tables
from experiments.translation import Piece


@dataclass(frozen=True, kw_only=True)
class Settings:
    """piece: sizes. penalties: factors of the L2 penalty. kinds: architectures."""

    piece: Piece
    penalties: tuple[float, ...]
    kinds: dict[str, translation.Kind]


PRESETS = {
    "smoke": Settings(
        piece=translation.SMOKE, penalties=(0.0,), kinds={"RNN": translation.SMALL_KINDS["RNN"]}
    ),
    "cpu": Settings(
        piece=Piece(tested=300), penalties=(0.0, 1e-5, 1e-4, 1e-3), kinds=translation.KINDS
    ),
    "paper": Settings(
        piece=Piece(size=13_000, stages=(20,), tested=1000),
        penalties=(0.0, 1e-6, 1e-5, 1e-4, 1e-3),
        kinds=translation.KINDS,
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks both networks under each penalty."""
    rows = []
    for penalty in settings.penalties:
        piece = dataclasses.replace(settings.piece, weight_decay=penalty)
        for name, kind in settings.kinds.items():
            row = translation.row(piece, name, kind, 0)
            rows.append({**row, "penalty": penalty, "kind": f"{name}, {penalty:g}", "name": name})
    return {"rows": rows}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws BLEU and accuracies against the penalty."""
    panels = translation_tables.curves(record["rows"], "penalty", "name")
    smallest = min((row["penalty"] for row in record["rows"] if row["penalty"] > 0), default=None)
    picture = figures.lines(panels, x="L2 penalty", y="Multi30K", log_from=smallest)
    return {"penalty": picture}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return translation_tables.table(record["rows"])
