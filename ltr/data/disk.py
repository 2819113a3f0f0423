"""Disks that are full, and the room of arrays that are mapped into memory."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ltr.data.files import cache_root
from ltr.errors import InputError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # the errno of an OSError that means a full disk
DISK_FULL_TEXT = os.strerror(errno.ENOSPC)
SHORT_WRITE = re.compile("[0-9]+ requested and [0-9]+ written")


@contextmanager
def full_disk_is_told(path: Path) -> Iterator[None]:
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
    # safetensors raises an error of its own that has the text alone, and others an OSError.
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
