"""Groups of documents that are relevant to one query, and groups of texts of one label."""

import logging

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.relevant import EpochOver, RelevantDraws
from ltr.errors import InputError

log = logging.getLogger(__name__)


class QueryGroups:
    """Groups of ``docs_per_group`` or fewer relevant documents of a query, see
    :class:`RelevantDraws`.

    Every group has its own owner, so two groups of one query may share a batch: the judgements that
    they carry keep their documents from counting as each other's negatives.

    Raises:
        InputError: if there are fewer than two queries.
    """

    def __init__(
        self,
        judged: QueryLists,
        known: QueryLists,
        docs_per_group: int,
        seed: int,
        *,
        epoch_over: EpochOver,
        where: str,
    ) -> None:
        n_queries = len(judged.query_rows)
        if n_queries < 2:
            raise InputError(
                f"{where}: a batch needs at least 2 queries, to be told from each other; got {n_queries}"
            )
        self.relevant = RelevantDraws(
            judged, known, judged.query_rows, docs_per_group, epoch_over, seed
        )
        self.owners = np.arange(len(self.relevant.query_rows))
        _log_small_groups(where, self.relevant.counts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        labelled, _ = self.relevant.draw(epoch, group)
        return labelled


class LabelGroups:
    """The texts of each label, shuffled anew in each epoch and cut into groups.

    The query of a list is the label's number, and every text is relevant. A text that is left over
    alone is skipped in this epoch; in the next it is another one.

    Args:
        labels: ``[R]`` int64, the number of each text's label.
        docs_per_group: texts of a group, at least 2; the last one of a label may have fewer.
        seed: of the shuffling.
        where: the split, for errors and the log.

    Attributes:
        n_trained_labels: how many labels have two texts or more.

    Raises:
        InputError: if fewer than two labels have two texts or more.
    """

    def __init__(self, labels: np.ndarray, docs_per_group: int, seed: int, *, where: str) -> None:
        self.labels = labels
        self.seed = seed
        counts = np.bincount(labels)
        n_labels = int((counts > 0).sum())
        self.n_trained_labels = int((counts > 1).sum())
        if self.n_trained_labels < 2:
            raise InputError(
                f"{where}: at least two labels must have two texts or more, got {self.n_trained_labels} of {n_labels} labels; groups are told from groups of other labels"
            )
        # A group is a stretch of the texts sorted by label, which draw() makes: the texts of a
        # label stand there from stop - count to stop, in every epoch.
        owners = []
        starts = []
        stops = []
        for label, stop in enumerate(np.cumsum(counts).tolist()):
            # Up to stop - 1: a text alone makes no group.
            for start in range(stop - int(counts[label]), stop - 1, docs_per_group):
                owners.append(label)
                starts.append(start)
                stops.append(min(start + docs_per_group, stop))
        self.owners = np.asarray(owners, dtype=np.int64)
        self._starts = np.asarray(starts, dtype=np.int64)
        self._stops = np.asarray(stops, dtype=np.int64)
        # The epoch that was asked for last, and its texts: shuffled, then sorted by label.
        self._sorted_texts: tuple[int, np.ndarray] | None = None
        if n_single := n_labels - self.n_trained_labels:
            log.info(
                "%s: %d of %d labels have one text only and are left out",
                where,
                n_single,
                n_labels,
            )
        leaves_one = (counts > 1) & (counts % docs_per_group == 1)
        if n_left_over := int(leaves_one.sum()):
            log.info(
                "%s: %d of %d texts are left over alone, other ones in each epoch",
                where,
                n_left_over,
                len(labels),
            )
        _log_small_groups(where, self._stops - self._starts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        if self._sorted_texts is None or self._sorted_texts[0] != epoch:
            # The 1 keeps these draws apart from those of the plan, see ltr.data.sampling.rows.
            rng = np.random.default_rng([self.seed, epoch, 1])
            shuffled = rng.permutation(len(self.labels))
            by_label = np.argsort(self.labels[shuffled], kind="stable")
            self._sorted_texts = (epoch, shuffled[by_label])
        doc_rows = self._sorted_texts[1][self._starts[group] : self._stops[group]]
        labels = np.ones(len(doc_rows), dtype=np.float32)
        return LabelledList(int(self.owners[group]), doc_rows, labels)


def _log_small_groups(where: str, sizes: np.ndarray, docs_per_group: int) -> None:
    if n_small := int((sizes < docs_per_group).sum()):
        log.info(
            "%s: %d of %d groups have fewer than %d documents",
            where,
            n_small,
            len(sizes),
            docs_per_group,
        )
