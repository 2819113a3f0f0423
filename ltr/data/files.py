"""Files: lines to read, arrays to map, files and folders written whole or not at all."""

import errno
import fcntl
import gzip
import hashlib
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

import numpy as np

from ltr.errors import InputError, local_path

log = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # the errno of an OSError that means a full disk
DISK_FULL_TEXT = os.strerror(errno.ENOSPC)
SHORT_WRITE = re.compile("[0-9]+ requested and [0-9]+ written")
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


def seen_from(path: str | Path) -> str:
    """For errors about a path where nothing is: the folder from which it counts; empty where it is
    absolute.
    """
    return "" if Path(path).is_absolute() else f" (seen from {Path.cwd()})"


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
    local_path("the file", path)
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


def read_array(file: Path) -> np.memmap:
    """Map a ``.npy`` file into memory.

    Raises:
        InputError: if the file is missing, empty, cut short, or no array.
    """
    try:
        return map_array(file)
    except Exception as error:  # whatever a broken header makes the reader stumble over
        raise InputError(
            f"{file}: expected a whole .npy file, got an error ({error}); make it again"
        ) from None


def map_array(file: Path) -> np.memmap:
    """Map a ``.npy`` file into memory. As long as the map lives it holds a shared lock of the file,
    so that ``ltr cache`` knows it is in use.
    """
    described = np.lib.format.open_memmap(file, mode="r")
    order: Literal["C", "F"] = "F" if described.flags.fnc else "C"
    with open(file, "rb") as opened:
        lock_shared(opened)
        # The map keeps a duplicate of the descriptor, and with it the lock.
        return np.memmap(
            opened, described.dtype, "r", described.offset, described.shape, order=order
        )


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


@contextmanager
def being_written(path: Path, wait: bool = True) -> Iterator[Path]:
    """Where to write ``path`` until it is complete and renamed: a name beside it, at which nothing
    is. One process or thread has it at a time; others wait.

    What is left there in the end is removed. What a killed process has left, its lock and what it
    had written, the next one that writes ``path`` removes.

    Raises:
        BlockingIOError: without ``wait``, if another one writes it.
    """
    local_path("the output", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.tmp"
    with locked(_lock_of(path), wait):
        remove(temporary)
        try:
            yield temporary
        finally:
            remove(temporary)


def is_being_written(path: Path) -> bool:
    """Whether a process or thread is between begin and end of :func:`being_written`."""
    with suppress(FileNotFoundError), open(_lock_of(path), "rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def parts_of(path: Path) -> Path:
    """A folder beside ``path`` in which a long build keeps its finished parts, each written whole.
    A killed build leaves it, and the next one takes it over. It goes once ``path`` is there, see
    :func:`folder_once`.

    Args:
        path: what is built, or where :func:`being_written` writes it.
    """
    name = path.name.removeprefix(".").removesuffix(".tmp")
    return path.parent / f".{name}.parts"


def _lock_of(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


@contextmanager
def locked(file: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of this name; wait where another process or thread holds it. The file is there
    only meanwhile, and after a kill, which lets go of the lock.

    Raises:
        BlockingIOError: without ``wait``, if another one holds it.
    """
    while True:
        with open(file, "ab") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError as error:
                raise InputError(
                    f"{file.parent}: files can't be locked on this disk ({error.strerror}); choose a folder on another one"
                ) from None
            # Its holder has removed the file, perhaps since it was opened here. Then this is the lock
            # of no name, and another process may hold the one of a new file.
            if not has_name(opened, file):
                continue
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
                # Not only by closing the file: a process that was forked meanwhile has it open, too.
                fcntl.flock(opened, fcntl.LOCK_UN)
            return


def has_name(opened: IO[bytes], file: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), os.stat(file))
    except FileNotFoundError:
        return False


def lock_shared(opened: IO[bytes]) -> None:
    """Hold a lock of an open file that others may hold, too, until it is closed; without one where
    the disk has none.
    """
    with suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_SH)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_whole(path: str | Path, lines: Iterable[str]) -> None:
    """Write text beside ``path`` and rename it when it is complete, see :func:`being_written`."""
    path = Path(path)
    with being_written(path) as temporary:
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def folder_once(
    path: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.is_dir
) -> Path:
    """Return the folder ``path``; if it is missing or damaged, it is made first, as
    :func:`write_folder` does. Of two processes the second waits, then finds the folder of the first.

    Args:
        path: the folder.
        build: fills an empty folder.
        is_whole: whether a folder needs no making again; by default any that exists.
    """
    if is_whole(path):
        return path
    with being_written(path) as temporary:
        if not is_whole(path):
            if path.is_dir():
                log.warning("%s is damaged, or of an older version: it is made again", path)
                shutil.rmtree(path)
            _build_and_rename(temporary, path, build)
            remove(parts_of(path))
    return path


def write_new_model_folder(path: Path, build: Callable[[Path], None]) -> None:
    """As :func:`write_folder`, for a saved model; an InputError if the folder exists already."""
    what = "the folder of a saved model"
    _check_is_new(path, what)
    with being_written(path) as temporary:
        _check_is_new(path, what)  # after another process that wrote the same
        _build_and_rename(temporary, path, build)


def write_new(path: Path, write: Callable[[Path], None], what: str) -> None:
    """Let ``write`` make a file or a folder beside ``path``, and rename it when it is complete, see
    :func:`being_written`. A failure leaves nothing.

    Args:
        path: the file or the folder.
        write: makes it under the name that it gets.
        what: it is, for errors.

    Raises:
        InputError: if it exists already, or the disk is full.
    """
    _check_is_new(path, what)
    with being_written(path) as temporary:
        _check_is_new(path, what)  # after another process that wrote the same
        with _full_disk_is_told(path):
            write(temporary)
            _sync(temporary)
            os.rename(temporary, path)


def _check_is_new(path: Path, what: str) -> None:
    if os.path.lexists(path):
        raise InputError(
            f"{what} must not exist yet, got {str(path)!r}; remove it, or take another"
        )


def write_folder(path: Path, build: Callable[[Path], None]) -> None:
    """Let ``build`` fill a folder beside ``path``, and rename it when it is complete, see
    :func:`being_written`. A failure leaves no folder.

    Raises:
        InputError: if the disk is full.
    """
    with being_written(path) as temporary:
        _build_and_rename(temporary, path, build)


def _build_and_rename(temporary: Path, path: Path, build: Callable[[Path], None]) -> None:
    """Make a folder of the name ``temporary``, let ``build`` fill it, and rename it to ``path``.

    All files get the mode of a new file: safetensors writes some that no other user may read.
    """
    with _full_disk_is_told(path):
        temporary.mkdir()
        mode_of_new_files = temporary.stat().st_mode & 0o666
        build(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                file.chmod(mode_of_new_files)
        _sync(temporary)
        os.rename(temporary, path)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or all files of a folder."""
    for file in (path, *path.rglob("*")):
        if file.is_file():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())


@contextmanager
def _full_disk_is_told(path: Path) -> Iterator[None]:
    """An InputError about ``path`` for any error that says that the disk is full."""
    try:
        yield
    except BaseException as error:
        if not means_full_disk(error):
            raise
        hint = ""
        if path.is_relative_to(cache_root()):
            hint = ", or set the environment variable LTR_CACHE to a folder of another disk"
        raise InputError(f"{path}: the disk is full ({DISK_FULL_TEXT}); make room{hint}") from None


def means_full_disk(error: BaseException) -> bool:
    """Whether an error says that the disk is full, in whatever way."""
    if isinstance(error, OSError):
        # numpy raises this one where only a part of an array could be written.
        is_short_write = SHORT_WRITE.fullmatch(str(error)) is not None
        if is_short_write or error.errno in DISK_FULL:
            return True
    # safetensors raises an error of its own that has the text alone, and lance an OSError.
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
