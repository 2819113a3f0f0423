"""The LightningModule of every ranker: the ranker with its loss, margin policy, optimiser and
metrics.
"""

import logging
import math
import os
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists
from ltr.data.formats import JoinedPairs, PairsAndTexts, Reads
from ltr.data.query_lists import QueryLists
from ltr.datamodules import RankingDataModule
from ltr.errors import InputError, not_negative
from ltr.in_batch import AllTexts, InBatch, OwnLists
from ltr.losses import Loss
from ltr.margins import Margin
from ltr.metrics import RankedLists, RankingMetric
from ltr.models import DualEncoder, Ranker
from ltr.models.ranker import check_trained
from ltr.optimiser import adamw, rate_factor
from ltr.search.evaluation import found_batch, search_corpus

log = logging.getLogger(__name__)

METRICS = ("nDCG@10", "RR@10", "AP", "swapped_pairs")  # where none are named


class LastStep(NamedTuple):
    """What a training step computed, for callbacks that watch a run. All detached, and kept only
    until the next step.

    Attributes:
        lists: as the loss saw them.
        margin: as the margin policy gave it, in units of score; None where there is no policy.
        loss: a scalar.
    """

    lists: ScoredLists
    margin: Tensor | None
    loss: Tensor


class RankerModule(LightningModule):
    """Trains a ranker under a ranking loss, and measures it.

    AdamW has no decay on biases and norms. The learning rate rises linearly from 0 and falls
    linearly to 0. A run without a last step (``max_epochs: -1``, for example) keeps the peak rate.
    Parameters that are one number (a learnt temperature, the factor of a learnt margin) have a peak
    rate of at least 1e-3: Adam moves a number by about the rate in each step, so at an encoder's
    rate it would hardly move.

    Dropout is drawn from (seed, epoch, step, rank), so a resumed run draws what the interrupted run
    would have drawn.

    Args:
        ranker: The model that scores documents, one of :mod:`ltr.models`.
        loss: One of :mod:`ltr.losses`.
        margin: A margin policy of :mod:`ltr.margins`. None leaves the margin to the loss.
        in_batch: What each row is ranked against, a policy of :mod:`ltr.in_batch`. None: the row's
            own list.
        miner: A dual encoder that is trained beside a cross-encoder, by the same loss on the same
            lists, without the margin policy: :class:`ltr.callbacks.HardNegativeMining` then
            searches with it.
        lr: Peak learning rate. None takes the ranker's usual one: 2e-5 for encoders, 1e-3 for
            feature rankers.
        weight_decay: Weight decay of AdamW.
        warmup: Share of all steps, rounded up, in which the learning rate rises.
        decay: Whether the learning rate falls to 0 towards the end. Otherwise it stays at its peak.
        metrics: Names such as ``nDCG@10``, see :class:`ltr.metrics.RankingMetric`; logged as
            ``val/…`` and ``test/…``. None: nDCG@10, RR@10, AP and swapped_pairs.
        empty: How a query without a relevant document counts: left out (``skip``), 0 (``zero``) or
            1 (``one``).
        max_grade: The largest grade of the scale; only ERR uses it.

    Attributes:
        last_step: what the last training step computed; None before the first.

    Raises:
        InputError: for an unknown metric, an option out of its bounds, or parts that don't fit each
            other.
    """

    def __init__(
        self,
        ranker: Ranker,
        loss: Loss,
        margin: Margin | None = None,
        in_batch: InBatch | None = None,
        miner: DualEncoder | None = None,
        lr: float | None = None,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        decay: bool = True,
        metrics: list[str] | None = None,
        empty: Literal["skip", "zero", "one"] = "skip",
        max_grade: float = 4.0,
    ) -> None:
        super().__init__()
        self.ranker = ranker
        self.loss = loss
        self.margin = margin
        self.in_batch = OwnLists() if in_batch is None else in_batch
        self.in_batch.attach(ranker)
        self.check_margin(loss, margin)
        self.miner = miner
        if miner is not None and not isinstance(ranker.reads, JoinedPairs):
            text = f"a miner is trained beside a cross-encoder, got {type(ranker).__name__}; leave the miner out"
            raise InputError(text, option="miner")
        if not 0 <= warmup <= 1:
            raise InputError(
                f"warmup is a share of all steps and must be from 0 to 1, got {warmup}",
                option="warmup",
            )
        self.lr = ranker.usual_lr if lr is None else not_negative("lr", lr)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.warmup = warmup
        self.decay = decay
        names = METRICS if metrics is None else metrics
        self.metrics = nn.ModuleList(RankingMetric(name, empty, max_grade) for name in names)
        self.last_step: LastStep | None = None
        self._asked: list[
            tuple[float, float]
        ] = []  # learning rate and weight decay of each group of parameters
        self._found: QueryLists | None = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is an instance of `nn.Module`.*")
            self.save_hyperparameters(logger=False)
            built = [name for name, value in self.hparams.items() if isinstance(value, nn.Module)]
            self.save_hyperparameters(
                logger=False, ignore=built
            )  # or Lightning would hold a copy of each

    def check_margin(self, loss: Loss, margin: Margin | None) -> None:
        """Raise an InputError where the loss can't use the margin, or the margin can't be computed."""
        if margin is None:
            return
        name = type(margin).__name__
        if not loss.takes_margin:
            raise InputError(
                f"{type(loss).__name__} has no margin, got {name}; remove the margin",
                option="margin",
            )
        if margin.wants_embeddings and not self.ranker.gives_embeddings:
            came = "the own head of a ready cross-encoder hides them; take a backbone without a head, or another margin"
            raise InputError(
                f"{name} needs a ranker that gives embeddings, and {came}", option="margin"
            )
        if margin.wants_queries or margin.encoder is not None:
            if not isinstance(self.ranker, DualEncoder):
                apart = "queries and documents that are read apart, by a DualEncoder"
                got = type(self.ranker).__name__
                raise InputError(
                    f"{name} needs {apart}, got {got}; take another margin", option="margin"
                )
            if margin.encoder is not None:
                self.in_batch.load(margin.encoder, self.ranker, "margin")

    @property
    def reads(self) -> Reads:
        """How the data must lay out a batch."""
        if self.miner is None:
            return self.ranker.reads
        assert isinstance(self.ranker.reads, JoinedPairs), "the constructor checks it"
        return PairsAndTexts(self.ranker.reads, self.miner.reads)

    @property
    def searcher(self) -> DualEncoder | None:
        """The dual encoder that is trained: the ranker, or the miner beside it."""
        return self.ranker if isinstance(self.ranker, DualEncoder) else self.miner

    @property
    def measures(self) -> list[RankingMetric]:
        """The metrics, in order."""
        return [metric for metric in self.metrics if isinstance(metric, RankingMetric)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Under the command line these are class paths, and ``load_from_checkpoint`` rebuilds the
        # module. Modules that were built in Python are left out, so a checkpoint loads with
        # ``weights_only=True``; pass them again.
        given = checkpoint.get("hyper_parameters", {})
        checkpoint["hyper_parameters"] = {
            k: v for k, v in given.items() if not isinstance(v, nn.Module)
        }

    def forward(self, batch: RankingBatch) -> Tensor:
        """Scores ``[B, N]``."""
        return self.ranker(batch)

    # Before anything runs

    def _check_teaching(self) -> None:
        """Labels are scores: refuse a loss that would take them for grades, and documents of other
        queries.
        """
        if not self.loss.takes_teacher_scores:
            raise InputError(
                f"{type(self.loss).__name__} takes grades as labels, and they are scores",
                option="loss",
            )
        if type(self.in_batch) is not OwnLists:
            raise InputError(
                "a teacher has scored no documents of other queries; leave out in_batch",
                option="in_batch",
            )

    def setup(self, stage: str) -> None:
        precision = str(self.trainer.precision)
        if precision not in ("32-true", "16-mixed", "bf16-mixed"):
            text = f"precision must be 32-true, 16-mixed or bf16-mixed, got {precision}; scores and losses stay in float32"
            raise InputError(text, option="trainer.precision")
        data = data_of(self.trainer)
        if data is None:
            return
        if stage == "fit" and data.needs_in_batch and not self.in_batch.ranks_groups:
            rule = "hold relevant documents only, so they must be ranked against each other"
            hint = "set in_batch to ltr.in_batch.OtherQueries or ltr.in_batch.AllTexts"
            raise InputError(
                f"the groups of {type(data).__name__} {rule}; {hint}", option="in_batch"
            )
        if stage == "fit" and data.teaches:
            self._check_teaching()
        policies = (
            []
            if self.margin is None
            else [part for part in self.margin.modules() if isinstance(part, Margin)]
        )
        has_distances = data.has_distances or isinstance(
            self.ranker, DualEncoder
        )  # which gives those of its embeddings
        if (
            stage == "fit"
            and not has_distances
            and any(policy.wants_distances for policy in policies)
        ):
            text = "the margin needs the distances of mined negatives, and the lists here have none"
            raise InputError(
                f"{text}; set negatives to a folder of mined ones, or take another margin",
                option="margin",
            )
        if stage == "fit" and data.has_soft_labels:
            self._check_soft_labels()
        if data.corpus is not None and isinstance(self.ranker, DualEncoder):
            data.corpus.check(
                self.ranker.dim, {metric.measure: metric.formula.k for metric in self.measures}
            )

    def _check_soft_labels(self) -> None:
        """Refuse a loss, or a policy, that takes any label above 0 for relevant."""
        if isinstance(self.in_batch, AllTexts) or not self.loss.tells_grades:
            name = type(self.in_batch if self.loss.tells_grades else self.loss).__name__
            hint = "take a loss of grades, as RankNetLoss, and no AllTexts; or audit with --policy drop"
            raise InputError(
                f"{name} takes every label above 0 for relevant, so also the soft ones of the audit; {hint}"
            )

    # Training

    def on_train_start(self) -> None:
        """A resumed run takes the rates, the weight decay and the length of this configuration, not
        those in the checkpoint.
        """
        if not self._asked:  # a child class has an optimiser of its own
            return
        (optimizer,), (scheduler,) = (
            self.trainer.optimizers,
            (config.scheduler for config in self.trainer.lr_scheduler_configs),
        )
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        for number, (group, (lr, weight_decay)) in enumerate(
            zip(optimizer.param_groups, self._asked, strict=True)
        ):
            if (group["initial_lr"], group["weight_decay"]) != (lr, weight_decay) and number == 0:
                was = f"lr {group['initial_lr']:g} and weight decay {group['weight_decay']:g}"
                log.info(
                    "the checkpoint was trained with %s; from here on lr %g and weight decay %g",
                    was,
                    lr,
                    weight_decay,
                )
            factor = scheduler.lr_lambdas[number](scheduler.last_epoch)
            group.update(initial_lr=lr, weight_decay=weight_decay, lr=lr * factor)
        scheduler.base_lrs = [lr for lr, _ in self._asked]

    def on_train_batch_start(self, batch: RankingBatch, batch_idx: int) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        state = np.random.SeedSequence([seed, self.current_epoch, batch_idx, self.global_rank])
        torch.manual_seed(int(state.generate_state(1, np.uint64)[0] >> 1))

    def training_step(self, batch: RankingBatch, batch_idx: int) -> Tensor:
        lists = self.in_batch(self.ranker, batch, self.margin)
        margin = None if self.margin is None else self.margin(lists)
        loss = self.loss(lists.scores, lists.labels, lists.mask, margin)
        seen = {name: x.detach() for name, x in lists._asdict().items() if isinstance(x, Tensor)}
        self.last_step = LastStep(
            lists._replace(**seen), None if margin is None else margin.detach(), loss.detach()
        )
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.labels))
        if (padding := self.ranker.padding_share(batch)) is not None:
            self.log("train/padding", padding, batch_size=len(batch.labels))
        if self.miner is None:
            return loss
        own = OwnLists()(self.miner, batch)
        beside = self.loss(own.scores, own.labels, own.mask)
        self.log("train/miner_loss", beside, batch_size=len(batch.labels))
        return loss + beside

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # Lightning can't clip gradients that a fused optimiser would unscale.
        clips_scaled = (
            self.trainer.gradient_clip_val is not None and self.trainer.precision != "32-true"
        )
        fused = (self.device.type == "cpu" and not clips_scaled) or None
        optimizer = adamw(self.parameters(), self.lr, self.weight_decay, fused)
        self._asked = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
        total = self.trainer.estimated_stepping_batches
        if not math.isfinite(total):
            log.warning(
                "the training has no last step, so there is neither warm-up nor decay and the learning rate stays at %g; for "
                "both, set trainer.max_steps or trainer.max_epochs",
                self.lr,
            )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, rate_factor(total, self.warmup, self.decay)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_train_end(self) -> None:
        """See :func:`ltr.models.ranker.check_trained`: perhaps no validation has told."""
        check_trained(self)

    # Measuring

    def on_validation_start(self) -> None:
        self._search_corpus("dev")

    def on_test_start(self) -> None:
        self._search_corpus("test")

    on_predict_start = on_test_start

    def _search_corpus(self, split: str) -> None:
        """Search the corpus for the queries of this rank, where the data asks for it."""
        self._found = None
        data = data_of(self.trainer)
        if (
            data is None
            or data.corpus is None
            or (self.trainer.sanity_checking and not measures_start(self.trainer))
        ):
            return
        assert isinstance(self.ranker, DualEncoder), (
            "only texts that are read apart can be searched"
        )
        self._found = search_corpus(
            self.ranker,
            data.corpus,
            data.query_rows_of_rank(split),
            Path(self.trainer.default_root_dir),
            trial=is_trial(self.trainer),
            precision=self.trainer.precision_plugin.forward_context(),
        )

    def ranked(self, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
        """The lists to be measured with their scores ``[B, N]``: those of the batch, or those found
        in the corpus.
        """
        if self._found is None:
            return self.ranker(batch), batch
        return found_batch(self._found, batch)

    def validation_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        """Count the batch. Returns its scores, lists and per-query values for callbacks that write
        them.
        """
        scores, batch = self.ranked(batch)
        lists = RankedLists(scores, batch.labels, batch.mask, batch.doc_rows, batch.ideal)
        values = {metric.measure: metric.per_query(lists) for metric in self.measures}
        for metric in self.measures:
            metric.update(lists)
        return _outputs(scores, batch) | {"per_query": values}

    def test_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        scores, batch = self.ranked(batch)
        RankedLists(scores, batch.labels, batch.mask)  # which checks them
        return _outputs(scores, batch)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def _log_metrics(self, stage: str) -> None:
        for number, metric in enumerate(self.measures):
            # compute() adds up the queries of all ranks, so the value is the same on each.
            value = metric.compute().float()
            self.log(f"{stage}/{metric.measure}", value, prog_bar=number == 0, rank_zero_only=False)
            metric.reset()


def data_of(trainer: Trainer) -> RankingDataModule | None:
    """The data module of a run, or None where the trainer was given plain loaders."""
    data = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without declaring it
    return data if isinstance(data, RankingDataModule) else None


def measures_start(trainer: Trainer) -> bool:
    """Whether a fit first measures what it starts from: a sanity check of all that is validated."""
    return trainer.num_sanity_val_steps == math.inf


def is_trial(trainer: Trainer) -> bool:
    """Whether the results of a run mean nothing: it only tries whether everything works
    (``trainer.fast_dev_run``).
    """
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # Lightning sets it without declaring it


def _outputs(scores: Tensor, batch: RankingBatch) -> dict[str, Any]:
    return {
        "scores": scores,
        "query_rows": batch.query_rows,
        "doc_rows": batch.doc_rows,
        "mask": batch.mask,
    }
