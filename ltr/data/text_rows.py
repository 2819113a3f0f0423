"""Rows of texts: queries with their positives and negatives, or with documents and labels."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from ltr.data.column_roles import Roles, role_of_name, roles_of
from ltr.data.named_rows import Row
from ltr.data.record_files import with_title
from ltr.data.trec import LARGEST_SCORE, grade_of
from ltr.entries import shown
from ltr.errors import InputError

FIRST_ROWS = 100  # whose columns say what those of a file are for
IDS_OF_TEXTS = ("docid", "doc_id", "_id", "id", "passage_id", "psg_id", "pid")


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
    label: float
    score: float | None = None


class TextLine(NamedTuple):
    """A query of a line or a row, with its documents."""

    number: int
    query_id: str | None
    query: str
    documents: list[Document]


class LeftOut:
    """What is left out of the rows of a split: how many of each kind, and where the first stands."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str) -> None:
        """Count one more of a kind."""
        self._counts[kind] += 1
        self._first.setdefault(kind, where)

    def notes(self) -> list[str]:
        """A sentence for each kind."""
        return [
            f"of {self.n_rows} rows, {count} {kind} are left out, first {self._first[kind]}"
            for kind, count in self._counts.items()
        ]


# Rows that can be read again from the beginning.
Rows = Callable[[], Iterator[Row]]


def roles_in(sources: Mapping[str, Rows], chosen: Mapping[str, str] | None) -> tuple[Roles, str]:
    """What the columns of the rows of a split are for, and the same in one line.

    Args:
        sources: the rows by the file they come from.
        chosen: see :func:`ltr.data.column_roles.roles_of`.

    Raises:
        InputError: as that; without any rows.
    """
    names: dict[str, None] = {}  # in their order
    for rows in sources.values():
        for _, row in islice(rows(), FIRST_ROWS):
            names |= dict.fromkeys(row)
    first = next(iter(sources))
    if not names:
        raise InputError(f"{first}: the split is empty; at least one row is needed")
    roles = roles_of(list(names), first, chosen)
    return roles, roles.line(list(names))


def text_lines(roles: Roles, source: str, rows: Rows, left_out: LeftOut) -> Iterator[TextLine]:
    """Rows as lines: a query with its documents each.

    Args:
        roles: of the columns.
        source: where the rows come from, for errors.
        rows: to be read.
        left_out: counts texts that are empty, and rows without a query or a positive.

    Raises:
        InputError: ``file:line`` for a row whose columns do not fit: one that is missing, of another
            type, or of another length than that beside it.
    """
    known: set[str] = set()  # columns that have been looked at
    for number, row in rows():
        left_out.n_rows += 1
        where = f"{source}:{number}"
        if not row.keys() <= known:
            _check_columns(row, known, roles, where)
        queries = _texts(row, roles.query, where)
        if roles.label is None:
            documents = _positives_and_negatives(row, roles, where, left_out)
            if not any(document.label for document in documents):
                left_out.add("rows without a positive", where)
                continue
        else:
            documents = _labelled(row, roles, where, left_out)
        own_id = None if roles.query_id is None else _own_id(row.get(roles.query_id), where)
        if own_id == "#":
            raise InputError(
                f"{where}: the id of a query must not be '#', which begins comments in qrels and runs; give it another one"
            )
        n_queries = 0
        for query in queries:
            if query.is_empty:
                continue
            n_queries += 1
            if documents:
                yield TextLine(number, own_id, query.text, documents)
        if not n_queries:
            left_out.add("rows without a query", where)
        elif n_queries > 1 and own_id is not None:
            raise InputError(
                f"{where}: a row with the id of a query must have one, got {n_queries}"
            )


def _check_columns(row: dict[str, Any], known: set[str], roles: Roles, where: str) -> None:
    """Whether the columns of a row that were not in those before say something new."""
    used: set[str | None] = set()
    for columns in roles:
        used.update(columns if isinstance(columns, tuple) else (columns,))
    is_first = not known
    for name in row.keys() - known - used:
        if not is_first and role_of_name(name) in ("negative", "positive", "label"):
            raise InputError(
                f"{where}: the first {FIRST_ROWS} rows must have all columns, got {name!r}, which they have not; give it to the first row, perhaps as null"
            )
    known.update(row)


class _Text(NamedTuple):
    id: str | None
    text: str
    score: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self.text or self.text.isspace()


def _texts(row: dict[str, Any], column: str, where: str, *, required: bool = True) -> list[_Text]:
    """The texts in a column of a row: one, or those of a list; none for null."""
    if column not in row:
        if required:
            raise InputError(
                f"{where}: a row must have the column {column!r}, got {shown(list(row))}"
            )
        return []
    value = row[column]
    if isinstance(value, str):
        if value[:2] in ("['", '["') and value.endswith("]"):
            raise InputError(
                f"{where}: column {column!r} must hold a text, got a list written as a text, {shown(value)}; write lists as JSON lines or Parquet"
            )
        return [_Text(None, value)]
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [_text(value, column, where) for value in values]


def _text(value: Any, column: str, where: str) -> _Text:
    if isinstance(value, str):
        return _Text(None, value)
    if value is None:
        return _Text(None, "")
    if isinstance(value, dict) and "text" in value:
        text = "" if value["text"] is None else value["text"]
        title = value.get("title") or ""
        if isinstance(text, str) and isinstance(title, str):
            id_ = None
            for name in IDS_OF_TEXTS:
                if name in value:
                    id_ = _own_id(value[name], where)
                    break
            score = value.get("score")
            if isinstance(score, bool) or not isinstance(score, (int, float)):
                score = None
            return _Text(id_, with_title(title, text), score)
    raise InputError(
        f"{where}: column {column!r} must hold a text, an object with 'text', or a list of these, got {shown(value)}"
    )


def _own_id(value: Any, where: str) -> str | None:
    """An id that the data has; None for an empty one."""
    if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
        raise InputError(f"{where}: an id must be a text or a whole number, got {shown(value)}")
    return None if value is None else str(value) or None


def _documents(
    texts: list[_Text], labels: list[float], where: str, left_out: LeftOut, kind: str
) -> Iterator[Document]:
    for text, label in zip(texts, labels, strict=True):
        if text.is_empty:
            left_out.add(f"{kind} without a text", where)
            continue
        yield Document(text.id, text.text, label, text.score)


def _positives_and_negatives(
    row: dict[str, Any], roles: Roles, where: str, left_out: LeftOut
) -> list[Document]:
    documents: list[Document] = []
    sides = (
        ("positives", roles.positive, roles.positive_scores, 1.0),
        ("negatives", roles.negative, roles.negative_scores, 0.0),
    )
    for kind, columns, column_of_scores, label in sides:
        texts = []
        for column in columns:
            texts += _texts(row, column, where, required=label > 0)
        if column_of_scores is not None and row.get(column_of_scores) is not None:
            for place, value in enumerate(_values(row, column_of_scores, where, len(texts))):
                score = _score(value, column_of_scores, where)
                texts[place] = texts[place]._replace(score=score)
        documents += _documents(texts, [label] * len(texts), where, left_out, kind)
    return documents


def _labelled(row: dict[str, Any], roles: Roles, where: str, left_out: LeftOut) -> list[Document]:
    assert roles.document is not None and roles.label is not None
    texts = _texts(row, roles.document, where)
    if not texts:
        left_out.add("rows without a document", where)
    values = _values(row, roles.label, where, len(texts))
    labels = [_label(value, roles.label, where) for value in values]
    return list(_documents(texts, labels, where, left_out, "documents"))


def _values(row: dict[str, Any], column: str, where: str, count: int) -> list[Any]:
    """The values in a column of a row, one for each text beside it."""
    if column not in row:
        raise InputError(f"{where}: a row must have the column {column!r}, got {shown(list(row))}")
    value = row[column]
    values = value if isinstance(value, list) else [value]
    if len(values) != count:
        raise InputError(
            f"{where}: column {column!r} must have a number for each text beside it, {count} of them, got {len(values)}"
        )
    return values


def _label(value: Any, column: str, where: str) -> float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str | int | float):
        return grade_of(str(value), f"{where}: column {column!r}")
    raise InputError(f"{where}: column {column!r}: a grade must be a number, got {shown(value)}")


def _score(value: Any, column: str, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST_SCORE:
        raise InputError(
            f"{where}: column {column!r}: a score must be a finite number (float32), got {shown(value)}"
        )
    return float(value)
