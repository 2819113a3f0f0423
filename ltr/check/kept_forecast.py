"""What a training says of its data before it begins, and the forecast that it keeps."""

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.callbacks import HardNegativeMining
from ltr.check.cutting import severe_cuts_of_documents
from ltr.check.forecast import Forecast, PeakMemory, schedule_of, works_of
from ltr.check.judgements import judgements_section
from ltr.check.leakage_section import severe_leaks
from ltr.data.layouts import FeatureVectors
from ltr.data.progress import duration
from ltr.datamodules import RankingDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.run import lightning_internals as internals
from ltr.run.metrics_file import read_metrics, write_metrics
from ltr.run.results import writes_results
from ltr.run.run_folder import RunFolder
from ltr.trainer_state import callbacks_of, data_of, is_trial, validates_before_training

log = logging.getLogger(__name__)

WARM_UP = 2  # batches that are not counted
COUNTED = 20  # batches after which the forecast is made
LEAST_BATCHES = 100  # batches of a training that has a forecast
LEAST_REFRESH_SECONDS = 0.01  # seconds that are more than the question whether a refresh is due


def severe_lines(data: RankingDataModule) -> list[str]:
    """What is severe in the data of a training, as far as it takes seconds at most: nothing is
    searched.
    """
    if not isinstance(data, PoolDataModule):
        return []
    reads = data.reads
    lines: list[str] = []
    for source in data.sources:
        collection = source.collection
        severe = judgements_section(collection, search=False).severe
        if reads is not None and not isinstance(reads, FeatureVectors):
            # How many queries are cut was said when they were tokenised.
            severe += severe_cuts_of_documents(collection, reads)
        severe += severe_leaks(collection)
        lines += [f"{source.name}: {line}" if source.name else line for line in severe]
    return lines


class KeptForecast(Callback):
    """Says before a training what is severe in its data. Makes a forecast after its first batches,
    and keeps it in ``metrics.json`` beside what the training took.

    A run that was interrupted keeps the forecast of its beginning, and no time to hold against it.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._counting_since = 0.0  # when the batches to warm up were done
        self._validation_seconds = 0.0  # of all validations so far
        self._validation_seconds_before = 0.0  # of those before the counting began
        self._first_refresh_seconds = 0.0  # of the one before then, if there was one
        self._validation_began = 0.0
        self._longest_validation = 0.0
        self._batches = 0
        self._tokens = 0  # that this process was trained on
        self._train_began = 0.0
        self._not_training_before = 0.0  # seconds of validations and refreshes until then
        self._mined_first = False  # negatives were mined before the first batch
        self._memory: PeakMemory

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()
        self._validation_seconds = 0.0
        self._longest_validation = 0.0
        self._batches = 0
        self._memory = PeakMemory()
        data = data_of(trainer)
        if data is None or not trainer.is_global_zero or _has_no_forecast(trainer):
            return
        for line in severe_lines(data):
            log.warning("%s (ltr check says more)", line)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking and not validates_before_training(trainer):
            return  # a few batches say nothing of a whole validation
        seconds = time.perf_counter() - self._validation_began
        self._validation_seconds += seconds
        self._longest_validation = max(self._longest_validation, seconds)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._tokens = 0
        self._not_training_before = self._not_training_seconds(trainer)
        self._train_began = time.perf_counter()

    def _not_training_seconds(self, trainer: Trainer) -> float:
        """Seconds of validations and refreshes so far."""
        data = data_of(trainer)
        return self._validation_seconds + (0.0 if data is None else data.refresh_seconds)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches += 1
        self._tokens += batch.n_tokens
        data = data_of(trainer)
        if data is None or _has_no_forecast(trainer):
            return
        if self._batches == WARM_UP:
            self._counting_since = time.perf_counter()
            self._validation_seconds_before = self._validation_seconds
            self._first_refresh_seconds = data.refresh_seconds
            self._mined_first = data.refresh_seconds > LEAST_REFRESH_SECONDS
        if self._batches == WARM_UP + COUNTED:
            self._keep_forecast(trainer, data)

    def _keep_forecast(self, trainer: Trainer, data: RankingDataModule) -> None:
        """Make the forecast, tell it, and keep it."""
        mining = next(iter(callbacks_of(trainer, HardNegativeMining)), None)
        schedule = schedule_of(
            trainer,
            validates_first=validates_before_training(trainer),
            mining=mining,
            mines_first=self._mined_first,
        )
        if not schedule.has_end or schedule.batches < LEAST_BATCHES:
            return
        spent = time.perf_counter() - self._counting_since
        spent -= self._validation_seconds - self._validation_seconds_before
        spent -= data.refresh_seconds - self._first_refresh_seconds
        seconds = {"step": spent / COUNTED * schedule.batches_per_step}
        untimed = []
        if schedule.validations and self._longest_validation:
            seconds["validation"] = self._longest_validation
        elif schedule.validations:
            untimed.append(f"{schedule.validations} validations")
        if schedule.refreshes and self._mined_first:
            seconds["refresh of negatives"] = self._first_refresh_seconds
        elif schedule.refreshes:
            untimed.append(f"{schedule.refreshes} refreshes of negatives")
        works = works_of(schedule, seconds)
        forecast = Forecast(works)
        parts = []
        for work in works:
            parts.append(f"{work.name} {work.times:,} times: {duration(work.total_seconds)}")
        scope = "in all"
        if untimed:
            scope = f"without {' and '.join(untimed)}, of which none was timed yet"
        log.info("forecast: %s %s (%s)", duration(forecast.seconds), scope, ", ".join(parts))
        seconds_in_all = round(forecast.seconds, 3)
        kept = {
            "seconds": seconds_in_all,
            "after_batches": self._batches,
            "works": {work.name: round(work.total_seconds, 3) for work in works},
        }
        if writes_results(trainer):
            file = RunFolder(trainer.default_root_dir).metrics
            write_metrics(file, read_metrics(file) | {"forecast": kept})
            _log_numbers(trainer, {"forecast/seconds": seconds_in_all})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seconds = time.perf_counter() - self._train_began
        seconds -= self._not_training_seconds(trainer) - self._not_training_before
        if self._tokens and writes_results(trainer):
            _log_numbers(trainer, {"train/tokens_per_second": self._tokens / seconds})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path or not self._batches or not writes_results(trainer):
            return
        data = data_of(trainer)
        took = {
            "seconds": round(time.perf_counter() - self._began, 3),
            "validations": round(self._validation_seconds, 3),
            "refreshes": round(0.0 if data is None else data.refresh_seconds, 3),
            "memory": self._memory.process_peak(),
            "disk": _bytes_in(Path(trainer.default_root_dir)),
        }
        file = RunFolder(trainer.default_root_dir).metrics
        write_metrics(file, read_metrics(file) | {"took": took})
        numbers = {f"took/{name}": value for name, value in took.items()}
        device_peak = self._memory.device_peak()
        if device_peak is not None:
            numbers["took/gpu_memory"] = device_peak
        _log_numbers(trainer, numbers)


def _log_numbers(trainer: Trainer, numbers: dict[str, float]) -> None:
    """Log numbers of the whole run: the table of runs of Weights & Biases shows them."""
    for logger in trainer.loggers:
        logger.log_metrics(numbers, step=internals.logged_step(trainer))


def _has_no_forecast(trainer: Trainer) -> bool:
    """Whether a run was resumed, or is a trial: it is not a whole training."""
    return bool(trainer.ckpt_path) or is_trial(trainer)


def _bytes_in(folder: Path) -> int:
    """Bytes of all files in a folder; a file with several names counts once."""
    sizes = {}
    for file in folder.rglob("*"):
        with suppress(OSError):  # of a file that goes meanwhile
            if file.is_file() and not file.is_symlink():
                status = file.stat()
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def difference_line(results: dict[str, Any]) -> str | None:
    """The forecast of a training beside what it took; None where one of them is not there."""
    forecast = results.get("forecast")
    took = results.get("took")
    if forecast is None or took is None:
        return None
    seconds = took["seconds"]
    left_out = []
    for work, kind in [("validation", "validations"), ("refresh of negatives", "refreshes")]:
        if took[kind] and work not in forecast["works"]:
            seconds -= took[kind]
            left_out.append(kind)
    scope = f" without {' and '.join(left_out)}" if left_out else ""
    ratio = seconds / forecast["seconds"] - 1 if forecast["seconds"] else 0.0
    return f"forecast {duration(forecast['seconds'])}, took {duration(seconds)}{scope} ({100 * ratio:+.0f} %)"
