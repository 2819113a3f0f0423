"""The results of a run: metrics.json, test.run, per_query.tsv."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from ltr.data.files import write_whole
from ltr.data.trec import Ranked, write_run
from ltr.datamodules import RankingDataModule
from ltr.module import RankerModule


class RunWriter(Callback):
    """Writes results into the run folder (the trainer's ``default_root_dir``), each file whole or not at all.

    * ``metrics.json``: every validation of ``fit``; its steps, and its seconds without validations and without the time before a
      resume; the last ``validate`` and ``test`` with their conventions;
    * ``test.run`` and ``per_query.tsv`` at the end of ``test``; ``predict.run`` at the end of ``predict``.

    With several processes rank 0 joins the parts and writes. A trial run (``trainer.fast_dev_run``) writes nothing: its results
    mean nothing, and must not replace real ones.
    """

    def __init__(self) -> None:
        self._lists: list[tuple[int, list[tuple[int, float]], list[float]]] = []
        self._started = 0.0
        self._training = 0.0

    # Collecting

    def _start(self, *args: Any) -> None:
        self._lists.clear()
        self._started = time.perf_counter()

    on_validation_start = on_test_start = on_predict_start = _start

    def _collect(self, trainer: Trainer, pl_module: RankerModule, outputs: dict, *args: Any) -> None:
        values = [v.tolist() for v in outputs.get("per_query", {}).values()]
        names = ("query_rows", "doc_rows", "scores", "mask")
        for row, (query, docs, scores, mask) in enumerate(zip(*(outputs[name].tolist() for name in names), strict=True)):
            ranked = sorted(((s, d) for s, d, real in zip(scores, docs, mask, strict=True) if real), reverse=True)
            self._lists.append((query, [(doc, score) for score, doc in ranked], [v[row] for v in values]))

    on_test_batch_end = on_predict_batch_end = _collect

    def _joined(self, trainer: Trainer) -> list[tuple[int, list[tuple[int, float]], list[float]]]:
        lists = self._lists
        if trainer.world_size > 1:
            parts: list[list | None] = [None] * trainer.world_size
            torch.distributed.all_gather_object(parts, lists)
            lists = [one for part in parts for one in part]
        return sorted(lists)

    # Writing

    def on_train_start(self, trainer: Trainer, pl_module: RankerModule) -> None:
        self._training = -time.perf_counter()
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        # Results of other weights must not stay beside these.
        folder = Path(trainer.default_root_dir)
        for name in ("test.run", "per_query.tsv", "predict.run"):
            (folder / name).unlink(missing_ok=True)
        kept = ("validations",) if trainer.ckpt_path else ()
        self._rewrite(trainer, lambda old: {name: old[name] for name in kept if name in old})

    def on_train_end(self, trainer: Trainer, pl_module: RankerModule) -> None:
        if not trainer.fast_dev_run:
            fit = {"steps": trainer.global_step, "seconds": round(self._training + time.perf_counter(), 3)}
            self._write_metrics(trainer, lambda old: {"fit": fit})

    def on_validation_end(self, trainer: Trainer, pl_module: RankerModule) -> None:
        self._training -= time.perf_counter() - self._started
        if trainer.sanity_checking or trainer.fast_dev_run:
            return
        numbers = _numbers(trainer, "val/")
        if trainer.state.fn == "fit":
            row = {"epoch": trainer.current_epoch, "step": trainer.global_step} | numbers
            # A resumed run may repeat a validation.
            before = lambda old: [v for v in old.get("validations", []) if v["step"] < row["step"]]  # noqa: E731
            self._write_metrics(trainer, lambda old: {"validations": [*before(old), row]})
        else:
            self._write_metrics(trainer, lambda old: {"validate": self._report(trainer, pl_module, numbers)})

    def on_test_end(self, trainer: Trainer, pl_module: RankerModule) -> None:
        if trainer.fast_dev_run:
            return
        lists = self._joined(trainer)
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        queries, _ = trainer.datamodule.names("test")
        self._write_ranking(trainer, folder / "test.run", lists)
        names = [metric.measure for metric in pl_module.metrics]
        rows = ("\t".join([queries[query], *(f"{v:.6f}" for v in values)]) + "\n" for query, _, values in lists)
        write_whole(folder / "per_query.tsv", ["\t".join(["query", *names]) + "\n", *rows])
        report = self._report(trainer, pl_module, _numbers(trainer, "test/")) | {"queries": len(lists)}
        self._write_metrics(trainer, lambda old: {"test": report})

    def on_predict_end(self, trainer: Trainer, pl_module: RankerModule) -> None:
        if trainer.fast_dev_run:
            return
        lists = self._joined(trainer)
        if trainer.is_global_zero:
            self._write_ranking(trainer, Path(trainer.default_root_dir) / "predict.run", lists)

    def _write_ranking(self, trainer: Trainer, path: Path, lists: list) -> None:
        queries, docs = trainer.datamodule.names("test")
        lines = (Ranked(queries[query], docs[doc], score) for query, ranked, _ in lists for doc, score in ranked)
        write_run(path, lines, tag=path.parent.parent.name or "ltr")

    def _report(self, trainer: Trainer, pl_module: RankerModule, numbers: dict[str, float | None]) -> dict[str, Any]:
        data: RankingDataModule = trainer.datamodule
        return numbers | {
            "conventions": {metric.measure: metric.convention for metric in pl_module.metrics},
            **data.conventions(),
            "checkpoint": str(trainer.ckpt_path) if trainer.ckpt_path else None,
            "seconds": round(time.perf_counter() - self._started, 3),
        }

    def _write_metrics(self, trainer: Trainer, change: Callable[[dict], dict]) -> None:
        self._rewrite(trainer, lambda old: old | change(old))

    def _rewrite(self, trainer: Trainer, make: Callable[[dict], dict]) -> None:
        if not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / "metrics.json"
        old = json.loads(path.read_text()) if path.is_file() else {}
        write_whole(path, [json.dumps(make(old), indent=1, ensure_ascii=False), "\n"])


def _numbers(trainer: Trainer, prefix: str) -> dict[str, float | None]:
    found = {name.removeprefix(prefix): float(v) for name, v in trainer.callback_metrics.items() if name.startswith(prefix)}
    return {name: None if math.isnan(value) else value for name, value in found.items()}  # JSON knows no NaN
