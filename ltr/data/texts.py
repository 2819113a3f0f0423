"""Texts with ids, on disk: a million documents cost no memory but what is read of them."""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import cached, encoded
from ltr.errors import InputError


class Record(NamedTuple):
    """One text as it comes from a source; ``where`` is what an error says of its place
    (``file:line``).
    """

    id: str
    text: str
    where: str


class Strings(Sequence[str]):
    """Strings end to end in a memory-mapped file, with their offsets."""

    def __init__(self, folder: Path, name: str) -> None:
        self._offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")
        self._bytes = np.load(folder / f"{name}.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return self._bytes[self._offsets[row] : self._offsets[row + 1]].tobytes().decode("utf-8")

    @staticmethod
    def write(folder: Path, name: str, blobs: Iterable[bytes], n_bytes: int | None = None) -> None:
        """Write strings of ``n_bytes`` bytes in all; a list may leave the number out."""
        if n_bytes is None:
            n_bytes = sum(map(len, blobs))
        offsets = array("q", [0])
        with open(
            folder / f"{name}.npy", "wb"
        ) as file:  # written through, not mapped: a large corpus must not fill the memory
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (n_bytes,)}
            )
            for blob in blobs:
                offsets.append(offsets[-1] + file.write(blob))
        np.save(folder / f"{name}.offsets.npy", np.frombuffer(offsets, dtype=np.int64))


class TextTable:
    """Texts by row, sorted by their ids as bytes: so a row number orders documents as their ids do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder.name
        self.ids = Strings(folder, "ids")
        self.texts = Strings(folder, "texts")

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, id_: str) -> int | None:
        """The row of an id, or None."""
        at = bisect_left(self.ids, id_)
        return at if at < len(self.ids) and self.ids[at] == id_ else None

    @classmethod
    def open(cls, content: str, records: Iterator[Record], kind: str) -> "TextTable":
        """Open the table of this content; read, check and write it first where it is not there.

        Args:
            content: names the content; another content must have another name.
            records: the texts in any order; only read if the table must be written.
            kind: ``document``, ``query`` or ``text``, for errors: an empty or repeated id, an empty
                text, or no text at all.
        """
        return cls(
            cached(
                "texts",
                f"texts-1 {kind} {content}",
                lambda folder: _write_table(folder, records, kind),
            )
        )


def _write_table(folder: Path, records: Iterator[Record], kind: str) -> None:
    ids = []
    places = []
    offsets = array("q", [0])
    unsorted = folder / "unsorted"
    with open(unsorted, "wb") as file:
        for id_, text, where in records:
            if not id_:
                raise InputError(f"{where}: a {kind} must have an id, got an empty one")
            if "\0" in id_ or any(map(str.isspace, id_)):
                raise InputError(
                    f"{where}: an id must not hold white space or NUL, got {id_!r}; run files could not name it"
                )
            encoded(id_, where)
            if not text.strip():
                raise InputError(
                    f"{where}: {kind} {id_!r} has an empty text; remove it, or give it a text"
                )
            ids.append(id_)
            places.append(where)
            offsets.append(offsets[-1] + file.write(encoded(text, where)))
    if not ids:
        raise InputError(f"there is no {kind} at all; at least one is needed")
    order = sorted(
        range(len(ids)), key=ids.__getitem__
    )  # code points sort as their UTF-8 bytes do; equal ids keep their order
    for first, second in pairwise(order):
        if ids[first] == ids[second]:
            raise InputError(
                f"{places[second]}: {kind} id {ids[second]!r} stands twice, first at {places[first]}"
            )
    with open(unsorted, "rb") as written:

        def blobs() -> Iterator[bytes]:
            for row in order:
                written.seek(offsets[row])
                yield written.read(offsets[row + 1] - offsets[row])

        Strings.write(folder, "texts", blobs(), offsets[-1])
    Strings.write(folder, "ids", [ids[row].encode("utf-8") for row in order])
    unsorted.unlink()


def first_of_each(records: Iterable[Record]) -> Iterator[Record]:
    """The records without those whose id has come before."""
    seen = set()
    for record in records:
        if record.id not in seen:
            seen.add(record.id)
            yield record


def beginning(text: str, letters: int) -> str:
    """The first letters of a text, in one line; a longer text ends in ``…``."""
    text = " ".join(text.split())
    return text if len(text) <= letters else f"{text[:letters]}…"


def id_of(letter: str, text: str) -> str:
    """An id for a text that has none: the letter and a hash, so equal texts share one."""
    return letter + hashlib.sha256(text.encode("utf-8")).hexdigest()[:24]
