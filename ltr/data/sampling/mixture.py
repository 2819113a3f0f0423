"""Batches of several sources: each batch from one of them, or lists of several in each.

No chance decides which source comes next. Every source has its places in an endless sequence,
spread as evenly as they can be, and each part of the sequence has them as the weights say.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import Plan, RowsOfBatches, SourcePlan
from ltr.errors import InputError

LONGEST_PERIOD = 2**20  # of a sequence; longer ones are rounded to it


class Turns:
    """An endless sequence of sources, in which each has its share.

    The sequence repeats after ``period`` turns, in which source s has :math:`w_s` of them, whole
    numbers without a common factor. The j-th of its turns stands where

    .. math:: (j + 1/2) \\cdot \\text{period} / w_s

    puts it among the turns of all; where two fall together, the earlier source comes first. So the
    first n turns have each of two or three sources within one of its share of n.

    Args:
        weights: ``[S]``, above 0. Where whole numbers in their ratio are large, the nearest ones
            are taken whose sum is about 2^20.

    Example:
        >>> [Turns([3, 1]).source(turn) for turn in range(8)]
        [0, 0, 1, 0, 0, 0, 1, 0]
        >>> Turns([3, 1]).before(6)
        [5, 1]
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _whole_numbers(weights)
        self.period = sum(self.weights)
        moments = []
        for weight in self.weights:
            moments.append((np.arange(weight) + 0.5) * (self.period / weight))
        sources = np.repeat(np.arange(len(self.weights)), self.weights)
        # Stable: of turns that fall together the earlier source has the first.
        order = np.argsort(np.concatenate(moments), kind="stable")
        self._sources = sources[order]
        self._turns_of = [
            np.flatnonzero(self._sources == source) for source in range(len(self.weights))
        ]

    def source(self, turn: int) -> int:
        """Whose turn it is."""
        return int(self._sources[turn % self.period])

    def before(self, turn: int) -> list[int]:
        """How many turns each source has had before this one."""
        n_periods, place = divmod(turn, self.period)
        counts = []
        for weight, turns in zip(self.weights, self._turns_of, strict=True):
            counts.append(n_periods * weight + int(np.searchsorted(turns, place)))
        return counts


def _whole_numbers(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the ratio of the weights, without a common factor."""
    # By their decimals: 0.1 is 1/10, and not the binary fraction that is nearest to it.
    exact = [Fraction(str(weight)) for weight in weights]
    denominator = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * denominator) for weight in exact]
    total = sum(whole)
    factor = math.gcd(*whole)
    if total // factor > LONGEST_PERIOD:
        whole = [max(1, round(weight * LONGEST_PERIOD / total)) for weight in whole]
        factor = math.gcd(*whole)
    return [weight // factor for weight in whole]


class PlannedSource(NamedTuple):
    """What one source gives.

    Attributes:
        plan: of its own training lists.
        shifted: a list of the source with the numbers that its texts have among those of all.
    """

    plan: SourcePlan
    shifted: Callable[[LabelledList], LabelledList]


class MixturePlan(Plan):
    """Training lists of several sources. A source whose epoch is over begins its next one.

    An epoch has as many steps as the epochs of all sources together, whatever the weights.

    Args:
        sources: what each gives.
        weights: ``[S]``, the share of each, in any scale.
        rank, world_size: this process, and how many there are.
    """

    def __init__(
        self,
        sources: Sequence[PlannedSource],
        weights: Sequence[float],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.sources = list(sources)
        self.turns = Turns(weights)
        self.rank = rank
        self.world_size = world_size
        self.n_rows = sum(source.plan.n_rows for source in self.sources)
        self.per_step = self.sources[0].plan.per_step

    @property
    def version(self) -> int:
        return sum(source.plan.version for source in self.sources)


class OneSourceBatches(MixturePlan):
    """The lists of a step are a batch of one source."""

    def __len__(self) -> int:
        return sum(len(source.plan) for source in self.sources)

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        number = self.turns.source(epoch * len(self) + step)
        source = self.sources[number]
        source_epoch, source_step = self.source_position(number, epoch, step)
        lists = source.plan.lists(source_epoch, source_step, together=together)
        return [source.shifted(labelled) for labelled in lists]

    def source_position(self, source: int, epoch: int, step: int) -> tuple[int, int]:
        n_before = self.turns.before(epoch * len(self) + step)[source]
        return divmod(n_before, len(self.sources[source].plan))

    def frozen_batches(self, epoch: int, step: int) -> list[RowsOfBatches | None] | None:
        frozen: list[RowsOfBatches | None] = []
        for number, source in enumerate(self.sources):
            position = self.source_position(number, epoch, step)
            batches: Any = source.plan.frozen_batches(*position)
            frozen.append(batches)
        return None if frozen.count(None) == len(frozen) else frozen

    def restore_frozen(self, epoch: int, step: int, batches: Any) -> None:
        if len(batches) != len(self.sources):
            raise InputError(
                f"the checkpoint must keep the batches of {len(self.sources)} sources, and has {len(batches)}; take another checkpoint"
            )
        for number, source_batches in enumerate(batches):
            if source_batches is not None:
                position = self.source_position(number, epoch, step)
                self.sources[number].plan.restore_frozen(*position, source_batches)


class MixedBatches(MixturePlan):
    """The lists of a step are of several sources, in the order of the sources.

    A turn is a list here. A source gives its lists in the order of its own batches.

    Args:
        sources: what each gives; every plan must be that of a single process, since this plan deals
            out the lists.
        weights: as of a :class:`MixturePlan`.
        per_step: lists of a step, over all processes.
        least: lists of a step at least; what is left over at the end of an epoch, and is fewer, is
            left out.
        rank, world_size: as of a :class:`MixturePlan`.
    """

    def __init__(
        self,
        sources: Sequence[PlannedSource],
        weights: Sequence[float],
        per_step: int,
        least: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        assert all(source.plan.world_size == 1 for source in sources), (
            "this plan deals out the lists"
        )
        super().__init__(sources, weights, rank, world_size)
        self.per_step = per_step
        # How many lists an epoch of each source has.
        self._n_lists = [int(source.plan.lists_per_step(0).sum()) for source in self.sources]
        self._n_lists_of_epoch = sum(self._n_lists)
        # Of each source the epoch that was asked for last, and where its steps begin among its lists.
        self._starts: list[tuple[int, np.ndarray] | None] = [None] * len(self.sources)
        n_full, n_left = divmod(self._n_lists_of_epoch, per_step)
        self._n_steps = n_full + (1 if n_left >= least else 0)

    def __len__(self) -> int:
        return self._n_steps

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        first, stop = self._turns_of_step(epoch, step)
        lists: list[LabelledList] = []
        from_to = zip(self.turns.before(first), self.turns.before(stop), strict=True)
        for number, (begin, end) in enumerate(from_to):
            lists += self._lists_between(number, begin, end)
        return lists[self.rank :: self.world_size]

    def source_position(self, source: int, epoch: int, step: int) -> tuple[int, int]:
        raise AssertionError("a step may begin in the middle of a source's batch")

    def _turns_of_step(self, epoch: int, step: int) -> tuple[int, int]:
        first = epoch * self._n_lists_of_epoch + step * self.per_step
        stop = epoch * self._n_lists_of_epoch + (step + 1) * self.per_step
        return first, min(stop, (epoch + 1) * self._n_lists_of_epoch)

    def _lists_between(self, number: int, begin: int, end: int) -> list[LabelledList]:
        """The lists of a source from one to another, counted from the beginning of the training."""
        source = self.sources[number]
        lists: list[LabelledList] = []
        while begin < end:
            source_epoch, place = divmod(begin, self._n_lists[number])
            starts = self._starts_of_epoch(number, source_epoch)
            source_step = int(np.searchsorted(starts, place, side="right")) - 1
            batch = source.plan.lists(source_epoch, source_step)
            in_batch = place - int(starts[source_step])
            taken = batch[in_batch : in_batch + end - begin]
            lists += [source.shifted(labelled) for labelled in taken]
            begin += len(taken)
        return lists

    def _starts_of_epoch(self, number: int, epoch: int) -> np.ndarray:
        """``[steps + 1]``: where the steps of an epoch of a source begin, and where the last ends."""
        known = self._starts[number]
        if known is None or known[0] != epoch:
            counts = self.sources[number].plan.lists_per_step(epoch)
            known = (epoch, np.concatenate([[0], np.cumsum(counts)]))
            self._starts[number] = known
        return known[1]
