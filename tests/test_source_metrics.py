"""The mean over sources is not that over queries."""

import pytest
import torch

from ltr.metrics import MeasuredLists, RankingMetric
from ltr.source_metrics import SourceMetrics


def lists(n, first=0):
    """Lists of two documents; those of an even number have the relevant one first."""
    scores = torch.tensor([[2.0, 1.0]] * n)
    labels = torch.tensor([[1.0, 0.0] if (first + i) % 2 == 0 else [0.0, 1.0] for i in range(n)])
    return MeasuredLists(scores, labels, torch.ones(n, 2, dtype=torch.bool))


def test_values_by_hand():
    """Four queries of a, all right but one; one of b, which is wrong. RR is 1 or 1/2."""
    metrics = SourceMetrics([RankingMetric("RR"), RankingMetric("P@1")], ["a", "b", "none"])
    metrics.update(lists(3), torch.tensor([0, 1, 0]))
    metrics.update(lists(2), torch.tensor([0, 0]))
    values = metrics.compute()
    assert values.keys() == {"RR", "P@1", "a/RR", "a/P@1", "b/RR", "b/P@1"}
    assert values["a/RR"].item() == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert values["b/RR"].item() == 0.5
    assert values["RR"].item() == pytest.approx((3.5 / 4 + 0.5) / 2)
    assert values["P@1"].item() == pytest.approx((3 / 4 + 0) / 2)


def test_a_count_begins_anew_after_it_was_asked_for():
    metrics = SourceMetrics([RankingMetric("RR")], ["a", "b"])
    metrics.update(lists(2), torch.tensor([0, 0]))
    metrics.compute()
    metrics.update(lists(1), torch.tensor([1]))
    values = metrics.compute()
    assert values.keys() == {"RR", "b/RR"} and values["RR"] == 1.0


def test_lists_keep_their_ties_and_ideals():
    """Of two equal scores the larger row comes first; a third relevant document is in no list."""
    scores = torch.ones(2, 2)
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    ties = torch.tensor([[1, 2], [1, 2]])
    ideal = torch.ones(2, 2)
    whole = MeasuredLists(scores, labels, mask, ties, ideal)
    for name in ("RR", "nDCG", "R"):
        expected = RankingMetric(name).per_query(whole)
        for row in range(2):
            part = whole.take_rows(torch.arange(2) == row)
            assert RankingMetric(name).per_query(part).tolist() == [expected[row].item()]


def test_a_source_that_stands_alone_has_the_values_of_its_metrics():
    """Three queries, of which the second is wrong. One without an answer has no value."""
    metrics = SourceMetrics([RankingMetric("RR"), RankingMetric("P@1")])
    metrics.update(lists(3))
    values = metrics.compute()
    assert values.keys() == {"RR", "P@1"} and values["RR"].item() == pytest.approx(2.5 / 3)
    assert metrics.compute()["RR"].isnan()
    assert metrics.state_dict() == {}
