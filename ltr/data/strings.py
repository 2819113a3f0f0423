"""Strings on disk, end to end: written one by one, read by their number."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np

from ltr.data.files import map_array
from ltr.data.growing import GrowingArray, GrowingNumbers
from ltr.spans import spans

BLOCK = 65_536  # strings whose places are looked at together
BLOCKED = 4096  # strings that are handed on together
BUFFERED = 256  # strings that wait in memory to be written; some are whole books
IN_ORDER = 2**25  # bytes of memory for the strings that are read together in another order
OVERHEAD = 64  # bytes that a string takes beside its own
GAP = 2**15  # bytes between two strings that are read, too, as two reads take longer
PIECE = 2**22  # bytes that are read at once
COPIED = 2**16  # bytes that are copied at once
TOGETHER = 16  # strings of one length that are copied together


class Strings(Sequence[str]):
    """Strings end to end in a memory-mapped file, with their offsets.

    :meth:`between` and :meth:`in_order`, which read many, read the file and not the map, whose pages
    would stay in memory after the strings are let go.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        # As plain arrays over the maps: every slice of an np.memmap costs microseconds.
        mapped = map_array(folder / f"{name}.npy")
        self._start_in_file = mapped.offset
        self._bytes = np.asarray(mapped)
        self._buffer = self._bytes.data
        self._offsets = np.asarray(map_array(folder / f"{name}.offsets.npy"))

    def __reduce__(self) -> tuple:
        # A worker started by spawn maps the files again: it gets no copy of the arrays.
        return Strings, (self._folder, self._name)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return str(self._buffer[self._offsets[row] : self._offsets[row + 1]], "utf-8")

    def between(self, first: int, stop: int) -> list[str]:
        """The strings from ``first`` to ``stop``, read at once."""
        offsets = self._offsets[first : stop + 1]
        begin = int(offsets[0])
        with open(self._folder / f"{self._name}.npy", "rb") as file:
            file.seek(self._start_in_file + begin)
            blob = file.read(int(offsets[-1]) - begin)
        ends = pairwise((offsets - begin).tolist())
        return [blob[start:end].decode("utf-8") for start, end in ends]

    def in_order(self, order: np.ndarray) -> Iterator[bytes]:
        """The bytes of the strings of these numbers ``[N]``."""
        for strings, lengths in self._many_in_order(order, IN_ORDER):
            bounds = np.append(0, np.cumsum(lengths))
            for span in spans(len(lengths), BLOCKED):
                bounds_of_span = bounds[span.start : span.stop + 1]
                blob = strings[bounds_of_span[0] : bounds_of_span[-1]].tobytes()
                for start, end in pairwise((bounds_of_span - bounds_of_span[0]).tolist()):
                    yield blob[start:end]

    def write_in_order(self, folder: Path, order: np.ndarray) -> None:
        """Write the strings of these numbers ``[N]`` to another folder, under the same name."""
        with StringsFile(folder, self._name) as file:
            # Fewer reads of the whole file; little else is in memory where a table is written.
            for strings, lengths in self._many_in_order(order, 2 * IN_ORDER):
                file.write(strings, lengths)

    def _many_in_order(
        self, order: np.ndarray, memory: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Many strings end to end with their lengths, as many as so many bytes of memory hold; they are
        read together, in the order in which they lie in the file.
        """
        room = np.empty(0, dtype=np.uint8)  # for all of them in turn, as new memory takes time
        with open(self._folder / f"{self._name}.npy", "rb") as file:
            for span in spans(len(order), memory // OVERHEAD):
                lengths = self.lengths(order[span])
                bounds = 1 + np.flatnonzero(np.diff(np.cumsum(lengths + OVERHEAD) // memory))
                parts = zip(np.split(order[span], bounds), np.split(lengths, bounds), strict=True)
                for rows, lengths_of_rows in parts:
                    n_bytes = int(lengths_of_rows.sum())
                    if n_bytes > len(room):
                        room = np.empty(n_bytes, dtype=np.uint8)
                    strings = room[:n_bytes]
                    self._read(file.fileno(), rows, lengths_of_rows, strings)
                    yield strings, lengths_of_rows

    def _read(
        self, descriptor: int, rows: np.ndarray, lengths: np.ndarray, found: np.ndarray
    ) -> None:
        """Fill in the bytes of the strings of these numbers, by one read for those that lie near each
        other.
        """
        by_place = np.argsort(rows)
        starts = self._offsets[rows[by_place]]
        ends = starts + lengths[by_place]
        places = (np.cumsum(lengths) - lengths)[by_place]  # where they go
        is_far = starts[1:] - ends[:-1] > GAP
        is_far |= np.diff(starts // PIECE) > 0
        bounds = [0, *(1 + np.flatnonzero(is_far)).tolist(), len(rows)]
        for first, stop in pairwise(bounds):
            begin = int(starts[first])
            n_bytes = int(ends[stop - 1]) - begin
            read = os.pread(descriptor, n_bytes, self._start_in_file + begin)
            if len(read) < n_bytes:
                raise OSError(
                    f"{self._folder / self._name}.npy ended while it was read: {len(read):,} of {n_bytes:,} bytes came"
                )
            piece = np.frombuffer(read, dtype=np.uint8)
            which = slice(first, stop)
            lengths_of_piece = ends[which] - starts[which]
            _copy(piece, starts[which] - begin, lengths_of_piece, found, places[which])

    def bytes_at(self, rows: np.ndarray, start: int, width: int) -> np.ndarray:
        """``[N, width]`` bytes of the strings of these numbers ``[N]``, from byte ``start`` of each;
        zeros where a string has ended.
        """
        begins = self._offsets[rows] + start
        places = begins[:, None] + np.arange(width)
        found = self._bytes.take(places, mode="clip")
        found[places >= self._offsets[rows + 1][:, None]] = 0
        return found

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Bytes of the strings of these numbers."""
        return self._offsets[rows + 1] - self._offsets[rows]

    def hashes(self) -> np.ndarray:
        """``[N]`` int64: 64 bits of a hash of each string, equal where the strings are."""
        hashes = bytearray()
        for span in spans(len(self), BLOCK):
            for string in self.between(span.start, span.stop):
                hashes += hash_of(string)
        return np.frombuffer(hashes, dtype="<i8")

    def spans_of_bytes(self, n_bytes: int) -> list[slice]:
        """All rows in spans: each goes on to the end of the string that holds its next multiple of
        ``n_bytes``.
        """
        ends = np.arange(n_bytes, int(self._offsets[-1]) + n_bytes, n_bytes)
        bounds = np.unique(np.append(0, np.searchsorted(self._offsets, ends).clip(max=len(self))))
        return [slice(begin, end) for begin, end in pairwise(bounds.tolist())]

    @staticmethod
    def write(folder: Path, name: str, blobs: Iterable[bytes]) -> None:
        """Write strings one by one: a large corpus must not fill the memory."""
        with StringsFile(folder, name) as file:
            for blob in blobs:
                file.extend([blob])


def _copy(
    piece: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    found: np.ndarray,
    places: np.ndarray,
) -> None:
    """Copy strings from where they start in a piece to their places. Those of one length go together,
    if there are many, which takes a fraction of the time.
    """
    if len(lengths) == 1:  # far from the others
        found[places[0] : places[0] + lengths[0]] = piece
        return
    by_length = np.argsort(lengths)
    starts = starts[by_length]
    places = places[by_length]
    bounds = 1 + np.flatnonzero(np.diff(lengths[by_length]))
    for first, stop in pairwise([0, *bounds.tolist(), len(lengths)]):
        length = int(lengths[by_length[first]])
        if length and stop - first >= TOGETHER:
            for span in spans(stop - first, 1 + COPIED // length):
                windows = _windows(piece, length)[starts[first:stop][span]]
                _windows(found, length)[places[first:stop][span]] = windows
            continue
        from_to = zip(starts[first:stop].tolist(), places[first:stop].tolist(), strict=True)
        for start, place in from_to:
            found.data[place : place + length] = piece.data[start : start + length]


def _windows(buffer: np.ndarray, length: int) -> np.ndarray:
    """``[N - length + 1, length]``, from each byte on as many, without a copy."""
    shape = (len(buffer) - length + 1, length)
    return np.ndarray(shape, np.uint8, buffer, strides=(1, 1))


def hash_of(string: str) -> bytes:
    """8 bytes that are equal for equal strings, and hardly ever for others."""
    return hashlib.blake2b(string.encode(), digest_size=8).digest()


class StringsFile:
    """Strings while they are written, within a block of ``with``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = ExitStack()
        self._bytes = self._files.enter_context(GrowingArray(folder / f"{name}.npy", np.uint8))
        offsets = GrowingNumbers(folder / f"{name}.offsets.npy")
        self._offsets = self._files.enter_context(offsets)
        self._offsets.extend([0])
        self._end = 0
        self._waiting: list[bytes] = []
        self._files.push(self._write_last)

    def extend(self, blobs: list[bytes]) -> None:
        """Append a few strings."""
        self._waiting += blobs
        if len(self._waiting) >= BUFFERED:
            self._write_waiting()

    def write(self, strings: bytes | np.ndarray, lengths: np.ndarray) -> None:
        """Append strings that stand end to end, by their lengths ``[N]``."""
        self._write_waiting()
        self._write(strings, lengths)

    def _write_waiting(self) -> None:
        lengths = np.fromiter(map(len, self._waiting), np.int64, len(self._waiting))
        self._write(b"".join(self._waiting), lengths)
        self._waiting.clear()

    def _write(self, strings: bytes | np.ndarray, lengths: np.ndarray) -> None:
        self._bytes.write(strings.data if isinstance(strings, np.ndarray) else strings)
        self._offsets.extend(self._end + np.cumsum(lengths))
        self._end += len(strings)

    def _write_last(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self._write_waiting()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)  # type: ignore[arg-type]
