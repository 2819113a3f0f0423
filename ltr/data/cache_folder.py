"""The cache of derived data: folders that are built once for each content, and opened from then on.

An entry is the folder ``KIND/KEY``. Beside its arrays it holds two small files: ``seal`` describes
the arrays, and its time is that of the last use; ``made-of`` has a line for each data and model that
the entry was opened for. Whoever reads an entry holds shared locks of its files: of the seal while
it is opened, of each array as long as that is mapped (:func:`ltr.data.files.map_array`). Only who
holds all of them alone removes the entry (:mod:`ltr.data.cache_contents`).
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from ltr.data.files import cache_root, lock_shared
from ltr.data.outputs import check_inside
from ltr.data.whole_files import folder_once, has_name
from ltr.entries import parse_json

log = logging.getLogger(__name__)

# What is said of all data that is read, to who listens: ltr import does.
details = logging.getLogger("ltr.data.details")
details.setLevel(logging.WARNING)

T = TypeVar("T")

SEAL = "seal"  # the file of an entry that describes its other files
ORIGINS = "made-of"  # the file of an entry that says what it was made of
NOTES = "notes.json"
COUNTS = "counts.json"
SEALED_BYTES = 4096  # at the beginning and at the end of each file: what the seal covers


class Notes(NamedTuple):
    """What is to be said of what was read into an entry, whenever it is opened.

    Attributes:
        noun: what is counted, in the plural.
        n_read: how many there were.
        n_kept: how many of them are in the entry.
        left_out: which are not and why, and what else a user must know; a sentence for each kind.
    """

    noun: str
    n_read: int
    n_kept: int
    left_out: list[str]

    @property
    def counts(self) -> str:
        """``rows read: 1,204; 1,190 kept``."""
        kept = "all" if self.n_kept == self.n_read else f"{self.n_kept:,}"
        return f"{self.noun} read: {self.n_read:,}; {kept} kept"


class Origin(NamedTuple):
    """What an entry was made of, or opened for: all of it must be there for the entry to be used.

    Attributes:
        data: files, folders, other entries of the cache, or names, as ``ir_datasets:NAME``.
        model: a run, a folder or a name of a hub; None where no model is read.
    """

    data: tuple[str, ...]
    model: str | None = None


def origin_of(*data: str | Path, model: str | Path | None = None) -> Origin:
    """What an entry is made of, each file and folder by its absolute path."""
    return Origin(
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
    origin: Origin,
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
            if has_name(seal, folder / SEAL):  # else it was removed after it was opened
                _note_use(folder, origin)
                return open_folder(folder)


def keep_notes(folder: Path, notes: Notes) -> None:
    """Keep in an entry, while it is built, what is to be said of it whenever it is opened."""
    (folder / COUNTS).write_text(json.dumps(notes.counts), encoding="utf-8")
    if notes.left_out:
        (folder / NOTES).write_text(json.dumps(notes.left_out), encoding="utf-8")


def log_notes(folder: Path, source: str | Path) -> None:
    """Log what :func:`keep_notes` has kept: a warning for each kind that is left out, and the counts
    for who listens to :data:`details`.

    Args:
        folder: of the entry.
        source: what it is opened for. Other files may have the same content.
    """
    if (folder / COUNTS).exists():
        details.info("%s: %s", source, parse_json((folder / COUNTS).read_bytes()))
    if (folder / NOTES).exists():
        for note in parse_json((folder / NOTES).read_bytes()):
            log.warning("%s: %s", source, note)


def sealed_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Let ``build`` fill a folder, unless it is there and whole, see
    :func:`ltr.data.whole_files.folder_once`. The seal shows a file that was cut short, or put there
    from another folder.
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


def _note_use(folder: Path, origin: Origin) -> None:
    line = json.dumps({"data": origin.data, "model": origin.model}) + "\n"
    # A cache that others have written may be read-only.
    with suppress(OSError):
        os.utime(folder / SEAL)
        with open(folder / ORIGINS, "a+", encoding="utf-8") as file:
            file.seek(0)
            if line not in file.readlines():
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
        if file.name in (SEAL, ORIGINS) or file.is_dir():
            continue
        with open(file, "rb") as opened:
            ends = opened.read(SEALED_BYTES)
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - SEALED_BYTES))
            ends += opened.read()
        lines.append(f"{file.name} {size} {hashlib.sha256(ends).hexdigest()}\n")
    return "".join(lines)
