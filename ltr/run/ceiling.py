"""The ceiling of candidate pools: what the best re-ranking of them would reach."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import torch

from ltr.data.collate import padded_lists
from ltr.data.query_lists import LabelledList
from ltr.metrics import MeasuredLists, RankingMetric


def ceiling(
    metrics: Sequence[RankingMetric], batches: Sequence[Sequence[LabelledList]]
) -> dict[str, float]:
    """The value of each metric if every list stood in the order of its grades, and ``R``, the
    recall of the pools.

    A relevant document that is not among the candidates can't be ranked, so a ceiling may lie below
    1. Metrics of pairs compare candidates alone, and have none.

    Args:
        metrics: what is measured; they are not changed.
        batches: the candidate lists of all processes.

    Returns:
        By metric; empty where no list has anything to find.
    """
    by_name = {metric.name: metric for metric in metrics if metric.measure.by_rank}
    by_name["R"] = RankingMetric("R")
    values: dict[str, list[torch.Tensor]] = {name: [] for name in by_name}
    for lists in batches:
        if not lists:  # stands for a process that got no list
            continue
        batch = padded_lists(lists)
        # Ranked by their labels: no ranker of these documents does better.
        best = MeasuredLists(batch.labels, batch.labels, batch.mask, None, batch.ideal)
        for name, metric in by_name.items():
            values[name].append(metric.per_query(best).double())
    ceilings = {}
    for name, values_of_batches in values.items():
        if values_of_batches:
            mean = torch.cat(values_of_batches).nanmean().item()
            if not math.isnan(mean):  # NaN: no query has anything to find
                ceilings[name] = mean
    return ceilings


def ceiling_of_sources(
    metrics: Sequence[RankingMetric],
    batches: Sequence[Sequence[LabelledList]],
    first_queries: Sequence[int],
) -> dict[str, float]:
    """The mean of :func:`ceiling` over the sources that have lists.

    Args:
        metrics, batches: as of :func:`ceiling`.
        first_queries: the number of the first query of each source, ascending.
    """
    batches_of: defaultdict[int, list[list[LabelledList]]] = defaultdict(list)
    for lists in batches:
        lists_of: defaultdict[int, list[LabelledList]] = defaultdict(list)
        for labelled in lists:
            source = bisect_right(first_queries, labelled.query_row) - 1
            lists_of[source].append(labelled)
        for source, lists_of_source in lists_of.items():
            batches_of[source].append(lists_of_source)
    values: dict[str, list[float]] = {}
    for source in sorted(batches_of):
        for name, value in ceiling(metrics, batches_of[source]).items():
            values.setdefault(name, []).append(value)
    return {
        name: math.fsum(values_of_metric) / len(values_of_metric)
        for name, values_of_metric in values.items()
    }
