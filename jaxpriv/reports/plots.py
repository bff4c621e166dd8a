"""Draws figures as SVG text. No other module imports matplotlib.

Colours are CSS variables with a fallback, so that a page can set them for light and dark mode.
"""

import html
import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = [
    "Beliefs",
    "Bounds",
    "Curve",
    "Histogram",
    "Intervals",
    "beliefs_svg",
    "bounds_svg",
    "histograms_svg",
    "intervals_svg",
    "lines_svg",
    "roc_svg",
]

_INK, _SOFT, _LINE, _PAPER = "#1c2430", "#5b6675", "#dfe4ea", "#ffffff"
_SERIES = ("#b3261e", "#1b5fa8", "#2e7d32", "#8a5a00", "#6a3fa0")
_VARIABLES = {
    _INK: "--ink",
    _SOFT: "--soft",
    _LINE: "--line",
    _PAPER: "--paper",
    **{colour: f"--series-{i}" for i, colour in enumerate(_SERIES, 1)},
}
_NAME_WIDTH = 26
"""Number of characters of a line of a model's name beside an axis."""

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxpriv",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _SOFT,
    "axes.facecolor": _PAPER,
    "figure.facecolor": _PAPER,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "grid.color": _LINE,
}


class Curve(NamedTuple):
    """A curve with its name in the legend."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Bounds(NamedTuple):
    """Bounds on the epsilon of a model, or None; the name labels the axis."""

    name: str
    lower: float | None
    upper: float | None


class Intervals(NamedTuple):
    """Lower end, value and upper end of each row, with the name in the legend."""

    name: str
    points: Sequence[tuple[float, float, float] | None]


class Beliefs(NamedTuple):
    """Quantiles of an adversary's belief after each step, and the bound, with the title."""

    name: str
    steps: Sequence[int]
    low: Sequence[float]
    median: Sequence[float]
    high: Sequence[float]
    bound: float


class Histogram(NamedTuple):
    """Shares of members and of non-members in each bin, with the title of the panel."""

    name: str
    edges: Sequence[float]
    members: Sequence[float]
    nonmembers: Sequence[float]


def roc_svg(curves: Sequence[Curve], *, smallest: float) -> str:
    """Draws ROC curves on logarithmic axes.

    Args:
      curves: false positive rates in ascending order, and true positive rates.
      smallest: lower end of both axes.

    Returns:
      An <svg> element.

    Example:
      >>> svg = roc_svg([Curve("LiRA", [0.0, 0.01, 1.0], [0.0, 0.3, 1.0])], smallest=1e-3)
      >>> svg[:14], "LiRA" in svg
      ('<svg role="img', True)
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 4.4 + 0.2 * len(curves)), layout="constrained")
        axes = figure.add_subplot()
        diagonal = np.geomspace(smallest, 1, 50)
        axes.plot(diagonal, diagonal, color=_SOFT, lw=1, ls=":", label="guessing")
        for curve, colour in zip(curves, _colours(len(curves)), strict=True):
            x, y = (np.maximum(rates, smallest / 2) for rates in (curve.x, curve.y))
            axes.plot(x, y, label=curve.name, color=colour, drawstyle="steps-post", lw=1.8)
        axes.axvline(0.01, color=_SOFT, lw=0.8, ls="--", zorder=0)
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(smallest, 1),
            ylim=(smallest, 1.05),
            xlabel="false positive rate",
            ylabel="true positive rate",
        )
        axes.grid(which="major", lw=0.8)
        figure.legend(loc="outside lower left", frameon=False)
        return _svg(figure, title="ROC curves on logarithmic axes")


def intervals_svg(
    labels: Sequence[str], series: Sequence[Intervals], *, x: str, mark: float = 0.5
) -> str:
    """Draws values with intervals, in a row for each label and a colour for each series.

    Args:
      labels: labels of the rows, from the top.
      series: values and intervals of each row; None leaves a row empty.
      x: label of the horizontal axis.
      mark: value at which a dotted line is drawn, such as that of guessing.

    Returns:
      An <svg> element.

    Example:
      >>> series = [Intervals("Without DP", [(0.6, 0.7, 0.8), None])]
      >>> svg = intervals_svg(["LiRA", "loss"], series, x="AUC")
      >>> "Without DP" in svg
      True
    """
    with mpl.rc_context(_STYLE):
        height = 1.1 + 0.2 * len(series) + len(labels) * (0.14 + 0.09 * len(series))
        figure = Figure(figsize=(6.6, height), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(mark, color=_SOFT, lw=1, ls=":")
        for i, (intervals, colour) in enumerate(zip(series, _colours(len(series)), strict=True)):
            shift = 0.62 * ((i + 0.5) / len(series) - 0.5)
            points = [(row, p) for row, p in enumerate(intervals.points) if p is not None]
            rows = [row + shift for row, _ in points]
            low, middle, high = zip(*[p for _, p in points], strict=True) if points else ((),) * 3
            axes.hlines(rows, low, high, color=colour, lw=1.6, alpha=0.75)
            axes.plot(middle, rows, "o", color=colour, ms=4, label=intervals.name)
        axes.set(ylim=(len(labels) - 0.4, -0.6), yticks=range(len(labels)), yticklabels=labels)
        axes.set_xlabel(x)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", lw=0.8)
        if any(intervals.name for intervals in series):
            figure.legend(loc="outside lower left", frameon=False)
        return _svg(figure, title=x)


def bounds_svg(models: Sequence[Bounds], *, unit: str = "record") -> str:
    """Draws the guarantee and the audit of each model on one epsilon axis.

    Args:
      models: lower and upper bounds.
      unit: unit of privacy, for the label of the axis.

    Returns:
      An <svg> element.

    Example:
      >>> svg = bounds_svg([Bounds("DP-SGD", lower=0.4, upper=2.0)])
      >>> "epsilon, one record added or removed" in svg
      True
    """
    ends = [end for model in models for end in (model.lower, model.upper) if end is not None]
    right = 1.25 * max([1.0, *ends])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 1.1 + 0.5 * len(models)), layout="constrained")
        axes = figure.add_subplot()
        for row, model in enumerate(models):
            _draw_bounds(axes, row, model, right)
        axes.plot([], [], "o", color=_SERIES[0], label="audit: at least")
        axes.plot([], [], "s", color=_SERIES[1], label="guarantee: at most")
        axes.set(
            xlim=(-0.02 * right, right),
            ylim=(len(models) - 0.4, -0.6),
            yticks=range(len(models)),
            yticklabels=[textwrap.fill(model.name, _NAME_WIDTH) for model in models],
        )
        axes.tick_params(axis="y", length=0)
        figure.supxlabel(f"epsilon, one {unit} added or removed", fontsize=10)
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        return _svg(figure, title="Guarantee and audit of each model")


def histograms_svg(histograms: Sequence[Histogram]) -> str:
    """Draws the distributions of scores of members and non-members, in a panel for each model.

    Args:
      histograms: shares of each panel, from the top.

    Returns:
      An <svg> element.

    Example:
      >>> svg = histograms_svg([Histogram("LiRA", [0.0, 1.0, 2.0], [0.2, 0.8], [0.7, 0.3])])
      >>> "non-members" in svg
      True
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 0.7 + 1.35 * len(histograms)), layout="constrained")
        panels = figure.subplots(len(histograms), 1, squeeze=False)[:, 0]
        for axes, histogram in zip(panels, histograms, strict=True):
            sides = (histogram.nonmembers, histogram.members)
            for shares, colour in zip(sides, (_SERIES[1], _SERIES[0]), strict=True):
                axes.stairs(shares, histogram.edges, color=colour, lw=1.6)
                axes.stairs(shares, histogram.edges, color=colour, alpha=0.15, fill=True)
            axes.set_title(histogram.name, loc="left", fontsize=10, color=_INK)
            axes.set(ylim=(0, None), ylabel="share")
            axes.locator_params(axis="y", nbins=3)
        panels[-1].set_xlabel("score of the strongest attack")
        for name, colour in (("members", _SERIES[0]), ("non-members", _SERIES[1])):
            panels[0].plot([], [], color=colour, lw=1.6, label=name)
        figure.legend(loc="outside lower left", ncols=2, frameon=False)
        return _svg(figure, title="Distributions of the scores of members and non-members")


def beliefs_svg(panels: Sequence[Beliefs]) -> str:
    """Draws the belief in the true data set over the training, in a panel for each model.

    Args:
      panels: quantiles and bound of each panel, from the top.

    Returns:
      An <svg> element.

    Example:
      >>> svg = beliefs_svg([Beliefs("DP-SGD", [1, 2], [0.4, 0.3], [0.5, 0.6], [0.6, 0.8], 0.9)])
      >>> "bound of the guarantee" in svg
      True
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 0.9 + 1.9 * len(panels)), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for axes, panel in zip(grid, panels, strict=True):
            colour = _SERIES[1]
            axes.fill_between(
                panel.steps, panel.low, panel.high, color=colour, alpha=0.2, lw=0,
                label="5 to 95 % of the repetitions",
            )  # fmt: skip
            axes.plot(panel.steps, panel.median, color=colour, lw=1.8, label="median")
            axes.axhline(0.5, color=_SOFT, lw=1, ls=":", label="guessing")
            axes.axhline(panel.bound, color=_SERIES[0], ls="--", label="bound of the guarantee")
            axes.set(ylim=(0, 1.03), ylabel="belief")
            axes.set_title(panel.name, loc="left", fontsize=10, color=_INK)
        grid[-1].set_xlabel("step")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return _svg(figure, title="belief in the true data set after each step")


def lines_svg(curves: Sequence[Curve], *, x: str, y: str) -> str:
    """Draws curves against a quantity on a logarithmic axis, such as a sample size.

    Args:
      curves: points of each curve.
      x: label of the logarithmic axis.
      y: label of the vertical axis, which begins at 0.

    Returns:
      An <svg> element.

    Example:
      >>> svg = lines_svg([Curve("audit", [100, 1000], [0.5, 2.0])], x="canaries", y="epsilon")
      >>> 'aria-label="epsilon against canaries"' in svg
      True
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for curve, colour in zip(curves, _colours(len(curves)), strict=True):
            axes.plot(curve.x, curve.y, label=curve.name, marker="o", ms=4, color=colour, lw=1.8)
        axes.set(xscale="log", ylim=(0, None), xlabel=x, ylabel=y)
        axes.grid(which="major", lw=0.8)
        axes.legend(frameon=False)
        return _svg(figure, title=f"{y} against {x}")


def _draw_bounds(axes: Axes, row: int, model: Bounds, right: float) -> None:
    lower = model.lower or 0.0
    upper = right if model.upper is None else model.upper
    axes.plot([lower, upper], [row, row], color=_LINE, lw=6, solid_capstyle="butt")
    if model.upper is None:
        axes.annotate("no upper bound", (right, row), (-4, 5), textcoords="offset points",
                      ha="right", va="bottom", color=_SOFT)  # fmt: skip
    else:
        axes.plot(upper, row, "s", color=_SERIES[1], ms=8)
    if model.lower is not None:
        axes.plot(lower, row, "o", color=_SERIES[0], ms=8, clip_on=False)


def _colours(count: int) -> list[str]:
    return [_SERIES[i % len(_SERIES)] for i in range(count)]


def _svg(figure: Figure, *, title: str) -> str:
    stream = io.StringIO()
    FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    # Ids such as axes_1 would occur twice on a page with two figures.
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var({variable}, {colour})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
