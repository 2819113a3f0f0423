"""Files: lines to read, files and folders written whole or not at all, and the cache of derived
data.
"""

import errno
import gzip
import hashlib
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock

from ltr.errors import InputError

log = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # the errno of an OSError that means a full disk
DISK_FULL_TEXT = os.strerror(errno.ENOSPC)
SEAL = "seal"  # the file of a cached folder that describes its other files
SEALED_BYTES = 4096  # at the beginning and at the end of each file: what the seal covers
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def is_file(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        InputError: if something else has this name: a folder, a device, or a link that leads
            nowhere.
    """
    if path.is_file():
        return True
    if os.path.lexists(path):
        other = "a folder" if path.is_dir() else "a link that leads nowhere, or a device"
        raise InputError(
            f"{path}: expected a file, got {other}; remove it, or put the file in its place"
        )
    return False


def plain_or_gz(folder: Path, name: str) -> Path | None:
    """``folder/name`` or ``folder/name.gz``, whichever is there; None if neither is.

    Raises:
        InputError: if what has this name is not a file.
    """
    for file in (folder / name, folder / f"{name}.gz"):
        if is_file(file):
            return file
    return None


def blocks(path: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file (plain or ``.gz``), about ``size`` bytes at a time, each block with the
    number of its first line.

    Lines are numbered from 1. A byte order mark at the beginning is left out. With size 0 a block
    is one line.

    Raises:
        InputError: for a missing file, a folder, or a broken gzip stream (``file:line`` of the
            block that cannot be read).
    """
    number = 1
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            # The rest of the line at which read() has stopped belongs to the block.
            while block := stream.read(size) + stream.readline():
                n_lines = block.count(b"\n")
                if number == 1:
                    block = block.removeprefix(BYTE_ORDER_MARK)
                yield number, block
                number += n_lines
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: expected a file, got a folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        where = "here or further on" if size else "here"
        raise InputError(
            f"{path}:{number}: the gzip file is broken {where} ({error}); fetch or compress it again"
        ) from None


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file (plain or ``.gz``) with their numbers from 1; empty lines are left out.

    Raises:
        InputError: as :func:`blocks` does; with ``file:line`` for a NUL byte, or one that is not
            UTF-8; for a file whose lines end in ``\\r`` alone.
    """
    for number, raw in blocks(Path(path), size=0):
        if b"\0" in raw:
            column = raw.index(0) + 1
            raise InputError(
                f"{path}:{number}: text must be UTF-8, got a NUL byte at column {column}; the file is damaged, or UTF-16: save it as UTF-8"
            )
        # A first line without \n is the whole file.
        if number == 1 and b"\r" in raw.rstrip(b"\r\n") and not raw.endswith(b"\n"):
            raise InputError(
                f"{path}: lines must end in \\n or \\r\\n, got \\r alone; save the file with other line ends"
            )
        try:
            line = raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = raw[error.start]
            column = error.start + 1
            raise InputError(
                f"{path}:{number}: text must be UTF-8, got byte 0x{byte:02x} at column {column}; save the file as UTF-8"
            ) from None
        if line.strip():
            yield number, line


def encoded(text: str, where: str) -> bytes:
    r"""The text as UTF-8.

    Raises:
        InputError: for half a surrogate pair, which JSON can spell (``"\ud800"``) and UTF-8 cannot.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InputError(
            f"{where}: text must be valid Unicode, got half a surrogate pair {half!r}; remove it"
        ) from None


def read_array(file: Path) -> np.memmap:
    """Map a ``.npy`` file into memory.

    Raises:
        InputError: if the file is missing, empty, cut short, or no array.
    """
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # whatever a broken header makes the reader stumble over
        raise InputError(
            f"{file}: expected a whole .npy file, got an error ({error}); make it again"
        ) from None


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_arrays(*arrays: np.ndarray) -> str:
    """A digest of the values of arrays, end to end; their shapes are no part of it."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def write_whole(path: str | Path, lines: Iterable[str]) -> None:
    """Write text to a temporary file beside ``path`` and rename it when it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def folder_once(
    path: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.is_dir
) -> Path:
    """Return the folder ``path``; if it is missing or damaged, :func:`write_folder` makes it first.

    A killed build leaves only its temporary folder, which the next build removes. Of two processes
    the second waits, then finds the folder of the first.

    Args:
        path: the folder.
        build: fills an empty folder.
        is_whole: whether a folder needs no making again; by default any that exists.
    """
    if is_whole(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.name}.lock"):
        if not is_whole(path):
            if path.is_dir():
                log.warning("%s is damaged, or of an older version: it is made again", path)
                shutil.rmtree(path)
            # The lock is ours, so whoever made these temporary folders is gone.
            for leftover in path.parent.glob(f".{path.name}.tmp-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            write_folder(path, build)
    return path


def write_new_model_folder(path: Path, build: Callable[[Path], None]) -> None:
    """As :func:`write_folder`, for a saved model; an InputError if the folder exists already."""
    if path.exists():
        raise InputError(
            f"the folder of a saved model must not exist yet, got {str(path)!r}; remove it, or take another"
        )
    write_folder(path, build)


def write_folder(path: Path, build: Callable[[Path], None]) -> None:
    """Let ``build`` fill a temporary folder beside ``path``, and rename it when it is complete. A
    failure leaves no folder.

    All files get the mode of a new file: safetensors writes some that no other user may read.

    Raises:
        InputError: if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.tmp-"))
    try:
        new_file = temporary / "new"
        new_file.touch()
        mode = new_file.stat().st_mode
        new_file.unlink()
        build(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                file.chmod(mode)
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        temporary.chmod(0o755)
        os.rename(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not _means_full_disk(error):
            raise
        hint = ""
        if path.is_relative_to(cache_root()):
            hint = ", or set the environment variable LTR_CACHE to a folder of another disk"
        raise InputError(f"{path}: the disk is full ({DISK_FULL_TEXT}); make room{hint}") from None


def _means_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    # safetensors raises an error of its own that has the text alone.
    return DISK_FULL_TEXT in str(error)


def new_array(file: Path, dtype: np.typing.DTypeLike, shape: tuple[int, ...]) -> np.memmap:
    """A new ``.npy`` file of zeros, mapped into memory for writing, with its disk space reserved by
    :func:`reserve_space`.
    """
    array = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    reserve_space(file)
    return array


def reserve_space(file: Path) -> None:
    """Reserve the disk space of a new memory map: on a full disk, a later write to the map would
    kill the process silently.
    """
    if hasattr(os, "posix_fallocate"):  # Linux
        try:
            with open(file, "r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        except OSError as error:
            # posix_fallocate has not named the file.
            raise OSError(error.errno, error.strerror, str(file)) from None


def cache_root() -> Path:
    """Where derived data lies: ``$LTR_CACHE``, else ``ltr`` in the user's cache folder. It may be
    deleted at any time.
    """
    if ltr_cache := os.environ.get("LTR_CACHE"):
        return Path(ltr_cache)
    if user_cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(user_cache) / "ltr"
    try:
        return Path.home() / ".cache" / "ltr"
    except RuntimeError:
        raise InputError(
            "this user has no home folder for derived data; set the environment variable LTR_CACHE"
        ) from None


def cached(kind: str, content: str | bytes, build: Callable[[Path], None]) -> Path:
    """The folder of the cache that belongs to this content, filled by ``build`` if it is missing or
    damaged.

    Args:
        kind: sub-folder of the cache.
        content: everything that the result depends on, with the version of its format; its hash
            names the folder.
        build: see :func:`write_folder`.
    """
    if isinstance(content, str):
        content = content.encode()
    key = hashlib.sha256(content).hexdigest()[:32]

    def build_and_seal(folder: Path) -> None:
        build(folder)
        (folder / SEAL).write_text(_seal_of(folder))

    return folder_once(cache_root() / kind / key, build_and_seal, _is_sealed)


def _is_sealed(folder: Path) -> bool:
    """Whether the files of a folder are still those that its seal describes."""
    try:
        return (folder / SEAL).read_bytes() == _seal_of(folder).encode()
    except FileNotFoundError:
        return False


def _seal_of(folder: Path) -> str:
    """The name, the size, and a digest of both ends of every file. The seal differs once a file is
    empty, cut short or full of zeros. Of a large file only the ends are read.
    """
    lines = []
    for file in sorted(folder.iterdir()):
        if file.name == SEAL:
            continue
        with open(file, "rb") as opened:
            ends = opened.read(SEALED_BYTES)
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - SEALED_BYTES))
            ends += opened.read()
        lines.append(f"{file.name} {size} {hashlib.sha256(ends).hexdigest()}\n")
    return "".join(lines)
