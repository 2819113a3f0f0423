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
# From this many tokens on the weights are cast once for a batch: it pays from some 2,000 on.
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
    # One that a killed process left is overwritten.
    partial = file.with_name(f"{file.name}.partial")

    def on_disk(dim: int) -> np.ndarray:
        return new_array(partial, np.float32, (len(rows), dim))

    try:
        embeddings = _filled(on_disk, encode_batches(encoder, store, form, rows))
        embeddings.flush()  # type: ignore[attr-defined]  # it is a memory map
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def encode_in_memory(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> np.ndarray:
    """Embed texts ``[R, H]`` float32 as :func:`encode` does, without a file.

    Raises:
        ValueError: if there is no text.
    """

    def in_memory(dim: int) -> np.ndarray:
        return np.empty((len(rows), dim), np.float32)

    return _filled(in_memory, encode_batches(encoder, store, form, rows))


def _filled(
    make: Callable[[int], np.ndarray], batches: Iterator[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """An array made for embeddings of size H, filled batch by batch."""
    whole: np.ndarray | None = None
    for places, embeddings in batches:
        if whole is None:
            whole = make(embeddings.shape[1])
        whole[places] = embeddings
    if whole is None:
        raise ValueError("there must be at least one text to encode, got none")
    return whole


def encode_batches(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Embed texts batch by batch, longest first.

    Yields:
        Places in ``rows`` ``[n]``, and the embeddings of those texts ``[n, H]`` float32.
    """
    device = next(encoder.parameters()).device
    lengths = form.lengths(store.lengths(rows))
    order = _longest_first(lengths)
    batches = [
        order[begin:end] for begin, end in chunk_spans(lengths[order].tolist(), BATCH_TOKENS)
    ]
    for places in track(batches, "encoding", f"batches of {BATCH_TOKENS} tokens"):
        with torch.inference_mode(), in_eval_mode(encoder), ExitStack() as stack:
            ids, lengths_of, types = form.texts(store, rows[places])
            if len(ids) >= MANY_TOKENS:
                for inner in encoder.modules():
                    if isinstance(inner, TextEncoder) and not inner.options.compile:
                        stack.enter_context(cast_once(inner.model))
            texts = Texts(
                ids.to(device), lengths_of.to(device), None if types is None else types.to(device)
            )
            embeddings = encoder(texts).float().cpu().numpy()
        yield places, embeddings


def share(
    store: Tokens, form: SingleTexts, rows: np.ndarray, rank: int, world_size: int
) -> np.ndarray:
    """Places in ``rows`` of the texts that a process embeds: every ``world_size``-th by length, so
    that shares take equal time.
    """
    return _longest_first(form.lengths(store.lengths(rows)))[rank::world_size]


def _longest_first(lengths: np.ndarray) -> np.ndarray:
    """Too little memory then shows at once."""
    return np.argsort(-lengths, kind="stable")
