"""Lines of texts: queries with their documents, column by column, and the count of what was left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ltr.data.files import encoded


class Document(NamedTuple):
    """A document of a row.

    Attributes:
        id: its own, if it has one.
        text: with its title.
        label: 1 for a positive, 0 for a negative, or as labelled.
        score: that others gave it, if any.
    """

    id: str | None
    text: str
    label: float = 0.0
    score: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the text has nothing but white space."""
        return not self.text or self.text.isspace()


class TextLines(NamedTuple):
    """Lines or rows that are handed on together, column by column: queries, each with its documents.
    Texts are UTF-8 without NUL.

    Attributes:
        numbers, query_ids, queries, sizes: of each line its number, the id of its query, if that has
            one, the query, and how many documents it has.
        doc_ids, texts, labels, scores: of each document, see :class:`Document`.
    """

    numbers: list[int]
    query_ids: list[str | None]
    queries: list[bytes]
    sizes: list[int]
    doc_ids: list[str | None]
    texts: list[bytes]
    labels: list[float]
    scores: list[float | None]

    @classmethod
    def none(cls) -> "TextLines":
        """No line yet."""
        return cls([], [], [], [], [], [], [], [])

    def append_query(self, number: int, query_id: str | None, query: bytes, size: int) -> None:
        """Append the query of a line; its documents follow."""
        self.numbers.append(number)
        self.query_ids.append(query_id)
        self.queries.append(query)
        self.sizes.append(size)

    def append(
        self,
        number: int,
        query_id: str | None,
        query: str,
        documents: Sequence[Document],
        where: str,
    ) -> None:
        """Append a line; an InputError with its place for what is no text."""
        texts = [encoded(document.text, where) for document in documents]
        self.append_query(number, query_id, encoded(query, where), len(documents))
        self.texts.extend(texts)
        for id_, _, label, score in documents:
            self.doc_ids.append(id_)
            self.labels.append(label)
            self.scores.append(score)

    def each(self) -> "Iterator[TextLines]":
        """Each line alone."""
        start = 0
        for place, size in enumerate(self.sizes):
            stop = start + size
            yield TextLines(
                [self.numbers[place]],
                [self.query_ids[place]],
                [self.queries[place]],
                [size],
                self.doc_ids[start:stop],
                self.texts[start:stop],
                self.labels[start:stop],
                self.scores[start:stop],
            )
            start = stop


class LeftOut:
    """What is left out of the rows of a split: how many of each kind, and where the first stands.

    Attributes:
        n_rows: that were read.
        n_kept: that have a query and a document.
    """

    def __init__(self) -> None:
        self.n_rows = 0
        self.n_kept = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str) -> None:
        """Count one more of a kind."""
        self._counts[kind] += 1
        # What is kept in the cache may be of equal files in another folder.
        self._first.setdefault(kind, Path(where).name)

    def notes(self) -> list[str]:
        """A sentence for each kind."""
        return [
            f"of {self.n_rows} rows, {count} {kind} are left out, first {self._first[kind]}"
            for kind, count in self._counts.items()
        ]
