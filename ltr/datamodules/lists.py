"""Graded lists of varying length: a query with its candidates and all that is judged for it."""

import logging
from typing import Literal, get_args

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import LabelledList
from ltr.data.query_lists import QueryLists
from ltr.datamodules.pools import PoolDataModule, labelled
from ltr.datamodules.ranking import Buckets, TrainBatches, at_least_one
from ltr.errors import InputError

log = logging.getLogger(__name__)

Relevant = Literal["all", "sample"]
Unjudged = Literal["irrelevant", "skip"]


class ListDataModule(PoolDataModule):
    """One row is one query with its candidate list: the documents of its pool and all judged ones, with their grades.

    The pools are of the kind that is re-ranked, and as deep: the source's own, or BM25's best of the whole corpus. Where the
    corpus is searched, they are the source's own if it has any for ``train``, else BM25's.

    An epoch visits every training query once; lists of which no two documents differ in grade are left out. A batch is a pure
    function of (seed, epoch, step, rank): the same with any number of workers, and after a resume.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        unjudged: whether documents of the pool that nobody judged are ``irrelevant`` (grade 0), or to ``skip``: then lists hold
            the judged documents alone, and no pool is read.
        list_size: documents of a list at most; None takes all.
        relevant: which of a longer list, anew in each epoch. ``all``: the relevant ones, best grades first, and others as far as
            there is room, at least one document of another grade; ``sample``: any, each as likely.
        batch_size: lists per step and process.
        bucket_window: batches among which rows are sorted by length to save padding; 1 turns that off.
        candidates, depth, eval_batch_size, num_workers, persistent_workers, seed: see :class:`ltr.datamodules.PoolDataModule`.

    Raises:
        InputError: at ``setup``, if there is nothing to rank, or no pool.
    """

    def __init__(
        self,
        path: str,
        unjudged: Unjudged = "irrelevant",
        list_size: int | None = None,
        relevant: Relevant = "all",
        batch_size: int = 16,
        bucket_window: int = 64,
        candidates: Literal["candidates", "bm25", "corpus"] = "candidates",
        depth: int | None = None,
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(path, candidates, depth, eval_batch_size, num_workers, persistent_workers, seed)
        at_least_one(batch_size=batch_size, bucket_window=bucket_window)
        if list_size is not None and list_size < 2:
            raise InputError(
                f"list_size must be at least 2, got {list_size}: one document has no order (option data.init_args.list_size)"
            )
        choices = ("unjudged", unjudged, get_args(Unjudged)), ("relevant", relevant, get_args(Relevant))
        for name, value, known in choices:
            if value not in known:
                raise InputError(f"{name} must be one of {known}, got {value!r} (option data.init_args.{name})")
        self.unjudged, self.list_size, self.relevant = unjudged, list_size, relevant
        self.batch_size, self.bucket_window = batch_size, bucket_window

    def setup(self, stage: str) -> None:
        """See :meth:`PoolDataModule.setup`; ``fit`` also draws up the training rows."""
        super().setup(stage)
        if stage == "fit":
            rows = ListRows(
                self.collection.judgements("train"),
                self._pool_source(),
                self.list_size,
                self.relevant,
                self.seed,
                where=f"{self.path}: split 'train'",
            )
            where = self.seed, self.rank, self.world_size
            self.train = TrainBatches(Buckets(rows, self.collator, self.batch_size, *where, self.bucket_window), self.collator)

    def _pool_source(self) -> QueryLists | None:
        """Documents beside the judged ones; None for none."""
        if self.unjudged == "skip":
            return None
        if self.candidates == "candidates" or (self.searches_corpus and "train" in self.collection.candidates):
            return self.collection.pools("train", "data.init_args.candidates").first(self.depth)
        return bm25_lists(self.collection, self.collection.judgements("train").query_rows, self.depth)


class ListRows:
    """The training queries that have something to rank, and the list of each in each epoch.

    Args:
        judged: judgements of the split.
        pools: other documents by query, taken as grade 0 where nobody judged them; None for none.
        list_size, relevant: see :class:`ListDataModule`.
        seed: of the drawing.
        where: the split, for errors.

    Raises:
        InputError: if no query has two documents of different grades.
    """

    def __init__(
        self, judged: QueryLists, pools: QueryLists | None, list_size: int | None, relevant: Relevant, seed: int, *, where: str
    ) -> None:
        self.judged, self.pools = judged, pools
        self.list_size, self.relevant, self.seed = list_size, relevant, seed
        self.query_rows = np.asarray([row for row in judged.query_rows if np.ptp(self.whole(row).labels) > 0], dtype=np.int64)
        if not len(self.query_rows):
            raise InputError(f"{where}: no query has two documents of different grades; there is nothing to rank")
        if len(self.query_rows) < len(judged.query_rows):
            left_out, total = len(judged.query_rows) - len(self.query_rows), len(judged.query_rows)
            log.info("%s: %d of %d queries have no two documents of different grades and are left out", where, left_out, total)

    def __len__(self) -> int:
        return len(self.query_rows)

    def whole(self, query_row: int) -> LabelledList:
        """The documents of a query's pool in their order, then those judged that are not among them."""
        judged_rows, _ = self.judged.of(query_row)
        pool = judged_rows[:0] if self.pools is None else self.pools.of(query_row)[0]
        doc_rows = np.concatenate([pool, judged_rows[~np.isin(judged_rows, pool)]])
        return labelled(query_row, doc_rows, self.judged)._replace(ideal=None)

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function of (seed, epoch, query)."""
        query_row = int(self.query_rows[row])
        one = self.whole(query_row)
        if self.list_size is None or len(one.doc_rows) <= self.list_size:
            return one
        order = np.random.default_rng([self.seed, epoch, query_row]).permutation(len(one.doc_rows))
        if self.relevant == "all":
            order = order[np.argsort(-one.labels[order], kind="stable")]
            grades = one.labels[order]
            if grades[0] == grades[self.list_size - 1]:  # nothing to rank: give the last place to the best of another grade
                order[self.list_size - 1] = order[np.argmax(grades < grades[0])]
        kept = order[: self.list_size]
        return one._replace(doc_rows=one.doc_rows[kept], labels=one.labels[kept])
