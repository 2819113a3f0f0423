"""Offline triplets: a query, relevant documents, and others to be ranked below them."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import LabelledList
from ltr.data.negatives import MinedNegatives
from ltr.data.query_lists import QueryLists
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.ranking import Buckets, TrainBatches, at_least_one
from ltr.errors import InputError

log = logging.getLogger(__name__)


class TripletDataModule(PoolDataModule):
    """One row is one query with ``positives`` relevant documents and ``negatives_per_query`` others.

    An epoch visits every training query once, with documents drawn anew, without repeats; a query with fewer has a shorter
    row. A batch is a pure function of (seed, epoch, step, rank): the same with any number of workers, and after a resume.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        negatives: where the others come from, always without the relevant ones: the source's pools (``candidates``: judged 0 or
            unjudged), the best ``negatives_depth`` of BM25 (``bm25``), the whole corpus (``random``), or a folder of mined
            negatives.
        positives: relevant documents per row.
        negatives_per_query: others per row.
        negatives_depth: how far down the negatives may stand in their source; None takes all that ``candidates`` or a folder has,
            and 100 of ``bm25``.
        batch_size: rows per step and process.
        bucket_window: batches among which rows are sorted by length to save padding; 1 turns that off.
        candidates, depth, eval_batch_size, num_workers, persistent_workers, seed: see :class:`ltr.datamodules.PoolDataModule`.

    Raises:
        InputError: at ``setup``, for a training query without a relevant document.
    """

    def __init__(
        self,
        path: str,
        negatives: str = "candidates",
        positives: int = 1,
        negatives_per_query: int = 7,
        negatives_depth: int | None = None,
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
        at_least_one(
            positives=positives, negatives_per_query=negatives_per_query, batch_size=batch_size, bucket_window=bucket_window
        )
        self.negatives, self.positives, self.negatives_per_query = negatives, positives, negatives_per_query
        self.negatives_depth, self.batch_size, self.bucket_window = negatives_depth, batch_size, bucket_window

    def setup(self, stage: str) -> None:
        """See :meth:`PoolDataModule.setup`; ``fit`` also draws up the training rows."""
        super().setup(stage)
        if stage == "fit":
            negatives, have_distances = self._negative_source()
            rows = TripletRows(
                self.collection.judgements("train"),
                negatives,
                len(self.collection.corpus),
                self.positives,
                self.negatives_per_query,
                self.seed,
                have_distances=have_distances,
                where=f"{self.path}: split 'train'",
                name_of=self.collection.queries.ids.__getitem__,
            )
            where = self.seed, self.rank, self.world_size
            self.train = TrainBatches(Buckets(rows, self.collator, self.batch_size, *where, self.bucket_window), self.collator)

    def _negative_source(self) -> tuple[QueryLists | None, bool]:
        """Documents to draw from (None: the whole corpus), and whether their values are distances."""
        if self.negatives == "random":
            return None, False
        if self.negatives == "candidates":
            lists = self.collection.pools("train", "data.init_args.negatives")
        elif self.negatives == "bm25":
            lists = bm25_lists(self.collection, self.collection.judgements("train").query_rows, self.negatives_depth or 100)
        else:
            lists = MinedNegatives.open(Path(self.negatives), self.collection).lists()
        return lists.first(self.negatives_depth), self.negatives not in ("candidates", "bm25")


class TripletRows:
    """The training queries, and the documents drawn for each in each epoch.

    Args:
        judged: judgements of the split.
        negatives: documents to draw from by query; None draws from the whole corpus.
        n_docs: documents of the corpus.
        positives, negatives_per_query: how many to draw.
        seed: of the drawing.
        have_distances: the values of ``negatives`` are distances, to travel with the documents.
        where, name_of: for errors: the split, and the id of a query's row.

    Raises:
        InputError: if a query has no relevant document, or no query has both kinds.
    """

    def __init__(
        self,
        judged: QueryLists,
        negatives: QueryLists | None,
        n_docs: int,
        positives: int,
        negatives_per_query: int,
        seed: int,
        *,
        have_distances: bool = False,
        where: str,
        name_of: Callable[[int], str] = str,
    ) -> None:
        self.judged, self.negatives, self.n_docs = judged, negatives, n_docs
        self.positives, self.negatives_per_query, self.seed = positives, negatives_per_query, seed
        self.have_distances = have_distances
        rows, without_positive = [], []
        for query_row in judged.query_rows:
            if not (judged.of(query_row)[1] > 0).any():
                without_positive.append(query_row)
            elif negatives is None or len(self._others(query_row)[0]):
                rows.append(query_row)
        if without_positive:
            raise InputError(
                f"{where}: {len(without_positive)} of {len(judged.query_rows)} queries have no document with a grade above 0, "
                f"first {name_of(without_positive[0])!r}; remove them from the split, there is nothing to learn from"
            )
        if not rows:
            raise InputError(
                f"{where}: no query has a document to rank below its relevant ones; take another source of negatives"
            )
        if len(rows) < len(judged.query_rows):
            left_out, total = len(judged.query_rows) - len(rows), len(judged.query_rows)
            log.info("%s: %d of %d queries have no negatives and are left out", where, left_out, total)
        self.query_rows = np.asarray(rows)

    def __len__(self) -> int:
        return len(self.query_rows)

    def _others(self, query_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents to draw negatives from, and their values."""
        judged_rows, grades = self.judged.of(query_row)
        doc_rows, values = self.negatives.of(query_row)
        kept = (doc_rows != judged_rows[grades > 0][:, None]).all(axis=0)  # of such few, np.isin spends its time on choosing how
        return doc_rows[kept], values[kept]

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: relevant documents first. A pure function of (seed, epoch, query)."""
        query_row = int(self.query_rows[row])
        rng = np.random.default_rng([self.seed, epoch, query_row])
        judged_rows, grades = self.judged.of(query_row)
        relevant = np.flatnonzero(grades > 0)
        positive = rng.choice(relevant, min(self.positives, len(relevant)), replace=False)
        distances = None
        if self.negatives is None:
            negative = _draw_outside(rng, self.n_docs, judged_rows[relevant], self.negatives_per_query)
        else:
            others, values = self._others(query_row)
            chosen = rng.choice(len(others), min(self.negatives_per_query, len(others)), replace=False)
            negative = others[chosen]
            if self.have_distances:
                # Of a relevant document no loss asks a margin.
                distances = np.concatenate([np.zeros(len(positive), np.float32), values[chosen]])
        return LabelledList(
            query_row,
            np.concatenate([judged_rows[positive], negative]),
            np.concatenate([grades[positive], np.zeros(len(negative), np.float32)]),
            distances,
            judged_rows=judged_rows,
            judged_grades=grades,
        )


def _draw_outside(rng: np.random.Generator, n: int, forbidden: np.ndarray, count: int) -> np.ndarray:
    """``count`` different numbers below n, none of them forbidden (fewer if there are not so many)."""
    count = min(count, n - len(forbidden))
    drawn: dict[int, None] = {}
    closed = set(forbidden.tolist())
    while len(drawn) < count:
        drawn.update((d, None) for d in rng.integers(n, size=2 * count).tolist() if d not in closed)
    return np.asarray(list(drawn)[:count], dtype=np.int64)
