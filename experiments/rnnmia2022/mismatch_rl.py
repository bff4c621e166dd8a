"""Appendix A.3 of rnnmia2022: the attack network is trained on agents of another architecture.

Run:       python -m experiments run rnnmia2022/mismatch_rl --preset cpu
Time:      smoke 60 s, cpu 3 min on one core after fig2, whose shadow agents it reads, paper not
           run yet
Paper:     accuracy about 99 % on victims with 4 LSTM units and hidden layers of 32 or 128, where
           the shadow agents have 8 units and hidden layers of 64
Ours:      a mismatch costs nothing (cpu, 2026-11-29, N2-S6): 64 % (58 to 70) at 32 wide and 63 %
           (60 to 65) at 128 wide, 64 % (58 to 71) for the architecture of the shadow agents

`accuracy` is over episodes after the last stage of the training, with a 95 % interval over victims.
"""

from dataclasses import dataclass
from typing import Any

from experiments import agents, common
from experiments.rnnmia2022 import fig2

SHADOW = fig2.KINDS["recurrent"]
VICTIMS = {
    "64 wide, 8 units (as the shadow agents)": SHADOW,
    "32 wide, 4 units": agents.Kind(actor_widths=(32, 32), critic_widths=(32, 32), lstm_units=4),
    "128 wide, 4 units": agents.Kind(
        actor_widths=(128, 128), critic_widths=(128, 128), lstm_units=4
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes, by the name of the maps. victims: names of their architectures."""

    pieces: dict[str, agents.Piece]
    victims: tuple[str, ...] = tuple(VICTIMS)


PRESETS = {
    "smoke": Settings(pieces={"N2-S4": agents.SMOKE}, victims=("32 wide, 4 units",)),
    "cpu": Settings(pieces={"N2-S6": agents.CPU["N2-S6"]}),
    "paper": Settings(pieces=agents.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Attacks victims of each architecture with one attack network."""
    rows = []
    for maps, piece in settings.pieces.items():
        stage = piece.stages - 1
        attack = agents.fit_attack(piece, SHADOW, stage=stage)
        for name in settings.victims:
            judged = agents.judge(piece, VICTIMS[name], attack, stage=stage)
            rows.append({"maps": maps, "victim": name, **agents.summarise(piece, judged)})
    return {"rows": rows, "paper": 0.99}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("maps and victim", "return, member", "other maps", "attack accuracy, %", "AUC over maps"),
        (
            (
                f"{row['maps']} {row['victim']}",
                common.cell(row["return"]["member"]),
                common.cell(row["return"]["nonmember"]),
                common.percent(row["accuracy"]),
                common.cell(row["auc"]["policy_network"]),
            )
            for row in record["rows"]
        ),
    )
