"""Embeddings of many texts, by their tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ltr.batch import Texts
from ltr.data.layouts import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import Tokens
from ltr.data.windows import mean_of_windows
from ltr.models.encoder.chunks import chunk_spans
from ltr.models.encoder.kernels.linear import cast_once
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.encoder.text_encoder import TextEncoder

CPU = torch.device("cpu")

# Tokens handed to the encoder at once, at most: several of its chunks on a CPU, one on a GPU.
BATCH_TOKENS = 65536
# A batch of at least so many tokens casts the weights once, not in every chunk. It pays from some
# 2,000 on; twice as many are surely enough.
MANY_TOKENS = 4096
TEXTS_OF_COPY = 4096  # whose embeddings come from the device together: as many as a shard has


# Places [n] of texts, and their embeddings [n, H] float32, on the host.
Part = tuple[np.ndarray, np.ndarray]


class Batch(NamedTuple):
    """Texts as they are handed to the encoder.

    Attributes:
        places: ``[n]`` int64, where their embeddings belong.
        texts: n texts, or the windows of n texts.
    """

    places: np.ndarray
    texts: Texts

    def pinned(self, device: torch.device) -> "Batch":
        """In memory from which a GPU copies while the host goes on."""
        with torch.cuda.device(device):  # a thread begins at the first one
            return self._replace(texts=_each_tensor(self.texts, Tensor.pin_memory))


class LaidOut(Sequence[Batch]):
    """Texts of a store in batches, longest first. Each is laid out when it is asked for.

    Args:
        store: the tokens of the texts.
        form: how they are laid out for the encoder.
        rows: ``[R]`` int64, which texts.
        device: of the encoder; for a GPU of CUDA batches lie in pinned memory.

    Attributes:
        n_tokens: of all texts.
    """

    def __init__(
        self,
        store: Tokens,
        form: SingleTexts,
        rows: np.ndarray,
        device: torch.device = CPU,
    ) -> None:
        assert not form.has_many_embeddings, (
            "its windows are texts of their own, see ltr.search.corpus_windows"
        )
        self._store = store
        self._form = form
        self._rows = rows
        self._device = device
        lengths = form.lengths(store.lengths(rows))
        self.n_tokens = int(lengths.sum())
        self._places = batches_of_places(lengths)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Batch:  # type: ignore[override]
        places = self._places[number]
        batch = Batch(places, self._form.lay_out(self._store, self._rows[places]))
        return batch.pinned(self._device) if self._device.type == "cuda" else batch


def encode_in_memory(
    encoder: nn.Module, store: Tokens, form: SingleTexts, rows: np.ndarray
) -> np.ndarray:
    """Embed texts of a store, in memory.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. Other
    processes have no part in it, see ``ltr.search.shards.encode_everywhere``.

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
    device = next(encoder.parameters()).device
    batches = LaidOut(store, form, rows, device)
    return in_order(encode_batches(encoder, batches), len(rows))


def in_order(parts: Iterable[Part], count: int) -> np.ndarray:
    """The embeddings ``[count, H]`` float32 of which :func:`encode_batches` has yielded all.

    Raises:
        ValueError: if there is no text.
    """
    embeddings: np.ndarray | None = None  # only the first part tells how many columns there are
    for places, embeddings_of_part in parts:
        if embeddings is None:
            embeddings = np.empty((count, embeddings_of_part.shape[1]), np.float32)
        embeddings[places] = embeddings_of_part
    if embeddings is None:
        raise ValueError("there must be at least one text to encode, got none")
    return embeddings


def encode_batches(encoder: nn.Module, batches: Sequence[Batch]) -> Iterator[Part]:
    """Embed texts batch by batch. A GPU is waited for once in some 4,096 texts.

    Yields:
        Places ``[n]``, and the embeddings of those texts ``[n, H]`` float32; of a text in windows the
        mean of theirs.
    """
    device = next(encoder.parameters()).device
    places: list[np.ndarray] = []
    embeddings: list[Tensor] = []  # of these places, on the device
    for number, batch in enumerate(track(batches, "encoding", f"batches of {BATCH_TOKENS} tokens")):
        with torch.inference_mode(), in_eval_mode(encoder), ExitStack() as stack:
            n_tokens = len(batch.texts.ids)  # all texts end to end
            if n_tokens >= MANY_TOKENS:
                for part in encoder.modules():
                    # Compiled layers don't read weights that are laid out beforehand.
                    if isinstance(part, TextEncoder) and not part.options.compile:
                        stack.enter_context(cast_once(part.model))
            # The host does not wait for a copy of pinned memory.
            texts = _each_tensor(batch.texts, lambda each: each.to(device, non_blocking=True))
            embeddings_of_batch = encoder(texts._replace(windows=None)).float()
            if texts.windows is not None:
                embeddings_of_batch = mean_of_windows(embeddings_of_batch, texts.windows)
        places.append(batch.places)
        embeddings.append(embeddings_of_batch)
        is_last = number == len(batches) - 1
        if is_last or sum(map(len, places)) >= TEXTS_OF_COPY:
            yield np.concatenate(places), _on_host(embeddings)
            places.clear()
            embeddings.clear()


def _each_tensor(texts: Texts, copied: Callable[[Tensor], Tensor]) -> Texts:
    """Copies of the tensors; what else there is, stays on the host."""
    copies: dict[str, Any] = {}
    for name, each in texts._asdict().items():
        if torch.is_tensor(each):
            copies[name] = copied(each)
    return texts._replace(**copies)


def _on_host(embeddings: Sequence[Tensor]) -> np.ndarray:
    """Embeddings of batches, ``[n, H]`` in all, once the device has computed them."""
    on_device = embeddings[0] if len(embeddings) == 1 else torch.cat(list(embeddings))
    if on_device.device.type != "cuda":
        return on_device.cpu().numpy()
    # To memory that is not pinned the copy takes as long as a small encoder for the texts.
    pinned = torch.empty(on_device.shape, pin_memory=True)
    return pinned.copy_(on_device).numpy()


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
