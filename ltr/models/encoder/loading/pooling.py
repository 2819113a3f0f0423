"""Pooling: the hidden states of a text's tokens become one vector.

A new pooling is a name and a function in this file.
"""

from typing import Any, Literal

import torch
from torch import Tensor

Pooling = Literal["mean", "cls", "max", "last"]
# The names that sentence-transformers has for it, where they are others.
NAMES_THERE = {"last": "lasttoken"}


def name_there(pooling: str) -> str:
    """The name of a pooling in sentence-transformers."""
    return NAMES_THERE.get(pooling, pooling)


def name_here(pooling: Any) -> Any:
    """The name here of a pooling of sentence-transformers, or of several; there are some that we
    don't have.
    """
    for here, there in NAMES_THERE.items():
        if there == pooling:
            return here
    return pooling


def mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean over the tokens of each text."""
    n_texts = len(lengths)
    # For each token, the number of its text. output_size saves a GPU the wait for the sum.
    text = torch.repeat_interleave(lengths, output_size=len(hidden))
    zeros = hidden.new_zeros(n_texts, hidden.shape[1], dtype=torch.float32)
    total = zeros.index_add(0, text, hidden.float())
    return total / lengths.unsqueeze(1)


def cls(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The first token of each text."""
    return hidden[lengths.cumsum(0) - lengths].float()


def maximum(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The maximum over the tokens of each text, by dimension. Tokens that share a maximum share its
    gradient.
    """
    # 3 times as fast as scatter_reduce on a CPU.
    return torch.segment_reduce(hidden.float(), "max", lengths=lengths, axis=0, unsafe=True)


def last(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The last token of each text."""
    return hidden[lengths.cumsum(0) - 1].float()


POOLINGS = {"mean": mean, "cls": cls, "max": maximum, "last": last}


def pool(hidden: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """One vector for each text, ``[C, H]`` float32.

    Args:
        hidden: ``[T, H]``, the hidden states of C texts, end to end without padding.
        lengths: ``[C]`` int64, tokens of each text; they sum to T.
        pooling: the name.
    """
    return POOLINGS[pooling](hidden, lengths)
