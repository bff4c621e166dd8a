"""Figure 4 of yang2023, right column: agents on floor maps, by training time.

Run:       python -m experiments run yang2023/rl_fig4 --preset cpu
Time:      smoke 60 s, cpu 6 min on one core, paper not run yet; resumable by build/agents
Paper:     no generalisation gap in the reward at convergence, yet 98 % attack accuracy for the
           recurrent agent and 91 % for the feed-forward one; on maps of the training the recurrent
           agent needs about 20 steps, on others 35, the feed-forward one 35 on both
Ours:      not reproduced (cpu, 2026-11-29, N2-S6): 59 % (56 to 62) feed-forward and 60 % (56 to 63)
           recurrent, p = 0.15; both need 18 steps on maps of the training and 26 to 27 on others

Settings and intervals are those of rnnmia2022/fig2, with the architectures of yang2023.
"""

from dataclasses import dataclass
from typing import Any

from experiments import agent_tables, agents, common, figures
from experiments.yang2023 import networks


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes, by the name of the maps."""

    pieces: dict[str, agents.Piece]


PRESETS = {
    "smoke": Settings(pieces={"N2-S4": agents.SMOKE}),
    "cpu": Settings(pieces={"N2-S6": agents.CPU["N2-S6"]}),
    "paper": Settings(pieces=agents.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks the agents of each piece."""
    rows, tests = [], {}
    for maps, piece in settings.pieces.items():
        by_time = agents.by_time(piece, networks.KINDS)
        rows += [{"maps": maps, **row} for row in by_time]
        tests[maps] = agents.compare(by_time, "recurrent", "feed-forward")
    return {"rows": rows, "tests": tests}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws returns, entropies, steps and accuracies against training time."""
    panels = {
        "return, maps of the training": lambda row: row["return"]["member"],
        "return, other maps": lambda row: row["return"]["nonmember"],
        "steps, maps of the training": lambda row: row["steps"]["member"],
        "steps, other maps": lambda row: row["steps"]["nonmember"],
        "entropy, maps of the training": lambda row: row["entropy"]["member"],
        "attack accuracy": lambda row: row["accuracy"],
    }
    pictures = {}
    for maps in dict.fromkeys(row["maps"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["maps"] == maps]
        pictures[maps] = figures.lines(
            agent_tables.curves(rows, "frames", panels), x="frames", y=maps
        )
    return pictures


def table(record: dict[str, Any]) -> str:
    """Formats all rows, and the test of the difference between the architectures."""
    texts = [
        agent_tables.table_by_time(record["rows"]),
        agent_tables.table_of_attacks(record["rows"]),
    ]
    for maps, test in record["tests"].items():
        difference = common.cell(test["difference"])
        texts.append(
            f"{maps}: accuracy, recurrent minus feed-forward {difference}, "
            f"p = {test['p_value']:.3g} for {test['alternative']}"
        )
    return "\n\n".join(texts)
