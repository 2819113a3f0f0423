"""What a guide holds to be relevant."""

import torch

from ltr.in_batch.guide import mask_likely_relevant
from tests.in_batch.batches import bools


def test_what_the_guide_holds_to_be_relevant_is_left_out():
    """Thresholds: 0.5, the lower of two relevant ones; none in a row without; -1 is judged."""
    labels = torch.tensor(
        [[1.0, 2.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0, 0.0]]
    )
    mask = bools("11110", "11111", "11110")
    guide = torch.tensor(
        [[0.5, 0.9, 0.6, 0.5, 0.2], [0.9, 0.1, 0.2, 0.3, 0.4], [0.3, 0.0, 0.9, -0.1, 0.0]]
    )
    assert mask_likely_relevant(mask, labels, guide).equal(bools("11010", "11111", "01110"))
    assert mask_likely_relevant(mask, labels, guide, margin=0.2).equal(
        bools("11110", "11111", "01110")
    )
    assert mask_likely_relevant(mask, labels, guide, margin=-0.2).equal(
        bools("11000", "11111", "01100")
    )
