"""A GPU that is pretended on the CPU, for what a search sends there.

A copy is not done before somebody waits for it. What the host and the streams waited for is written
down.
"""

from contextlib import contextmanager

import torch

from ltr.search import index
from ltr.search.tiles import TilesOnGPU

FREE = 2**30  # bytes
COPY = torch.Tensor.copy_
EMPTY = torch.empty


class PretendedEvent:
    """All that a stream had to do when the event was recorded."""

    def __init__(self, stream):
        self.stream = stream
        self.n_done = len(stream.log)

    def synchronize(self):
        self.stream.catch_up(self.n_done)
        self.stream.n_known = max(self.stream.n_known, self.n_done)


class PretendedStream:
    """What it has to do, in order: copies, and waits for events of others.

    Attributes:
        log: what it was given, each with its kind.
        n_known: how much of it the host has waited for.
    """

    def __init__(self):
        self.log = []
        self.n_known = 0
        self._n_done = 0

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def wait_event(self, event):
        self.log.append(("wait", event))
        event.stream.catch_up(event.n_done)

    def record_event(self):
        return PretendedEvent(self)

    def catch_up(self, n_done):
        while self._n_done < n_done:
            kind, what = self.log[self._n_done]
            if kind == "copy":
                tensor, source = what
                COPY(tensor, source)
            self._n_done += 1


class PretendedGPU:
    """Searches by an index run on it.

    Attributes:
        computing, sending: its streams; ``sending`` is that of the last pass over documents.
        n_free: its free memory in bytes.
    """

    def __init__(self, monkeypatch):
        self.computing = PretendedStream()
        self.sending = PretendedStream()
        self.n_free = FREE
        self._inside = None  # the stream that copies are given to

        def new_stream(device):
            self.sending = PretendedStream()
            return self.sending

        @contextmanager
        def inside(stream):
            self._inside = stream
            yield
            self._inside = None

        def copy_later(tensor, source, non_blocking=False):
            if self._inside is None:
                return COPY(tensor, source)
            assert non_blocking, "a copy from pinned memory need not be waited for"
            self._inside.log.append(("copy", (tensor, source)))
            return tensor

        def empty_pinned(*shape, pin_memory=False, **options):
            return EMPTY(*shape, **options)

        monkeypatch.setattr(torch.cuda, "Stream", new_stream)
        monkeypatch.setattr(torch.cuda, "stream", inside)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.computing)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.n_free, 2 * FREE))
        monkeypatch.setattr(torch.Tensor, "copy_", copy_later)
        monkeypatch.setattr(torch, "empty", empty_pinned)

        def tiles_of(docs, similarity, centre, device, *, stay=False):
            return TilesOnGPU(docs, similarity, centre, torch.device("cpu"), stay)

        monkeypatch.setattr(index, "tiles_of", tiles_of)
