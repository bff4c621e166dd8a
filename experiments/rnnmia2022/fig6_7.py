"""Figures 6 and 7 of rnnmia2022: attacks on translation models, by training time and size.

Run:       python -m experiments run rnnmia2022/fig6_7 --preset cpu
Time:      smoke 40 s, cpu 25 min on one core, paper not run yet; resumable by build/translation
Paper:     recurrent, SATED and Multi30K, 10, 20 and 40 epochs on 1,000 to 5,000 pairs: PVMIA above
           PRMIA throughout, and both higher after more epochs
Ours:      reproduced in part (cpu, 2026-11-29): on 2,000 pairs PVMIA has 69, 84 and 93 % after 10,
           20 and 40 epochs, and PRMIA 75, 82 and 91 %; PVMIA wins after 40 epochs alone (p = 0.02
           and below), and PRMIA after 10, by 11 points on 500 pairs and 6 on 2,000

Needs Multi30K in JAXPRIV_DATA. The shadow model is trained as long as the victim. LiRA, RMIA and
the attacks on users with several sentences are those of fig4_5.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments import figures, translation, translation_tables
from experiments.translation import Piece


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes. kind: architecture."""

    pieces: tuple[Piece, ...]
    kind: translation.Kind = translation.LSTM


PRESETS = {
    "smoke": Settings(
        pieces=(dataclasses.replace(translation.SMOKE, shadows=2),),
        kind=translation.SMALL_KINDS["RNN"],
    ),
    "cpu": Settings(
        pieces=tuple(
            Piece(
                size=size,
                judged=min(size, 1000),
                stages=(10, 20, 40),
                tested=300,
                shadows=8 if size == 500 else 0,
            )
            for size in (500, 2000)
        )
    ),
    "paper": Settings(
        pieces=tuple(
            Piece(
                corpus=corpus,
                test_split=split,
                size=size,
                stages=(10, 20, 40),
                tested=1000,
                shadows=16 if size == 1000 else 0,
            )
            for corpus, split in (("multi30k", "test_2016_flickr"), ("libreoffice", None))
            for size in (1000, 2000, 3000, 4000, 5000)
        )
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Attacks a model of each size after each stage, and compares the attacks there."""
    rows, tests = [], []
    for piece in settings.pieces:
        rows += translation.by_stage(piece, {"RNN": settings.kind})
        for stage, epochs in enumerate(piece.stages):
            judged = translation.judge(piece, settings.kind, 0, stage=stage)
            test = translation.compare([judged], *translation.DECIDED)
            tests.append({"corpus": piece.corpus, "size": piece.size, "epochs": epochs, **test})
    return {"rows": rows, "tests": tests}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws BLEU and accuracies against the number of pairs, a line for each training time."""
    return {
        corpus: figures.lines(
            translation_tables.curves(
                [row for row in record["rows"] if row["corpus"] == corpus], "size", "epochs"
            ),
            x="training pairs",
            y=f"{corpus}, by epochs",
        )
        for corpus in dict.fromkeys(row["corpus"] for row in record["rows"])
    }


def table(record: dict[str, Any]) -> str:
    """Formats all rows and the tests."""
    lines = [
        f"{test['size']:,} pairs of {test['corpus']}, {test['epochs']} epochs: "
        f"{translation_tables.test_line(test)}"
        for test in record["tests"]
    ]
    texts = [
        translation_tables.table(record["rows"]),
        translation_tables.table_of_attacks(record["rows"]),
        translation_tables.table_of_users(record["rows"]),
    ]
    return "\n\n".join([*texts, "\n".join(lines)])
