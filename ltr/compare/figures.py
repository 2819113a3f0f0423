"""Figures of a comparison as SVG that a page can set in light and dark."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ltr.compare.experiment import Experiment
from ltr.data.console import without_controls

# Okabe and Ito's colours that can be seen on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
DASHES = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)))
# Placeholders: _svg puts the colours of the page, which are light or dark, in their place.
INK = "#010203"
FAINT = "#040506"
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # the fonts of the page
    "svg.hashsalt": "ltr",
    "text.parse_math": False,  # a name may hold $
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(INKED, INK),
}

Points = list[tuple[float, float]]  # of a line, by x


def over_training(
    experiments: Sequence[Experiment], metric: str, by: Literal["step", "seconds"] = "step"
) -> str | None:
    """The metric on dev by step, or by seconds of training, with that before training at 0: a line
    for each seed. None where nothing was validated.
    """
    curves: dict[str, list[Points]] = {}
    n_points = 0
    for experiment in experiments:
        curves[experiment.name] = []
        for run in experiment.runs:
            curve = _curve(run.results, metric, by)
            if curve:
                curves[experiment.name].append(curve)
                n_points = max(n_points, len(curve))
    # The point before training says nothing alone.
    if n_points == 0 or (by == "seconds" and n_points == 1):
        return None
    xlabel = "step" if by == "step" else "seconds of training"
    return _lines(curves, xlabel=xlabel, ylabel=f"{metric} on dev")


def differences(by_query: np.ndarray, metric: str, name: str, baseline: str, number: int) -> str:
    """The difference of each query, from the largest to the smallest. It is not turned round for
    metrics where lower is better.

    Args:
        by_query: the differences ``[Q]``.
        metric, name, baseline: for the label.
        number: of the experiment among all, which has its colour in every figure.
    """

    def draw(axes: Axes) -> None:
        heights = np.sort(by_query)[::-1]
        # Each height is drawn from its place to the next one: the last needs a place to end at.
        heights = np.append(heights, heights[-1:])
        axes.fill_between(
            np.arange(len(heights)),
            heights,
            step="post",
            color=COLOURS[number % len(COLOURS)],
            lw=0,
        )
        axes.axhline(0, color=FAINT, lw=0.8)
        axes.set(
            xlabel="queries, sorted",
            ylabel=without_controls(f"{metric}: {name} − {baseline}"),
            xlim=(0, len(by_query)),
        )

    return _svg(draw)


def precision(by_rank: Mapping[str, np.ndarray]) -> str:
    """The precision at each rank, by experiment."""
    lines: dict[str, list[Points]] = {}
    for name, values in by_rank.items():
        points: Points = list(enumerate(values.tolist(), start=1))
        lines[name] = [points]
    n_ranks = len(next(iter(by_rank.values())))
    ticks = [1, *range(5, n_ranks + 1, 5)]
    return _lines(lines, xlabel="rank", ylabel="precision", ylim=(0, None), xticks=ticks)


def _curve(metrics: Mapping[str, Any], metric: str, by: str) -> Points:
    """Steps or seconds, and values on dev; at 0 is the measurement before training."""
    start = {"step": 0, "seconds": 0.0} | metrics.get("start", {})
    points: Points = []
    for row in [start, *metrics.get("validations", [])]:
        if row.get(metric) is not None:
            points.append((row[by], row[metric]))
    return points


def _lines(by_name: Mapping[str, Sequence[Points]], **axes_options: Any) -> str:
    """Lines through points, those of one name in one style."""

    def draw(axes: Axes) -> None:
        first_of_name: dict[str, Line2D] = {}
        for number, (name, lines) in enumerate(by_name.items()):
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "ls": DASHES[number // len(COLOURS) % len(DASHES)],
            }
            for points in lines:
                x, y = zip(*points, strict=True)
                (line,) = axes.plot(x, y, marker="o", ms=3, lw=1.2, **style)
                first_of_name.setdefault(name, line)  # the legend has each name once
        axes.set(**axes_options)
        numbers = [str(number) for number in range(len(first_of_name))]
        legend = axes.legend(list(first_of_name.values()), numbers, frameon=False, fontsize=9)
        # Afterwards: before 3.10 matplotlib leaves out a label that begins with an underscore.
        for text, name in zip(legend.get_texts(), first_of_name, strict=True):
            text.set_text(without_controls(name))

    return _svg(draw)


def _svg(draw: Callable[[Axes], None]) -> str:
    """What is drawn, as an element to stand within a page."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.4), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        axes.grid(color=FAINT, lw=0.4, alpha=0.4)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]  # without the XML declaration, which only a file has
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    # matplotlib's metadata name addresses elsewhere, and a page asks for nothing from there.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("\n", " ")
    # The page says how wide a figure is.
    return re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text, count=1)
