"""Batches of rows of similar length."""

import pickle

import numpy as np
import pytest

from ltr.data.sampling.buckets import Buckets
from tests.data.sampling.plans import plan_of


def numbers(plan: Buckets, epoch: int, step: int) -> list[int]:
    return [one.query_row for one in plan.lists(epoch, step)]


@pytest.mark.parametrize(
    ("n_rows", "world_size", "window"),
    [(103, 1, 5), (103, 2, 5), (103, 3, 1), (64, 4, 64), (5, 2, 4), (13, 2, 2)],
)
def test_ranks_share_the_rows_of_an_epoch(n_rows, world_size, window):
    lengths = np.arange(n_rows) % 17 + 1
    options = {"world_size": world_size, "window": window}
    ranks = [plan_of(lengths, 4, rank=rank, **options) for rank in range(world_size)]
    rows = [numbers(plan, 2, step) for step in range(len(ranks[0])) for plan in ranks]
    assert len({len(r) for r in ranks}) == 1
    assert sorted(row for part in rows for row in part) == list(range(n_rows))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_together_are_one_process(world_size):
    """103 rows in batches of 10: the last one has 3, of which one of four ranks gets none."""
    lengths = np.random.default_rng(0).integers(1, 20, 103)
    alone = plan_of(lengths, 10, window=5)
    options = {"world_size": world_size, "window": 5}
    ranks = [plan_of(lengths, 10, rank=rank, **options) for rank in range(world_size)]
    for step in range(len(alone)):
        whole = numbers(alone, 1, step)
        parts = [numbers(plan, 1, step) for plan in ranks]
        assert parts == [whole[rank::world_size] for rank in range(world_size)]


def test_bucketing_puts_rows_of_similar_length_together():
    lengths = np.random.default_rng(0).integers(1, 200, 4096)

    def spread(window: int) -> float:
        plan = plan_of(lengths, 16, window=window)
        return np.mean([np.ptp(lengths[numbers(plan, 0, step)]) for step in range(len(plan))])

    assert spread(64) < spread(1) / 10


def test_a_batch_of_rows_does_not_depend_on_the_ones_before():
    lengths = np.random.default_rng(0).integers(1, 20, 103)
    plan = plan_of(lengths, 4, window=5)
    fresh = plan_of(lengths, 4, window=5)
    keys = [(epoch, step) for epoch in range(2) for step in range(len(plan))]
    in_order = {key: numbers(plan, *key) for key in keys}
    assert any(in_order[0, step] != in_order[1, step] for step in range(len(plan)))
    for key in reversed(keys):
        assert numbers(fresh, *key) == in_order[key]
    # What is drawn is not sent to a spawned worker.
    assert len(pickle.dumps(plan)) < len(pickle.dumps(plan.rows)) + 1000
