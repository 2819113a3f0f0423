"""Which kernels of attention, dropout and linear layers are the fastest?  OMP_NUM_THREADS=1 python
benchmarks/attention.py

Milliseconds of CPU time on one thread, the fastest of several rounds in which the contestants take
turns. Attention is that of one layer of 12 heads of 32 dimensions over 2,048 tokens.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from harness.machine import described
from harness.options import parser
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ltr.models.encoder import attention as kernels
from ltr.models.encoder.kernels.dropout import FastDropout
from ltr.models.encoder.kernels.linear import FastLinear, mkl_is_slow

HEADS = 12
DIM = 32
TOKENS = 2048
RULE = kernels.takes_blocks  # the runs replace it, to force one kernel
TEXTS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)  # tokens
RANGES = ((4, 24), (16, 64), (40, 128), (100, 256))  # tokens of texts of varying length


def fastest(rounds: int, **contestants: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: min(found) for name, found in times.items()}


def attention(
    lengths: list[int], dtype: torch.dtype, in_blocks: bool, train: bool
) -> Callable[[], None]:
    """A layer's attention over packed texts, by one kernel."""
    layout = kernels.Layout(
        tuple((texts, n) for n, texts in sorted(Counter(lengths).items())), torch.empty(0)
    )
    qkv = [torch.randn(sum(lengths), HEADS, DIM).to(dtype).requires_grad_(train) for _ in range(3)]
    gradient = torch.randn(sum(lengths), HEADS, DIM).to(dtype)
    settings = kernels._Settings(scaling=None, dropout=0.0, window=None, kernels="auto")

    def run() -> None:
        kernels.takes_blocks = lambda query, longest: in_blocks
        output = kernels._block_diagonal(*qkv, layout, settings)
        if train:
            output.backward(gradient)

    return run


def padded_attention(lengths: list[int]) -> Callable[[], None]:
    """Forward and backward over one padded batch with a mask."""
    qkv = [
        pad_sequence([torch.randn(n, HEADS, DIM) for n in lengths], True)
        .transpose(1, 2)
        .requires_grad_()
        for _ in range(3)
    ]
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1))[:, None, None]
    gradient = torch.randn(qkv[0].shape)
    return lambda: F.scaled_dot_product_attention(*qkv, attn_mask=mask).backward(gradient)


def one_by_one(runs: list[Callable[[], None]]) -> None:
    """Run all of them."""
    for run in runs:
        run()


def step(module: nn.Module, x: Tensor, gradient: Tensor) -> None:
    """Forward and backward."""
    module(x).backward(gradient)


def kernels_table(rounds: int, tokens: int, texts: tuple[int, ...]) -> None:
    """Explicit matmuls in blocks against the flash kernel, by length."""
    print(
        "| precision | tokens a text | training: blocks | flash | chosen | encoding: blocks | flash | chosen |"
    )
    print("| --- " * 8 + "|")
    for dtype, length in product((torch.float32, torch.bfloat16), texts):
        cells = []
        for train in (True, False):
            lengths = [length] * (tokens // length)
            sides = {
                name: attention(lengths, dtype, name == "blocks", train)
                for name in ("blocks", "flash")
            }
            times = fastest(rounds, **sides)
            chosen = RULE(torch.empty(1, HEADS, DIM, dtype=dtype, requires_grad=train), length)
            cells += [
                f"{times['blocks']:.1f}",
                f"{times['flash']:.1f}",
                "blocks" if chosen else "flash",
            ]
        print(f"| {str(dtype)[6:]} | {length} | {' | '.join(cells)} |", flush=True)


def layouts_table(rounds: int, tokens: int, ranges: tuple[tuple[int, int], ...]) -> None:
    """Texts of equal length together, text by text, or padded."""
    print(
        "\n| tokens a text | lengths of texts | by length | text by text | padded |\n"
        + "| --- " * 5
        + "|"
    )
    for low, high in ranges:
        lengths = torch.randint(low, high + 1, (tokens * 2 // (low + high),)).sort().values.tolist()
        by_length = attention(lengths, torch.float32, False, True)
        alone = [attention([n], torch.float32, False, True) for n in lengths]
        times = fastest(
            rounds,
            by_length=by_length,
            alone=partial(one_by_one, alone),
            padded=padded_attention(lengths),
        )
        cells = " | ".join(f"{milliseconds:.1f}" for milliseconds in times.values())
        print(f"| {low} to {high} | {len(set(lengths))} of {len(lengths)} | {cells} |", flush=True)


def dropout_table(rounds: int, tokens: int) -> None:
    """The cheap mask against torch's, forward and backward."""
    print("\n| dropout of | precision | torch | ours | none |\n" + "| --- " * 5 + "|")
    for dtype, width in product((torch.float32, torch.bfloat16), (384, 1536)):
        x = torch.randn(tokens, width).to(dtype).requires_grad_()
        gradient = torch.randn(tokens, width).to(dtype)
        modules = {"torch": nn.Dropout(0.1), "ours": FastDropout(0.1), "none": nn.Hardtanh(-9, 9)}
        times = fastest(
            rounds, **{name: partial(step, module, x, gradient) for name, module in modules.items()}
        )
        cells = " | ".join(f"{milliseconds:.2f}" for milliseconds in times.values())
        print(f"| {tokens} × {width} | {str(dtype)[6:]} | {cells} |", flush=True)


def linear_table(rounds: int, tokens: int) -> None:
    """Torch's linear layers against those by oneDNN, forward alone, and forward and backward."""
    print(f"\nLinear layers in float32; chosen: {'oneDNN' if mkl_is_slow() else 'torch'}\n")
    print(
        "| linear layer | forward: torch | oneDNN | forward and backward: torch | oneDNN |\n"
        + "| --- " * 5
        + "|"
    )
    for width, size in ((384, 384), (384, 1536), (1536, 384)):
        x = torch.randn(tokens, width, requires_grad=True)
        gradient = torch.randn(tokens, size)
        modules = {"torch": nn.Linear(width, size), "ours": FastLinear(width, size)}
        with torch.no_grad():
            forward = fastest(
                rounds, **{name: partial(module, x) for name, module in modules.items()}
            )
        both = fastest(
            rounds, **{name: partial(step, module, x, gradient) for name, module in modules.items()}
        )
        cells = " | ".join(
            f"{milliseconds:.2f}" for milliseconds in (*forward.values(), *both.values())
        )
        print(f"| {tokens} × {width} to {size} | {cells} |", flush=True)


def main() -> None:
    """Print four tables."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=15)
    options = made.parse_args()
    rounds, tokens = (1, 256) if options.tiny else (options.rounds, TOKENS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(described(), "\n")
    kernels_table(rounds, tokens, TEXTS[:1] if options.tiny else TEXTS)
    layouts_table(rounds, tokens, RANGES[-1:] if options.tiny else RANGES)
    dropout_table(rounds, tokens)
    linear_table(rounds, tokens)


if __name__ == "__main__":
    main()
