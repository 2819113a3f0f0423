"""Embeddings of many texts, from the token store to a memory map."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ltr.batch import Texts
from ltr.data.formats import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import TokenStore

# Tokens handed to the encoder at once: several of its chunks on a CPU, one on a GPU.
BATCH_TOKENS = 65536


def encode(encoder: nn.Module, store: TokenStore, form: SingleTexts, file: Path, rows: np.ndarray | None = None) -> np.ndarray:
    """Embed texts of a store, longest first, and write them to a file that is whole or absent.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. Memory does not grow with the texts.

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
    """
    rows = np.arange(len(store)) if rows is None else np.asarray(rows)
    if not len(rows):
        raise ValueError("there must be at least one text to encode, got none")
    device = next(encoder.parameters()).device
    lengths = form.lengths(store.lengths(rows))
    order = np.argsort(-lengths, kind="stable")  # too little memory shows at the first batch
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    training = encoder.training
    encoder.eval()
    try:
        embeddings = None
        with torch.inference_mode():
            for batch in track(_batches(order, lengths), "encoding", f"batches of {BATCH_TOKENS} tokens"):
                texts = form.texts(store, rows[batch])
                found = encoder(Texts(*(x if x is None else x.to(device) for x in texts))).float().cpu().numpy()
                if embeddings is None:
                    shape = (len(rows), found.shape[1])
                    embeddings = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
                embeddings[batch] = found
        embeddings.flush()
        os.replace(partial, file)
    finally:
        encoder.train(training)
        partial.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def _batches(order: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Cuts of the order of about ``BATCH_TOKENS`` tokens."""
    ends = np.cumsum(lengths[order])
    cuts = np.flatnonzero(np.diff(ends // BATCH_TOKENS)) + 1
    return np.split(order, cuts)
