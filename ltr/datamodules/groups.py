"""P×K batches of a collection: each query with its relevant documents, ranked against the other groups of the batch."""

from typing import Literal, get_args

from ltr.data.formats import Reads
from ltr.data.plans import GroupPlan, TrainBatches
from ltr.data.rows import Epoch, QueryGroups
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import at_least, one_of


class GroupDataModule(PoolDataModule):
    """One row is one group: a query with some of its relevant documents. For dual encoders.

    Documents are drawn anew in every epoch; see :class:`ltr.data.plans.GroupPlan`.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        groups: P, groups per step over all processes; the last batches of an epoch may have fewer.
        docs_per_group: K, documents of a group; a query with fewer relevant ones gives those it has.
        epoch: over ``queries``, each training query has one group; over ``pairs``, it has as many as its relevant documents fill,
            and each of these is in one of them.
        candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads: see :class:`PoolDataModule`.

    Raises:
        InputError: at ``setup``, for a query without a relevant document, fewer groups than processes, or a cross-encoder.
    """

    needs_in_batch = True  # groups hold relevant documents alone

    def __init__(
        self,
        path: str,
        groups: int = 32,
        docs_per_group: int = 4,
        epoch: Epoch = "queries",
        candidates: Literal["candidates", "bm25", "corpus"] = "candidates",
        depth: int | None = None,
        index: str = "Flat",
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
        reads: Reads | None = None,
    ) -> None:
        super().__init__(path, candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads)
        at_least(1, docs_per_group=docs_per_group)
        at_least(2, groups=groups)  # one group has nothing to be told from
        one_of(get_args(Epoch), epoch=epoch)
        self.groups, self.docs_per_group, self.epoch = groups, docs_per_group, epoch

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            where = f"{self.path}: split 'train'"
            judged = self.collection.learnable("train")
            self.content["judgements"] = judged.digest()
            groups = QueryGroups(judged, self.docs_per_group, self.seed, epoch=self.epoch, where=where)
            plan = GroupPlan(groups, self.groups, self.seed, self.rank, self.world_size, where=where)
            self.train = TrainBatches(plan, self.collator)
