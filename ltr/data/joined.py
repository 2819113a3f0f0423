"""Several collections as one: their texts laid one behind the other.

Row r of the queries of source s has the number ``first_query[s] + r`` among all, and so have its
documents. Sources whose corpus has the same texts share it: its rows are there once.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ltr.data.collate import Collator, SourcesCollator, collator_of_tokens
from ltr.data.collection import Collection
from ltr.data.formats import TextReads
from ltr.data.query_lists import LabelledList
from ltr.data.template import Side
from ltr.data.templated_pairs import FieldTexts
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens


@dataclass(frozen=True)
class Shift:
    """Gives a list of a source the numbers that its texts have among all.

    Attributes:
        first_query, first_doc: of the source, among all.
    """

    first_query: int
    first_doc: int

    def __call__(self, labelled: LabelledList) -> LabelledList:
        judged_rows = labelled.judged_rows
        return labelled._replace(
            query_row=labelled.query_row + self.first_query,
            doc_rows=labelled.doc_rows + self.first_doc,
            judged_rows=None if judged_rows is None else judged_rows + self.first_doc,
        )


class JoinedCollections:
    """Collections under names, with the numbers of their texts among those of all.

    Args:
        names: of the sources, each once.
        collections: of the sources.

    Attributes:
        first_query: ``[S]`` int64, the number of the first query of each source.
        first_doc: ``[S]`` int64, that of the first document of its corpus.
        query_ids, doc_ids: ``SOURCE/ID`` by number; those of a shared corpus have the name of the
            first source that has it.
    """

    def __init__(self, names: Sequence[str], collections: Sequence[Collection]) -> None:
        self.names = tuple(names)
        self.collections = list(collections)
        query_tables = [collection.queries for collection in self.collections]
        query_counts = [len(table) for table in query_tables]
        self.first_query = np.cumsum([0, *query_counts])[:-1]
        # Each corpus once, in the order of the sources that have it first.
        self._corpora: list[TextTable] = []
        corpus_names: list[str] = []
        corpus_of_source: list[int] = []
        for name, collection in zip(self.names, self.collections, strict=True):
            keys = [table.key for table in self._corpora]
            if collection.corpus.key not in keys:
                self._corpora.append(collection.corpus)
                corpus_names.append(name)
                keys.append(collection.corpus.key)
            corpus_of_source.append(keys.index(collection.corpus.key))
        first_of_corpus = np.cumsum([0, *map(len, self._corpora)])[:-1]
        self.first_doc = first_of_corpus[corpus_of_source]
        self._queries = query_tables
        self.query_ids = JoinedIds(self.names, [table.ids for table in query_tables])
        self.doc_ids = JoinedIds(corpus_names, [table.ids for table in self._corpora])

    def source_of(self, query_rows: np.ndarray) -> np.ndarray:
        """``[Q]`` int64: the sources of queries, by number."""
        return np.searchsorted(self.first_query, query_rows, side="right") - 1

    def shifted(self, source: int) -> "Shift":
        """What gives a list of a source the numbers that its texts have among all."""
        return Shift(int(self.first_query[source]), int(self.first_doc[source]))

    def collator(self, reads: TextReads) -> Collator:
        """Makes batches of lists of all sources; each text is tokenised once."""

        def tokens(side: Side, store: Callable[[TextTable], Tokens]) -> Tokens:
            tables = self._queries if side == "query" else self._corpora
            return joined_tokens([store(table) for table in tables])

        return SourcesCollator(collator_of_tokens(tokens, reads), self.first_query)


class JoinedTokens(Tokens):
    """The tokens of several tables of texts, one behind the other.

    Args:
        parts: of each table; one tokenizer has made them all.
    """

    def __init__(self, parts: Sequence[Tokens]) -> None:
        self.parts = list(parts)
        self.read_as = parts[0].read_as
        self.dtype = parts[0].dtype
        self._first = np.cumsum([0, *map(len, self.parts)])

    def __reduce__(self) -> tuple:
        # The parts map their files again: nothing is copied.
        return JoinedTokens, (self.parts,)

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, row: int) -> np.ndarray:
        part = bisect_right(self._first, row) - 1
        return self.parts[part][row - int(self._first[part])]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(
                f"rows must be between 0 and {len(self) - 1}, got {rows.min()} to {rows.max()}"
            )
        lengths = np.empty(len(rows), dtype=np.int64)
        for part, places, rows_of_part in self._by_part(rows):
            lengths[places] = part.lengths(rows_of_part)
        return lengths

    def between(self, first: int, stop: int) -> Tokens:
        parts = []
        for part, begin in zip(self.parts, self._first.tolist(), strict=False):
            of_part = slice(max(first - begin, 0), min(stop - begin, len(part)))
            if of_part.start < of_part.stop:
                parts.append(part.between(of_part.start, of_part.stop))
        return joined_tokens(parts or [self.parts[0].between(0, 0)])

    def pieces(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> list[memoryview]:
        views = [memoryview(b"")] * len(rows)
        for part, places, rows_of_part in self._by_part(rows):
            of_part = part.pieces(rows_of_part, starts[places], counts[places])
            for place, view in zip(places.tolist(), of_part, strict=True):
                views[place] = view
        return views

    def _by_part(self, rows: np.ndarray) -> list[tuple[Tokens, np.ndarray, np.ndarray]]:
        """Each part that has some of the rows, their places among the rows, and their own rows."""
        part_of_row = np.searchsorted(self._first, rows, side="right") - 1
        parts = []
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(part_of_row == number)
            if len(places):
                parts.append((part, places, rows[places] - self._first[number]))
        return parts


class JoinedFields(JoinedTokens, FieldTexts):
    """As :class:`JoinedTokens`, of texts that are put into a template of both.

    Args:
        parts: of each table.
    """

    def __init__(self, parts: Sequence[FieldTexts]) -> None:
        JoinedTokens.__init__(self, parts)
        self._fields = list(parts)
        self.texts = JoinedTexts([part.texts for part in parts])

    def __reduce__(self) -> tuple:
        return JoinedFields, (self._fields,)

    def instruction(self, row: int) -> str:
        part = bisect_right(self._first, row) - 1
        return self._fields[part].instruction(row - int(self._first[part]))


def joined_tokens(parts: Sequence[Tokens]) -> Tokens:
    """The tokens of several tables as those of one: as they are, where there is one table."""
    if len(parts) == 1:
        return parts[0]
    fields = [part for part in parts if isinstance(part, FieldTexts)]
    return JoinedFields(fields) if len(fields) == len(parts) else JoinedTokens(parts)


class JoinedTexts(Sequence[str]):
    """The texts of several tables, one behind the other."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = list(parts)
        self._first = np.cumsum([0, *map(len, self._parts)]).tolist()

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        number, row_of_part = self.place(row)
        return self._parts[number][row_of_part]

    def place(self, row: int) -> tuple[int, int]:
        """The part that has this row, by number, and the row there."""
        if not 0 <= row < len(self):
            raise IndexError(f"there are {len(self)} texts, got {row}")
        number = bisect_right(self._first, row) - 1
        return number, row - self._first[number]


class JoinedIds(JoinedTexts):
    """The ids of several tables, each behind the name of its source: ``SOURCE/ID``."""

    def __init__(self, names: Sequence[str], parts: Sequence[Sequence[str]]) -> None:
        super().__init__(parts)
        self._names = list(names)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        number, _ = self.place(row)
        return f"{self._names[number]}/{super().__getitem__(row)}"
