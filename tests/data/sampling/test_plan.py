"""Which lists form a batch: each row once, by whatever processes and workers, in batches that
depend on nothing else."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

from ltr.batch import RankingBatch
from ltr.data.sampling.buckets import Buckets
from ltr.data.sampling.plan import EvalBatches, PlanSampler, ShareOfRank, TrainBatches
from tests.child_processes import run_ranks
from tests.data.sampling.plans import Bare, Numbered, plan_of


def batches_of(plan: Buckets, epoch: int, workers: int) -> list[RankingBatch]:
    sampler = PlanSampler(plan)
    sampler.set_epoch(epoch)
    return loaded(plan, sampler, workers)


def loaded(plan: Buckets, sampler: PlanSampler, workers: int) -> list[RankingBatch]:
    batches = TrainBatches(plan, Bare())
    return list(DataLoader(batches, batch_size=None, sampler=sampler, num_workers=workers))


def numbers(sampler: PlanSampler) -> list[list[int]]:
    """The query of each list of each step."""
    return [[one.query_row for one in lists] for lists in sampler]


def _an_epoch_and_a_half(rank: int, folder: str) -> None:
    """As a training does: both ranks and two workers each; resumed in the middle of epoch 1."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    options = {"rank": rank, "world_size": 2, "window": 4}
    plan = plan_of(np.arange(63) % 7 + 1, 6, Path(folder) / "drawn", **options)
    found = batches_of(plan, 0, workers=2)
    resumed = loaded(plan, PlanSampler(plan, lambda: (1, 8)), workers=2)
    torch.save([tuple(batch[:4]) for batch in (*found, *resumed)], f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.mark.long
def test_a_row_is_drawn_once_by_all_ranks_and_workers(tmp_path):
    """63 rows in steps of 6: 11 steps, the last of 2 rows and 1. In windows of 4 steps, step 8
    begins a window.
    """
    run_ranks(_an_epoch_and_a_half, str(tmp_path))
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
    assert sorted((tmp_path / "drawn").read_text().splitlines()) == sorted(
        f"{e} {row}" for e in range(2) for row in range(50)
    )


def test_the_sampler_starts_where_the_trainer_is_or_at_the_epoch_that_is_set():
    plan = plan_of(np.ones(12, np.int64), 3, window=1)
    epochs = [numbers(PlanSampler(plan, lambda epoch=epoch: (epoch, 0))) for epoch in range(3)]
    assert numbers(PlanSampler(plan, lambda: (2, 1))) == epochs[2][1:]
    sampler = PlanSampler(plan)
    assert len(sampler) == 4 and numbers(sampler) == epochs[0]
    sampler.set_epoch(1)
    assert numbers(sampler) == epochs[1] != epochs[0]


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
        rows = [batches[number].query_rows.tolist() for number in range(len(batches))]
        assert sorted(sum(rows, [])) == list(range(n))
