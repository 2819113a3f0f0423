"""Folders that are whole or absent: what is costly to make is made once, by one process, and read by all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cache_root() -> Path:
    """Where derived data lies: ``$LTR_CACHE``, or ``ltr`` in the user's cache folder. It may be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LTR_CACHE") or Path(home) / "ltr")


def folder_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Return ``path``; if it is not there, let ``build`` fill a temporary folder beside it and rename that when it is whole.

    A killed build leaves only a temporary folder, which the next one removes; two processes wait for each other, and the
    second finds the folder of the first.

    Args:
        path: the folder to return.
        build: called with an empty folder to fill.
    """
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.name}.lock"):
        if path.is_dir():
            return path
        for dead in path.parent.glob(f".{path.name}.tmp-*"):  # the lock is ours, so its maker is gone
            shutil.rmtree(dead, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.tmp-"))
        try:
            build(temporary)
            for file in temporary.iterdir():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
            temporary.chmod(0o755)
            os.rename(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return path


def take_room(file: Path) -> None:
    """Take the blocks of a new memory map now: on a full disk, writing to it would kill the process without a word.

    Raises:
        OSError: if the disk has no room.
    """
    if hasattr(os, "posix_fallocate"):  # Linux
        with open(file, "r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
