"""Pooling: the hidden states of a text's tokens become one vector.

A new pooling is a name and a function in this file.
"""

from typing import Literal

import torch
from torch import Tensor

# The names are those of sentence-transformers, so a saved model pools there as it does here.
Pooling = Literal["mean", "cls", "max"]


def mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean over the tokens of each text."""
    n_texts = len(lengths)
    # For each token, the number of its text. output_size saves a GPU the wait for the sum.
    text = torch.arange(n_texts, device=hidden.device)
    text = text.repeat_interleave(lengths, output_size=len(hidden))
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
    return torch.segment_reduce(hidden.float(), "max", lengths=lengths, axis=0)


POOLINGS = {"mean": mean, "cls": cls, "max": maximum}


def pool(hidden: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """One vector for each text, ``[C, H]`` float32.

    Args:
        hidden: ``[T, H]``, the hidden states of C texts, end to end without padding.
        lengths: ``[C]`` int64, tokens of each text; they sum to T.
        pooling: the name.
    """
    return POOLINGS[pooling](hidden, lengths)
