"""A training step in bfloat16, counted: where bfloat16 is emulated, time would say nothing."""

from collections import Counter

import pytest
import torch

from ltr.losses import RankNetLoss
from ltr.models import PairWiseBertRanker
from ltr.models.encoder import attention
from ltr.models.encoder.kernels.linear import SharedCastLinear
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world.encoders import Calls, texts

# Two chunks, of 14 and 6 texts. Blocks hold powers of two: of the first, 4 + 2 texts of at most 16
# tokens, 4 + 2 + 1 of at most
# 32 and one of at most 48; of the second 4 + 2 of at most 48.
LENGTHS = [8, 9, 10, 11, 12, 13, 17, 18, 19, 20, 21, 22, 23, 33] + [34] * 6
CHUNK = sum(LENGTHS[:14])
BLOCKS = (2 + 3 + 1) + 2
WIDTH = 8  # of a head


@pytest.fixture
def ranker(backbone, monkeypatch):
    monkeypatch.setattr(attention, "takes_blocks", lambda query, _: query.dtype == torch.bfloat16)
    torch.manual_seed(0)
    options = TextEncoder.Options(max_tokens=CHUNK)
    return PairWiseBertRanker(backbone, max_length=64, encoder=options).train()


def moves(calls: Calls) -> int:
    """Of the rows of heads."""
    return sum(
        n
        for (name, shape), n in calls.reads.items()
        if name == "index_select" and len(shape) == 2 and shape[1] == WIDTH
    )


def products(calls: Calls) -> int:
    return calls.calls["bmm"] + calls.calls["baddbmm"]


def step(ranker) -> tuple[Calls, Calls]:
    """Of the forward pass, and of the backward pass."""
    with Calls() as forward, torch.autocast("cpu", torch.bfloat16):
        scores = ranker.score(texts(LENGTHS))
    loss = RankNetLoss()(scores.view(-1, 2), torch.tensor([1.0, 0.0]).expand(10, 2))
    with Calls() as backward:
        loss.backward()
    return forward, backward


def test_a_step_casts_each_weight_once_and_attends_in_few_calls(ranker):
    forward, backward = step(ranker)
    layers = ranker.encoder.model.encoder.layer
    chunks = 2
    linear = [part for part in layers.modules() if isinstance(part, SharedCastLinear)]
    weights = Counter(tuple(part.weight.shape) for part in linear)
    assert {shape: n for shape, n in forward.cast.items() if shape in weights} == weights
    assert products(forward) == 2 * BLOCKS * len(layers)
    assert products(backward) == 5 * BLOCKS * len(layers)
    # To the order of blocks and back: query, key and value, and one output; the same of the
    # gradients.
    assert moves(forward) == moves(backward) == 4 * chunks * len(layers)
