"""Whether results can be written where they shall lie: found out before the work that makes them."""

import os
import tempfile
from pathlib import Path

from ltr.data.disk import means_full_disk
from ltr.errors import InputError, local_path


def check_file(path: str | Path | None, subject: str) -> None:
    """Raise an InputError if a file of this name can't be written. One that is there is replaced.

    Args:
        path: of the file; None for none.
        subject: how a message begins: with the option or the place, as ``--output``.
    """
    if path is None:
        return
    check_place(path, subject)
    if os.path.exists(path) and not os.path.isfile(path):
        other = "a folder" if os.path.isdir(path) else "a device"
        raise InputError(f"{subject} must be a file, got {other}, {path}; name another one")
    check_inside(Path(path).parent, subject, Path(path))


def check_folder(path: str | Path | None, subject: str, mark: str | None = None) -> None:
    """Raise an InputError if a new folder of this name can't be made, or one is there that holds
    something else.

    Args:
        path: of the folder; None for none.
        subject: how a message begins: with the option or the place, as ``--output``.
        mark: the file that tells a folder that can be continued; None: any folder passes.
    """
    if path is None:
        return
    check_place(path, subject)
    if os.path.isdir(path):
        if mark is None:
            return
        # Another process may write the mark just now, see ltr.data.whole_files.being_written.
        others = [each for each in os.listdir(path) if not each.startswith(f".{mark}.")]
        if others and mark not in others:
            raise InputError(
                f"{subject} must be a new folder, an empty one, or one with {mark} to go on with, got {path}, which holds something else ({max(others)}); name another one"
            )
        return
    if os.path.lexists(path):
        raise InputError(f"{subject} must be a folder, got a file, {path}; name another one")
    check_inside(Path(path).parent, subject, Path(path))


def check_new_folder(path: str | Path, subject: str) -> None:
    """As :func:`check_folder`, and nothing may be there yet."""
    check_folder(path, subject)
    if os.path.lexists(path):
        raise InputError(f"{path} must be a new folder, and is there already; name another one")


def check_place(path: str | Path, subject: str) -> None:
    """Raise an InputError for an address; and for no name, which would be the working directory."""
    if str(path) == "":
        raise InputError(f"{subject} must be the name of a place, got an empty one; name one")
    local_path(subject, path)


def check_inside(folder: Path, subject: str, path: Path | None = None) -> None:
    """Raise an InputError if nothing can be written into a folder, which need not be there yet.

    Args:
        folder: the folder.
        subject: how a message begins: with the option, the place or the path.
        path: what shall lie in the folder, for the error; None: the folder is what was named.
    """
    path = folder if path is None else path
    local_path(subject, path)
    nearest = folder.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InputError(
            f"{subject} must lie in a folder, got {path}, and {nearest} is a file; choose another place"
        )
    try:
        # Rights don't tell it: root may write everywhere, and yet not in /proc.
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        if means_full_disk(error):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise InputError(
            f"{subject} must lie where something can be written, got {path}, and nothing can be in {nearest} ({error.strerror}); choose another place"
        ) from None
