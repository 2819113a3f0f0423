"""Compares what thresholds and probabilities are worth under each loss of a grid
(docs/results_calibration.md): python experiments/calibration_losses.py runs/calibration-wikiqa ...

Each folder holds the runs of experiments/grids/calibration.yaml on one data set. The queries of dev
and test are dealt into two halves as experiments/calibration.py does: thresholds and probabilities
come from the first, and are measured on the second. Scores are kept beside each run.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import calibration as deals
import numpy as np
import torch
from rich.table import Table

from ltr import load
from ltr.compare.statistics import estimate, holm
from ltr.data.console import table_console
from ltr.errors import InputError
from ltr.metrics import NDCG, MeasuredLists
from ltr.run.config_file import read_config
from ltr.use.calibration.conformal import threshold
from ltr.use.calibration.fitting import fit_map
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.score_maps import calibration_error

PROMISE = 0.9
BASELINE = "softmax"
SCORES = "calibration_scores.npz"


class Kept(NamedTuple):
    """Of one run: means over the deals.

    Attributes:
        coverage: the share of queries that keep all their relevant documents.
        documents: ``[A]`` how many of its documents each answerable query keeps.
        log_loss: ``[Q]`` of the probabilities of each query's documents.
        error: the calibration error; NaN where each deal is refused.
        ndcg: ``[A]`` nDCG@10.
        refused: the share of deals whose scores can't be thresholded.
    """

    coverage: float
    documents: np.ndarray
    log_loss: np.ndarray
    error: float
    ndcg: np.ndarray
    refused: float


def main() -> None:
    """Measure all runs, and print two tables for each folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, help="of a grid's runs, on one data set each"
    )
    console = table_console(160)
    folders = parser.parse_args().folders
    for folder in folders:
        n_seeds = {loss: len(runs) for loss, runs in runs_by_loss(folder).items()}
        if n_seeds.get(BASELINE, 0) < 2 or len({*n_seeds.values()}) > 1:
            parser.error(
                f"{folder} must hold runs of {BASELINE} and equally many, two at least, of each other loss, but holds {n_seeds}; ltr grid experiments/grids/calibration.yaml trains them"
            )
    for folder in folders:
        by_loss = kept_by_loss(folder)
        console.print(means_table(folder.name, by_loss))
        console.print(differences_table(by_loss))


def runs_by_loss(folder: Path) -> dict[str, list[Path]]:
    """The seeds of each loss."""
    by_loss = {each.name: sorted(each.glob("seed=*")) for each in sorted(folder.glob("*/"))}
    return {loss: runs for loss, runs in by_loss.items() if runs}


def kept_by_loss(folder: Path) -> dict[str, list[Kept]]:
    """What the seeds of each loss keep, the baseline first."""
    by_loss = {
        loss: [kept_of(lists_of(run)) for run in runs]
        for loss, runs in runs_by_loss(folder).items()
    }
    return {BASELINE: by_loss.pop(BASELINE)} | by_loss


def means_table(title: str, by_loss: dict[str, list[Kept]]) -> Table:
    """Means over queries, and how they vary over seeds."""
    table = Table(title=f"{title}, {len(by_loss[BASELINE])} seeds, promise {PROMISE:.0%}")
    for head in ("loss", "nDCG@10", "coverage", "documents", "ECE", "log loss", "refused"):
        table.add_column(head, justify="left" if head == "loss" else "right")
    for loss, seeds in by_loss.items():
        table.add_row(
            loss,
            mean_and_sd([each.ndcg.mean() for each in seeds]),
            mean_and_sd([each.coverage for each in seeds], 3),
            mean_and_sd([each.documents.mean() for each in seeds], 2),
            mean_and_sd([each.error for each in seeds]),
            mean_and_sd([each.log_loss.mean() for each in seeds]),
            f"{np.mean([each.refused for each in seeds]):.0%}",
        )
    return table


def differences_table(by_loss: dict[str, list[Kept]]) -> Table:
    """From the baseline, with the test over queries and seeds; Holm's correction over the losses."""
    table = Table()
    for head in ("measure", f"loss − {BASELINE}", "difference", "95 % interval", "p, Holm"):
        table.add_column(head)
    others = [loss for loss in by_loss if loss != BASELINE]
    for measure in ("ndcg", "documents", "log_loss"):
        found = [
            estimate(values_of(by_loss[loss], measure), values_of(by_loss[BASELINE], measure))
            for loss in others
        ]
        corrected = holm([each.p for each in found])
        for loss, each, p in zip(others, found, corrected, strict=True):
            low, high = each.interval()
            interval = f"{low:+.4f} to {high:+.4f}"
            table.add_row(measure, loss, f"{each.mean:+.4f}", interval, f"{p:.3g}")
    return table


def mean_and_sd(values: list[float], digits: int = 4) -> str:
    """Over seeds."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def values_of(seeds: list[Kept], measure: str) -> np.ndarray:
    """``[S, Q]``."""
    return np.stack([getattr(each, measure) for each in seeds])


def lists_of(run: Path) -> LabelledScores:
    """What the last weights of a run score, in float32: of its dev and its test."""
    file = run / SCORES
    if not file.is_file():
        data = read_config(run / "config.yaml")["data"]["init_args"]
        ranker = load(run, precision="32-true", needs="texts")
        depth = data["evaluation"]["depth"]
        scored = deals.lists_of_ranker(data["path"], ranker, "trained", depth)
        np.savez(file, **vars(scored.lists))
    kept = np.load(file)
    return LabelledScores(kept["offsets"], kept["scores"], kept["is_relevant"])


def kept_of(lists: LabelledScores) -> Kept:
    """Thresholds over the answerable queries, probabilities over all."""
    answerable = lists.at(np.flatnonzero(lists.has_relevant))
    n = len(answerable)
    lowest = answerable.lowest_relevant
    covered = []
    n_kept = np.zeros(n)
    n_tested = np.zeros(n)
    for _, (dev, test) in zip(range(deals.DEALS), deals.halves(n), strict=False):
        t = threshold(lowest[dev], PROMISE)
        covered.append((lowest[test] >= t).mean())
        kept = np.add.reduceat(answerable.scores >= t, answerable.offsets[:-1], dtype=np.int64)
        n_kept[test] += kept[test]
        n_tested[test] += 1
    losses = np.zeros(len(lists))
    n_measured = np.zeros(len(lists))
    errors = []
    n_refused = 0
    for _, (dev, test) in zip(range(deals.FITTED_DEALS), deals.halves(len(lists)), strict=False):
        held_out = lists.at(test)
        y = held_out.is_relevant
        try:
            p = fit_map(lists.at(dev)).score_map(held_out.scores)
            errors.append(calibration_error(p, y))
        except InputError:  # no use: each document then has the share of relevant ones
            n_refused += 1
            p = np.full(len(y), lists.at(dev).is_relevant.mean())
        of_docs = -np.log(np.where(y, p, 1 - p))
        losses[test] += np.add.reduceat(of_docs, held_out.offsets[:-1]) / np.diff(held_out.offsets)
        n_measured[test] += 1
    return Kept(
        float(np.mean(covered)),
        n_kept / n_tested,
        losses / n_measured,
        float(np.mean(errors)) if errors else np.nan,
        ndcg_at_10(answerable),
        n_refused / deals.FITTED_DEALS,
    )


def ndcg_at_10(lists: LabelledScores) -> np.ndarray:
    """``[Q]`` of two grades; relevant documents that are no candidates do not count."""
    counts = np.diff(lists.offsets)
    place = np.arange(len(lists.scores)) - np.repeat(lists.offsets[:-1], counts)
    scores = torch.zeros(len(lists), int(counts.max()))
    labels = torch.zeros_like(scores)
    scores[lists.query_of_doc, place] = torch.from_numpy(lists.scores)
    labels[lists.query_of_doc, place] = torch.from_numpy(lists.is_relevant).float()
    mask = torch.arange(scores.shape[1]) < torch.from_numpy(counts).unsqueeze(1)
    return NDCG(k=10).per_query(MeasuredLists(scores, labels, mask)).numpy()


if __name__ == "__main__":
    main()
