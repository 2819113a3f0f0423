"""A sample of each kind of work of a training: a few real steps, a few validation batches, some texts
encoded, a search.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from ltr.callbacks import HardNegativeMining
from ltr.check.forecast import Forecast, PeakMemory, Schedule, schedule_of, works_of
from ltr.checkpoint import write_checkpoint
from ltr.data.layouts import SingleTexts
from ltr.data.query_lists import LabelledList
from ltr.data.tokens import Tokens
from ltr.datamodules import RankingDataModule, TripletDataModule
from ltr.datamodules.text_source import TextSource
from ltr.errors import InputError
from ltr.metrics import MeasuredLists
from ltr.mining.mined_negatives import MinedNegatives
from ltr.models import DualEncoder
from ltr.module import RankerModule
from ltr.run.lightning_internals import dump_checkpoint
from ltr.search.embed_texts import encode_in_memory
from ltr.search.index import DenseIndex
from ltr.trainer_state import data_of

WARM_UP = 1  # batches that are not counted: they allocate memory
LEAST_BATCHES = 2  # that are counted
MOST_BATCHES = 200
SECONDS = 10.0  # after which counting ends, once there are enough batches
SECONDS_OF_SAMPLE = 2.0  # of each other kind of work
TEXTS_FIRST = 64  # of the first sample of texts
GROWTH = 4  # the next sample would take about this many times as long
DOCS_SEARCHED = 20_000
QUERIES_SEARCHED = 256


class EnoughSampled(Exception):  # noqa: N818  # it ends a training as an interruption would
    """Ends the training whose steps were sampled."""


class TrainingSample(Callback):
    """Times the first steps of a training and samples its other work; then ends it by raising
    :class:`EnoughSampled`.

    The trainer that runs here has validation and mining switched off.

    Args:
        trainer_options: those of the real training, which say how often it validates.
        mining: the callback that would refresh negatives, if there is one.

    Attributes:
        forecast: of the whole training, at the end.
        schedule: how often it does what, at the end.
    """

    def __init__(
        self, trainer_options: Mapping[str, Any], mining: HardNegativeMining | None
    ) -> None:
        self._configured = trainer_options
        self._mining = mining
        self._mines_first = False
        self._ends: list[float] = []  # when each batch was done
        self.forecast: Forecast
        self.schedule: Schedule

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._memory = PeakMemory()
        data = data_of(trainer)
        assert data is not None, "the command line gives one"
        if isinstance(data, TripletDataModule) and data.sources[0].awaits_negatives:
            self._mines_first = True
            data.take_negatives(data.sources[0], _random_negatives(data.sources[0]))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        _wait(pl_module.device)
        self._ends.append(time.perf_counter())
        n_counted = len(self._ends) - WARM_UP
        is_long = self._ends[-1] - self._began >= SECONDS
        if n_counted >= MOST_BATCHES or (n_counted >= LEAST_BATCHES and is_long):
            self._finish(trainer, pl_module)
            raise EnoughSampled

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A short training has ended before enough steps were there: they were all."""
        if not self._ends:
            raise InputError("a forecast needs a training with steps, and this one has none")
        self._finish(trainer, pl_module)

    def _finish(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, RankerModule), "the command line gives one"
        data = data_of(trainer)
        assert data is not None, "the command line gives one"
        batches = data.eval_batches("dev")
        validates = batches is not None and self._configured["limit_val_batches"] != 0
        validates_first = validates and self._configured["num_sanity_val_steps"] == -1
        self.schedule = schedule_of(
            trainer,
            validates_first=validates_first,
            mining=self._mining,
            mines_first=self._mines_first,
        )
        disk = 0
        seconds = {"step": self._seconds_per_batch() * self.schedule.batches_per_step}
        if validates:
            if data.corpora:
                seconds["validation"] = _seconds_of_validation_by_search(trainer, module, data)
            else:
                limit = self._configured["limit_val_batches"]
                seconds["validation"] = _seconds_of_batches(trainer, module, data, limit)
        if self.schedule.refreshes:
            assert isinstance(data, TripletDataModule) and self._mining is not None
            refresh_seconds, refresh_bytes = _refresh_cost(module, data, self._mining, trainer)
            seconds["refresh of negatives"] = refresh_seconds
            kept = self._mining.keep or self.schedule.refreshes
            disk += refresh_bytes * min(kept, self.schedule.refreshes)
        seconds["checkpoint"], checkpoint_bytes = _checkpoint_cost(trainer)
        # Where one validation chooses, the best checkpoint is the last one: two names of one file.
        disk += checkpoint_bytes if self.schedule.choices <= 1 else 2 * checkpoint_bytes
        self.forecast = Forecast(
            works_of(self.schedule, seconds),
            self._memory.process_peak(),
            self._memory.device_peak(),
            disk,
        )

    def _seconds_per_batch(self) -> float:
        """The mean over the counted batches; where there are few, over all of them."""
        n_counted = len(self._ends) - WARM_UP
        if n_counted < LEAST_BATCHES:
            return (self._ends[-1] - self._began) / len(self._ends)
        return (self._ends[-1] - self._ends[WARM_UP - 1]) / n_counted


def _random_negatives(source: TextSource) -> MinedNegatives:
    """Random documents in the place of mined negatives, which take as long to read."""
    collection = source.collection
    judged = collection.learnable("train")
    # One more than a row takes: a relevant document among them is no negative.
    shape = (len(judged.query_rows), source.mined_per_row + 1)
    rows = np.random.default_rng(0).integers(len(collection.corpus), size=shape)
    distances = np.zeros(shape, np.float32)
    manifest = {"key": "sample", "split": "train"}
    return MinedNegatives.from_matrix(judged.query_rows, rows, distances, manifest)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds_of_validation_by_search(
    trainer: Trainer, module: RankerModule, data: RankingDataModule
) -> float:
    """Of one validation by a search of the corpus."""
    assert isinstance(module.ranker, DualEncoder), "only texts read apart can be searched"
    (corpus,) = data.corpora  # ltr check refuses several sources
    query_rows = data.query_rows_of_rank("dev")
    return _seconds_to_encode_and_search(
        trainer, module.ranker, corpus.queries, corpus.docs, query_rows, corpus.depth
    )


def _seconds_of_batches(
    trainer: Trainer, module: RankerModule, data: RankingDataModule, limit: int | float | None
) -> float:
    """Of one validation of all its batches, or of as many as ``limit_val_batches`` says."""
    batches = data.eval_batches("dev")
    assert batches is not None, "there is something to validate"
    count = len(batches)
    if limit is not None:
        limited = min(count, limit) if isinstance(limit, int) else int(count * limit)
        count = max(1, limited)
    n_tokens = [_n_tokens(data, lists) for lists in batches.batches[:count]]
    was_training = module.training
    module.eval()
    ends = [time.perf_counter()]
    with torch.inference_mode():
        for batch in data.val_dataloader():
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            with trainer.precision_plugin.forward_context():
                scores = module.ranker(batch)
            lists = MeasuredLists(
                scores, batch.labels, batch.mask, batch.doc_rows, batch.ideal, batch.judged
            )
            for metric in module.ranking_metrics:
                metric.per_query(lists)
            _wait(module.device)
            ends.append(time.perf_counter())
            is_long = len(ends) > 2 and ends[-1] - ends[1] > SECONDS_OF_SAMPLE
            if is_long or len(ends) > count:
                break
    module.train(was_training)
    n_timed = len(ends) - 1
    if n_timed == count:
        return ends[-1] - ends[0]
    # The first batch also starts workers and allocates memory, once in each validation. Lists of
    # similar length share a batch, so each further batch takes as long as its lists are.
    first_seconds = ends[1] - ends[0]
    seconds_after_first = ends[-1] - ends[1]
    tokens_after_first = sum(n_tokens[1:])
    timed_tokens_after_first = sum(n_tokens[1:n_timed])
    return first_seconds + seconds_after_first * tokens_after_first / timed_tokens_after_first


def _n_tokens(data: RankingDataModule, lists: list[LabelledList]) -> int:
    """The lengths of a batch's lists, as the collator counts them."""
    return int(sum(data.collator.costs(labelled).sum() for labelled in lists))


def _seconds_to_encode_and_search(
    trainer: Trainer,
    encoder: DualEncoder,
    queries: Tokens,
    docs: Tokens,
    query_rows: np.ndarray,
    depth: int,
) -> float:
    """To encode all documents and these queries, and to search: from samples of both."""
    reads = encoder.reads
    with trainer.precision_plugin.forward_context():
        all_docs = np.arange(len(docs))
        seconds = _encoding_seconds(encoder.doc_tower, docs, reads.docs, all_docs)
        seconds += _encoding_seconds(encoder.query_tower, queries, reads.queries, query_rows)
    rng = np.random.default_rng(0)
    n_all = len(docs)
    if reads.docs.has_many_embeddings:
        n_all = int(reads.docs.n_windows(docs.lengths(all_docs)).sum())
    n_docs = min(n_all, DOCS_SEARCHED)
    n_queries = min(len(query_rows), QUERIES_SEARCHED)
    sample = rng.standard_normal((n_docs, encoder.dim)).astype(np.float32)
    index = DenseIndex.build(sample, encoder.similarity, device=encoder.device)
    begin = time.perf_counter()
    index.search(sample[rng.integers(n_docs, size=n_queries)], min(depth, n_docs))
    spent = time.perf_counter() - begin
    return seconds + spent * (n_all / n_docs) * (len(query_rows) / n_queries)


def _encoding_seconds(
    tower: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> float:
    """To encode these texts, from a random sample that grows until it takes long enough."""
    shuffled = np.random.default_rng(0).permutation(rows)
    count = min(len(rows), TEXTS_FIRST)
    while True:
        sample = shuffled[:count]
        begin = time.perf_counter()
        if form.has_many_embeddings:
            windows, _ = form.windows_of(store, sample)
            encode_in_memory(tower, windows, form.without_windows(), np.arange(len(windows)))
        else:
            encode_in_memory(tower, store, form, sample)
        seconds = time.perf_counter() - begin
        if count == len(rows) or seconds >= SECONDS_OF_SAMPLE / GROWTH:
            whole = int(form.lengths(store.lengths(rows)).sum())
            return seconds * whole / int(form.lengths(store.lengths(sample)).sum())
        count = min(len(rows), count * GROWTH)


def _refresh_cost(
    module: RankerModule, data: TripletDataModule, mining: HardNegativeMining, trainer: Trainer
) -> tuple[float, int]:
    """Seconds of a refresh, and the bytes that it leaves."""
    searcher = mining.searcher(module)
    assert isinstance(searcher, DualEncoder), "the callback checks it"
    searcher.to(module.device)
    collection = data.collection
    query_rows = collection.learnable("train").query_rows
    seconds = _seconds_to_encode_and_search(
        trainer,
        searcher,
        searcher.reads.queries.store(collection.queries),
        searcher.reads.docs.store(collection.corpus),
        query_rows,
        mining.recipe.depth,
    )
    width = max(mining.recipe.n, data.sources[0].mined_per_row)
    return seconds, len(collection.queries) * width * 12  # a row and a distance each


def _checkpoint_cost(trainer: Trainer) -> tuple[float, int]:
    """Seconds to write a checkpoint, and its bytes."""
    file = Path(trainer.default_root_dir, "sample.ckpt")
    begin = time.perf_counter()
    write_checkpoint(dump_checkpoint(trainer), file)
    seconds = time.perf_counter() - begin
    size = file.stat().st_size
    file.unlink()
    return seconds, size
