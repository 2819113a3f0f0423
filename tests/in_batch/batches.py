"""Batches of embedded lists, and processes that share them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from ltr.batch import RankingBatch
from ltr.in_batch import gather


def bools(*rows: str) -> torch.Tensor:
    """``"11 0"`` → [True, True, False]; spaces part the lists."""
    return torch.tensor([[mark == "1" for mark in row.replace(" ", "")] for row in rows])


def grades(*rows: str) -> torch.Tensor:
    return torch.tensor([[float(mark) for mark in row.replace(" ", "")] for row in rows])


def embedded(
    labels,
    doc_rows,
    query_rows,
    judged_rows=None,
    mask=None,
    with_queries=True,
    judged_grades=None,
) -> tuple[RankingBatch, Tensor | None, Tensor]:
    """Lists, and embeddings [−1 − query row] of queries and [row] of documents."""
    doc_rows = torch.as_tensor(doc_rows)
    query_rows = torch.as_tensor(query_rows)
    labels = torch.as_tensor(labels, dtype=torch.float32)
    lists = RankingBatch(
        labels=labels,
        mask=torch.ones_like(labels, dtype=torch.bool) if mask is None else mask,
        query_rows=query_rows,
        doc_rows=doc_rows,
        judged_rows=None if judged_rows is None else torch.tensor(judged_rows),
        judged_grades=None if judged_grades is None else torch.tensor(judged_grades),
    )
    queries = (-1.0 - query_rows).unsqueeze(1) if with_queries else None
    return lists, queries, doc_rows.float().unsqueeze(2)


def on_ranks(function: Callable[[int], Any], n_ranks: int) -> list[Any]:
    """What ``function(rank)`` gives in each process of a job: threads that meet in each gather."""
    this = threading.local()
    barrier = threading.Barrier(n_ranks)
    sent: list[Any] = [None] * n_ranks

    def all_gather(tensor: Tensor) -> Tensor:
        sent[this.rank] = tensor.detach()
        barrier.wait()
        gathered = torch.stack(list(sent))
        barrier.wait()
        return gathered

    def run(rank: int) -> Any:
        this.rank = rank
        try:
            return function(rank)
        except BaseException:
            barrier.abort()
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(n_ranks) as threads:
        patch.setattr(gather, "all_gather", all_gather)
        patch.setattr(gather, "gather_numbers", lambda n: all_gather(torch.tensor(n)).numpy())
        patch.setattr(gather, "rank", lambda: this.rank)
        patch.setattr(gather, "world_size", lambda: n_ranks)
        return list(threads.map(run, range(n_ranks)))
