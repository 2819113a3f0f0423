"""Texts with ids, on disk: a million documents cost no memory but what is read of them."""

import hashlib
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ltr.data.cache_folder import cached, keep_notes, log_notes, origin_of
from ltr.data.files import encoded, map_array
from ltr.data.growing import GrowingNumbers
from ltr.data.string_order import order_of, rows_among
from ltr.data.strings import Strings, StringsFile
from ltr.errors import InputError

INSTRUCTIONS = "instructions"


class Record(NamedTuple):
    """One text as it comes from a source."""

    id: str
    text: str
    source: str  # a file, for errors
    line: int  # of the file, or another number that leads to the text
    instruction: Any = ""  # of a query that has one of its own; checked when the table is written

    @property
    def where(self) -> str:
        """Its place, for errors: file:line."""
        return f"{self.source}:{self.line}"

    @property
    def is_empty(self) -> bool:
        """Whether the text has nothing but white space."""
        return not self.text or self.text.isspace()


class TextTable:
    """Texts with their ids, sorted by id as bytes: so a row number orders documents as their ids
    do.

    Args:
        folder: where they lie.
        instruction: of the queries that have none of their own; empty: they have none.

    Attributes:
        key: of the texts.
        read_key: as ``key``, and of the instruction that was given here.
        instructions: of queries, empty for those without; None where none has one.
    """

    def __init__(self, folder: Path, instruction: str = "") -> None:
        self.folder = folder
        self.key = folder.name
        self.read_key = self.key
        self.ids = Strings(folder, "ids")
        self.texts = Strings(folder, "texts")
        own: Strings | None = None
        if (folder / f"{INSTRUCTIONS}.npy").exists():
            own = Strings(folder, INSTRUCTIONS)
        self.instructions: Strings | FilledInstructions | None = own
        if instruction:
            self.instructions = FilledInstructions(own, instruction, len(self))
            digest = hashlib.sha256(encoded(instruction, "instruction")).hexdigest()
            self.read_key = f"{self.key} {digest[:32]}"

    def __len__(self) -> int:
        return len(self.ids)

    def instruction(self, row: int) -> str:
        """The instruction of a query; empty where it has none of its own."""
        return "" if self.instructions is None else self.instructions[row]

    def with_instruction(self, instruction: str) -> "TextTable":
        """The same texts, with an instruction for those that have none of their own."""
        return TextTable(self.folder, instruction)

    def text_hashes(self) -> np.ndarray:
        """``[N]`` int64: 64 bits of a hash of each text, equal where the texts are; cached on disk."""
        return cached(
            "text-hashes",
            f"text-hashes-1 {self.key}",
            lambda folder: np.save(folder / "hashes.npy", self.texts.hashes()),
            lambda folder: np.asarray(map_array(folder / "hashes.npy")),
            origin_of(self.folder),
        )

    def row(self, id_: str) -> int | None:
        """The row of an id, or None."""
        row = int(self.rows([id_])[0])
        return None if row < 0 else row

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """``[N]`` int64: the row of each id, -1 where there is none. Many together take a fraction
        of the time of one by one.
        """
        distinct = list(dict.fromkeys(ids))
        blobs = [id_.encode("utf-8", errors="surrogatepass") for id_ in distinct]
        row_of_id = dict(zip(distinct, rows_among(self.ids, blobs).tolist(), strict=True))
        return np.fromiter(map(row_of_id.__getitem__, ids), dtype=np.int64, count=len(ids))

    @classmethod
    def open(
        cls,
        content: str,
        records: Iterator[Record],
        kind: str,
        source: str | Path = "texts in memory",
        *,
        leave_out_empty: bool = False,
    ) -> "TextTable":
        """Open the table of this content; read, check and write it first where it is not there.

        Args:
            content: names the content; another content must have another name.
            records: the texts in any order; only read if the table must be written.
            kind: ``document``, ``query`` or ``text``, for errors.
            source: where the records come from, for errors and for ``ltr cache``.
            leave_out_empty: whether empty texts are left out, with a warning; they are refused
                elsewhere.

        An id that stands again with the same text counts once, with a warning.

        Raises:
            InputError: for an empty id, one with two texts, an empty text, one with NUL or of no valid
                Unicode, or no text at all.
        """

        def open_table(folder: Path) -> TextTable:
            log_notes(folder, source)
            return cls(folder)

        return cached(
            "texts",
            f"texts-1 {kind} {content}",
            lambda folder: _write_table(folder, records, kind, source, leave_out_empty),
            open_table,
            origin_of(source),
        )


class FilledInstructions(Sequence[str]):
    """The instructions of the texts of a table: their own, and one for those that have none.

    Args:
        own: by row; None where no text has one.
        instruction: for the others.
        count: of the texts.
    """

    def __init__(self, own: Strings | None, instruction: str, count: int) -> None:
        self._own = own
        self._instruction = instruction
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < self._count:
            raise IndexError(f"there are {self._count} texts, got {row}")
        own = "" if self._own is None else self._own[row]
        return own or self._instruction

    def between(self, first: int, stop: int) -> list[str]:
        """Those of the texts from ``first`` to ``stop``."""
        if self._own is None:
            return [self._instruction] * (stop - first)
        return [own or self._instruction for own in self._own.between(first, stop)]


def _write_table(
    folder: Path, records: Iterator[Record], kind: str, source: str | Path, leave_out_empty: bool
) -> None:
    """Write the texts as they come, then once more in the order of their ids."""
    unsorted = folder / "unsorted"
    unsorted.mkdir()
    empty: list[Record] = []  # filled while the others are written
    notes = []
    if leave_out_empty:
        records = _with_text(records, empty)
    places = _write_unsorted(unsorted, records, kind)
    if empty:
        notes.append(
            f"{len(empty)} texts are empty and left out, first that of {kind} {empty[0].id!r}"
        )
    ids = Strings(unsorted, "ids")
    if not len(ids):
        raise InputError(f"{source}: there is no {kind} at all; at least one is needed")
    order, repeat = order_of(ids)
    if repeat:
        n_before = len(order)
        order = _once_each(unsorted, order, places, kind)
        notes.append(
            f"{n_before - len(order)} times a {kind} stands again with the same text and counts once, first {ids[repeat.second]!r}"
        )
    Strings.write(folder, "ids", ids.in_order(order))
    Strings.write(folder, "texts", Strings(unsorted, "texts").in_order(order))
    if (unsorted / f"{INSTRUCTIONS}.npy").exists():
        Strings.write(folder, INSTRUCTIONS, Strings(unsorted, INSTRUCTIONS).in_order(order))
    shutil.rmtree(unsorted)
    keep_notes(folder, notes)


def _with_text(records: Iterator[Record], empty: list[Record]) -> Iterator[Record]:
    """The records that have a text; the others are appended to ``empty``."""
    for record in records:
        if record.is_empty:
            empty.append(record)
        else:
            yield record


def _once_each(folder: Path, order: np.ndarray, places: "_Places", kind: str) -> np.ndarray:
    """The order of texts without those whose id has come before.

    Args:
        folder: of the texts as they came.
        order: by id; equal ids as they came.
        places: of the texts, for errors.
        kind: of the texts, for errors.

    Raises:
        InputError: if an id has two texts, or a query two instructions.
    """
    ids = Strings(folder, "ids")
    columns = [Strings(folder, "texts")]
    if (folder / f"{INSTRUCTIONS}.npy").exists():
        columns.append(Strings(folder, INSTRUCTIONS))
    is_first = np.ones(len(order), dtype=bool)
    conflict: tuple[int, int] | None = None  # the first and the second text, by number
    first = -1
    id_before = b""
    for place, id_ in enumerate(ids.in_order(order)):
        number = int(order[place])
        if place == 0 or id_ != id_before:
            first = number
            id_before = id_
            continue
        is_first[place] = False
        is_other = any(column[first] != column[number] for column in columns)
        if is_other and (conflict is None or number < conflict[1]):
            conflict = (first, number)
    if conflict:
        first, second = conflict
        raise InputError(
            f"{places.where(second)}: {kind} id {ids[second]!r} stands twice with different texts, first at {places.where(first)}"
        )
    return order[is_first]


def _write_unsorted(folder: Path, records: Iterator[Record], kind: str) -> "_Places":
    """Check the records, and write their ids, texts and places as they come."""
    places = _Places(folder / "lines.npy")
    instructions: StringsFile | None = None  # from the first record that has one
    with ExitStack() as files:
        ids = files.enter_context(StringsFile(folder, "ids"))
        texts = files.enter_context(StringsFile(folder, "texts"))
        files.enter_context(places.lines)
        for number, record in enumerate(records):
            id_, text, source, line, instruction = record
            where = record.where
            if not id_:
                raise InputError(f"{where}: a {kind} must have an id, got an empty one")
            if "\0" in id_ or id_.split() != [id_]:
                raise InputError(
                    f"{where}: an id must not hold white space or NUL, got {id_!r}; run files could not name it"
                )
            if record.is_empty:
                raise InputError(
                    f"{where}: {kind} {id_!r} has an empty text; remove it, or give it a text"
                )
            ids.append(encoded(id_, where))
            texts.append(encoded(text, where))
            places.append(number, source, line)
            if kind != "query":
                continue
            if not isinstance(instruction, str):
                raise InputError(
                    f"{where}: the instruction of a query must be a string, got {instruction!r:.60}; mend it, or remove it"
                )
            if instruction and instructions is None:
                instructions = files.enter_context(StringsFile(folder, INSTRUCTIONS))
                for _ in range(number):
                    instructions.append(b"")
            if instructions is not None:
                instructions.append(encoded(instruction, where))
    return places


class _Places:
    """The place of each record, for errors: sources come one after the other, lines are on disk."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.lines = GrowingNumbers(file)  # closed before a place is asked for
        self._sources: list[str] = []
        self._first_of_source: list[int] = []  # the number of its first record

    def append(self, number: int, source: str, line: int) -> None:
        """Append the place of the record of this number."""
        if not self._sources or source != self._sources[-1]:
            self._sources.append(source)
            self._first_of_source.append(number)
        self.lines.append(line)

    def where(self, number: int) -> str:
        """The place of a record."""
        source = self._sources[bisect_right(self._first_of_source, number) - 1]
        return f"{source}:{map_array(self._file)[number]}"


def first_of_each(records: Iterable[Record]) -> Iterator[Record]:
    """The first record of each id."""
    seen = set()
    for record in records:
        if record.id not in seen:
            seen.add(record.id)
            yield record


def beginning(text: str, letters: int) -> str:
    """The first letters of a text, in one line; a longer text ends in ``…``."""
    text = in_one_line(text)
    return text if len(text) <= letters else f"{text[:letters]}…"


def in_one_line(text: str) -> str:
    """A text without tabs, line ends and white space beside another."""
    return " ".join(text.split())


def id_of(letter: str, text: str) -> str:
    """An id for a text that has none: the letter and a hash, so equal texts share one."""
    return letter + hashlib.sha256(text.encode("utf-8")).hexdigest()[:24]
