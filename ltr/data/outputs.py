"""Whether results can be written where they shall lie: found out before the work that makes them."""

import os
import re
import tempfile
from pathlib import Path

from ltr.data.whole_files import means_full_disk
from ltr.errors import InputError, local_path

PLAIN_NAME = re.compile(r"\w[\w.+-]*")  # what may name a folder of results on every disk
LONGEST_NAME = 200  # bytes: a file has an ending, too


def check_plain_name(name: str, what: str, option: str | None = None, mend: str = "") -> None:
    """Raise an InputError for what can't name a split, a source or a data set: folders, metrics and
    columns of tables are called so.

    Args:
        name: the name.
        what: what it names, such as ``path[1]: name``.
        option: that has it.
        mend: what else to do, for the error.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise InputError(
            f"{what} must be letters, digits, and . _ + - between them, since folders are called so, got {name!r}{mend}",
            option=option,
        )
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise InputError(
            f"{what} must have at most {LONGEST_NAME} bytes, since files are called so, got {name[:40]!r}…",
            option=option,
        )


def check_file(path: str | Path | None, name: str) -> None:
    """Raise an InputError if a file of this name can't be written. One that is there is replaced.

    Args:
        path: of the file; None for none.
        name: what names it, such as ``--output``.
    """
    if path is None:
        return
    check_place(path, name)
    if os.path.exists(path) and not os.path.isfile(path):
        other = "a folder" if os.path.isdir(path) else "a device"
        raise InputError(f"{name} must be a file, got {other}, {path}; name another one")
    check_inside(Path(path).parent, name, Path(path))


def check_folder(path: str | Path | None, name: str, mark: str | None = None) -> None:
    """Raise an InputError if a new folder of this name can't be made, or one is there that holds
    something else.

    Args:
        path: of the folder; None for none.
        name: what names it, such as ``--output``.
        mark: the file by which a folder that is gone on with is known; None: of a folder that is
            there nothing is said.
    """
    if path is None:
        return
    check_place(path, name)
    if os.path.isdir(path):
        # Another process may write the mark just now, see ltr.data.whole_files.being_written.
        others = [each for each in os.listdir(path) if not each.startswith(f".{mark}.")]
        if mark is not None and others and mark not in others:
            raise InputError(
                f"{name} must be a new folder, an empty one, or one with {mark} to go on with, got {path}, which holds something else ({max(others)}); name another one"
            )
        return
    if os.path.lexists(path):
        raise InputError(f"{name} must be a folder, got a file, {path}; name another one")
    check_inside(Path(path).parent, name, Path(path))


def check_place(path: str | Path, name: str) -> None:
    """Raise an InputError for an address; and for no name, which would be the working directory."""
    if str(path) == "":
        raise InputError(f"{name} must be the name of a place, got an empty one; name one")
    local_path(name, path)


def check_inside(folder: Path, name: str, path: Path | None = None) -> None:
    """Raise an InputError if nothing can be written into a folder, which need not be there yet.

    Args:
        folder: the folder.
        name: what names it, or the path.
        path: what shall lie in the folder, for the error; None: the folder is what was named.
    """
    path = folder if path is None else path
    local_path(name, path)
    nearest = folder.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InputError(
            f"{name} must lie in a folder, got {path}, and {nearest} is a file; choose another place"
        )
    try:
        # Rights don't tell it: root may write everywhere, and yet not in /proc.
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        if means_full_disk(error):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise InputError(
            f"{name} must lie where something can be written, got {path}, and nothing can be in {nearest} ({error.strerror}); choose another place"
        ) from None
