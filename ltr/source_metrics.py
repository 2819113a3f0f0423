"""The metrics of each of several sources, and their means over the sources."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ltr.metrics import MeasuredLists, RankingMetric


class SourceMetrics(nn.Module):
    """Counts the queries of each source apart.

    Args:
        names: of the sources; none: there is one, and nothing is counted here.
        metrics: what is measured; they are not changed.
    """

    def __init__(self, names: Sequence[str] = (), metrics: Sequence[RankingMetric] = ()) -> None:
        super().__init__()
        self.names = tuple(names)
        self.of_sources = nn.ModuleList()
        for _ in self.names:
            self.of_sources.append(nn.ModuleList(metric.clone() for metric in metrics))

    def update(self, lists: MeasuredLists, sources: Tensor) -> None:
        """Count more queries.

        Args:
            lists: of B queries.
            sources: ``[B]`` int64, the number of the source of each.
        """
        for number, metrics in enumerate(self._metrics()):
            lists_of_source = lists.take_rows(sources == number)
            for metric in metrics:
                metric.update(lists_of_source)

    def compute(self) -> dict[str, Tensor]:
        """The values by name, and a new count from here on: ``nDCG@10``, the mean over the sources
        that had a query, and ``SOURCE/nDCG@10`` for each of these. All processes must call it.
        """
        values: dict[str, Tensor] = {}
        of_sources: dict[str, list[Tensor]] = {}
        for name, metrics in zip(self.names, self._metrics(), strict=True):
            for metric in metrics:
                value = metric.compute().float()
                metric.reset()
                of_sources.setdefault(metric.name, []).append(value)
                if not value.isnan():
                    values[f"{name}/{metric.name}"] = value
        means: dict[str, Tensor] = {}
        for metric_name, of_metric in of_sources.items():
            means[metric_name] = torch.stack(of_metric).nanmean()
        return means | values

    def _metrics(self) -> list[list[RankingMetric]]:
        """Those of each source."""
        ranking_metrics = []
        for metrics in self.of_sources:
            assert isinstance(metrics, nn.ModuleList), "the constructor makes lists"
            ranking_metrics.append(
                [metric for metric in metrics if isinstance(metric, RankingMetric)]
            )
        return ranking_metrics
