"""Groups of documents that are relevant to one query, and groups of texts of one label."""

import logging

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.relevant import Epoch, RelevantRows
from ltr.errors import InputError

log = logging.getLogger(__name__)


class QueryGroups:
    """Groups of ``docs_per_group`` or fewer relevant documents of a query, see
    :class:`RelevantRows`.

    Every group is its own owner, so two groups of one query may share a batch: the judgements that
    they carry keep their documents from counting as each other's negatives. Fewer than two queries
    are an InputError.
    """

    def __init__(
        self, judged: QueryLists, docs_per_group: int, seed: int, *, epoch: Epoch, where: str
    ) -> None:
        if (n := len(judged.query_rows)) < 2:
            raise InputError(
                f"{where}: a batch needs at least 2 queries, to be told from each other; got {n}"
            )
        self.relevant = RelevantRows(judged, judged.query_rows, docs_per_group, epoch, seed)
        self.owners = np.arange(len(self.relevant.query_rows))
        _log_small(where, self.relevant.counts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        return self.relevant.draw(epoch, group)[0]


class LabelGroups:
    """The texts of each label, shuffled anew in each epoch and cut into groups.

    The query of a list is the label's number, and every text is relevant. A text that is left over
    alone is skipped in this epoch; in the next it is another one. ``n_labels`` labels have two
    texts or more; fewer than two such are an InputError.

    Args:
        labels: ``[R]`` int64, the number of each text's label.
        docs_per_group: texts of a group, at least 2; the last one of a label may have fewer.
    """

    def __init__(self, labels: np.ndarray, docs_per_group: int, seed: int, *, where: str) -> None:
        self.labels = labels
        self.seed = seed
        counts = np.bincount(labels)
        single = int((counts == 1).sum())
        self.n_labels = int((counts > 1).sum())
        if self.n_labels < 2:
            came = f"{self.n_labels} of {(counts > 0).sum()} labels; groups are told from groups of other labels"
            raise InputError(
                f"{where}: at least two labels must have two texts or more, got {came}"
            )
        ends = np.cumsum(
            counts
        ).tolist()  # of each label, in texts sorted by label; a text alone makes no group
        starts = [
            (i, at)
            for i, end in enumerate(ends)
            for at in range(end - counts[i], end - 1, docs_per_group)
        ]
        self.owners, self._starts = np.asarray(starts, dtype=np.int64).T
        self._stops = np.minimum(self._starts + docs_per_group, np.asarray(ends)[self.owners])
        self._order: tuple[int, np.ndarray] | None = None
        if single:
            log.info(
                "%s: %d of %d labels have one text only and are left out",
                where,
                single,
                single + self.n_labels,
            )
        if alone := int(((counts > 1) & (counts % docs_per_group == 1)).sum()):
            log.info(
                "%s: %d of %d texts are left over alone, other ones in each epoch",
                where,
                alone,
                len(labels),
            )
        _log_small(where, self._stops - self._starts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        if self._order is None or self._order[0] != epoch:
            shuffled = np.random.default_rng([self.seed, epoch, 1]).permutation(len(self.labels))
            self._order = epoch, shuffled[np.argsort(self.labels[shuffled], kind="stable")]
        doc_rows = self._order[1][self._starts[group] : self._stops[group]]
        return LabelledList(
            int(self.owners[group]), doc_rows, np.ones(len(doc_rows), dtype=np.float32)
        )


def _log_small(where: str, sizes: np.ndarray, docs_per_group: int) -> None:
    if small := int((sizes < docs_per_group).sum()):
        log.info(
            "%s: %d of %d groups have fewer than %d documents",
            where,
            small,
            len(sizes),
            docs_per_group,
        )
