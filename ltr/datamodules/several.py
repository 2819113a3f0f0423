"""Data of one collection or of several sources: each source is a data module of its own, and their
texts lie one behind the other.
"""

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ltr.data.collection import Collection
from ltr.data.formats import PairsAndTexts, TextReads
from ltr.data.joined import JoinedCollections
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.mixture import SourcePlan
from ltr.data.sampling.plan import Plan, TrainBatches
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.sources import (
    DataSource,
    Mixture,
    check_mixture,
    digest_of_mixture,
    plan_of_sources,
    sources_of,
)
from ltr.errors import InputError
from ltr.search.corpus_search import SearchedCorpus

log = logging.getLogger(__name__)


class SourcesDataModule(PoolDataModule):
    """Base of the data modules that train on one collection, or on several sources.

    A child says how the rows of one collection form batches (:meth:`plan`). Of several sources each
    is a copy of this data module, for its collection alone, and the plans of all become one.

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

    least_per_batch = 1  # lists of a mixed batch
    takes_negatives = False  # of each source its own

    def __init__(
        self,
        path: str | Path | Sequence[Any],
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        mixture: Mixture | None = None,
    ) -> None:
        sources: tuple[DataSource, ...] = ()
        if not isinstance(path, str | Path):
            sources = sources_of(path)
            path = " + ".join(source.path for source in sources)
        super().__init__(path, evaluation, loading)
        self.data_sources = sources
        self.source_names = tuple(source.name for source in sources)
        self.mixture = mixture
        self.joined: JoinedCollections  # from setup on
        self._instruction = ""  # of queries that have none of their own
        # A data module of each source, of this class, from prepare_data on.
        self._parts: list[SourcesDataModule] = []
        if sources:
            self._check_sources()

    def _check_sources(self) -> None:
        for number, source in enumerate(self.data_sources):
            if source.negatives is not None and not self.takes_negatives:
                raise InputError(
                    f"path[{number}]: {type(self).__name__} takes no negatives, got {source.negatives!r}; leave them out, or take TripletDataModule",
                    option="path",
                )
        if self.evaluation.fold is not None:
            raise InputError(
                f"a cross-validation is of one collection, got fold {self.evaluation.fold} and {len(self.data_sources)} sources; leave it out",
                option="evaluation.fold",
            )
        if self.mixture is not None:
            check_mixture(self.data_sources, self.mixture)

    def test_on(self, split: str) -> None:
        if split != "test" and self.data_sources:
            raise InputError(
                f"a split of another name is of one collection, got {split!r} and {len(self.data_sources)} sources; name one of them: --data.path PATH",
                option="split",
            )
        super().test_on(split)

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        if self.data_sources:
            return self.joined.query_ids, self.joined.doc_ids
        return super().names(split)

    def collections(self) -> list[tuple[str, Collection]]:
        if not self.data_sources:
            return super().collections()
        return list(zip(self.source_names, self.joined.collections, strict=True))

    def measured_collection(self) -> Collection:
        if self.data_sources:
            raise InputError(
                f"one collection must be named to be measured so, got {len(self.data_sources)} sources; name one of them: --data.path PATH",
                option="path",
            )
        return super().measured_collection()

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

    @property
    def trained_sources(self) -> list[int]:
        """The numbers of the sources that are trained on: all but the one that is left out."""
        left_out = None if self.mixture is None else self.mixture.leave_out
        numbers: list[int] = []
        for number, source in enumerate(self.data_sources):
            if source.name != left_out:
                numbers.append(number)
        return numbers

    def part(self, source: DataSource) -> Self:
        """A data module of one source alone, with the options of this one."""
        part = copy(self)
        part.path = source.path
        part.data_sources = ()
        part.source_names = ()
        part.mixture = None
        part.train = None
        part.digests = {}
        part._instruction = source.instruction
        part._opened_for = None
        part._eval_batches = {}
        part._parts = []
        return part

    def training_plan(self) -> Plan:
        if not self.data_sources:
            if self.mixture is not None:
                log.warning("mixture has no effect: path names one source, %s", self.path)
            return self.plan()
        mixture = self.mixture or Mixture()
        trained: list[SourcesDataModule] = []
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
            trained.append(part)
            sources.append(SourcePlan(part.train.plan, self.joined.shifted(number)))
            self.digests |= _named(name, part.digests)
        self.has_distances = all(part.has_distances for part in trained)
        self.has_soft_labels = any(part.has_soft_labels for part in trained)
        counts = [part.lists_with_both for part in trained if part.lists_with_both is not None]
        if counts:  # of all sources: they are of one kind
            self.lists_with_both = (
                sum(both for both, _ in counts),
                sum(all_ for _, all_ in counts),
            )
        self.digests["mixture"] = digest_of_mixture(self.data_sources, mixture)
        return plan_of_sources(
            sources,
            [self.data_sources[number] for number in self.trained_sources],
            mixture,
            self.least_per_batch,
            self.rank,
            self.world_size,
        )

    def _open_collection(self) -> Collection:
        collection = super()._open_collection()
        if not self._instruction:
            return collection
        queries = collection.queries.with_instruction(self._instruction)
        return collection._replace(queries=queries)

    def _open_texts(self) -> None:
        if not self.data_sources:
            super()._open_texts()
            return
        reads = self._checked_reads()
        if self._opened_for == reads:
            return
        self._check_source_options(reads)
        self._parts = []
        for source in self.data_sources:
            part = self.part(source)
            self._parts.append(part)
            part.trainer = self.trainer
            part.reads = reads
            part._open_texts()
        collections = [part.collection for part in self._parts]
        self.joined = JoinedCollections(self.source_names, collections)
        self.first_queries = self.joined.first_query.tolist()
        self.collator = self.joined.collator(reads)
        self.digests = self._text_digests()
        self._opened_for = reads

    def _check_source_options(self, reads: TextReads) -> None:
        """Check what can't be known before the ranker is there."""
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

    def _text_digests(self) -> dict[str, str]:
        if not self.data_sources:
            return super()._text_digests()
        digests: dict[str, str] = {}
        for name, part in zip(self.source_names, self._parts, strict=True):
            digests |= _named(name, part._text_digests())
        return digests

    def _lists_of_stage(self, stage: str, split: str) -> list[LabelledList] | None:
        if not self.data_sources:
            return super()._lists_of_stage(stage, split)
        lists: list[LabelledList] = []
        left_out: list[str] = []
        for number, part in enumerate(self._parts):
            # What is not trained on has no say in which weights are best.
            if split == "dev" and number not in self.trained_sources:
                continue
            # What is predicted needs no judgements: its pools are enough, as for a single path.
            if stage != "predict" and split not in part.collection.qrels:
                left_out.append(self.source_names[number])
                continue
            shifted = self.joined.shifted(number)
            of_source = part._lists_to_evaluate(split, judged_only=stage != "predict")
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


def _named(name: str, digests: dict[str, str]) -> dict[str, str]:
    """The digests of a source, under names that no other source's have."""
    return {f"{name} {what}": digest for what, digest in digests.items()}
