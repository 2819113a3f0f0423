import pytest
import torch
from torch.nn import functional as F

from ltr.losses import ADRMSELoss, KLDivergenceLoss, MarginMSELoss
from tests.losses.by_hand import value


def test_margin_mse_by_hand():
    """Student (3, 1, 1), teacher (5, 4, 2); gaps 2, 2, 0 against 1, 3, 2: squares 1, 1, 4, mean 2."""
    assert value(MarginMSELoss(), [3, 1, 1], [5, 4, 2]) == 2.0


def test_kl_divergence_is_that_of_torch():
    torch.manual_seed(0)
    student = torch.randn(4, 6, dtype=torch.float64)
    teacher = torch.randn(4, 6, dtype=torch.float64)
    for temperature in (1.0, 3.0):
        q = (student / temperature).log_softmax(dim=1)
        p = (teacher / temperature).log_softmax(dim=1)
        expected = temperature**2 * F.kl_div(q, p, log_target=True, reduction="batchmean")
        loss = KLDivergenceLoss(temperature=temperature)
        torch.testing.assert_close(loss(student, teacher), expected)


@pytest.mark.parametrize("loss", [MarginMSELoss(), KLDivergenceLoss(temperature=2.0)])
def test_a_student_that_keeps_the_gaps_has_nothing_to_learn(loss):
    teacher = torch.tensor([[3.0, 1.0, -2.0]])
    student = (teacher + 7).requires_grad_()
    cost = loss(student, teacher)
    (gradient,) = torch.autograd.grad(cost, student)
    assert cost.item() == pytest.approx(0.0, abs=1e-6)
    assert gradient.abs().max() < 1e-6


def test_adr_mse_by_hand():
    """Teacher (9, 4, 4): ranks 1, 2.5, 2.5. Student (0, 50, 100) at a temperature of 1: ranks 3, 2,
    1.

    (1 - 3)² / log2 2 + (2.5 - 2)² / log2 3.5 + (2.5 - 1)² / log2 3.5 = 4 + 2.5 / 1.80735 = 5.38324;
    a third of it.
    """
    mask = [True, True, True, False]
    found = value(ADRMSELoss(), [0, 50, 100, 7], [9, 4, 4, 8], mask)
    assert found == pytest.approx(5.38324 / 3, abs=1e-4)


def test_adr_mse_reads_the_order_of_the_teacher_alone():
    torch.manual_seed(1)
    student = torch.randn(3, 7, dtype=torch.float64)
    teacher = torch.randn(3, 7, dtype=torch.float64)
    first = ADRMSELoss(temperature=0.5)(student, teacher)
    torch.testing.assert_close(ADRMSELoss(temperature=0.5)(student, teacher.exp() * 40 - 3), first)
    torch.testing.assert_close(ADRMSELoss(temperature=1.0)(2 * student, teacher), first)
    right = ADRMSELoss(temperature=0.01)(teacher, teacher)
    assert right < 1e-3 < first
