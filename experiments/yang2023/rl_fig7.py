"""Figure 7 of yang2023, right column: agents regularised by the clipping of PPO.

Run:       python -m experiments run yang2023/rl_fig7 --preset cpu
Time:      smoke 60 s, cpu 14 min on one core, paper not run yet; resumable by build/agents
Paper:     attack accuracy against the clipping epsilon, with shadow agents trained at the same one
Ours:      clipping does not defend (cpu, 2026-11-29, N2-S6): 62, 67, 59 and 62 % feed-forward and
           58, 57, 60 and 58 % recurrent at 0.05, 0.1, 0.2 and 0.4, at a return of 0.91 to 0.92

The smaller epsilon, the smaller the change of the policy in an update. Victims are attacked after
the last stage of their training; settings are those of rnnmia2022/fig2, with the architectures of
yang2023.
"""

from dataclasses import dataclass
from typing import Any

from experiments import agent_tables, agents, common, figures
from experiments.yang2023 import networks


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes, by the name of the maps. clips: values of epsilon."""

    pieces: dict[str, agents.Piece]
    clips: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)


PRESETS = {
    "smoke": Settings(pieces={"N2-S4": agents.SMOKE}, clips=(0.1,)),
    "cpu": Settings(pieces={"N2-S6": agents.CPU["N2-S6"]}),
    "paper": Settings(pieces=agents.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks the agents for every epsilon."""
    rows = []
    for maps, piece in settings.pieces.items():
        stage = piece.stages - 1
        for name, kind in networks.KINDS.items():
            for clip in settings.clips:
                attack = agents.fit_attack(piece, kind, stage=stage, clip=clip)
                judged = agents.judge(piece, kind, attack, stage=stage, clip=clip)
                summary = agents.summarise(piece, judged)
                rows.append({"maps": maps, "agent": name, "clip": clip, **summary})
    return {"rows": rows}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws returns and accuracies against epsilon."""
    panels = {
        "return, maps of the training": lambda row: row["return"]["member"],
        "return, other maps": lambda row: row["return"]["nonmember"],
        "attack accuracy": lambda row: row["accuracy"],
    }
    pictures = {}
    for maps in dict.fromkeys(row["maps"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["maps"] == maps]
        lines = agent_tables.curves(rows, "clip", panels)
        pictures[maps] = figures.lines(lines, x="clipping epsilon", y=maps)
    return pictures


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("maps and agent", "epsilon", "return, member", "other maps", "attack accuracy, %"),
        (
            (
                f"{row['maps']} {row['agent']}",
                f"{row['clip']:g}",
                common.cell(row["return"]["member"]),
                common.cell(row["return"]["nonmember"]),
                common.percent(row["accuracy"]),
            )
            for row in record["rows"]
        ),
    )
