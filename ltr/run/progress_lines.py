"""What a run says of its progress, by a bar on a terminal and by lines elsewhere, and of what it has
measured.
"""

import logging
import sys
import time
from math import isfinite
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from rich.progress import ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from ltr.data.progress import LogLines, Pace, duration
from ltr.in_batch import OwnLists
from ltr.module import RankerModule
from ltr.trainer_state import data_of, logged_metrics, validates_before_training

log = logging.getLogger(__name__)

BAR_WIDTH = 12  # letters: the rest has 80


class RunBar(RichProgressBar):
    """The bar of a run: ``step 2 of 9, epoch 1 ━━━━━━ 2/3 0:00:01 3.71 batches/s loss: 0.9866 nDCG@10:
    0.8155``. The batches and the time left are those of the epoch.

    In a training on a GPU it shows the loss of every ``log_every_n_steps``-th step: the host would
    wait for each.
    """

    validation_description = "dev"
    test_description = "testing"
    predict_description = "ranking"

    def __init__(self) -> None:
        super().__init__(theme=RichProgressBarTheme(metrics_format="#.4g"))
        self._loss: float | None = None  # the last one that was read

    @property
    def sanity_check_description(self) -> str:
        is_all = validates_before_training(self.trainer)
        return "dev, before training" if is_all else "some of dev, as a trial"

    def configure_columns(self, trainer: Trainer) -> list[ProgressColumn]:
        description, bar, batches, *_ = super().configure_columns(trainer)
        bar.bar_width = BAR_WIDTH
        return [description, bar, batches, TimeRemainingColumn(), _BatchesPerSecond()]

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if self._reads_loss(trainer, pl_module, metrics):
            metrics = {"train/loss": self._loss, **metrics}
        return {name.removeprefix("train/").removeprefix("val/"): metrics[name] for name in metrics}

    def _reads_loss(
        self, trainer: Trainer, pl_module: LightningModule, metrics: dict[str, Any]
    ) -> bool:
        """Whether the loss, which the metrics lack, is known; it is read if it is time to."""
        assert isinstance(pl_module, RankerModule)
        if not trainer.training or pl_module.last_step is None or "train/loss" in metrics:
            return False
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it
        if self._loss is None or trainer.global_step % every == 0:
            self._loss = pl_module.last_step.loss.item()
        return True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self._show_place(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *args)
        self._show_place(trainer)

    def _show_place(self, trainer: Trainer) -> None:
        if self.progress is not None and self.train_progress_bar_id is not None:
            self.progress.update(self.train_progress_bar_id, description=place_in_training(trainer))


class _BatchesPerSecond(ProgressColumn):
    """The speed of a bar."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.3g} batches/s")


def place_in_training(trainer: Trainer) -> str:
    """``step 47 of 120, epoch 8``; without a last step ``step 47, epoch 8``."""
    total = trainer.estimated_stepping_batches
    of_total = f" of {int(total):,}" if isfinite(total) else ""
    return f"step {trainer.global_step:,}{of_total}, epoch {trainer.current_epoch + 1}"


def with_bar(callbacks: list[Callback], enabled: bool | None) -> tuple[list[Callback], bool]:
    """Callbacks and what says how a run goes on, and whether there is a bar.

    Args:
        callbacks: of the run; a bar among them takes the place of ours.
        enabled: whether there is a bar; None: on a terminal, and where the callbacks have one.
    """
    has_one = any(isinstance(each, ProgressBar) for each in callbacks)
    if enabled is None:
        enabled = has_one or sys.stdout.isatty()
    if not enabled:
        return [*callbacks, ProgressLines()], False
    return callbacks if has_one else [*callbacks, RunBar()], True


class ResultLines(Callback):
    """Lines of what is trained, and of what each evaluation has measured."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, RankerModule)
        # Of a schedule those of the stage.
        parts = [type(pl_module.loss.current).__name__]
        margin = None if pl_module.margin is None else pl_module.margin.current
        for part in (margin, pl_module.in_batch):
            if not isinstance(part, OwnLists | None):
                parts.append(type(part).__name__)
        n_weights = sum(weight.numel() for weight in pl_module.parameters())
        n_trained = sum(weight.numel() for weight in pl_module.parameters() if weight.requires_grad)
        trained = "all" if n_trained == n_weights else f"{n_trained:,} of them"
        log.info(
            "training %s with %s: %s parameters, %s trainable; %s, %s",
            type(pl_module.ranker).__name__,
            ", ".join(parts),
            f"{n_weights:,}",
            trained,
            trainer.strategy.root_device,
            trainer.precision,
        )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            _say_metrics("dev", logged_metrics(trainer, "val/"))
            return
        assert isinstance(pl_module, RankerModule)
        names = [metric.name for metric in pl_module.ranking_metrics]
        metrics = logged_metrics(trainer, "val/")
        means = _metrics_in_words({name: metrics[name] for name in names if name in metrics})
        if not trainer.sanity_checking:
            loss = ""
            if pl_module.last_step is not None:
                loss = f"loss {pl_module.last_step.loss.item():#.4g}; "
            log.info("%s: %sdev: %s", place_in_training(trainer), loss, means)
        elif validates_before_training(trainer):
            log.info("before training, all of dev: %s", means)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = data_of(trainer)
        _say_metrics(
            "test" if data is None else data.tested_split, logged_metrics(trainer, "test/")
        )


def _say_metrics(split: str, metrics: dict[str, float | None]) -> None:
    """A line of the means over all sources, and one of each source that has a name.

    Args:
        split: that was measured.
        metrics: by their names, such as ``nDCG@10`` and ``SOURCE/nDCG@10``.
    """
    metrics_of_source: dict[str, dict[str, float | None]] = {}
    for name, value in metrics.items():
        source, _, metric = name.rpartition("/")
        metrics_of_source.setdefault(source, {})[metric] = value
    for source, values in metrics_of_source.items():
        place = f"{split}, {source}" if source else split
        log.info("%s: %s", place, _metrics_in_words(values))


def _metrics_in_words(metrics: dict[str, float | None]) -> str:
    """``nDCG@10 0.8155, AP 0.7500``."""
    words = []
    for name, value in metrics.items():
        words.append(f"{name} {'has no value' if value is None else f'{value:.4f}'}")
    return ", ".join(words)


class ProgressLines(Callback):
    """Lines now and then, for places without a terminal: in training the step, the rate, the loss
    and the time left; in an evaluation how many batches are done.
    """

    def __init__(self) -> None:
        self._pace = Pace()
        # Of the data module's refresh_seconds: those that the pace leaves out already.
        self._left_out_refresh_seconds = 0.0
        self._validation_began = 0.0
        self._lines = LogLines("validating", "batches", 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pace = Pace(trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        data = data_of(trainer)
        if data is not None:
            self._pace.leave_out(data.refresh_seconds - self._left_out_refresh_seconds)
            self._left_out_refresh_seconds = data.refresh_seconds
        rate = self._pace.rate_if_due(trainer.global_step)
        if rate is None:
            return
        total = trainer.estimated_stepping_batches
        assert isinstance(pl_module, RankerModule) and pl_module.last_step is not None
        time_left = ""
        if isfinite(total):
            time_left = f", {duration((total - trainer.global_step) / rate)} of training left"
        loss = pl_module.last_step.loss.item()
        place = place_in_training(trainer)
        log.info("%s: %.3g steps/s, loss %.4g%s", place, rate, loss, time_left)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pace.leave_out(time.monotonic() - self._validation_began)

    # The batches of an evaluation are counted once its corpus is searched, which has lines of its
    # own. RankerModule searches in on_test_start and on_predict_start, but for a validation in
    # on_validation_epoch_start, which comes after that hook of the callbacks.

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch_idx == 0:
            self._lines = LogLines("validating", "batches", int(sum(trainer.num_val_batches)))

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lines = LogLines("testing", "batches", int(sum(trainer.num_test_batches)))

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lines = LogLines("ranking", "batches", int(sum(trainer.num_predict_batches)))

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._lines.report(batch_idx + 1)

    on_test_batch_end = on_validation_batch_end
    on_predict_batch_end = on_validation_batch_end
