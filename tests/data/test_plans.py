"""Which lists form a batch: each row once, by whatever processes and workers, in batches that depend on nothing else."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch.multiprocessing import spawn
from torch.utils.data import DataLoader

from ltr.batch import RankingBatch
from ltr.data.collate import FeatureCollator
from ltr.data.plans import Buckets, EvalBatches, GroupPlan, PlanSampler, ShareOfRank, TrainBatches
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.rows import LabelGroups, QueryGroups
from ltr.errors import InputError
from tests.data.test_rows import many_judged, shuffled

# Rows of similar length


class Bare(FeatureCollator):
    """The lists alone, without features."""

    def __init__(self) -> None:
        super().__init__(np.zeros((10, 1), np.float32))


class Numbered:
    """Rows of given lengths, whose documents tell the epoch. Every draw appends a line to a file, in whichever process."""

    def __init__(self, lengths: np.ndarray, log: Path | None = None) -> None:
        self.lengths, self.log = np.asarray(lengths), log

    def __len__(self) -> int:
        return len(self.lengths)

    def draw(self, epoch: int, row: int) -> LabelledList:
        if self.log is not None:
            with open(self.log, "a") as file:  # a short line is appended at once
                file.write(f"{epoch} {row}\n")
        return LabelledList(int(row), np.full(self.lengths[row], epoch), np.ones(self.lengths[row], np.float32))


def plan_of(lengths: np.ndarray, batch_size: int, log: Path | None = None, **options: int) -> Buckets:
    return Buckets(Numbered(lengths, log), Bare().row_length, batch_size, **{"seed": 3} | options)


def numbers(plan: Buckets, epoch: int, step: int) -> list[int]:
    return [one.query_row for one in plan.lists(epoch, step)]


@pytest.mark.parametrize(
    ("n_rows", "world_size", "window"), [(103, 1, 5), (103, 2, 5), (103, 3, 1), (64, 4, 64), (5, 2, 4), (13, 2, 2)]
)
def test_ranks_share_the_rows_of_an_epoch(n_rows, world_size, window):
    lengths = np.arange(n_rows) % 17 + 1
    ranks = [plan_of(lengths, 4, rank=rank, world_size=world_size, window=window) for rank in range(world_size)]
    rows = [numbers(ranks[r], 2, step) for step in range(len(ranks[0])) for r in range(world_size)]
    assert all(rows) and len({len(r) for r in ranks}) == 1
    seen = sorted(row for part in rows for row in part)
    assert len(seen) == len(set(seen)) and set(seen) <= set(range(n_rows))
    assert n_rows - len(seen) < world_size  # only a rest too small for a row on every rank is left out


def test_two_ranks_together_are_one_process():
    lengths = np.random.default_rng(0).integers(1, 20, 103)
    alone, ranks = plan_of(lengths, 8, window=5), [plan_of(lengths, 4, rank=r, world_size=2, window=5) for r in range(2)]
    for step in range(len(alone)):
        whole = numbers(alone, 1, step)
        assert [numbers(one, 1, step) for one in ranks] == [whole[0::2], whole[1::2]]


def test_bucketing_puts_rows_of_similar_length_together():
    lengths = np.random.default_rng(0).integers(1, 200, 4096)

    def spread(window: int) -> float:
        plan = plan_of(lengths, 16, window=window)
        return np.mean([np.ptp(lengths[numbers(plan, 0, step)]) for step in range(len(plan))])

    assert spread(64) < spread(1) / 10


def test_a_batch_of_rows_does_not_depend_on_the_ones_before():
    lengths = np.random.default_rng(0).integers(1, 20, 103)
    plan, fresh = plan_of(lengths, 4, window=5), plan_of(lengths, 4, window=5)
    keys = [(epoch, step) for epoch in range(2) for step in range(len(plan))]
    in_order = {key: numbers(plan, *key) for key in keys}
    assert [in_order[0, step] for step in range(len(plan))] != [in_order[1, step] for step in range(len(plan))]
    for key in reversed(keys):
        assert numbers(fresh, *key) == in_order[key]
    assert len(pickle.dumps(plan)) < len(pickle.dumps(plan.rows)) + 1000  # what is drawn is not sent to a spawned worker


# A row is drawn once


def batches_of(plan: Buckets, epoch: int, workers: int) -> list[RankingBatch]:
    sampler = PlanSampler(plan)
    sampler.set_epoch(epoch)
    return list(DataLoader(TrainBatches(plan, Bare()), batch_size=None, sampler=sampler, num_workers=workers))


def _an_epoch_and_a_half(rank: int, folder: str) -> None:
    """As a training does: both ranks and two workers each; resumed in the middle of epoch 1."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    options = {"rank": rank, "world_size": 2, "window": 4}
    plan = plan_of(np.arange(63) % 7 + 1, 3, Path(folder) / "drawn", **options)
    found = batches_of(plan, 0, workers=2)
    resumed = DataLoader(TrainBatches(plan, Bare()), batch_size=None, sampler=PlanSampler(plan, lambda: (1, 8)), num_workers=2)
    torch.save([tuple(batch[:4]) for batch in (*found, *resumed)], f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.mark.long
def test_a_row_is_drawn_once_by_all_ranks_and_workers(tmp_path):
    """63 rows in steps of 2 x 3: 11 steps, the last of 2 rows and 1. In windows of 4 steps, step 8 begins a window."""
    spawn(_an_epoch_and_a_half, args=(str(tmp_path),), nprocs=2)
    drawn = Counter((tmp_path / "drawn").read_text().splitlines())
    assert set(drawn.values()) == {1}
    assert len([line for line in drawn if line.startswith("0 ")]) == 63 and len(drawn) == 63 + 15
    alone = plan_of(np.arange(63) % 7 + 1, 6, window=4)
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        keys = [(0, step) for step in range(11)] + [(1, 8), (1, 9), (1, 10)]
        assert len(found) == len(keys)
        for key, batch in zip(keys, found, strict=True):
            expected = Bare()(alone.lists(*key)[rank::2])
            assert all(torch.equal(a, b) for a, b in zip(batch, expected[:4], strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_is_drawn_once_by_one_process(tmp_path, workers):
    plan = plan_of(np.arange(50) % 7 + 1, 4, tmp_path / "drawn", window=3)
    for epoch in range(2):
        assert len(batches_of(plan, epoch, workers)) == 13
    assert sorted((tmp_path / "drawn").read_text().splitlines()) == sorted(f"{e} {row}" for e in range(2) for row in range(50))


def test_the_sampler_starts_where_the_trainer_is_or_at_the_epoch_that_is_set():
    plan = plan_of(np.ones(12, np.int64), 3, window=1)
    epoch = [[[one.query_row for one in lists] for lists in PlanSampler(plan, lambda e=e: (e, 0))] for e in range(3)]
    assert [[one.query_row for one in lists] for lists in PlanSampler(plan, lambda: (2, 1))] == epoch[2][1:]
    sampler = PlanSampler(plan)
    assert len(sampler) == 4 and [[one.query_row for one in lists] for lists in sampler] == epoch[0]
    sampler.set_epoch(1)
    assert [[one.query_row for one in lists] for lists in sampler] == epoch[1] != epoch[0]


def test_numbers_of_lightnings_own_sampler_are_steps_of_epoch_0():
    plan = plan_of(np.arange(12) + 1, 3)
    batches = TrainBatches(plan, Bare())
    for step in range(4):
        expected = Bare()(plan.lists(0, step))
        assert torch.equal(batches[step].query_rows, expected.query_rows)
        assert torch.equal(batches[0, step].query_rows, expected.query_rows)


def test_ranks_share_the_batches_of_an_evaluation_and_each_has_one():
    shares = [list(ShareOfRank(7, rank, 3)) for rank in range(3)]
    assert sorted(sum(shares, [])) == list(range(7)) and [len(s) for s in shares] == [3, 2, 2]
    lists = [Numbered(np.arange(30)).draw(0, row) for row in range(30)]
    for n, world_size in ((1, 2), (3, 2), (30, 4), (30, 1)):
        batches = EvalBatches(lists[:n], 16, Bare(), world_size)
        assert len(batches) >= world_size
        assert sorted(q for i in range(len(batches)) for q in batches[i].query_rows.tolist()) == list(range(n))


# Groups


def plans(groups, groups_per_batch, world_size) -> list[GroupPlan]:
    return [GroupPlan(groups, groups_per_batch, 3, rank, world_size) for rank in range(world_size)]


def every_list(plan, epoch) -> list[list[tuple[int, list[int]]]]:
    """Owner and documents of the groups at each step."""
    return [[(one.query_row, one.doc_rows.tolist()) for one in plan.lists(epoch, step)] for step in range(len(plan))]


KINDS = {
    "queries": lambda: QueryGroups(many_judged(43), 3, 3, epoch="queries", where="here"),
    "pairs": lambda: QueryGroups(many_judged(43), 2, 3, epoch="pairs", where="here"),
    "labels": lambda: LabelGroups(shuffled(35, 26, 22, 12, 14, 3, 5, 2, 8), 3, 3, where="here"),
    "one common label": lambda: LabelGroups(shuffled(300, 10, 9, 8, 7), 2, 3, where="here"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_together_are_one_process_and_no_group_is_cut(kind, world_size):
    groups = KINDS[kind]()
    alone, ranks = every_list(GroupPlan(groups, 5, 3), 2), [every_list(plan, 2) for plan in plans(groups, 5, world_size)]
    assert {len(steps) for steps in ranks} == {sum(len(step) >= world_size for step in alone)}  # a group for every rank
    for step, parts in enumerate(zip(*ranks, strict=True)):
        assert all(parts) and sorted(sum(parts, [])) == sorted(alone[step])
        assert all(part == alone[step][rank::world_size] for rank, part in enumerate(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_no_owner_twice_and_an_epoch_no_document(kind):
    """With ``pairs`` two groups of one query may share a batch: an epoch is then any order of all groups."""
    plan = GroupPlan(KINDS[kind](), 5, 3)
    for epoch in range(5):
        steps = every_list(plan, epoch)
        assert [len(step) for step in steps] == [len(step) for step in every_list(plan, 0)]  # the same steps in every epoch
        for step in steps:
            owners = [owner for owner, _ in step]
            assert 2 <= len(owners) <= 5 and (kind == "pairs" or len(owners) == len(set(owners)))
        seen = Counter((owner, doc) for step in steps for owner, docs in step for doc in docs)
        assert set(seen.values()) == {1}
        assert sum(map(len, steps)) == plan.n_used <= plan.n_rows


def test_every_query_has_its_group_once_an_epoch():
    """43 queries in batches of 5: 9 steps, the last of 3; in batches of 6 one query is left out, another one each time."""
    groups = QueryGroups(many_judged(43), 3, 0, epoch="queries", where="here")
    steps = every_list(GroupPlan(groups, 5, 0), 0)
    assert [len(step) for step in steps] == [5] * 8 + [3] and sorted(o for step in steps for o, _ in step) == list(range(43))
    missing = [set(range(43)) - {o for step in every_list(GroupPlan(groups, 6, 0), e) for o, _ in step} for e in range(6)]
    assert {len(left) for left in missing} == {1} and len(set.union(*missing)) > 1
    assert len(GroupPlan(groups, 5, 0, 0, 4)) == 8  # three queries are too few for four ranks


def test_labels_by_hand():
    """Texts 0-4 of one label and 5-6 of another in twos: groups of 2 and 2 (one text is left over) and of 2; one mixed batch,
    and nothing for the second group of the first label to be told from."""
    groups = LabelGroups(np.asarray([0, 0, 0, 0, 0, 1, 1]), 2, 0, where="here")
    assert groups.owners.tolist() == [0, 0, 1]
    plan = GroupPlan(groups, 2, 0)
    assert len(plan) == 1 and plan.n_rows == 3 and plan.n_used == 2
    seen = set()
    for epoch in range(30):
        both = dict(every_list(plan, epoch)[0])
        assert both.keys() == {0, 1} and sorted(both[1]) == [5, 6] and len(set(both[0])) == 2 and set(both[0]) <= set(range(5))
        seen |= set(both[0])
    assert seen == set(range(5))


def test_an_epoch_visits_every_text_but_the_ones_left_over():
    """10 labels of 13 texts in fours: 3 groups and a text left over each; 30 groups fill 6 batches of 5 exactly."""
    groups = LabelGroups(shuffled(*[13] * 10), 4, 0, where="here")
    plan = GroupPlan(groups, 5, 0)
    left = []
    for epoch in range(8):
        steps = every_list(plan, epoch)
        assert [len(step) for step in steps] == [5] * 6
        seen = [doc for step in steps for _, docs in step for doc in docs]
        assert all((groups.labels[docs] == owner).all() for step in steps for owner, docs in step)
        left.append(set(range(130)) - set(seen))
        assert len(seen) == len(set(seen)) and sorted(groups.labels[list(left[-1])]) == list(range(10))
    assert len(set.union(*left)) > 30


def test_batches_stay_mixed_where_labels_are_unbalanced():
    """12 groups of one label, 6 + 4 + 2 of others, in pairs: the common label is in every one of 12 batches, none is lost."""
    groups = LabelGroups(np.repeat([0, 1, 2, 3], [24, 12, 8, 4]), 2, 0, where="here")
    plan = GroupPlan(groups, 2, 0)
    steps = every_list(plan, 1)
    assert len(steps) == 12 and plan.n_used == plan.n_rows == 24
    assert Counter(owner for step in steps for owner, _ in step) == {0: 12, 1: 6, 2: 4, 3: 2}
    assert all(len(step) == 2 and 0 in dict(step) for step in steps)
    # Any batch may come at any time: a rare label does not always wait for the end of an epoch.
    places = {step for epoch in range(40) for step, lists in enumerate(every_list(plan, epoch)) if 3 in dict(lists)}
    assert places == set(range(12))
    first = Counter(every_list(plan, epoch)[0][0][0] == 0 for epoch in range(100))
    assert 30 < first[True] < 70  # nor does the first rank always have the common label


def test_a_batch_does_not_depend_on_the_ones_before():
    for make in KINDS.values():
        plan, fresh = GroupPlan(make(), 5, 3), GroupPlan(make(), 5, 3)
        keys = [(epoch, step) for epoch in range(3) for step in range(len(plan))]
        in_order = {key: [one.doc_rows.tolist() for one in plan.lists(*key)] for key in keys}
        for key in reversed(keys):
            assert [one.doc_rows.tolist() for one in fresh.lists(*key)] == in_order[key]


def test_too_few_groups_are_refused():
    with pytest.raises(InputError, match=r"groups must be at least the number of processes, 5, got 4: .* \(option groups\)"):
        GroupPlan(KINDS["queries"](), 4, 0, 0, 5)
    three = QueryGroups(many_judged(3), 2, 0, epoch="queries", where="here")
    with pytest.raises(InputError, match="here: a batch needs at least 4 groups.*got 3"):
        GroupPlan(three, 4, 0, 0, 4, where="here")
    with pytest.raises(InputError, match="here: a batch needs at least 2 queries.*got 1"):
        QueryGroups(QueryLists.from_rows([3, 3], [1, 2], [1.0, 1.0]), 1, 0, epoch="pairs", where="here")
