"""Ragged texts for encoders that need padding: cut into chunks of similar length, so that little is padding."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ltr.batch import Texts


class PaddedChunk(NamedTuple):
    """Some of the texts, padded at the right.

    Attributes:
        rows: ``[C]`` int64, which of the texts these are.
        input_ids: ``[C, L]`` int64.
        attention_mask: ``[C, L]`` int64, 1 for a token.
        token_type_ids: ``[C, L]`` int64, or None.
    """

    rows: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None


def chunks_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Rows sorted by length, cut so that no padded chunk has more than ``max_tokens`` tokens (or it is a single text).

    >>> chunks_by_length([9, 2, 3, 2], max_tokens=9)
    [[1, 3, 2], [0]]
    """
    chunks: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if chunks and (len(chunks[-1]) + 1) * lengths[row] <= max_tokens:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks


def padding_share(lengths: Sequence[int], max_tokens: int) -> float:
    """Share of padding among all tokens that the encoder sees."""
    padded = sum(len(chunk) * lengths[chunk[-1]] for chunk in chunks_by_length(lengths, max_tokens))
    return 1 - sum(lengths) / padded if padded else 0.0


def padded_chunks(texts: Texts, pad_id: int, max_tokens: int) -> Iterator[PaddedChunk]:
    """The texts as padded chunks, shortest first."""
    lengths = texts.lengths.tolist()
    ids = texts.ids.split(lengths)
    types = None if texts.type_ids is None else texts.type_ids.split(lengths)
    for chunk in chunks_by_length(lengths, max_tokens):
        size = texts.lengths[chunk]
        mask = torch.arange(lengths[chunk[-1]], device=size.device) < size.unsqueeze(1)
        yield PaddedChunk(
            rows=torch.tensor(chunk, device=size.device),
            input_ids=pad_sequence([ids[row] for row in chunk], batch_first=True, padding_value=pad_id),
            attention_mask=mask.long(),
            token_type_ids=None if types is None else pad_sequence([types[row] for row in chunk], batch_first=True),
        )
