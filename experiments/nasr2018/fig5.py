"""Figure 5 of the paper: generalisation error by class, with and without the defence.

Run:       python -m experiments run nasr2018/fig5 --preset cpu
Time:      smoke 30 s; cpu no more than table4, whose cases it has; paper likewise
Data:      purchases and location30 (cpu); purchase100, texas100 and cifar100 (paper)
Paper:     the error with the defence is lower over all classes; of all records it falls from
           29.7 to 7.5 % (Texas-100), 54.3 to 22.7 % (AlexNet), 29.4 to 12.7 % (DenseNet)
Ours:      reproduced (cpu, 2026-11-29): the median error over classes falls from 49 to 10 % on
           purchases and from 39 to 18 % on location30, as the training accuracy does

The error of a class is its training accuracy less its accuracy on D'', for the first seed.
"""

from typing import Any

import numpy as np

from experiments import common, figures
from experiments.nasr2018 import recipe, table4
from experiments.nasr2018.recipe import Settings

PRESETS = table4.PRESETS
_SHARES = (0.1, 0.5, 0.9)


def run(settings: Settings) -> dict[str, Any]:
    """Trains the classifiers; `rows` has the errors of the classes of each."""
    record = recipe.run(settings, keys=("distributions",))
    for row in record["rows"]:
        row["class_gaps"] = row.pop("distributions")["class_gaps"]
    return record


def table(record: dict[str, Any]) -> str:
    """Formats quantiles of the errors over the classes."""
    columns = ("case", "data", "classes", *(f"quantile {share:g}" for share in _SHARES))
    lines = []
    for row in record["rows"]:
        gaps = row["class_gaps"]
        cells = [recipe.percent(float(q)) for q in np.quantile(gaps, _SHARES)]
        lines.append((row["case"], row["data"], str(len(gaps)), *cells))
    return "\n".join([common.text_table(columns, lines), *record["left_out"]])


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the share of the classes with at most a given error."""
    panels: dict[str, list[figures.Line]] = {}
    for row in record["rows"]:
        gaps = sorted(row["class_gaps"])
        shares = [float(i + 1) / len(gaps) for i in range(len(gaps))]
        line = figures.Line(row["case"], gaps, shares, style="-")
        panels.setdefault(row["data"], []).append(line)
    return {"cdf": figures.lines(panels, x="generalisation error", y="share of the classes")}
