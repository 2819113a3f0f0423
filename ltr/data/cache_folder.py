"""The cache of derived data: folders that are built once for each content, what they were made of,
and which of them no run uses any more.

An entry is the folder ``KIND/KEY``. Beside its arrays it holds two small files: ``seal`` describes
the arrays, and its time is that of the last use; ``made-of`` has a line for each data and model that
the entry was opened for. Whoever reads an entry holds shared locks of its files: of the seal while
it is opened, of each array as long as that is mapped (:func:`ltr.data.files.map_array`). Only who
holds all of them alone removes the entry.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ltr.data.files import cache_root, lock_shared
from ltr.data.outputs import check_inside
from ltr.data.whole_files import (
    LOCK,
    PARTS,
    UNFINISHED,
    being_written,
    folder_once,
    has_name,
    is_being_written,
    parts_of,
    remove,
)
from ltr.entries import parse_json
from ltr.errors import InputError

log = logging.getLogger(__name__)

T = TypeVar("T")

SEAL = "seal"  # the file of an entry that describes its other files
MADE_OF = "made-of"
UNKNOWN = "unknown"  # what an entry was made of whose maker was killed before it wrote MADE_OF
NOTES = "notes.json"
SEALED_BYTES = 4096  # at the beginning and at the end of each file: what the seal covers
KEY = re.compile(r"[0-9a-f]{32}")
# What a killed build leaves beside the entries: its lock, what it had written, and finished parts.
LEFT_BY_KILL = re.compile(rf"\.([0-9a-f]{{32}})({LOCK}|{UNFINISHED}|{PARTS})")
SECONDS_OF_DAY = 24 * 60 * 60


class MadeOf(NamedTuple):
    """What an entry was made of, or opened for: all of it must be there for the entry to be used.

    Attributes:
        data: files, folders, other entries of the cache, or names, as ``ir_datasets:NAME``.
        model: a run, a folder or a name of a hub; None where no model is read.
    """

    data: tuple[str, ...]
    model: str | None = None


def made_of(*data: str | Path, model: str | Path | None = None) -> MadeOf:
    """What an entry is made of, each file and folder by its absolute path."""
    return MadeOf(
        tuple(_absolute(source) for source in data), None if model is None else _absolute(model)
    )


def _absolute(source: str | Path) -> str:
    """The absolute path of what is there; another name as it is."""
    return str(Path(source).absolute()) if os.path.exists(source) else str(source)


def cached(
    kind: str,
    content: str | bytes,
    build: Callable[[Path], None],
    open_folder: Callable[[Path], T],
    origin: MadeOf,
) -> T:
    """Open the entry of the cache that belongs to this content. ``build`` fills it first if it is
    missing or damaged.

    Args:
        kind: sub-folder of the cache.
        content: everything that the result depends on, with the version of its format; its hash
            names the folder.
        build: see :func:`ltr.data.whole_files.write_folder`.
        open_folder: maps what is in the folder, by :func:`ltr.data.files.map_array`.
        origin: what it is made of, for ``ltr cache``.
    """
    folder = entry_folder(kind, content)
    if not os.path.isdir(folder):
        check_inside(cache_root(), "LTR_CACHE, the folder of derived data,")
    while True:
        sealed_folder(folder, build)
        with ExitStack() as stack:
            try:
                seal = stack.enter_context(open(folder / SEAL, "rb"))
            except FileNotFoundError:  # ltr cache has removed it just now
                continue
            lock_shared(seal)
            if has_name(seal, folder / SEAL):  # else, too
                _note_use(folder, origin)
                return open_folder(folder)


def keep_notes(folder: Path, notes: Sequence[str]) -> None:
    """Keep in an entry, while it is built, what is to be said of it whenever it is opened."""
    if notes:
        (folder / NOTES).write_text(json.dumps(notes), encoding="utf-8")


def log_notes(folder: Path, source: str | Path) -> None:
    """Log what :func:`keep_notes` has kept, a warning each.

    Args:
        folder: of the entry.
        source: what it is opened for. Other files may have the same content.
    """
    if (folder / NOTES).exists():
        for note in parse_json((folder / NOTES).read_bytes()):
            log.warning("%s: %s", source, note)


def sealed_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Let ``build`` fill a folder, unless it is there and whole, see
    :func:`ltr.data.whole_files.folder_once`: a file that is cut short, or of another folder, is told by
    the seal.
    """

    def build_and_seal(temporary: Path) -> None:
        build(temporary)
        (temporary / SEAL).write_text(_seal_of(temporary))

    folder_once(folder, build_and_seal, _is_sealed)


def entry_folder(kind: str, content: str | bytes) -> Path:
    """Where the entry of this content lies, or would lie."""
    if isinstance(content, str):
        content = content.encode()
    return cache_root() / kind / hashlib.sha256(content).hexdigest()[:32]


def _note_use(folder: Path, origin: MadeOf) -> None:
    line = json.dumps({"data": origin.data, "model": origin.model}) + "\n"
    # A cache that others have written may be read-only.
    with suppress(OSError):
        os.utime(folder / SEAL)
        with open(folder / MADE_OF, "a+", encoding="utf-8") as file:
            file.seek(0)
            if line not in file:
                file.write(line)


def _is_sealed(folder: Path) -> bool:
    """Whether the files of a folder are still those that its seal describes."""
    try:
        return (folder / SEAL).read_bytes() == _seal_of(folder).encode()
    except FileNotFoundError:
        return False


def _seal_of(folder: Path) -> str:
    """The name, the size, and a digest of both ends of every file. The seal differs once a file is
    empty, cut short or full of zeros. Of a large file only the ends are read. A folder inside is no
    part of it: what lies there was made of the entry later.
    """
    lines = []
    for file in sorted(folder.iterdir()):
        if file.name in (SEAL, MADE_OF) or file.is_dir():
            continue
        with open(file, "rb") as opened:
            ends = opened.read(SEALED_BYTES)
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - SEALED_BYTES))
            ends += opened.read()
        lines.append(f"{file.name} {size} {hashlib.sha256(ends).hexdigest()}\n")
    return "".join(lines)


@dataclass(frozen=True)
class Entry:
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
    origins: tuple[MadeOf, ...] = ()

    @property
    def kind(self) -> str:
        return self.folder.parent.name

    def days_unused(self) -> float:
        """Days since the last use."""
        return (time.time() - (self.last_used or 0)) / SECONDS_OF_DAY

    def remove(self) -> bool:
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
            # Gone for others at once. Its files are removed when the lock is let go.
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

    def sources(self, entry: Entry) -> list[MadeOf]:
        """What an entry was made of, without other entries: what these were made of instead."""
        if not entry.origins:
            return [MadeOf((UNKNOWN,))]
        found: dict[MadeOf, None] = {}  # as a set in order
        for origin in entry.origins:
            data: dict[str, None] = {}
            for source in origin.data:
                other = self._entry_of.get(source)
                if other is None:
                    data[source] = None
                    continue
                for origin_of_other in self.sources(other):
                    data |= dict.fromkeys(origin_of_other.data)
            found[MadeOf(tuple(data), origin.model)] = None
        return list(found)

    def why_unused(self, entry: Entry, older_than: float | None) -> str | None:
        """Why no run uses an entry; None if one may.

        Args:
            entry: the entry.
            older_than: days without a use, after which an entry counts as unused; None: that is
                never asked.
        """
        if entry.last_used is None:
            return "left by a killed command"
        gone = []
        for origin in entry.origins:
            missing = self._first_missing(origin)
            if missing is None:
                break
            gone.append(missing)
        else:
            if gone:  # for each origin one
                return f"gone: {gone[0]}"
        if older_than is not None and entry.days_unused() > older_than:
            return f"not used for {entry.days_unused():.0f} days"
        return None

    def _first_missing(self, origin: MadeOf) -> str | None:
        """The first source that is gone. A name that is no absolute path may be anywhere."""
        for source in (*origin.data, origin.model):
            if source is None or not os.path.isabs(source):
                continue
            entry = self._entry_of.get(source)
            if entry is None:
                if not os.path.exists(source):
                    return source
            elif entry.origins:
                missing = [self._first_missing(other) for other in entry.origins]
                if None not in missing:
                    return missing[0]
        return None


def _entries(root: Path) -> Iterator[Entry]:
    left: dict[Path, int] = {}  # by the folder that was to be made: bytes
    for path in root.glob("*/*"):
        match = LEFT_BY_KILL.fullmatch(path.name)
        if match:
            folder = path.with_name(match[1])
            left[folder] = left.get(folder, 0) + _size(path)
        elif KEY.fullmatch(path.name):
            with suppress(FileNotFoundError):  # no entry, or removed just now
                yield Entry(path, _size(path), _last_used(path), _read_origins(path / MADE_OF))
    for folder, size in left.items():
        is_left = parts_of(folder).exists() or not folder.exists()
        if is_left and not is_being_written(folder):
            yield Entry(folder, size, None)


def _size(path: Path) -> int:
    """The bytes of all files of a folder; 0 for a lock, and for what is gone meanwhile."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total


def _read_origins(file: Path) -> tuple[MadeOf, ...]:
    """What stands in ``made-of``; a damaged line says nothing."""
    origins = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                said = parse_json(line)
                origins.append(MadeOf(tuple(map(str, said["data"])), said["model"]))
    return tuple(origins)
