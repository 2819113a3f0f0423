"""Every form of the pairwise family equals the definition in value, gradient and count."""

import pytest
import torch
from torch.nn import functional as F

from ltr.pairs import blocks, pair_sums
from ltr.pairs.sorted import hinge, squared_hinge

PAIRS = ("all", "hardest", "semi-hard", "adjacent", "mean")
MARGINS = {"a number": (), "per row": (5, 1), "per document": (5, 9), "per pair": (5, 9, 9)}
# SHORT, UPPERS_PER_LEVEL_TO_SORT, and the elements of a block: by the definition, in blocks, sorted, and sorted
# a few rows at a time.
FORMS = {
    "dense": (1 << 15, 24, 1 << 16),
    "blocks": (0, 10**9, 40),
    "sorted": (0, 0, 1 << 16),
    "by rows": (0, 0, 20),
}


def logistic(s_i, s_j, y_i, y_j, m_ij):
    return F.softplus(1.3 * (s_j + m_ij - s_i))


def with_labels(s_i, s_j, y_i, y_j, m_ij):
    return ((s_i - s_j) - (y_i - y_j) - m_ij).square()


def chosen_pairs(scores, labels, docs, pairs):
    """The pairs (i, [j, …]) of one list; i is compared with the mean of its j."""
    every = [(i, j) for i in docs for j in docs if labels[i] > labels[j]]
    below = {i: [j for k, j in every if k == i] for i, _ in every}
    if pairs == "hardest":
        every = [min(every, key=lambda p: scores[p[0]] - scores[p[1]])] if every else []
    if pairs == "adjacent":
        every = [(i, j) for i, j in every if labels[j] == max(labels[k] for k in below[i])]
    if pairs == "mean":
        return list(below.items())
    if pairs == "semi-hard":
        easier = {i: [j for j in js if scores[j] < scores[i]] for i, js in below.items()}
        best = {i: max(js, key=lambda j: scores[j]) for i, js in easier.items() if js}
        every = [(i, best.get(i, min(js, key=lambda j: scores[j]))) for i, js in below.items()]
    return [(i, [j]) for i, j in every]


def by_definition(scores, labels, mask, margin, cost, pairs):
    """Sums, numbers of pairs and of those that cost something, list by list."""
    m_bij = (margin.unsqueeze(1) if margin.ndim == 2 else margin).expand(5, 9, 9)
    rows = []
    for b in range(5):
        docs = mask[b].nonzero().flatten().tolist()
        chosen = chosen_pairs(scores[b].tolist(), labels[b].tolist(), docs, pairs)
        i = [i for i, _ in chosen]
        mean = torch.zeros(len(chosen), 9, dtype=torch.float64)
        for row, (_, js) in enumerate(chosen):
            mean[row, js] = 1 / len(js)
        s_j, y_j, m_ij = mean @ scores[b], mean @ labels[b], (mean * m_bij[b, i]).sum(dim=1)
        costs = cost(scores[b, i], s_j, labels[b, i], y_j, m_ij)
        rows.append((costs.sum(), len(chosen), int((costs > 0).sum())))
    sums, n_pairs, n_active = zip(*rows, strict=True)
    return torch.stack(sums), list(n_pairs), list(n_active)


@pytest.mark.parametrize("cost", [hinge, squared_hinge, logistic, with_labels])
@pytest.mark.parametrize("margins", MARGINS)
@pytest.mark.parametrize("pairs", PAIRS)
def test_every_form_equals_the_definition(pairs, margins, cost, monkeypatch):
    """Ties of labels and padding; scores on a grid too, where a tie leaves no choice of a pair."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(5, 9, generator=generator, dtype=torch.float64)
        if seed % 2 and pairs in ("all", "adjacent", "mean"):
            scores = (4 * scores).round() / 4
        labels = torch.randint(0, 4, (5, 9), generator=generator).double()
        labels[4] = 1.0
        mask = torch.rand(5, 9, generator=generator) < 0.8
        margin = torch.rand(MARGINS[margins], generator=generator, dtype=torch.float64)
        margin.requires_grad_()
        weights = torch.randn(5, generator=generator, dtype=torch.float64)
        scores.requires_grad_()
        sum_b, *counts = by_definition(scores, labels, mask, margin, cost, pairs)
        expected = torch.autograd.grad(sum_b @ weights, (scores, margin))
        for form, (short, dense, block) in FORMS.items():
            monkeypatch.setattr("ltr.pairs.SHORT", short)
            monkeypatch.setattr("ltr.pairs.UPPERS_PER_LEVEL_TO_SORT", dense)
            monkeypatch.setitem(blocks.BLOCK, "cpu", block)
            noisy = torch.where(mask, scores, torch.nan)
            ours, n_b = pair_sums(noisy, labels, mask, cost, margin, pairs)
            _, active_b = pair_sums(scores, labels, mask, cost, margin, pairs, active=True)
            torch.testing.assert_close(ours, sum_b, rtol=1e-12, atol=1e-12)
            assert [n_b.tolist(), active_b.tolist()] == counts, form
            found = torch.autograd.grad(ours @ weights, (scores, margin))
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
