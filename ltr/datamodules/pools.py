"""What is evaluated: the candidate pools of a split, or a search of the whole corpus; every query exactly once."""

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import text_collator
from ltr.data.collection import Collection, open_collection
from ltr.data.formats import ApartTexts, FeatureVectors, JoinedPairs, Reads
from ltr.data.plans import EvalBatches
from ltr.data.query_lists import QueryLists
from ltr.data.tokens import TokenStore
from ltr.datamodules.ranking import RankingDataModule, at_least
from ltr.errors import InputError
from ltr.search.corpus import SearchedCorpus

log = logging.getLogger(__name__)


class PoolDataModule(RankingDataModule):
    """Candidate pools for ``validate`` (dev), ``test`` and ``predict`` (test). Training data comes from its children.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        candidates: the pools to re-rank: the source's own (``candidates``), or BM25's best of the whole corpus (``bm25``); or
            ``corpus``: a dual encoder searches all of it.
        depth: documents of a pool at most, best first; None takes all (``bm25`` and ``corpus`` need a number).
        index: how the corpus is searched, a faiss factory string; ``Flat`` is exact.
        eval_batch_size, num_workers, persistent_workers, seed, reads: see :class:`ltr.datamodules.RankingDataModule`.

    Attributes:
        collection: open after ``setup``.
    """

    def __init__(
        self,
        path: str,
        candidates: Literal["candidates", "bm25", "corpus"] | None = "candidates",
        depth: int | None = None,
        index: str = "Flat",
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
        reads: Reads | None = None,
    ) -> None:
        super().__init__(path, eval_batch_size, num_workers, persistent_workers, seed, reads)
        if candidates in ("bm25", "corpus") and depth is None:
            raise InputError(f"candidates {candidates!r} need a depth, the number of documents per query", option="depth")
        at_least(1, depth=depth)
        self.candidates, self.depth, self.index = candidates, depth, index
        self.collection: Collection | None = None
        self._pools: dict[str, EvalBatches] = {}

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.collection.queries.ids, self.collection.corpus.ids

    def pools(self, split: str) -> EvalBatches | None:
        return self._pools.get(split)

    @property
    def conventions(self) -> dict[str, str | int | None]:
        return {"candidates": self.candidates, "depth": self.depth}

    @property
    def searches_corpus(self) -> bool:
        """Whether the lists to evaluate come from a search of the corpus, which the module does."""
        return self.candidates == "corpus"

    @property
    def corpus(self) -> SearchedCorpus | None:
        if not self.searches_corpus:
            return None
        own_texts = self.collection.queries.key == self.collection.corpus.key
        return SearchedCorpus(self.collator.queries, self.collator.docs, self.reads, self.depth, self.index, own_texts)

    def prepare_data(self) -> None:
        """Read, check and tokenise once, in one process: the others find it all on disk."""
        self._open_texts()

    def setup(self, stage: str) -> None:
        """Open the collection and the split that a stage (``fit``, ``validate``, ``test``, ``predict``) needs."""
        super().setup(stage)
        self._open_texts()
        split = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}[stage]
        self._pools.pop(split, None)
        if stage == "fit" and split not in self.collection.qrels:
            log.info("%s has no judgements for 'dev': training goes without validation", self.path)
            return
        self._pools[split] = self._pool_batches(split, judged_only=stage != "predict")

    def _open_texts(self) -> None:
        if not isinstance(self.reads, JoinedPairs | ApartTexts):
            reader = "a feature ranker" if isinstance(self.reads, FeatureVectors) else "nothing"
            raise InputError(
                f"{type(self).__name__} serves texts and must know how its ranker reads them, got the layout of {reader}; take a "
                "ranker of texts, and in Python give reads=ranker.reads"
            )
        if self.collection is not None:
            return
        if self.needs_in_batch and isinstance(self.reads, JoinedPairs):
            raise InputError(
                "a cross-encoder can't learn from groups: they hold relevant documents alone, with nothing to rank below them; "
                "take TripletDataModule or ListDataModule, or a dual encoder"
            )
        if self.searches_corpus and isinstance(self.reads, JoinedPairs):
            raise InputError(
                "only a dual encoder can search the corpus: a cross-encoder reads every document with every query; set "
                "candidates to candidates or bm25",
                option="candidates",
            )
        collection = self._open_collection()
        tables = collection.queries, collection.corpus
        queries, docs = (TokenStore.open(*side) for side in zip(tables, self.reads.tokenizers, strict=True))
        self.reads.check_queries(collection.queries, queries)
        self.collator = text_collator(queries, docs, self.reads)
        self.collection = collection

    def _open_collection(self) -> Collection:
        return open_collection(self.path)

    def _pool_batches(self, split: str, judged_only: bool) -> EvalBatches:
        """The pools of the judged queries; or of all that have one, where there is nothing to be measured."""
        unjudged = QueryLists.from_rows([], [], [])
        judged = self.collection.judgements(split) if judged_only else self.collection.qrels.get(split, unjudged)
        asked = judged.query_rows if len(judged.query_rows) else np.arange(len(self.collection.queries))
        if self.searches_corpus:
            nothing = np.empty(0, dtype=np.int64)
            lists = [judged.labelled(query_row, nothing) for query_row in asked]
            return EvalBatches(lists, self.eval_batch_size, self.collator, self.world_size)
        if self.candidates == "candidates":
            pools = self.collection.pools(split, "candidates")
        else:
            pools = bm25_lists(self.collection, asked, self.depth)
        query_rows = judged.query_rows if judged_only else pools.query_rows
        lists = [judged.labelled(query_row, pools.of(query_row)[0][: self.depth]) for query_row in query_rows]
        missing = sum(len(one.doc_rows) == 0 for one in lists)
        if missing:
            log.warning("%d of %d %s queries have no candidates; they count as nothing found", missing, len(lists), split)
        return EvalBatches(lists, self.eval_batch_size, self.collator, self.world_size)
