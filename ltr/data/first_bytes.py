"""What a file is, its first bytes tell, whatever its name; and packed files are unpacked as they are
read.
"""

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from ltr.errors import InputError

SIGNATURES = {
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "Zstandard": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    "ZIP": rb"PK\x03\x04",
    "spreadsheet": rb"\xd0\xcf\x11\xe0",
    "tar": rb"(?s:.{257})ustar",
    "Parquet": rb"PAR1\x15",
    "Arrow": rb"ARROW1\0",
    "SQLite": rb"SQLite format 3\0",
    "NumPy": rb"\x93NUMPY",
    "pickle": rb"\x80[\x02-\x05]",
    "Git LFS": rb"version https://git-lfs\.github\.com/spec/",
    "PDF": rb"%PDF-\d",
    "7z": rb"7z\xbc\xaf\x27\x1c",
    "RAR": rb"Rar!\x1a\x07",
    # With a byte order mark, or two ASCII characters in a row.
    "UTF-16": rb"\xff\xfe|\xfe\xff|([\t\n\r -~]\0){2}|(\0[\t\n\r -~]){2}",
}
N_FIRST_BYTES = 262
# For errors: what is no text, and what to do with it.
NO_TEXT = {
    "gzip": "gzip, packed twice; unpack it by gunzip",
    "bzip2": "bzip2, packed twice; unpack it by bunzip2",
    "xz": "xz, packed twice; unpack it by unxz",
    "Zstandard": "Zstandard, packed twice; unpack it by zstd -d",
    "ZIP": "ZIP, or a spreadsheet; unpack it, or save the sheet as text with tabs",
    "spreadsheet": "an old spreadsheet; save the sheet as text with tabs",
    "tar": "a tar archive; unpack it by tar -xf",
    "Parquet": "Parquet; call it .parquet where such files are read, or write it as text",
    "Arrow": "Arrow; write it as text",
    "SQLite": "an SQLite database; write its table as text with tabs",
    "NumPy": "an array of NumPy; call it .npy where such files are read, or write it as text",
    "pickle": "a pickle, which could run code; write it as text",
    "Git LFS": "a pointer of Git LFS in the place of the file; fetch it by git lfs pull",
    "PDF": "PDF; write its text as text",
    "7z": "a 7z archive; unpack it by 7z x",
    "RAR": "a RAR archive; unpack it by unrar x",
    "UTF-16": "UTF-16; save it as UTF-8",
}
# What unpacks one stream. Zstandard is unpacked by a package that may be missing.
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, zlib.MAX_WBITS | 16),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
PACKED = (*DECOMPRESSORS, "Zstandard")
PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz")  # that the name of such a file may have
PACKED_BYTES = 1 << 14  # that are unpacked at once
LARGEST_WINDOW = 1 << 31  # bytes of memory that a Zstandard file may want, as of zstd --long=31


class BrokenFileError(Exception):
    """A packed file is broken, or ends too early."""


def kind_of_file(path: Path) -> str:
    """What a file is by its first bytes: a key of :data:`SIGNATURES`, or else ``"text"``, as what is
    missing, empty or a folder, too.
    """
    if not path.is_file():
        return "text"
    with open(path, "rb") as file:
        return kind_of_bytes(file.read(N_FIRST_BYTES))


def kind_of_bytes(beginning: bytes) -> str:
    """The same of the first bytes themselves.

    >>> kind_of_bytes(b"PAR1\\x15\\x04"), kind_of_bytes(b"PAR1")
    ('Parquet', 'text')
    """
    for kind, signature in SIGNATURES.items():
        if re.match(signature, beginning):
            return kind
    return "text"


def unpacked_name(name: str) -> str:
    """The name of a file without the ending of a packed one.

    >>> unpacked_name("train.tsv.GZ"), unpacked_name("train.tsv")
    ('train.tsv', 'train.tsv')
    """
    for ending in PACKED_ENDINGS:
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def unpacked(path: Path, file: IO[bytes], kind: str) -> IO[bytes]:
    """What a packed file holds, as a stream, which raises a :class:`BrokenFileError`.

    Args:
        path: of the file, for errors.
        file: itself, at its beginning.
        kind: one of :data:`PACKED`.

    Raises:
        InputError: if a package is missing.
    """
    if kind != "Zstandard":
        return io.BufferedReader(_Pieces(_unpacked_by(DECOMPRESSORS[kind], file)))
    try:
        import zstandard
    except ImportError:
        return io.BufferedReader(_Pieces(_unpacked_by_pyarrow(path, file)))
    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    new_decompressor = decompressor.decompressobj
    return io.BufferedReader(_Pieces(_unpacked_by(new_decompressor, file)))


def _unpacked_by(new_decompressor: Callable[[], Any], file: IO[bytes]) -> Iterator[bytes]:
    """Of a file of one stream, or of several with zeros between them or none."""
    decompressor = new_decompressor()
    while piece := file.read(PACKED_BYTES):
        while piece:
            if decompressor.eof:
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                decompressor = new_decompressor()
            try:
                unpacked_piece = decompressor.decompress(piece)
            except Exception as error:  # each library has its own
                raise BrokenFileError(str(error)) from None
            yield unpacked_piece
            piece = decompressor.unused_data
    if not decompressor.eof:
        raise BrokenFileError("it ends before its end-of-stream marker")


def _unpacked_by_pyarrow(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    try:
        from pyarrow import CompressedInputStream
    except ImportError:
        raise InputError(
            f"{path}: Zstandard needs another package: pip install zstandard"
        ) from None
    stream = CompressedInputStream(file, "zstd")
    while True:
        try:
            piece = stream.read(PACKED_BYTES)
        except OSError as error:
            if "too much memory" in str(error):
                raise InputError(
                    f"{path}: Zstandard with a long window (zstd --long) needs another package: pip install zstandard"
                ) from None
            raise BrokenFileError(str(error)) from None
        if not piece:
            return
        yield piece


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        n = min(len(buffer), len(self._rest))
        buffer[:n] = self._rest[:n]
        self._rest = self._rest[n:]
        return n
