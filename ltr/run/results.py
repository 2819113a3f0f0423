"""The results of a run: metrics.json, test.run, per_query.tsv."""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.data.files import write_whole
from ltr.data.trec import Ranked, write_run
from ltr.errors import InputError
from ltr.module import RankerModule, data_of, is_trial, measures_start
from ltr.processes import of_all
from ltr.run.ceiling import ceiling
from ltr.run.checkpoints import Best
from ltr.run.folder import RunFolder
from ltr.run.log import duration
from ltr.run.loggers import log_results
from ltr.run.provenance import provenance, write_ir_metadata

RankedQuery = tuple[
    int, list[tuple[int, float]], list[float]
]  # its row, its documents with their scores, its metrics


class RunWriter(Callback):
    """Writes results into the run folder (the trainer's ``default_root_dir``), each file whole or
    not at all.

    * ``metrics.json``: the validation before ``fit`` (``start``), every one in it, its steps, and
      the seconds of training them, without validations and over all resumes; where its weights come
      from; the last ``validate`` and ``test`` with their conventions, a digest of what was
      evaluated, and the ceiling of the candidates;
    * ``test.run``, ``ir-metadata.yml`` and ``per_query.tsv`` at the end of ``test``;
      ``predict.run`` at the end of ``predict``.

    Results of ``test``, ``validate`` and ``predict`` stay until new weights are saved. With several
    processes rank 0 joins the parts and writes. A trial run (``trainer.fast_dev_run``) writes
    nothing: its results mean nothing, and must not replace real ones.

    Args:
        init_from: the checkpoint that the run starts from.
    """

    def __init__(self, init_from: str | None = None) -> None:
        self.init_from = init_from
        self._lists: list[RankedQuery] = []
        self._started = 0.0  # of the evaluation that runs, or that ran last
        self._trained = 0.0  # seconds of training
        self._since: float | None = None  # when the training that is not yet in it began
        self._before: dict[str, Any] = {}  # the metrics of the weights that training starts from

    # Collecting

    def _start(self, *args: Any, **kwargs: Any) -> None:
        self._lists.clear()
        self._started = time.perf_counter()
        self._trained = self._seconds()
        self._since = None

    on_validation_start = _start
    on_test_start = _start
    on_predict_start = _start

    def _collect(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        values = [v.tolist() for v in outputs.get("per_query", {}).values()]
        names = ("query_rows", "doc_rows", "scores", "mask")
        for row, (query, docs, scores, mask) in enumerate(
            zip(*(outputs[name].tolist() for name in names), strict=True)
        ):
            ranked = sorted(
                ((s, d) for s, d, real in zip(scores, docs, mask, strict=True) if real),
                reverse=True,
            )
            self._lists.append(
                (query, [(doc, score) for score, doc in ranked], [v[row] for v in values])
            )

    on_test_batch_end = _collect
    on_predict_batch_end = _collect

    # Writing

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.perf_counter()
        about: dict[str, Any] = {
            "directory": os.getcwd()
        }  # from which the paths count in the configuration that is written now
        stale: tuple[str, ...] = ()
        if not trainer.ckpt_path:
            self._trained = 0.0
            stale = ("validations", "start", "init_from")
            about |= {"start": self._before} if self._before else {}
            about |= {} if self.init_from is None else {"init_from": self.init_from}
        _rewrite(trainer, lambda old: {k: v for k, v in old.items() if k not in stale} | about)

    def _seconds(self) -> float:
        return self._trained + (0.0 if self._since is None else time.perf_counter() - self._since)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._trained = state_dict["seconds"]
        self._since = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """New weights are about to be saved: the results of others must not stand beside them."""
        if trainer.is_global_zero and not is_trial(trainer):
            run = RunFolder(trainer.default_root_dir)
            for file in (run.ranking, run.metadata, run.per_query, run.prediction):
                file.unlink(missing_ok=True)
        fit = {"steps": trainer.global_step, "seconds": round(self._seconds(), 3)}
        _rewrite(
            trainer,
            lambda old: (
                {k: v for k, v in old.items() if k not in ("validate", "test")} | {"fit": fit}
            ),
        )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            _rewrite(
                trainer, lambda old: old | {"validate": self._report(trainer, pl_module, "val/")}
            )
            return
        self._since = time.perf_counter()
        if trainer.sanity_checking:
            self._before = _numbers(trainer, "val/") if measures_start(trainer) else {}
            for logger in trainer.loggers if self._before else ():
                logger.log_metrics(
                    {
                        f"val/{name}": value
                        for name, value in self._before.items()
                        if value is not None
                    },
                    step=0,
                )
            return
        row = {"epoch": trainer.current_epoch, "step": trainer.global_step} | _numbers(
            trainer, "val/"
        )

        def changed(old: dict) -> dict:
            # A resumed run may repeat a validation.
            earlier = [v for v in old.get("validations", []) if v["step"] < row["step"]]
            return old | {"validations": [*earlier, row]}

        _rewrite(trainer, changed)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        lists = sorted(chain.from_iterable(of_all(self._lists)))
        if not trainer.is_global_zero or is_trial(trainer):
            return
        run = RunFolder(trainer.default_root_dir)
        report = self._report(trainer, pl_module, "test/") | {"queries": len(lists)}
        queries = self._write_ranking(trainer, run.ranking, lists)
        rows = ([queries[query], *(f"{v:.6f}" for v in values)] for query, _, values in lists)
        table = [["query", *report["conventions"]], *rows]
        write_whole(
            run.per_query,
            ("\t".join(row) + "\n" for row in table),
        )
        _rewrite(trainer, lambda old: old | {"test": report})
        config: dict[str, Any] = {}
        if run.config.is_file():
            config = yaml.safe_load(run.config.read_text())
        write_ir_metadata(run, report, config)
        log_results(trainer.loggers, run)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        lists = sorted(chain.from_iterable(of_all(self._lists)))
        if trainer.is_global_zero and not is_trial(trainer):
            prediction = RunFolder(trainer.default_root_dir).prediction
            self._write_ranking(trainer, prediction, lists)

    def _write_ranking(
        self, trainer: Trainer, file: Path, lists: list[RankedQuery]
    ) -> Sequence[str]:
        """Write a run file, and return the ids of the queries by row."""
        data = data_of(trainer)
        assert data is not None, "run files name queries and documents"
        queries, docs = data.names("test")
        lines = (
            Ranked(queries[query], docs[doc], score)
            for query, ranked, _ in lists
            for doc, score in ranked
        )
        write_run(file, lines, tag=file.parent.parent.name or "ltr")
        return queries

    def _report(self, trainer: Trainer, pl_module: LightningModule, prefix: str) -> dict[str, Any]:
        data = data_of(trainer)
        assert data is not None and isinstance(pl_module, RankerModule)
        split = {"val/": "dev", "test/": "test"}[prefix]
        pools = data.pools(split)
        return _numbers(trainer, prefix) | {
            "conventions": {metric.measure: metric.convention for metric in pl_module.measures},
            "lower_is_better": [
                metric.measure for metric in pl_module.measures if metric.formula.lower_is_better
            ],
            **data.conventions(),
            "evaluated": data.evaluated(split),
            **(
                {}
                if pools is None or data.corpus is not None
                else {"ceiling": ceiling(pl_module.measures, pools)}
            ),
            "checkpoint": str(trainer.ckpt_path) if trainer.ckpt_path else None,
            "seconds": round(time.perf_counter() - self._started, 3),
            "made": provenance(),
        }


def _rewrite(trainer: Trainer, change: Callable[[dict], dict]) -> None:
    """Change ``metrics.json``, at rank 0 and not in a trial run."""
    if trainer.is_global_zero and not is_trial(trainer):
        path = RunFolder(trainer.default_root_dir).results
        old = read_metrics(path)
        write_whole(path, [json.dumps(change(old), indent=1, ensure_ascii=False), "\n"])


def _numbers(trainer: Trainer, prefix: str) -> dict[str, Any]:
    found = {
        name.removeprefix(prefix): float(v)
        for name, v in trainer.callback_metrics.items()
        if name.startswith(prefix)
    }
    return {
        name: None if math.isnan(value) else value for name, value in found.items()
    }  # JSON knows no NaN


def read_metrics(path: Path) -> dict[str, Any]:
    """``metrics.json``, or nothing where there is none; an InputError for a damaged one."""
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise InputError(
            f"{path}: the file is damaged ({error}); remove it, which loses its numbers"
        ) from None


def reached(folder: RunFolder, best: Best) -> str:
    """What a training has reached, in one line."""
    found = read_metrics(folder.results)
    if "fit" not in found or not folder.last.is_file():
        return "nothing was trained"
    text = f"trained {found['fit']['steps']:,} steps in {duration(found['fit']['seconds'])}"
    scores = folder.kept_scores(best.monitor)
    if not scores:
        return f"{text}; last.ckpt has the weights"
    step = max(scores, key=lambda one: (scores[one], -one))
    before = _before(found, best)
    start = "" if before is None else f" ({before:.4f} before training)"
    return f"{text}; best {best.monitor} {best.sign * scores[step]:.4f} at step {step:,}{start}"


def told_ceiling(report: dict[str, Any]) -> str | None:
    """A line where the candidates of an evaluation don't hold all that is relevant; else None."""
    best = report.get("ceiling", {})
    if best.get("R", 1.0) >= 1.0:
        return None
    limits = ", ".join(
        f"{name} {value:.4f}" for name, value in best.items() if name != "R" and value < 1
    )
    return f"the candidates hold {best['R']:.1%} of the relevant documents; no ranker of them can reach more than {limits}"


def below_start(folder: RunFolder, best: Best) -> str | None:
    """A warning where the best weights of a training rank worse than those it started from; else
    None.
    """
    before = _before(read_metrics(folder.results), best)
    scores = folder.kept_scores(best.monitor)
    if before is None or not scores or max(scores.values()) >= best.sign * before:
        return None
    return (
        f"training made the ranker worse: the best {best.monitor} is {best.sign * max(scores.values()):.4f}, and it started from "
        f"{before:.4f}. Likely causes: a learning rate that is too high (try a third of model.lr); negatives that are relevant "
        "(ltr negatives audit); texts that are cut where dev needs them (max_length); scores that all become one value (the "
        "callback ltr.callbacks.Health tells)"
    )


def _before(found: dict[str, Any], best: Best) -> float | None:
    return found.get("start", {}).get((best.monitor or "").removeprefix("val/"))
