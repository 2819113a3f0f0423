import pytest
import torch

from ltr.batch import ScoredLists


@pytest.fixture
def lists():
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (40, 9)).float()
    mask = torch.rand(40, 9) < 0.8
    distances = torch.rand(40, 9)
    scores = torch.randn(40, 9)
    return ScoredLists(scores, labels, mask, distances)
