"""Long lists: what is kept in memory, how much is computed, in how many passes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.losses import (
    ApproxNDCGLoss,
    BatchAllTripletLoss,
    LambdaLoss,
    LambdaRankLoss,
    MarginMSELoss,
    MarginRankingLoss,
    RankNetLoss,
)
from ltr.pairs import SHORT, blocks, sorting_pays
from ltr.pairs.uppers import find_uppers

LOGISTIC = torch.ops.aten.log_sigmoid_forward.default


class Tensors(TorchDispatchMode):
    """Notes the largest tensor that any operation makes, and what passes a log-sigmoid."""

    def __init__(self):
        super().__init__()
        self.largest = 0
        self.logistic = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for place, tensor in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            if isinstance(tensor, torch.Tensor):
                stored = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.largest = max(self.largest, stored)
                self.logistic += tensor.numel() if function is LOGISTIC and place == 0 else 0
        return result


LONG = 3000  # 9 million pairs
IN_BLOCKS = [
    RankNetLoss(),
    *(LambdaRankLoss(metric) for metric in ("ndcg", "err", "ap")),
    LambdaLoss(),
    ApproxNDCGLoss(),
    MarginMSELoss(),
]
BY_LIST = [
    *(MarginRankingLoss(squared=squared) for squared in (False, True)),
    BatchAllTripletLoss(),
    RankNetLoss(pairs="mean"),
]


def watch(loss, labels=None):
    torch.manual_seed(0)
    scores = torch.randn(1, LONG, requires_grad=True)
    labels = torch.randint(0, 5, (1, LONG)).float() if labels is None else labels
    with Tensors() as seen:
        loss(scores, labels).backward()
    return seen


@pytest.mark.parametrize("loss", IN_BLOCKS)
def test_pairs_are_never_in_memory_at_once(loss):
    assert watch(loss).largest <= blocks.BLOCK["cpu"] < LONG**2 / 50


@pytest.mark.parametrize("loss", BY_LIST)
def test_hinges_need_memory_in_proportion_to_the_list(loss):
    """The longest tensors are those of the list, its documents packed, and its histogram."""
    assert watch(loss).largest <= 2 * LONG


def test_lambdarank_touches_only_pairs_with_a_document_in_the_top_k():
    """All pairs would be N² / 2; at least half of k N is needed."""
    for loss in (LambdaRankLoss(k=10), LambdaLoss(k=10)):
        assert 5 * LONG <= watch(loss).logistic <= 10 * LONG


def test_ranknet_computes_only_pairs_of_a_relevant_document():
    """40 relevant of 3,000: 40 rows."""
    labels = (torch.arange(LONG) < 40).float().view(1, -1)
    assert watch(RankNetLoss(), labels).logistic == 40 * LONG


def test_the_switch_is_by_size():
    def uppers(n_uppers: int, levels: int):
        labels = torch.cat([torch.zeros(1), 1 + torch.arange(n_uppers) % levels]).view(1, -1)
        return find_uppers(labels, labels >= 0)

    assert not sorting_pays(uppers(24, 1)) and sorting_pays(uppers(25, 1))
    assert not sorting_pays(uppers(48, 2)) and sorting_pays(uppers(49, 2))
    assert SHORT <= 2**24  # what is counted in float32 is exact
    spans = blocks.block_spans(10, blocks.BLOCK["cpu"] // 2, torch.device("cpu"))
    assert [(s.start, s.stop) for s in spans] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]


@pytest.mark.parametrize("block", [1 << 17, 64])
def test_ranknet_is_one_pass_through_the_model_with_the_gradient_of_one_per_pair(
    block, monkeypatch
):
    """Burges' factorised form: the gradients of all pairs add up to one factor per document."""
    monkeypatch.setitem(blocks.BLOCK, "cpu", block)
    # Else 12 documents take the dense form.
    monkeypatch.setattr("ltr.pairs.SHORT", 0 if block == 64 else SHORT)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    features = torch.randn(12, 6).double().requires_grad_()
    labels = torch.randint(0, 4, (12,)).double()
    passes = {"forward": 0, "backward": 0}
    model.register_forward_hook(lambda *_: passes.update(forward=passes["forward"] + 1))
    model.register_full_backward_hook(lambda *_: passes.update(backward=passes["backward"] + 1))
    RankNetLoss(sigma=1.5)(model(features).view(1, 12), labels.view(1, 12)).backward()
    ours = [p.grad.clone() for p in model.parameters()]
    assert passes == {"forward": 1, "backward": 1}

    pairs = [(i, j) for i in range(12) for j in range(12) if labels[i] > labels[j]]
    model.zero_grad()
    for i, j in pairs:  # a forward and a backward pass of its own for every pair
        s_i = model(features[i])
        s_j = model(features[j])
        (F.softplus(-1.5 * (s_i - s_j)).sum() / len(pairs)).backward()
    assert passes["backward"] > len(pairs)
    for gradient, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-12, atol=1e-12)


def test_a_loss_without_gradient_is_the_same_number():
    """Validation: nothing requires a gradient, or grad mode is off."""
    torch.manual_seed(0)
    scores = torch.randn(2, 700, requires_grad=True)
    labels = torch.randint(0, 5, (2, 700)).float()
    for loss in (RankNetLoss(), MarginRankingLoss(), LambdaRankLoss(), ApproxNDCGLoss()):
        expected = loss(scores, labels)
        with torch.no_grad():
            assert loss(scores, labels) == expected
        assert loss(scores.detach(), labels) == expected
