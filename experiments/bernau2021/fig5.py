"""Figure 5 of bernau2021: local and global sensitivity over the course of the training.

Run:       python -m experiments run bernau2021/fig5 --preset cpu
Time:      smoke 15 s, cpu 1 min after table2, whose repetitions it reads, paper not run yet
Paper:     the local sensitivity is near the clip norm on MNIST and purchases and below it on
           adult; with replace-one it is below the global sensitivity, twice the clip norm
Ours:      reproduced (cpu, 2026-11-29): with add-or-remove-one at the clip norm of 3 in every step
           on mnist and purchases and 1.12 on adult; with replace-one 4.29, 4.25 and 2.42 of 6

Global noise at rho_beta = 0.9. `median`, `low` and `high` are the median and the 5 and 95 %
quantiles of the local sensitivity of each step over the repetitions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import common, figures
from experiments.bernau2021 import games
from jaxpriv._names import Relation


@dataclass(frozen=True, kw_only=True)
class Settings:
    """schedules: of each task. relations: neighbouring relations."""

    schedules: dict[str, games.Schedule]
    relations: tuple[Relation, ...] = ("replace_one", "add_or_remove_one")


PRESETS = {
    "smoke": Settings(
        schedules={"purchases": games.Schedule(repetitions=2, steps=2, num_records=20)},
        relations=("add_or_remove_one",),
    ),
    "cpu": Settings(schedules=games.CPU),
    "paper": Settings(schedules=games.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Collects the sensitivities of each available data set under each relation."""
    rows = []
    schedules, missing = games.split_available(settings.schedules)
    for name, schedule in schedules.items():
        for relation in settings.relations:
            repetitions = games.play(name, "global", relation, schedule=schedule)
            values = np.quantile(repetitions.local_sensitivity, (0.05, 0.5, 0.95), axis=0)
            low, median, high = (row.tolist() for row in values)
            is_bounded = relation == "replace_one"
            rows.append(
                {
                    "data": games.available(name),
                    "relation": relation,
                    "global_sensitivity": games.CLIP_NORM * (2 if is_bounded else 1),
                    "median": median,
                    "low": low,
                    "high": high,
                    "mean": float(repetitions.local_sensitivity.mean()),
                }
            )
    return {"missing": missing, "rows": rows}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the sensitivity of each step, in a panel for each data set and relation."""
    panels = {}
    for row in record["rows"]:
        steps = list(range(1, len(row["median"]) + 1))
        bounds = list(zip(row["low"], row["high"], strict=True))
        panels[f"{row['data']}, {row['relation']}"] = [
            figures.Line("local, median and 5 to 95 %", steps, row["median"], bounds, "-"),
            figures.Line("global", steps, [row["global_sensitivity"]] * len(steps), style="--"),
        ]
    return {"sensitivities": figures.lines(panels, x="step", y="sensitivity", columns=2)}


def table(record: dict[str, Any]) -> str:
    """Formats the first, middle and last step of each row."""
    rows = []
    for row in record["rows"]:
        last = len(row["median"]) - 1
        rows.append(
            (
                f"{row['data']} {row['relation']}",
                f"{row['global_sensitivity']:g}",
                f"{row['mean']:.3f}",
                *(
                    common.cell([row["median"][i], row["low"][i], row["high"][i]])
                    for i in (0, last // 2, last)
                ),
            )
        )
    columns = ("data and relation", "global", "local, mean", "first step", "middle", "last")
    return common.text_table(columns, rows)
