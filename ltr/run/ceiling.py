"""The ceiling of candidate pools: what the best re-ranking of them would reach."""

from collections.abc import Sequence

import torch

from ltr.data.collate import without_content
from ltr.data.sampling.plan import EvalBatches
from ltr.metrics import RankedLists, RankingMetric


def ceiling(metrics: Sequence[RankingMetric], pools: EvalBatches) -> dict[str, float]:
    """The value of each metric if every list stood in the order of its grades, and ``R``, the
    recall of the pools.

    A relevant document that is not among the candidates can't be ranked, so a ceiling may lie below
    1. Metrics of pairs compare candidates alone, and have none.

    Args:
        metrics: what is measured; they are not changed.
        pools: the lists of all processes.

    Returns:
        By metric; empty where no list has anything to find.
    """
    measured = {metric.measure: metric for metric in metrics if metric.formula.by_rank}
    measured |= {"R": RankingMetric("R")}
    values: dict[str, list[torch.Tensor]] = {name: [] for name in measured}
    for batch in (without_content(lists) for lists in pools.batches if lists):
        best = RankedLists(batch.labels, batch.labels, batch.mask, None, batch.ideal)
        for name, metric in measured.items():
            values[name].append(metric.per_query(best).double())
    means = {name: torch.cat(one).nanmean().item() for name, one in values.items() if one}
    return {name: value for name, value in means.items() if value == value}  # NaN: nothing to find
