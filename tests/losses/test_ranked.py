"""Lists by rank: what a swap does to a metric, margins by rank, discounts."""

import itertools
import math

import pytest
import torch

from ltr.losses.ranked import best_dcg, block_margins, discount, rank_lists, swap_weights
from tests.losses.swaps import METRICS, measured, random_list, swapped


@pytest.mark.parametrize("k", [1, 3, 8, 20, None])
@pytest.mark.parametrize("metric", METRICS)
def test_each_delta_equals_the_metric_after_the_swap_less_the_metric_before(metric, k):
    if metric == "precision" and k is None:
        pytest.skip("precision needs k")
    for seed in range(6):
        scores, labels = random_list(seed)
        ranked = rank_lists(scores, labels, labels >= 0)
        assert (ranked.scores.diff(dim=1) <= 0).all()
        delta = swap_weights(ranked, metric, k, max_grade=4.0)(slice(0, 9))
        before = measured(metric, ranked.labels, k)
        for i, j in itertools.combinations(range(9), 2):
            expected = (measured(metric, swapped(ranked.labels, i, j), k) - before).abs().item()
            assert delta[0, i, j].item() == pytest.approx(expected, abs=2e-7), (seed, i, j)


def test_lists_and_margins_by_rank_by_hand():
    """Scores (0.1, padding, 0.3, 0.2): the columns are 2, 3, 0 and the padding by rank. A margin
    per document goes with its document, one per pair with both; column 2 has the highest label, so
    no pair uses its margin, and it is 0.
    """
    scores = torch.tensor([[0.1, 9.0, 0.3, 0.2]])
    labels = torch.tensor([[0.0, 0.0, 2.0, 1.0]])
    mask = torch.tensor([[True, False, True, True]])
    per_document = torch.tensor([[10.0, 11.0, 12.0, 13.0]])
    ranked = rank_lists(scores, labels, mask, per_document)
    assert ranked.labels.tolist() == [[2.0, 1.0, 0.0, 0.0]]
    assert ranked.real.tolist() == [[True, True, True, False]]
    assert ranked.margin.tolist() == [[0.0, 13.0, 10.0, 0.0]]
    per_pair = torch.arange(16.0).view(1, 4, 4)  # 4 i + j of columns i and j
    ranked = rank_lists(scores, labels, mask, per_pair)
    assert ranked.margin[0, 0].tolist() == [10.0, 11.0, 8.0, 9.0]  # of column 2 over 2, 3, 0, 1
    # The pairs of rank 2 with ranks 2 and worse: where it is the more relevant one, and where not.
    cut, whole = ranked.block_inputs(None)
    span = slice(1, 2)
    if_i_relevant, if_j_relevant = block_margins([x[:, span] for x in cut[1:]], whole[1:], span)
    assert if_i_relevant.tolist() == [[[15.0, 12.0, 13.0]]]  # of column 3 over 3, 0, 1
    assert if_j_relevant.tolist() == [[[15.0, 3.0, 7.0]]]  # of columns 3, 0, 1 over 3


def test_discounts_by_hand():
    """1 / log2(1 + rank): 1, 1 / log2(3), 1/2; gains 1, 3 and 0 in the best order are 3, 1, 0."""
    gains = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    second = 1 / math.log2(3)
    torch.testing.assert_close(discount(gains), torch.tensor([1.0, second, 0.5]))
    torch.testing.assert_close(discount(gains, 1), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(best_dcg(gains), torch.tensor([3 + second, 1.0]))
    torch.testing.assert_close(best_dcg(gains, 1), torch.tensor([3.0, 1.0]))
