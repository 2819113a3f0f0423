"""Data modules of texts: what is opened of one or of several sources, and what is evaluated: the
candidates of each query, or a search of the whole corpus; every query exactly once.
"""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltr.data.bm25 import ALL_WORDS, Bm25Words
from ltr.data.collection import Collection, open_collection, with_split
from ltr.data.cross_validation import collection_of_fold
from ltr.data.joined import JoinedCollections
from ltr.data.layouts import ApartTexts, FeatureVectors, PairsAndTexts, TextReads
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.mixture import PlannedSource
from ltr.data.sampling.plan import EvalBatches, Plan, SourcePlan
from ltr.data.sampling.rows import Rows, TextGroups
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
from ltr.datamodules.text_source import TextSource
from ltr.errors import InputError, positive
from ltr.search.corpus_search import SearchedCorpus, check_search

log = logging.getLogger(__name__)

# By stage. In the place of test stands what ``test_on`` names.
EVALUATED_SPLIT = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}


# Its name is that of what it does without a child: it ranks pools, or searches, and trains nothing.
class PoolDataModule(RankingDataModule):
    """Base of the data modules of texts. Opens the collection of each source, and makes the lists to
    evaluate for ``validate`` (dev), ``test`` and ``predict`` (test), from a pool of candidates for
    each query or by search.

    A child says what the rows of one source are (:meth:`rows_of`), and how they form batches
    (:meth:`plan_of`); the plans of all become one.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`; or several sources, see
            ``ltr.datamodules.sources.sources_of``.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        mixture: how several sources share the steps, see :class:`ltr.datamodules.Mixture`.
        relevant_from: the grade from which on a training document is relevant; lower ones count as 0
            where lists and negatives are drawn or mined. What is measured keeps all grades. None:
            any above 0.
        bm25: which words BM25 reads where candidates or negatives are its, see
            :class:`ltr.data.bm25.Bm25Words`.

    Attributes:
        sources: what ``path`` names, one or several; open after ``setup``.
        joined: the texts of all, after ``setup``.
    """

    takes_other_splits = True
    least_per_batch = 1  # lists of a mixed batch
    takes_negatives = False  # of each source its own
    evaluated_instead = "auto"  # what an error says to evaluate

    def __init__(
        self,
        path: str | Path | Sequence[Any],
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        mixture: Mixture | None = None,
        relevant_from: float | None = None,
        bm25: Bm25Words = ALL_WORDS,
    ) -> None:
        entries = sources_of(path)
        super().__init__(" + ".join(entry.path for entry in entries), loading)
        self.evaluation = evaluation
        self.mixture = mixture
        if relevant_from is not None:
            positive("relevant_from", relevant_from)
        self.relevant_from = relevant_from
        self.bm25 = bm25
        self.sources = tuple(TextSource(entry, bm25) for entry in entries)
        # A source that stands alone has no name: its metrics and ids are told as they are.
        self.source_names = tuple(entry.name for entry in entries)
        self.joined: JoinedCollections  # from setup on
        self._opened_for: TextReads | None = None  # the layout that the texts were opened for
        # Of the stages that were set up, by their slot, the value of EVALUATED_SPLIT.
        self._eval_batches: dict[str, EvalBatches] = {}
        self._check_sources()

    def _check_sources(self) -> None:
        for number, source in enumerate(self.sources):
            negatives = source.entry.negatives
            if negatives is not None and not self.takes_negatives:
                raise InputError(
                    f"path[{number}]: {type(self).__name__} takes no negatives, got {negatives!r}; leave them out, or take TripletDataModule",
                    option="path",
                )
        if len(self.sources) == 1:
            return
        if self.evaluation.fold is not None:
            raise InputError(
                f"a cross-validation is of one collection, got fold {self.evaluation.fold} and {len(self.sources)} sources; leave it out",
                option="evaluation.fold",
            )
        if self.mixture is not None:
            check_mixture(self._entries(), self.mixture)

    def _entries(self) -> list[DataSource]:
        return [source.entry for source in self.sources]

    @property
    def collection(self) -> Collection:
        """That of the only source, after ``setup``."""
        (source,) = self.sources
        return source.collection

    @property
    def trained_sources(self) -> list[TextSource]:
        """Those that are trained on: all but the one that is left out."""
        left_out = None if self.mixture is None else self.mixture.leave_out
        # A source that stands alone has no name, and is never left out.
        return [source for source in self.sources if not source.name or source.name != left_out]

    @property
    def mixes_sources(self) -> bool:
        is_mixed = self.mixture is not None and self.mixture.batches == "mixed"
        return is_mixed and len(self.trained_sources) > 1

    def test_on(self, split: str) -> None:
        if split != "test" and len(self.sources) > 1:
            raise InputError(
                f"a split of another name is of one collection, got {split!r} and {len(self.sources)} sources; name one of them: --data.path PATH",
                option="split",
            )
        if split != "test" and self.evaluation.fold is not None:
            raise InputError(
                f"a fold takes the place of all splits, got {self.evaluation.fold} and the split {split!r}; leave out one of the two",
                option="evaluation.fold",
            )
        super().test_on(split)

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.joined.query_ids, self.joined.doc_ids

    @property
    def corpora(self) -> Sequence[SearchedCorpus]:
        return [source.corpus for source in self.sources if source.corpus is not None]

    @property
    def measurable_splits(self) -> set[str]:
        splits = set()
        for split, sources in (("dev", self.trained_sources), ("test", self.sources)):
            judged = [one.collection for one in sources if split in one.collection.qrels]
            if judged and all(self._has_candidates(collection, split) for collection in judged):
                splits.add(split)
        return splits

    def _has_candidates(self, collection: Collection, split: str) -> bool:
        """Whether there are pools, where the options ask for them."""
        asks_for_pools = self.evaluation.candidates == "candidates"
        return split in collection.candidates or not asks_for_pools

    @property
    def options_to_measure(self) -> str:
        if self.evaluation.candidates is not None:
            return ""
        return " --data.evaluation.candidates auto"

    @property
    def taken(self) -> dict[str, str]:
        taken: dict[str, str] = {}
        for source in self.sources:
            taken |= source.named(source.taken)
        return taken

    def eval_batches(self, split: str) -> EvalBatches | None:
        return self._eval_batches.get(split)

    def evaluation_digests(self, split: str) -> dict[str, str]:
        return super().evaluation_digests(split) | self._text_digests()

    def _text_digests(self) -> dict[str, str]:
        """Digests of what is read of queries and of documents."""
        digests: dict[str, str] = {}
        for source in self.sources:
            digests |= source.named(source.text_digests())
        return digests

    def conventions(self, split: str) -> dict[str, object]:
        evaluation = self.evaluation
        conventions: dict[str, object] = self._ranked(split)
        if self.bm25 != ALL_WORDS and "bm25" in str(conventions["candidates"]):
            conventions["bm25"] = self.bm25.in_words()
        if evaluation.candidates == "corpus":
            conventions["index"] = evaluation.index
        if evaluation.fold is not None:
            conventions["fold"] = asdict(evaluation.fold)
        return conventions

    def _ranked(self, split: str) -> dict[str, object]:
        """The candidates that a split is ranked by, and their depth: what ``auto`` took, where the
        option says that. No depth where pools that have no order stay whole.
        """
        name = self.tested_split if split == "test" else split
        took: dict[object, list[str]] = {}  # names of sources
        depth = self.evaluation.depth
        judged = [source for source in self.sources if name in source.collection.qrels]
        for source in judged or self.sources:  # what is predicted needs no judgements
            candidates = self.evaluation.of_split(source.collection, name).candidates
            took.setdefault(candidates, []).append(source.name)
            if candidates == "candidates":
                depth = source.collection.depth_of_pools(name, depth)
        if len(took) == 1:
            (only,) = took
            depth = self.evaluation.needed_depth if only == "bm25" else depth
            return {"candidates": only, "depth": depth}
        parts = [f"{candidates} of {', '.join(names)}" for candidates, names in took.items()]
        return {"candidates": " and ".join(parts), "depth": depth}

    def prepare_data(self) -> None:
        """Read, check and tokenise once, in one process: the others find it all on disk."""
        self._open_texts(None if self.trainer is None else self.trainer.state.fn)

    def measured_collection(self) -> Collection:
        """The collection with the split that ``test`` measures, read and checked, and not tokenised:
        what is measured, for who must know it before any work.

        Raises:
            InputError: for a collection that can't be read or is not judged, or where nothing is
                evaluated; for several sources.
        """
        if len(self.sources) > 1:
            raise InputError(
                f"one collection must be named to be measured so, got {len(self.sources)} sources; name one of them: --data.path PATH",
                option="path",
            )
        self._check_evaluated()
        (entry,) = self._entries()
        collection = self._with_tested_split(self._open_collection(entry))
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
                f"{self.path}: there is nothing to evaluate without candidates; set evaluation.candidates to {self.evaluated_instead}",
                option="evaluation.candidates",
            )

    def open(self, stage: str) -> None:
        candidates = self.evaluation.candidates
        if stage != "fit":
            self._check_evaluated()
        self._open_texts(stage)
        slot = EVALUATED_SPLIT[stage]
        self._eval_batches.pop(slot, None)  # of an earlier setup
        if candidates is None:
            log.info(
                "%s: evaluation.candidates is null: training goes without validation", self.path
            )
            return
        if slot == "test":
            for source in self.sources:
                source.collection = self._with_tested_split(source.collection)
            lists = self._lists_to_evaluate(self.sources, self.tested_split, stage)
        else:
            # What is not trained on has no say in which weights are best.
            lists = self._lists_to_evaluate(self.trained_sources, slot, stage)
        if lists is None:
            log.info("%s has no judgements for 'dev': training goes without validation", self.path)
            return
        self._eval_batches[slot] = EvalBatches(
            lists, self.evaluation.batch_size, self.collator, self.world_size
        )

    def _lists_to_evaluate(
        self, sources: Sequence[TextSource], split: str, stage: str
    ) -> list[LabelledList] | None:
        """The lists of a split of some sources; None where a training has none to validate with."""
        # What is predicted needs no judgements: its pools are enough.
        judged_only = stage != "predict"
        evaluated = list(sources)
        if judged_only:
            evaluated = [source for source in sources if split in source.collection.qrels]
        if not evaluated:
            if stage == "fit":
                return None
            evaluated = list(sources)  # what is predicted
        lists: list[LabelledList] = []
        for source in evaluated:
            lists += source.lists_to_evaluate(self.evaluation, split, judged_only=judged_only)
        left_out = [source.name for source in sources if source not in evaluated]
        if left_out:
            log.info(
                "the mean over sources leaves out %s, without judgements for %r",
                ", ".join(left_out),
                split,
            )
        return lists

    def plan(self) -> Plan:
        trained = self.trained_sources
        if any(source.rows is None for source in trained):  # made for an earlier plan
            self._make_rows()
        for source in trained:
            assert source.rows is not None, "made above, or before the texts were tokenised"
            source.plan = self.plan_of(source, source.rows)
            source.rows = None
        if len(self.sources) == 1:
            if self.mixture is not None:
                log.warning("mixture has no effect: path names one source, %s", self.path)
            return trained[0].plan
        return plan_of_sources(
            [PlannedSource(source.plan, source.shift) for source in trained],
            [source.entry for source in trained],
            self.mixture or Mixture(),
            self.least_per_batch,
            self.rank,
            self.world_size,
        )

    def _make_rows(self) -> None:
        """Make the training rows of all sources that are trained on."""
        trained = self.trained_sources
        for source in trained:
            source.digests = source.text_digests()
            source.rows = self.rows_of(source)
        self.digests = self._digests_of_training()
        self.largest_soft_label = max(source.largest_soft_label for source in trained)
        counts = [source.lists_with_both for source in trained if source.lists_with_both]
        if counts:  # of all sources: they are of one kind
            n_with_both = sum(both for both, _ in counts)
            n_lists = sum(lists for _, lists in counts)
            self.lists_with_both = (n_with_both, n_lists)

    def _digests_of_training(self) -> dict[str, str]:
        """Those of what the run learns from, once there are training rows."""
        digests = self._text_digests()
        for source in self.trained_sources:
            digests |= source.named(source.digests)
        if len(self.sources) > 1:
            mixture = self.mixture or Mixture()
            digests["mixture"] = digest_of_mixture(self._entries(), mixture)
        return digests

    @abstractmethod
    def rows_of(self, source: TextSource) -> Rows | TextGroups:
        """The training rows, or groups, of a source. It is asked for before any text is tokenised, and
        raises what can't be learnt. A child also puts the digests of what it learns from into those of
        the source.
        """

    def plan_of(self, source: TextSource, rows: Any) -> SourcePlan:
        """Which rows of a source form a batch. Here those of similar length; a child with groups
        makes a :class:`ltr.data.sampling.group_plan.GroupPlan` of them.
        """
        return self.buckets(rows, source.collator)

    def check_training(self, source: TextSource) -> None:
        """Raise what the judgements of a source, and the options of its training lists, tell before
        any text is tokenised. A child checks what else it learns from.
        """
        if source.name and "train" not in source.collection.qrels:
            raise InputError(
                f"{source.path}: each source must have a split 'train', and {source.name} has none; leave it out of path",
                option="path",
            )

    def _check_evaluation(self, stage: str) -> None:
        """Raise what the judgements and pools that a stage evaluates lack."""
        if self.evaluation.candidates is None:
            return
        is_dev = EVALUATED_SPLIT[stage] == "dev"
        split = "dev" if is_dev else self.tested_split
        sources = self.trained_sources if is_dev else self.sources
        if not is_dev:
            for source in sources:
                source.collection = self._with_tested_split(source.collection)
        if stage in ("validate", "test"):
            self._check_judged(sources, split)
        for source in sources:
            collection = source.collection
            if split not in collection.qrels and stage != "predict":
                continue
            if self.evaluation.of_split(collection, split).candidates == "candidates":
                collection.check_pools(split, option="evaluation.candidates")

    def check_search(self, dim: int, cutoffs: Mapping[str, int | None]) -> None:
        if self.evaluation.candidates != "corpus":
            return
        reads = self._checked_reads()
        assert isinstance(reads, ApartTexts), "others are refused"
        for source in self.sources:
            n_docs = len(source.collection.corpus)
            # How many windows they have is known when they are tokenised: the corpus checks it then.
            has_windows = reads.docs.has_many_embeddings
            index = "Flat" if has_windows else self.evaluation.index
            check_search(self.evaluation.needed_depth, index, (n_docs, dim), cutoffs)

    def _check_judged(self, sources: Sequence[TextSource], split: str) -> None:
        """Raise an InputError where no source has judgements for a split that is measured."""
        if len(self.sources) == 1:
            self.collection.judgements(split)
        elif all(split not in source.collection.qrels for source in sources):
            raise InputError(
                f"{self.path}: a source must have judgements for the split {split!r}, and none has"
            )

    def _open_texts(self, stage: str | None) -> None:
        """Read, check and tokenise, unless that is done; see :meth:`open_collections`."""
        if self._opened_for != self._checked_reads():
            self.open_collections(stage)
            self.tokenise()

    def open_collections(self, stage: str | None = None) -> None:
        """Read the collections, and check all that can be told before their texts are tokenised.

        Args:
            stage: what is checked for, and of which the training rows are made; None: nothing.
        """
        self._check_source_options(self._checked_reads())
        self.check_options()
        for source in self.sources:
            source.collection = self._open_collection(source.entry)
            source.rows = None
        if stage == "fit":
            for source in self.trained_sources:
                self.check_training(source)
            self.largest_soft_label = max(one.largest_soft_label for one in self.trained_sources)
            self.check_options()
        if stage is not None:
            self._check_evaluation(stage)
        if stage == "fit":
            self._make_rows()
            if self._content_to_resume:
                self._check_content(self._content_to_resume)
        if stage is not None:
            self.check_data()

    def tokenise(self) -> None:
        """Tokenise the texts of the collections, which are open."""
        reads = self._checked_reads()
        for source in self.sources:
            source.open(source.collection, reads, self.evaluation)
        collections = [source.collection for source in self.sources]
        self.joined = JoinedCollections(self.source_names, collections)
        for number, source in enumerate(self.sources):
            source.place(self.joined.shift_of(number))
        self.first_queries = self.joined.first_queries.tolist()
        if len(self.sources) == 1:
            self.collator = self.sources[0].collator
        else:
            self.collator = self.joined.collator(reads)
        self._opened_for = reads

    def _check_source_options(self, reads: TextReads) -> None:
        """Check what can't be known before the ranker is there."""
        if self.labels.scores is not None and len(self.sources) > 1:
            raise InputError(
                "the scores of a teacher are of one collection, and path names several; train on one of them",
                option="labels.scores",
            )
        pairs = reads.pairs if isinstance(reads, PairsAndTexts) else reads
        for number, source in enumerate(self.sources):
            if source.entry.instruction and not pairs.reads_instructions:
                raise InputError(
                    f"path[{number}]: the ranker must read instructions, and its template has no {{instruction}}; write it into template.query, or leave the instruction out",
                    option="path",
                )

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
                "only a dual encoder can search the corpus: a cross-encoder reads pairs; set evaluation.candidates to auto",
                option="evaluation.candidates",
            )
        return reads

    def _open_collection(self, entry: DataSource) -> Collection:
        collection = open_collection(entry.path)._replace(relevant_from=self.relevant_from)
        if self.evaluation.fold is not None:
            collection = collection_of_fold(collection, self.evaluation.fold)
        if not entry.instruction:
            return collection
        queries = collection.queries.with_instruction(entry.instruction)
        return collection._replace(queries=queries)
