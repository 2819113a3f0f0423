"""What an evaluation has ranked: each process keeps its own queries, and rank 0 gets those of
all in blocks, in the order of the queries.

Letters of shapes: B queries of a batch or a block, N documents of each, M metrics.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ltr.data.query_lists import QueryLists
from ltr.processes import gather_at_rank_0, gather_objects

QUERIES_AT_ONCE = 1024  # that rank 0 gets of the others


class RankedQueries(NamedTuple):
    """Queries of ``test`` or ``predict`` with their documents in their order.

    Attributes:
        lists: the documents of each query with their scores, best first.
        metrics: ``[B, M]`` float64, of each query, in the order of the module's measures.
    """

    lists: QueryLists
    metrics: np.ndarray


class Rankings:
    """What this process has ranked in an evaluation: 12 bytes for a document of a list."""

    def __init__(self) -> None:
        self._batches: list[RankedQueries] = []

    def clear(self) -> None:
        self._batches.clear()

    def add(self, outputs: Mapping[str, Any]) -> None:
        """Add what a step of an evaluation has returned, as :class:`ltr.module.RankerModule` does."""
        query_rows = outputs["query_rows"].cpu().numpy()
        order = np.argsort(query_rows, kind="stable")
        mask = outputs["mask"].cpu().numpy()[order]
        scores = outputs["scores"].cpu()
        if scores.dtype != torch.float64:  # numpy has no bfloat16
            scores = scores.float()
        # Best first; of equal scores the later row first.
        lists = QueryLists(
            query_rows[order],
            np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int64),
            outputs["doc_rows"].cpu().numpy()[order][mask],
            scores.numpy()[order][mask],
        ).best_first()
        metrics = np.empty((len(query_rows), 0))
        if metric_values := list(outputs.get("per_query", {}).values()):
            metrics = torch.stack(metric_values, dim=1).double().cpu().numpy()[order]
        self._batches.append(RankedQueries(lists, metrics))

    def all_blocks(self) -> Iterator[RankedQueries]:
        """What all processes have ranked, in blocks, in the order of the queries. Every process must
        go through them; at the others than rank 0 they are empty.
        """
        # Of each own query, in the order of their rows, its row and its batch. Of three batches with
        # the rows [4, 7], [] and [1]: own_rows [1, 4, 7], batches [2, 0, 0].
        rows_of_batches = [batch.lists.query_rows for batch in self._batches]
        own_rows = np.concatenate([np.empty(0, np.int64), *rows_of_batches])
        counts = [len(rows) for rows in rows_of_batches]
        batches = np.repeat(np.arange(len(counts)), counts)
        order = np.argsort(own_rows, kind="stable")
        own_rows = own_rows[order]
        batches = batches[order]
        rows_of_all = np.sort(np.concatenate(gather_objects(own_rows)))
        firsts = np.unique(rows_of_all[::QUERIES_AT_ONCE])  # rows that begin a block
        begins = np.append(np.searchsorted(own_rows, firsts), len(own_rows)).tolist()
        for begin, end in zip(begins[:-1], begins[1:], strict=True):
            parts = gather_at_rank_0(self._queries_at(own_rows[begin:end], batches[begin:end]))
            yield _in_order(parts)

    def _queries_at(self, query_rows: np.ndarray, batches: np.ndarray) -> RankedQueries:
        """The queries of these rows, which are in these batches."""
        parts = []
        for number in np.unique(batches).tolist():
            lists, metrics = self._batches[number]
            places = np.searchsorted(lists.query_rows, query_rows[batches == number])
            parts.append(RankedQueries(lists.lists_at(places), metrics[places]))
        return _in_order(parts)


def _in_order(parts: list[RankedQueries]) -> RankedQueries:
    """The queries of several parts in the order of their rows."""
    lists = QueryLists.end_to_end([part.lists for part in parts])
    order = np.argsort(lists.query_rows, kind="stable")
    # A part without queries has no M.
    metrics = [part.metrics for part in parts if len(part.metrics)] or [np.empty((0, 0))]
    return RankedQueries(lists.lists_at(order), np.concatenate(metrics)[order])
