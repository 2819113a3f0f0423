"""Re-ranking: the candidate pools of a split, every query scored exactly once."""

import logging
import os
from typing import Literal

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from ltr.batch import RankingBatch
from ltr.data.bm25 import bm25_lists
from ltr.data.collate import LabelledList, PairCollator
from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import QueryLists
from ltr.data.samplers import ShareOfRank
from ltr.data.tokens import JoinedPairs, TokenStore
from ltr.errors import InputError

log = logging.getLogger(__name__)


class PoolDataModule(LightningDataModule):
    """Candidate pools for ``validate`` (dev), ``test`` and ``predict`` (test). Training data comes from its children.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        candidates: the pools to re-rank: the source's own (``candidates``), or BM25's best of the whole corpus (``bm25``).
        depth: documents of a pool at most, best first; None takes all (``bm25`` needs a number).
        eval_batch_size: queries per evaluation step.
        num_workers: processes that build batches; 0 builds them in the trainer's.
        persistent_workers: keep those processes from epoch to epoch.
        seed: of all sampling; None takes that of ``seed_everything``.

    Attributes:
        collection: open after ``setup``.
        text_format: how texts become model input; taken from the module, or to be set before ``setup`` where there is no trainer.
    """

    def __init__(
        self,
        path: str,
        candidates: Literal["candidates", "bm25"] = "candidates",
        depth: int | None = None,
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if candidates == "bm25" and depth is None:
            raise InputError("candidates 'bm25' need a depth, the number of documents per query (option data.init_args.depth)")
        self.path, self.candidates, self.depth, self.eval_batch_size = path, candidates, depth, eval_batch_size
        self.num_workers, self.persistent_workers = num_workers, persistent_workers and num_workers > 0
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.collection: Collection | None = None
        self.text_format: JoinedPairs | None = None
        self.pools: dict[str, PoolBatches] = {}

    @property
    def rank(self) -> int:
        """Of this process; 0 without a trainer."""
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def world_size(self) -> int:
        """Processes; 1 without a trainer."""
        return 1 if self.trainer is None else self.trainer.world_size

    def prepare_data(self) -> None:
        """Read, check and tokenise once, in one process: the others find it all on disk."""
        self._open_texts()

    def setup(self, stage: str) -> None:
        """Open the collection and the splits that a stage (``fit``, ``validate``, ``test``, ``predict``) needs."""
        self._open_texts()
        split = {"fit": "dev", "validate": "dev", "test": "test", "predict": "test"}[stage]
        if stage == "fit" and split not in self.collection.qrels:
            log.info("%s has no judgements for 'dev': training goes without validation", self.path)
            return
        if split not in self.pools:
            self.pools[split] = self._pool_batches(split)

    def _open_texts(self) -> None:
        if self.collection is not None:
            return
        if self.text_format is None:
            if self.trainer is None:
                raise InputError("without a trainer, set text_format before setup, for instance to JoinedPairs(tokenizer, 128)")
            self.text_format = self.trainer.lightning_module.text_format
        collection = open_collection(self.path)
        queries, docs = (TokenStore.open(table, self.text_format.tokenizer) for table in (collection.queries, collection.corpus))
        self.text_format.check_queries(collection.queries, queries)
        self.collator = PairCollator(queries, docs, self.text_format)
        self.collection = collection

    def first_stage(self, split: str) -> QueryLists:
        """The pools of a split, before they are cut to ``depth``."""
        if self.candidates == "candidates":
            return self.collection.pools(split)
        return bm25_lists(self.collection, self.collection.judgements(split).query_rows, self.depth)

    def _pool_batches(self, split: str) -> "PoolBatches":
        pools = self.first_stage(split)
        judged = self.collection.judgements(split)
        lists = []
        for query_row in judged.query_rows:
            doc_rows = pools.of(query_row)[0][: self.depth]
            lists.append(labelled(query_row, doc_rows, judged))
        missing = sum(len(one.doc_rows) == 0 for one in lists)
        if missing:
            log.warning("%d of %d %s queries have no candidates; they count as nothing found", missing, len(lists), split)
        return PoolBatches(lists, self.eval_batch_size, self.collator)

    def val_dataloader(self) -> DataLoader | list:
        return self._eval_loader("dev") if "dev" in self.pools else []

    def test_dataloader(self) -> DataLoader:
        return self._eval_loader("test")

    def predict_dataloader(self) -> DataLoader:
        return self._eval_loader("test")

    def _eval_loader(self, split: str) -> DataLoader:
        return self._loader(self.pools[split], ShareOfRank(len(self.pools[split]), self.rank, self.world_size))

    def _loader(self, batches: Dataset, sampler) -> DataLoader:
        return DataLoader(
            batches,
            batch_size=None,  # the data set makes whole batches
            sampler=sampler,
            num_workers=self.num_workers,
            persistent_workers=self.persistent_workers,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        )


class PoolBatches(Dataset):
    """Lists as batches: number i is always the same.

    Args:
        lists: one per query.
        batch_size: lists per batch.
        collator: makes the batch.
    """

    def __init__(self, lists: list[LabelledList], batch_size: int, collator: PairCollator) -> None:
        # Long lists first: a batch of similar work per step, and the slowest step is seen at once.
        self.lists = sorted(lists, key=lambda one: -int(collator.lengths(one).sum()))
        self.batch_size, self.collator = batch_size, collator

    def __len__(self) -> int:
        return -(-len(self.lists) // self.batch_size)

    def __getitem__(self, number: int) -> RankingBatch:
        return self.collator(self.lists[number * self.batch_size : (number + 1) * self.batch_size])


def labelled(query_row: int, doc_rows: np.ndarray, judged: QueryLists) -> LabelledList:
    """A query's documents with their grades (0 where nobody judged), and the grades of all its relevant ones."""
    judged_rows, grades = judged.of(query_row)
    labels = np.zeros(len(doc_rows), dtype=np.float32)
    order = np.argsort(judged_rows)
    at = np.searchsorted(judged_rows, doc_rows, sorter=order).clip(max=max(0, len(order) - 1))
    if len(order):
        found = judged_rows[order[at]] == doc_rows
        labels[found] = grades[order[at[found]]]
    return LabelledList(int(query_row), doc_rows, labels, ideal=np.sort(grades[grades > 0])[::-1])
