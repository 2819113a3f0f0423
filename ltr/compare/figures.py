"""Figures of a comparison as SVG that a page can set in light and dark."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ltr.compare.runs import Experiment

# Okabe and Ito's colours that can be seen on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
DASHES = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)))
# stand for the colours of the page
INK = "#010203"
FAINT = "#040506"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # the fonts of the page
    "svg.hashsalt": "ltr",
    "text.parse_math": False,  # a name may hold $
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}


def over_training(made: Sequence[Experiment], metric: str) -> str | None:
    """The metric on dev by step, with that before training at 0: a line for each seed. None where
    nothing was validated.
    """
    curves = {
        one.name: [curve for run in one.runs if (curve := _curve(run.metrics, metric))]
        for one in made
    }
    return (
        _lines(curves, xlabel="step", ylabel=f"{metric} on dev") if any(curves.values()) else None
    )


def differences(by_query: np.ndarray, metric: str, name: str, baseline: str) -> str:
    """The difference of each query, sorted: what lies above 0 is better than the baseline where
    more is better.
    """

    def draw(axes: Axes) -> None:
        values = np.sort(by_query)[::-1]
        axes.fill_between(
            np.arange(len(values) + 1),
            np.append(values, values[-1:]),
            step="post",
            color=COLOURS[0],
            lw=0,
        )
        axes.axhline(0, color=FAINT, lw=0.8)
        axes.set(
            xlabel="queries, sorted", ylabel=f"{metric}: {name} − {baseline}", xlim=(0, len(values))
        )

    return _svg(draw)


def precision(by_rank: Mapping[str, np.ndarray]) -> str:
    """The precision at each rank, by experiment."""
    lines = {name: [[*enumerate(values.tolist(), start=1)]] for name, values in by_rank.items()}
    ticks = [1, *range(5, len(next(iter(by_rank.values()))) + 1, 5)]
    return _lines(lines, xlabel="rank", ylabel="precision", ylim=(0, None), xticks=ticks)


def _curve(metrics: Mapping[str, Any], metric: str) -> list[tuple[int, float]]:
    rows = [{"step": 0} | metrics.get("start", {}), *metrics.get("validations", [])]
    return [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]


def _lines(by_name: Mapping[str, Sequence[Sequence[tuple[int, float]]]], **of_axes: Any) -> str:
    """Lines through points, those of one name in one style."""

    def draw(axes: Axes) -> None:
        for number, (name, lines) in enumerate(by_name.items()):
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "ls": DASHES[number // len(COLOURS) % len(DASHES)],
            }
            for nth, line in enumerate(lines):
                axes.plot(
                    *zip(*line, strict=True),
                    marker="o",
                    ms=3,
                    lw=1.2,
                    label=None if nth else name,
                    **style,
                )
        axes.set(**of_axes)
        axes.legend(frameon=False, fontsize=9)

    return _svg(draw)


def _svg(draw: Callable[[Axes], None]) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.4), layout="constrained")
        out = io.StringIO()
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        axes.grid(color=FAINT, lw=0.4, alpha=0.4)
        draw(axes)
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    # The page says how wide it is; a title of an own and no references to elsewhere.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text.replace("\n", " "), count=1
    )
