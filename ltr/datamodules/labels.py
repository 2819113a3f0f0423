"""P×K batches of labelled texts: texts of one label, ranked against those of the other labels of
the batch.
"""

from collections.abc import Sequence

from ltr.data.collate import TextCollator
from ltr.data.collection import Collection
from ltr.data.files import digest_of_arrays
from ltr.data.formats import ApartTexts
from ltr.data.labelled_texts import LabelledTexts, open_labelled_texts
from ltr.data.sampling.group_plan import GroupPlan
from ltr.data.sampling.groups import LabelGroups
from ltr.data.tokens import TokenStore
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError, at_least, one_of


class LabelDataModule(PoolDataModule):
    """One row is one group: texts of one label, without a query. For dual encoders that rank all
    texts of a batch.

    An epoch visits every text about once, in groups that are drawn anew. A batch never holds two
    groups of one label, see :class:`ltr.data.sampling.group_plan.GroupPlan`.

    Labelled texts are evaluated by search (``candidates: corpus``): every dev (test) text is a
    query, and should find the others of its label among the other texts of its split.

    Args:
        path: labelled texts, see :func:`ltr.data.labelled_texts.open_labelled_texts`.
        groups: P, groups per step over all processes; the last batches of an epoch may have fewer.
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
    """

    needs_in_batch = True  # groups hold relevant texts alone

    def __init__(
        self,
        path: str,
        groups: int = 32,
        docs_per_group: int = 4,
        evaluation: Evaluation = Evaluation(candidates=None),
        loading: Loading = Loading(),
    ) -> None:
        super().__init__(path, evaluation, loading)
        # Labelled texts have no candidates but those of a search.
        one_of(("corpus", None), **{"evaluation.candidates": evaluation.candidates})
        # Two texts to be relevant to each other, and two groups to be told apart.
        at_least(2, groups=groups, docs_per_group=docs_per_group)
        self.groups = groups
        self.docs_per_group = docs_per_group
        self.texts: LabelledTexts  # from setup on
        self._evaluated = "dev"

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """A training group is named by its label."""
        return (
            (self.texts.names, self.texts.tables["train"].ids)
            if split == "train"
            else super().names(split)
        )

    def prepare_data(self) -> None:
        self._choose_split("fit" if self.trainer is None else self.trainer.state.fn or "fit")
        super().prepare_data()
        reads = self._text_form()
        assert isinstance(reads, ApartTexts), "a cross-encoder is refused"
        for table in self.texts.tables.values():
            for tokenizer in reads.tokenizers:
                TokenStore.open(table, tokenizer)

    def open(self, stage: str) -> None:
        self._choose_split(stage)
        super().open(stage)
        if stage == "fit":
            if "train" not in self.texts.tables:
                raise InputError(f"{self.path}: there is no train.tsv[.gz]; 'ltr fit' needs it")
            reads = self.reads
            assert isinstance(reads, ApartTexts), "a cross-encoder is refused"
            docs = TokenStore.open(self.texts.tables["train"], reads.docs.tokenizer)
            # That of training batches: the lists of dev have taken the collection's already.
            self.collator = TextCollator(None, docs, reads)

    def _choose_split(self, stage: str) -> None:
        """Each split is a collection of its own: open the one that the stage evaluates."""
        self._evaluated = "dev" if stage in ("fit", "validate") else "test"
        self._opened = None

    def plan(self) -> GroupPlan:
        where = f"{self.path}: split 'train'"
        labels = self.texts.labels["train"]
        groups = LabelGroups(labels, self.docs_per_group, self.seed, where=where)
        if self.groups > groups.n_labels:
            most = f"at most {groups.n_labels}, the labels with two texts or more"
            text = f"{where}: groups must be {most}, got {self.groups}: no two groups of a batch share a label"
            raise InputError(text, option="groups")
        # In place of what the evaluated split has put there: the run does not learn from it.
        self.content = {
            "texts": self.texts.tables["train"].key,
            "labels": digest_of_arrays(labels),
        }
        return GroupPlan(groups, self.groups, self.seed, self.rank, self.world_size, where=where)

    def _open_collection(self) -> Collection:
        self.texts = open_labelled_texts(self.path)
        asked = self.trainer is not None and self.trainer.state.fn in (
            "validate",
            "test",
            "predict",
        )
        if asked and self._evaluated not in self.texts.tables:
            raise InputError(
                f"{self.path}: there is no {self._evaluated}.tsv[.gz] to evaluate, only {sorted(self.texts.tables)}"
            )
        evaluated = self.evaluation.candidates is not None and self._evaluated in self.texts.tables
        return self.texts.collection(
            self._evaluated if evaluated else next(iter(self.texts.tables))
        )
