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


def steps_of(plan, *epochs):
    """What is told of each step."""
    return [told(plan.lists(epoch, step)) for epoch in epochs for step in range(len(plan))]


def in_letters(steps):
    """The source is a letter before epoch and place: a01 is place 1 in epoch 0 of the first."""
    return [" ".join(f"{'ab'[source]}{at}{n}" for source, at, n in step) for step in steps]


def test_turns_by_hand():
    """3 : 1 repeats after four turns. Those of the first source stand at 2/3, 2 and 10/3, that of
    the second at 2, behind the other one that stands there.
    """
    turns = Turns([3, 1])
    assert turns.period == 4
    assert [turns.source(turn) for turn in range(9)] == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert [turns.before(turn)[0] for turn in range(6)] == [0, 1, 2, 2, 3, 4]
    assert [turns.before(turn)[1] for turn in range(6)] == [0, 0, 0, 1, 1, 1]


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
    assert in_letters(steps_of(plan, 0)) == ["a00 a01", "a02 a03", "b00 b01", "a04", "a10 a11"]
    assert in_letters(steps_of(plan, 1)) == ["a12 a13", "b02 b03", "a14", "a20 a21", "a22 a23"]


def test_a_mixed_batch_has_lists_of_all_as_their_weights_say():
    """3 : 1 in batches of 4 over 5 and 3 lists: an epoch has two steps of three and one."""
    plan = MixedBatches(sources(Counted([2, 2, 1]), Counted([2, 1])), [3, 1], 4, 1)
    assert len(plan) == 2 and plan.n_rows == 8
    assert in_letters(steps_of(plan, 0)) == ["a00 a01 a02 b00", "a03 a04 a10 b01"]
    assert in_letters(steps_of(plan, 1)) == ["a11 a12 a13 b02", "a14 a20 a21 b10"]


def test_without_other_weights_than_their_sizes_each_list_comes_once_an_epoch():
    plans = sources(Counted([4, 4, 3]), Counted([4, 2]), Counted([4]))
    for plan in (MixedBatches(plans, [11, 6, 4], 4, 1), OneSourceBatches(plans, [3, 2, 1])):
        for epoch in range(3):
            expected = [(source, epoch, n) for source, m in enumerate((11, 6, 4)) for n in range(m)]
            assert sorted(sum(steps_of(plan, epoch), [])) == expected


def one_source(rank=0, world_size=1):
    counts = ([4, 4, 3], [4, 2])
    plans = sources(*(Counted(of_source, rank, world_size) for of_source in counts))
    return OneSourceBatches(plans, [2, 1], rank, world_size)


def mixed(rank=0, world_size=1):
    plans = sources(Counted([4, 4, 3]), Counted([4, 2]))
    return MixedBatches(plans, [2, 1], 4, 1, rank, world_size)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("plan", [one_source, mixed])
def test_processes_deal_out_the_lists_of_one(plan, world_size):
    whole = steps_of(plan(), 1)
    for rank in range(world_size):
        assert steps_of(plan(rank, world_size), 1) == [step[rank::world_size] for step in whole]


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
    alone = MixedBatches(sources(plan), [1], 4, 1)
    for epoch in range(4):
        steps = steps_of(plan, epoch)
        assert plan.lists_per_step(epoch).tolist() == [len(step) for step in steps]
        assert sum(steps_of(alone, epoch), []) == sum(steps, [])


def test_a_step_of_several_sources_is_at_no_step_of_one_of_them():
    """Its lists may be the last ones of a source's batch and the first of the next."""
    plan = MixedBatches(sources(Counted([2, 2]), Counted([2])), [2, 1], per_step=3, least=1)
    with pytest.raises(AssertionError, match="middle of a source's batch"):
        plan.source_position(0, 0, 1)
