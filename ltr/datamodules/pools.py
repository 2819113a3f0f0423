"""What is evaluated of a collection: the candidates of each query, or a search of the whole corpus;
every query exactly once.
"""

import logging
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from ltr.data.bm25 import bm25_lists
from ltr.data.collate import collator_of
from ltr.data.collection import Collection, open_collection
from ltr.data.folds import of_fold
from ltr.data.formats import ApartTexts, FeatureVectors, PairsAndTexts, TextReads
from ltr.data.joined import JoinedCollections
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.mixture import SourcePlan
from ltr.data.sampling.plan import EvalBatches, Plan, TrainBatches
from ltr.data.sampling.rows import Rows
from ltr.data.sampling.taught import TaughtRows
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.ranking import RankingDataModule
from ltr.datamodules.sources import (
    DataSource,
    Mixture,
    check_mixture,
    digest_of_mixture,
    plan_of_sources,
    sources_of,
)
from ltr.errors import InputError
from ltr.search.evaluation import SearchedCorpus

log = logging.getLogger(__name__)

EVALUATED_SPLIT = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}  # by stage


class PoolDataModule(RankingDataModule):
    """Base of the data modules of a collection: opens it, and makes the lists to evaluate for
    ``validate`` (dev), ``test`` and ``predict`` (test), from a pool of candidates for each query or
    by search.

    Training rows come from its children.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`; or several sources, see
            :func:`ltr.datamodules.sources.sources_of`.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        mixture: how several sources share the steps, see :class:`ltr.datamodules.Mixture`.

    Attributes:
        collection: open after ``setup``, where there is one source.
        data_sources: what ``path`` says of several sources; empty for a single path.
        joined: the collections of several sources, open after ``setup``.
    """

    least_per_batch = 1  # lists
    takes_sources = True  # whether path may name several
    takes_negatives = False  # of each source its own

    def __init__(
        self,
        path: str | Path | Sequence[Any],
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        mixture: Mixture | None = None,
    ) -> None:
        self.data_sources: tuple[DataSource, ...] = ()
        if isinstance(path, str | Path):
            super().__init__(path, loading)
        elif not self.takes_sources:
            raise InputError(
                f"{type(self).__name__} takes one path, got {path!r:.80}; train on one of them",
                option="path",
            )
        else:
            self.data_sources = sources_of(path)
            super().__init__(" + ".join(source.path for source in self.data_sources), loading)
            self.source_names = tuple(source.name for source in self.data_sources)
        for number, source in enumerate(self.data_sources):
            if source.negatives is not None and not self.takes_negatives:
                raise InputError(
                    f"path[{number}]: {type(self).__name__} takes no negatives, got {source.negatives!r}; leave them out, or take TripletDataModule",
                    option="path",
                )
        if self.data_sources and evaluation.fold is not None:
            raise InputError(
                f"a cross-validation is of one collection, got fold {evaluation.fold} and {len(self.data_sources)} sources; leave it out",
                option="evaluation.fold",
            )
        if self.data_sources and mixture is not None:
            check_mixture(self.data_sources, mixture)
        self.evaluation = evaluation
        self.mixture = mixture
        self.collection: Collection  # from setup on
        self.joined: JoinedCollections  # from setup on
        self._instruction = ""  # of queries that have none of their own
        self._parts: list[PoolDataModule] = []  # a data module of each source, from prepare_data on
        self._opened_for: TextReads | None = None  # the layout that the texts were opened for
        self._eval_batches: dict[str, EvalBatches] = {}  # by split, of the stages that were set up

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        if self.data_sources:
            return self.joined.query_ids, self.joined.doc_ids
        return self.collection.queries.ids, self.collection.corpus.ids

    def eval_batches(self, split: str) -> EvalBatches | None:
        return self._eval_batches.get(split)

    def evaluation_digests(self, split: str) -> dict[str, str]:
        return super().evaluation_digests(split) | self._text_digests()

    def _text_digests(self) -> dict[str, str]:
        """Digests of what is read of queries and of documents."""
        digests: dict[str, str] = {}
        for name, part in zip(self.source_names, self._parts, strict=True):
            digests |= _named(name, part._text_digests())
        if self.data_sources:
            return digests
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
        """The collection of ``test``, read and checked, and not tokenised: what is measured, for who
        must know it before any work.

        Raises:
            InputError: for a collection that can't be read or is not judged, or where nothing is
                evaluated.
        """
        self._check_evaluated()
        collection = self._open_collection()
        collection.judgements("test")
        return collection

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
        judged_only = stage != "predict"
        if not self.data_sources:
            if stage == "fit" and split not in self.collection.qrels:
                return None
            return self._lists_to_evaluate(split, judged_only=judged_only)
        lists: list[LabelledList] = []
        left_out: list[str] = []
        for number, part in enumerate(self._parts):
            # What is not trained on has no say in which weights are best.
            if split == "dev" and number not in self.trained_sources:
                continue
            if split not in part.collection.qrels:
                left_out.append(self.source_names[number])
                continue
            shifted = self.joined.shifted(number)
            of_source = part._lists_to_evaluate(split, judged_only=judged_only)
            lists += [shifted(labelled) for labelled in of_source]
        if not lists:
            if stage == "fit":
                return None
            raise InputError(
                f"{self.path}: a source must have judgements for the split {split!r}, and none has"
            )
        if left_out:
            log.info(
                "the mean over sources leaves out %s, without judgements for %r",
                ", ".join(left_out),
                split,
            )
        return lists

    def _open_texts(self) -> None:
        """Read, check and tokenise, unless it is done for this layout already."""
        reads = self._checked_reads()
        if self._opened_for == reads:
            return
        if self.data_sources:
            self._open_sources(reads)
            self._opened_for = reads
            return
        collection = self._open_collection()
        self.collator = collator_of(collection.queries, collection.corpus, reads)
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
                queries_are_docs=collection.queries.key == collection.corpus.key,
            )
        self._opened_for = reads

    # Several sources

    def collections(self) -> list[tuple[str, Collection]]:
        """The name and the collection of each source, after ``setup``; one without a name where
        there is one.
        """
        if not self.data_sources:
            return [("", self.collection)]
        return list(zip(self.source_names, self.joined.collections, strict=True))

    def part(self, source: DataSource) -> Self:
        """A data module of one source alone, with the options of this one."""
        part = copy(self)
        part.path = source.path
        part.data_sources = ()
        part.source_names = ()
        part.mixture = None
        part.digests = {}
        part._instruction = source.instruction
        part._opened_for = None
        part._eval_batches = {}
        part._parts = []
        part.train = None
        return part

    @property
    def trained_sources(self) -> list[int]:
        """The numbers of the sources that are trained on: all but the one that is left out."""
        left_out = None if self.mixture is None else self.mixture.leave_out
        numbers: list[int] = []
        for number, source in enumerate(self.data_sources):
            if source.name != left_out:
                numbers.append(number)
        return numbers

    @property
    def corpora(self) -> Sequence[SearchedCorpus]:
        if not self.data_sources:
            return super().corpora
        corpora: list[SearchedCorpus] = []
        for number, part in enumerate(self._parts):
            if part.corpus is not None:
                first_query = int(self.joined.first_query[number])
                first_doc = int(self.joined.first_doc[number])
                corpora.append(replace(part.corpus, first_query=first_query, first_doc=first_doc))
        return corpora

    def _open_sources(self, reads: TextReads) -> None:
        """Open each source as a data module of its own, and lay their texts one behind the other."""
        if self.labels.scores is not None:
            raise InputError(
                "the scores of a teacher are of one collection, and path names several; train on one of them",
                option="labels.scores",
            )
        pairs = reads.pairs if isinstance(reads, PairsAndTexts) else reads
        for number, source in enumerate(self.data_sources):
            if source.instruction and not pairs.reads_instructions:
                raise InputError(
                    f"path[{number}]: the ranker must read instructions, and its template has no {{instruction}}; write it into template.query, or leave the instruction out",
                    option="path",
                )
        self._parts = [self.part(source) for source in self.data_sources]
        for part in self._parts:
            part.trainer = self.trainer
            part.reads = reads
            part._open_texts()
        collections = [part.collection for part in self._parts]
        self.joined = JoinedCollections(self.source_names, collections)
        self.first_queries = self.joined.first_query.tolist()
        self.collator = self.joined.collator(reads)
        self.digests = self._text_digests()

    def training_plan(self) -> Plan:
        if not self.data_sources:
            if self.mixture is not None:
                log.warning("mixture has no effect: path names one source, %s", self.path)
            return self.plan()
        mixture = self.mixture or Mixture()
        sources: list[SourcePlan] = []
        for number in self.trained_sources:
            part = self._parts[number]
            name = self.source_names[number]
            if "train" not in part.collection.qrels:
                raise InputError(
                    f"{part.path}: each source must have a split 'train', and {name} has none; leave it out of path",
                    option="path",
                )
            part.trainer = self.trainer  # perhaps another one than when the texts were opened
            part.train = TrainBatches(part.plan(), part.collator)
            sources.append(SourcePlan(part.train.plan, self.joined.shifted(number)))
            self.digests |= _named(name, part.digests)
        trained = [self._parts[number] for number in self.trained_sources]
        self.has_distances = all(part.has_distances for part in trained)
        self.has_soft_labels = any(part.has_soft_labels for part in trained)
        self.digests["mixture"] = digest_of_mixture(self.data_sources, mixture)
        return plan_of_sources(
            sources,
            [self.data_sources[number] for number in self.trained_sources],
            mixture,
            self.least_per_batch,
            self.rank,
            self.world_size,
        )

    # One source

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
        if self._instruction:
            queries = collection.queries.with_instruction(self._instruction)
            collection = collection._replace(queries=queries)
        if self.evaluation.fold is None:
            return collection
        return of_fold(collection, self.evaluation.fold)

    def _lists_to_evaluate(self, split: str, *, judged_only: bool) -> list[LabelledList]:
        """One list for each query of a split.

        Args:
            split: ``dev`` or ``test``.
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


def _named(name: str, digests: dict[str, str]) -> dict[str, str]:
    """The digests of a source, under names that no other source's have."""
    return {f"{name} {what}": digest for what, digest in digests.items()}
