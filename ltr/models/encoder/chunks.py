"""Texts in chunks: an encoder reads one chunk at a time, so its size bounds time and memory.

A packed chunk lays its texts end to end; a padded one makes them equally long, and gathers texts of
similar length.

A new number of tokens costs a CPU twice: the freed buffers of other sizes don't fit, so the heap
grows, and oneDNN compiles and keeps a kernel for it. So a packed chunk is filled up to one of 16
sizes between each power of two and the next, which recur.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ltr.batch import Texts
from ltr.models.encoder.attention import Layout


class Chunk(NamedTuple):
    """Some of the texts, shortest first.

    Attributes:
        rows: ``[C]`` int64, which of the texts these are.
        lengths: ``[C]`` int64, their tokens.
        inputs: what the encoder takes: ``input_ids``, perhaps ``token_type_ids``, and for padded
            texts ``attention_mask``, each ``[C, L]``; for packed ones ``position_ids``, restarted
            with every text, each ``[1, T]`` (their padding counted), and ``packed_layout``.
    """

    rows: Tensor
    lengths: Tensor
    inputs: dict[str, Any]


def packed_chunks(texts: Texts, max_tokens: int, first_position: int) -> Iterator[Chunk]:
    """Chunks of at most ``max_tokens`` tokens, or of a single text, that lie end to end. Texts
    count from ``first_position``.

    On a CPU their first token may follow the last text some times more, to make a size that recurs.
    """
    order = texts.lengths.argsort(stable=True)
    begins = texts.lengths.cumsum(0) - texts.lengths
    sizes = texts.lengths[order].tolist()
    for begin, end in cuts(sizes, max_tokens):
        rows = order[begin:end]
        n_tokens = sum(sizes[begin:end])
        lengths = texts.lengths[rows]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        position = torch.arange(n_tokens, device=rows.device)
        position = position - offsets[:-1].repeat_interleave(lengths, output_size=n_tokens)
        token = position + begins[rows].repeat_interleave(lengths, output_size=n_tokens)
        groups = tuple((len(list(same)), n) for n, same in groupby(sizes[begin:end]))
        padding = 0
        if rows.device.type == "cpu":
            padding = filled(n_tokens, max_tokens) - n_tokens
            position = F.pad(position, (0, padding))
            token = F.pad(token, (0, padding))
        inputs = {
            "input_ids": texts.ids[token].unsqueeze(0),
            "position_ids": (position + first_position).unsqueeze(0),
            "packed_layout": Layout(groups, offsets.int(), padding),
        }
        if texts.type_ids is not None:
            inputs["token_type_ids"] = texts.type_ids[token].unsqueeze(0)
        yield Chunk(rows, lengths, inputs)


def filled(n_tokens: int, max_tokens: int) -> int:
    """Tokens of a packed chunk on a CPU: the next of sizes that are at most a sixteenth apart, but
    no more than ``max_tokens``.

    >>> [filled(n, max_tokens=1080) for n in (7, 32, 33, 65, 1000, 1025)]
    [7, 32, 34, 68, 1024, 1080]
    """
    step = 1 << max(0, (n_tokens - 1).bit_length() - 5)
    return max(n_tokens, min(-(-n_tokens // step) * step, max_tokens))


def padded_chunks(texts: Texts, max_tokens: int, pad_id: int) -> Iterator[Chunk]:
    """Chunks of at most ``max_tokens`` tokens, padding counted, or of a single text, padded at the
    right with ``pad_id``.
    """
    order = texts.lengths.argsort(stable=True)
    lengths = texts.lengths[order]
    sizes = texts.lengths.tolist()
    ids = texts.ids.split(sizes)
    types = None if texts.type_ids is None else texts.type_ids.split(sizes)
    for begin, end in cuts(lengths.tolist(), max_tokens, padded=True):
        rows = order[begin:end].tolist()
        real = torch.arange(int(lengths[end - 1]), device=lengths.device) < lengths[
            begin:end
        ].unsqueeze(1)
        input_ids = pad_sequence([ids[row] for row in rows], batch_first=True, padding_value=pad_id)
        inputs = {"input_ids": input_ids, "attention_mask": real.long()}
        if types is not None:
            inputs["token_type_ids"] = pad_sequence([types[row] for row in rows], batch_first=True)
        yield Chunk(order[begin:end], lengths[begin:end], inputs)


def padding_share(lengths: Sequence[int], max_tokens: int, packed: bool = False) -> float:
    """Share of padding among all tokens of the chunks of texts of these lengths: padded ones, or
    packed ones on a CPU.
    """
    lengths = sorted(lengths)
    chunks = [lengths[begin:end] for begin, end in cuts(lengths, max_tokens, padded=not packed)]
    tokens = sum(
        filled(sum(chunk), max_tokens) if packed else len(chunk) * chunk[-1] for chunk in chunks
    )
    return 1 - sum(lengths) / tokens if tokens else 0.0


def cuts(
    lengths: Sequence[int], max_tokens: int, padded: bool = False
) -> Iterator[tuple[int, int]]:
    """Cut texts, in order, into chunks of at most ``max_tokens`` tokens. A longer text gets a chunk
    of its own.

    Args:
        lengths: tokens of each text; with ``padded`` they must not decrease.
        max_tokens: tokens of a chunk, at most.
        padded: count each text with the padding that makes it as long as the longest of its chunk.

    Yields:
        ``(begin, end)`` of each chunk.

    >>> list(cuts([2, 3, 4, 9], max_tokens=6))
    [(0, 2), (2, 3), (3, 4)]
    >>> list(cuts([2, 3, 4, 9], max_tokens=5, padded=True))
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    """
    begin = 0
    tokens = 0
    for i, length in enumerate(lengths):
        more = (i + 1 - begin) * length if padded else tokens + length
        if tokens and more > max_tokens:
            yield begin, i
            begin = i
            more = length
        tokens = more
    if lengths:
        yield begin, len(lengths)
