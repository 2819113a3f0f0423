"""Embeddings of many texts, from the token store to a memory map."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ltr.batch import Texts
from ltr.data.cache import take_room
from ltr.data.formats import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import TokenStore
from ltr.models.packed import cuts, in_eval_mode

# Tokens handed to the encoder at once, at most: several of its chunks on a CPU, one on a GPU.
BATCH_TOKENS = 65536


def encode(encoder: nn.Module, store: TokenStore, form: SingleTexts, file: Path, rows: np.ndarray | None = None) -> np.ndarray:
    """Embed texts of a store, longest first, and write them to a file that is whole or absent.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. Memory grows by some 50 bytes a text.

    Args:
        encoder: ``encoder(Texts) -> [S, H]``, as :class:`ltr.models.text_encoder.TextEncoder`.
        store: the tokens of the texts.
        form: how they are laid out for the encoder.
        file: a ``.npy`` file; one that is there is replaced.
        rows: ``[R]`` int64, which texts, in the order of the result; None: all.

    Returns:
        ``[R, H]`` float32, read-only, mapped from the file.

    Raises:
        ValueError: if there is no text.
        OSError: if the disk has no room for the file, before anything is encoded but a first batch.
    """
    rows = np.arange(len(store)) if rows is None else np.asarray(rows)
    if not len(rows):
        raise ValueError("there must be at least one text to encode, got none")
    partial = file.with_name(f"{file.name}.partial")  # one that a killed process left is overwritten
    partial.touch()  # a folder that is missing shows now
    try:
        embeddings = None
        for places, found in encoded(encoder, store, form, rows):
            if embeddings is None:
                shape = (len(rows), found.shape[1])
                embeddings = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
                take_room(partial)
            embeddings[places] = found
        embeddings.flush()
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def encoded(
    encoder: nn.Module, store: TokenStore, form: SingleTexts, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same, batch by batch: which of the rows ``[n]``, and their embeddings ``[n, H]`` float32."""
    device = next(encoder.parameters()).device
    lengths = form.lengths(store.lengths(rows))
    order = np.argsort(-lengths, kind="stable")  # too little memory shows at the first batch
    batches = [order[begin:end] for begin, end in cuts(lengths[order].tolist(), BATCH_TOKENS)]
    for places in track(batches, "encoding", f"batches of {BATCH_TOKENS} tokens"):
        with torch.inference_mode(), in_eval_mode(encoder):
            texts = form.texts(store, rows[places])
            found = encoder(Texts(*(x if x is None else x.to(device) for x in texts))).float().cpu().numpy()
        yield places, found
