"""The LightningModule of every ranker: the ranker with its loss, margin policy, optimiser and
metrics.
"""

import logging
import math
import os
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists
from ltr.compatibility import (
    check_data,
    check_margin,
    check_options,
    check_part,
    warn_of_nothing_to_find,
)
from ltr.data.layouts import JoinedPairs, PairsAndTexts, Reads
from ltr.data.query_lists import QueryLists
from ltr.datamodules import RankingDataModule
from ltr.draws import keys_of_lists, seed_of_step
from ltr.errors import InputError, not_negative, one_of
from ltr.in_batch import InBatch, OwnLists
from ltr.losses import Loss
from ltr.losses.transform import Transform, transformed
from ltr.margins import Margin
from ltr.metrics import MeasuredLists, RankingMetric
from ltr.models import DualEncoder, Ranker
from ltr.models.ranker import check_finite
from ltr.optimiser import MIN_LR_OF_NUMBERS, adamw, rate_factor
from ltr.processes import rank, world_size
from ltr.search.corpus_search import batch_of_found, search_corpora
from ltr.search.encoding_places import EncodingsOfRun
from ltr.source_metrics import SourceMetrics
from ltr.trainer_state import data_of, is_trial, place_of_encodings, validates_before_training

log = logging.getLogger(__name__)

# Of the learnt temperatures, by their names in logs: what they are called there in words.
TEMPERATURES = {"temperature": "temperature", "miner_temperature": "miner's temperature"}
METRICS = ("nDCG@10", "RR@10", "AP", "swapped_pairs")  # where the option names none


class Rates(NamedTuple):
    """The peak learning rate and the weight decay of a group of parameters."""

    lr: float
    weight_decay: float


class LastStep(NamedTuple):
    """What a training step computed, for callbacks that watch a run. All detached, and kept only
    until the next step.

    Attributes:
        lists: as the loss saw them, so with the transformed scores.
        margin: as the margin policy gave it: computed of the scores as they are, and asked of the
            transformed ones; None where there is no policy.
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

    Dropout is drawn from (seed, epoch, step) and the place of a list in the step's batch. So a
    resumed run draws what the interrupted run would have drawn, with any number of processes.

    Args:
        ranker: The model that scores documents, one of :mod:`ltr.models`.
        loss: One of :mod:`ltr.losses`.
        margin: A margin policy of :mod:`ltr.margins`. None leaves the margin to the loss.
        in_batch: What each row is ranked against, a policy of :mod:`ltr.in_batch`. None: the row's
            own list.
        miner: A dual encoder that is trained beside a cross-encoder, by the same loss on the same
            lists, without the margin policy: :class:`ltr.callbacks.HardNegativeMining` then
            searches with it.
        transform: What the loss sees in the place of the scores: their ``softmax`` over each list,
            documents of other queries included, their ``sigmoid``, or ``none``, the scores as they
            are. Margins are then in units of probability. What is ranked and measured stays the
            scores. See :func:`ltr.losses.transform.transformed`.
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

    Example:
        >>> from ltr.datamodules import FeatureDataModule
        >>> from ltr.losses import RankNetLoss
        >>> from ltr.models import FeatureRanker
        >>> from ltr.run.trainer import RankerTrainer
        >>> module = RankerModule(FeatureRanker(n_features=100), RankNetLoss())
        >>> trainer = RankerTrainer(max_epochs=2, accelerator="cpu")
        >>> trainer.fit(module, FeatureDataModule("synthetic"))
        >>> trainer.global_step
        2
    """

    def __init__(
        self,
        ranker: Ranker,
        loss: Loss,
        margin: Margin | None = None,
        in_batch: InBatch | None = None,
        miner: DualEncoder | None = None,
        transform: Transform = "none",
        lr: float | None = None,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        decay: bool = True,
        metrics: list[str] | None = None,
        empty: Literal["skip", "zero", "one"] = "skip",
        max_grade: float = 4.0,
    ) -> None:
        super().__init__()
        check_part("ranker", ranker, Ranker, "ltr.models.DualEncoder(…)")
        check_part("loss", loss, Loss, "ltr.losses.SoftmaxLoss()")
        if margin is not None:
            check_part("margin", margin, Margin, "ltr.margins.Constant(1.0)")
        if in_batch is not None:
            check_part("in_batch", in_batch, InBatch, "ltr.in_batch.OtherQueries()")
        if miner is not None:
            check_part("miner", miner, DualEncoder, "ltr.models.DualEncoder(…)")
        self.ranker = ranker
        self.loss = loss
        self.margin = margin
        self.in_batch = OwnLists() if in_batch is None else in_batch
        self.in_batch.attach(ranker)
        self.attach_margin(loss, margin)
        self.miner = miner
        one_of(get_args(Transform), transform=transform)
        self.transform: Transform = transform
        if miner is not None and not isinstance(ranker.reads, JoinedPairs):
            raise InputError(
                f"a miner is trained beside a cross-encoder, got {type(ranker).__name__}; leave the miner out",
                option="miner",
            )
        if not 0 <= warmup <= 1:
            raise InputError(
                f"warmup is a share of all steps and must be from 0 to 1, got {warmup}",
                option="warmup",
            )
        self.lr = ranker.usual_lr if lr is None else not_negative("lr", lr)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.warmup = warmup
        self.decay = decay
        metric_names = METRICS if metrics is None else metrics
        if isinstance(metric_names, str):
            raise InputError(
                f"metrics must be a list of names, got {metric_names!r}; write [{metric_names!r}]",
                option="metrics",
            )
        for name in metric_names:
            if metric_names.count(name) > 1:
                raise InputError(
                    f"metrics must each be named once, got {name} {metric_names.count(name)} times",
                    option="metrics",
                )
        self.metrics = nn.ModuleList(RankingMetric(name, empty, max_grade) for name in metric_names)
        # Without sources until setup, which knows those of the data.
        self.source_metrics = SourceMetrics(self.ranking_metrics)
        self._has_validated = False
        self.last_step: LastStep | None = None
        # Of the first epoch: lists with a gradient, and all; None once it is over.
        self._lists_taught: tuple[int | Tensor, int] | None = None
        # Of each group of parameters, as this configuration has them.
        self._configured_rates: list[Rates] = []
        # The documents that the search of the corpus found for the queries of this rank.
        self._search_results: QueryLists | None = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is an instance of `nn.Module`.*")
            self.save_hyperparameters(logger=False)
            # Called twice: the first call says which arguments are modules, and the second leaves
            # these out, since Lightning would hold a copy of each.
            modules = [name for name, value in self.hparams.items() if isinstance(value, nn.Module)]
            self.save_hyperparameters(logger=False, ignore=modules)

    def attach_margin(self, loss: Loss, margin: Margin | None) -> None:
        """Check that the loss and the ranker fit a margin, and let ``in_batch`` load the margin's
        frozen encoder, if it has one.

        Raises:
            InputError: if the loss can't use the margin, or the margin can't be computed.
        """
        if margin is None:
            return
        check_margin(loss, margin, self.ranker)
        if margin.encoder is not None:
            assert isinstance(self.ranker, DualEncoder), "check_margin refuses other rankers"
            self.in_batch.load_frozen(margin.encoder, self.ranker, "margin")

    @property
    def reads(self) -> Reads:
        """How the data must lay out a batch."""
        if self.miner is None:
            return self.ranker.reads
        assert isinstance(self.ranker.reads, JoinedPairs), "the constructor checks it"
        return PairsAndTexts(self.ranker.reads, self.miner.reads)

    @property
    def learns_from_one_document(self) -> bool:
        """Whether a list of one document teaches the loss, by itself or beside other lists."""
        return self.loss.learns_from_one_document or self.in_batch.joins_lists

    @property
    def searcher(self) -> DualEncoder | None:
        """The dual encoder that is trained: the ranker, or the miner beside it."""
        return self.ranker if isinstance(self.ranker, DualEncoder) else self.miner

    @property
    def ranking_metrics(self) -> list[RankingMetric]:
        """All of ``metrics``, in order, as what they are: to a type checker a ``ModuleList`` holds
        modules.
        """
        return [metric for metric in self.metrics if isinstance(metric, RankingMetric)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Under the command line the hyper-parameters name class paths, and ``load_from_checkpoint``
        # rebuilds the module. Modules that were built in Python are left out, so a checkpoint loads
        # with ``weights_only=True``; pass them again.
        saved = {}
        for name, value in checkpoint.get("hyper_parameters", {}).items():
            if not isinstance(value, nn.Module):
                saved[name] = value
        checkpoint["hyper_parameters"] = saved

    def forward(self, batch: RankingBatch) -> Tensor:
        """Scores ``[B, N]``."""
        return self.ranker(batch)

    # Before anything runs

    def check_options(self, data: RankingDataModule) -> None:
        """Raise an InputError for data that the module can't be trained on, by what options tell."""
        if data.is_fitting:
            check_options(self.ranker, self.loss, self.margin, self.in_batch, self.transform, data)

    def check_data(self, data: RankingDataModule) -> None:
        """Raise an InputError for data that the module can't be trained on or measured on, by what
        the data and its training lists tell. ``setup`` also warns.
        """
        if data.is_fitting:
            check_data(
                self.ranker,
                self.loss,
                self.margin,
                self.in_batch,
                self.transform,
                data,
                quiet=True,
            )
        if isinstance(self.ranker, DualEncoder):
            data.check_search(self.ranker.dim, self._cutoffs)

    @property
    def _cutoffs(self) -> dict[str, int | None]:
        """For each metric, by name, how many documents it looks at; None: all."""
        return {metric.name: metric.measure.k for metric in self.ranking_metrics}

    def setup(self, stage: str) -> None:
        self._check_precision()
        data = data_of(self.trainer)
        if data is None:
            self.source_metrics = SourceMetrics(self.ranking_metrics)
            return
        if stage == "fit":
            check_data(self.ranker, self.loss, self.margin, self.in_batch, self.transform, data)
        self.source_metrics = SourceMetrics(self.ranking_metrics, data.source_names)
        if isinstance(self.ranker, DualEncoder):
            for corpus in data.corpora:
                corpus.check(self.ranker.dim, self._cutoffs)

    def _check_precision(self) -> None:
        precision = str(self.trainer.precision)
        if precision not in ("32-true", "16-mixed", "bf16-mixed"):
            raise InputError(
                f"precision must be 32-true, 16-mixed or bf16-mixed, got {precision}; scores and losses stay in float32",
                option="trainer.precision",
            )

    # Training

    def on_fit_start(self) -> None:
        if self.trainer.ckpt_path:  # the weights of a checkpoint are not those from before training
            self.trainer.num_sanity_val_steps = 0

    def on_train_start(self) -> None:
        """A resumed run takes the rates and the weight decay of this configuration, not those in
        the checkpoint. Its length is that of this configuration too: the functions in
        ``lr_lambdas`` know it, and no checkpoint holds functions.
        """
        if self.trainer.global_step == 0:  # a resumed run has not seen its first epoch whole
            self._lists_taught = (0, 0)
        for name, temperature in self._learnt_temperatures().items():
            log.info(
                "the %s is learnt, from %.4g on, with a peak rate of %g",
                TEMPERATURES[name],
                temperature,
                max(self.lr, MIN_LR_OF_NUMBERS),
            )
        if not self._configured_rates:
            # A child class has overridden configure_optimizers.
            return
        (optimizer,) = self.trainer.optimizers
        (scheduler_config,) = self.trainer.lr_scheduler_configs
        scheduler = scheduler_config.scheduler
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)

        # One line in the log, about the first group, is enough.
        first_group = optimizer.param_groups[0]
        restored = Rates(first_group["initial_lr"], first_group["weight_decay"])
        configured = self._configured_rates[0]
        if restored != configured:
            log.info(
                "the checkpoint was trained with lr %g and weight decay %g; from here on lr %g and weight decay %g",
                *restored,
                *configured,
            )
        groups = zip(
            optimizer.param_groups, self._configured_rates, scheduler.lr_lambdas, strict=True
        )
        for group, rates, lr_factor in groups:
            group["initial_lr"] = rates.lr
            group["weight_decay"] = rates.weight_decay
            # ``last_epoch`` counts steps here.
            group["lr"] = rates.lr * lr_factor(scheduler.last_epoch)
        scheduler.base_lrs = [rates.lr for rates in self._configured_rates]

    def on_train_batch_start(self, batch: RankingBatch, batch_idx: int) -> None:
        """Seed whatever parts of the user's own draw in this step, the same in every process; from
        seed 0 where ``seed_everything`` was not called.
        """
        torch.manual_seed(seed_of_step(_seed(), self.current_epoch, batch_idx))

    def training_step(self, batch: RankingBatch, batch_idx: int) -> Tensor:
        # The processes deal out the lists of a step: this one has every W-th, from its rank on.
        n_lists = len(batch.labels)
        end = rank() + world_size() * n_lists
        places = torch.arange(rank(), end, world_size(), device=batch.labels.device)
        seed = seed_of_step(_seed(), self.current_epoch, batch_idx)
        batch = batch.with_keys(keys_of_lists(seed, places))
        lists = self.in_batch(self.ranker, batch, self.margin)
        margin = None
        if self.margin is not None:
            margin = self.margin(lists)
        if self._lists_taught is not None and lists.scores.requires_grad:
            lists.scores.register_hook(self._count_taught)
        lists = self._as_the_loss_sees(lists)
        loss = self.loss(lists.scores, lists.labels, lists.mask, margin)
        self.last_step = LastStep(
            lists=lists.detached(),
            margin=None if margin is None else margin.detach(),
            loss=loss.detach(),
        )
        # What a bar shows Lightning reads in each step, which would wait for a GPU.
        on_cpu = loss.device.type == "cpu"
        self.log("train/loss", loss, prog_bar=on_cpu, batch_size=n_lists)
        for name, temperature in self._learnt_temperatures().items():
            self.log(f"train/{name}", temperature, batch_size=n_lists)
        padding = self.ranker.padding_share(batch)
        if padding is not None:
            self.log("train/padding", padding, batch_size=n_lists)
        if self.miner is None:
            return loss
        # A cross-encoder has no policy of longer lists, so neither has the miner.
        miner_lists = self._as_the_loss_sees(self.in_batch(self.miner, batch))
        miner_loss = self.loss(miner_lists.scores, miner_lists.labels, miner_lists.mask)
        self.log("train/miner_loss", miner_loss, batch_size=n_lists)
        return loss + miner_loss

    def _learnt_temperatures(self) -> dict[str, Tensor]:
        """The temperatures that are learnt, by their names in logs."""
        temperatures: dict[str, Tensor] = {}
        for name, ranker in (("temperature", self.ranker), ("miner_temperature", self.miner)):
            if ranker is not None and ranker.log_temperature is not None:
                temperatures[name] = torch.as_tensor(ranker.temperature).detach()
        return temperatures

    def _as_the_loss_sees(self, lists: ScoredLists) -> ScoredLists:
        """The lists, their scores transformed."""
        return lists._replace(scores=transformed(lists.scores, lists.mask, self.transform))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # Torch would not choose the fused AdamW, so it is asked for; but not where gradients are
        # clipped under mixed precision, which Lightning refuses with it, and not where they are
        # scaled: it undoes that in its step, behind those who watch gradients.
        clips = self.trainer.gradient_clip_val is not None
        clips_scaled = clips and self.trainer.precision != "32-true"
        is_scaled = self.trainer.precision == "16-mixed"
        fused = None  # the choice of torch
        if self.device.type in ("cpu", "cuda") and not clips_scaled and not is_scaled:
            fused = True
        optimizer = adamw(self.parameters(), self.lr, self.weight_decay, fused)
        self._configured_rates = [
            Rates(group["lr"], group["weight_decay"]) for group in optimizer.param_groups
        ]
        total = self.trainer.estimated_stepping_batches
        if not math.isfinite(total):
            log.warning(
                "the training has no last step, so there is neither warm-up nor decay and the learning rate stays at %g; for both, set trainer.max_steps or trainer.max_epochs",
                self.lr,
            )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, rate_factor(total, self.warmup, self.decay)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _count_taught(self, gradient: Tensor) -> None:
        """Count the lists whose scores have a gradient ``[R, C]``."""
        if self._lists_taught is not None:
            n_taught, n_lists = self._lists_taught
            n_taught = n_taught + (gradient != 0).any(dim=1).sum()
            self._lists_taught = (n_taught, n_lists + len(gradient))

    def on_train_epoch_end(self) -> None:
        """Say after the first epoch where the loss has learnt nothing from most lists."""
        if self._lists_taught is None:
            return
        n_taught, n_lists = self._lists_taught
        self._lists_taught = None
        n_untaught = n_lists - int(n_taught)
        if 2 * n_untaught > n_lists:
            log.warning(
                "in the first epoch %d of %d lists gave %s no gradient, so nothing was learnt from them: they are in order already, or have nothing to be told apart",
                n_untaught,
                n_lists,
                type(self.loss.current).__name__,
            )

    def on_train_end(self) -> None:
        """Refuse weights that have diverged; a run without validation has not noticed it yet."""
        check_finite(self)
        for name, temperature in self._learnt_temperatures().items():
            log.info("the %s ends at %.4g", TEMPERATURES[name], temperature)

    def teardown(self, stage: str) -> None:
        """Remove the embeddings of weights that have passed. An interrupted run, which resumes, keeps
        them: Lightning does not call this for one.
        """
        if stage == "fit" and self.trainer.is_global_zero:
            EncodingsOfRun(Path(self.trainer.default_root_dir), "evaluation").remove_all()

    # Measuring

    def on_validation_start(self) -> None:
        if not self._has_validated:
            self._has_validated = True
            warn_of_nothing_to_find(data_of(self.trainer), self.ranking_metrics, "dev")

    def on_validation_epoch_start(self) -> None:
        # Not in on_validation_start: averaged weights are put in place between the two.
        self._search_corpus("dev")

    def on_test_start(self) -> None:
        warn_of_nothing_to_find(data_of(self.trainer), self.ranking_metrics, "test")
        self._search_corpus("test")

    def on_predict_start(self) -> None:
        self._search_corpus("test")  # what is predicted is the split that a test measures

    def _search_corpus(self, split: str) -> None:
        """Search the corpus for the queries of this rank, where the data asks for it."""
        self._search_results = None
        data = data_of(self.trainer)
        if data is None or not data.corpora:
            return
        # A sanity check of a few batches tries the loop, and needs no search. One of all batches is a
        # validation.
        if self.trainer.sanity_checking and not validates_before_training(self.trainer):
            return
        assert isinstance(self.ranker, DualEncoder), (
            "only texts that are read apart can be searched"
        )
        self._search_results = search_corpora(
            self.ranker,
            data.corpora,
            data.query_rows_of_rank(split),
            lambda corpus: place_of_encodings(self.trainer, "evaluation", corpus.docs.folder),
            trial=is_trial(self.trainer),
            precision=self.trainer.precision_plugin.forward_context,
            precision_name=str(self.trainer.precision),
        )

    def lists_to_measure(self, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
        """Scores ``[B, N]`` and their lists: those of the batch, or those found in the corpus for
        its queries. Both are scores of the ranker: of what is found the similarity over the
        temperature.
        """
        if self._search_results is None:
            return self.ranker(batch), batch
        similarities, found = batch_of_found(self._search_results, batch)
        return self.ranker.over_temperature(similarities), found

    def validation_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        """Add the batch to the metrics. Returns its scores, lists and per-query values, for callbacks
        that write them.
        """
        scores, scored = self.lists_to_measure(batch)
        lists = MeasuredLists(
            scores, scored.labels, scored.mask, scored.doc_rows, scored.ideal, scored.judged
        )
        values = {metric.name: metric.per_query(lists) for metric in self.ranking_metrics}
        self.source_metrics.update(lists, scored.sources)
        return _outputs(scores, scored) | {"per_query": values}

    def test_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch: RankingBatch, batch_idx: int) -> dict[str, Any]:
        scores, scored = self.lists_to_measure(batch)
        MeasuredLists(scores, scored.labels, scored.mask)  # raises an error for scores that are NaN
        return _outputs(scores, scored)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def _log_metrics(self, stage: str) -> None:
        # compute() adds up the queries of all ranks, so the values are the same on each.
        for name, value in self.source_metrics.compute().items():
            is_first = name == self.ranking_metrics[0].name
            self.log(f"{stage}/{name}", value, prog_bar=is_first, rank_zero_only=False)


def _seed() -> int:
    """The seed of the run; 0 where ``seed_everything`` was not called."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def _outputs(scores: Tensor, batch: RankingBatch) -> dict[str, Any]:
    """What a step returns, for callbacks that write rankings or look at what is relevant."""
    return {
        "scores": scores,
        "query_rows": batch.query_rows,
        "doc_rows": batch.doc_rows,
        "mask": batch.mask,
        "labels": batch.labels,
        "ideal": batch.ideal,
    }
