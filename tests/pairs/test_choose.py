"""Some of the pairs of a list in little memory, by hand and against the masks of all pairs."""

import pytest
import torch

from ltr.pairs.choices import Adjacent, Hardest, SemiHard
from ltr.pairs.choose import find_partners, hardest_pairs
from ltr.pairs.uppers import find_uppers


def test_the_hardest_pair_by_hand():
    """Labels (2, 0, 1, 0), scores (0.5, 0.1, 0.6, 0.2): the gaps are 0.5 − 0.6 at least, of columns
    0 and 2, where j is an upper document itself. Without column 2 it is 0.5 − 0.2, of column 3.
    """
    scores = torch.tensor([[0.5, 0.1, 0.6, 0.2]])
    labels = torch.tensor([[2.0, 0.0, 1.0, 0.0]])
    mask = torch.tensor([[True, True, True, True]])
    for without, j in [([], 2), ([2], 3)]:
        real = mask.clone()
        real[:, without] = False
        uppers = find_uppers(labels, real)
        position, column = hardest_pairs(scores, uppers)
        assert uppers.columns.gather(1, position).item() == 0
        assert column.item() == j


def test_partners_by_hand():
    """The example of the docstring."""
    labels = torch.tensor([[2.0, 0.0, 1.0]])
    scores = torch.tensor([[0.5, 0.3, 0.4]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    semi_hard = find_partners(scores, labels, mask, "semi-hard")
    assert semi_hard.key.tolist() == [[0.0, 1.0, 2.0]]
    assert semi_hard.partner[0, [0, 2]].tolist() == [2.0, 1.0] and semi_hard.partner[0, 1].isnan()
    adjacent = find_partners(scores, labels, mask, "adjacent")
    assert adjacent.key.tolist() == labels.tolist()
    assert adjacent.partner[0, [0, 2]].tolist() == [1.0, 0.0] and adjacent.partner[0, 1].isnan()


@pytest.mark.parametrize(
    ("name", "choice"),
    [("hardest", Hardest()), ("semi-hard", SemiHard()), ("adjacent", Adjacent())],
)
def test_partners_are_the_pairs_of_the_class(name, choice):
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(3, 9, generator=generator)
        labels = torch.randint(0, 4, (3, 9), generator=generator).float()
        mask = torch.rand(3, 9, generator=generator) < 0.8
        mask[0] = seed % 2 == 0  # a row of padding in every other case
        found = find_partners(scores, labels, mask, name)
        equal = found.partner.unsqueeze(2) == found.key.unsqueeze(1)
        pair = (labels.unsqueeze(2) > labels.unsqueeze(1)) & mask.unsqueeze(2) & mask.unsqueeze(1)
        assert torch.equal(equal & pair, choice.pairs(scores, labels, mask))
