"""Figures 6 to 8 of the paper: the outputs for members and non-members.

Run:       python -m experiments run nasr2018/fig6_7_8 --preset cpu
Time:      smoke 30 s; cpu no more than table4, whose cases it has; paper likewise
Data:      purchases and location30 (cpu); purchase100, texas100 and cifar100 (paper)
Paper:     largest gap between the curves of members and non-members, with / without: accuracy
           .02 / .34 (Purchase-100), .05 / .25 (Texas-100), .06 / .56 (DenseNet); entropy
           .03 / .30, .02 / .15, .04 / .49. Mean gap: accuracy .007 / .013, .004 / .016,
           .005 / .021; entropy .004 / .012, .002 / .04, .002 / .01
Ours:      reproduced in part (cpu, 2026-11-29): mean gaps without / with, accuracy .010 / .007
           (purchases) and .009 / .006 (location30), entropy .006 / .002 and .004 / .003; the
           largest gap of accuracy grows on purchases, .205 / .281

Figure 6 is the mean output for the records of class 50, or of the largest class. Figure 7 is the
distribution of the probability of the right class, Figure 8 that of the entropy divided by ln of
the number of classes, in 100 bins for the first seed; the paper does not print its bins.
"""

from typing import Any

import numpy as np

from experiments import common, figures
from experiments.nasr2018 import recipe, table4
from experiments.nasr2018.recipe import Settings

PRESETS = table4.PRESETS
_SIDES = {"members": ("members", "-"), "nonmembers": ("non-members", "--")}


def run(settings: Settings) -> dict[str, Any]:
    """Trains the classifiers; `rows` has the distributions of the outputs of each."""
    return recipe.run(settings, keys=("distributions",))


def table(record: dict[str, Any]) -> str:
    """Formats the gaps between the distributions."""
    columns = (
        "case", "data", "accuracy: largest", "mean", "entropy: largest", "mean"
    )  # fmt: skip
    lines = []
    for row in record["rows"]:
        cells = [
            f"{row['distributions'][name][gap]:.3f}"
            for name in ("accuracy", "entropy")
            for gap in ("largest_gap", "mean_gap")
        ]
        lines.append((row["case"], row["data"], *cells))
    return "\n".join([common.text_table(columns, lines), *record["left_out"]])


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the mean outputs of a class, and the distributions of both measures."""
    middles = ((np.arange(recipe.NUM_BINS) + 0.5) / recipe.NUM_BINS).tolist()
    outputs: dict[str, list[figures.Line]] = {}
    spreads: dict[str, dict[str, list[figures.Line]]] = {"accuracy": {}, "entropy": {}}
    for row in record["rows"]:
        distributions, panel = row["distributions"], f"{row['data']}, {row['case']}"
        for side, (title, style) in _SIDES.items():
            means = distributions["class_output"][side]
            if means is not None:
                classes = [float(i) for i in range(len(means))]
                outputs.setdefault(panel, []).append(
                    figures.Line(title, classes, means, style=style)
                )
            for name, panels in spreads.items():
                line = figures.Line(title, middles, distributions[name][side], style=style)
                panels.setdefault(panel, []).append(line)
    labels = {"accuracy": "probability of the right class", "entropy": "entropy / ln classes"}
    return {
        "output": figures.lines(outputs, x="class", y="mean probability", columns=2),
        **{
            name: figures.lines(panels, x=labels[name], y="share of the records", columns=2)
            for name, panels in spreads.items()
        },
    }
