"""Rows of texts: queries with their positives and negatives, or with documents and labels."""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ltr.data.column_roles import NAMED, Roles, roles_of
from ltr.data.columns import IDS_IN_OBJECTS, JUDGED, LABELS, TEXTS, role_of
from ltr.data.counted_columns import NUMBER
from ltr.data.separated_rows import ColumnBlock, Row, single_rows, stripped
from ltr.data.tab_separated import MANY_LINES
from ltr.data.text_lines import Document, LeftOut, TextLines
from ltr.data.texts import with_title
from ltr.data.trec import TRUTH, grade_in, id_in, score_in
from ltr.entries import shown
from ltr.errors import InputError

FIRST_ROWS = 100  # whose columns say what those of a file are for
TOGETHER = 512  # documents of lines that are handed on together; some are whole books
# What is no text, where all first values are so: whole numbers of four digits, words of letters and
# digits.
ID = re.compile(r"[0-9]{4,}|(?=[!-~]*[0-9])[A-Za-z][!-~]*|[0-9][!-~]*[A-Za-z][!-~]*")

# Rows that can be read again from the beginning, some of which may come together.
Rows = Callable[[], Iterator[Row | ColumnBlock]]


def roles_in(
    sources: Mapping[str, Rows], chosen: Mapping[str, str] | None
) -> tuple[Roles, str, bool]:
    """What the columns of the rows of a split are for, the same in one line, and whether there are
    scores beside documents, in columns or in objects.

    Args:
        sources: the rows by the file they come from.
        chosen: see :func:`ltr.data.column_roles.roles_of`.

    Raises:
        InputError: as that; without any rows.
    """
    columns: dict[str, list[tuple[str, Any]]] = {}  # their values, each with its place
    for source, rows in sources.items():
        for number, row in islice(single_rows(rows()), FIRST_ROWS):
            for name, value in row.items():
                column = columns.setdefault(name, [])
                for each in as_list(value):
                    if not _is_null(each) and each != "":
                        column.append((f"{source}:{number}", each))
    first = next(iter(sources))
    if not columns:
        raise InputError(f"{first}: the split is empty; at least one row is needed")
    numbers = {name for name, values in columns.items() if _are_numbers(values)}
    roles = roles_of(list(columns), first, chosen, numbers)
    _refuse_no_texts(roles.query, columns[roles.query], is_query=True)
    documents = [*roles.positive, *roles.negative]
    if roles.document is not None:
        documents.append(roles.document)
    for name in documents:
        _refuse_no_texts(name, columns[name], is_query=False)
        is_called_so = chosen is not None or role_of(name) not in TEXTS
        if roles.label is None and not is_called_so:
            _refuse_judged(name, columns[name])
    has_scores = roles.positive_scores is not None or roles.negative_scores is not None
    for name in documents:
        for _, value in columns[name]:
            has_scores = has_scores or (isinstance(value, dict) and "score" in value)
    return roles, roles.line(list(columns)), has_scores


def _are_numbers(values: list[tuple[str, Any]]) -> bool:
    """Whether there are numbers alone, or truth values, perhaps written as texts."""
    for _, value in values:
        if isinstance(value, str):
            if not NUMBER.fullmatch(value.strip()) and value.strip().lower() not in TRUTH:
                return False
        elif not isinstance(value, int | float):
            return False
    return bool(values)


def _refuse_no_texts(name: str, values: list[tuple[str, Any]], *, is_query: bool) -> None:
    """Refuse a column of texts whose first ones are numbers or ids, or lists written as texts."""
    texts = [(where, value) for where, value in values if isinstance(value, str)]
    if not texts:
        return
    lists = [text for text in texts if _is_list(text[1])]
    if 2 * len(lists) > len(texts):
        where, value = lists[0]
        raise InputError(
            f"{where}: column {name!r} must hold a text, got a list written as a text, {shown(value)}; write lists as JSON lines or Parquet"
        )
    n_numbers = sum(NUMBER.fullmatch(value) is not None for _, value in texts)
    n_ids = sum(ID.fullmatch(value) is not None for _, value in texts)
    are_ids = n_ids == len(texts) >= MANY_LINES or (is_query and n_numbers == len(texts))
    if are_ids:
        where, value = texts[0]
        raise InputError(
            f"{where}: column {name!r} must hold texts, got ids or numbers alone, {shown(value)}; put the texts in their place, or import negatives with ids by ltr negatives import"
        )


def _is_list(text: str) -> bool:
    if not text.startswith(("['", '["')) or not text.endswith("]"):
        return False
    try:
        return isinstance(ast.literal_eval(text), list)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _refuse_judged(name: str, values: list[tuple[str, Any]]) -> None:
    """Refuse documents that are not called positives, and say of themselves whether they are."""
    for where, value in values:
        if not isinstance(value, dict):
            continue
        judged = [key for key in value if key in JUDGED or role_of(key) == "grade"]
        if judged:
            raise InputError(
                f"{where}: all documents of column {name!r} would be positives, got one with {min(judged)!r}; write lists of documents and labels, or, where all are relevant, import the file with --columns query=… positive={name}"
            )


def text_lines(roles: Roles, source: str, rows: Rows, left_out: LeftOut) -> Iterator[TextLines]:
    """Rows as lines: a query with its documents each. Those before a row that can't be read come
    first: what is wrong with them is the first mistake.

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
    plain_columns = _plain_columns(roles)
    lines = TextLines.none()
    try:
        for together in rows():
            if isinstance(together, ColumnBlock):
                plain_lines = _plain_lines(together, roles.query, plain_columns)
                if plain_lines is not None:
                    yield lines
                    yield plain_lines
                    lines = TextLines.none()
                    left_out.n_rows += len(plain_lines.numbers)
                    left_out.n_kept += len(plain_lines.numbers)
                    continue
            for number, row in single_rows([together]):
                if len(lines.texts) >= TOGETHER:
                    yield lines
                    lines = TextLines.none()
                left_out.n_rows += 1
                if not row.keys() <= known:
                    _check_columns(row, known, roles, f"{source}:{number}")
                if plain_columns and _append_plain_row(
                    lines, number, row, roles.query, plain_columns
                ):
                    left_out.n_kept += 1
                else:
                    _append_row(lines, number, row, roles, source, left_out)
    except InputError:
        yield lines
        raise
    yield lines


def _plain_columns(roles: Roles) -> list[tuple[str, float]]:
    """The columns of documents with their labels, where nothing else is read beside texts; none
    elsewhere.
    """
    if roles.columns != {roles.query, *roles.positive, *roles.negative}:
        return []
    positives = [(column, 1.0) for column in roles.positive]
    return positives + [(column, 0.0) for column in roles.negative]


def _plain_lines(
    block: ColumnBlock, query: str, columns: list[tuple[str, float]]
) -> TextLines | None:
    """Many rows as most are: a query and documents, none of them empty; None for others."""
    queries = block.named(query)
    documents: list[list[bytes]] = []
    labels: list[float] = []
    for name, label in columns:
        named = block.named(name)
        documents += named
        labels += [label] * len(named)
    if len(queries) != 1 or 1.0 not in labels:
        return None
    if not all(all(stripped(texts)) for texts in [*queries, *documents]):
        return None
    n_rows = len(block.numbers)
    n_documents = len(documents)
    texts = [b""] * (n_rows * n_documents)
    for place, column in enumerate(documents):
        texts[place::n_documents] = column
    return TextLines(
        block.numbers.tolist(),
        [None] * n_rows,
        queries[0],
        [n_documents] * n_rows,
        [None] * len(texts),
        texts,
        labels * n_rows,
        [None] * len(texts),
    )


def _append_plain_row(
    lines: TextLines, number: int, row: dict[str, Any], query: str, columns: list[tuple[str, float]]
) -> bool:
    """Append a row as most are: of texts that are not empty, one or a list in each column; False for
    another one.
    """
    texts: list[Any] = [row.get(query)]
    labels: list[float] = []
    for column, label in columns:
        value = row.get(column)
        if isinstance(value, list):
            texts += value
            labels += [label] * len(value)
        else:
            texts.append(value)
            labels.append(label)
    try:
        is_plain = all(map(str.strip, texts)) and "\0" not in "".join(texts)
        blobs = list(map(str.encode, texts))
    except (TypeError, UnicodeEncodeError):
        return False
    if not is_plain or 1.0 not in labels:
        return False
    lines.append_query(number, None, blobs[0], len(labels))
    lines.doc_ids.extend([None] * len(labels))
    lines.texts.extend(blobs[1:])
    lines.labels.extend(labels)
    lines.scores.extend([None] * len(labels))
    return True


def _append_row(
    lines: TextLines, number: int, row: dict[str, Any], roles: Roles, source: str, left_out: LeftOut
) -> None:
    where = f"{source}:{number}"
    queries = _texts(row, roles.query, where)
    if roles.label is None:
        documents = _positives_and_negatives(row, roles, where, left_out)
        if not any(document.label for document in documents):
            left_out.add("rows without a positive", where)
            return
    else:
        documents = _labelled(row, roles, where, left_out)
    own_id = None if roles.query_id is None else _own_id(row.get(roles.query_id), where)
    n_queries = 0
    for query in queries:
        if query.is_empty:
            continue
        n_queries += 1
        if documents:
            lines.append(number, own_id, query.text, documents, where)
    if n_queries and documents:
        left_out.n_kept += 1
    if not n_queries:
        left_out.add("rows without a query", where)
    elif n_queries > 1 and own_id is not None:
        raise InputError(f"{where}: a row with the id of a query must have one, got {n_queries}")


def _check_columns(row: dict[str, Any], known: set[str], roles: Roles, where: str) -> None:
    """Whether the columns of a row that were not in those before say something new."""
    is_first = not known
    for name in row.keys() - known - roles.columns:
        if not is_first and role_of(name) in (*NAMED, *LABELS):
            raise InputError(
                f"{where}: the first {FIRST_ROWS} rows must have all columns, got {name!r}, which they have not; give it to the first row, perhaps as null"
            )
    known.update(row)


def _texts(
    row: dict[str, Any], column: str, where: str, label: float = 0.0, *, required: bool = True
) -> list[Document]:
    """The texts in a column of a row, all with this label: one, or those of a list; none for null."""
    if column not in row:
        if required:
            raise InputError(
                f"{where}: a row must have the column {column!r}, got {shown(list(row))}"
            )
        return []
    if _is_null(row[column]):
        return []
    return [text_of(value, column, where, label) for value in as_list(row[column])]


def text_of(value: Any, column: str, where: str, label: float = 0.0) -> Document:
    """A value as a text, with its id and score where it is an object that has them; empty for null."""
    if isinstance(value, str):
        return Document(None, value, label)
    if _is_null(value):
        return Document(None, "", label)
    if isinstance(value, dict) and "text" in value:
        text = "" if value["text"] is None else value["text"]
        title = value.get("title") or ""
        if isinstance(text, str) and isinstance(title, str):
            id_ = None
            ids = [name for name in IDS_IN_OBJECTS if name in value]
            ids = ids or [name for name in value if role_of(name) in ("document_id", "id")]
            if ids:
                id_ = _own_id(value[ids[0]], where)
            score = value.get("score")
            if not isinstance(score, str | int | float) or isinstance(score, bool):
                score = None
            return Document(id_, with_title(title, text), label, _score(score, column, where))
    raise InputError(
        f"{where}: column {column!r} must hold a text, an object with 'text', or a list of these, got {shown(value)}"
    )


def as_list(value: Any) -> list[Any]:
    """The values in a column of a row, which has one or a list."""
    return value if isinstance(value, list) else [value]


def _is_null(value: Any) -> bool:
    """Whether a value is missing: null, or NaN as pandas writes it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _texts_with_titles(
    row: dict[str, Any],
    column: str,
    roles: Roles,
    where: str,
    label: float = 0.0,
    *,
    required: bool = True,
) -> list[Document]:
    """The texts in a column with what stands beside them: their titles, and ids of documents."""
    texts = _texts(row, column, where, label, required=required)
    title_column = roles.titles.get(column)
    if title_column is not None:
        titles = _texts(row, title_column, where, required=False)
        if titles and texts:
            _check_length(titles, len(texts), title_column, where)
            for place, title in enumerate(titles):
                if not title.is_empty:
                    text = with_title(title.text, texts[place].text)
                    texts[place] = texts[place]._replace(text=text)
    is_document = column == roles.document or (column,) == roles.positive
    if roles.document_id is not None and is_document and texts:
        for place, id_ in enumerate(_values(row, roles.document_id, where, len(texts))):
            texts[place] = texts[place]._replace(id=_own_id(id_, where))
    return texts


def _own_id(value: Any, where: str) -> str | None:
    """An id that the data has; None for an empty one."""
    return None if value is None else id_in(value, where) or None


def _score(value: Any, column: str, where: str) -> float | None:
    """A score; None for a missing one."""
    if _is_null(value) or value == "":
        return None
    return score_in(value, f"{where}: column {column!r}")


def _with_text(texts: list[Document], where: str, left_out: LeftOut, kind: str) -> list[Document]:
    """The documents that have a text; the others are counted."""
    kept = [text for text in texts if not text.is_empty]
    for _ in range(len(texts) - len(kept)):
        left_out.add(f"{kind} without a text", where)
    return kept


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
            texts += _texts_with_titles(row, column, roles, where, label, required=label > 0)
        if column_of_scores is not None and row.get(column_of_scores) not in (None, []):
            for place, value in enumerate(_values(row, column_of_scores, where, len(texts))):
                score = _score(value, column_of_scores, where)
                texts[place] = texts[place]._replace(score=score)
        documents += _with_text(texts, where, left_out, kind)
    return documents


def _labelled(row: dict[str, Any], roles: Roles, where: str, left_out: LeftOut) -> list[Document]:
    assert roles.document is not None and roles.label is not None
    texts = _texts_with_titles(row, roles.document, roles, where)
    if not texts:
        left_out.add("rows without a document", where)
        if row[roles.document] != []:
            return []
    labelled = []
    for text, value in zip(texts, _values(row, roles.label, where, len(texts)), strict=True):
        if _is_null(value) or value == "":
            left_out.add("documents without a label", where)
            continue
        label = grade_in(value, f"{where}: column {roles.label!r}")
        labelled.append(Document(text.id, text.text, label, text.score))
    return _with_text(labelled, where, left_out, "documents")


def _values(row: dict[str, Any], column: str, where: str, count: int) -> list[Any]:
    """The values in a column of a row, one for each text beside it."""
    if column not in row:
        raise InputError(f"{where}: a row must have the column {column!r}, got {shown(list(row))}")
    values = as_list(row[column])
    _check_length(values, count, column, where)
    return values


def _check_length(values: Sequence[Any], count: int, column: str, where: str) -> None:
    if len(values) != count:
        raise InputError(
            f"{where}: column {column!r} must have one value for each text beside it, {count} of them, got {len(values)}"
        )
