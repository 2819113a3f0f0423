"""What a refresh of negatives tells: lines for the log, numbers and samples for the loggers."""

import logging

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from ltr.callbacks.health import active_share
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.margins import FromDistance
from ltr.mining.negatives import MinedNegatives
from ltr.mining.report import EXAMPLE_COLUMNS, examples, logged_numbers, summary_lines
from ltr.module import LastStep, RankerModule

log = logging.getLogger("ltr.callbacks.mining")


class RefreshLog:
    """Logged at a refresh: seconds, what fell to which filter, mean distances, overlap with the
    last one (``mining/…``).

    And after the next step: the share of active pairs in its batch and in the last one before (of
    rank 0), and quantiles of its margins per negative. Weights & Biases also gets these as a
    histogram, and some queries with their hardest negative.
    """

    def __init__(self) -> None:
        self._is_new = False
        self._active_before = dict[str, float]()

    def refreshed(
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
        for line in summary_lines(negatives.manifest):
            log.info("%s", line)
        if module.last_step is not None:
            self._active_before = {
                "mining/active_before": float(active_share(module, module.last_step))
            }
        self._is_new = True
        for logger in trainer.loggers:
            logger.log_metrics(logged_numbers(negatives.manifest), trainer.global_step)
            if isinstance(logger, WandbLogger):
                shown = examples(negatives, collection, judged)
                margin = module.margin if isinstance(module.margin, FromDistance) else None
                rows = [
                    [*one, margin and round(margin.margin_at(torch.tensor(one[-1])).item(), 4)]
                    for one in shown
                ]
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

    def after_step(self, trainer: Trainer, module: RankerModule) -> None:
        """Report the first step after a refresh."""
        if not self._is_new or module.last_step is None:
            return
        self._is_new = False
        margins = _margins(module.last_step)
        told = self._active_before | {
            "mining/active_after": float(active_share(module, module.last_step))
        }
        if len(margins):
            low, median, high = margins.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
            told |= {
                "mining/margin_low": low,
                "mining/margin_median": median,
                "mining/margin_high": high,
            }
        for logger in trainer.loggers:
            logger.log_metrics(told, trainer.global_step)
            if isinstance(logger, WandbLogger) and len(margins):
                import wandb

                logger.experiment.log({"mining/margins": wandb.Histogram(margins.tolist())})


def _margins(seen: LastStep) -> Tensor:
    """The margins of the negatives of a step; none where they are not per negative."""
    if seen.margin is None or seen.margin.ndim != 2:
        return torch.empty(0)
    negative = seen.lists.mask & (seen.lists.labels == 0)
    return seen.margin.float().expand_as(negative)[negative].cpu()
