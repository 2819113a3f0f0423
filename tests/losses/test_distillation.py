import pytest
import torch
from torch.nn import functional as F

from ltr.losses import ADRMSELoss, KLDivergenceLoss, MarginMSELoss


def test_margin_mse_by_hand():
    """Student (3, 1, 1), teacher (5, 4, 2); gaps 2, 2, 0 against 1, 3, 2: squares 1, 1, 4, mean 2."""
    assert (
        MarginMSELoss()(torch.tensor([[3.0, 1.0, 1.0]]), torch.tensor([[5.0, 4.0, 2.0]])).item()
        == 2.0
    )


def test_margin_mse_of_triples_is_mse_of_their_gaps():
    torch.manual_seed(0)
    student = torch.randn(8, 2, dtype=torch.float64)
    teacher = torch.randn(8, 2, dtype=torch.float64)
    expected = F.mse_loss(student[:, 0] - student[:, 1], teacher[:, 0] - teacher[:, 1])
    torch.testing.assert_close(MarginMSELoss()(student, teacher), expected)


def test_kl_divergence_is_that_of_torch():
    torch.manual_seed(0)
    student = torch.randn(4, 6, dtype=torch.float64)
    teacher = torch.randn(4, 6, dtype=torch.float64)
    for temperature in (1.0, 3.0):
        q = (student / temperature).log_softmax(dim=1)
        p = (teacher / temperature).log_softmax(dim=1)
        expected = temperature**2 * F.kl_div(q, p, log_target=True, reduction="batchmean")
        torch.testing.assert_close(
            KLDivergenceLoss(temperature=temperature)(student, teacher), expected
        )


@pytest.mark.parametrize("loss", [MarginMSELoss(), KLDivergenceLoss(temperature=2.0)])
def test_a_student_that_keeps_the_gaps_has_nothing_to_learn(loss):
    teacher = torch.tensor([[3.0, 1.0, -2.0]])
    student = (teacher + 7).requires_grad_()
    value = loss(student, teacher)
    (gradient,) = torch.autograd.grad(value, student)
    assert value.item() == pytest.approx(0.0, abs=1e-6)
    assert gradient.abs().max() < 1e-6


def test_adr_mse_by_hand():
    """Teacher (9, 4, 4): ranks 1, 2.5, 2.5. Student (0, 50, 100) at a temperature of 1: ranks 3, 2,
    1.

    (1 - 3)² / log2 2 + (2.5 - 2)² / log2 3.5 + (2.5 - 1)² / log2 3.5 = 4 + 2.5 / 1.80735 = 5.38324;
    a third of it.
    """
    scores = torch.tensor([[0.0, 50.0, 100.0, 7.0]])
    labels = torch.tensor([[9.0, 4.0, 4.0, 8.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert ADRMSELoss()(scores, labels, mask).item() == pytest.approx(5.38324 / 3, abs=1e-4)


def test_adr_mse_reads_the_order_of_the_teacher_alone():
    torch.manual_seed(1)
    student = torch.randn(3, 7, dtype=torch.float64)
    teacher = torch.randn(3, 7, dtype=torch.float64)
    first = ADRMSELoss(temperature=0.5)(student, teacher)
    torch.testing.assert_close(ADRMSELoss(temperature=0.5)(student, teacher.exp() * 40 - 3), first)
    torch.testing.assert_close(ADRMSELoss(temperature=1.0)(2 * student, teacher), first)
    right = ADRMSELoss(temperature=0.01)(teacher, teacher)
    assert right < 1e-3 < first
