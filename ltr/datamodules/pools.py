"""What is evaluated: the candidate pools of a split, or a search of the whole corpus; every query exactly once."""

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import text_collator
from ltr.data.collection import Collection, open_collection
from ltr.data.formats import ApartTexts, FeatureVectors, Reads, TextReads
from ltr.data.plans import EvalBatches
from ltr.data.query_lists import QueryLists
from ltr.data.rows import Rows
from ltr.data.scores import TaughtRows, Teaching
from ltr.data.tokens import TokenStore
from ltr.datamodules.ranking import RankingDataModule
from ltr.errors import InputError, at_least, one_of
from ltr.search.corpus import SearchedCorpus

log = logging.getLogger(__name__)


class PoolDataModule(RankingDataModule):
    """Candidate pools for ``validate`` (dev), ``test`` and ``predict`` (test). Training data comes from its children.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        candidates: the pools to re-rank: the source's own (``candidates``), or BM25's best of the whole corpus (``bm25``); or
            ``corpus``: a dual encoder searches all of it.
        depth: documents of a pool at most, best first; None takes all (``bm25`` and ``corpus`` need a number).
        index: a faiss factory string for ``corpus``; ``Flat`` is exact, ``IVF4096,Flat`` or ``HNSW32`` are faster on millions of
            documents. See :class:`ltr.search.index.DenseIndex`.
        eval_batch_size, num_workers, persistent_workers, seed, reads: see :class:`ltr.datamodules.RankingDataModule`.

    Attributes:
        collection: open after ``setup``.
        collator: makes batches, after ``setup``.
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
        self.teaching = Teaching()
        self.collection: Collection  # from setup on
        self._opened = False
        self._pools: dict[str, EvalBatches] = {}

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.collection.queries.ids, self.collection.corpus.ids

    def pools(self, split: str) -> EvalBatches | None:
        return self._pools.get(split)

    def evaluated(self, split: str) -> dict[str, str]:
        texts = {"queries": self.collection.queries.key, "documents": self.collection.corpus.key}
        return super().evaluated(split) | texts

    def conventions(self) -> dict[str, object]:
        index = {"index": self.index} if self.candidates == "corpus" else {}
        return {"candidates": self.candidates, "depth": self.depth, **index}

    def prepare_data(self) -> None:
        """Read, check and tokenise once, in one process: the others find it all on disk."""
        self._open_texts()

    def setup(self, stage: str) -> None:
        one_of(("candidates", "bm25", "corpus"), candidates=self.candidates)
        super().setup(stage)
        self._open_texts()
        split = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}[stage]
        self._pools.pop(split, None)
        if stage == "fit" and split not in self.collection.qrels:
            log.info("%s has no judgements for 'dev': training goes without validation", self.path)
            return
        self._pools[split] = self._pool_batches(split, judged_only=stage != "predict")

    def _open_texts(self) -> None:
        if self._opened:
            return
        reads, collection = self._text_form(), self._open_collection()
        tables = collection.queries, collection.corpus
        self.collator = text_collator(*tables, reads)
        self.collection, self._opened = collection, True
        self.content = {"queries": collection.queries.key, "documents": collection.corpus.key}
        if self.candidates == "corpus":
            assert isinstance(reads, ApartTexts) and self.depth is not None, "_text_form and the constructor check it"
            queries, docs = (TokenStore.open(*side) for side in zip(tables, reads.tokenizers, strict=True))
            own_texts = collection.queries.key == collection.corpus.key
            self.corpus = SearchedCorpus(queries, docs, reads, self.depth, self.index, own_texts)

    def _taught(self, rows: Rows, drawable: Iterable[tuple[int, np.ndarray]], where: str) -> Rows:
        """The rows with the labels that are asked for; ``drawable`` are the documents that they may draw, by query."""
        scores = self.teaching.scores(self.collection)
        if scores is None:
            return rows
        self.content["labels"] = scores.digest()
        taught = TaughtRows(rows, scores, self.teaching.unscored, self.names("train"), where)
        taught.check(drawable)
        return taught

    def _text_form(self) -> TextReads:
        """What the ranker reads, checked."""
        reads, name = self.reads, type(self).__name__
        if reads is None or isinstance(reads, FeatureVectors):
            came = "nothing" if reads is None else "a ranker of feature vectors"
            hint = "pass reads=ranker.reads of a text ranker, or reads=JoinedPairs(tokenizer, 128)"
            raise InputError(f"{name} serves texts and must know how the ranker reads them, got {came}; {hint}")
        if not isinstance(reads, ApartTexts) and self.needs_in_batch:
            hint = "take TripletDataModule or ListDataModule, or a dual encoder"
            raise InputError(f"a cross-encoder can't learn from groups: they hold relevant documents alone; {hint}")
        if not isinstance(reads, ApartTexts) and self.candidates == "corpus":
            text = "only a dual encoder can search the corpus: a cross-encoder reads pairs; set candidates to candidates or bm25"
            raise InputError(text, option="candidates")
        return reads

    def _open_collection(self) -> Collection:
        return open_collection(self.path)

    def _pool_batches(self, split: str, judged_only: bool) -> EvalBatches:
        """The pools of the judged queries; or of all that have one, where there is nothing to measure."""
        unjudged = QueryLists.from_rows([], [], [])
        judged = self.collection.judgements(split) if judged_only else self.collection.qrels.get(split, unjudged)
        asked = judged.query_rows if len(judged.query_rows) else np.arange(len(self.collection.queries))
        if self.candidates == "corpus":
            nothing = np.empty(0, dtype=np.int64)
            lists = [judged.labelled(query_row, nothing) for query_row in asked.tolist()]
            return EvalBatches(lists, self.eval_batch_size, self.collator, self.world_size)
        if self.candidates == "candidates":
            pools = self.collection.pools(split, "candidates")
        else:
            assert self.depth is not None, "the constructor checks it"
            pools = bm25_lists(self.collection, asked, self.depth)
        query_rows = judged.query_rows if judged_only else pools.query_rows
        lists = [judged.labelled(query_row, pools.of(query_row)[0][: self.depth]) for query_row in query_rows]
        if missing := sum(len(one.doc_rows) == 0 for one in lists):
            log.warning("%d of %d %s queries have no candidates; they count as nothing found", missing, len(lists), split)
        return EvalBatches(lists, self.eval_batch_size, self.collator, self.world_size)
