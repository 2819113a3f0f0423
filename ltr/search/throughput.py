"""How fast texts are encoded, and which share of what this machine can multiply that is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ltr.search.embedder import Embedder

SIDE = 2048  # rows and columns of the matrices by which the peak is measured
SECONDS_OF_PEAK = 0.2


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
    def counted(self, texts: int, tokens: int) -> Iterator[None]:
        """Count what the block encodes, once it has."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start
        self.texts += texts
        self.tokens += tokens

    def share_of_peak(self) -> float:
        """Products of tokens and weights in a second, over those of large matrices on the same
        device in the same precision, measured once, for some 0.2 s.
        """
        if self._peak is None:
            self._peak = peak(self._embedder)
        operations = 2 * self._weights_per_token * self.tokens
        return operations / max(self.seconds, 1e-9) / self._peak

    def __str__(self) -> str:
        per_second = self.texts / max(self.seconds, 1e-9)
        return f"{per_second:,.0f} texts/s, {100 * self.share_of_peak():.0f} % of the matmul peak"


def peak(embedder: Embedder) -> float:
    """Operations per second of a product of two large matrices, by the device and in the precision
    of an embedder.
    """
    device = embedder.device
    with torch.no_grad(), embedder.precision():
        left = torch.ones(SIDE, SIDE, device=device)
        # autocast casts each operand in each call: what it would cast to is taken beforehand.
        left = left.to((left[:8, :8] @ left[:8, :8]).dtype)
        _wait_for(device)
        start = time.perf_counter()
        n_products = 0
        while time.perf_counter() - start < SECONDS_OF_PEAK:
            left @ left
            _wait_for(device)
            n_products += 1
        seconds = time.perf_counter() - start
    return 2 * SIDE**3 * n_products / seconds


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
