"""Figures, as SVG text. The only module that imports matplotlib."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_COLOURS = ("#b3261e", "#1b5fa8", "#2e7d32", "#8a5a00", "#6a3fa0")
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxpriv",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def roc_svg(curves: Sequence[dict[str, Any]], *, smallest: float) -> str:
    """Draws ROC curves on logarithmic axes.

    Args:
      curves: each with name, fpr, tpr and auc.
      smallest: where the axes begin; below it a data set of this size shows nothing.

    Returns:
      An <svg> element.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 4.6), layout="constrained")
        axes = figure.add_subplot()
        diagonal = np.geomspace(smallest, 1, 50)
        axes.plot(diagonal, diagonal, color="#777777", lw=1, ls=":", label="guessing")
        for i, curve in enumerate(curves):
            fpr = np.maximum(curve["fpr"], smallest / 2)
            tpr = np.maximum(curve["tpr"], smallest / 2)
            name = f"{curve['name']} (AUC {curve['auc']:.3f})"
            style = {"color": _COLOURS[i % len(_COLOURS)], "drawstyle": "steps-post", "lw": 1.8}
            axes.plot(fpr, tpr, label=name, **style)
        axes.axvline(0.01, color="#bbbbbb", lw=0.8, zorder=0)
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(smallest, 1),
            ylim=(smallest, 1.05),
            xlabel="false positive rate: non-members called members",
            ylabel="true positive rate: members found",
        )
        axes.grid(which="major", color="#eeeeee", lw=0.8)
        axes.legend(loc="lower right", frameon=False)
        return _svg(figure)


def bounds_svg(models: Sequence[dict[str, Any]]) -> str:
    """Draws, for each model, what is promised and what an audit found, on one epsilon axis.

    Args:
      models: each with name, lower (from the audit; None without one) and upper (the promise;
        None without one).

    Returns:
      An <svg> element.
    """
    ends = [m[side] for m in models for side in ("lower", "upper") if m[side] is not None]
    right = 1.25 * max([1.0, *ends])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 0.9 + 0.55 * len(models)), layout="constrained")
        axes = figure.add_subplot()
        for row, model in enumerate(models):
            lower, upper = model["lower"] or 0.0, model["upper"]
            axes.plot([lower, right if upper is None else upper], [row, row], color="#c3cad3", lw=5)
            if model["lower"] is not None:
                axes.plot(lower, row, "o", color=_COLOURS[0], ms=8)
            if upper is not None:
                axes.plot(upper, row, "s", color=_COLOURS[1], ms=8)
            else:
                axes.annotate(
                    "no upper bound ", (right, row), ha="right", va="bottom", color="#5b6675"
                )
        axes.plot([], [], "o", color=_COLOURS[0], label="audit: at least")
        axes.plot([], [], "s", color=_COLOURS[1], label="promise: at most")
        axes.set(
            xlim=(-0.02 * right, right),
            ylim=(len(models) - 0.4, -0.6),
            yticks=range(len(models)),
            yticklabels=[model["name"] for model in models],
            xlabel="epsilon, one record added or removed",
        )
        axes.legend(loc="upper left", bbox_to_anchor=(0, 1.35), ncols=2, frameon=False)
        return _svg(figure)


def lines_svg(curves: Sequence[dict[str, Any]], *, x: str, y: str) -> str:
    """Draws curves against a quantity on a logarithmic axis, such as a sample size.

    Args:
      curves: each with name, x and y.
      x: what is on the logarithmic axis.
      y: what is on the other, from 0.

    Returns:
      An <svg> element.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for i, curve in enumerate(curves):
            style = {"color": _COLOURS[i % len(_COLOURS)], "lw": 1.8}
            axes.plot(curve["x"], curve["y"], label=curve["name"], marker="o", ms=4, **style)
        axes.set(xscale="log", ylim=(0, None), xlabel=x, ylabel=y)
        axes.grid(which="major", color="#eeeeee", lw=0.8)
        axes.legend(frameon=False)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
