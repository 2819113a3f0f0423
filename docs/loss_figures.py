"""What the figures of docs/losses.md show: each loss as one document's score moves past the others,
which stay where they are.

The curves are those of the classes of ``ltr.losses``, with the gradient of autograd; only lists and
options are chosen here.
"""

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import ltr.losses

GAPS = np.linspace(-5, 5, 121)
# Okabe and Ito's colours, told apart by the dashes too.
LINES = [
    ("#0072b2", "-"),
    ("#d55e00", (0, (5, 1.5))),
    ("#009e73", (0, (5, 1.5, 1, 1.5))),
    ("#aa4488", (0, (1.2, 1.2))),
]
INK = "#333333"
FAINT = "#d9d9d9"
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "ltr",
    "path.simplify": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


class Curve(NamedTuple):
    """A loss with its options over one list: the first document moves, the others stay.

    Attributes:
        options: of the class.
        labels: of the list, that of the moving document first.
        others: scores of the other documents.
    """

    options: dict[str, Any]
    labels: tuple[float, ...] = (1, 0)
    others: tuple[float, ...] = (0,)


def by(
    option: str,
    *values: Any,
    labels: tuple[float, ...] = (1, 0),
    others: tuple[float, ...] = (0,),
    **same: Any,
) -> list[Curve]:
    """One curve per value of an option."""
    return [Curve({option: value, **same}, labels, others) for value in values]


THREE_NEGATIVES = {"labels": (1, 0, 0, 0), "others": (-2, 0, 2)}
TWO_RELEVANT = {"labels": (1, 0, 1, 0, 0), "others": (3, 1, -1, -3)}
# A loss that is not named below shows its defaults.
DEFAULTS = [Curve({}, **THREE_NEGATIVES)]
BY_PLACE = [Curve({}, labels, (2, 0, -2)) for labels in ((3, 2, 1, 0), (2, 3, 1, 0), (1, 3, 2, 0))]
FIGURES: dict[str, list[Curve]] = {
    "MarginRankingLoss": [*by("margin", 0.5, 1.0, 2.0), Curve({"margin": 1.0, "squared": True})],
    "AdaptiveMarginRankingLoss": by("k", 0.5, 1.0, 2.0, margin=1.5),
    "RankNetLoss": by("sigma", 0.5, 1.0, 2.0, 5.0),
    "AdaptiveRankNetLoss": [
        *by("mode", "shift", "scale", k=1.0),
        *by("mode", "shift", "scale", k=2.0),
    ],
    "CoSENTLoss": by("temperature", 0.5, 1.0, 2.0, **THREE_NEGATIVES),
    "BatchAllTripletLoss": by("average", "active", "all", **THREE_NEGATIVES),
    "BatchHardTripletLoss": [
        *by("margin", 0.5, 1.0, 2.0, **THREE_NEGATIVES),
        Curve({"soft": True}, **THREE_NEGATIVES),
    ],
    "BatchSemiHardTripletLoss": by("margin", 0.5, 1.0, **THREE_NEGATIVES),
    "LambdaRankLoss": by("metric", "ndcg", "err", "mrr", "ap", max_grade=1.0, **TWO_RELEVANT),
    "LambdaLoss": by("scheme", "ndcg1", "ndcg2", "ndcg2++", mu=1.0, **TWO_RELEVANT),
    "SoftmaxLoss": by("temperature", 0.5, 1.0, 2.0, **THREE_NEGATIVES),
    "ListNetLoss": [*by("temperature", 0.5, 1.0, 2.0), Curve({"kind": "kl"})],
    "MeanInequalityLoss": [Curve({}, (*[1] * n, 0), (0,) * n) for n in (1, 2, 3)],
    "ListMLELoss": BY_PLACE,
    "PositionAwareListMLELoss": BY_PLACE,
    "ApproxNDCGLoss": by("temperature", 0.1, 0.5, 1.0, **THREE_NEGATIVES),
    "ApproxMRRLoss": by("temperature", 0.1, 0.5, 1.0, **THREE_NEGATIVES),
    "NeuralNDCGLoss": by("temperature", 0.5, 1.0, 5.0, **THREE_NEGATIVES),
    "BCELoss": by("pos_weight", 0.5, 1.0, 2.0, 5.0),
    "MSELoss": [Curve({}, (grade, 0)) for grade in (1, 2, 3)],
    "MarginMSELoss": [Curve({}, (gap, 0)) for gap in (1, 2, 3)],
    "KLDivergenceLoss": by("temperature", 0.5, 1.0, 2.0, labels=(2, 0)),
    "WeightedSum": by("weights", [1.0, 0.0], [0.0, 1.0], [1.0, 0.5]),
}


def shown_of(name: str) -> list[Curve]:
    """The curves of a figure."""
    return FIGURES.get(name, DEFAULTS)


def value_and_gradient(
    loss: nn.Module, curve: Curve, gaps: Sequence[float] = GAPS
) -> tuple[np.ndarray, np.ndarray]:
    """The loss at each score of the moving document, and its derivative by that score."""
    moving = torch.tensor(np.asarray(gaps), dtype=torch.float64, requires_grad=True)
    values = []
    for score in moving:  # one list at a time: a mean over rows would divide by their number
        scores = torch.cat([score.view(1), score.new_tensor(curve.others)])
        values.append(loss(scores.unsqueeze(0), score.new_tensor(curve.labels).unsqueeze(0)))
    value = torch.stack(values)
    (gradient,) = torch.autograd.grad(value.sum(), moving)
    return value.detach().numpy(), gradient.numpy()


def curves(name: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """A legend, the values and the gradients of each curve of a figure."""
    shown = shown_of(name)
    found = []
    shared = _shared(shown)
    for curve in shown:
        words = [
            f"{key} = {_text(value)}" for key, value in curve.options.items() if key not in shared
        ]
        if len({c.labels for c in shown}) > 1:
            words.append(f"y = {_text(curve.labels)}")
        found.append(
            (
                ", ".join(words),
                *value_and_gradient(getattr(ltr.losses, name)(**curve.options), curve),
            )
        )
    return found


def caption(name: str) -> str:
    """In words: the list of a figure, and the options that its curves share."""
    shown = shown_of(name)
    same_labels = len({c.labels for c in shown}) == 1
    others = shown[0].others
    stay = "the other's stays" if same_labels and len(others) == 1 else "the others' stay"
    where = ", ".join(dict.fromkeys(map(_text, others)))
    text = f"Labels {_text(shown[0].labels) if same_labels else 'y'}: the first document's score moves, {stay} at {where}"
    return (
        "; ".join([text, *(f"`{key} = {_text(value)}`" for key, value in _shared(shown).items())])
        + "."
    )


def draw(name: str) -> Figure:
    """Value and gradient of a loss, side by side."""
    legends, *both = zip(*curves(name), strict=True)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 2.75))
        for panel, title, values in zip(
            figure.subplots(1, 2), ("value", "gradient on s⁺"), both, strict=True
        ):
            for legend, value, (colour, dashes) in zip(legends, values, LINES, strict=False):
                panel.plot(GAPS, value, color=colour, linestyle=dashes, linewidth=1.8, label=legend)
            panel.set_title(title, loc="left", fontsize=9)
            panel.set_xlabel("s⁺ − s⁻" if len(shown_of(name)[0].others) == 1 else "s⁺")
            panel.set_xlim(-5, 5)
            panel.set_ylim(*_limits(values))
            panel.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
            panel.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
            panel.spines[["top", "right"]].set_visible(False)
            panel.spines[["left", "bottom"]].set_color(INK)
        handles = panel.get_legend_handles_labels()
        figure.legend(
            *handles,
            loc="upper center",
            ncols=4,
            frameon=False,
            handlelength=2.4,
            columnspacing=1.4,
        )
        figure.subplots_adjust(left=0.065, right=0.985, bottom=0.17, top=0.78, wspace=0.2)
        return figure


def svg(name: str) -> str:
    """The figure as a file of text: the same bytes whenever it is built with the same matplotlib."""
    with matplotlib.rc_context(STYLE), io.StringIO() as file:
        draw(name).savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        text = file.getvalue()
    # A hundredth of a point is enough, and a path fits on a line.
    text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", text)
    text = re.sub(
        r' d="[^"]*"',
        lambda path: re.sub(r"\s+", " ", path[0]).replace("L ", "L").replace(' "', '"'),
        text,
    )
    # Verdana is as wide as DejaVu Sans.
    return text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def _limits(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """From the lowest to the highest, unless one curve leaves the others flat: it leaves the panel
    instead.
    """
    reaches = sorted(np.abs(value).max() for value in values)
    reach = min(reaches[-1], 6 * reaches[-2]) if len(reaches) > 1 else reaches[0]
    low = max(-reach, min(map(np.min, values)))
    high = min(reach, max(map(np.max, values)))
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _shared(shown: list[Curve]) -> dict[str, Any]:
    return {
        key: value
        for key, value in shown[0].options.items()
        if all(c.options.get(key) == value for c in shown)
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}".replace("-", "−")
    return str(value)
