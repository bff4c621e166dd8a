"""Figure 2 of rnnmia2022: attacks on agents by training time and by the order of their maps.

Run:       python -m experiments run rnnmia2022/fig2 --preset cpu
Time:      smoke 60 s, cpu 26 min on one core, paper not run yet; resumable by build/agents
Paper:     attack accuracy 98 % (recurrent) and 91 % (feed-forward); at all training times and at
           every place in the order it is higher for the recurrent agent, and it falls for maps that
           came earlier
Ours:      not reproduced (cpu, 2026-11-29): 60 % (57 to 64) for the feed-forward agent and 64 % (58
           to 71) for the recurrent one on N2-S6, 55 and 54 % on N3-S4; the recurrent one does not
           leak more (p = 0.09 and 0.68); maps one after the other: chance at every place

Four rooms, the paper's maps, do not train in the paper's 204,800 frames (nor in its own library),
so `cpu` has two and three rooms. Each victim is trained on a random half of 32 maps, the same half
for both architectures; the attack network learns from shadow agents of the same architecture and
training time on 32 other maps. `accuracy` is over episodes, half of them on maps of the training;
intervals at 95 % are over victims. `test` compares the accuracies of the two architectures after
the last stage, victim by victim. AUCs are over maps; LiRA on the return uses the other victims.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments import agent_tables, agents, common, figures

KINDS = {
    "feed-forward": agents.Kind(actor_widths=(64, 64), critic_widths=(64, 64)),
    "recurrent": agents.Kind(actor_widths=(64, 64), critic_widths=(64, 64), lstm_units=8),
}
PAPER_ACCURACY = {"feed-forward": 0.91, "recurrent": 0.98}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pieces: sizes, by the name of the maps."""

    pieces: dict[str, agents.Piece]


PRESETS = {
    "smoke": Settings(pieces={"N2-S4": dataclasses.replace(agents.SMOKE, order_updates=0)}),
    "cpu": Settings(pieces=agents.CPU),
    "paper": Settings(pieces=agents.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains and attacks the agents of each piece."""
    rows, order, tests = [], [], {}
    for maps, piece in settings.pieces.items():
        by_time = agents.by_time(piece, KINDS)
        rows += [{"maps": maps, **row} for row in by_time]
        tests[maps] = agents.compare(by_time, "recurrent", "feed-forward")
        if piece.order_updates:
            order += [{"maps": maps, **row} for row in agents.by_order(piece, KINDS)]
    return {"rows": rows, "order": order, "tests": tests, "paper": PAPER_ACCURACY}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws returns and accuracies against training time, and accuracies against the order."""
    pictures = {}
    for maps in dict.fromkeys(row["maps"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["maps"] == maps]
        panels = {
            "return, maps of the training": lambda row: row["return"]["member"],
            "return, other maps": lambda row: row["return"]["nonmember"],
            "attack accuracy": lambda row: row["accuracy"],
        }
        pictures[f"time-{maps}"] = figures.lines(
            agent_tables.curves(rows, "frames", panels), x="frames", y=maps
        )
        order = [row for row in record["order"] if row["maps"] == maps]
        if order:
            panels = {"attack accuracy": lambda row: row["accuracy"]}
            pictures[f"order-{maps}"] = figures.lines(
                agent_tables.curves(order, "place", panels), x="place of the map", y=maps
            )
    return pictures


def table(record: dict[str, Any]) -> str:
    """Formats all rows, and the tests of the difference between the architectures."""
    texts = [
        agent_tables.table_by_time(record["rows"]),
        agent_tables.table_of_attacks(record["rows"]),
    ]
    if record["order"]:
        texts.append(agent_tables.table_by_order(record["order"]))
    for maps, test in record["tests"].items():
        difference = common.cell(test["difference"])
        texts.append(
            f"{maps}: accuracy, recurrent minus feed-forward {difference}, "
            f"p = {test['p_value']:.3g} for {test['alternative']}"
        )
    paper = ", ".join(f"{name} {100 * value:.0f} %" for name, value in record["paper"].items())
    return "\n\n".join([*texts, f"paper: {paper}"])
