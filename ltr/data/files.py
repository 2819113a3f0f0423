"""Files that are read: their lines, arrays to map, digests; and where derived data lies."""

import fcntl
import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from ltr.data.first_bytes import (
    N_FIRST_BYTES,
    NO_TEXT,
    PACKED,
    PACKED_ENDINGS,
    BrokenFileError,
    kind_of_bytes,
    kind_of_file,
    unpacked,
)
from ltr.errors import InputError, local_path

log = logging.getLogger(__name__)

HUBS = ("ir_datasets:", "datasets:")  # what names of data sets begin with that are no paths
READ_AT_ONCE = 2**18  # bytes of a text file
NOTED = 2**20  # bytes between two calls of note_read
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


# Are told how many bytes more of a file are read, packed as they lie on the disk.
told_of_bytes: list[Callable[[int], None]] = []


def note_read(n_bytes: int) -> None:
    """Tell them."""
    for tell in told_of_bytes:
        tell(n_bytes)


def exists_as_file(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        InputError: if something else has this name: a folder, a device, or a link that leads
            nowhere.
    """
    if os.path.isfile(path):  # False of a name that is too long, too
        return True
    if os.path.lexists(path):
        other = "a folder" if path.is_dir() else "a link that leads nowhere, or a device"
        raise InputError(
            f"{path}: expected a file, got {other}; remove it, or put the file in its place"
        )
    return False


def seen_from(path: str | Path) -> str:
    """For errors about a path where nothing is: the folder from which it counts; empty where it is
    absolute.
    """
    return "" if Path(path).is_absolute() else f" (seen from {Path.cwd()})"


def names_in(folder: Path) -> list[str]:
    """The first names of what lies in a folder, for errors; none where it is not there."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir())[:8]


def plain_or_packed(folder: Path, name: str) -> Path | None:
    """``folder/name``, or ``folder/name.gz``, ``.zst``, ``.bz2`` or ``.xz``, whichever is there first;
    None if none is.

    Raises:
        InputError: if what has this name is not a file.
    """
    for ending in ("", *PACKED_ENDINGS):
        if exists_as_file(file := folder / f"{name}{ending}"):
            return file
    return None


def blocks(path: Path, size: int, *, whole_lines: bool = True) -> Iterator[tuple[int, bytes]]:
    """A file, plain or packed, about ``size`` bytes at a time, each block with the number of its first
    line. A block ends with the end of a line, unless the lines need not be whole.

    Whether a file is gzip, bzip2, xz or Zstandard its first bytes say, whatever its name. Lines are
    numbered from 1. A byte order mark at the beginning is left out. With size 0 a block is one line.

    Raises:
        InputError: for a missing file, a folder, or a file that holds something else than text; for
            a packed one that is broken (``file:line`` of the block that cannot be read), or needs
            a package that is not installed.
    """
    local_path("the file", path)
    number = 1
    is_first = True
    kind = "text"
    try:
        with open(path, "rb") as file:
            kind = kind_of_bytes(file.peek(N_FIRST_BYTES))
            stream: IO[bytes] = unpacked(path, file, kind) if kind in PACKED else file
            n_bytes = os.fstat(file.fileno()).st_size
            n_noted = 0  # bytes of the file
            n_since = 0  # bytes of what it holds
            # The rest of the line at which read() has stopped belongs to the block.
            while block := stream.read(size) + (stream.readline() if whole_lines else b""):
                n_lines = block.count(b"\n")
                if is_first:
                    _refuse_no_text(path, block)
                    block = block.removeprefix(BYTE_ORDER_MARK)
                    is_first = False
                yield number, block
                number += n_lines
                n_since += len(block)
                if n_since >= NOTED and not file.closed:  # pyarrow closes it at its end
                    note_read(file.tell() - n_noted)
                    n_noted = file.tell()
                    n_since = 0
            note_read(n_bytes - n_noted)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: expected a file, got a folder") from None
    except BrokenFileError as error:
        raise InputError(
            f"{path}:{number}: the {kind} file is broken here or further on ({error}); fetch or compress it again"
        ) from None


def _refuse_no_text(path: Path, beginning: bytes) -> None:
    """Raise an InputError where the first bytes are those of a file that holds no text."""
    kind = kind_of_bytes(beginning)
    if kind != "text":
        raise InputError(f"{path}: the file must hold text as UTF-8, got {NO_TEXT[kind]}")


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file (plain or packed) with their numbers from 1; empty lines are left out.

    Raises:
        InputError: as :func:`decoded_lines`.
    """
    return _not_empty(decoded_lines(path))


def numbered_lines_in(path: str | Path, first: int, block: bytes) -> Iterator[tuple[int, str]]:
    """The same of a block of it, see :func:`decoded_lines_in`."""
    return _not_empty(decoded_lines_in(path, first, block))


def _not_empty(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, line in lines:
        line = line.rstrip("\r\n")
        if line.strip():
            yield number, line


def decoded_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """All lines of a text file (plain or packed) with their ends, and with their numbers from 1.

    Raises:
        InputError: as :func:`blocks` and :func:`decoded_lines_in` do.
    """
    for first, block in text_blocks(path):
        yield from decoded_lines_in(path, first, block)


def text_blocks(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """As :func:`blocks`, for :func:`decoded_lines_in`."""
    # A packed file goes line by line: where it is broken, the lines before are good.
    size = 0 if kind_of_file(Path(path)) in PACKED else READ_AT_ONCE
    return blocks(Path(path), size)


def decoded_lines_in(path: str | Path, first: int, block: bytes) -> Iterator[tuple[int, str]]:
    """The lines of a block of a file with their ends, and with their numbers from ``first``.

    Raises:
        InputError: with ``file:line`` for a NUL byte, or one that is not UTF-8; for a file whose lines
            end in ``\\r`` alone.
    """
    # A first line without \n is the whole file.
    if first == 1 and b"\0" not in block and b"\n" not in block and b"\r" in block.rstrip(b"\r"):
        raise InputError(
            f"{path}: lines must end in \\n or \\r\\n, got \\r alone; save the file with other line ends"
        )
    try:
        text = block.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        yield from _good_lines(path, first, block)
    else:
        yield from enumerate(io.StringIO(text, newline="\n"), first)


def _good_lines(path: str | Path, first: int, block: bytes) -> Iterator[tuple[int, str]]:
    """The lines of a block, from this number on, before the one that is wrong; then the InputError."""
    for number, raw in enumerate(io.BytesIO(block), first):
        if b"\0" in raw:
            column = raw.index(0) + 1
            raise InputError(
                f"{path}:{number}: text must be UTF-8, got a NUL byte at column {column}; the file is damaged, or UTF-16: save it as UTF-8"
            )
        try:
            yield number, raw.decode()
        except UnicodeDecodeError as error:
            byte = raw[error.start]
            column = error.start + 1
            raise InputError(
                f"{path}:{number}: text must be UTF-8, got byte 0x{byte:02x} at column {column}; save the file as UTF-8"
            ) from None


def encoded(text: str, where: str) -> bytes:
    r"""The text as UTF-8.

    Raises:
        InputError: for a NUL, which JSON can spell (``"\u0000"``), and for half a surrogate pair
            (``"\ud800"``), for which UTF-8 has no bytes.
    """
    if "\0" in text:
        raise InputError(
            f"{where}: text must not hold NUL, got one after {text.index(chr(0))} characters; remove it"
        )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InputError(
            f"{where}: text must be valid Unicode, got half a surrogate pair {half!r}; remove it"
        ) from None


def map_given_array(file: Path) -> np.memmap:
    """Map a ``.npy`` file of others, or one that may be damaged, into memory.

    Raises:
        InputError: if the file is missing, empty, cut short, or no array.
    """
    kind = kind_of_file(file)
    if kind not in ("text", "NumPy", "UTF-16"):
        what = f"{kind}; unpack it" if kind in PACKED else NO_TEXT[kind]
        raise InputError(f"{file}: expected a whole .npy file, got {what}")
    try:
        return map_array(file)
    except Exception as error:  # whatever a broken header makes the reader stumble over
        raise InputError(
            f"{file}: expected a whole .npy file, got an error ({error}); make it again"
        ) from None


def map_array(file: Path) -> np.memmap:
    """Map a ``.npy`` file that this package has written into memory. As long as the map lives it holds a shared lock of the file,
    so that ``ltr cache`` knows it is in use.
    """
    described = np.lib.format.open_memmap(file, mode="r")
    flags = described.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    with open(file, "rb") as opened:
        lock_shared(opened)
        # The map keeps a duplicate of the descriptor, and with it the lock.
        return np.memmap(
            opened, described.dtype, "r", described.offset, described.shape, order=order
        )


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_arrays(*arrays: np.ndarray) -> str:
    """16 hex digits of the SHA-256 of the bytes of arrays, end to end; shapes and types are no part
    of it.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def digest_of_json(value: Any) -> str:
    """SHA-256 of a value that JSON can hold, whatever the order of its keys; 64 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def lock_shared(opened: IO[bytes]) -> None:
    """Hold a lock of an open file that others may hold, too, until it is closed; without one where
    the disk has none.
    """
    with suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_SH)


def cache_root() -> Path:
    """Where derived data lies: ``$LTR_CACHE``, else ``ltr`` in the user's cache folder. It may be
    deleted at any time.
    """
    if ltr_cache := os.environ.get("LTR_CACHE"):
        local_path("LTR_CACHE", ltr_cache)
        return Path(ltr_cache)
    if user_cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(user_cache) / "ltr"
    try:
        return Path.home() / ".cache" / "ltr"
    except RuntimeError:
        raise InputError(
            "this user has no home folder for derived data; set the environment variable LTR_CACHE"
        ) from None
