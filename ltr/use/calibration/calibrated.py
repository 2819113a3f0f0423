"""A calibration made of the dev lists of a ranker, and what is told of it."""

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from ltr.data.whole_files import write_whole
from ltr.use.calibration.calibration import Calibration, Errors, Provenance, error_rates
from ltr.use.calibration.conformal import (
    KINDS,
    PROMISES,
    Kept,
    coverage_interval,
    rank_of_threshold,
)
from ltr.use.calibration.fitting import FittedMap, fit_map
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.score_maps import calibration_error, reliability


def calibrate_lists(lists: LabelledScores, provenance: Provenance) -> tuple[Calibration, FittedMap]:
    """The calibration of dev lists, and the fit of its map.

    Raises:
        InputError: for scores that can't be thresholded, see
            :func:`ltr.use.calibration.fitting.fit_map`.
    """
    fitted = fit_map(lists)
    errors: Errors = {
        "calibration_error": calibration_error(fitted.held_out, lists.is_relevant),
        "calibration_error_of_logits": calibration_error(lists.read_as_logits, lists.is_relevant),
        "log_loss": fitted.log_loss,
        "log_loss_of_constant": fitted.constant_log_loss,
    }
    has_relevant = lists.has_relevant
    highest = lists.highest
    calibration = Calibration(
        **vars(provenance),
        score_map=fitted.score_map,
        lowest_relevant=np.sort(lists.lowest_relevant).tolist(),
        highest_relevant=np.sort(lists.highest_relevant).tolist(),
        highest=np.sort(highest[has_relevant]).tolist(),
        highest_of_unanswerable=np.sort(highest[~has_relevant]).tolist(),
        documents=len(lists.scores),
        relevant=int(lists.is_relevant.sum()),
        errors=errors,
    )
    return calibration, fitted


@dataclass(frozen=True)
class PromiseRow:
    """What a promise costs, and how it is kept.

    Attributes:
        promise, kept: which.
        threshold: None where dev is too small.
        interval: between which values the share of new queries that are served lies, in 90 % of all
            draws of dev.
        coverage: the share of the answerable queries that are served. On dev it says nothing new: the
            threshold was set there.
        p_value: of so few being served, if they are exchangeable with those of dev.
        documents: how many are kept of a query, in the mean over all queries.
        falsely_empty: the share of answerable queries that get no document.
        falsely_filled: that of unanswerable queries that get one; None where there are none.
    """

    promise: float
    kept: Kept
    threshold: float | None
    interval: tuple[float, float] = (0.0, 1.0)
    coverage: float | None = None
    p_value: float = 1.0
    documents: float = 0.0
    falsely_empty: float | None = None
    falsely_filled: float | None = None


def promise_rows(calibration: Calibration, lists: LabelledScores) -> list[PromiseRow]:
    """The rows of :data:`ltr.use.calibration.conformal.PROMISES`, for all and for one.

    Args:
        calibration: has the thresholds.
        lists: what they keep: those of dev, or of another split.
    """
    return [
        _promise_row(calibration, lists, promise, kept) for kept in KINDS for promise in PROMISES
    ]


def _promise_row(
    calibration: Calibration, lists: LabelledScores, promise: float, kept: Kept
) -> PromiseRow:
    n = len(calibration.lowest_relevant)
    k = rank_of_threshold(promise, n)
    if k == 0:
        return PromiseRow(promise, kept, None)
    t = np.float32(calibration.threshold(promise, kept))
    numbers = lists.lowest_relevant if kept == "all" else lists.highest_relevant
    m = len(numbers)
    n_served = int((numbers >= t).sum())
    has_relevant = lists.has_relevant
    highest = lists.highest
    return PromiseRow(
        promise,
        kept,
        float(t),
        coverage_interval(promise, n),
        n_served / m if m else None,
        float(stats.betabinom(m, n + 1 - k, k).cdf(n_served)),
        float((lists.scores >= t).sum() / len(lists)),
        *error_rates(highest[has_relevant], highest[~has_relevant], float(t)),
    )


def draw_reliability(lists: LabelledScores, fitted: FittedMap, file: Path) -> None:
    """Write the reliability figure: by bin the share of relevant documents over the mean probability,
    of the scores read as logits, and of held-out probabilities.
    """
    with matplotlib.rc_context({"svg.hashsalt": "ltr", "font.size": 10}):
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="#7f7f7f", lw=0.8)
        for name, probabilities, colour in (
            ("scores as logits", lists.read_as_logits, "#d55e00"),
            ("calibrated, held out", fitted.held_out, "#0072b2"),
        ):
            bins = reliability(probabilities, lists.is_relevant)
            means, shares, _ = zip(*bins, strict=True)
            axes.plot(means, shares, marker="o", ms=4, lw=1.2, color=colour, label=name)
        axes.set(xlabel="probability of relevance", ylabel="share of relevant documents")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    write_whole(file, [out.getvalue()])
