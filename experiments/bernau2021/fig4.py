"""Figure 4 of bernau2021: local sensitivity for the most and the least dissimilar neighbours.

Run:       python -m experiments run bernau2021/fig4 --preset cpu
Time:      smoke 20 s, cpu 14 min on one core, paper not run yet; resumable by build/bernau2021
Paper:     the local sensitivities of the largest dissimilarities are larger than those of the
           smallest, for each of the three data sets
Ours:      reproduced in part (cpu, 2026-11-29): on purchases the sensitivity under the largest
           dissimilarity exceeds that under the smallest with probability 0.99, on adult with 0.55;
           on mnist each is the clip norm in every step, whatever the dissimilarity

D' is D without one record, by equation 9 of the paper, and the noise is global at rho_beta = 0.9.
`quantiles` are those of the local sensitivity, the distance of the two clipped sums, over all steps
of all repetitions; the global sensitivity is the clip norm, 3. `share_larger` is the probability
that the sensitivity of a step under the largest dissimilarity exceeds that under the smallest.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from experiments import common, figures
from experiments.bernau2021 import games


@dataclass(frozen=True, kw_only=True)
class Settings:
    """schedules: of each task. counts: number of neighbours at either end of the ranking."""

    schedules: dict[str, games.Schedule]
    counts: dict[str, int]


COUNTS = {"mnist": 3, "purchases": 1, "adult": 1}
PRESETS = {
    "smoke": Settings(
        schedules={"purchases": games.Schedule(repetitions=2, steps=2, num_records=20)},
        counts={"purchases": 1},
    ),
    "cpu": Settings(
        schedules=dict.fromkeys(games.TASKS, games.Schedule(repetitions=200)), counts=COUNTS
    ),
    "paper": Settings(
        schedules=dict.fromkeys(games.TASKS, games.Schedule(repetitions=250)), counts=COUNTS
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Plays the game on each neighbour of each available data set."""
    rows = []
    schedules, missing = games.split_available(settings.schedules)
    for name, schedule in schedules.items():
        rows += _rows(name, schedule, settings.counts[name])
    return {"global_sensitivity": games.CLIP_NORM, "missing": missing, "rows": rows}


def _rows(name: str, schedule: games.Schedule, count: int) -> list[dict[str, Any]]:
    game = games.load(name, num_records=schedule.num_records)
    neighbours = games.neighbours(game, "add_or_remove_one", largest=count, smallest=count)
    ends = [f"largest {i + 1}" for i in range(count)]
    ends += [f"smallest {i + 1}" for i in reversed(range(count))]
    samples = []
    for label, neighbour in zip(ends, neighbours, strict=True):
        repetitions = games.play(
            name,
            "global",
            "add_or_remove_one",
            pair=neighbour.pair,
            label=label.replace(" ", "-"),
            schedule=schedule,
        )
        # Rounding makes equal the sensitivities of clipped records, which float32 sets apart.
        samples.append(repetitions.local_sensitivity.ravel().astype(np.float64).round(5))
    top, bottom = np.concatenate(samples[:count]), np.concatenate(samples[count:])
    # The Mann-Whitney statistic counts the pairs whose first value is larger, and ties by half.
    share = stats.mannwhitneyu(top, bottom).statistic / (len(top) * len(bottom))
    return [
        {
            "data": games.available(name),
            "neighbour": label,
            "dissimilarity": neighbour.dissimilarity,
            "quantiles": figures.quantiles(values),
            "mean": float(values.mean()),
            "share_larger": float(share),
        }
        for label, neighbour, values in zip(ends, neighbours, samples, strict=True)
    ]


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws a box for each neighbour."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        panels.setdefault(row["data"], {})[row["neighbour"]] = row["quantiles"]
    marks = dict.fromkeys(panels, float(record["global_sensitivity"]))
    return {"sensitivities": figures.boxes(panels, y="local sensitivity", marks=marks)}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = ("neighbour", "dissimilarity", "5 %", "median", "95 %", "mean", "share larger")
    rows = [
        (
            f"{row['data']} {row['neighbour']}",
            f"{row['dissimilarity']:.1f}",
            *(f"{row['quantiles'][i]:.3f}" for i in (1, 3, 5)),
            f"{row['mean']:.3f}",
            f"{row['share_larger']:.3f}",
        )
        for row in record["rows"]
    ]
    return common.text_table(columns, rows)
