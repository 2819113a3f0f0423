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
from harness.machine import machine_line
from harness.options import parser
from harness.tables import head, row
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ltr.dropout import new_keys, use_keyed_dropout
from ltr.models.encoder import attention as kernels
from ltr.models.encoder.kernels.linear import FastLinear, mkl_is_slow

HEADS = 12
DIM = 32
TOKENS = 2048
CHOOSES_BLOCKS = kernels.takes_blocks  # ltr's own choice: the runs replace it, to force a kernel
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
    return {name: min(of_rounds) for name, of_rounds in times.items()}


def attention(
    lengths: list[int], dtype: torch.dtype, in_blocks: bool, train: bool
) -> Callable[[], None]:
    """A layer's attention over packed texts, by one kernel."""
    groups = tuple((n_texts, length) for length, n_texts in sorted(Counter(lengths).items()))
    layout = kernels.Layout(groups, torch.empty(0))
    shape = (sum(lengths), HEADS, DIM)
    qkv = [torch.randn(shape).to(dtype).requires_grad_(train) for _ in range(3)]
    gradient = torch.randn(shape).to(dtype)
    settings = kernels._Settings(
        scaling=None, dropout=0.0, site=0, window=None, kernels="auto", causal=False, softcap=None
    )

    def run() -> None:
        kernels.takes_blocks = lambda query, longest: in_blocks
        output = kernels._attend_packed(*qkv, layout, settings)
        if train:
            output.backward(gradient)

    return run


def padded_attention(lengths: list[int]) -> Callable[[], None]:
    """Forward and backward over one padded batch with a mask."""
    qkv = [
        pad_sequence([torch.randn(n, HEADS, DIM) for n in lengths], batch_first=True)
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
    columns = ["precision", "tokens a text", "training: blocks", "flash", "chosen"]
    columns += ["encoding: blocks", "flash", "chosen"]
    print(head(columns))
    for dtype, length in product((torch.float32, torch.bfloat16), texts):
        cells = []
        for train in (True, False):
            lengths = [length] * (tokens // length)
            times = fastest(
                rounds,
                blocks=attention(lengths, dtype, in_blocks=True, train=train),
                flash=attention(lengths, dtype, in_blocks=False, train=train),
            )
            chosen = CHOOSES_BLOCKS(
                torch.empty(1, HEADS, DIM, dtype=dtype, requires_grad=train), length
            )
            cells += [
                f"{times['blocks']:.1f}",
                f"{times['flash']:.1f}",
                "blocks" if chosen else "flash",
            ]
        print(row([name_of(dtype), length, *cells]), flush=True)


def layouts_table(rounds: int, tokens: int, ranges: tuple[tuple[int, int], ...]) -> None:
    """Texts of equal length together, text by text, or padded."""
    columns = ["tokens a text", "lengths of texts", "by length", "text by text", "padded"]
    print(f"\n{head(columns)}")
    for low, high in ranges:
        n_texts = 2 * tokens // (low + high)
        lengths = torch.randint(low, high + 1, (n_texts,)).sort().values.tolist()
        by_length = attention(lengths, torch.float32, in_blocks=False, train=True)
        alone = [attention([n], torch.float32, in_blocks=False, train=True) for n in lengths]
        times = fastest(
            rounds,
            by_length=by_length,
            alone=partial(one_by_one, alone),
            padded=padded_attention(lengths),
        )
        cells = [f"{milliseconds:.1f}" for milliseconds in times.values()]
        different = f"{len(set(lengths))} of {len(lengths)}"
        print(row([f"{low} to {high}", different, *cells]), flush=True)


def dropout_table(rounds: int, tokens: int) -> None:
    """The cheap mask against torch's, forward and backward."""
    print(f"\n{head(['dropout of', 'precision', 'torch', 'ours', 'none'])}")
    ours = nn.Sequential(nn.Dropout(0.1))
    draws = use_keyed_dropout(ours)
    draws.draw_for(new_keys(tokens, torch.device("cpu")))
    for dtype, width in product((torch.float32, torch.bfloat16), (384, 1536)):
        x = torch.randn(tokens, width).to(dtype).requires_grad_()
        gradient = torch.randn(tokens, width).to(dtype)
        times = fastest(
            rounds,
            torch=partial(step, nn.Dropout(0.1), x, gradient),
            ours=partial(step, ours, x, gradient),
            none=partial(step, nn.Hardtanh(-9, 9), x, gradient),  # changes nothing, but has a pass
        )
        cells = [f"{milliseconds:.2f}" for milliseconds in times.values()]
        print(row([f"{tokens} × {width}", name_of(dtype), *cells]), flush=True)


def linear_table(rounds: int, tokens: int) -> None:
    """Torch's linear layers against those by oneDNN, forward alone, and forward and backward."""
    print(f"\nLinear layers in float32; chosen: {'oneDNN' if mkl_is_slow() else 'torch'}\n")
    columns = ["linear layer", "forward: torch", "oneDNN", "forward and backward: torch", "oneDNN"]
    print(head(columns))
    for width, size in ((384, 384), (384, 1536), (1536, 384)):
        x = torch.randn(tokens, width, requires_grad=True)
        gradient = torch.randn(tokens, size)
        theirs = nn.Linear(width, size)
        ours = FastLinear(width, size)
        with torch.no_grad():
            forward = fastest(rounds, torch=partial(theirs, x), ours=partial(ours, x))
        both = fastest(
            rounds,
            torch=partial(step, theirs, x, gradient),
            ours=partial(step, ours, x, gradient),
        )
        cells = [f"{milliseconds:.2f}" for milliseconds in (*forward.values(), *both.values())]
        print(row([f"{tokens} × {width} to {size}", *cells]), flush=True)


def name_of(dtype: torch.dtype) -> str:
    """As in ``float32``."""
    return str(dtype).removeprefix("torch.")


def main() -> None:
    """Print four tables."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=15)
    options = arguments.parse_args()
    rounds = options.rounds
    tokens = TOKENS
    texts = TEXTS
    ranges = RANGES
    if options.tiny:
        rounds = 1
        tokens = 256
        texts = TEXTS[:1]
        ranges = RANGES[-1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine_line(), "\n")
    kernels_table(rounds, tokens, texts)
    layouts_table(rounds, tokens, ranges)
    dropout_table(rounds, tokens)
    linear_table(rounds, tokens)


if __name__ == "__main__":
    main()
