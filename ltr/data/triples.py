"""Files of text triples, pairs or labelled pairs, whose texts have no ids of their own."""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data import trec
from ltr.data.files import digest_of, numbered_lines
from ltr.data.judged_lists import Noted, cached_lists
from ltr.data.lines import Line, look_up
from ltr.data.query_lists import QueryLists
from ltr.data.tab_separated import LineLayout, layout_of
from ltr.data.texts import Record, TextTable, first_of_each, id_of
from ltr.errors import InputError

# A query with as many lines or more gets the note that its lines are one list.
MANY_LINES_A_QUERY = 4


class _TextLine(NamedTuple):
    """One line of a file."""

    number: int
    query: str
    graded_docs: list[tuple[str, float]]  # 1 for the positive, 0 for the negatives; or as labelled


def read_triples(
    source: str, files: dict[str, Path]
) -> tuple[TextTable, TextTable, dict[str, QueryLists]]:
    """The documents, the queries and the judgements by split, checked at the first opening.

    Args:
        source: what the files were opened as, for errors and for ``ltr cache``.
        files: by split.
    """
    layouts = {}
    digests = ""
    for split, file in files.items():
        layouts[file] = layout_of(file)
        # The same bytes are other texts under another layout.
        digests += f"{split} {digest_of(file)} {layouts[file]} "
    content = hashlib.sha256(digests.encode()).hexdigest()
    docs = first_of_each(_doc_records(layouts))
    corpus = TextTable.open(content, docs, "document", source)
    query_records = first_of_each(_query_records(layouts))
    queries = TextTable.open(content, query_records, "query", source)
    qrels = {}
    for split, file in files.items():
        read = partial(_read_grades, layouts[file])
        qrels[split] = cached_lists(file, queries, corpus, read)
    return corpus, queries, qrels


def _doc_records(layouts: dict[Path, LineLayout]) -> Iterator[Record]:
    for file, layout in layouts.items():
        source = str(file)
        for line in _text_lines(file, layout):
            for text, _ in line.graded_docs:
                yield Record(id_of("d", text), text, source, line.number)


def _query_records(layouts: dict[Path, LineLayout]) -> Iterator[Record]:
    for file, layout in layouts.items():
        source = str(file)
        for line in _text_lines(file, layout):
            yield Record(id_of("q", line.query), line.query, source, line.number)


def _read_grades(
    layout: LineLayout, file: Path, queries: TextTable, corpus: TextTable
) -> Noted[QueryLists]:
    """The grades of all lines; a query and a document may stand together in several."""
    rows = look_up(_lines_with_ids(file, layout), queries, corpus)
    if not len(rows):
        raise InputError(
            f"{file}: the split is empty; at least one line query<TAB>positive is needed"
        )
    conflict = rows.first_conflict()
    if conflict is not None:
        number = rows.line_numbers[conflict]
        text = corpus.texts[rows.doc_rows[conflict]]
        what = "has two labels" if layout.has_labels else "is positive and negative"
        raise InputError(f"{file}:{number}: a text {what} for the same query: {text[:60]!r}")
    lists = rows.without_repeats().lists()
    n_lines = len(np.unique(rows.line_numbers))
    notes = []
    n_queries = len(lists.query_rows)
    if not layout.has_labels and MANY_LINES_A_QUERY * n_queries <= n_lines:
        notes.append(
            f"{n_lines} lines hold {n_queries} queries; the lines of one query are one list, and an epoch has each query once"
        )
    return lists, notes


def _lines_with_ids(file: Path, layout: LineLayout) -> Iterator[Line]:
    for line in _text_lines(file, layout):
        query_id = id_of("q", line.query)
        for text, grade in line.graded_docs:
            yield line.number, (query_id, id_of("d", text), grade)


def _text_lines(file: Path, layout: LineLayout) -> Iterator[_TextLine]:
    """The lines of a file whose columns have been looked at."""
    for number, line in numbered_lines(file):
        is_header = number == layout.line_of_names
        if is_header:
            continue
        query, *texts = line.split("\t")
        if not layout.has_labels:
            grades = [1.0] + [0.0] * (len(texts) - 1)
            yield _TextLine(number, query, list(zip(texts, grades, strict=True)))
            continue
        where = f"{file}:{number}"
        if len(texts) != 2:
            raise InputError(
                f"{where}: expected 3 columns (query<TAB>document<TAB>label), got {len(texts) + 1}: {line[:60]!r}"
            )
        yield _TextLine(number, query, [(texts[0], trec.grade_of(texts[1], where))])
