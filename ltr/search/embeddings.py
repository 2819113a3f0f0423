"""Embeddings ``[D, H]`` float32, in memory, mapped from a file or in shards: read in spans, and
checked.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ltr.errors import InputError
from ltr.search.shard_file import Shard
from ltr.spans import RowSpans, spans

# A function from embeddings [D, H] to what a search compares, see
# :meth:`ltr.similarity.Similarity.prepare`.
Prepare = Callable[[np.ndarray], np.ndarray]

DOCS_AT_ONCE = 16384  # that are read from a memory map


class StoredEmbeddings:
    """Shards, one after the other, as one array ``[D, H]`` of float32 that stays on disk.

    A slice or an array of rows is read when it is asked for, and nothing is kept.

    Args:
        shards: whole ones, of finite numbers. There may be none.
        dim: H.

    Attributes:
        shape: D, H.
        ndim, size: as of an array.
        dtype: float16 where all shards hold halves, else float32.
    """

    ndim = 2

    def __init__(self, shards: Sequence[Shard], dim: int) -> None:
        self.shards = shards
        # [shards + 1]: shard i has the rows from _begins[i] to _begins[i + 1].
        self._begins = [0]
        for shard in shards:
            self._begins.append(self._begins[-1] + shard.count)
        self.shape = (self._begins[-1], dim)
        self.size = self.shape[0] * dim
        all_halves = bool(shards) and all(shard.dtype == np.float16 for shard in shards)
        self.dtype = np.dtype(np.float16 if all_halves else np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Rows ``[n, H]`` float32, of a slice without a step or of an array of row numbers."""
        if isinstance(rows, slice):
            return self._span(*rows.indices(len(self)))
        rows = np.asarray(rows)
        embeddings = np.empty((len(rows), self.shape[1]), np.float32)
        numbers = np.searchsorted(self._begins, rows, side="right") - 1  # of the shards
        order = np.argsort(numbers, kind="stable")
        shard_numbers, starts = np.unique(numbers[order], return_index=True)
        for number, places in zip(shard_numbers.tolist(), np.split(order, starts)[1:], strict=True):
            rows_inside = rows[places] - self._begins[number]
            embeddings[places] = self.shards[number].read(rows_inside)
        return embeddings

    def read_into(self, out: np.ndarray, span: slice) -> None:
        """Read a span of rows into an array of float32, or of :attr:`dtype`."""
        begin = 0
        for shard, rows in self._parts(span.start, span.stop):
            end = begin + rows.stop - rows.start
            shard.read_into(out[begin:end], rows)
            begin = end

    def _span(self, start: int, stop: int, step: int) -> np.ndarray:
        assert step == 1, "spans have no step"
        parts = [shard.read(rows) for shard, rows in self._parts(start, stop)]
        if not parts:
            return np.empty((0, self.shape[1]), np.float32)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Shard, slice]]:
        """The shards in which the rows from one up to another one lie, with the rows inside each."""
        number = bisect_right(self._begins, start) - 1
        while start < stop:
            begin = self._begins[number]
            end = min(stop, self._begins[number + 1])
            yield self.shards[number], slice(start - begin, end - begin)
            start = end
            number += 1

    def sum(self) -> np.ndarray:
        """The sum of all embeddings, ``[H]`` float64, by what the shards say."""
        return sum((shard.seal.total() for shard in self.shards), np.zeros(self.shape[1]))


# What is searched.
Embeddings = np.ndarray | StoredEmbeddings


def read_into(out: np.ndarray, embeddings: Embeddings, span: slice) -> None:
    """Read a span of embeddings into an array of float32, or of the numbers in which they are."""
    if isinstance(embeddings, StoredEmbeddings):
        embeddings.read_into(out, span)
    else:
        out[:] = embeddings[span]


def checked_sum(
    embeddings: Embeddings, name: str, row_numbers: np.ndarray | RowSpans | None = None
) -> np.ndarray:
    """The sum of the embeddings, ``[H]`` float64, of which all must be finite; also called for the
    check alone. Shards were checked when they were written, and say their sums.

    Args:
        embeddings: ``[D, H]``.
        name: of the embeddings, for the error.
        row_numbers: D, what the error calls the rows; None: 0, 1, ….

    Raises:
        InputError: naming the first row that is not finite.
    """
    if isinstance(embeddings, StoredEmbeddings):
        return embeddings.sum()
    total = np.zeros(embeddings.shape[1])
    for span in spans(len(embeddings), DOCS_AT_ONCE):
        is_finite = np.isfinite(embeddings[span]).all(axis=1)
        if not is_finite.all():
            place = span.start + int(is_finite.argmin())
            row_number = place if row_numbers is None else row_numbers[place]
            raise InputError(
                f"{name} must be finite, got NaN or infinity in row {row_number}; check the model that made them"
            )
        total += embeddings[span].sum(axis=0, dtype=np.float64)
    return total
