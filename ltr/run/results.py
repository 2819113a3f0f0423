"""The results of a run: metrics.json, test.run, per_query.tsv."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.checkpoint import FORMAT
from ltr.data.progress import duration
from ltr.data.trec import RunLine, write_run
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries
from ltr.module import RankerModule
from ltr.run.ceiling import ceiling_of_sources
from ltr.run.checkpoint_options import BestOptions, best_first
from ltr.run.config_file import read_config
from ltr.run.loggers import log_results
from ltr.run.metrics_file import read_metrics
from ltr.run.provenance import provenance, write_ir_metadata
from ltr.run.rankings import RankedQueries, Rankings
from ltr.run.run_folder import RunFolder
from ltr.run.trained_with import StartWeights, trained_with
from ltr.trainer_state import data_of, is_trial, validates_before_training


class ResultsState(TypedDict):
    """What the callback keeps in a checkpoint."""

    seconds: float


class ResultsWriter(Callback):
    """Writes results into the run folder (the trainer's ``default_root_dir``), each file whole or
    not at all.

    * ``metrics.json``, by key:
        * ``format``: of the run, see :data:`ltr.checkpoint.FORMAT`;
        * ``directory``: the working directory of the last ``fit``, from which relative paths count;
        * ``start``: the metrics of the weights that training starts from;
        * ``init_from``: the checkpoint of these weights;
        * ``trained_with``: digests of what it is trained with, see :mod:`ltr.run.trained_with`;
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
        start: the weights of another run that a new run starts from; None for none.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.start: StartWeights | None = None
        # What this process has ranked in the evaluation that runs, or that ran last.
        self._rankings = Rankings()
        # When that evaluation began.
        self._evaluation_began = 0.0
        # Seconds of training up to the last stop of its clock.
        self._trained_seconds = 0.0
        # When the clock was started again; None while it is stopped.
        self._training_since: float | None = None
        # The metrics of the weights that training starts from.
        self._start_metrics: dict[str, Any] = {}

    # Collecting

    def _begin_evaluation(self, *args: Any, **kwargs: Any) -> None:
        self._rankings.clear()
        self._evaluation_began = time.perf_counter()
        # Stop the clock of training; on_validation_end starts it again.
        self._trained_seconds = self._seconds()
        self._training_since = None

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
        self._training_since = time.perf_counter()
        is_resume = bool(trainer.ckpt_path)
        new_entries: dict[str, Any] = {}
        if not is_resume:
            self._trained_seconds = 0.0
            if self._start_metrics:  # of the sanity check, which has run before this hook
                new_entries["start"] = self._start_metrics
            if self.start is not None:
                new_entries["init_from"] = self.config["init_from"]
        # Relative paths in config.yaml are relative to this folder.
        directory = os.getcwd()

        def with_start(results: dict[str, Any]) -> dict[str, Any]:
            kept = dict(results)
            kept.pop("took", None)  # of what was trained before
            if not is_resume:  # what another run left in this folder
                for name in (
                    "validations",
                    "start",
                    "init_from",
                    "trained_with",
                    "forecast",
                ):
                    kept.pop(name, None)
            digests = trained_with(self.config, trainer, self.start)
            # A resume takes no weights of another run; the start of the run has told their digest.
            then = kept.get("trained_with", {})
            if "init_from" in then:
                digests["init_from"] = then["init_from"]
            return kept | {"directory": directory, "trained_with": digests} | new_entries

        rewrite_results(trainer, with_start)

    def _seconds(self) -> float:
        """The seconds of training until now."""
        if self._training_since is None:
            return self._trained_seconds
        seconds = time.perf_counter() - self._training_since
        return self._trained_seconds + seconds

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_entries(state_dict, ResultsState, type(self).__qualname__, "take another checkpoint")
        self._trained_seconds = state_dict["seconds"]
        self._training_since = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """New weights are about to be saved: remove the results of the old ones."""
        if trainer.is_global_zero and not is_trial(trainer):
            RunFolder(trainer.default_root_dir).remove_rankings()
        fit = {"steps": trainer.global_step, "seconds": round(self._seconds(), 3)}

        def with_fit(results: dict[str, Any]) -> dict[str, Any]:
            kept = dict(results)
            kept.pop("validate", None)
            kept.pop("test", None)
            return kept | {"fit": fit}

        rewrite_results(trainer, with_fit)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":

            def with_report(results: dict[str, Any]) -> dict[str, Any]:
                return results | {"validate": self._report(trainer, pl_module, "val/")}

            rewrite_results(trainer, with_report)
            return
        self._training_since = time.perf_counter()
        if trainer.sanity_checking:
            self._start_metrics = {}
            if validates_before_training(trainer):
                self._start_metrics = _logged_metrics(trainer, "val/")
                self._log_start(trainer)
            return
        row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "seconds": round(self._trained_seconds, 3),
        }
        row |= _logged_metrics(trainer, "val/")

        def with_row(results: dict[str, Any]) -> dict[str, Any]:
            earlier = []
            for validation in results.get("validations", []):
                if validation["step"] < row["step"]:  # a resumed run may repeat a validation
                    earlier.append(validation)
            return results | {"validations": [*earlier, row]}

        rewrite_results(trainer, with_row)

    def _log_start(self, trainer: Trainer) -> None:
        """Log the metrics from before training, which Lightning does not, as those of step 0."""
        if not self._start_metrics:
            return
        values = {}
        for name, value in self._start_metrics.items():
            if value is not None:
                values[f"val/{name}"] = value
        for logger in trainer.loggers:
            logger.log_metrics(values, step=0)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._ranked_by_all() as blocks:
            if trainer.is_global_zero and not is_trial(trainer):
                self._write_test(trainer, pl_module, blocks)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._ranked_by_all() as blocks:
            if trainer.is_global_zero and not is_trial(trainer):
                run = RunFolder(trainer.default_root_dir)
                self._write_ranking(trainer, run.predict_run, blocks)

    @contextmanager
    def _ranked_by_all(self) -> Iterator[Iterator[RankedQueries]]:
        """What all processes have ranked, for rank 0 to write. The others send it; they also do so
        where rank 0 fails, and don't wait for it.
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
        run = RunFolder(trainer.default_root_dir)
        report = self._report(trainer, pl_module, "test/")
        query_rows: list[np.ndarray] = []
        metrics: list[np.ndarray] = []

        def watched() -> Iterator[RankedQueries]:
            for block in blocks:
                query_rows.append(block.lists.query_rows)
                metrics.append(block.metrics)
                yield block

        query_ids = self._write_ranking(trainer, run.test_run, watched())
        report["queries"] = sum(map(len, query_rows))

        def lines() -> Iterator[str]:
            yield "\t".join(["query", *report["conventions"]]) + "\n"
            for rows, values_of_rows in zip(query_rows, metrics, strict=True):
                for row, values in zip(rows.tolist(), values_of_rows.tolist(), strict=True):
                    cells = [f"{value:.6f}" for value in values]
                    yield "\t".join([query_ids[row], *cells]) + "\n"

        write_whole(run.per_query, lines())
        rewrite_results(trainer, lambda results: results | {"test": report})
        # What lies beside the run, such as results on another data set, has no configuration of its own.
        config = read_config(run.config) if run.config.is_file() else self.config
        write_ir_metadata(run, report, config)
        log_results(trainer.loggers, run)

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

        experiment = file.parent.parent.name  # the folder above that of the run
        write_run(file, lines(), tag=experiment or "ltr")
        return query_ids

    def _report(self, trainer: Trainer, pl_module: LightningModule, prefix: str) -> dict[str, Any]:
        """The metrics of an evaluation, and what they are metrics of."""
        data = data_of(trainer)
        assert data is not None and isinstance(pl_module, RankerModule)
        measures = pl_module.ranking_metrics
        split = {"val/": "dev", "test/": "test"}[prefix]
        eval_batches = data.eval_batches(split)
        report = _logged_metrics(trainer, prefix)
        report["conventions"] = {metric.name: metric.convention for metric in measures}
        report["lower_is_better"] = [
            metric.name for metric in measures if metric.measure.lower_is_better
        ]
        report |= data.conventions()
        if any(data.source_names):
            report["sources"] = list(data.source_names)
        if prefix == "test/" and data.tested_split != "test":
            report["split"] = data.tested_split
        report["evaluated"] = data.evaluation_digests(split)
        # Where the whole corpus is searched, no candidates limit what can be reached.
        if eval_batches is not None and not data.corpora:
            report["ceiling"] = ceiling_of_sources(
                measures, eval_batches.batches, data.first_queries
            )
        report["checkpoint"] = str(trainer.ckpt_path) if trainer.ckpt_path else None
        report["seconds"] = round(time.perf_counter() - self._evaluation_began, 3)
        report["made"] = provenance()
        return report


def rewrite_results(trainer: Trainer, change: Callable[[dict], dict]) -> None:
    """Change ``metrics.json``, at rank 0 and not in a trial run."""
    if trainer.is_global_zero and not is_trial(trainer):
        path = RunFolder(trainer.default_root_dir).metrics
        results = {"format": FORMAT} | change(read_metrics(path))
        write_whole(path, [json.dumps(results, indent=1, ensure_ascii=False), "\n"])


def _logged_metrics(trainer: Trainer, prefix: str) -> dict[str, Any]:
    """The metrics that an evaluation has logged, without their prefix. NaN, which JSON does not
    know, is None.
    """
    metrics: dict[str, Any] = {}
    for name, logged in trainer.callback_metrics.items():
        if name.startswith(prefix):
            value = float(logged)
            metrics[name.removeprefix(prefix)] = None if math.isnan(value) else value
    return metrics


def summary_line(folder: RunFolder, best: BestOptions) -> str:
    """What a training has reached."""
    results = read_metrics(folder.metrics)
    if "fit" not in results or not folder.last.is_file():
        return "nothing was trained"
    fit = results["fit"]
    text = f"trained {fit['steps']:,} steps in {duration(fit['seconds'])}"
    scores = folder.kept_scores(best.monitor)
    if not scores:
        return f"{text}; last.ckpt has the weights"
    step = best_first(scores)[0]
    text += f"; best {best.monitor} {best.sign * scores[step]:.4f} at step {step:,}"
    start = _monitored_at_start(results, best)
    if start is not None:
        text += f" ({start:.4f} before training)"
    return text


def ceiling_line(report: dict[str, Any]) -> str | None:
    """A line where the candidates of an evaluation don't hold all that is relevant; else None.

    Args:
        report: the part of ``metrics.json`` for this evaluation.
    """
    highest = report.get("ceiling", {})
    recall = highest.get("R", 1.0)
    if recall >= 1.0:
        return None
    limits = []
    for name, value in highest.items():
        if name != "R" and value < 1:
            limits.append(f"{name} {value:.4f}")
    text = f"the candidates hold {recall:.1%} of the relevant documents"
    if not limits:  # each metric can reach 1 with those that are there
        return text
    return f"{text}; no ranker of them can reach more than {', '.join(limits)}"


def worse_than_start_warning(folder: RunFolder, best: BestOptions) -> str | None:
    """A warning where the best weights of a training rank worse than those it started from; else
    None.
    """
    start = _monitored_at_start(read_metrics(folder.metrics), best)
    scores = folder.kept_scores(best.monitor)
    # Scores are negated where the lowest value of the metric is the best.
    if start is None or not scores or max(scores.values()) >= best.sign * start:
        return None
    best_value = best.sign * max(scores.values())
    return (
        f"training made the ranker worse: the best {best.monitor} is {best_value:.4f}, and it started from "
        f"{start:.4f}. Likely causes: a learning rate that is too high (try a third of model.lr); negatives that are relevant "
        "(ltr negatives audit); texts that are cut where dev needs them (max_length); scores that all become one value (the "
        "callback ltr.callbacks.Health tells)"
    )


def _monitored_at_start(results: dict[str, Any], best: BestOptions) -> float | None:
    """The value of ``best.monitor`` before training; None where it was not measured."""
    name = best.metric
    return results.get("start", {}).get(name)
