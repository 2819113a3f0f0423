"""The report of a refresh of negatives: lines for the log, numbers and samples for the loggers."""

import logging
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger

from ltr.callbacks.health import active_share
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.margins import FromDistance
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.refresh_report import EXAMPLE_COLUMNS, examples, logged_numbers, summary_lines
from ltr.module import LastStep, RankerModule

# By the name of the callback that users configure, so they find all its lines under one name.
log = logging.getLogger("ltr.callbacks.mining")


class RefreshLog:
    """Logged at a refresh: seconds, what fell to which filter, mean distances, overlap with the
    last one (``mining/…``).

    And after the next step: the share of active pairs in its batch and in the last one before (with
    the lists of all processes), and quantiles of its margins per negative. Weights & Biases also gets these as a
    histogram, and some queries with their hardest negative.

    Args:
        source: the name of the one that was searched, where there are several: its numbers are
            ``mining/SOURCE/…``. Nothing is logged after the next step, which may be of another.
    """

    def __init__(self, source: str = "") -> None:
        self._source = source
        # Between a refresh and the end of the next batch: the step of that batch, as loggers count,
        # from 0.
        self._step_after_refresh: int | None = None
        # The share of active pairs in the last step before the refresh; None before any step.
        self._active_before: float | None = None

    def report_refresh(
        self,
        trainer: Trainer,
        module: RankerModule,
        collection: Collection,
        judged: QueryLists,
        negatives: MinedNegatives,
    ) -> None:
        """Report a refresh.

        Args:
            trainer: has the loggers.
            module: is trained.
            collection: was searched.
            judged: the relevant documents of the training queries.
            negatives: of the refresh.
        """
        if self._source:
            log.info("negatives of the source %s:", self._source)
        for line in summary_lines(negatives.manifest):
            log.info("%s", line)
        if module.last_step is not None:
            self._active_before = float(active_share(module, module.last_step))
        if not self._source:
            self._step_after_refresh = trainer.global_step
        prefix = f"mining/{self._source}/" if self._source else "mining/"
        numbers = logged_numbers(negatives.manifest, prefix)
        for logger in trainer.loggers:
            logger.log_metrics(numbers, trainer.global_step)
            if isinstance(logger, WandbLogger):
                rows = _rows_of_examples(module, collection, judged, negatives)
                _log_table(logger, rows, negatives)

    def report_next_step(self, trainer: Trainer, module: RankerModule) -> None:
        """Report the first step after a refresh."""
        if self._step_after_refresh is None or module.last_step is None:
            return
        step = self._step_after_refresh
        self._step_after_refresh = None
        numbers = {}
        if self._active_before is not None:
            numbers["mining/active_before"] = self._active_before
        numbers["mining/active_after"] = float(active_share(module, module.last_step))
        margins = _margins(module.last_step)
        if len(margins):
            # By numpy, since torch.quantile takes at most 2^24 numbers, and large in-batch lists have
            # more.
            low, median, high = np.quantile(margins, [0.1, 0.5, 0.9]).tolist()
            numbers["mining/margin_low"] = low
            numbers["mining/margin_median"] = median
            numbers["mining/margin_high"] = high
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step)
            if isinstance(logger, WandbLogger) and len(margins):
                import wandb

                logger.experiment.log({"mining/margins": wandb.Histogram(margins)})


def _rows_of_examples(
    module: RankerModule, collection: Collection, judged: QueryLists, negatives: MinedNegatives
) -> list[list[Any]]:
    """Rows of EXAMPLE_COLUMNS, and the margin of each negative if it comes from its distance."""
    rows: list[list[Any]] = []
    for *texts, distance in examples(negatives, collection, judged):
        margin = None
        if isinstance(module.margin, FromDistance):
            margin = round(module.margin.margin_at(torch.tensor(distance)).item(), 4)
        rows.append([*texts, distance, margin])
    return rows


def _log_table(logger: WandbLogger, rows: list[list[Any]], negatives: MinedNegatives) -> None:
    """Log the examples as a table, and as an artifact with the manifest."""
    import wandb  # here, not above: it takes a second, which every command would

    table = wandb.Table(columns=[*EXAMPLE_COLUMNS, "margin"], data=rows)
    logger.experiment.log({"mining/sample": table})
    artifact = wandb.Artifact(
        f"negatives-{logger.experiment.id}",
        type="negatives",
        metadata=dict(negatives.manifest),
    )
    artifact.add(table, "sample")
    logger.experiment.log_artifact(artifact)


def _margins(last_step: LastStep) -> np.ndarray:
    """The margins of the negatives of a step; none where they are not per negative."""
    if last_step.margin is None or last_step.margin.ndim != 2:
        return np.empty(0, np.float32)
    is_negative = last_step.lists.mask & (last_step.lists.labels == 0)
    return last_step.margin.float().expand_as(is_negative)[is_negative].cpu().numpy()
