"""Whose turn it is, and which lists a step has."""

import numpy as np
import pytest

from ltr.data.query_lists import LabelledList
from ltr.data.sampling.buckets import Buckets
from ltr.data.sampling.mixture import MixedBatches, OneSourceBatches, PlannedSource, Turns
from ltr.data.sampling.plan import SourcePlan


class Counted(SourcePlan):
    """Lists of a source, each by the number that it has in the whole training: query_row is its
    place in the epoch, and its document the epoch.
    """

    def __init__(self, counts, rank=0, world_size=1):
        self.counts = np.asarray(counts)
        self.n_rows = int(self.counts.sum())
        self.per_step = int(self.counts[0])
        self.rank = rank
        self.world_size = world_size

    def __len__(self):
        return len(self.counts)

    def lists_per_step(self, epoch):
        return self.counts

    def lists(self, epoch, step, *, together=False):
        first = int(self.counts[:step].sum())
        places = range(first, first + int(self.counts[step]))
        lists = [LabelledList(place, np.array([epoch]), np.ones(1)) for place in places]
        return lists[self.rank :: self.world_size]


def of_source(number):
    """Its lists have 1,000 more as the number of their query."""

    def shifted(labelled):
        return labelled._replace(query_row=labelled.query_row + 1000 * number)

    return shifted


def sources(*plans):
    return [PlannedSource(plan, of_source(number)) for number, plan in enumerate(plans)]


def told(lists):
    """Source, epoch of its own and place in it, of each list."""
    return [(one.query_row // 1000, int(one.doc_rows[0]), one.query_row % 1000) for one in lists]


def test_turns_by_hand():
    """3 : 1 repeats after four turns. Those of the first source stand at 2/3, 2 and 10/3, that of
    the second at 2, behind the other one that stands there.
    """
    turns = Turns([3, 1])
    assert turns.period == 4
    assert [turns.source(turn) for turn in range(9)] == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert [turns.before(turn) for turn in range(6)] == [
        [0, 0],
        [1, 0],
        [2, 0],
        [2, 1],
        [3, 1],
        [4, 1],
    ]


def test_only_the_ratio_of_weights_counts():
    assert Turns([0.75, 0.25]).weights == Turns([30, 10]).weights == Turns([3, 1]).weights == [3, 1]
    assert Turns([0.1, 0.2, 0.7]).weights == [1, 2, 7]  # as decimals: 0.1 is no binary fraction
    assert Turns([1e-9, 1e-9]).weights == [1, 1]


@pytest.mark.parametrize("n_sources", [2, 3])
def test_no_source_is_ever_a_turn_away_from_its_share(n_sources):
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights = rng.integers(1, 60, size=n_sources)
        turns = Turns(weights.tolist())
        given = np.zeros(n_sources)
        for turn in range(2 * turns.period):
            assert turns.before(turn) == given.tolist()
            given[turns.source(turn)] += 1
            share = (turn + 1) * weights / weights.sum()
            assert np.abs(given - share).max() <= 1


def test_a_long_period_is_rounded_and_leaves_no_source_out():
    turns = Turns([1.0, 3.14159265358979e-9, 2.0])
    assert turns.period <= 2**20 + 3 and turns.weights[1] == 1
    assert turns.weights[2] / turns.weights[0] == pytest.approx(2, rel=1e-5)


def test_a_batch_is_of_one_source_and_a_source_that_is_used_up_begins_anew():
    """3 : 1 over 3 and 2 batches: an epoch has 5 steps. By the turns 0 0 1 0 0 | 0 1 0 0 0 the
    first source begins its second epoch with its fourth batch, and the second with its third one.
    """
    plan = OneSourceBatches(sources(Counted([2, 2, 1]), Counted([2, 2])), [3, 1])
    assert len(plan) == 5 and plan.per_step == 2 and plan.n_rows == 9
    steps = [told(plan.lists(epoch, step)) for epoch in range(2) for step in range(5)]
    assert steps == [
        [(0, 0, 0), (0, 0, 1)],
        [(0, 0, 2), (0, 0, 3)],
        [(1, 0, 0), (1, 0, 1)],
        [(0, 0, 4)],
        [(0, 1, 0), (0, 1, 1)],
        [(0, 1, 2), (0, 1, 3)],
        [(1, 0, 2), (1, 0, 3)],
        [(0, 1, 4)],
        [(0, 2, 0), (0, 2, 1)],
        [(0, 2, 2), (0, 2, 3)],
    ]


def test_a_mixed_batch_has_lists_of_all_as_their_weights_say():
    """3 : 1 in batches of 4 over 5 and 3 lists: an epoch has two steps of three and one."""
    plan = MixedBatches(sources(Counted([2, 2, 1]), Counted([2, 1])), [3, 1], 4, 1)
    assert len(plan) == 2 and plan.n_rows == 8
    steps = [told(plan.lists(epoch, step)) for epoch in range(2) for step in range(2)]
    assert steps == [
        [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0)],
        [(0, 0, 3), (0, 0, 4), (0, 1, 0), (1, 0, 1)],
        [(0, 1, 1), (0, 1, 2), (0, 1, 3), (1, 0, 2)],
        [(0, 1, 4), (0, 2, 0), (0, 2, 1), (1, 1, 0)],
    ]


def test_without_other_weights_than_their_sizes_each_list_comes_once_an_epoch():
    for kind in ("one source", "mixed"):
        plans = [Counted([4, 4, 3]), Counted([4, 2]), Counted([4])]
        if kind == "mixed":
            plan = MixedBatches(sources(*plans), [plan.n_rows for plan in plans], 4, 1)
        else:
            plan = OneSourceBatches(sources(*plans), [len(plan) for plan in plans])
        for epoch in range(3):
            lists = [one for step in range(len(plan)) for one in told(plan.lists(epoch, step))]
            expected = [
                (source, epoch, place) for source, n in enumerate((11, 6, 4)) for place in range(n)
            ]
            assert sorted(lists) == expected


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_deal_out_the_lists_of_one(world_size):
    for kind in (OneSourceBatches, MixedBatches):

        def plan(rank, of_process, world_size=1, kind=kind):
            share = (rank, world_size) if kind is OneSourceBatches else ()
            made = sources(Counted([4, 4, 3], *share), Counted([4, 2], *share))
            if kind is OneSourceBatches:
                return kind(made, [2, 1], rank, world_size)
            return kind(made, [2, 1], 4, 1, rank, world_size)

        whole = plan(0, 0)
        parts = [plan(rank, 0, world_size) for rank in range(world_size)]
        for step in range(len(whole)):
            expected = told(whole.lists(1, step))
            for rank, part in enumerate(parts):
                assert told(part.lists(1, step)) == expected[rank::world_size]


def test_what_is_left_at_the_end_of_an_epoch_and_too_small_is_left_out():
    """Nine groups in batches of four: the last is alone, and has nothing to be told from."""
    plan = MixedBatches(sources(Counted([4, 1]), Counted([4])), [5, 4], 4, 2)
    assert len(plan) == 2
    assert [len(plan.lists(epoch, step)) for epoch in (0, 1) for step in (0, 1)] == [4] * 4


class Rows:
    """Rows of one document each, whose number is their length."""

    def __init__(self, n):
        self.query_rows = np.random.default_rng(0).permutation(n)

    def __len__(self):
        return len(self.query_rows)

    def draw(self, epoch, row):
        return LabelledList(int(self.query_rows[row]), np.array([row]), np.ones(1))


@pytest.mark.parametrize("window", [1, 2, 5, 64])
@pytest.mark.parametrize("n_rows", [23, 24, 3])
def test_buckets_say_how_many_lists_each_step_has(window, n_rows):
    """The smaller batch stands anywhere in the last window."""
    plan = Buckets(Rows(n_rows), lambda one: one.query_row, 4, seed=5, window=window)
    for epoch in range(4):
        counts = [len(plan.lists(epoch, step)) for step in range(len(plan))]
        assert plan.lists_per_step(epoch).tolist() == counts
    for epoch in range(4):
        mixed = MixedBatches(sources(plan), [1], 4, 1)
        one = [told(mixed.lists(epoch, step)) for step in range(len(mixed))]
        assert sum(one, []) == [
            row for step in range(len(plan)) for row in told(plan.lists(epoch, step))
        ]


def test_a_step_of_several_sources_is_at_no_step_of_one_of_them():
    """Its lists may be the last ones of a source's batch and the first of the next."""
    plan = MixedBatches(sources(Counted([2, 2]), Counted([2])), [2, 1], per_step=3, least=1)
    with pytest.raises(AssertionError, match="middle of a source's batch"):
        plan.source_position(0, 0, 1)
