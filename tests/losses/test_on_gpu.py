"""Losses on a GPU, which a CPU pretends to be: the host never waits for it, and value and gradient
are those of a CPU.
"""

from functools import partial

import pytest
import torch

from ltr.losses import LOSSES, MarginRankingLoss
from ltr.pairs import uppers

PAIRS = ("all", "adjacent", "hardest", "semi-hard", "mean")
OF_PAIRS = {f"pairs {pairs}": partial(MarginRankingLoss, pairs=pairs) for pairs in PAIRS}


def lists(n_docs: int, n_grades: int) -> tuple[torch.Tensor, ...]:
    """Four lists, the last without a document: scores, labels, mask."""
    generator = torch.Generator().manual_seed(n_docs)
    scores = torch.randn(4, n_docs, generator=generator)
    labels = torch.randint(n_grades, (4, n_docs), generator=generator).float()
    mask = torch.rand(4, n_docs, generator=generator) < 0.8
    mask[3] = False
    return scores, labels, mask


def value_and_gradient(loss, scores, labels, mask, device="cpu") -> tuple[torch.Tensor, ...]:
    scores = scores.to(device, non_blocking=True).requires_grad_()
    labels = labels.to(device, non_blocking=True)
    mask = mask.to(device, non_blocking=True)
    value = loss(scores, labels, mask)
    value.backward()
    return value.detach(), scores.grad


@pytest.mark.parametrize("n_docs", [7, 100])
@pytest.mark.parametrize("n_grades", [2, 4])
@pytest.mark.parametrize("loss", [*LOSSES.values(), *OF_PAIRS.values()], ids=[*LOSSES, *OF_PAIRS])
def test_a_loss_waits_for_nothing_and_is_that_of_a_cpu(loss, n_grades, n_docs, benchmark):
    """Of 100 documents pairs are too many for the dense form."""
    pretended = benchmark("harness.pretended_gpu")
    given = lists(n_docs, n_grades)
    gpu = pretended.PretendedGPU()
    with gpu:
        gpu.counts = counts = pretended.Counts()
        found = value_and_gradient(loss(), *given, device="cuda")
        gpu.counts = None
        found = [tensor.cpu() for tensor in found]
    assert not counts.waits and counts.launches
    for on_gpu, on_cpu in zip(found, value_and_gradient(loss(), *given), strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=2e-5, atol=1e-6)


def test_what_is_packed_unread_is_padded_to_all_columns(monkeypatch):
    """Of the labels 0 2 1 and 0 0 3, and a list whose only label is its lowest."""
    labels = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 3.0], [1.0, 1.0, 5.0]])
    mask = torch.tensor([[True, True, True], [True, True, True], [True, True, False]])
    read = uppers.find_uppers(labels, mask)
    assert read.columns.tolist() == [[2, 1], [2, 0], [0, 0]] and read.levels == 2
    monkeypatch.setattr(uppers, "reads_counts", lambda lists: False)
    unread = uppers.find_uppers(labels, mask)
    assert unread.columns.tolist() == [[2, 1, 0], [2, 0, 0], [0, 0, 0]] and unread.levels == 3
    assert unread.real.tolist() == [[True, True, False], [True, False, False], [False] * 3]
    assert unread.n_below().tolist() == [[1, 2, 0], [2, 0, 0], [0, 0, 0]]


def test_long_lists_are_read():
    """A square of 2^20 pairs is the largest that is not."""
    fitting = torch.empty(64, 128, device="meta")
    assert not uppers.reads_counts(fitting)
    assert uppers.reads_counts(torch.empty(65, 128, device="meta"))
    assert uppers.reads_counts(torch.zeros(1, 2))
