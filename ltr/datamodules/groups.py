"""Online P×K batches: groups of documents that belong together, ranked against the other groups of the batch."""

import logging
from collections.abc import Sequence
from typing import Literal, get_args

from ltr.data.collate import TextCollator
from ltr.data.collection import Collection
from ltr.data.formats import JoinedPairs
from ltr.data.group_plan import GroupPlan, LabelGroups, QueryGroups
from ltr.data.labelled_texts import LabelledTexts, open_labelled_texts
from ltr.data.tokens import TokenStore
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.ranking import RankingDataModule, TrainBatches, at_least_one
from ltr.errors import InputError

log = logging.getLogger(__name__)

Source = Literal["queries", "labels"]


class GroupDataModule(PoolDataModule):
    """One row is one group: a query with some of its relevant documents, or texts of one label. For dual encoders.

    An epoch visits every training query once, with documents drawn anew; or every labelled text about once, in groups that are
    drawn anew. A batch never holds two groups of one query or label, see :class:`ltr.data.group_plan.GroupPlan`. It is a pure
    function of (seed, epoch, step, rank): the same with any number of workers, and after a resume.

    Labelled texts are measured by the search of the corpus (``candidates: corpus``): every dev (test) text is a query, and finds
    the others of its label among the other texts of its split.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`; or labelled texts, see
            :func:`ltr.data.labelled_texts.open_labelled_texts`.
        groups: P, groups per step over all processes; the last batches of an epoch may have fewer.
        docs_per_group: K, documents of a group; one that has fewer gives those.
        source: what the groups are made of: ``queries`` of a collection, or ``labels`` of texts, whose lists have no query.
        candidates, depth, eval_batch_size, num_workers, persistent_workers, seed: see :class:`ltr.datamodules.PoolDataModule`.

    Attributes:
        needs_in_batch: groups hold relevant documents alone, so a module must rank them against those of other groups.
        collection: of labelled texts, those of the split that is measured, or of ``train`` where none is.
        texts: the labelled texts, open after ``setup``; None for a collection.

    Raises:
        InputError: at ``setup``, for a training query without a relevant document, fewer than two labels, more groups than
            labels, fewer groups than processes, or a cross-encoder.
    """

    needs_in_batch = True

    def __init__(
        self,
        path: str,
        groups: int = 32,
        docs_per_group: int = 4,
        source: Source = "queries",
        candidates: Literal["candidates", "bm25", "corpus"] = "candidates",
        depth: int | None = None,
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(path, candidates, depth, eval_batch_size, num_workers, persistent_workers, seed)
        at_least_one(docs_per_group=docs_per_group)
        if source not in get_args(Source):
            raise InputError(f"source must be one of {get_args(Source)}, got {source!r} (option data.init_args.source)")
        if groups < 2:
            raise InputError(
                f"groups must be at least 2, got {groups}: one group has nothing to be told from (option data.init_args.groups)"
            )
        if source == "labels" and docs_per_group < 2:
            raise InputError(
                "docs_per_group must be at least 2 with source 'labels', got 1: texts are relevant to each other (option "
                "data.init_args.docs_per_group)"
            )
        self.groups, self.docs_per_group, self.source = groups, docs_per_group, source
        self.texts: LabelledTexts | None = None
        self._measured = "dev"

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """See :class:`ltr.datamodules.RankingDataModule`; a group of labelled texts has the name of its label."""
        if self.source == "labels" and split == "train":
            return self.texts.names, self.texts.tables["train"].ids
        return super().names(split)

    def prepare_data(self) -> None:
        """See :meth:`PoolDataModule.prepare_data`."""
        self._choose_split("fit" if self.trainer is None else self.trainer.state.fn)
        super().prepare_data()
        if self.source == "labels":
            for table in self.texts.tables.values():
                for tokenizer in self.text_format.tokenizers:
                    TokenStore.open(table, tokenizer)

    def setup(self, stage: str) -> None:
        """See :meth:`PoolDataModule.setup`; ``fit`` also draws up the groups."""
        self._choose_split(stage)
        if self.source == "queries" or self.searches_corpus:
            super().setup(stage)
        elif stage == "fit":
            RankingDataModule.setup(self, stage)
            self._open_texts()
            log.info(
                "%s: labelled texts have no candidates, so training goes without validation; data.init_args.candidates: corpus "
                "searches all texts of the split",
                self.path,
            )
        else:
            raise InputError(
                f"{self.path}: labelled texts have no candidates; to measure, set data.init_args.candidates: corpus and "
                "data.init_args.depth: 100, which searches all texts of the split"
            )
        if stage == "fit":
            self._setup_training()

    def _choose_split(self, stage: str) -> None:
        """Labelled texts are a collection for each split: the one that the stage measures."""
        if self.source == "labels":
            self._measured = "dev" if stage in ("fit", "validate") else "test"
            self.collection = None  # that of another split may be open

    def _setup_training(self) -> None:
        if self.groups < self.world_size:
            raise InputError(
                f"groups must be at least the number of processes, {self.world_size}, got {self.groups}: each needs one of every "
                "batch (option data.init_args.groups)"
            )
        where = f"{self.path}: split 'train'"
        if self.source == "queries":
            name_of = self.collection.queries.ids.__getitem__
            judged = self.collection.judgements("train")
            groups = QueryGroups(judged, self.docs_per_group, self.seed, where=where, name_of=name_of)
            collator = self.collator
        else:
            groups, collator = self._label_groups(where)
        plan = GroupPlan(groups, self.groups, self.seed, self.rank, self.world_size)
        if not len(plan):
            raise InputError(
                f"{where}: a batch needs at least {max(2, self.world_size)} queries, to be told from each other, and one for "
                f"every process; got {plan.n_rows}"
            )
        if plan.n_used < plan.n_rows:
            left_out, total = plan.n_rows - plan.n_used, plan.n_rows
            log.info("%s: %d of %d groups find none to share a batch with; other ones in each epoch", where, left_out, total)
        self.train = TrainBatches(plan, collator)

    def _label_groups(self, where: str) -> tuple[LabelGroups, TextCollator]:
        if "train" not in self.texts.tables:
            raise InputError(f"{self.path}: there is no train.tsv[.gz]; 'ltr fit' needs it")
        groups = LabelGroups(self.texts.labels["train"], self.docs_per_group, self.seed, where=where)
        if self.groups > groups.n_labels:
            raise InputError(
                f"{where}: groups must be at most {groups.n_labels}, the labels with two texts or more, got {self.groups}: no "
                "two groups of a batch share a label (option data.init_args.groups)"
            )
        docs = TokenStore.open(self.texts.tables["train"], self.text_format.docs.tokenizer)
        return groups, TextCollator(None, docs, self.text_format)

    def _open_texts(self) -> None:
        reader = self if self.trainer is None else self.trainer.lightning_module
        if isinstance(getattr(reader, "text_format", None), JoinedPairs):
            raise InputError(
                "a cross-encoder can't learn from groups: they hold relevant documents alone, with nothing to rank below them; "
                "take TripletDataModule or ListDataModule, or a dual encoder"
            )
        super()._open_texts()

    def _open_collection(self) -> Collection:
        if self.source == "queries":
            return super()._open_collection()
        self.texts = open_labelled_texts(self.path)
        asked = self.trainer is not None and self.trainer.state.fn in ("validate", "test", "predict")
        if asked and self._measured not in self.texts.tables:
            raise InputError(
                f"{self.path}: there is no {self._measured}.tsv[.gz] to be measured, only {sorted(self.texts.tables)}"
            )
        measured = self.searches_corpus and self._measured in self.texts.tables
        return self.texts.collection(self._measured if measured else next(iter(self.texts.tables)))
