"""Offline triplets: a query, relevant documents, and others to be ranked below them."""

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import get_args

from ltr.data.bm25 import bm25_lists
from ltr.data.query_lists import QueryLists
from ltr.data.sampling.buckets import Buckets
from ltr.data.sampling.plan import Plan
from ltr.data.sampling.relevant import Epoch
from ltr.data.sampling.taught import Labels, TaughtRows
from ltr.data.sampling.triplets import Source, TripletRows
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError, at_least, one_of
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import Overlay, negatives_in


class TripletDataModule(PoolDataModule):
    """One row is one query with relevant documents, and others to be ranked below them.

    Documents are drawn anew in every epoch, without repeats; where there are fewer, the row is
    shorter.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        negatives: where the others come from, never the relevant ones: the source's pools
            (``candidates``: judged 0 or unjudged), the best ``negatives_depth`` of BM25 (``bm25``),
            the whole corpus (``random``), a folder of mined negatives or an overlay of their audit
            (:class:`ltr.mining.overlay.Overlay`), or what :class:`ltr.callbacks.HardNegativeMining`
            finds (``mined``). Or several of these, with how many documents each gives to a row, as
            ``{mined: 5, bm25: 1, random: 1}``.
        positives: relevant documents per row.
        negatives_per_query: others per row; ``negatives`` that say it themselves replace it.
        negatives_depth: draw from this many documents of a source at most, best first; None takes
            all that ``candidates`` or a folder has, and 100 of ``bm25``.
        epoch: over ``queries``, each training query has one row; over ``pairs``, it has as many as
            its relevant documents fill, and each of these is in one of them.
        batch_size: rows per step and process.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        labels: what the labels of training lists are, see :class:`ltr.datamodules.Labels`.

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
        epoch: Epoch = "queries",
        batch_size: int = 16,
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        labels: Labels = Labels(),
    ) -> None:
        super().__init__(path, evaluation, loading)
        at_least(1, positives=positives, negatives_per_query=negatives_per_query)
        at_least(1, negatives_depth=negatives_depth, batch_size=batch_size)
        one_of(get_args(Epoch), epoch=epoch)
        self.positives = positives
        self.epoch = epoch
        self.negatives_depth = negatives_depth
        self.batch_size = batch_size
        self.labels = labels
        self.teaches = labels.scores is not None
        self.sources = (
            dict(negatives) if isinstance(negatives, dict) else {negatives: negatives_per_query}
        )
        if not self.sources or min(self.sources.values()) < 1:
            text = f"negatives must be at least one source, each with a number above 0, got {self.sources}"
            raise InputError(text, option="negatives")
        self.awaits_negatives = "mined" in self.sources

    def plan(self) -> Plan:
        audited = self._join_audits()  # first: it changes the judgements
        judged = self.collection.learnable("train")
        where = f"{self.path}: split 'train'"
        self.content["judgements"] = judged.digest()
        sources = tuple(self._source(name, count) for name, count in self.sources.items())
        self.has_distances = all(source.have_distances for source in sources)
        # Again: mining for an earlier setup may have cleared it.
        self.awaits_negatives = "mined" in self.sources
        rows = TripletRows(
            judged,
            sources,
            len(self.collection.corpus),
            self.positives,
            self.seed,
            epoch=self.epoch,
            where=where,
            # All queries: mined lists are still empty, and the number of rows must stay when they
            # come.
            queries=judged.query_rows if self.awaits_negatives else None,
            labels=audited,
        )
        return self.buckets(self.with_labels(rows, self.labels, rows.drawable(), where))

    @property
    def mined_per_row(self) -> int:
        """Documents of a row that mined negatives give."""
        return self.sources.get("mined") or next(iter(self.sources.values()))

    def take_negatives(self, negatives: MinedNegatives, *, resumed: bool = False) -> None:
        """Draw from these mined negatives, from the next batch on. All processes must call it
        together.

        Args:
            negatives: take the place of the source ``mined``, or of the only one there is.
            resumed: whether they are those that a resumed run had before.
        """
        assert self.train is not None, "setup('fit') comes first"
        plan = self.train.plan
        assert isinstance(plan, Buckets), "plan() has made it"
        mined = negatives.lists().first(self.negatives_depth)
        taught = plan.rows if isinstance(plan.rows, TaughtRows) else None
        rows = plan.rows if taught is None else taught.rows
        assert isinstance(rows, TripletRows), "plan() has made them"
        number = list(self.sources).index("mined") if "mined" in self.sources else 0
        sources = list(rows.sources)
        sources[number] = Source(sources[number].n, mined, have_distances=True)
        if not resumed:
            plan.freeze_window(*self._position())
        rows = replace(rows, sources=tuple(sources))
        plan.replace(rows if taught is None else replace(taught, rows=rows))
        self.awaits_negatives = False

    def _before_batch(self) -> None:
        super()._before_batch()
        if self.awaits_negatives:
            hint = (
                "add the callback ltr.callbacks.HardNegativeMining, or name a folder of negatives"
            )
            raise InputError(
                f"negatives 'mined' must be mined while training, and nothing does that; {hint}",
                option="negatives",
            )

    def _join_audits(self) -> QueryLists | None:
        """The labels of documents that overlays drop or label softly. What an overlay relabels
        joins the judgements.
        """
        overlays = [
            Overlay.open(Path(name), self.collection)
            for name in self.sources
            if Overlay.is_at(Path(name))
        ]
        self.has_soft_labels = any(overlay.policy == "soft" for overlay in overlays)
        if not overlays:
            return None
        judged = self.collection.judgements("train")
        for overlay in overlays:
            judged = judged.joined(overlay.judgements)
        qrels = self.collection.qrels | {"train": judged}
        self.collection = self.collection._replace(qrels=qrels)
        labels = [overlay.labels for overlay in overlays if overlay.policy != "relabel"]
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
            lists = self.collection.pools("train", "negatives")
            have_distances = False
        elif name == "bm25":
            queries = self.collection.judgements("train").query_rows
            lists = bm25_lists(self.collection, queries, self.negatives_depth or 100)
            have_distances = False
        else:
            mined = MinedNegatives.open(negatives_in(Path(name)), self.collection)
            lists = mined.lists()
            have_distances = mined.has_distances
        part = "negatives" if len(self.sources) == 1 else f"negatives {name}"
        self.content[part] = lists.digest()
        return Source(count, lists.first(self.negatives_depth), have_distances)
