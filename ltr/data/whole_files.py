"""Files and folders that are written whole or not at all, by one process at a time.

All writers make what they write beside its place (:func:`being_written`) and rename it:

* :func:`write_whole`: text, in the place of a file that is there.
* :func:`folder_once`: a folder that several processes want; who comes later takes it as it is.
* :func:`write_folder`: a folder that is not there yet.
* :func:`write_new`, :func:`write_new_model_folder`: what the user names, and must not exist yet.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ltr.data.disk import full_disk_is_told
from ltr.errors import InputError, local_path

log = logging.getLogger(__name__)

# How names end of what lies beside an output while it is written, or after a kill: no user calls a
# file or a folder so, and what is called so is removed.
UNFINISHED = ".ltr-tmp"
PARTS = ".ltr-parts"
LOCK = ".ltr-lock"


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
    temporary = path.parent / f".{path.name}{UNFINISHED}"
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
        path: what is built, or where :func:`being_written` writes it: both names give the same
            folder.
    """
    name = path.name.removeprefix(".").removesuffix(UNFINISHED)
    return path.parent / f".{name}{PARTS}"


def _lock_of(path: Path) -> Path:
    return path.parent / f".{path.name}{LOCK}"


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
                log.warning("%s is damaged: it is made again", path)
                shutil.rmtree(path)
            _build_and_rename(temporary, path, build)
            remove(parts_of(path))
    return path


def write_new_model_folder(path: Path, build: Callable[[Path], None]) -> None:
    """As :func:`write_folder`, for a saved model; an InputError if the folder exists already."""
    with _writing_new(path, "the folder of a saved model") as temporary:
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
    with _writing_new(path, what) as temporary, full_disk_is_told(path):
        write(temporary)
        _sync(temporary)
        os.rename(temporary, path)


@contextmanager
def _writing_new(path: Path, what: str) -> Iterator[Path]:
    """As :func:`being_written`, of a path that must not exist yet."""
    _check_is_new(path, what)
    with being_written(path) as temporary:
        _check_is_new(path, what)  # after another process that wrote the same
        yield temporary


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
    with full_disk_is_told(path):
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
