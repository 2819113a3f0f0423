"""Ranks whose embeddings are on pretended GPUs, while their lists are on their hosts, or are not."""

import pytest
import torch

from benchmarks.harness.pretended_gpu import DEVICE, Counts, PretendedGPU
from ltr.batch import RankingBatch
from ltr.in_batch.gather import gather_lists
from tests.in_batch.batches import embedded, on_ranks


def lists_of(rank: int) -> tuple[RankingBatch, torch.Tensor, torch.Tensor]:
    """2 lists of 2 documents, or 1."""
    n_lists = 2 - rank
    rows = 10 * rank + torch.arange(2 * n_lists).view(n_lists, 2)
    return embedded(labels=torch.eye(2)[:n_lists], doc_rows=rows, query_rows=rows[:, 0])


@pytest.mark.parametrize("on_host", [(True, True), (True, False), (False, False)])
def test_lists_stay_on_the_hosts_if_those_of_all_are_there(on_host):
    """The values are those of ranks without GPUs."""
    expected = on_ranks(lambda rank: gather_lists(*lists_of(rank)), 2)

    gpu = PretendedGPU()

    def gathered(rank):
        with gpu.in_thread():
            lists, queries, docs = lists_of(rank)
            if not on_host[rank]:
                moved = (None if each is None else each.to(DEVICE) for each in lists)
                lists = RankingBatch(*moved)
            return gather_lists(
                lists, *(each.to(DEVICE, non_blocking=True) for each in (queries, docs))
            )

    with gpu:
        gpu.counts = Counts()
        of_ranks = on_ranks(gathered, 2)
        # Lists that are not on the hosts wait where they are sent.
        if all(on_host):
            assert not gpu.counts.waits
    for (lists, *vectors), (expected_lists, *expected_vectors) in zip(
        of_ranks, expected, strict=True
    ):
        assert lists.labels.is_cuda == lists.doc_rows.is_cuda == (not all(on_host))
        assert all(vector.is_cuda for vector in vectors)
        for found, other in zip(
            (*lists, *vectors), (*expected_lists, *expected_vectors), strict=True
        ):
            if other is None:
                assert found is None
            else:
                assert torch.equal(getattr(found, "held", found), other)
