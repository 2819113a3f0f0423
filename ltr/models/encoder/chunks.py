"""Texts in chunks: an encoder reads one chunk at a time, so its size bounds time and memory.

A packed chunk lays its texts end to end. A padded chunk makes them equally long, and takes texts of
similar length.

A number of tokens that has not been seen before costs a CPU time and memory: oneDNN compiles a
kernel for it, and buffers that were freed do not fit, so the heap grows. So that few numbers recur,
a packed chunk on a CPU is padded to one of 16 sizes between each power of two and the next.

Shapes: C texts in a chunk, T tokens of a packed chunk, L tokens of the longest text.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ltr.batch import Texts
from ltr.draws import keys_inside
from ltr.models.encoder.attention import Layout


class Chunk(NamedTuple):
    """Some of the texts, shortest first.

    Attributes:
        rows: ``[C]`` int64, which of the texts these are.
        lengths: ``[C]`` int64, their tokens.
        inputs: the arguments of the encoder. Of a padded chunk: ``input_ids``, ``attention_mask``
            and perhaps ``token_type_ids``, each ``[C, L]``. Of a packed chunk: ``input_ids``,
            ``position_ids``, which restart with every text, and perhaps ``token_type_ids``, each
            ``[1, T]``, padding counted; and ``packed_layout``.
        keys: ``[C]`` int64, from which dropout is drawn, see :attr:`ltr.batch.Texts.keys`.
    """

    rows: Tensor
    lengths: Tensor
    inputs: dict[str, Any]
    keys: Tensor | None = None

    def token_keys(self) -> Tensor:
        """Keys of the tokens, shaped as ``input_ids``: a token has the same in either kind of chunk."""
        assert self.keys is not None, "only a chunk that is read with dropout needs them"
        ids = self.inputs["input_ids"]
        if "packed_layout" not in self.inputs:
            place = torch.arange(ids.shape[1], device=ids.device)
            return keys_inside(self.keys.unsqueeze(1), place)
        padding = self.inputs["packed_layout"].padding
        n_tokens = ids.shape[1] - padding
        begins = self.lengths.cumsum(0) - self.lengths
        place = torch.arange(n_tokens, device=ids.device)
        place = place - begins.repeat_interleave(self.lengths, output_size=n_tokens)
        text_keys = self.keys.repeat_interleave(self.lengths, output_size=n_tokens)
        return F.pad(keys_inside(text_keys, place), (0, padding)).unsqueeze(0)


def packed_chunks(
    texts: Texts, max_tokens: int, padding_index: int | None, causal: bool = False
) -> Iterator[Chunk]:
    """Chunks of at most ``max_tokens`` tokens, or of a single longer text, end to end; ``causal``
    where a decoder reads them.

    Positions count as :func:`ltr.models.encoder.loading.architecture.padding_index` says. On a CPU
    padding may follow the last text, to make a size that recurs. The padding repeats the first
    token of ``texts``.
    """
    order = texts.lengths.argsort(stable=True)
    begins = texts.lengths.cumsum(0) - texts.lengths  # where each text begins in texts.ids
    sorted_lengths = texts.lengths[order].tolist()
    for begin, end in chunk_spans(sorted_lengths, max_tokens):
        chunk_lengths = sorted_lengths[begin:end]  # as numbers: a GPU need not be asked for them
        n_tokens = sum(chunk_lengths)
        rows = order[begin:end]
        lengths = texts.lengths[rows]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        # For each token of the chunk: its position in its text, and its place in texts.ids.
        position = torch.arange(n_tokens, device=rows.device)
        position = position - offsets[:-1].repeat_interleave(lengths, output_size=n_tokens)
        place = position + begins[rows].repeat_interleave(lengths, output_size=n_tokens)
        if padding_index is not None:
            position = _roberta_positions(texts.ids[place], lengths, offsets, padding_index)
        groups = tuple((len(list(same)), length) for length, same in groupby(chunk_lengths))
        padding = 0
        if rows.device.type == "cpu":
            padding = padded_size(n_tokens, max_tokens) - n_tokens
            position = F.pad(position, (0, padding))
            place = F.pad(place, (0, padding))  # by zeros: the first token
        layout = Layout(groups, offsets.int(), padding, causal=causal, keys=_keys_of(texts, rows))
        inputs = {
            "input_ids": texts.ids[place].unsqueeze(0),
            "position_ids": position.unsqueeze(0),
            "packed_layout": layout,
        }
        if texts.type_ids is not None:
            inputs["token_type_ids"] = texts.type_ids[place].unsqueeze(0)
        yield Chunk(rows, lengths, inputs, _keys_of(texts, rows))


def _keys_of(texts: Texts, rows: Tensor) -> Tensor | None:
    """The keys of some of the texts, where they have any."""
    return None if texts.keys is None else texts.keys[rows]


def _roberta_positions(ids: Tensor, lengths: Tensor, offsets: Tensor, padding_index: int) -> Tensor:
    """Positions ``[T]`` of tokens as RoBERTa counts them, which leaves out those with the padding's
    id: a text may hold it, written out as ``<pad>``.
    """
    is_counted = (ids != padding_index).long()
    count = is_counted.cumsum(0)
    n_before = F.pad(count, (1, 0))[offsets[:-1]]  # counted in front of each text
    count = count - n_before.repeat_interleave(lengths, output_size=len(ids))
    return count * is_counted + padding_index


def padded_size(n_tokens: int, max_tokens: int) -> int:
    """Tokens of a packed chunk on a CPU, padding counted: the next of sizes that are at most a
    sixteenth apart, but no more than ``max_tokens``.

    >>> [padded_size(n, max_tokens=1080) for n in (7, 32, 33, 65, 1000, 1025)]
    [7, 32, 34, 68, 1024, 1080]
    """
    exponent = (n_tokens - 1).bit_length() - 1  # of the largest power of two below n_tokens
    step = 1 << max(0, exponent - 4)  # a sixteenth of that power; 1 up to 32 tokens
    next_size = (n_tokens + step - 1) // step * step  # rounded up to a multiple of the step
    return max(n_tokens, min(next_size, max_tokens))


def padded_chunks(texts: Texts, max_tokens: int, pad_id: int) -> Iterator[Chunk]:
    """Chunks of at most ``max_tokens`` tokens, padding counted, or of a single longer text, padded
    at the right with ``pad_id``.
    """
    order = texts.lengths.argsort(stable=True)
    sorted_lengths = texts.lengths[order]
    ids_of_texts = texts.ids.split(texts.lengths.tolist())
    types_of_texts = None
    if texts.type_ids is not None:
        types_of_texts = texts.type_ids.split(texts.lengths.tolist())
    for begin, end in chunk_spans(sorted_lengths.tolist(), max_tokens, padded=True):
        rows = order[begin:end]
        lengths = sorted_lengths[begin:end]
        row_numbers = rows.tolist()
        ids = [ids_of_texts[row] for row in row_numbers]
        column = torch.arange(int(lengths[-1]), device=lengths.device)
        is_token = column < lengths.unsqueeze(1)
        inputs = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id),
            "attention_mask": is_token.long(),
        }
        if types_of_texts is not None:
            types = [types_of_texts[row] for row in row_numbers]
            inputs["token_type_ids"] = pad_sequence(types, batch_first=True)
        yield Chunk(rows, lengths, inputs, _keys_of(texts, rows))


def share_of_padding(lengths: Sequence[int], max_tokens: int, packed: bool = False) -> float:
    """Share of padding among all tokens of the chunks of texts of these lengths: padded ones, or
    packed ones on a CPU.
    """
    lengths = sorted(lengths)
    n_tokens = 0  # padding counted
    for begin, end in chunk_spans(lengths, max_tokens, padded=not packed):
        if packed:
            n_tokens += padded_size(sum(lengths[begin:end]), max_tokens)
        else:
            n_tokens += (end - begin) * lengths[end - 1]
    if n_tokens == 0:
        return 0.0
    return 1 - sum(lengths) / n_tokens


def chunk_spans(
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

    >>> list(chunk_spans([2, 3, 4, 9], max_tokens=6))
    [(0, 2), (2, 3), (3, 4)]
    >>> list(chunk_spans([2, 3, 4, 9], max_tokens=5, padded=True))
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    """
    begin = 0
    n_tokens = 0  # of the chunk so far
    for i, length in enumerate(lengths):
        if padded:
            n_with_text = (i + 1 - begin) * length  # this text is the longest so far
        else:
            n_with_text = n_tokens + length
        if n_tokens and n_with_text > max_tokens:
            yield begin, i
            begin = i
            n_with_text = length
        n_tokens = n_with_text
    if lengths:
        yield begin, len(lengths)
