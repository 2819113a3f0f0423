"""What lies in the cache of derived data (:mod:`ltr.data.cache_folder`), what it was made of, and
which of it no run uses any more.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from ltr.data.cache_folder import ORIGINS, SEAL, Origin
from ltr.data.files import cache_root
from ltr.data.whole_files import (
    LOCK,
    PARTS,
    UNFINISHED,
    being_written,
    is_being_written,
    parts_of,
    remove,
)
from ltr.entries import parse_json
from ltr.errors import InputError

KEY = re.compile(r"[0-9a-f]{32}")
# What a killed build leaves beside the entries: its lock, what it had written, and finished parts.
LEFT_BY_KILL = re.compile(rf"\.([0-9a-f]{{32}})({LOCK}|{UNFINISHED}|{PARTS})")
UNKNOWN = "unknown"  # what an entry was made of whose maker was killed before it wrote ORIGINS
SECONDS_OF_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class CacheEntry:
    """An entry as it lies in the cache.

    Attributes:
        folder: where it lies. Of what a killed build has left, the names beside it are meant.
        size: bytes.
        last_used: in seconds since 1970; None for what a killed build has left.
        origins: what it was made of; empty where the process that made it was killed before it said
            so.
    """

    folder: Path
    size: int
    last_used: float | None
    origins: tuple[Origin, ...] = ()

    @property
    def kind(self) -> str:
        return self.folder.parent.name

    def days_unused(self) -> float:
        """Days since the last use."""
        return (time.time() - (self.last_used or 0)) / SECONDS_OF_DAY

    def try_remove(self) -> bool:
        """Remove the entry; False if a process builds or reads it, or has opened it since it was
        listed, or if another user owns it.
        """
        with ExitStack() as stack:
            try:
                temporary = stack.enter_context(being_written(self.folder, wait=False))
                # What a killed build has left is gone by now, but for finished parts.
                remove(parts_of(self.folder))
                if self.last_used is None or not self.folder.is_dir():
                    return True
                for file in self.folder.iterdir():
                    if file.is_dir():  # goes with the files, whose readers hold their locks
                        continue
                    opened = stack.enter_context(open(file, "r+b"))
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return False
            if self.last_used != _last_used(self.folder):
                return False
            # Gone for others at once. The end of being_written removes what has this name.
            self.folder.rename(temporary)
            return True


def _last_used(folder: Path) -> float:
    return (folder / SEAL).stat().st_mtime


class Cache:
    """What lies in the cache now, the largest first.

    Attributes:
        entries: all of them. Folders that are no entries are not looked at.

    Raises:
        InputError: if something else than a folder lies there.
    """

    def __init__(self) -> None:
        root = cache_root()
        if os.path.lexists(root) and not root.is_dir():
            raise InputError(
                f"LTR_CACHE, the folder of derived data, must be a folder, got {root}, which is a file, or a link to nothing; set LTR_CACHE to another one"
            )
        self.entries = sorted(_entries(root), key=lambda entry: -entry.size)
        self._entry_of = {
            str(entry.folder.absolute()): entry
            for entry in self.entries
            if entry.last_used is not None
        }

    def first_origins(self, entry: CacheEntry) -> list[Origin]:
        """What an entry was made of, without other entries: what these were made of instead."""
        if not entry.origins:
            return [Origin((UNKNOWN,))]
        found: dict[Origin, None] = {}  # as a set in order
        for origin in entry.origins:
            data: dict[str, None] = {}
            for source in origin.data:
                other = self._entry_of.get(source)
                if other is None:
                    data[source] = None
                    continue
                for origin_of_other in self.first_origins(other):
                    data |= dict.fromkeys(origin_of_other.data)
            found[Origin(tuple(data), origin.model)] = None
        return list(found)

    def why_unused(self, entry: CacheEntry, older_than: float | None) -> str | None:
        """Why no run uses an entry; None if one may.

        Args:
            entry: one of these.
            older_than: days without a use, after which an entry counts as unused; None: that is
                never asked.
        """
        if entry.last_used is None:
            return "left by a killed command"
        gone = self._first_gone(entry)
        if gone is not None:
            return f"gone: {gone}"
        if older_than is not None and entry.days_unused() > older_than:
            return f"not used for {entry.days_unused():.0f} days"
        return None

    def _first_gone(self, entry: CacheEntry) -> str | None:
        """What an entry can't be opened for any more; None if all is there of one of its origins."""
        missing = [self._first_missing(origin) for origin in entry.origins]
        return missing[0] if missing and None not in missing else None

    def _first_missing(self, origin: Origin) -> str | None:
        """The first source that is gone. A name that is no absolute path may be anywhere."""
        for source in (*origin.data, origin.model):
            if source is None or not os.path.isabs(source):
                continue
            entry = self._entry_of.get(source)
            if entry is not None:
                gone = self._first_gone(entry)
                if gone is not None:
                    return gone
            elif not os.path.exists(source):
                return source
        return None


def _entries(root: Path) -> Iterator[CacheEntry]:
    left: dict[Path, int] = {}  # by the folder that was to be made: bytes
    for path in root.glob("*/*"):
        match = LEFT_BY_KILL.fullmatch(path.name)
        if match:
            folder = path.with_name(match[1])
            left[folder] = left.get(folder, 0) + _size(path)
        elif KEY.fullmatch(path.name):
            with suppress(FileNotFoundError, NotADirectoryError):  # no entry, or removed just now
                yield CacheEntry(path, _size(path), _last_used(path), _read_origins(path / ORIGINS))
    for folder, size in left.items():
        is_left = parts_of(folder).exists() or not folder.exists()
        if is_left and not is_being_written(folder):
            yield CacheEntry(folder, size, None)


def _size(path: Path) -> int:
    """The bytes of all files of a folder; 0 for a lock, and for what is gone meanwhile."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total


def _read_origins(file: Path) -> tuple[Origin, ...]:
    """What stands in ``made-of``; a damaged line says nothing."""
    origins = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                said = parse_json(line)
                origins.append(Origin(tuple(map(str, said["data"])), said["model"]))
    return tuple(origins)
