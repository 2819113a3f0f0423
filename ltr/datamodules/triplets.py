"""Offline triplets: a query, relevant documents, and others to be ranked below them."""

from pathlib import Path
from typing import Literal, get_args

from ltr.data.bm25 import bm25_lists
from ltr.data.formats import ApartTexts, FeatureVectors, JoinedPairs
from ltr.data.negatives import MinedNegatives
from ltr.data.query_lists import QueryLists
from ltr.data.rows import Epoch, TripletRows
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.ranking import at_least, one_of


class TripletDataModule(PoolDataModule):
    """One row is one query with ``positives`` relevant documents and ``negatives_per_query`` others.

    Documents are drawn anew in every epoch, without repeats; where there are fewer, the row is shorter.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        negatives: where the others come from, never the relevant ones: the source's pools (``candidates``: judged 0 or unjudged),
            the best ``negatives_depth`` of BM25 (``bm25``), the whole corpus (``random``), or a folder of mined negatives.
        positives: relevant documents per row.
        negatives_per_query: others per row.
        negatives_depth: draw from this many documents of a source at most, best first; None takes all that ``candidates`` or a
            folder has, and 100 of ``bm25``.
        batch_size: rows per step and process.
        bucket_window: see :class:`ltr.datamodules.ListDataModule`.
        epoch: over ``queries``, each training query has one row; over ``pairs``, it has as many as its relevant documents fill,
            and each of these is in one of them.
        candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads: see :class:`PoolDataModule`.

    Raises:
        InputError: at ``setup``, for a training query without a relevant document.
    """

    def __init__(
        self,
        path: str,
        negatives: str = "candidates",
        positives: int = 1,
        negatives_per_query: int = 7,
        negatives_depth: int | None = None,
        batch_size: int = 16,
        bucket_window: int = 64,
        epoch: Epoch = "queries",
        candidates: Literal["candidates", "bm25", "corpus"] = "candidates",
        depth: int | None = None,
        index: str = "Flat",
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
        reads: JoinedPairs | ApartTexts | FeatureVectors | None = None,
    ) -> None:
        super().__init__(path, candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads)
        at_least(1, positives=positives, negatives_per_query=negatives_per_query)
        at_least(1, negatives_depth=negatives_depth, batch_size=batch_size, bucket_window=bucket_window)
        one_of(get_args(Epoch), epoch=epoch)
        self.negatives, self.positives, self.negatives_per_query, self.epoch = negatives, positives, negatives_per_query, epoch
        self.negatives_depth, self.batch_size, self.bucket_window = negatives_depth, batch_size, bucket_window
        self.has_distances = negatives not in ("candidates", "bm25", "random")

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            judged, n_docs = self.collection.learnable("train"), len(self.collection.corpus)
            negatives = self._negative_source()
            self.content["judgements"] = judged.digest()
            if negatives is not None:
                self.content["negatives"] = negatives.digest()
            drawn, where = (self.positives, self.negatives_per_query, self.seed), f"{self.path}: split 'train'"
            options = (judged, negatives, n_docs, *drawn)
            rows = TripletRows(*options, epoch=self.epoch, have_distances=self.has_distances, where=where)
            self.train = self._buckets(rows, self.bucket_window, self.collator)

    def _negative_source(self) -> QueryLists | None:
        """Documents to draw from; None: the whole corpus."""
        if self.negatives == "random":
            return None
        if self.negatives == "candidates":
            lists = self.collection.pools("train", "negatives")
        elif self.negatives == "bm25":
            lists = bm25_lists(self.collection, self.collection.judgements("train").query_rows, self.negatives_depth or 100)
        else:
            lists = MinedNegatives.open(Path(self.negatives), self.collection).lists()
        return lists.first(self.negatives_depth)
