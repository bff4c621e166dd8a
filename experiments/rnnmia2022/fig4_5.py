"""Figures 4 and 5 of rnnmia2022: attacks on translation models, by the number of training pairs.

Run:       python -m experiments run rnnmia2022/fig4_5 --preset cpu
Time:      smoke 40 s, cpu 41 min on one core, paper not run yet; resumable by build/translation
Paper:     recurrent, Multi30K and SATED, 1,000 to 5,000 pairs, 20 epochs: PVMIA above PRMIA at
           every size; on the whole of Multi30K 81.02 % accuracy at BLEU 46.74 (Table 2)
Ours:      reproduced in part (cpu, 2026-11-29): at 2,000 pairs PVMIA has 82 to 84 % on three RNNs
           of BLEU 14, PRMIA 80 to 82 %; on transformers of BLEU 22 97 to 99 %, PRMIA 95 to 97 %;
           PVMIA wins (p = 0.001 and below), but at 500 pairs of the RNN neither does (p = 0.70)

Needs Multi30K in JAXPRIV_DATA. Victim and shadow model are trained on disjoint pairs of equal
number; the attack learns from up to 1,000 members and non-members of the shadow model and judges
as many of the victim. BLEU is on sentences of the test split, in lower case. `tests` compares both
attacks on the same sentences.

At 500 pairs (cpu) and 1,000 pairs (paper), LiRA and RMIA compare each sentence with 8 or 16 shadow
models more, trained like the victim on random halves of a pool with the judged sentences; the
population of RMIA are sentences of no model. `users` has the attacks on users with 1, 4 and 16
sentences (Song and Shmatikov, 2019), by the means of the scores. Neither corpus names people, so a
user is a random draw of members, or of non-members; a corpus in SATED's layout has users of its
own, who are members with all of their sentences or with none.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments import figures, translation, translation_tables
from experiments.translation import Piece


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes, with the number of victims of each. kinds: names of the architectures."""

    pieces: tuple[tuple[Piece, int], ...]
    kinds: dict[str, translation.Kind]


PRESETS = {
    "smoke": Settings(
        pieces=((dataclasses.replace(translation.SMOKE, shadows=2), 1),),
        kinds={"RNN": translation.SMALL_KINDS["RNN"]},
    ),
    "cpu": Settings(
        pieces=((Piece(size=500, judged=500, shadows=8), 1), (Piece(size=2000), 3)),
        kinds=translation.KINDS,
    ),
    "paper": Settings(
        pieces=tuple(
            (
                Piece(
                    corpus=corpus,
                    size=size,
                    test_split=split,
                    tested=1000,
                    beams=4,
                    shadows=16 if size == 1000 else 0,
                ),
                3,
            )
            for corpus, split in (("multi30k", "test_2016_flickr"), ("libreoffice", None))
            for size in (1000, 2000, 3000, 4000, 5000)
        ),
        kinds=translation.KINDS,
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks the models of every size."""
    rows, tests, examples = [], [], {}
    for name, kind in settings.kinds.items():
        for piece, seeds in settings.pieces:
            rows += [translation.row(piece, name, kind, seed) for seed in range(seeds)]
            judged = [translation.judge(piece, kind, seed) for seed in range(seeds)]
            test = translation.compare(judged, *translation.DECIDED)
            tests.append({"kind": name, "corpus": piece.corpus, "size": piece.size, **test})
        examples[name] = translation.examples(settings.pieces[-1][0], kind, 0)
    return {"rows": rows, "tests": tests, "examples": examples}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws BLEU and accuracies against the number of pairs."""
    first = [row for row in record["rows"] if row["seed"] == 0]
    return {
        corpus: figures.lines(
            translation_tables.curves([row for row in first if row["corpus"] == corpus], "size"),
            x="training pairs",
            y=corpus,
        )
        for corpus in dict.fromkeys(row["corpus"] for row in first)
    }


def table(record: dict[str, Any]) -> str:
    """Formats all rows, the tests, and translations of test sentences."""
    texts = [
        translation_tables.table(record["rows"]),
        translation_tables.table_of_attacks(record["rows"]),
        translation_tables.table_of_users(record["rows"]),
    ]
    for test in record["tests"]:
        name = f"{test['kind']}, {test['size']:,} pairs of {test['corpus']}"
        texts.append(f"{name}: {translation_tables.test_line(test)}")
    for name, examples in record["examples"].items():
        lines = [f"Translations by the {name}:"]
        for each in examples:
            lines += [f"  {side}: {each[side]}" for side in ("source", "reference", "translation")]
        texts.append("\n".join(lines))
    return "\n\n".join([*texts, "paper: PVMIA 81.0 % at BLEU 46.7"])
