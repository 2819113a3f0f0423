"""What does each way of reading a batch bring to a training step of the cross-encoder?  python
benchmarks/train_step.py

all-MiniLM-L6-v2, 8 rows of 1 + 3 documents of examples/medquad, 256 tokens at most. The variants
take turns, step by step, over the same batches. Medians of real tokens per second.
"""

import statistics
import time
from itertools import islice
from typing import Any

import torch
from harness.machine import allocator, machine_line
from harness.options import MEDQUAD, add_backbone, add_data, parser
from torch import nn

from ltr.datamodules import Evaluation, TripletDataModule
from ltr.losses import SoftmaxLoss
from ltr.models import PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder

STEPS = 4
WARM_UP = 2

DEFAULT = "the cheap mask for hidden dropout (the default)"
VARIANTS = {
    "dropout as the model has it, padded chunks": {"dropout": "own", "padded": True},
    "no attention dropout, padded chunks": {"torchs_mask": True, "padded": True},
    "no attention dropout, packed": {"torchs_mask": True},
    DEFAULT: {},
    "chunks of 8,192 tokens": {"max_tokens": 8192},
    "compile": {"compile": True},
    "chunks but the last one recomputed": {"keep_tokens": 0},
    "no dropout in the encoder": {"dropout": "none"},
}


def build_ranker(
    backbone: str, max_length: int, padded: bool = False, torchs_mask: bool = False, **options: Any
) -> PairWiseBertRanker:
    """A ranker with these options, perhaps with padded texts, or with torch's dropout for the cheap
    one.
    """
    ranker = PairWiseBertRanker(backbone, max_length, encoder=TextEncoder.Options(**options))
    ranker.encoder.reads_packed = not padded
    if torchs_mask:
        for name, child in list(ranker.named_modules()):
            if isinstance(child, nn.Dropout):
                ranker.set_submodule(name, nn.Dropout(child.p))
    return ranker


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    add_data(arguments, MEDQUAD)
    add_backbone(arguments)
    options = arguments.parse_args()
    steps = STEPS
    batch_size = 8
    max_length = 256
    variants = dict(VARIANTS)
    if options.tiny:
        steps = 1
        batch_size = 2
        max_length = 64
        del variants["compile"]  # it takes a minute
    rankers = {}
    optimizers = {}
    for name, kind in variants.items():
        ranker = build_ranker(options.backbone, max_length, **kind)
        rankers[name] = ranker
        optimizers[name] = torch.optim.AdamW(ranker.parameters(), lr=1e-5, fused=True)
    data = TripletDataModule(
        options.data,
        negatives="bm25",
        negatives_per_query=3,
        batch_size=batch_size,
        evaluation=Evaluation("bm25", depth=20),
    )
    data.reads = next(iter(rankers.values())).reads
    data.setup("fit")
    loss = SoftmaxLoss()
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    for step, batch in enumerate(islice(data.train_dataloader(), steps + WARM_UP)):
        for name, ranker in rankers.items():
            start = time.perf_counter()
            loss(ranker(batch), batch.labels, batch.mask).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            if step >= WARM_UP:
                speeds[name].append(len(batch.pairs.ids) / (time.perf_counter() - start))
    print(machine_line(), f"\nmedian of {steps} steps; {allocator()}\n")
    print("| step | tokens/s | of the default's |\n| --- | --- | --- |")
    medians = {name: statistics.median(speed) for name, speed in speeds.items()}
    for name, median in medians.items():
        print(f"| {name} | {median:,.0f} | {median / medians[DEFAULT]:.2f} |")


if __name__ == "__main__":
    main()
