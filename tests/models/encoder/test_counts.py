"""What a training step in bfloat16 does besides its matmuls, counted: where bfloat16 is emulated,
time would say nothing.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.losses import RankNetLoss
from ltr.models import PairWiseBertRanker
from ltr.models.encoder import attention
from ltr.models.encoder.kernels.linear import SharedCastLinear
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world.encoders import texts

# Two chunks, of 14 and 6 texts. Blocks hold powers of two: of the first, 4 + 2 texts of at most 16
# tokens, 4 + 2 + 1 of at most
# 32 and one of at most 48; of the second 4 + 2 of at most 48.
LENGTHS = [8, 9, 10, 11, 12, 13, 17, 18, 19, 20, 21, 22, 23, 33] + [34] * 6
CHUNK = sum(LENGTHS[:14])
BLOCKS = (2 + 3 + 1) + 2
WIDTH = 8  # of a head


class Calls(TorchDispatchMode):
    """Calls of each operator, and the shapes of what is cast to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = 0  # of the rows of heads
        self.calls: Counter[str] = Counter()
        self.cast: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        self.moves += name == "index_select" and args[0].ndim == 2 and args[0].shape[1] == WIDTH
        if name == "_to_copy" and (kwargs or {}).get("dtype") == torch.bfloat16:
            self.cast[tuple(args[0].shape)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def ranker(backbone, monkeypatch):
    monkeypatch.setattr(attention, "takes_blocks", lambda query, _: query.dtype == torch.bfloat16)
    torch.manual_seed(0)
    options = TextEncoder.Options(max_tokens=CHUNK)
    return PairWiseBertRanker(backbone, max_length=64, encoder=options).train()


def step(ranker) -> tuple[Counter, Counter]:
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
    assert forward.calls["bmm"] + forward.calls["baddbmm"] == 2 * BLOCKS * len(layers)
    assert backward.calls["bmm"] + backward.calls["baddbmm"] == 5 * BLOCKS * len(layers)
    # To the order of blocks and back: query, key and value, and one output; the same of the
    # gradients.
    assert forward.moves == backward.moves == 4 * chunks * len(layers)
