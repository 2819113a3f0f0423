"""Texts with ids, on disk: a million documents cost no memory but what is read of them."""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ltr.data.files import cached, encoded
from ltr.errors import InputError


class Record(NamedTuple):
    """One text as it comes from a source."""

    id: str
    text: str
    where: str  # its place in the source, for errors: file:line


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
        """Write strings that have ``n_bytes`` bytes in all; for a list the number may be left
        out.
        """
        if n_bytes is None:
            n_bytes = sum(map(len, blobs))
        offsets = array("q", [0])
        header = {"descr": "|u1", "fortran_order": False, "shape": (n_bytes,)}
        # Written to the file one by one, not to a map: a large corpus must not fill the memory.
        with open(folder / f"{name}.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for blob in blobs:
                offsets.append(offsets[-1] + file.write(blob))
        np.save(folder / f"{name}.offsets.npy", np.frombuffer(offsets, dtype=np.int64))


class TextTable:
    """Texts with their ids, sorted by id as bytes: so a row number orders documents as their ids
    do.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder.name
        self.ids = Strings(folder, "ids")
        self.texts = Strings(folder, "texts")

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, id_: str) -> int | None:
        """The row of an id, or None."""
        row = bisect_left(self.ids, id_)
        if row < len(self.ids) and self.ids[row] == id_:
            return row
        return None

    @classmethod
    def open(cls, content: str, records: Iterator[Record], kind: str) -> "TextTable":
        """Open the table of this content; read, check and write it first where it is not there.

        Args:
            content: names the content; another content must have another name.
            records: the texts in any order; only read if the table must be written.
            kind: ``document``, ``query`` or ``text``, for errors.

        Raises:
            InputError: for an empty or repeated id, an empty text, or no text at all.
        """
        folder = cached(
            "texts",
            f"texts-1 {kind} {content}",
            lambda folder: _write_table(folder, records, kind),
        )
        return cls(folder)


def _write_table(folder: Path, records: Iterator[Record], kind: str) -> None:
    """Write the texts as they come, then once more in the order of their ids."""
    ids = []
    places = []  # of the records, for errors
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
            encoded(id_, where)  # only to refuse what is not valid Unicode
            if not text.strip():
                raise InputError(
                    f"{where}: {kind} {id_!r} has an empty text; remove it, or give it a text"
                )
            ids.append(id_)
            places.append(where)
            offsets.append(offsets[-1] + file.write(encoded(text, where)))
    if not ids:
        raise InputError(f"there is no {kind} at all; at least one is needed")
    # Code points sort as their UTF-8 bytes do. Equal ids keep their order, so the error names the
    # first one as the first.
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for first, second in pairwise(order):
        if ids[first] == ids[second]:
            raise InputError(
                f"{places[second]}: {kind} id {ids[second]!r} stands twice, first at {places[first]}"
            )
    with open(unsorted, "rb") as file_of_texts:
        texts = _pieces(file_of_texts, offsets, order)
        Strings.write(folder, "texts", texts, n_bytes=offsets[-1])
    Strings.write(folder, "ids", [ids[number].encode("utf-8") for number in order])
    unsorted.unlink()


def _pieces(file: BinaryIO, offsets: Sequence[int], order: Iterable[int]) -> Iterator[bytes]:
    """Pieces of a file in this order; piece n stands from offsets[n] to offsets[n + 1]."""
    for number in order:
        file.seek(offsets[number])
        yield file.read(offsets[number + 1] - offsets[number])


def first_of_each(records: Iterable[Record]) -> Iterator[Record]:
    """The first record of each id."""
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
