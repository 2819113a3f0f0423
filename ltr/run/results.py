"""The results of a run: metrics.json, test.run, per_query.tsv."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.data.trec import RunLine, write_run
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries
from ltr.module import RankerModule
from ltr.run import lightning_internals as internals
from ltr.run.ceiling import ceiling_of_sources
from ltr.run.checkpoint_options import BestOptions, best_first
from ltr.run.config_file import read_config
from ltr.run.content_digests import InitWeights, digests_of_training
from ltr.run.loggers import log_test_to_wandb
from ltr.run.metrics_file import TrainedWith, read_metrics, write_metrics
from ltr.run.provenance import made_by, write_ir_metadata
from ltr.run.rankings import RankedQueries, Rankings
from ltr.run.run_folder import RunFolder
from ltr.run.same_options import options_of_measuring
from ltr.trainer_state import data_of, is_trial, logged_metrics, validates_before_training

log = logging.getLogger(__name__)

OF_VALIDATION = {"epoch", "step", "seconds"}  # in the row of a validation, beside its metrics


class ResultsState(TypedDict):
    """What the callback keeps in a checkpoint."""

    seconds: float


class ResultsWriter(Callback):
    """Writes results into the run folder (the trainer's ``default_root_dir``), each file whole or
    not at all.

    * ``metrics.json``, by key:
        * ``format``: of the run, see :data:`ltr.checkpoint.FORMAT`;
        * ``directory``: the working directory of the last ``fit``, from which relative paths count;
        * ``start``: the metrics, before training, of the weights that training starts from;
        * ``init_from``: the checkpoint of these weights;
        * ``trained_with``: digests of what it is trained with, see :mod:`ltr.run.content_digests`;
        * ``validations``: a row for each validation of ``fit``: epoch, step, the seconds of training
          until then as ``fit`` counts them, and the metrics;
        * ``fit``: its steps, and the seconds of training over all resumes, without validations;
        * ``forecast``, ``took``: what the training was to take, and what it took; see
          :class:`ltr.check.kept_forecast.KeptForecast`;
        * ``validate``, ``test``: the last report of each command: its metrics with their
          conventions, a digest of what was evaluated, and the ceiling of the candidates;
    * ``test.run``, ``ir-metadata.yml`` and ``per_query.tsv``, at the end of ``test``;
    * ``predict.run``, at the end of ``predict``.

    Results of ``test``, ``validate`` and ``predict`` stay until new weights are saved. With several
    processes rank 0 joins the parts and writes. A trial run (``trainer.fast_dev_run``) writes
    nothing: its results mean nothing, and must not replace real ones.

    Args:
        config: the configuration of the run, as plain dicts, lists and values.

    Attributes:
        init_weights: those of another run that a new run starts from, set once they are loaded;
            None for none.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.init_weights: InitWeights | None = None
        # What this process has ranked in the evaluation that runs, or that ran last.
        self._rankings = Rankings()
        # When that evaluation began.
        self._evaluation_began = 0.0
        # Of training, without validations.
        self._stopwatch = _Stopwatch(0.0)
        self._metrics_before_training: dict[str, Any] = {}

    # Collecting

    def _begin_evaluation(self, *args: Any, **kwargs: Any) -> None:
        self._rankings.clear()
        self._evaluation_began = time.perf_counter()
        self._stopwatch.stop()  # on_validation_end starts it again

    on_validation_start = _begin_evaluation
    on_test_start = _begin_evaluation
    on_predict_start = _begin_evaluation

    def _collect(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._rankings.add(outputs)

    on_test_batch_end = _collect
    on_predict_batch_end = _collect

    # Writing

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_resume = bool(trainer.ckpt_path)
        if not is_resume:
            self._stopwatch = _Stopwatch(0.0)
        self._stopwatch.start()
        if not writes_results(trainer):
            return
        file = RunFolder(trainer.default_root_dir).metrics
        metrics = read_metrics(file)
        metrics.pop("took", None)  # of what was trained before
        if not is_resume:  # what another run left in this folder
            for name in ("validations", "start", "init_from", "trained_with", "forecast"):
                metrics.pop(name, None)
        digests = digests_of_training(self.config, trainer)
        if is_resume:
            _warn_of_other_dev(metrics.get("trained_with"), digests)
        if is_resume and "init_from" in metrics.get("trained_with", {}):
            digests["init_from"] = metrics["trained_with"]["init_from"]
        elif self.init_weights is not None:
            digests["init_from"] = self.init_weights.digests
        metrics["directory"] = os.getcwd()  # relative paths in config.yaml are relative to it
        metrics["trained_with"] = digests
        if not is_resume and self._metrics_before_training:
            # Of the sanity check, which has run before this hook.
            metrics["start"] = self._metrics_before_training
        if not is_resume and self.init_weights is not None:
            metrics["init_from"] = self.config["init_from"]
        write_metrics(file, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._stopwatch.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_entries(state_dict, ResultsState, type(self).__qualname__, "take another checkpoint")
        self._stopwatch = _Stopwatch(state_dict["seconds"])

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """New weights are about to be saved, if only as the last ones: remove the results of the
        old ones.
        """
        if not writes_results(trainer):
            return
        folder = RunFolder(trainer.default_root_dir)
        folder.remove_rankings()
        fit = {"steps": trainer.global_step, "seconds": round(self._stopwatch.seconds, 3)}
        metrics = read_metrics(folder.metrics)
        metrics.pop("validate", None)
        metrics.pop("test", None)
        write_metrics(folder.metrics, metrics | {"fit": fit})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        file = RunFolder(trainer.default_root_dir).metrics
        if trainer.state.fn != "fit":
            if writes_results(trainer):
                report = self._report(trainer, pl_module, "dev")
                write_metrics(file, read_metrics(file) | {"validate": report})
            return
        trained_seconds = self._stopwatch.seconds
        self._stopwatch.start()
        if trainer.sanity_checking:
            self._metrics_before_training = {}
            if validates_before_training(trainer):
                self._metrics_before_training = logged_metrics(trainer, "val/")
                self._log_before_training(trainer)
            return
        row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "seconds": round(trained_seconds, 3),
        }
        row |= logged_metrics(trainer, "val/")
        if not writes_results(trainer):
            return
        metrics = read_metrics(file)
        earlier = []
        for validation in metrics.get("validations", []):
            if validation["step"] < row["step"]:  # a resumed run may repeat a validation
                earlier.append(validation)
        validations = [*earlier, row]
        write_metrics(file, metrics | {"validations": validations})
        self._log_best(trainer, validations)

    def _log_before_training(self, trainer: Trainer) -> None:
        """Log the metrics from before training, which Lightning does not, as those of step 0."""
        if not self._metrics_before_training:
            return
        values = {}
        for name, value in self._metrics_before_training.items():
            if value is not None:
                values[f"val/{name}"] = value
        for logger in trainer.loggers:
            logger.log_metrics(values, step=0)

    def _log_best(self, trainer: Trainer, validations: Sequence[Mapping[str, Any]]) -> None:
        """Log the metrics of the best weights so far as ``best/…``. The last value of each is that
        of the run's best ones: what a table of runs shows, and a sweep chooses by.
        """
        best = BestOptions(**self.config["best"])
        scores: dict[int, float] = {}
        for validation in validations:
            value = validation.get(best.metric)
            if value is not None:
                scores[validation["step"]] = best.sign * value
        if not scores:
            return
        step = best_first(scores)[0]
        values: dict[str, float] = {"best/step": step}
        for validation in validations:
            if validation["step"] != step:
                continue
            for name, value in validation.items():
                if name not in OF_VALIDATION and value is not None:
                    values[f"best/{name}"] = value
        for logger in trainer.loggers:
            logger.log_metrics(values, step=internals.logged_step(trainer))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._blocks_of_all() as blocks:
            if writes_results(trainer):
                self._write_test(trainer, pl_module, blocks)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._blocks_of_all() as blocks:
            if writes_results(trainer):
                folder = RunFolder(trainer.default_root_dir)
                self._write_ranking(trainer, folder.predict_run, blocks)

    @contextmanager
    def _blocks_of_all(self) -> Iterator[Iterator[RankedQueries]]:
        """Inside the block: what all processes have ranked, which rank 0 writes.

        To go through the blocks is to send them, so at the end every process goes through those that
        are left: the others have written none, and rank 0 may have failed.
        """
        blocks = self._rankings.all_blocks()
        try:
            yield blocks
        finally:
            for _ in blocks:
                pass

    def _write_test(
        self, trainer: Trainer, pl_module: LightningModule, blocks: Iterator[RankedQueries]
    ) -> None:
        folder = RunFolder(trainer.default_root_dir)
        report = self._report(trainer, pl_module, "test")
        # The blocks pass once: the run file takes them, and we note their rows and metrics.
        query_rows: list[np.ndarray] = []
        metrics_of_queries: list[np.ndarray] = []

        def noted() -> Iterator[RankedQueries]:
            for block in blocks:
                query_rows.append(block.lists.query_rows)
                metrics_of_queries.append(block.metrics)
                yield block

        query_ids = self._write_ranking(trainer, folder.test_run, noted())
        report["queries"] = sum(map(len, query_rows))

        def lines() -> Iterator[str]:
            yield "\t".join(["query", *report["conventions"]]) + "\n"
            for rows, values_of_rows in zip(query_rows, metrics_of_queries, strict=True):
                for row, values in zip(rows.tolist(), values_of_rows.tolist(), strict=True):
                    cells = [f"{value:.6f}" for value in values]
                    yield "\t".join([query_ids[row], *cells]) + "\n"

        write_whole(folder.per_query, lines())
        # What lies beside the run, such as results on another data set, has no configuration of its own.
        config = read_config(folder.config) if folder.config.is_file() else self.config
        options = options_of_measuring(self.config, config)
        if options:
            report["options"] = options
        write_metrics(folder.metrics, read_metrics(folder.metrics) | {"test": report})
        write_ir_metadata(folder, report, config)
        log_test_to_wandb(trainer.loggers, folder, internals.logged_step(trainer))

    def _write_ranking(
        self, trainer: Trainer, file: Path, blocks: Iterator[RankedQueries]
    ) -> Sequence[str]:
        """Write a run file, and return the ids of the queries by row."""
        data = data_of(trainer)
        assert data is not None, "run files name queries and documents"
        query_ids, doc_ids = data.names("test")

        def lines() -> Iterator[RunLine]:
            for lists, _ in blocks:
                for query_row in lists.query_rows.tolist():
                    doc_rows, scores = lists.of(query_row)
                    for doc_row, score in zip(doc_rows.tolist(), scores.tolist(), strict=True):
                        yield RunLine(query_ids[query_row], doc_ids[doc_row], score)

        write_run(file, lines(), tag=RunFolder(file.parent).experiment() or "ltr")
        return query_ids

    def _report(self, trainer: Trainer, pl_module: LightningModule, split: str) -> dict[str, Any]:
        """The metrics of ``dev``, or of the split that is tested as ``test``, and of what."""
        data = data_of(trainer)
        assert data is not None and isinstance(pl_module, RankerModule)
        metrics = pl_module.ranking_metrics
        eval_batches = data.eval_batches(split)
        report = logged_metrics(trainer, "test/" if split == "test" else "val/")
        report["conventions"] = {metric.name: metric.convention for metric in metrics}
        report["lower_is_better"] = [
            metric.name for metric in metrics if metric.measure.lower_is_better
        ]
        report |= data.conventions(split)
        if any(data.source_names):
            report["sources"] = list(data.source_names)
        if split == "test" and data.tested_split != "test":
            report["split"] = data.tested_split
        report["evaluated"] = data.evaluation_digests(split)
        # Where the whole corpus is searched, no candidates limit what can be reached.
        if eval_batches is not None and not data.corpora:
            report["ceiling"] = ceiling_of_sources(
                metrics, eval_batches.batches, data.first_queries
            )
        report["path"] = self.config["data"].get("init_args", {}).get("path")
        report["checkpoint"] = str(trainer.ckpt_path) if trainer.ckpt_path else None
        report["seconds"] = round(time.perf_counter() - self._evaluation_began, 3)
        report["made"] = made_by()
        return report


def _warn_of_other_dev(before: TrainedWith | None, now: TrainedWith) -> None:
    """Say where a run goes on with other dev data than its best weights were chosen by."""
    if before is None:
        return
    names = [name for name in now["data"] if name.startswith("dev ")]
    changed = [name for name in names if before["data"].get(name) != now["data"][name]]
    if changed:
        log.warning(
            "the run goes on with other %s than before: validations until here and from here on are not alike, and the best weights are chosen among both",
            ", ".join(changed),
        )


def writes_results(trainer: Trainer) -> bool:
    """Whether this process writes results: rank 0, and not in a trial run."""
    return trainer.is_global_zero and not is_trial(trainer)


class _Stopwatch:
    """Goes on from some seconds; stands still until it is started, and after a stop."""

    def __init__(self, seconds: float) -> None:
        self._seconds_before = seconds
        self._started: float | None = None  # None while it stands still

    @property
    def seconds(self) -> float:
        """How many have passed while it ran."""
        if self._started is None:
            return self._seconds_before
        return self._seconds_before + (time.perf_counter() - self._started)

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._seconds_before = self.seconds
        self._started = None
