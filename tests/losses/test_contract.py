"""Laws that every loss exported by ``ltr.losses`` keeps."""

import inspect

import pytest
import torch
from torch import nn

import ltr.losses

EVERY_LOSS = [c for _, c in sorted(vars(ltr.losses).items()) if inspect.isclass(c) and issubclass(c, nn.Module)]


@pytest.fixture
def lists():
    """Five lists of up to seven documents with grades 0 to 2; every row has a relevant and an irrelevant one."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (5, 7), generator=generator).double()
    labels[:, 0], labels[:, 1] = 2.0, 0.0
    mask = torch.arange(7) < torch.tensor([7, 2, 5, 3, 6]).unsqueeze(1)
    return scores.requires_grad_(), labels, mask


def value_and_gradient(loss, scores, labels, mask):
    value = loss(scores, labels, mask)
    (gradient,) = torch.autograd.grad(value, scores)
    return value, gradient


def test_the_contract_finds_the_losses():
    assert {"MarginRankingLoss", "AdaptiveMarginRankingLoss", "RankNetLoss", "SoftmaxLoss"} <= {c.__name__ for c in EVERY_LOSS}


@pytest.mark.parametrize("loss", EVERY_LOSS)
@pytest.mark.parametrize("noise", [1e4, float("nan"), float("inf")])
def test_padding_changes_nothing(loss, lists, noise):
    scores, labels, mask = lists
    noisy = torch.where(mask, scores.detach(), noise).requires_grad_()
    other_labels = torch.where(mask, labels, 7.0)
    value, gradient = value_and_gradient(loss(), noisy, other_labels, mask)
    expected, expected_gradient = value_and_gradient(loss(), scores, labels, mask)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    wider = [torch.cat([t, t[:, :2]], dim=1) for t in (scores, labels)]
    torch.testing.assert_close(loss()(*wider, torch.cat([mask, torch.zeros_like(mask[:, :2])], dim=1)), expected)


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_order_of_columns_changes_nothing(loss, lists):
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    expected = loss()(*lists)
    torch.testing.assert_close(loss()(*(t[:, order] for t in lists)), expected)


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_a_constant_added_to_a_row_changes_nothing(loss, lists):
    scores, labels, mask = lists
    shift = torch.tensor([[3.0], [-20.0], [0.5], [100.0], [-1.0]], dtype=torch.float64)
    torch.testing.assert_close(loss()(scores + shift, labels, mask), loss()(scores, labels, mask))


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_gradcheck(loss, lists):
    scores, labels, mask = lists
    assert torch.autograd.gradcheck(lambda s: loss()(s, labels, mask), scores)


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_the_gradient_of_a_row_sums_to_zero_and_raises_the_best_document(loss, lists):
    scores, labels, mask = lists
    _, gradient = value_and_gradient(loss(), scores, labels, mask)
    torch.testing.assert_close(gradient.sum(dim=1), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)
    # All scores equal: the loss falls when the only relevant document of a row rises.
    flat = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    _, gradient = value_and_gradient(loss(), flat, torch.tensor([[0.0, 1.0, 0.0]]).double(), None)
    assert gradient[0, 1] < 0 < gradient[0, 0]


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_many_rows_are_the_mean_of_single_rows(loss, lists):
    scores, labels, mask = lists
    single = [loss()(scores[b : b + 1], labels[b : b + 1], mask[b : b + 1]) for b in range(5)]
    torch.testing.assert_close(loss()(scores, labels, mask), torch.stack(single).mean())


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_a_row_without_anything_to_learn_does_not_dilute_the_mean(loss, lists):
    scores, labels, mask = lists
    more = torch.cat([scores, scores[:2]]), torch.cat([labels, torch.zeros(2, 7)]), torch.cat([mask, mask[:2]])
    torch.testing.assert_close(loss()(*more), loss()(scores, labels, mask))


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_value_and_gradient_are_zero_when_nothing_can_be_learnt(loss, lists):
    scores, labels, mask = lists
    nothing = [
        (torch.zeros_like(labels), mask),
        (torch.ones_like(labels), mask),
        (labels, torch.zeros_like(mask)),
        (labels, torch.arange(7) < torch.ones(5, 1)),
    ]
    for some_labels, some_mask in nothing:
        value, gradient = value_and_gradient(loss(), scores, some_labels, some_mask)
        assert value == 0 and (gradient == 0).all()


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_large_scores_stay_finite(loss, lists):
    _, labels, mask = lists
    for sign in (1, -1):
        scores = (sign * 1e4 * (labels.float() - 1)).requires_grad_()
        value, gradient = value_and_gradient(loss(), scores, labels, mask)
        assert value.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("loss", EVERY_LOSS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_give_a_float32_value(loss, lists, dtype):
    scores, labels, mask = lists
    half = scores.detach().to(dtype).requires_grad_()
    value, gradient = value_and_gradient(loss(), half, labels.float(), mask)
    assert value.dtype == torch.float32 and gradient.dtype == dtype and gradient.isfinite().all()
    torch.testing.assert_close(value, loss()(half.detach().float(), labels.float(), mask))


@pytest.mark.parametrize("loss", EVERY_LOSS)
def test_wrong_shapes_are_refused(loss):
    with pytest.raises(ValueError, match=r"must share one shape \[B, N\]"):
        loss()(torch.zeros(2, 3), torch.zeros(3, 2))
