"""Embeddings of many texts, from the token store to a memory map."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ltr.batch import Texts
from ltr.data.files import new_array
from ltr.data.formats import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import Tokens
from ltr.models.encoder.chunks import cuts
from ltr.models.encoder.linear import cast_once
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.search.ranks import barrier, by_rank_0, rank, world_size

# Tokens handed to the encoder at once, at most: several of its chunks on a CPU, one on a GPU.
BATCH_TOKENS = 65536
# Laying out the weights takes longer than it saves for 1,000 tokens, and no longer for 2,000.
MANY_TOKENS = 4096


def encode(
    encoder: nn.Module,
    store: Tokens,
    form: SingleTexts,
    file: Path,
    rows: np.ndarray | None = None,
    *,
    alone: bool = False,
) -> np.ndarray:
    """Embed texts of a store into a file that is whole or absent.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. Memory grows by some 50 bytes a text.

    Under several processes each embeds its share. All must call it, with the same arguments and a file that all can reach; but
    ``alone``, a process embeds all the rows that it asks for, into a file of its own.

    Args:
        encoder: ``encoder(Texts) -> [S, H]``, as :class:`ltr.models.encoder.text_encoder.TextEncoder`.
        store: the tokens of the texts.
        form: how they are laid out for the encoder.
        file: a ``.npy`` file; an existing one is replaced.
        rows: ``[R]`` int64, which texts, in the order of the result; None: all.
        alone: whether the other processes have no part in it.

    Returns:
        ``[R, H]`` float32, read-only, mapped from the file.

    Raises:
        ValueError: if there is no text.
        OSError: if the folder is missing or the disk has no room, before more than a first batch is encoded.
    """
    rows = np.arange(len(store)) if rows is None else np.asarray(rows)
    if not len(rows):
        raise ValueError("there must be at least one text to encode, got none")
    partial = file.with_name(f"{file.name}.partial")  # one that a killed process left is overwritten
    number, count = (0, 1) if alone else (rank(), world_size())
    by_first: Callable[[Callable[[], None]], None] = (lambda make: make()) if alone else by_rank_0
    batches = encode_batches(encoder, store, form, rows, number, count)
    try:
        first = list(islice(batches, 1))
        by_first(lambda: new_array(partial, np.float32, (len(rows), first[0][1].shape[1])).flush())
        embeddings = np.load(partial, mmap_mode="r+")
        for places, found in chain(first, batches):
            embeddings[places] = found
        embeddings.flush()
        if not alone:
            barrier()
        by_first(lambda: os.replace(partial, file))
    finally:
        if number == 0:
            partial.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def encode_batches(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Embed texts batch by batch, longest first.

    Of several ranks each embeds its :func:`share`.

    Yields:
        Places in ``rows`` ``[n]``, and the embeddings of those texts ``[n, H]`` float32.
    """
    device = next(encoder.parameters()).device
    order = share(store, form, rows, rank, world_size)
    if not len(order):
        return
    lengths = form.lengths(store.lengths(rows))
    batches = [order[begin:end] for begin, end in cuts(lengths[order].tolist(), BATCH_TOKENS)]
    for places in track(batches, "encoding", f"batches of {BATCH_TOKENS} tokens"):
        with torch.inference_mode(), in_eval_mode(encoder), ExitStack() as stack:
            ids, lengths_of, types = form.texts(store, rows[places])
            for inner in encoder.modules() if len(ids) >= MANY_TOKENS else ():
                if isinstance(inner, TextEncoder) and not inner.options.compile:
                    stack.enter_context(cast_once(inner.model))
            texts = Texts(ids.to(device), lengths_of.to(device), None if types is None else types.to(device))
            found = encoder(texts).float().cpu().numpy()
        yield places, found


def share(store: Tokens, form: SingleTexts, rows: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """Places in ``rows`` of the texts that a rank embeds: every ``world_size``-th by length, so that shares take equal time."""
    lengths = form.lengths(store.lengths(rows))
    return np.argsort(-lengths, kind="stable")[rank::world_size]  # longest first: too little memory shows at once
