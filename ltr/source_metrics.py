"""The metrics of each source, and their means over the sources."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ltr.metrics import MeasuredLists, RankingMetric


class SourceMetrics(nn.Module):
    """Counts the queries of each source apart.

    Args:
        metrics: what is measured; they are not changed.
        names: of the sources; empty for one that stands alone.

    Example:
        >>> metrics = SourceMetrics([RankingMetric("RR")], names=["a", "b"])
        >>> lists = MeasuredLists(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> metrics.update(lists, sources=torch.tensor([0, 1]))
        >>> {name: value.item() for name, value in metrics.compute().items()}
        {'RR': 0.75, 'a/RR': 1.0, 'b/RR': 0.5}
    """

    def __init__(self, metrics: Sequence[RankingMetric], names: Sequence[str] = ("",)) -> None:
        super().__init__()
        self.names = tuple(names)
        self.counts = nn.ModuleList()
        for _ in self.names:
            self.counts.append(nn.ModuleList(metric.clone() for metric in metrics))

    def update(self, lists: MeasuredLists, sources: Tensor | None = None) -> None:
        """Count more queries.

        Args:
            lists: of B queries.
            sources: ``[B]`` int64, the number of the source of each; None: there is one.
        """
        for number, metrics in enumerate(self._metrics()):
            lists_of_source = lists if sources is None else lists.take_rows(sources == number)
            for metric in metrics:
                metric.update(lists_of_source)

    def compute(self) -> dict[str, Tensor]:
        """The values by name, and a new count from here on: ``nDCG@10``, the mean over the sources
        that had a query, and ``SOURCE/nDCG@10`` for each of these that has a name. All processes must call it.
        """
        values: dict[str, Tensor] = {}
        values_of_metric: dict[str, list[Tensor]] = {}
        for name, metrics in zip(self.names, self._metrics(), strict=True):
            for metric in metrics:
                value = metric.compute().float()
                metric.reset()
                values_of_metric.setdefault(metric.name, []).append(value)
                if name and not value.isnan():
                    values[f"{name}/{metric.name}"] = value
        means: dict[str, Tensor] = {}
        for metric_name, values_of_sources in values_of_metric.items():
            means[metric_name] = torch.stack(values_of_sources).nanmean()
        return means | values

    def _metrics(self) -> list[list[RankingMetric]]:
        """Those of each source."""
        ranking_metrics = []
        for metrics in self.counts:
            assert isinstance(metrics, nn.ModuleList), "the constructor makes lists"
            ranking_metrics.append(
                [metric for metric in metrics if isinstance(metric, RankingMetric)]
            )
        return ranking_metrics
