"""What a run says of its progress: a bar on a terminal, elsewhere lines."""

import logging
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from ltr.data.progress import LogLines, Pace, duration
from ltr.module import RankerModule
from ltr.trainer_state import data_of

log = logging.getLogger(__name__)


class LossBar(RichProgressBar):
    """Lightning's bar. In a training on a GPU it shows the loss of every ``log_every_n_steps``-th step:
    the host would wait for each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loss: float | None = None  # the last one that was read

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        assert isinstance(pl_module, RankerModule)
        if not trainer.training or pl_module.last_step is None or "train/loss" in metrics:
            return metrics
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it
        if self._loss is None or trainer.global_step % every == 0:
            self._loss = pl_module.last_step.loss.item()
        return {"train/loss": f"{self._loss:.3f}", **metrics}


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
        total_steps = ""
        time_left = ""
        if total != float("inf"):
            total_steps = f" of {int(total):,}"
            time_left = f", {duration((total - trainer.global_step) / rate)} of training left"
        loss = pl_module.last_step.loss.item()
        place = f"step {trainer.global_step:,}{total_steps}, epoch {trainer.current_epoch + 1}"
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
