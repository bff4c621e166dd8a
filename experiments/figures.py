"""Figures of the experiments, as SVG: lines with intervals, and boxes of quantiles."""

import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxpriv",
}
COLOURS = ("#2563a8", "#c2570c", "#4d7c2a", "#8b3fa0", "#666666", "#b02a4a")
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Quantiles that a record stores of a distribution, for `boxes`."""


class Line(NamedTuple):
    """Points of a line, with the ends of their intervals.

    style: format of matplotlib, such as "o-" or "--".
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[tuple[float, float]] | None = None
    style: str = "o-"


def quantiles(values: Any) -> list[float]:
    """Computes the quantiles of a distribution that `boxes` draws."""
    return [float(q) for q in np.quantile(np.asarray(values, np.float64), QUANTILES)]


def lines(
    panels: Mapping[str, Sequence[Line]],
    *,
    x: str,
    y: str,
    columns: int = 3,
    log_from: float | None = None,
) -> str:
    """Draws lines in panels side by side; lines of equal names have one colour and legend.

    A horizontal axis of integers has no ticks between them. With `log_from` it is logarithmic from
    this value on, and linear from 0 to it.
    """
    names = list(dict.fromkeys(line.name for panel in panels.values() for line in panel))

    def draw(axes: Axes, panel: Sequence[Line]) -> None:
        for line in panel:
            colour = COLOURS[names.index(line.name) % len(COLOURS)]
            axes.plot(line.x, line.y, line.style, color=colour, label=line.name, ms=4, lw=1.5)
            if line.intervals:
                low, high = np.transpose(np.asarray(line.intervals, float))
                axes.fill_between(line.x, low, high, color=colour, alpha=0.15, lw=0)
        if all(isinstance(value, int) for line in panel for value in line.x):
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        if log_from is not None:
            axes.set_xscale("symlog", linthresh=log_from)

    return _figure(panels, draw, x=x, y=y, columns=columns, legend=True)


def boxes(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    y: str,
    marks: Mapping[str, float] | None = None,
    columns: int = 3,
) -> str:
    """Draws a box for each distribution: quartiles, 5 and 95 % whiskers, extremes as points.

    Args:
      panels: quantiles of each distribution, as computed by `quantiles`, by panel and label.
      y: label of the vertical axis.
      marks: value of a dashed horizontal line in a panel, by panel.
      columns: number of panels in a row.
    """
    title = {id(panel): name for name, panel in panels.items()}

    def draw(axes: Axes, panel: Mapping[str, Sequence[float]]) -> None:
        keys = ("min", "whislo", "q1", "med", "q3", "whishi", "max")
        stats: list[dict[str, Any]] = [
            dict(zip(keys, values, strict=True), label=label) for label, values in panel.items()
        ]
        for each in stats:
            each["fliers"] = [each.pop("min"), each.pop("max")]
        axes.bxp(stats, widths=0.5, flierprops={"marker": ".", "markersize": 4})
        axes.tick_params("x", rotation=30)
        mark = (marks or {}).get(title[id(panel)])
        if mark is not None:
            axes.axhline(mark, color=COLOURS[0], ls="--", lw=1.2)

    return _figure(panels, draw, x="", y=y, columns=columns, legend=False)


def _figure(
    panels: Mapping[str, Any],
    draw: Callable[[Axes, Any], None],
    *,
    x: str,
    y: str,
    columns: int,
    legend: bool,
) -> str:
    num_columns = min(columns, len(panels))
    num_rows = -(-len(panels) // num_columns)
    with mpl.rc_context(STYLE):
        size = 0.6 + 3.1 * num_columns, 0.9 + 2.6 * num_rows
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(num_rows, num_columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, (name, panel) in zip(grid.flat, panels.items(), strict=False):
            draw(axes, panel)
            axes.set_title(name, loc="left", fontsize=10)
        figure.supxlabel(x, fontsize=10)
        figure.supylabel(y, fontsize=10)
        if legend:
            handles = {}
            for axes in grid.flat:
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    handles.setdefault(label, handle)
            figure.legend(
                handles.values(), handles.keys(), loc="outside upper center",
                ncols=min(3, len(handles)), frameon=False,
            )  # fmt: skip
        stream = io.StringIO()
        FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None})
    text = stream.getvalue()
    label = html.escape(f"{y} against {x}" if x else y)
    return text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
