"""Hinges over all pairs by sorting, against the plain O(N²) form in float64."""

import pytest
import torch

from ltr import pairs as forms
from ltr.losses import MarginRankingLoss
from ltr.metrics import MeasuredLists
from ltr.pairs.choose import semi_hard_columns
from ltr.pairs.sorted import hinge_sums, semi_hard_by_sorting
from ltr.pairs.uppers import find_uppers


def plain(scores, labels, mask, margin, squared, adjacent):
    """Sums over pairs, [B, N, N] in full, in the order m - (s_i - s_j) of the formula."""
    m_bij = margin.expand(scores.shape).unsqueeze(1)
    cost = torch.relu(m_bij - (scores.unsqueeze(2) - scores.unsqueeze(1)))
    pair = (labels.unsqueeze(2) > labels.unsqueeze(1)) & mask.unsqueeze(2) & mask.unsqueeze(1)
    if adjacent:  # no document of the list has a label between
        pair = pair & ~((pair.float() @ pair.float()) > 0)
    cost = (cost.square() if squared else cost) * pair
    return cost.sum(dim=(1, 2)), (cost > 0).sum(dim=(1, 2)), pair.sum(dim=(1, 2))


def random_case(seed):
    """Every other case lies on a grid of quarters: ties and pairs that just meet their margin."""
    generator = torch.Generator().manual_seed(seed)
    n_lists, n_docs, grades = (
        int(torch.randint(1, high, (1,), generator=generator)) for high in (5, 60, 7)
    )
    if seed % 2:
        scores = torch.randint(-8, 9, (n_lists, n_docs), generator=generator).double() / 4
    else:
        scores = torch.randn(n_lists, n_docs, generator=generator).double() * 2 + 10 * (seed % 5)
    labels = torch.randint(0, grades, (n_lists, n_docs), generator=generator).double()
    mask = torch.rand(n_lists, n_docs, generator=generator) < 0.8
    shape = ((), (n_lists, 1), (n_lists, n_docs))[seed % 3]
    margin = torch.randint(0, 8, shape, generator=generator).double() / 4
    weights = torch.randn(n_lists, generator=generator).double()
    return scores.requires_grad_(), labels, mask, margin.requires_grad_(), weights


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("adjacent", [False, True])
def test_sums_gradients_and_counts_equal_the_plain_form_to_1e_12(squared, adjacent):
    for seed in range(60):
        scores, labels, mask, margin, weights = random_case(seed)
        sums, counts, n_pairs = plain(scores, labels, mask, margin, squared, adjacent)
        uppers = find_uppers(labels, mask)
        ours, active = hinge_sums(scores, labels, mask, uppers, margin, squared, adjacent)
        torch.testing.assert_close(ours, sums, rtol=1e-12, atol=1e-12)
        assert active.dtype == torch.int64 and torch.equal(active, counts), seed
        assert torch.equal(uppers.n_pairs(adjacent), n_pairs), seed
        gradients = [torch.autograd.grad(x @ weights, (scores, margin)) for x in (ours, sums)]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_short_and_long_lists_agree_on_pairs_that_meet_their_margin_in_decimals():
    """0.3 - 0.1 is not 0.2 in binary: on which side such a pair falls must be the same."""
    scores = (torch.arange(60).double().view(1, 60) / 10).requires_grad_()
    labels = (torch.arange(60) % 2).double().view(1, 60)
    real = labels >= 0
    for margin in (0.2, 0.3, 0.7, 1.1):
        uppers = find_uppers(labels, real)
        m = torch.tensor(margin, dtype=torch.float64)
        exact, _ = hinge_sums(scores, labels, real, uppers, m, False, False)
        per_pair = MarginRankingLoss(reduction="sum")(scores, labels, margin=m.expand(1, 60, 60))
        n_pairs = uppers.n_pairs().sum()
        gradients = [torch.autograd.grad(x, scores)[0] for x in (exact.sum() / n_pairs, per_pair)]
        assert torch.equal((gradients[0] * n_pairs).round(), (gradients[1] * n_pairs).round())


def test_large_scores_with_small_gaps_lose_no_digits(monkeypatch):
    """Around 1e6 in float32 steps of 1/16 are exact, and so must the sum of hinges be."""
    steps = torch.arange(48).view(1, 48) / 16
    labels = (torch.arange(48) % 2).float().view(1, 48)
    expected = MarginRankingLoss()(steps.double(), labels.double())
    for _ in ("dense", "sorted"):
        ours = MarginRankingLoss()(1e6 + steps, labels).double()
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
        monkeypatch.setattr(forms, "SHORT", 0)
        monkeypatch.setattr(forms, "UPPERS_PER_LEVEL_TO_SORT", 0)


def test_counts_beyond_32_bits_stay_exact():
    """70,000 relevant documents below as many irrelevant ones: 4.9e9 swapped pairs."""
    n = 70_000
    labels = (torch.arange(2 * n) < n).float().view(1, -1)
    scores = 1 - labels
    real = labels >= 0
    counts = MeasuredLists(scores, labels, real).pairs
    assert [count.item() for count in counts] == [n * n, n * n, 0]
    assert MarginRankingLoss()(scores, labels).item() == pytest.approx(2.0)
    # The same number of active triplets, to one: in float32, and in 32 bits of course, it would be
    # another.
    uppers = find_uppers(labels, real)
    _, active = hinge_sums(scores, labels, real, uppers, torch.tensor(1.0), False, False)
    assert active.tolist() == [n * n]


@pytest.fixture(params=[(0, 0), (0, 10**9), (1 << 15, 0)], ids=["sorted", "blocks", "dense"])
def any_form(request, monkeypatch):
    monkeypatch.setattr(forms, "SHORT", request.param[0])
    monkeypatch.setattr(forms, "UPPERS_PER_LEVEL_TO_SORT", request.param[1])


def test_swapped_and_tied_pairs_equal_a_plain_count(any_form):
    for seed in range(40):
        scores, labels, mask, *_ = random_case(seed)
        scores = scores.detach().float().double()  # ranked as float32
        counts = MeasuredLists(scores, labels, mask).pairs
        for b in range(len(scores)):
            real = mask[b]
            docs = list(zip(scores[b, real].tolist(), labels[b, real].tolist(), strict=True))
            pairs = [(s, t) for s, y in docs for t, z in docs if y > z]
            expected = len(pairs), sum(s < t for s, t in pairs), sum(s == t for s, t in pairs)
            assert tuple(c[b].item() for c in counts) == expected


def test_semi_hard_negatives_by_sorting_are_those_of_the_dense_form():
    for seed in range(0, 40, 2):  # without ties, which leave a choice
        scores, labels, mask, *_ = random_case(seed)
        uppers = find_uppers(labels, mask)
        if not uppers.levels:
            continue
        found = []
        for form in (semi_hard_columns, semi_hard_by_sorting):
            columns = form(scores.detach(), labels, mask, uppers)
            found.append(columns.masked_fill(~uppers.real, -1))
        assert torch.equal(*found)


@pytest.mark.parametrize("form", [semi_hard_columns, semi_hard_by_sorting])
def test_semi_hard_negatives_are_strictly_below(form):
    """Below 2 the best is 1 (column 3), not the other 2; below 1 it is 0."""
    scores = torch.tensor([[2.0, 2.0, 1.0, 1.0, 3.0, 0.0]])
    labels = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    uppers = find_uppers(labels, labels >= 0)
    assert form(scores, labels, labels >= 0, uppers).tolist() == [[3, 5]]


def test_pairs_of_labels_of_another_type_are_counted_as_they_are():
    """A perfect ranking, in float64 and in integers."""
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    for labels in (torch.tensor([[0.3, 0.2, 0.1]], dtype=torch.float64), torch.tensor([[2, 1, 0]])):
        assert [c.item() for c in MeasuredLists(scores, labels, labels >= 0).pairs] == [3, 0, 0]


def test_infinite_scores_tie_with_each_other_only(any_form):
    """5 at 0 are swapped with the relevant one at -inf, which ties with the irrelevant one."""
    scores = torch.tensor([[1.0] * 30 + [-torch.inf] + [0.0] * 5 + [-torch.inf]])
    labels = torch.tensor([[1.0] * 31 + [0.0] * 6])
    assert [c.item() for c in MeasuredLists(scores, labels, labels >= 0).pairs] == [31 * 6, 5, 1]
