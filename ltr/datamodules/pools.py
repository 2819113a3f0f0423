"""What is evaluated of a collection: the candidates of each query, or a search of the whole corpus;
every query exactly once.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import collator_of
from ltr.data.collection import Collection, open_collection, with_split
from ltr.data.cross_validation import of_fold
from ltr.data.formats import ApartTexts, FeatureVectors, TextReads
from ltr.data.own_documents import own_documents_line
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.plan import EvalBatches
from ltr.data.sampling.rows import Rows
from ltr.data.sampling.taught import TaughtRows
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.ranking import RankingDataModule
from ltr.errors import InputError
from ltr.mining.same_texts import known_documents
from ltr.search.corpus_search import SearchedCorpus

log = logging.getLogger(__name__)

# By stage. In the place of test stands what ``test_on`` names.
EVALUATED_SPLIT = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}


class PoolDataModule(RankingDataModule):
    """Base of the data modules of a collection: opens it, and makes the lists to evaluate for
    ``validate`` (dev), ``test`` and ``predict`` (test), from a pool of candidates for each query or
    by search.

    Training rows come from its children.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.

    Attributes:
        collection: open after ``setup``.
    """

    def __init__(
        self, path: str | Path, evaluation: Evaluation = Evaluation(), loading: Loading = Loading()
    ) -> None:
        super().__init__(path, loading)
        self.evaluation = evaluation
        self.collection: Collection  # from setup on
        self._opened_for: TextReads | None = None  # the layout that the texts were opened for
        # Of the stages that were set up, by the value of EVALUATED_SPLIT.
        self._eval_batches: dict[str, EvalBatches] = {}

    def test_on(self, split: str) -> None:
        if split != "test" and self.evaluation.fold is not None:
            raise InputError(
                f"a fold takes the place of all splits, got {self.evaluation.fold} and the split {split!r}; leave out one of the two",
                option="evaluation.fold",
            )
        self.tested_split = split

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.collection.queries.ids, self.collection.corpus.ids

    def eval_batches(self, split: str) -> EvalBatches | None:
        return self._eval_batches.get(split)

    def evaluation_digests(self, split: str) -> dict[str, str]:
        return super().evaluation_digests(split) | self._text_digests()

    def _text_digests(self) -> dict[str, str]:
        """Digests of what is read of queries and of documents."""
        return {
            "queries": self.collection.queries.read_key,
            "documents": self.collection.corpus.key,
        }

    def conventions(self) -> dict[str, object]:
        evaluation = self.evaluation
        conventions: dict[str, object] = {
            "candidates": evaluation.candidates,
            "depth": evaluation.depth,
        }
        if evaluation.candidates == "corpus":
            conventions["index"] = evaluation.index
        if evaluation.fold is not None:
            conventions["fold"] = asdict(evaluation.fold)
        return conventions

    def prepare_data(self) -> None:
        """Read, check and tokenise once, in one process: the others find it all on disk."""
        self._open_texts()

    def measured_collection(self) -> Collection:
        """The collection with the split that ``test`` measures, read and checked, and not tokenised:
        what is measured, for who must know it before any work.

        Raises:
            InputError: for a collection that can't be read or is not judged, or where nothing is
                evaluated.
        """
        self._check_evaluated()
        collection = self._with_tested_split(self._open_collection())
        collection.judgements(self.tested_split)
        return collection

    def _with_tested_split(self, collection: Collection) -> Collection:
        """The collection and the split that is tested: ``test`` is there already, or it has none."""
        if self.tested_split == "test":
            return collection
        return with_split(collection, self.tested_split)

    def _check_evaluated(self) -> None:
        if self.evaluation.candidates is None:
            raise InputError(
                f"{self.path}: there is nothing to evaluate without candidates; set evaluation.candidates to corpus, say, and evaluation.depth to 100",
                option="evaluation.candidates",
            )

    def open(self, stage: str) -> None:
        candidates = self.evaluation.candidates
        if stage != "fit":
            self._check_evaluated()
        self._open_texts()
        split = EVALUATED_SPLIT[stage]
        self._eval_batches.pop(split, None)  # of an earlier setup
        if candidates is None:
            log.info(
                "%s: evaluation.candidates is null: training goes without validation", self.path
            )
            return
        lists = self._lists_of_stage(stage, split)
        if lists is None:
            log.info("%s has no judgements for 'dev': training goes without validation", self.path)
            return
        self._eval_batches[split] = EvalBatches(
            lists, self.evaluation.batch_size, self.collator, self.world_size
        )

    def _lists_of_stage(self, stage: str, split: str) -> list[LabelledList] | None:
        """The lists that a stage evaluates; None where a training has none to validate with."""
        if stage == "fit" and split not in self.collection.qrels:
            return None
        measured = split
        if split == "test":
            self.collection = self._with_tested_split(self.collection)
            measured = self.tested_split
        return self._lists_to_evaluate(measured, judged_only=stage != "predict")

    def collections(self) -> list[tuple[str, Collection]]:
        """The name and the collection of each source, after ``setup``; the name of a single one is
        empty.
        """
        return [("", self.collection)]

    def _open_texts(self) -> None:
        """Read, check and tokenise, unless it is done for this layout already."""
        reads = self._checked_reads()
        if self._opened_for == reads:
            return
        collection = self._open_collection()
        self.collator = collator_of([collection.queries], [collection.corpus], reads)
        self.collection = collection
        self.digests = self._text_digests()
        if self.evaluation.candidates == "corpus":
            assert isinstance(reads, ApartTexts), "_checked_reads refuses others"
            self.corpus = SearchedCorpus(
                reads.queries.store(collection.queries),
                reads.docs.store(collection.corpus),
                reads,
                self.evaluation.needed_depth,
                self.evaluation.index,
                own_docs=collection.own_documents(),
            )
        self._opened_for = reads

    def known_documents(self, judged: QueryLists) -> QueryLists:
        """The judgements of training queries, and with them what must not be a negative either, see
        :func:`ltr.mining.same_texts.known_documents`. Says how much that is.
        """
        known = known_documents(self.collection, judged)
        n_new = len(known.doc_rows) - len(judged.doc_rows)
        if n_new:
            log.info(
                "%s: split 'train': %d pairs of a query and a document that nobody judged are never negatives: the document has the text of the query, or of a document that is relevant for it or for an equal query",
                self.path,
                n_new,
            )
        return known

    def with_labels(
        self, rows: Rows, drawable: Iterable[tuple[int, np.ndarray]], where: str
    ) -> Rows:
        """Training rows with the labels that the option ``labels`` asks for.

        Args:
            rows: with grades.
            drawable: the documents that the rows may draw, by query.
            where: names the rows in errors.
        """
        scores = self.labels.open(self.collection)
        if scores is None:
            return rows
        self.digests["labels"] = scores.digest()
        taught = TaughtRows(rows, scores, self.labels.unscored, self.names("train"), where)
        if taught.unscored == "refuse":
            taught.check(drawable)
        taught.log_left_out()
        return taught

    def _checked_reads(self) -> TextReads:
        """What the ranker reads; an InputError where this data can't be laid out so."""
        reads = self.reads
        if reads is None or isinstance(reads, FeatureVectors):
            got = "nothing" if reads is None else "a ranker of feature vectors"
            raise InputError(
                f"{type(self).__name__} serves texts and must know how the ranker reads them, got {got}; train a module with a text ranker, or set data.reads = ranker.reads"
            )
        if isinstance(reads, ApartTexts):
            return reads
        if self.needs_in_batch:
            raise InputError(
                "a cross-encoder can't learn from groups: they hold relevant documents alone; take TripletDataModule or ListDataModule, or a dual encoder"
            )
        if self.evaluation.candidates == "corpus":
            raise InputError(
                "only a dual encoder can search the corpus: a cross-encoder reads pairs; set evaluation.candidates to candidates or bm25",
                option="evaluation.candidates",
            )
        return reads

    def _open_collection(self) -> Collection:
        collection = open_collection(self.path)
        if self.evaluation.fold is None:
            return collection
        return of_fold(collection, self.evaluation.fold)

    def _lists_to_evaluate(self, split: str, *, judged_only: bool) -> list[LabelledList]:
        """One list for each query of a split.

        Args:
            split: of the collection.
            judged_only: True, to measure: the judged queries, and an InputError without
                judgements. False, to predict: with ``candidates`` the queries that have a pool;
                with ``bm25`` and ``corpus`` the judged queries, or all if none is judged.
        """
        evaluation = self.evaluation
        if judged_only:
            judged = self.collection.judgements(split)
        else:
            judged = self.collection.qrels.get(split, QueryLists.from_rows([], [], []))
        # bm25 and corpus find documents for any query: all of them, where none is judged.
        query_rows = judged.query_rows
        if len(query_rows) == 0:
            query_rows = np.arange(len(self.collection.queries))
        self._leave_out_own_documents(split, query_rows)

        if evaluation.candidates == "corpus":
            # The module searches the documents, with the weights of the moment.
            no_docs = np.empty(0, dtype=np.int64)
            return [judged.labelled(query_row, no_docs) for query_row in query_rows.tolist()]

        if evaluation.candidates == "bm25":
            candidates = bm25_lists(self.collection, query_rows, evaluation.needed_depth)
        else:
            candidates = self.collection.pools(split, option="candidates")
            query_rows = judged.query_rows if judged_only else candidates.query_rows
        lists: list[LabelledList] = []
        n_empty = 0
        for query_row in query_rows:
            docs, _ = candidates.of(query_row)
            lists.append(judged.labelled(query_row, docs[: evaluation.depth]))
            if len(docs) == 0:
                n_empty += 1
        if n_empty > 0:
            log.warning(
                "%d of %d %s queries have no candidates; they count as nothing found",
                n_empty,
                len(lists),
                split,
            )
        return lists

    def _leave_out_own_documents(self, split: str, query_rows: np.ndarray) -> None:
        """Say how many queries are documents themselves. Pools and BM25 have left these documents
        out; a search is told which they are now that all judgements are known.
        """
        own_docs = self.collection.own_documents()
        if self.corpus is not None:
            self.corpus = replace(self.corpus, own_docs=own_docs)
        line = own_documents_line(
            self.collection.queries, self.collection.corpus, query_rows, own_docs
        )
        if line:
            log.info("%s: split %r: %s", self.path, split, line)
