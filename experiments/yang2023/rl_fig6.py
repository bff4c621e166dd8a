"""Figure 6 of yang2023, right column: agents whose maps came one after the other.

Run:       python -m experiments run yang2023/rl_fig6 --preset cpu
Time:      smoke 60 s, cpu 6 min on one core, paper not run yet; resumable by build/agents
Paper:     attack accuracy falls for maps that came earlier, and less so for the recurrent agent,
           which memorises maps for longer
Ours:      reproduced in part (cpu, 2026-11-29, N2-S6): recurrent 58 to 65 % on the last five maps,
           three intervals above 50 %, and near chance on the first eleven; feed-forward near chance
           throughout (43 to 61 %); little is forgotten of the return

Victims are trained on 16 maps, one after the other. `accuracy` is the balanced accuracy on the maps
of one place in the order, with a 95 % interval over victims. `return_while_training` is that of the
last update on the map, `return_at_end` that of the fully trained agent on it: their difference is
what the agent forgot.
"""

from dataclasses import dataclass
from typing import Any

from experiments import agent_tables, agents, figures
from experiments.yang2023 import networks


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes, by the name of the maps. kinds: names of the architectures."""

    pieces: dict[str, agents.Piece]
    kinds: tuple[str, ...] = tuple(networks.KINDS)


PRESETS = {
    "smoke": Settings(pieces={"N2-S4": agents.SMOKE}, kinds=("feed-forward",)),
    "cpu": Settings(pieces={"N2-S6": agents.CPU["N2-S6"]}),
    "paper": Settings(pieces=agents.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks the agents of each piece."""
    rows = []
    kinds = {name: networks.KINDS[name] for name in settings.kinds}
    for maps, piece in settings.pieces.items():
        rows += [{"maps": maps, **row} for row in agents.by_order(piece, kinds)]
    return {"rows": rows}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws accuracies and returns against the place of the map."""
    panels = {
        "attack accuracy": lambda row: row["accuracy"],
        "return while training": lambda row: row["return_while_training"],
        "return at the end": lambda row: row["return_at_end"],
    }
    pictures = {}
    for maps in dict.fromkeys(row["maps"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["maps"] == maps]
        lines = agent_tables.curves(rows, "place", panels)
        pictures[maps] = figures.lines(lines, x="place of the map", y=maps)
    return pictures


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return agent_tables.table_by_order(record["rows"])
