"""Arrays on disk that grow to a length which is known at the end only."""

from array import array
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

BUFFERED = 65_536  # numbers that wait in memory


class GrowingArray:
    """A ``.npy`` file of one axis, the same bytes as :func:`numpy.save` writes. What is written
    goes to the disk; the header is right once the block of ``with`` ends.
    """

    def __init__(self, file: Path, dtype: np.typing.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._opened = open(file, "wb")  # noqa: SIM115 (closed by close)
        self._n_bytes = 0
        self._write_header()
        self._start = self._opened.tell()

    def write(self, values: bytes | array | memoryview) -> None:
        """Append values, given as their bytes."""
        self._n_bytes += self._opened.write(values)

    def close(self) -> None:
        """Write the header; nothing can be appended any more."""
        self._opened.seek(0)
        self._write_header()
        # The header leaves room for any length, so it has not grown over the first values.
        assert self._opened.tell() == self._start
        self._opened.close()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self._n_bytes // self.dtype.itemsize,),
        }
        np.lib.format.write_array_header_1_0(self._opened, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._opened.close()


class GrowingNumbers(GrowingArray):
    """Numbers that come a few at a time: whole ones (int64), or float32."""

    def __init__(self, file: Path, dtype: type[np.int64 | np.float32] = np.int64) -> None:
        super().__init__(file, dtype)
        self._waiting: array[Any] = array("q" if dtype is np.int64 else "f")

    def extend(self, numbers: Iterable[float] | np.ndarray) -> None:
        """Append a few numbers; those of an array have the type of the file."""
        if isinstance(numbers, np.ndarray):
            self._waiting.frombytes(numbers.tobytes())
        else:
            self._waiting.extend(numbers)
        if len(self._waiting) >= BUFFERED:
            self._write_waiting()

    def close(self) -> None:
        self._write_waiting()
        super().close()

    def _write_waiting(self) -> None:
        self.write(self._waiting)
        del self._waiting[:]
