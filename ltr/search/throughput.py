"""How fast texts are encoded, and which share of what this machine can multiply that is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ltr.search.embedder import Embedder

# Rows and columns of the matrices by which the peak is measured: products of smaller ones do not fill
# a GPU, or take no longer than their launch.
SIDE = 2048
SIDE_ON_GPU = 8192
SECONDS_OF_PEAK = 0.2  # that the products take at least


class Throughput:
    """Texts, seconds and products of an encoding.

    Args:
        embedder: what encodes.

    Attributes:
        texts: so many were encoded.
        tokens: of these texts.
        seconds: that it took.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        # A token is multiplied by each weight of a linear layer once. Attention is left out, so the
        # share is rather too small.
        self._weights_per_token = sum(
            part.weight.numel() for part in embedder.tower.modules() if isinstance(part, nn.Linear)
        )
        self._peak: float | None = None
        self.texts = 0
        self.tokens = 0
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of the block."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    def count(self, texts: int, tokens: int) -> None:
        """Count what was encoded."""
        self.texts += texts
        self.tokens += tokens

    def share_of_peak(self) -> float:
        """Products of tokens and weights in a second, over those of large matrices on the same
        device in the same precision, measured once, for some 0.2 s: 0 where the device has no memory
        left to measure it.
        """
        if self._peak is None:
            try:
                self._peak = peak(self._embedder)
            except torch.OutOfMemoryError:  # of a GPU beside a training
                self._peak = float("inf")
        operations = 2 * self._weights_per_token * self.tokens
        return operations / max(self.seconds, 1e-9) / self._peak

    def __str__(self) -> str:
        per_second = self.texts / max(self.seconds, 1e-9)
        line = f"{per_second:,.0f} texts/s"
        share = self.share_of_peak()
        return f"{line}, {100 * share:.0f} % of the matmul peak" if share else line


def peak(embedder: Embedder) -> float:
    """Operations per second of products of two large matrices of random numbers, by the device and in
    the precision of an embedder.
    """
    device = embedder.device
    side = SIDE_ON_GPU if device.type == "cuda" else SIDE
    with torch.no_grad(), embedder.precision():
        few = torch.ones(8, 8, device=device)
        # autocast casts each operand in each call: what it would cast to is taken beforehand.
        dtype = (few @ few).dtype
        own = torch.Generator(device).manual_seed(0)  # a training draws from the one of all
        left = torch.randn(side, side, device=device, dtype=dtype, generator=own)
        product = left @ left  # the first one is slower
        n_products = 1
        while True:
            seconds = _seconds_of(n_products, left, product)
            if seconds >= SECONDS_OF_PEAK:
                return 2 * side**3 * n_products / seconds
            n_products *= 2


def _seconds_of(n_products: int, left: Tensor, product: Tensor) -> float:
    """The time of so many products, one after the other: a GPU is waited for in the end alone."""
    _wait_for(left.device)
    start = time.perf_counter()
    for _ in range(n_products):
        torch.matmul(left, left, out=product)
    _wait_for(left.device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
