"""What the training of every ranker shares: loss and margin, measures, optimiser, seeds."""

import inspect
import logging
import math
import os
import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists
from ltr.errors import InputError
from ltr.losses import Loss
from ltr.margins import Margin
from ltr.metrics import RankedLists, RankingMetric
from ltr.modules.last_step import LastStep

log = logging.getLogger(__name__)

NUMBERS_LR = 1e-3  # at least, of parameters that are one number


class Scored(NamedTuple):
    """What the loss sees of a batch: rows of R queries (or anchors), columns of up to C documents.

    Attributes:
        scores: ``[R, C]``.
        labels: ``[R, C]`` float.
        mask: ``[R, C]`` bool.
        distances: ``[R, C]`` float, see :class:`ltr.batch.RankingBatch`, or None.
        embeddings: ``[R, C, H]`` float, of the documents (``[1, C, H]`` where all rows share them), or None.
        texts: ``[S, H]`` float, representations of the batch's texts to be watched, or None.
        gathered: whether these are the lists of all ranks, the same on each.
    """

    scores: Tensor
    labels: Tensor
    mask: Tensor
    distances: Tensor | None = None
    embeddings: Tensor | None = None
    texts: Tensor | None = None
    gathered: bool = False


class RankerModule(LightningModule):
    """Trains ``model(batch) -> scores [B, N]`` under a ranking loss, and measures it.

    AdamW (no decay on biases and norms) with a linear warm-up from 0 and a linear decay to 0; without a last step (``max_epochs:
    -1``, say) the rate stays at its peak. Parameters that are one number (a learnt temperature, a learnt margin's factor) have a
    peak of at least 1e-3: Adam moves a number by about the rate a step, and at an encoder's it would stay where it is.

    Dropout is drawn from (seed, epoch, step, rank), so a resumed run draws what the interrupted one would have drawn.

    Args:
        model: the ranker. One with ``gives_embeddings`` also answers ``represent(batch) -> (scores, embeddings [B, N, H])``, for
            margins that read them.
        loss: ``loss(scores, labels, mask, margin) -> scalar``.
        margin: a policy of :mod:`ltr.margins`; None leaves the margin to the loss.
        lr: peak learning rate.
        weight_decay: of AdamW.
        warmup: share of all steps, rounded up, during which the learning rate rises from 0.
        metrics: measures of :class:`ltr.metrics.RankingMetric`, logged as ``val/…`` and ``test/…``.
        empty: what a query with nothing to find counts.
        max_grade: the largest grade of the scale; only ERR uses it.
        decay: whether the learning rate falls to 0 towards the end; else it stays at its peak.

    Raises:
        InputError: for an unknown measure, a warmup that is no share, or a margin that the loss can't use, or that reads
            embeddings the model doesn't give.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        margin: Margin | None = None,
        lr: float = 2e-5,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        metrics: list[str] | None = None,
        empty: Literal["skip", "zero", "one"] = "skip",
        max_grade: float = 4.0,
        decay: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.margin = model, loss, margin
        self.last_step: LastStep | None = None
        self.check_margin(loss, margin)
        if not 0 <= warmup <= 1:
            raise InputError(f"warmup is a share of all steps, from 0 to 1, got {warmup} (option model.init_args.warmup)")
        self.lr, self.weight_decay, self.warmup, self.decay = lr, weight_decay, warmup, decay
        names = ["nDCG@10", "RR@10", "AP", "swapped_pairs"] if metrics is None else metrics
        self.metrics = nn.ModuleList(RankingMetric(name, empty, max_grade) for name in names)

    def check_margin(self, loss: Loss, margin: Margin | None) -> None:
        """Whether the loss can use the margin, and the model can give what the margin reads.

        Raises:
            InputError: if not.
        """
        if margin is None:
            return
        if not loss.takes_margin:
            raise InputError(f"{type(loss).__name__} has no margin, got {type(margin).__name__}; remove model.init_args.margin")
        if margin.wants_embeddings and not getattr(self.model, "gives_embeddings", False):
            raise InputError(
                f"{type(margin).__name__} needs a model that gives embeddings, got {type(self.model).__name__} without (a ready "
                "cross-encoder's own head hides them); take a backbone without a head, or another margin"
            )

    def setup(self, stage: str) -> None:
        precision = str(self.trainer.precision)
        if precision not in ("32-true", "16-mixed", "bf16-mixed"):
            raise InputError(
                f"trainer.precision must be 32-true, 16-mixed or bf16-mixed, got {precision}; scores and losses stay in float32"
            )

    def save_settings(self) -> None:
        """Call at the end of ``__init__``: keep its arguments in the checkpoint.

        Under the command line these are class paths, and ``load_from_checkpoint`` builds the module again. Built in Python, the
        modules among them are not kept: a checkpoint always loads with ``weights_only=True``; pass them again.
        """
        frame = inspect.currentframe().f_back
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is an instance of `nn.Module`.*")
            self.save_hyperparameters(frame=frame, logger=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        settings = checkpoint.get("hyper_parameters", {})
        checkpoint["hyper_parameters"] = {k: v for k, v in settings.items() if not isinstance(v, nn.Module)}

    def forward(self, batch: RankingBatch) -> Tensor:
        """Scores ``[B, N]``."""
        return self.model(batch)

    # Training

    def on_train_batch_start(self, batch: RankingBatch, batch_idx: int) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        state = np.random.SeedSequence([seed, self.current_epoch, batch_idx, self.global_rank])
        torch.manual_seed(int(state.generate_state(1, np.uint64)[0] >> 1))

    @property
    def wants_embeddings(self) -> bool:
        """Whether the margin reads them."""
        return self.margin is not None and self.margin.wants_embeddings

    def scored(self, batch: RankingBatch) -> Scored:
        """The lists of a training batch with their scores."""
        scores, embeddings = self.model.represent(batch) if self.wants_embeddings else (self.model(batch), None)
        texts = None if embeddings is None else embeddings[batch.mask]
        return Scored(scores, batch.labels, batch.mask, batch.distances, embeddings, texts)

    def training_step(self, batch: RankingBatch, batch_idx: int) -> Tensor:
        scores, labels, mask, distances, embeddings, texts, gathered = self.scored(batch)
        margin = None
        if self.margin is not None:
            margin = self.margin(ScoredLists(scores, labels, mask, distances, embeddings, gathered))
        loss = self.loss(scores, labels, mask, margin)
        seen = (scores, labels, mask, margin, texts, loss)
        self.last_step = LastStep(*(x.detach() if isinstance(x, Tensor) else x for x in seen))
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.labels))
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        learnt = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in learnt if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in learnt if p.ndim == 1], "weight_decay": 0.0},
            {"params": [p for p in learnt if p.ndim == 0], "weight_decay": 0.0, "lr": max(self.lr, NUMBERS_LR)},
        ]
        # Lightning can't clip gradients that a fused optimiser would unscale.
        clips_scaled = self.trainer.gradient_clip_val is not None and self.trainer.precision != "32-true"
        fused = (self.device.type == "cpu" and not clips_scaled) or None
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=self.lr, fused=fused)
        total = self.trainer.estimated_stepping_batches
        if not math.isfinite(total):
            log.warning(
                "the training has no last step, so there is neither warm-up nor decay: the learning rate stays at %g; set "
                "trainer.max_steps or trainer.max_epochs for both",
                self.lr,
            )
        # The last step is not one of them: a run of a single step would learn nothing.
        rising = min(math.ceil(self.warmup * total), total - 1) if math.isfinite(total) else 0

        # From 0 on, as in transformers: Adam's first update is as large as the rate lets it be, whatever the gradient says; so
        # the first batch is for the estimates of its moments alone.
        def factor(step: int) -> float:
            if step < rising:
                return step / rising
            if not math.isfinite(total) or not self.decay:  # without an end there is nothing to decay to
                return 1.0
            return max(0.0, (total - step) / max(1, total - rising))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # Measuring

    def validation_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        return self._measure(batch)

    def test_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        return self._measure(batch)

    def predict_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        scores, batch = self.ranked(batch)
        return _listed(scores, batch)

    def ranked(self, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
        """The scores of the lists to be measured, ``[B, N]``, and these lists: those of the batch."""
        return self.model(batch), batch

    def _measure(self, batch: RankingBatch) -> dict[str, Any]:
        """Count the batch; return its scores, lists and per-query values for whoever writes them."""
        scores, batch = self.ranked(batch)
        lists = RankedLists(scores, batch.labels, batch.mask, batch.doc_rows, batch.ideal)
        values = {metric.measure: metric.per_query(lists) for metric in self.metrics}
        for metric in self.metrics:
            metric.update(lists)
        return _listed(scores, batch) | {"per_query": values}

    def on_validation_epoch_end(self) -> None:
        self._log_measures("val")

    def on_test_epoch_end(self) -> None:
        self._log_measures("test")

    def _log_measures(self, stage: str) -> None:
        for metric in self.metrics:
            # Already the same on every rank: compute() has added up their queries.
            self.log(
                f"{stage}/{metric.measure}", metric.compute().float(), prog_bar=metric is self.metrics[0], rank_zero_only=False
            )
            metric.reset()


def _listed(scores: Tensor, batch: RankingBatch) -> dict[str, Any]:
    return {"scores": scores, "query_rows": batch.query_rows, "doc_rows": batch.doc_rows, "mask": batch.mask}
