"""Graded lists of varying length: a query with its candidates and all that is judged for it."""

import logging
from typing import Literal, get_args

from ltr.data.bm25 import bm25_lists
from ltr.data.formats import Reads
from ltr.data.query_lists import QueryLists
from ltr.data.rows import GradedLists, Keep, ListRows, with_two_grades
from ltr.data.scores import Teaching, Unscored
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import at_least, one_of

log = logging.getLogger(__name__)

Unjudged = Literal["irrelevant", "skip"]


class ListDataModule(PoolDataModule):
    """One row is one query with its candidate list: the documents of its pool and all judged ones, with their grades.

    The pools are those of evaluation, and as deep: the source's own, or BM25's best of the whole corpus. Where evaluation
    searches the corpus, they are the source's own if it has any for ``train``, else BM25's.

    An epoch visits every training query once; lists without two grades are left out.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        unjudged: documents of the pool that nobody judged are ``irrelevant`` (grade 0), or left out (``skip``): lists then hold
            judged documents alone, and no pool is read.
        list_size: documents of a training list at most; None: no limit.
        keep: what stays of a longer list, drawn anew in each epoch. ``relevant``: the relevant documents, best grades first, and
            others as far as there is room, at least one document of another grade; ``any``: each document equally likely;
            ``all``: every document, in several lists of about one size.
        batch_size: lists per step and process.
        bucket_window: batches among which rows are sorted by length to save padding; 1 turns that off.
        labels: ``grades``, or ``scores:FOLDER``: the scores of a teacher, written by ``ltr score``. The loss must take scores,
            and lists are ranked by themselves.
        unscored: documents without a score: ``refuse`` them, or ``leave_out``, which shortens the list.
        label_deviation: bring the scores to this standard deviation within a list (the mean over the lists), for losses that
            compare them with the student's; None: as they are.
        candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads: see :class:`PoolDataModule`.

    Raises:
        InputError: at ``setup``, if there is nothing to rank, or no pool.
    """

    def __init__(
        self,
        path: str,
        unjudged: Unjudged = "irrelevant",
        list_size: int | None = None,
        keep: Keep = "relevant",
        batch_size: int = 16,
        bucket_window: int = 64,
        labels: str = "grades",
        unscored: Unscored = "refuse",
        label_deviation: float | None = None,
        candidates: Literal["candidates", "bm25", "corpus"] = "candidates",
        depth: int | None = None,
        index: str = "Flat",
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
        reads: Reads | None = None,
    ) -> None:
        super().__init__(path, candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads)
        self.teaching = Teaching(labels, unscored, label_deviation)
        self.teaches = self.teaching.labels != "grades"
        at_least(1, batch_size=batch_size, bucket_window=bucket_window)
        at_least(2, list_size=list_size)  # one document has no order
        one_of(get_args(Unjudged), unjudged=unjudged)
        one_of(get_args(Keep), keep=keep)
        self.unjudged, self.list_size, self.keep = unjudged, list_size, keep
        self.batch_size, self.bucket_window = batch_size, bucket_window

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            judged, where = self.collection.judgements("train"), f"{self.path}: split 'train'"
            lists = GradedLists(judged, self._pool_source())
            self.content["judgements"] = judged.digest()
            if lists.pools is not None:
                self.content["candidates"] = lists.pools.digest()
            # A teacher tells documents apart that all have one grade.
            queries = judged.query_rows if self.teaches else with_two_grades(lists, judged.query_rows, where)
            if left_out := len(judged.query_rows) - len(queries):
                text = "%s: %d of %d queries have no two documents of different grades and are left out"
                log.info(text, where, left_out, len(judged.query_rows))
            rows = ListRows(lists, queries, self.list_size, self.keep, self.seed)
            drawable = ((query, lists.whole(query).doc_rows) for query in queries.tolist())
            self.train = self._buckets(self._taught(rows, drawable, where), self.bucket_window, self.collator)

    def _pool_source(self) -> QueryLists | None:
        """Documents beside the judged ones; None for none."""
        if self.unjudged == "skip":
            return None
        if self.candidates == "candidates" or (self.candidates == "corpus" and "train" in self.collection.candidates):
            return self.collection.pools("train", "candidates").first(self.depth)
        assert self.depth is not None, "the constructor checks it"
        return bm25_lists(self.collection, self.collection.judgements("train").query_rows, self.depth)
