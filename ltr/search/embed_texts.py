"""Embeddings of many texts, by their tokens."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import torch
from torch import nn

from ltr.batch import Texts
from ltr.data.layouts import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import Tokens
from ltr.data.windows import mean_of_windows
from ltr.models.encoder.chunks import chunk_spans
from ltr.models.encoder.kernels.linear import cast_once
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.encoder.text_encoder import TextEncoder

# Tokens handed to the encoder at once, at most: several of its chunks on a CPU, one on a GPU.
BATCH_TOKENS = 65536
# A batch of at least so many tokens casts the weights once, not in every chunk. It pays from some
# 2,000 on; twice as many are surely enough.
MANY_TOKENS = 4096


def encode_in_memory(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> np.ndarray:
    """Embed texts of a store, in memory.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. Other
    processes have no part in it, see :func:`ltr.search.shards.encode_everywhere`.

    Args:
        encoder: ``encoder(Texts) -> [S, H]``, as
            :class:`ltr.models.encoder.text_encoder.TextEncoder`.
        store: the tokens of the texts.
        form: how they are laid out for the encoder.
        rows: ``[R]`` int64, which texts, in the order of the result.

    Returns:
        ``[R, H]`` float32.

    Raises:
        ValueError: if there is no text.
    """
    embeddings: np.ndarray | None = None  # only the first batch tells how many columns there are
    for places, embeddings_of_batch in encode_batches(encoder, store, form, rows):
        if embeddings is None:
            embeddings = np.empty((len(rows), embeddings_of_batch.shape[1]), np.float32)
        embeddings[places] = embeddings_of_batch
    if embeddings is None:
        raise ValueError("there must be at least one text to encode, got none")
    return embeddings


def encode_batches(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Embed texts batch by batch, longest first.

    Yields:
        Places in ``rows`` ``[n]``, and the embeddings of those texts ``[n, H]`` float32; of a text in
        windows the mean of theirs.
    """
    assert not form.has_many_embeddings, (
        "its windows are texts of their own, see ltr.search.corpus_windows"
    )
    device = next(encoder.parameters()).device
    lengths = form.lengths(store.lengths(rows))
    batches = batches_of_places(lengths)
    for places in track(batches, "encoding", f"batches of {BATCH_TOKENS} tokens"):
        with torch.inference_mode(), in_eval_mode(encoder), ExitStack() as stack:
            texts = form.lay_out(store, rows[places])
            n_tokens = len(texts.ids)  # all texts end to end
            if n_tokens >= MANY_TOKENS:
                for part in encoder.modules():
                    # Compiled layers don't read weights that are laid out beforehand.
                    if isinstance(part, TextEncoder) and not part.options.compile:
                        stack.enter_context(cast_once(part.model))
            type_ids = None if texts.type_ids is None else texts.type_ids.to(device)
            counts = texts.windows
            texts = Texts(
                texts.ids.to(device),
                texts.lengths.to(device),
                type_ids,
                host_lengths=texts.host_lengths,
            )
            embeddings = encoder(texts).float()
            if counts is not None:
                embeddings = mean_of_windows(embeddings, counts.to(device))
        yield places, embeddings.cpu().numpy()


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
