"""A shard: the embeddings of some texts in one ``.npy`` file, which is whole or absent.

Behind the array stands a line of JSON, its seal: ``np.load`` does not look at it, and a shard that
was cut, belongs elsewhere or was changed can be told by it.
"""

import base64
import hashlib
import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ltr.data.whole_files import LOCK, being_written
from ltr.entries import parse_json
from ltr.search.numbers import dimension_of, to_float32


@dataclass(frozen=True)
class Seal:
    """What a shard says of itself.

    Attributes:
        encoding: the key of the encoding that it belongs to.
        number: of the shard.
        digest: SHA-256 of the bytes of the array.
        device: what made it, such as ``cpu``.
        sum: the sum of the embeddings, ``[H]`` float64 in base64.
    """

    encoding: str
    number: int
    digest: str
    device: str
    sum: str

    def total(self) -> np.ndarray:
        """The sum of the embeddings, ``[H]`` float64."""
        return np.frombuffer(base64.b64decode(self.sum), np.float64)


@dataclass(frozen=True)
class Shard:
    """A shard as it lies on disk.

    Attributes:
        file: the ``.npy`` file.
        count: n, its rows.
        dim: H.
        seal: what it says of itself.
        offset: of the first row in the file, in bytes.
        dtype: of the array.
    """

    file: Path
    count: int
    dim: int
    seal: Seal
    offset: int
    dtype: np.dtype

    @property
    def bytes_of_row(self) -> int:
        """Of an embedding as it is stored."""
        return self.dtype.itemsize * (1 if self.dtype.names is not None else self.dim)

    def read(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Rows of the shard as float32. Nothing stays open or mapped."""
        if isinstance(rows, slice):
            return to_float32(np.asarray(_map(self.file)[rows]))
        return to_float32(self._stored_rows(rows))

    def read_into(self, out: np.ndarray, rows: slice) -> None:
        """Read rows into an array of float32, or of the numbers in which they are stored."""
        stored = _map(self.file)[rows]
        out[:] = stored if stored.dtype == out.dtype else to_float32(stored)

    def _stored_rows(self, rows: np.ndarray) -> np.ndarray:
        """Scattered rows: each is read alone, which for a few is much faster than to map them."""
        size = self.bytes_of_row
        opened = os.open(self.file, os.O_RDONLY)
        try:
            parts = [os.pread(opened, size, self.offset + size * row) for row in rows.tolist()]
        finally:
            os.close(opened)
        stored = np.frombuffer(b"".join(parts), self.dtype)
        if self.dtype.names is not None:  # records of one embedding each
            return stored
        return stored.reshape(len(rows), self.dim)

    def read_stored(self) -> np.ndarray:
        """All rows, in the numbers in which they are stored."""
        return np.array(_map(self.file))

    def digest(self) -> str:
        """SHA-256 of the array as it is now; that of the seal, where nothing has changed it."""
        return hashlib.sha256(self.read_stored().tobytes()).hexdigest()


def write_shard(file: Path, stored: np.ndarray, encoding: str, number: int, device: str) -> None:
    """Write a shard beside ``file`` and rename it. Whoever writes the same shard at the same time
    writes the same bytes, and the last one to rename stays.

    Raises:
        OSError: if the disk is full, before the shard is there.
    """
    total = to_float32(stored).sum(axis=0, dtype=np.float64)
    digest = hashlib.sha256(stored.tobytes()).hexdigest()
    sum_in_base64 = base64.b64encode(total.tobytes()).decode()
    seal = Seal(encoding, number, digest, device, sum_in_base64)
    temporary = file.with_name(
        f".{file.stem}.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}.tmp"
    )
    try:
        with open(temporary, "xb") as opened:
            np.lib.format.write_array(opened, stored, allow_pickle=False)
            opened.write(json.dumps(asdict(seal)).encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def read_shard(file: Path) -> Shard:
    """Open a shard; its array is not read.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: for a file that is no whole shard; it says what is wrong.
    """
    try:
        mapped = _map(file)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"it is cut short, or no array ({error})") from None
    end = mapped.offset + mapped.nbytes
    with open(file, "rb") as opened:
        opened.seek(end)
        line = opened.read()
    try:
        seal = Seal(**parse_json(line))
        seal.total()
    except (ValueError, TypeError):
        raise ValueError("it has no seal behind its array") from None
    dim = dimension_of(mapped)
    return Shard(file, len(mapped), dim, seal, mapped.offset, mapped.dtype)


def _map(file: Path) -> np.memmap:
    return np.lib.format.open_memmap(file, mode="r")


def remove_unfinished(folder: Path) -> None:
    """Remove what killed workers have left in a folder of shards: locks that nobody holds, and what
    workers of this machine had written.
    """
    for lock in folder.glob(f".*{LOCK}"):
        file = folder / lock.name.removeprefix(".").removesuffix(LOCK)
        # Whoever gets a lock removes it in the end; a worker that is at work keeps its own.
        with suppress(BlockingIOError), being_written(file, wait=False):
            pass
    for temporary in folder.glob(f".*.{socket.gethostname()}.*.tmp"):
        pid = int(temporary.name.split(".")[-3])
        try:
            os.kill(pid, 0)  # sends no signal, but fails where there is no such process
        except ProcessLookupError:
            temporary.unlink(missing_ok=True)
        except PermissionError:  # of another user, and alive
            continue
