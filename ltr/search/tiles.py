"""The documents of an exact search as it compares them, tile by tile, on the CPU or on a GPU.

Letters of shapes: D documents of all, n of a tile, H dimensions.
"""

from collections.abc import Iterator
from functools import cached_property
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from ltr.data.progress import track
from ltr.search.embeddings import DOCS_AT_ONCE, Embeddings, read_into
from ltr.similarity import Similarity
from ltr.spans import spans

# Documents that stay on a GPU take at most this share of its memory that is free.
LARGEST_SHARE = 0.25


class Tiles:
    """The documents on the CPU. Going over them gives tiles ``[n, H]`` of DOCS_AT_ONCE, the last
    one smaller.

    Args:
        docs: ``[D, H]``: each time they are gone over, they are read where they are.
        similarity: how a query and a document are compared.
        centre: see :meth:`ltr.similarity.Similarity.prepare_in_place`.

    Attributes:
        shape: D, H.
        device: where tiles and queries are.
        on_gpu: whether that is a GPU, which computes while the host goes on.
    """

    device = torch.device("cpu")
    on_gpu = False

    def __init__(self, docs: Embeddings, similarity: Similarity, centre: np.ndarray | None) -> None:
        self.shape: tuple[int, int] = (len(docs), docs.shape[1])
        self.similarity = similarity
        self._docs = docs
        self._centre = centre

    def __iter__(self) -> Iterator[Tensor]:
        for span in self._spans():
            yield self.prepared(self._docs[span])

    def prepared(self, embeddings: np.ndarray) -> Tensor:
        """Embeddings of queries or documents as they are compared, on the device."""
        return torch.from_numpy(self.similarity.prepare(embeddings, self._centre))

    def _spans(self) -> Iterator[slice]:
        doc_spans = list(spans(self.shape[0], DOCS_AT_ONCE))
        yield from track(doc_spans, "searching", f"spans of {DOCS_AT_ONCE} documents")


class TilesOnGPU(Tiles):
    """The documents on a GPU: sent as they are stored, halves as halves, and prepared there.

    A tile is read and sent while the GPU still computes with the one before. The host waits for no
    computation: only for the place of a tile to be free again, which two tiles take in turn.

    Args:
        docs, similarity, centre: see :class:`Tiles`.
        device: the GPU.
        stay: whether the documents stay there, from the first time that all are gone over, if they
            take at most a quarter of the memory that is then free.
    """

    on_gpu = True

    def __init__(
        self,
        docs: Embeddings,
        similarity: Similarity,
        centre: np.ndarray | None,
        device: torch.device,
        stay: bool,
    ) -> None:
        super().__init__(docs, similarity, centre)
        self.device = device
        self._stay = stay
        self._keeping = Lock()
        self._kept: Tensor | None = None  # [D, H] as they are stored

    def __iter__(self) -> Iterator[Tensor]:
        if self._kept is not None:
            for span in self._spans():
                yield self._prepared_copy(self._kept[span])
            return
        # Of several threads that search at first, one keeps what it sends.
        may_keep = self._stay and self._keeping.acquire(blocking=False)
        try:
            kept = self._room_for_all() if may_keep and self._kept is None else None
            yield from self._sent(kept)
            if kept is not None:
                self._kept = kept
        finally:
            if may_keep:
                self._keeping.release()

    def prepared(self, embeddings: np.ndarray) -> Tensor:
        # torch takes no array that runs backwards.
        in_order = np.ascontiguousarray(embeddings)
        return self._prepared_copy(torch.tensor(in_order, device=self.device))

    @cached_property
    def _centre_there(self) -> Tensor | None:
        return None if self._centre is None else torch.tensor(self._centre, device=self.device)

    def _prepared_copy(self, stored: Tensor) -> Tensor:
        """Embeddings that are on the GPU, as they are compared."""
        embeddings = stored.to(torch.float32, copy=True)
        self.similarity.prepare_in_place(embeddings, self._centre_there)
        return embeddings

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float16 if self._docs.dtype == np.float16 else torch.float32

    def _room_for_all(self) -> Tensor | None:
        """Memory for all documents as they are stored; None where there is too little."""
        n_docs, dim = self.shape
        n_bytes = n_docs * dim * self._dtype.itemsize
        if n_bytes > LARGEST_SHARE * _free(self.device):
            return None
        try:
            return torch.empty(self.shape, dtype=self._dtype, device=self.device)
        except torch.OutOfMemoryError:  # another process has taken it meanwhile
            return None

    def _sent(self, kept: Tensor | None) -> Iterator[Tensor]:
        """The tiles, read and sent; also to ``kept``."""
        n_docs, dim = self.shape
        if n_docs == 0:
            return
        dtype = self._dtype
        tile_shape = (min(n_docs, DOCS_AT_ONCE), dim)
        # Two places on the host and two on the GPU, which the tiles take in turn.
        pinned = [torch.empty(tile_shape, dtype=dtype, pin_memory=True) for _ in range(2)]
        arrived = [torch.empty(tile_shape, dtype=dtype, device=self.device) for _ in range(2)]
        sent: list[torch.cuda.Event] = []  # one for each tile
        prepared: list[torch.cuda.Event] = []
        computing = torch.cuda.current_stream(self.device)
        sending = torch.cuda.Stream(self.device)
        sending.wait_stream(computing)  # which may still use the memory that was just taken
        for number, span in enumerate(self._spans()):
            n = span.stop - span.start
            read = pinned[number % 2][:n]
            stored = arrived[number % 2][:n] if kept is None else kept[span]
            if number >= 2:  # both places are free when the tile before the last one is through
                sent[number - 2].synchronize()
                sending.wait_event(prepared[number - 2])
            read_into(read.numpy(), self._docs, span)
            with torch.cuda.stream(sending):
                stored.copy_(read, non_blocking=True)
            sent.append(sending.record_event())
            computing.wait_event(sent[number])
            tile = self._prepared_copy(stored)
            prepared.append(computing.record_event())
            yield tile


def _free(device: torch.device) -> int:
    """The free memory of a GPU, in bytes."""
    n_bytes, _ = torch.cuda.mem_get_info(device)
    return n_bytes


def tiles_of(
    docs: Embeddings,
    similarity: Similarity,
    centre: np.ndarray | None,
    device: torch.device,
    *,
    stay: bool = False,
) -> Tiles:
    """The documents where they are searched: on a GPU of CUDA, else on the CPU.

    Args:
        docs, similarity, centre: see :class:`Tiles`.
        device: where.
        stay: see :class:`TilesOnGPU`.
    """
    if device.type == "cuda":
        return TilesOnGPU(docs, similarity, centre, device, stay)
    return Tiles(docs, similarity, centre)
