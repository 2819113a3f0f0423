"""A small file of judgements, rankings of what it judges, and a tested run beside files of others."""

import json
from pathlib import Path

import numpy as np

from ltr.compare.named_judgements import judgements_of_file
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import read_rankings
from ltr.metrics import RankingMetric

# q1: d1 is relevant, d2 not, d3 and d9 are judged by nobody; q2: d4 of grade 2, d5 of grade 1.
QRELS = "q1 0 d1 1\nq1 0 d2 0\nq2 0 d4 2\nq2 0 d5 1\n"

RUN = "q1 Q0 d9 1 3.5 x\nq1 Q0 d1 2 2 x\nq2 Q0 d5 1 0.5 x\nq2 Q0 d4 2 0.25 x\n"

METRICS = ("nDCG@10", "RR@10", "AP", "P@5", "R@3", "AP(rel=2)", "Judged@10")


def same(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    for metric in METRICS:
        np.testing.assert_array_equal(one[metric], other[metric])


def values(file: str, *metrics: str, qrels: str = "qrels.txt") -> dict[str, list[float]]:
    """By metric, the values of the judged queries in their order."""
    judged = judgements_of_file(qrels)
    (ranking,) = read_rankings([file], judged)
    found = values_by_query(ranking.lists, judged.lists, [RankingMetric(name) for name in metrics])
    return dict(zip(metrics, found.tolist(), strict=True))


def data_of(run: Path) -> str:
    """The data that a run was tested on."""
    return json.loads((run / "metrics.json").read_text())["test"]["path"]


def lines_of(run: Path) -> list[tuple[str, str, float]]:
    """What it ranked: queries, documents and scores."""
    lines = [line.split() for line in (run / "test.run").read_text().splitlines()]
    return [(query, doc, float(score)) for query, _, doc, _, score, _ in lines]
