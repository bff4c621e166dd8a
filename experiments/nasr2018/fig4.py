"""Figure 4 of the paper: loss of the classifier and gain of the attacker during training.

Run:       python -m experiments run nasr2018/fig4 --preset cpu
Time:      smoke 30 s; cpu no more than table5, whose cases it has; paper likewise
Data:      purchases and location30 (cpu); purchase100 (paper)
Paper:     without the defence the loss goes to 0; with it loss and gain level off, the gain near
           -ln 2, which is guessing
Ours:      reproduced in part (cpu, 2026-11-29): with the defence the loss levels off, at 2.15
           (purchases) and 1.13 (location30); the gain still rises, to -0.633 and -0.662

The loss is that of the classifier's batches, without the gain, and the gain is that of the attacker
in the training on its last batch of each step, means over the steps of an epoch and over the seeds.
"""

import math
from typing import Any

from experiments import common, figures
from experiments.nasr2018 import cases, recipe
from experiments.nasr2018.recipe import Settings

PRESETS = {
    preset: Settings(
        cases=tuple(each for case in chosen for each in cases.with_and_without(case)),
        folder=None if preset == "smoke" else "build/nasr2018",
    )
    for preset, chosen in cases.CASES.items()
}


def run(settings: Settings) -> dict[str, Any]:
    """Trains the classifiers; `rows` has the curves of each."""
    return recipe.run(settings, keys=("curves",))


def table(record: dict[str, Any]) -> str:
    """Formats the loss and the gain of the first, the middle and the last epoch."""
    lines = []
    for row in record["rows"]:
        for name in ("loss", "gain"):
            values = row["curves"][name]
            if values is not None:
                chosen = (values[0], values[len(values) // 2], values[-1])
                cells = [f"{value:.3f}" for value in chosen]
                lines.append((f"{row['case']}, {name}", row["data"], *cells))
    text = common.text_table(("case", "data", "first epoch", "middle", "last"), lines)
    return "\n".join([text, f"a gain of {-math.log(2):.3f} is guessing", *record["left_out"]])


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the loss and the gain against the epochs."""
    result = {}
    for name in ("loss", "gain"):
        panels: dict[str, list[figures.Line]] = {}
        for row in record["rows"]:
            values = row["curves"][name]
            if values is not None:
                epochs = [float(i + 1) for i in range(len(values))]
                panels.setdefault(row["data"], []).append(figures.Line(row["case"], epochs, values))
        result[name] = figures.lines(panels, x="epoch", y=name)
    return result
