"""Texts with ids, on disk: a million documents cost no memory but what is read of them."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ltr.data.cache_folder import Notes, cached, keep_notes, log_notes, origin_of
from ltr.data.files import encoded, map_array
from ltr.data.growing import GrowingNumbers
from ltr.data.lines import MOST_LINES, place_of_line
from ltr.data.string_order import are_repeats, order_of, rows_among
from ltr.data.strings import Strings, StringsFile
from ltr.errors import InputError

INSTRUCTIONS = "instructions"
LINES = "lines.npy"  # of texts as they come
LENGTH_OF_ID = 25  # of one that is made of a text
PLURALS = {"query": "queries"}  # of the kinds of texts; all others have an s


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
        told: Sequence[str] = (),
    ) -> "TextTable":
        """Open the table of this content; read, check and write it first where it is not there.

        Args:
            content: names the content; another content must have another name.
            records: the texts in any order; only read if the table must be written.
            kind: ``document``, ``query`` or ``text``, for errors.
            source: where the records come from, for errors and for ``ltr cache``.
            leave_out_empty: whether empty texts are left out, with a warning; they are refused
                elsewhere.
            told: what else is to be said of the texts at each opening, a sentence each; may be filled
                while the records are read.

        An id that stands again with the same text counts once, with a warning.

        Raises:
            InputError: for an empty id, one with two texts, an empty text, one with NUL or of no valid
                Unicode, or no text at all.
        """

        def build(folder: Path) -> None:
            _write_table(folder, records, kind, source, leave_out_empty, told)

        return cls._open_or_build(content, build, kind, source)

    @classmethod
    def open_unsorted(
        cls,
        content: str,
        unsorted: Callable[[], "UnsortedTexts"],
        kind: str,
        source: str | Path,
    ) -> "TextTable":
        """The same of texts that lie on disk as they came. They may repeat each other, of which nothing
        is said.

        Args:
            content, kind, source: see :meth:`open`.
            unsorted: gives the texts; only called if the table must be written.
        """

        def build(folder: Path) -> None:
            unsorted().write_table(folder, source)

        return cls._open_or_build(content, build, kind, source)

    @classmethod
    def _open_or_build(
        cls, content: str, build: Callable[[Path], None], kind: str, source: str | Path
    ) -> "TextTable":
        def open_table(folder: Path) -> TextTable:
            log_notes(folder, source)
            return cls(folder)

        return cached("texts", f"texts-1 {kind} {content}", build, open_table, origin_of(source))


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
    folder: Path,
    records: Iterator[Record],
    kind: str,
    source: str | Path,
    leave_out_empty: bool,
    told: Sequence[str],
) -> None:
    """Write the texts as they come, then once more in the order of their ids."""
    empty: list[Record] = []  # filled while the others are written
    left_out = []
    if leave_out_empty:
        records = _with_text(records, empty)
    with UnsortedTexts(folder / "unsorted", kind) as unsorted:
        for record in records:
            unsorted.append(record)
    if empty:
        left_out.append(
            f"{len(empty)} texts are empty and left out, first that of {kind} {empty[0].id!r} at {Path(empty[0].source).name}:{empty[0].line}"
        )
    unsorted.write_table(folder, source)
    if unsorted.n_repeats:
        left_out.append(
            f"{unsorted.n_repeats} times a {kind} stands again with the same text and counts once, first {unsorted.first_repeat}"
        )
    n_read = len(unsorted) + len(empty)
    n_kept = len(unsorted) - unsorted.n_repeats
    shutil.rmtree(folder / "unsorted")
    noun = PLURALS.get(kind, f"{kind}s")
    keep_notes(folder, Notes(noun, n_read, n_kept, [*left_out, *told]))


def _with_text(records: Iterator[Record], empty: list[Record]) -> Iterator[Record]:
    """The records that have a text; the others are appended to ``empty``."""
    for record in records:
        if record.is_empty:
            empty.append(record)
        else:
            yield record


class UnsortedTexts:
    """Texts with their ids on disk, checked and written as they come, within a block of ``with``. The
    number of a text is how many came before it.

    Args:
        folder: where they are written; it must not be there.
        kind: ``document``, ``query`` or ``text``, for errors.

    Attributes:
        sources: where the texts come from, one behind the other.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._kind = kind
        self._files = ExitStack()
        self._ids_file = self._files.enter_context(StringsFile(folder, "ids"))
        self._texts_file = self._files.enter_context(StringsFile(folder, "texts"))
        self._lines_file = self._files.enter_context(GrowingNumbers(folder / LINES))
        self.sources: list[str] = []
        self._instructions: StringsFile | None = None  # from the first record that has one
        self._count = 0
        self._have_own_ids = False

    def __len__(self) -> int:
        return self._count

    def append(self, record: Record) -> None:
        """Append a text; an InputError for what can't be one."""
        id_, text, source, line, instruction = record
        kind = self._kind
        if not id_:
            raise InputError(f"{record.where}: a {kind} must have an id, got an empty one")
        if "\0" in id_ or id_.split() != [id_]:
            raise InputError(
                f"{record.where}: an id must not hold white space or NUL, got {id_!r}; run files could not name it"
            )
        if id_ == "#" and kind == "query":
            raise InputError(
                f"{record.where}: the id of a query must not be '#', which begins comments in qrels and runs; give it another one"
            )
        if record.is_empty:
            raise InputError(
                f"{record.where}: {kind} {id_!r} has an empty text; remove it, or give it a text"
            )
        where = record.where
        self._have_own_ids = True
        id_blob = encoded(id_, where)
        text_blob = encoded(text, where)
        self._ids_file.extend([id_blob])
        self._texts_file.extend([text_blob])
        self._append_places(source, [line])
        if kind == "query":
            self._append_instruction(instruction, where)

    def extend(
        self,
        ids: Sequence[str | None],
        blobs: list[bytes],
        source: str,
        lines: Sequence[int] | np.ndarray,
    ) -> None:
        """The same of many texts of a source, as UTF-8 without NUL, that may have no ids: they are made
        of the texts then, see :func:`id_of`.
        """
        if any(ids):
            for id_, blob, line in zip(ids, blobs, lines, strict=True):
                if id_ is None:
                    self.extend([None], [blob], source, [line])
                else:
                    self.append(Record(id_, blob.decode(), source, line))
            return
        n = len(blobs)
        self._ids_file.write(_ids_of_bytes(self._kind[0], blobs), np.full(n, LENGTH_OF_ID))
        self._texts_file.write(b"".join(blobs), np.fromiter(map(len, blobs), np.int64, n))
        self._append_places(source, lines)

    def _append_places(self, source: str, lines: Sequence[int] | np.ndarray) -> None:
        if self.sources[-1:] != [source]:
            self.sources.append(source)
        self._lines_file.extend(np.asarray(lines, np.int64) + MOST_LINES * (len(self.sources) - 1))
        self._count += len(lines)

    def _append_instruction(self, instruction: Any, where: str) -> None:
        if not isinstance(instruction, str):
            raise InputError(
                f"{where}: the instruction of a query must be a string, got {instruction!r:.60}; mend it, or remove it"
            )
        if instruction and self._instructions is None:
            file = self._files.enter_context(StringsFile(self._folder, INSTRUCTIONS))
            file.extend([b""] * (self._count - 1))
            self._instructions = file
        if self._instructions is not None:
            self._instructions.extend([encoded(instruction, where)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def write_table(self, folder: Path, source: str | Path) -> None:
        """Write the texts in the order of their ids, each id once.

        Raises:
            InputError: if there is no text; if an id has two texts, or a query two instructions.
        """
        if not self._count:
            raise InputError(f"{source}: there is no {self._kind} at all; at least one is needed")
        order = self._order[~self._is_repeat]
        for name in ("ids", *self._columns()):
            Strings(self._folder, name).write_in_order(folder, order)

    @property
    def lines(self) -> np.ndarray:
        """``[N]`` int64: the line of each text, by its number among those of all sources."""
        return np.asarray(map_array(self._folder / LINES))

    def where(self, number: int) -> str:
        """The place of a text, for errors."""
        return place_of_line(self.sources, self.lines[number])

    @property
    def n_repeats(self) -> int:
        """How many texts have an id that has come before."""
        return int(np.count_nonzero(self._is_repeat))

    @property
    def first_repeat(self) -> str:
        """The id of the first one of these and its place, in words."""
        number = int(self._order[self._is_repeat].min())
        id_ = Strings(self._folder, "ids")[number]
        return f"{id_!r} at {Path(self.where(number)).name}"

    @cached_property
    def rows(self) -> np.ndarray:
        """``[N]`` int64: for each text the row that it has in the table."""
        rows = np.empty(self._count, dtype=np.int64)
        rows[self._order] = np.cumsum(~self._is_repeat) - 1
        return rows

    @property
    def _order(self) -> np.ndarray:
        return self._order_and_repeats[0]

    @property
    def _is_repeat(self) -> np.ndarray:
        return self._order_and_repeats[1]

    @cached_property
    def _order_and_repeats(self) -> tuple[np.ndarray, np.ndarray]:
        """``[N]`` each: the numbers in the order of the ids, and whether the same id stands before, with
        the same text.
        """
        ids = Strings(self._folder, "ids")
        order, repeat = order_of(ids)
        if repeat is None:
            return order, np.zeros(len(order), dtype=bool)
        is_repeat = are_repeats(ids, order)
        if self._have_own_ids:  # others follow from the texts
            self._refuse_conflicts(order, is_repeat)
        return order, is_repeat

    def _refuse_conflicts(self, order: np.ndarray, is_repeat: np.ndarray) -> None:
        columns = [Strings(self._folder, name) for name in self._columns()]
        # Where the first text of each id stands in the order.
        firsts = np.maximum.accumulate(np.where(is_repeat, 0, np.arange(self._count)))
        conflict: tuple[int, int] | None = None  # the first and the second text, by number
        for place in np.flatnonzero(is_repeat):
            number = int(order[place])
            first = int(order[firsts[place]])
            is_other = any(column[first] != column[number] for column in columns)
            if is_other and (conflict is None or number < conflict[1]):
                conflict = (first, number)
        if conflict:
            first, second = conflict
            id_ = Strings(self._folder, "ids")[second]
            raise InputError(
                f"{self.where(second)}: {self._kind} id {id_!r} stands twice with different texts, first at {self.where(first)}"
            )

    def _columns(self) -> list[str]:
        return ["texts"] if self._instructions is None else ["texts", INSTRUCTIONS]


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


def with_title(title: str, text: str) -> str:
    """A title is part of its text."""
    return f"{title} {text}".strip()


def id_of(letter: str, text: str) -> str:
    """An id for a text that has none: the letter and a hash, so equal texts share one."""
    return _ids_of_bytes(letter, [text.encode()]).decode()


def _ids_of_bytes(letter: str, texts: list[bytes]) -> bytes:
    """The same of many texts as UTF-8, end to end."""
    digests = np.frombuffer(b"".join([hashlib.sha256(text).digest() for text in texts]), np.uint8)
    beginnings = digests.reshape(-1, 32)[:, :12].tobytes()
    return (letter + beginnings.hex(letter, 12)).encode() if texts else b""
