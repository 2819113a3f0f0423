"""P×K batches: groups of documents that belong together, and which groups share a batch."""

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from ltr.data.collate import LabelledList
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError

log = logging.getLogger(__name__)


class Groups(Protocol):
    """The groups of an epoch.

    Attributes:
        owners: ``[G]`` int64, ascending: the query or the label that each group belongs to.
    """

    owners: np.ndarray

    def draw(self, epoch: int, group: int) -> LabelledList:
        """The documents of a group in an epoch: a pure function."""


class QueryGroups:
    """Each query with documents drawn from its relevant ones, without repeats, anew in each epoch.

    Args:
        judged: judgements of the split.
        docs_per_group: documents of a group; a query with fewer relevant ones gives those it has.
        seed: of the drawing.
        where, name_of: for errors: the split, and the id of a query's row.

    Raises:
        InputError: if a query has no relevant document.
    """

    def __init__(
        self, judged: QueryLists, docs_per_group: int, seed: int, *, where: str, name_of: Callable[[int], str] = str
    ) -> None:
        self.judged, self.docs_per_group, self.seed = judged, docs_per_group, seed
        self.owners = judged.query_rows
        n_relevant = np.add.reduceat((judged.values > 0).astype(np.int64), judged.offsets[:-1])
        without_positive = self.owners[n_relevant == 0]
        if len(without_positive):
            raise InputError(
                f"{where}: {len(without_positive)} of {len(self.owners)} queries have no document with a grade above 0, "
                f"first {name_of(without_positive[0])!r}; remove them from the split, there is nothing to learn from"
            )
        _log_small(where, n_relevant, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        """See :class:`Groups`; a pure function of (seed, epoch, query)."""
        query_row = int(self.owners[group])
        judged_rows, grades = self.judged.of(query_row)
        relevant = np.flatnonzero(grades > 0)
        rng = np.random.default_rng([self.seed, epoch, query_row])
        drawn = rng.choice(relevant, min(self.docs_per_group, len(relevant)), replace=False)
        return LabelledList(query_row, judged_rows[drawn], grades[drawn], judged_rows=judged_rows, judged_grades=grades)


class LabelGroups:
    """The texts of each label, shuffled anew in each epoch and cut into groups.

    A text that is left over alone is not seen in an epoch, another one in the next. A list has the label's number for its
    query, and every text of it is relevant.

    Args:
        labels: ``[R]`` int64, the number of each text's label.
        docs_per_group: texts of a group, at least 2; the last one of a label may have fewer.
        seed: of the shuffles.
        where: the split, for errors.

    Attributes:
        n_labels: labels with two texts or more.

    Raises:
        InputError: if fewer than two labels have two texts.
    """

    def __init__(self, labels: np.ndarray, docs_per_group: int, seed: int, *, where: str) -> None:
        self.labels, self.seed = labels, seed
        counts = np.bincount(labels)
        single, self.n_labels = int((counts == 1).sum()), int((counts > 1).sum())
        if self.n_labels < 2:
            raise InputError(
                f"{where}: at least two labels must have two texts or more, got {self.n_labels} of {(counts > 0).sum()} labels; "
                "groups of one label have nothing to be told from"
            )
        n_full, rest = np.divmod(counts, docs_per_group)
        n_groups = n_full + (rest > 1)
        self.owners = np.repeat(np.arange(len(counts)), n_groups)
        within = np.arange(len(self.owners)) - np.repeat(np.cumsum(n_groups) - n_groups, n_groups)
        ends = np.cumsum(counts)
        self._starts = (ends - counts)[self.owners] + within * docs_per_group  # of each group among the texts label by label
        self._stops = np.minimum(self._starts + docs_per_group, ends[self.owners])
        self._order: tuple[int, np.ndarray] | None = None
        if single:
            log.info("%s: %d of %d labels have one text only and are left out", where, single, single + self.n_labels)
        alone = int(((rest == 1) & (n_full > 0)).sum())
        if alone:
            log.info("%s: %d of %d texts are left over alone, other ones in each epoch", where, alone, len(labels))
        _log_small(where, self._stops - self._starts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        """See :class:`Groups`; a pure function of (seed, epoch, group)."""
        if self._order is None or self._order[0] != epoch:  # the one last used is kept
            shuffled = np.random.default_rng([self.seed, epoch, 1]).permutation(len(self.labels))
            self._order = epoch, shuffled[np.argsort(self.labels[shuffled], kind="stable")]
        doc_rows = self._order[1][self._starts[group] : self._stops[group]]
        return LabelledList(int(self.owners[group]), doc_rows, np.ones(len(doc_rows), dtype=np.float32))


def _log_small(where: str, sizes: np.ndarray, docs_per_group: int) -> None:
    small = int((sizes < docs_per_group).sum())
    if small:
        log.info("%s: %d of %d groups have fewer than %d documents", where, small, len(sizes), docs_per_group)


class GroupPlan:
    """Global batches of P groups, no two of one owner.

    At every step those P owners give a group that have most left (ties at random), so the batches are as full as can be, and a
    common label does not fill the end of an epoch alone. Full batches are then shuffled; smaller ones stand at the end, and one
    with fewer than two groups, or with none for some rank, is left out. The ranks share out a global batch group by group: it
    is the same, whatever their number.

    Args:
        groups: what to draw from.
        groups_per_batch: P, over all ranks.
        seed, rank, world_size: as they say.

    Attributes:
        n_rows: groups of an epoch.
        n_used: those that are in a batch.
        per_step: P.
    """

    def __init__(self, groups: Groups, groups_per_batch: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.groups, self.per_step, self.seed = groups, groups_per_batch, seed
        self.rank, self.world_size = rank, world_size
        self.n_rows = len(groups.owners)
        _, self._firsts, self._counts = np.unique(groups.owners, return_index=True, return_counts=True)
        batches = self._batches(0)  # which owners have most left is chance only among equals: every epoch has these sizes
        self._n_steps, self.n_used = len(batches), sum(map(len, batches))
        self._kept: tuple[int, list[np.ndarray]] | None = None

    def __len__(self) -> int:
        """Steps of an epoch, the same in all epochs and on every rank."""
        return self._n_steps

    def lists(self, epoch: int, step: int) -> list[LabelledList]:
        """The groups of this rank at a step: a pure function of (seed, epoch, step, rank)."""
        if self._kept is None or self._kept[0] != epoch:
            self._kept = epoch, self._batches(epoch)
        return [self.groups.draw(epoch, group) for group in self._kept[1][step][self.rank :: self.world_size]]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """The groups of each global batch."""
        rng = np.random.default_rng([self.seed, epoch])
        ties = iter(rng.random(self.n_rows).tolist())
        # The next group of every owner, the one of whom most is left on top.
        heap = [(-left, next(ties), first) for left, first in zip(self._counts.tolist(), self._firsts.tolist(), strict=True)]
        heapify(heap)
        batches = []
        while heap and heap[0][0] < -1:
            taken = [heappop(heap) for _ in range(min(self.per_step, len(heap)))]
            batches.append(rng.permutation([group for _, _, group in taken]))  # or the first rank would have the common labels
            for minus_left, _, group in taken:
                if minus_left < -1:
                    heappush(heap, (minus_left + 1, next(ties), group + 1))
        last = rng.permutation([group for _, _, group in heap])  # one of each owner, as queries have from the beginning
        batches += [last[at : at + self.per_step] for at in range(0, len(last), self.per_step)]
        n_full = sum(len(batch) == self.per_step for batch in batches)
        smaller = [batch for batch in batches[n_full:] if len(batch) >= max(2, self.world_size)]
        return [batches[at] for at in rng.permutation(n_full)] + smaller
