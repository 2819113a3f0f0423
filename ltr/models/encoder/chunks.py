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

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ltr.batch import Texts, on_device
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
        token_texts: ``[T]`` int64, of each token of a packed chunk its text, from 0; padding is not
            counted. None of a padded chunk.
        token_places: ``[T]`` int64, of each its place in that text, from 0.
    """

    rows: Tensor
    lengths: Tensor
    inputs: dict[str, Any]
    keys: Tensor | None = None
    token_texts: Tensor | None = None
    token_places: Tensor | None = None

    def token_keys(self) -> Tensor:
        """Keys of the tokens, shaped as ``input_ids``: a token has the same in either kind of chunk."""
        assert self.keys is not None, "only a chunk that is read with dropout needs them"
        ids = self.inputs["input_ids"]
        if self.token_texts is None or self.token_places is None:
            place = torch.arange(ids.shape[1], device=ids.device)
            return keys_inside(self.keys.unsqueeze(1), place)
        token_keys = keys_inside(self.keys[self.token_texts], self.token_places)
        padding = self.inputs["packed_layout"].padding
        return F.pad(token_keys, (0, padding)).unsqueeze(0)


def packed_chunks(
    texts: Texts, max_tokens: int, padding_index: int | None, causal: bool = False
) -> Iterator[Chunk]:
    """Chunks of at most ``max_tokens`` tokens, or of a single longer text, end to end; ``causal``
    where a decoder reads them.

    Positions count as :func:`ltr.models.encoder.loading.architecture.padding_index` says. On a CPU
    padding may follow the last text, to make a size that recurs. The padding repeats the first
    token of ``texts``.
    """
    device = texts.ids.device
    all_lengths = texts.lengths_on_host()
    all_begins = np.cumsum(all_lengths) - all_lengths  # where each text begins in texts.ids
    order = np.argsort(all_lengths, kind="stable")
    sorted_lengths = all_lengths[order].tolist()
    for begin, end in chunk_spans(sorted_lengths, max_tokens):
        chunk_lengths = sorted_lengths[begin:end]
        n_tokens = sum(chunk_lengths)
        padding = 0
        if device.type == "cpu":
            padding = padded_size(n_tokens, max_tokens) - n_tokens
        # What follows from lengths is made on the host, while a GPU computes something else.
        on_host = _places_of_tokens(order[begin:end], all_lengths, all_begins, padding)
        rows, lengths, offsets, token_texts, position, place = on_device(on_host, device)
        token_ids = texts.ids[place]
        token_places = position[:n_tokens]
        if padding_index is not None:
            position = _roberta_positions(token_ids[:n_tokens], token_texts, offsets, padding_index)
            position = F.pad(position, (0, padding))
        groups = tuple((len(list(same)), length) for length, same in groupby(chunk_lengths))
        keys = _keys_of(texts, rows)
        inputs = {
            "input_ids": token_ids.unsqueeze(0),
            "position_ids": position.unsqueeze(0),
            "packed_layout": Layout(groups, offsets, padding, causal=causal, keys=keys),
        }
        if texts.type_ids is not None:
            inputs["token_type_ids"] = texts.type_ids[place].unsqueeze(0)
        yield Chunk(rows, lengths, inputs, keys, token_texts, token_places)


def _places_of_tokens(
    rows: np.ndarray, all_lengths: np.ndarray, all_begins: np.ndarray, padding: int
) -> list[np.ndarray]:
    """Where the texts of a packed chunk and their tokens lie.

    Args:
        rows: ``[C]`` int64, which of all texts these are.
        all_lengths, all_begins: ``[S]`` int64, tokens of all texts, and where each begins among
            their ids.
        padding: tokens behind the last text.

    Returns:
        ``rows``; the texts' lengths ``[C]``; the offsets of :class:`Layout`; of each token its text
        ``[T]``; and, padding counted, its place in that text and among all ids. Padding has 0
        there: the first token.
    """
    lengths = all_lengths[rows]
    offsets = np.append(0, np.cumsum(lengths))
    text = np.repeat(np.arange(len(rows)), lengths)
    place_in_text = np.arange(len(text)) - offsets[text]
    place = place_in_text + all_begins[rows][text]
    padded = [np.append(places, np.zeros(padding, np.int64)) for places in (place_in_text, place)]
    return [rows, lengths, offsets.astype(np.int32), text, *padded]


def _keys_of(texts: Texts, rows: Tensor) -> Tensor | None:
    """The keys of some of the texts, where they have any."""
    return None if texts.keys is None else texts.keys[rows]


def _roberta_positions(
    ids: Tensor, token_texts: Tensor, offsets: Tensor, padding_index: int
) -> Tensor:
    """Positions ``[T]`` of tokens as RoBERTa counts them, which leaves out those with the padding's
    id: a text may hold it, written out as ``<pad>``.
    """
    is_counted = (ids != padding_index).long()
    count = is_counted.cumsum(0)
    n_before = F.pad(count, (1, 0))[offsets[:-1]]  # counted in front of each text
    return (count - n_before[token_texts]) * is_counted + padding_index


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
    device = texts.ids.device
    all_lengths = texts.lengths_on_host()
    order = np.argsort(all_lengths, kind="stable")
    sorted_lengths = all_lengths[order].tolist()
    ids_of_texts = texts.ids.split(all_lengths.tolist())
    types_of_texts = None
    if texts.type_ids is not None:
        types_of_texts = texts.type_ids.split(all_lengths.tolist())
    for begin, end in chunk_spans(sorted_lengths, max_tokens, padded=True):
        row_numbers = order[begin:end].tolist()
        rows, lengths = on_device([order[begin:end], all_lengths[order[begin:end]]], device)
        ids = [ids_of_texts[row] for row in row_numbers]
        column = torch.arange(sorted_lengths[end - 1], device=device)
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
