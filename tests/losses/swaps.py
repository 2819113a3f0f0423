"""Lists, the swap of two of their ranks, and metrics of what comes of it."""

from types import SimpleNamespace

import torch

from ltr import metrics

# A metric of grades by rank; ltr.metrics is measured against trec_eval and plain loops in its own
# tests.
METRICS = {
    "ndcg": metrics.ExponentialNDCG,
    "err": metrics.ExpectedReciprocalRank,
    "mrr": metrics.ReciprocalRank,
    "ap": metrics.AveragePrecision,
    "precision": metrics.Precision,
}


def measured(metric, grades, k):
    """The metric of grades by rank, in their own precision."""
    ideal = grades.sort(dim=1, descending=True).values
    return METRICS[metric](k).per_query(SimpleNamespace(grades=grades, ideal=ideal))


def random_list(seed, n=9):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, n, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (1, n), generator=generator).double() * (
        torch.rand(1, n, generator=generator) < 0.6
    )
    labels[0, seed % n] = 3.0
    return scores, labels


def swapped(grades, i, j):
    order = list(range(grades.shape[1]))
    order[i], order[j] = order[j], order[i]
    return grades[:, order]
