"""Offline triplets: a query, relevant documents, and others to be ranked below them."""

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Literal, get_args

from ltr.data.bm25 import bm25_lists
from ltr.data.formats import Reads
from ltr.data.plans import Buckets
from ltr.data.query_lists import QueryLists
from ltr.data.rows import Epoch, Source, TripletRows
from ltr.data.scores import TaughtRows, Teaching, Unscored
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError, at_least, one_of
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import Overlay, negatives_in


class TripletDataModule(PoolDataModule):
    """One row is one query with ``positives`` relevant documents and ``negatives_per_query`` others.

    Documents are drawn anew in every epoch, without repeats; where there are fewer, the row is shorter.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        negatives: where the others come from, never the relevant ones: the source's pools (``candidates``: judged 0 or unjudged),
            the best ``negatives_depth`` of BM25 (``bm25``), the whole corpus (``random``), a folder of mined negatives or an
            overlay of their audit (:class:`ltr.mining.overlay.Overlay`), or what :class:`ltr.callbacks.HardNegativeMining` finds
            (``mined``). Or several of these, with how many documents each gives to a row, as ``{mined: 5, bm25: 1, random: 1}``.
        positives: relevant documents per row.
        negatives_per_query: others per row; ``negatives`` that say it themselves replace it.
        negatives_depth: draw from this many documents of a source at most, best first; None takes all that ``candidates`` or a
            folder has, and 100 of ``bm25``.
        batch_size: rows per step and process.
        bucket_window: see :class:`ltr.datamodules.ListDataModule`.
        epoch: over ``queries``, each training query has one row; over ``pairs``, it has as many as its relevant documents fill,
            and each of these is in one of them.
        labels: ``grades``, or ``scores:FOLDER``: the scores of a teacher, written by ``ltr score``. The loss must take scores,
            and lists are ranked by themselves.
        unscored: documents without a score: ``refuse`` them, or ``leave_out``, which shortens the list.
        label_deviation: bring the scores to this standard deviation within a list (the mean over the lists), for losses that
            compare them with the student's; None: as they are.
        candidates, depth, index, eval_batch_size, num_workers, persistent_workers, seed, reads: see :class:`PoolDataModule`.

    Raises:
        InputError: at ``setup``, for a training query without a relevant document.
    """

    def __init__(
        self,
        path: str,
        negatives: str | dict[str, int] = "candidates",
        positives: int = 1,
        negatives_per_query: int = 7,
        negatives_depth: int | None = None,
        batch_size: int = 16,
        bucket_window: int = 64,
        epoch: Epoch = "queries",
        labels: str = "grades",
        unscored: Unscored = "refuse",
        label_deviation: float | None = None,
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
        self.teaching = Teaching(labels, unscored, label_deviation)
        self.teaches = self.teaching.labels != "grades"
        at_least(1, positives=positives, negatives_per_query=negatives_per_query)
        at_least(1, negatives_depth=negatives_depth, batch_size=batch_size, bucket_window=bucket_window)
        one_of(get_args(Epoch), epoch=epoch)
        self.positives, self.epoch = positives, epoch
        self.negatives_depth, self.batch_size, self.bucket_window = negatives_depth, batch_size, bucket_window
        self.sources = {negatives: negatives_per_query} if isinstance(negatives, str) else dict(negatives)
        if not self.sources or min(self.sources.values()) < 1:
            text = f"negatives must be at least one source, each with a number above 0, got {self.sources}"
            raise InputError(text, option="negatives")
        self.awaits_negatives = "mined" in self.sources

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            labels = self._audited()
            judged, where = self.collection.learnable("train"), f"{self.path}: split 'train'"
            self.content["judgements"] = judged.digest()
            sources = tuple(self._source(name, count) for name, count in self.sources.items())
            self.has_distances = all(source.have_distances for source in sources)
            options = (judged, sources, len(self.collection.corpus), self.positives, self.seed)
            queries = judged.query_rows if "mined" in self.sources else None
            rows = TripletRows(*options, epoch=self.epoch, where=where, queries=queries, labels=labels)
            self.train = self._buckets(self._taught(rows, rows.drawable(), where), self.bucket_window, self.collator)
            self.awaits_negatives = "mined" in self.sources

    @property
    def mined_per_row(self) -> int:
        """Documents of a row that mined negatives give."""
        return self.sources.get("mined") or next(iter(self.sources.values()))

    def take_negatives(self, negatives: MinedNegatives, *, resumed: bool = False) -> None:
        """Draw from these mined negatives, from the next batch on. All processes must call it together.

        Args:
            negatives: take the place of the source ``mined``, or of the only one there is.
            resumed: whether they are those that a resumed run had before.
        """
        assert self.train is not None and isinstance(self.train.plan, Buckets), "setup('fit') comes first"
        plan, mined = self.train.plan, negatives.lists().first(self.negatives_depth)
        taught = plan.rows if isinstance(plan.rows, TaughtRows) else None
        rows = plan.rows if taught is None else taught.rows
        assert isinstance(rows, TripletRows), "setup has made them"
        at = list(self.sources).index("mined") if "mined" in self.sources else 0
        sources = list(rows.sources)
        sources[at] = Source(sources[at].n, mined, have_distances=True)
        if not resumed:
            plan.keep_window(*self._position())
        rows = replace(rows, sources=tuple(sources))
        plan.replace(rows if taught is None else replace(taught, rows=rows))
        self.awaits_negatives = False

    def _before_batch(self) -> None:
        super()._before_batch()
        if self.awaits_negatives:
            hint = "add the callback ltr.callbacks.HardNegativeMining, or name a folder of negatives"
            raise InputError(f"negatives 'mined' must be mined while training, and nothing does that; {hint}", option="negatives")

    def _audited(self) -> QueryLists | None:
        """The labels of documents that overlays drop or label softly. What an overlay relabels joins the judgements."""
        found = [Overlay.open(Path(name), self.collection) for name in self.sources if Overlay.is_at(Path(name))]
        self.has_soft_labels = any(one.policy == "soft" for one in found)
        judged = reduce(QueryLists.joined, (one.judgements for one in found), self.collection.judgements("train"))
        if found:
            self.collection = self.collection._replace(qrels=self.collection.qrels | {"train": judged})
        labels = [one.labels for one in found if one.policy != "relabel"]
        if not labels:
            return None
        whole = reduce(QueryLists.joined, labels)
        self.content["audit"] = whole.digest()
        return whole

    def _source(self, name: str, count: int) -> Source:
        if name == "random":
            return Source(count, None)
        if name == "mined":  # comes later
            return Source(count, QueryLists.from_rows([], [], []), have_distances=True)
        if name == "candidates":
            lists, have_distances = self.collection.pools("train", "negatives"), False
        elif name == "bm25":
            queries = self.collection.judgements("train").query_rows
            lists, have_distances = bm25_lists(self.collection, queries, self.negatives_depth or 100), False
        else:
            mined = MinedNegatives.open(negatives_in(Path(name)), self.collection)
            lists, have_distances = mined.lists(), mined.has_distances
        self.content["negatives" if len(self.sources) == 1 else f"negatives {name}"] = lists.digest()
        return Source(count, lists.first(self.negatives_depth), have_distances)
