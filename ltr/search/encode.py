"""Embeddings of many texts, from the token store to a memory map."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ltr.batch import Texts
from ltr.data.files import new_array
from ltr.data.formats import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import Tokens
from ltr.models.encoder.chunks import chunk_spans
from ltr.models.encoder.kernels.linear import cast_once
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.encoder.text_encoder import TextEncoder

# Tokens handed to the encoder at once, at most: several of its chunks on a CPU, one on a GPU.
BATCH_TOKENS = 65536
# A batch of at least so many tokens casts the weights once, not in every chunk. It pays from some
# 2,000 on; twice as many are surely enough.
MANY_TOKENS = 4096


def encode(
    encoder: nn.Module,
    store: Tokens,
    form: SingleTexts,
    file: Path,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """Embed texts of a store into a file that is whole or absent.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. Memory
    grows by some 50 bytes a text. Other processes have no part in it, see
    :func:`ltr.search.shards.encode_shard`.

    Args:
        encoder: ``encoder(Texts) -> [S, H]``, as
            :class:`ltr.models.encoder.text_encoder.TextEncoder`.
        store: the tokens of the texts.
        form: how they are laid out for the encoder.
        file: a ``.npy`` file; an existing one is replaced.
        rows: ``[R]`` int64, which texts, in the order of the result; None: all.

    Returns:
        ``[R, H]`` float32, read-only, mapped from the file.

    Raises:
        ValueError: if there is no text.
        OSError: if the folder is missing or the disk has no room, before more than a first batch is
            encoded.
    """
    rows = np.arange(len(store)) if rows is None else np.asarray(rows)
    # A partial file that a killed process left is overwritten.
    partial_file = file.with_name(f"{file.name}.partial")

    def allocate(dim: int) -> np.ndarray:
        return new_array(partial_file, np.float32, (len(rows), dim))

    try:
        embeddings = _fill(allocate, encode_batches(encoder, store, form, rows))
        embeddings.flush()  # type: ignore[attr-defined]  # it is a memory map
        os.replace(partial_file, file)
    finally:
        partial_file.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def encode_in_memory(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> np.ndarray:
    """Embed texts ``[R, H]`` float32 as :func:`encode` does, without a file.

    Raises:
        ValueError: if there is no text.
    """

    def allocate(dim: int) -> np.ndarray:
        return np.empty((len(rows), dim), np.float32)

    return _fill(allocate, encode_batches(encoder, store, form, rows))


def _fill(
    allocate: Callable[[int], np.ndarray], batches: Iterator[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Fill an array batch by batch. ``allocate`` makes it, of H columns: only the first batch tells
    how many those are.
    """
    embeddings: np.ndarray | None = None
    for places, embeddings_of_batch in batches:
        if embeddings is None:
            embeddings = allocate(embeddings_of_batch.shape[1])
        embeddings[places] = embeddings_of_batch
    if embeddings is None:
        raise ValueError("there must be at least one text to encode, got none")
    return embeddings


def encode_batches(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Embed texts batch by batch, longest first.

    Yields:
        Places in ``rows`` ``[n]``, and the embeddings of those texts ``[n, H]`` float32.
    """
    device = next(encoder.parameters()).device
    lengths = form.lengths(store.lengths(rows))
    batches = batches_of_places(lengths)
    for places in track(batches, "encoding", f"batches of {BATCH_TOKENS} tokens"):
        with torch.inference_mode(), in_eval_mode(encoder), ExitStack() as stack:
            ids, text_lengths, type_ids = form.lay_out(store, rows[places])
            n_tokens = len(ids)  # all texts end to end
            if n_tokens >= MANY_TOKENS:
                for part in encoder.modules():
                    # Compiled layers don't read weights that are laid out beforehand.
                    if isinstance(part, TextEncoder) and not part.options.compile:
                        stack.enter_context(cast_once(part.model))
            if type_ids is not None:
                type_ids = type_ids.to(device)
            texts = Texts(ids.to(device), text_lengths.to(device), type_ids)
            embeddings = encoder(texts).float().cpu().numpy()
        yield places, embeddings


def batches_of_places(lengths: np.ndarray) -> list[np.ndarray]:
    """The places of texts, or of pairs of texts, in batches of at most ``BATCH_TOKENS`` tokens (or
    of one text), longest first.
    """
    order = _longest_first(lengths)
    sorted_lengths = lengths[order].tolist()
    return [order[begin:end] for begin, end in chunk_spans(sorted_lengths, BATCH_TOKENS)]


def places_of_rank(
    store: Tokens, form: SingleTexts, rows: np.ndarray, rank: int, world_size: int
) -> np.ndarray:
    """Places in ``rows`` of the texts that a process embeds: every ``world_size``-th by length, so
    that all processes take equal time.
    """
    order = _longest_first(form.lengths(store.lengths(rows)))
    return order[rank::world_size]


def _longest_first(lengths: np.ndarray) -> np.ndarray:
    """The places of texts, by falling length: too little memory then shows at the first batch."""
    return np.argsort(-lengths, kind="stable")
