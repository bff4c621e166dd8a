"""Tables and curves of the attacks on agents, from the rows that `experiments.agents` makes."""

from collections.abc import Callable
from typing import Any

from experiments import common, figures
from jaxpriv.attacks import floor_map


def titles() -> dict[str, str]:
    """Returns the title of each attack by its name."""
    table = {attack.name: attack.title for attack in floor_map.attacks()}
    return {**table, "map_features": "blind, map features"}


def curves(
    rows: list[dict[str, Any]], x: str, panels: dict[str, Callable[[dict[str, Any]], list[float]]]
) -> dict[str, list[figures.Line]]:
    """Draws values with intervals against `x`, a line for each agent in each panel."""
    result: dict[str, list[figures.Line]] = {}
    for panel, value in panels.items():
        for agent in dict.fromkeys(row["agent"] for row in rows):
            chosen = [row for row in rows if row["agent"] == agent]
            triples = [value(row) for row in chosen]
            line = figures.Line(
                agent,
                [row[x] for row in chosen],
                [mean for mean, _, _ in triples],
                [(low, high) for _, low, high in triples],
            )
            result.setdefault(panel, []).append(line)
    return result


def table_by_time(rows: list[dict[str, Any]]) -> str:
    """Formats the rows of `by_time`."""
    columns = (
        "maps and agent", "frames", "return, member", "other maps", "steps, member", "other",
        "entropy, member", "other", "attack accuracy, %",
    )  # fmt: skip
    return common.text_table(
        columns,
        (
            (
                f"{row['maps']} {row['agent']}",
                f"{row['frames']:,}",
                *(common.cell(row["return"][side]) for side in ("member", "nonmember")),
                *(common.cell(row["steps"][side], digits=0) for side in ("member", "nonmember")),
                *(f"{row['entropy'][side][0]:.2f}" for side in ("member", "nonmember")),
                common.percent(row["accuracy"]),
            )
            for row in rows
        ),
    )


def table_of_attacks(rows: list[dict[str, Any]]) -> str:
    """Formats the AUC of every attack at the last stage of each agent."""
    last = {(row["maps"], row["agent"]): row for row in rows}
    return common.text_table(
        ("AUC over maps", *(f"{maps} {agent}" for maps, agent in last)),
        (
            (title, *(common.cell(row["auc"][name]) for row in last.values()))
            for name, title in titles().items()
        ),
    )


def table_by_order(rows: list[dict[str, Any]]) -> str:
    """Formats the rows of `by_order`."""
    return common.text_table(
        ("maps and agent", "place", "attack accuracy, %", "return while training", "at the end"),
        (
            (
                f"{row['maps']} {row['agent']}",
                str(row["place"]),
                common.percent(row["accuracy"]),
                common.cell(row["return_while_training"]),
                common.cell(row["return_at_end"]),
            )
            for row in rows
        ),
    )
