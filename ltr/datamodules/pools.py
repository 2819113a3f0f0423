"""What is evaluated: the candidate pools of a split, or a search of the whole corpus; every query
exactly once.
"""

import logging
from collections.abc import Iterable, Sequence

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import text_collator
from ltr.data.collection import Collection, open_collection
from ltr.data.formats import ApartTexts, FeatureVectors, TextReads
from ltr.data.query_lists import QueryLists
from ltr.data.sampling.plan import EvalBatches
from ltr.data.sampling.rows import Rows
from ltr.data.sampling.taught import Labels, TaughtRows
from ltr.data.tokens import TokenStore
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.ranking import RankingDataModule
from ltr.errors import InputError
from ltr.search.evaluation import SearchedCorpus

log = logging.getLogger(__name__)


class PoolDataModule(RankingDataModule):
    """What ranks a collection: the lists of ``validate`` (dev), ``test`` and ``predict`` (test).

    Training rows come from its children.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.

    Attributes:
        collection: open after ``setup``.
    """

    def __init__(
        self, path: str, evaluation: Evaluation = Evaluation(), loading: Loading = Loading()
    ) -> None:
        super().__init__(path, loading)
        self.evaluation = evaluation
        self.collection: Collection  # from setup on
        self._opened: TextReads | None = None  # what the texts were opened for
        self._pools: dict[str, EvalBatches] = {}

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.collection.queries.ids, self.collection.corpus.ids

    def pools(self, split: str) -> EvalBatches | None:
        return self._pools.get(split)

    def evaluated(self, split: str) -> dict[str, str]:
        texts = {"queries": self.collection.queries.key, "documents": self.collection.corpus.key}
        return super().evaluated(split) | texts

    def conventions(self) -> dict[str, object]:
        evaluation = self.evaluation
        said: dict[str, object] = {
            "candidates": evaluation.candidates,
            "depth": evaluation.depth,
        }
        if evaluation.candidates == "corpus":
            said["index"] = evaluation.index
        return said

    def prepare_data(self) -> None:
        """Read, check and tokenise once, in one process: the others find it all on disk."""
        self._open_texts()

    def open(self, stage: str) -> None:
        candidates = self.evaluation.candidates
        if candidates is None and stage != "fit":
            text = f"{self.path}: there is nothing to evaluate without candidates; set evaluation.candidates to corpus, say, and evaluation.depth to 100"
            raise InputError(text, option="evaluation.candidates")
        self._open_texts()
        split = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}[stage]
        self._pools.pop(split, None)
        if candidates is None:
            log.info(
                "%s: evaluation.candidates is null: training goes without validation", self.path
            )
            return
        if stage == "fit" and split not in self.collection.qrels:
            log.info("%s has no judgements for 'dev': training goes without validation", self.path)
            return
        self._pools[split] = self._pool_batches(split, judged_only=stage != "predict")

    def _open_texts(self) -> None:
        reads = self._text_form()
        if self._opened == reads:
            return
        collection = self._open_collection()
        self.collator = text_collator(collection.queries, collection.corpus, reads)
        self.collection = collection
        self.content = {"queries": collection.queries.key, "documents": collection.corpus.key}
        if self.evaluation.candidates == "corpus":
            assert isinstance(reads, ApartTexts), "_text_form checks it"
            self.corpus = SearchedCorpus(
                TokenStore.open(collection.queries, reads.queries.tokenizer),
                TokenStore.open(collection.corpus, reads.docs.tokenizer),
                reads,
                self.evaluation.needed_depth,
                self.evaluation.index,
                own_texts=collection.queries.key == collection.corpus.key,
            )
        self._opened = reads

    def with_labels(
        self, rows: Rows, labels: Labels, drawable: Iterable[tuple[int, np.ndarray]], where: str
    ) -> Rows:
        """Training rows with the labels that are asked for.

        Args:
            rows: with grades.
            labels: what is asked for.
            drawable: the documents that the rows may draw, by query.
            where: names the rows in errors.
        """
        scores = labels.open(self.collection)
        if scores is None:
            return rows
        self.content["labels"] = scores.digest()
        taught = TaughtRows(rows, scores, labels.unscored, self.names("train"), where)
        taught.check(drawable)
        return taught

    def _text_form(self) -> TextReads:
        """What the ranker reads, checked."""
        reads = self.reads
        name = type(self).__name__
        if reads is None or isinstance(reads, FeatureVectors):
            came = "nothing" if reads is None else "a ranker of feature vectors"
            hint = "train a module with a text ranker, or set data.reads = ranker.reads"
            raise InputError(
                f"{name} serves texts and must know how the ranker reads them, got {came}; {hint}"
            )
        if not isinstance(reads, ApartTexts) and self.needs_in_batch:
            hint = "take TripletDataModule or ListDataModule, or a dual encoder"
            raise InputError(
                f"a cross-encoder can't learn from groups: they hold relevant documents alone; {hint}"
            )
        if not isinstance(reads, ApartTexts) and self.evaluation.candidates == "corpus":
            text = "only a dual encoder can search the corpus: a cross-encoder reads pairs; set evaluation.candidates to candidates or bm25"
            raise InputError(text, option="evaluation.candidates")
        return reads

    def _open_collection(self) -> Collection:
        return open_collection(self.path)

    def _pool_batches(self, split: str, judged_only: bool) -> EvalBatches:
        """The lists of a split: of the judged queries; or, to predict, of all that have candidates.
        A search of the corpus, or by BM25, then takes the judged queries, or all if none is judged.
        """
        if judged_only:
            judged = self.collection.judgements(split)
        else:
            judged = self.collection.qrels.get(split, QueryLists.from_rows([], [], []))
        evaluation = self.evaluation
        asked = judged.query_rows
        if len(asked) == 0:
            asked = np.arange(len(self.collection.queries))
        if evaluation.candidates == "corpus":
            nothing = np.empty(0, dtype=np.int64)
            lists = [judged.labelled(query_row, nothing) for query_row in asked.tolist()]
            return EvalBatches(lists, evaluation.batch_size, self.collator, self.world_size)
        if evaluation.candidates == "candidates":
            pools = self.collection.pools(split, "candidates")
        else:
            pools = bm25_lists(self.collection, asked, evaluation.needed_depth)
        lists = []
        for query_row in judged.query_rows if judged_only else pools.query_rows:
            docs, _ = pools.of(query_row)
            lists.append(judged.labelled(query_row, docs[: evaluation.depth]))
        missing = sum(len(labelled.doc_rows) == 0 for labelled in lists)
        if missing:
            log.warning(
                "%d of %d %s queries have no candidates; they count as nothing found",
                missing,
                len(lists),
                split,
            )
        return EvalBatches(lists, evaluation.batch_size, self.collator, self.world_size)
