"""What makes the shards of an encoding that are missing."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch

from ltr.data.progress import tracking
from ltr.data.whole_files import being_written, is_being_written
from ltr.search.embed_texts import Batch, LaidOut, Part, encode_batches, in_order
from ltr.search.embedder import Embedder
from ltr.search.embeddings import checked_sum
from ltr.search.encoding import Encoding, TextsToEncode
from ltr.search.known_rows import Known, KnownRows
from ltr.search.numbers import overlap, to_stored
from ltr.search.shard_file import remove_unfinished, write_shard
from ltr.search.throughput import Throughput
from ltr.spans import RowSpans

log = logging.getLogger(__name__)

SECONDS_WORTH_A_LINE = 10.0  # an encoding that took less says nothing of its pace
SECONDS_BETWEEN_LOOKS = 0.5  # for the shards that other workers are at


class Worker:
    """Encodes missing shards of an encoding; others may do so at the same time.

    Args:
        encoding: what is to be made.
        embedder: what encodes.
        texts: of the encoding.
        known: embeddings of other texts by the same weights, which are taken where a text is the
            same.

    Attributes:
        throughput: of what it has encoded.
        overlap: how many of the 100 nearest texts stay the same in the stored numbers, of the first
            shard that it has encoded; None before, and for float32.
    """

    def __init__(
        self,
        encoding: Encoding,
        embedder: Embedder,
        texts: TextsToEncode,
        known: KnownRows | None = None,
    ) -> None:
        self.encoding = encoding
        self._embedder = embedder
        self._texts = texts
        self._known = known
        self.throughput = Throughput(embedder)
        self.overlap: float | None = None

    def encode(self, number: int) -> None:
        """Encode a shard, and write it whole.

        Raises:
            InputError: if an embedding is not finite.
        """
        prepared = self._prepare(number)
        self._write(prepared, self._embed(lambda: prepared))

    def encode_missing(self, share: slice = slice(None), first: int = 0) -> None:
        """Encode shards until none is missing, of all or of a share; say how far it is.

        One thread writes a finished shard while the next one is encoded. On a GPU another one
        tokenises and lays out the shard after that.

        A shard that another worker is at is left to it, and looked for again in the end: a worker
        that was killed has let go of it.

        Args:
            share: which shards.
            first: the number in the share of the shard to begin at; those before it come last.

        Raises:
            InputError: if an embedding is not finite; or on a disk without locks.
        """
        encoding = self.encoding
        remove_unfinished(encoding.folder)
        numbers = range(encoding.plan.n_shards)[share]
        in_turn = [*numbers[first:], *numbers[:first]]
        missing = [number for number in in_turn if encoding.shard(number) is None]
        n_missing = len(missing)
        noun = f"shards of {encoding.plan.rows} texts"
        with (
            tracking(n_missing, "encoding", noun, self.throughput.__str__) as report,
            ThreadPoolExecutor(1, "ltr-reads") as reader,
            ThreadPoolExecutor(1, "ltr-writes") as writer,
        ):
            while missing:
                left = set(missing)
                for number in self._made(missing, reader, writer):
                    left.remove(number)
                    report(n_missing - len(left))
                missing = [n for n in missing if n in left and encoding.shard(n) is None]
                report(n_missing - len(missing))
                if missing:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
        if self.throughput.seconds > SECONDS_WORTH_A_LINE:
            log.info("encoded %s texts: %s", f"{self.throughput.texts:,}", self.throughput)

    def _made(self, numbers: Sequence[int], reader: Executor, writer: Executor) -> Iterator[int]:
        """Make shards that nobody has made or is at, and yield the number of each written one."""
        written: Future[int] | None = None  # of the shard before
        to_make = (number for number in numbers if not self._is_there_or_taken(number))
        n_ahead = shards_ahead(self._embedder.device)
        for number, prepared in _ahead(self._prepare, to_make, reader, n_ahead):
            lock = self._lock_of(number)
            if lock is None:
                continue
            with lock:
                if self.encoding.shard(number) is not None:
                    continue
                parts = self._embed(prepared.result)
                # One at a time: memory would fill up beside a slow disk. Its error is raised here.
                finished = None if written is None else self._waited_for(written)
                shard = prepared.result()
                written = writer.submit(self._write_and_unlock, shard, parts, lock.pop_all())
            if finished is not None:
                yield finished
        if written is not None:
            yield self._waited_for(written)

    def _waited_for(self, written: Future[int]) -> int:
        """The number of a shard, once it is written. The wait for a slow disk counts as time."""
        with self.throughput.timed():
            return written.result()

    def _is_there_or_taken(self, number: int) -> bool:
        """Whether a shard needs no lock, which costs more on a network than a look."""
        if self.encoding.shard(number) is not None:
            return True
        return is_being_written(self.encoding.file(number))

    def _lock_of(self, number: int) -> ExitStack | None:
        """The lock of a shard, which is let go of when the stack is closed, by any thread; None where
        another worker has it.
        """
        lock = ExitStack()
        try:
            lock.enter_context(being_written(self.encoding.file(number), wait=False))
        except BlockingIOError:
            return None
        return lock

    def _prepare(self, number: int) -> "_PreparedShard":
        """What is done for a shard before it is encoded; for a GPU all of it, in pinned memory."""
        span = self.encoding.plan.span(number)
        rows = np.arange(span.stop - span.start)
        known = None
        if self._known is not None and self._texts.texts_between is not None:
            known = self._known.lookup(self._texts.texts_between(span.start, span.stop))
            rows = known.missing
        if len(rows) == 0:
            return _PreparedShard(number, rows, [], 0, known)
        tokens = self._texts.tokens_between(span.start, span.stop)
        device = self._embedder.device
        laid_out = LaidOut(tokens, self._embedder.form, rows, device)
        batches: Sequence[Batch] = list(laid_out) if shards_ahead(device) else laid_out
        return _PreparedShard(number, rows, batches, laid_out.n_tokens, known)

    def _embed(self, prepared: Callable[[], "_PreparedShard"]) -> list[Part]:
        """The embeddings of a shard, on the host. The wait for what is prepared counts as time."""
        with self.throughput.timed(), self._embedder.precision():
            shard = prepared()
            parts = list(encode_batches(self._embedder.tower, shard.batches))
        self.throughput.count(len(shard.rows), shard.n_tokens)
        return parts

    def _write_and_unlock(
        self, shard: "_PreparedShard", parts: Sequence[Part], lock: ExitStack
    ) -> int:
        with lock:
            return self._write(shard, parts)

    def _write(self, shard: "_PreparedShard", parts: Sequence[Part]) -> int:
        """Write a shard whole, and return its number."""
        plan = self.encoding.plan
        if shard.known is None:
            embeddings = in_order(parts, len(shard.rows))
        else:
            embeddings = shard.known.embeddings
            for places, found in parts:
                embeddings[shard.rows[places]] = found
        checked_sum(embeddings, "embeddings", RowSpans([plan.span(shard.number)]))
        stored = to_stored(embeddings, plan.numbers)
        if plan.numbers != "float32" and self.overlap is None:
            self.overlap = overlap(embeddings, stored)
        device = self._embedder.device.type
        write_shard(self.encoding.file(shard.number), stored, plan.key, shard.number, device)
        return shard.number


class _PreparedShard(NamedTuple):
    """A shard that can be encoded: of n texts those whose embeddings are not known."""

    number: int
    rows: np.ndarray  # int64, which of the n
    batches: Sequence[Batch]  # of these
    n_tokens: int  # of these
    known: Known | None


def shards_ahead(device: torch.device) -> int:
    """How many shards are tokenised and laid out while one is encoded. On a CPU none is: the encoder
    takes all cores.
    """
    return 1 if device.type == "cuda" else 0


def _ahead(
    make: Callable[[int], "_PreparedShard"], numbers: Iterable[int], thread: Executor, n_ahead: int
) -> Iterator[tuple[int, "Future[_PreparedShard]"]]:
    """Each number with what a thread makes of it, which has begun so many numbers before."""
    begun: deque[tuple[int, Future[_PreparedShard]]] = deque()
    for number in numbers:
        begun.append((number, thread.submit(make, number)))
        if len(begun) > n_ahead:
            yield begun.popleft()
    yield from begun
