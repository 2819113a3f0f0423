"""Files of texts that have no ids of their own: triples, pairs and labelled pairs with tabs between, and
rows with named columns.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data import trec
from ltr.data.files import digest_of, numbered_lines
from ltr.data.judged_lists import Noted, cached_lists_of
from ltr.data.lines import Line, look_up
from ltr.data.named_rows import is_row_file
from ltr.data.query_lists import QueryLists
from ltr.data.tab_separated import LineLayout, layout_of
from ltr.data.text_rows import Document, LeftOut, TextLine, read_text_rows, roles_in
from ltr.data.texts import Record, TextTable, first_of_each, id_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

# A query with as many lines or more gets the note that its lines are one list.
MANY_LINES_A_QUERY = 4
# Lines of one file at most: those of a second one are counted from here.
MOST_LINES = 2**40


class TextFiles(NamedTuple):
    """The files of a split, and how their lines are read.

    Attributes:
        files: in their order.
        layout: in words; the same bytes are other texts under another one.
        read: gives the lines of a file.
        has_labels: whether they are labelled, and no positives and negatives.
    """

    files: Sequence[Path]
    layout: str
    read: Callable[[Path, LeftOut], Iterator[TextLine]]
    has_labels: bool

    def lines(self, left_out: LeftOut) -> Iterator[tuple[Path, TextLine]]:
        """The lines of all files."""
        for file in self.files:
            for line in self.read(file, left_out):
                yield file, line

    def where(self, number: int) -> str:
        """The place of a line, by its number among those of all files."""
        place, line = divmod(number, MOST_LINES)
        return f"{self.files[place]}:{line}"


def open_text_files(files: Sequence[Path], columns: Mapping[str, str] | None = None) -> TextFiles:
    """How the files of a split are read: as their columns are called, or show.

    Args:
        files: of rows, or one with tabs between texts.
        columns: the column of each role, see :func:`ltr.data.column_roles.roles_of`; None: as they
            are called.

    Raises:
        InputError: as :func:`ltr.data.tab_separated.layout_of`, and
            :func:`ltr.data.column_roles.roles_of`.
    """
    if columns is None and not is_row_file(files[0]):
        (file,) = files
        layout = layout_of(file)
        read = partial(_tab_separated_lines, layout)
        return TextFiles(files, str(layout), read, layout.has_labels)
    roles, line = roles_in(files, columns)
    log.info("%s: columns are read as %s", files[0], line)
    read_rows_as = partial(read_text_rows, roles)
    return TextFiles(files, f"rows-1 {roles}", read_rows_as, roles.label is not None)


def read_triples(
    source: str, splits: dict[str, TextFiles]
) -> tuple[TextTable, TextTable, dict[str, QueryLists]]:
    """The documents, the queries and the judgements by split, checked at the first opening.

    Args:
        source: what the files were opened as, for errors and for ``ltr cache``.
        splits: the files of each.
    """
    digests = ""
    for split, texts in splits.items():
        digests_of_files = " ".join(map(digest_of, texts.files))
        # The same bytes are other texts under another layout.
        digests += f"{split} {digests_of_files} {texts.layout} "
    content = hashlib.sha256(digests.encode()).hexdigest()
    docs = first_of_each(_doc_records(splits))
    corpus = TextTable.open(content, docs, "document", source)
    query_records = first_of_each(_query_records(splits))
    queries = TextTable.open(content, query_records, "query", source)
    qrels = {}
    for split, texts in splits.items():
        qrels[split] = cached_lists_of(texts.files, queries, corpus, partial(_read_grades, texts))
    return corpus, queries, qrels


def read_scores(
    files: Sequence[Path], columns: Mapping[str, str] | None = None
) -> Iterator[tuple[str, tuple[str, str, float]]]:
    """The scores that stand in rows of texts, as a teacher's: of positives and negatives, and those
    of passages that are objects with a ``score``.

    Args:
        files: of a split.
        columns: see :func:`open_text_files`.

    Yields:
        the place ``file:line``, and the ids of query and document, as those of the collection of
        these files, with the score. Documents without one are left out.
    """
    for file, line in open_text_files(files, columns).lines(LeftOut()):
        for document in line.documents:
            if document.score is not None:
                yield f"{file}:{line.number}", (line.query_id, document.id, document.score)


def _doc_records(splits: dict[str, TextFiles]) -> Iterator[Record]:
    for texts in splits.values():
        for file, line in texts.lines(LeftOut()):
            source = str(file)
            for document in line.documents:
                yield Record(document.id, document.text, source, line.number)


def _query_records(splits: dict[str, TextFiles]) -> Iterator[Record]:
    for texts in splits.values():
        for file, line in texts.lines(LeftOut()):
            yield Record(line.query_id, line.query, str(file), line.number)


def _read_grades(texts: TextFiles, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The grades of all lines; a query and a document may stand together in several."""
    left_out = LeftOut()
    rows = look_up(_lines_with_ids(texts, left_out), queries, corpus)
    if not len(rows):
        raise InputError(
            f"{texts.files[0]}: the split is empty; at least one line query<TAB>positive is needed"
        )
    conflict = rows.first_conflict()
    if conflict is not None:
        where = texts.where(int(rows.line_numbers[conflict]))
        text = corpus.texts[rows.doc_rows[conflict]]
        what = "has two labels" if texts.has_labels else "is positive and negative"
        raise InputError(f"{where}: a text {what} for the same query: {text[:60]!r}")
    lists = rows.without_repeats().lists()
    n_lines = len(np.unique(rows.line_numbers))
    notes = left_out.notes()
    n_queries = len(lists.query_rows)
    if not texts.has_labels and MANY_LINES_A_QUERY * n_queries <= n_lines:
        notes.append(
            f"{n_lines} lines hold {n_queries} queries; the lines of one query are one list, and an epoch has each query once"
        )
    return lists, notes


def _lines_with_ids(texts: TextFiles, left_out: LeftOut) -> Iterator[Line]:
    first = {file: place * MOST_LINES for place, file in enumerate(texts.files)}
    for file, line in texts.lines(left_out):
        number = first[file] + line.number
        for document in line.documents:
            yield number, (line.query_id, document.id, document.label)


def _tab_separated_lines(layout: LineLayout, file: Path, _: LeftOut) -> Iterator[TextLine]:
    """The lines of a file whose columns have been looked at."""
    for number, line in numbered_lines(file):
        is_header = number == layout.line_of_names
        if is_header:
            continue
        query, *texts = line.split("\t")
        query_id = id_of("q", query)
        if not layout.has_labels:
            grades = [1.0] + [0.0] * (len(texts) - 1)
            documents = [
                Document(id_of("d", text), text, grade)
                for text, grade in zip(texts, grades, strict=True)
            ]
            yield TextLine(number, query_id, query, documents)
            continue
        where = f"{file}:{number}"
        if len(texts) != 2:
            raise InputError(
                f"{where}: expected 3 columns (query<TAB>document<TAB>label), got {len(texts) + 1}: {line[:60]!r}"
            )
        text, label = texts
        grade = trec.grade_of(label, where)
        yield TextLine(number, query_id, query, [Document(id_of("d", text), text, grade)])
