"""Files of texts that have no ids of their own: triples, pairs and labelled pairs with tabs between, and
rows with named columns.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data import trec
from ltr.data.cache_folder import Notes, details, entry_folder
from ltr.data.column_roles import Roles, columns_named
from ltr.data.columns import is_certain
from ltr.data.counted_columns import may_be_name
from ltr.data.files import digest_of, numbered_lines_in, text_blocks
from ltr.data.forms import Form
from ltr.data.growing import GrowingNumbers
from ltr.data.judged_lists import Noted, cached_lists_of
from ltr.data.lines import LineRows, place_of_line
from ltr.data.named_rows import has_line_of_names, mentions, read_blocks, read_rows
from ltr.data.progress import reading
from ltr.data.query_lists import QueryLists
from ltr.data.separated_rows import ColumnBlock, Row, split_tabs
from ltr.data.tab_separated import LineLayout, layout_of
from ltr.data.text_lines import LeftOut, TextLines
from ltr.data.text_rows import Rows, roles_in, text_lines
from ltr.data.texts import TextTable, UnsortedTexts, id_of
from ltr.data.whole_files import being_written
from ltr.errors import InputError

log = logging.getLogger(__name__)

# What the columns of lines with tabs are for.
TRIPLES = Roles("query", None, ("positive",), ("negative",), None, None, None, None)
LABELLED = Roles("query", None, (), (), "document", "label", None, None)

# A query with as many lines or more gets the note that its lines are one list.
MANY_LINES_A_QUERY = 4


class TextFiles(NamedTuple):
    """The files of a split, and how their lines are read.

    Attributes:
        sources: the files, or another name of what is read, in their order.
        content: names the content of all of them.
        layout: in words; the same bytes are other texts under another one.
        readers: give the lines of each source.
        has_labels: whether they are labelled, and no positives and negatives.
        has_scores: whether the first rows have scores beside their documents, or a place for them.
    """

    sources: Sequence[str]
    content: str
    layout: str
    readers: Sequence[Callable[[LeftOut], Iterator[TextLines]]]
    has_labels: bool
    has_scores: bool = False


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
    content = " ".join(map(digest_of, files))
    if columns is not None or Form(files[0]).has_rows:
        rows = {str(file): partial(read_blocks, file) for file in files}
        texts = open_text_rows(rows, content, columns)
        if columns is not None:
            for file in files:
                _look_at_chosen(file, columns)
        return texts
    (file,) = files
    layout = layout_of(file, content)
    details.info("%s: columns are read as %s", file, layout.columns)
    roles = LABELLED if layout.has_labels else TRIPLES
    reader = partial(text_lines, roles, str(file), partial(_tab_separated_rows, layout, file))
    return TextFiles([str(file)], content, str(layout), [reader], layout.has_labels)


def _look_at_chosen(file: Path, columns: Mapping[str, str]) -> None:
    """Refuse chosen names that are no names but the values of a first row, which would be lost; where
    they may be either, say it.
    """
    _, row = next(read_rows(file), (0, {}))
    if not row or not has_line_of_names(file):
        return
    are_told_apart = False
    for value in columns.values():
        for name in columns_named(value, row):
            if not may_be_name(name) or name.endswith((".", "?", "!")):
                raise InputError(
                    f"{file}:1: the first line must hold the names of columns, got {name[:60]!r}, which may be a value of a first row that would be lost; write a line of names above it, such as query,positive"
                )
            is_one_word = len(name.split()) == 1 < len(row[name].split())
            are_told_apart = are_told_apart or is_certain(name) or is_one_word
    if not are_told_apart:
        log.warning(
            "%s:1: the first line is read as the names of columns, %s; where it is a row, write a line of names above it, such as query,positive",
            file,
            ", ".join(row)[:200],
        )


def open_text_rows(
    rows: Mapping[str, Rows], content: str, columns: Mapping[str, str] | None = None
) -> TextFiles:
    """The same of rows of a split, wherever they come from.

    Args:
        rows: by the names of their sources.
        content: names what all of them hold.
        columns: see :func:`open_text_files`.
    """
    roles, line, has_scores = roles_in(rows, columns)
    sources = list(rows)
    log.info("%s: columns are read as %s", sources[0], line)
    readers = [partial(text_lines, roles, source, rows[source]) for source in sources]
    has_labels = roles.label is not None
    return TextFiles(sources, content, f"rows-1 {roles}", readers, has_labels, has_scores)


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
        # The same bytes are other texts under another layout.
        digests += f"{split} {texts.content} {texts.layout} "
    content = hashlib.sha256(digests.encode()).hexdigest()

    def open_all(read: Callable[[], _Lines]) -> tuple[TextTable, TextTable, dict[str, QueryLists]]:
        corpus = TextTable.open_unsorted(content, lambda: read().documents, "document", source)
        queries = TextTable.open_unsorted(content, lambda: read().queries, "query", source)
        qrels = {}
        for split, texts in splits.items():
            grades = partial(_grades_of_split, read, split, texts)
            qrels[split] = cached_lists_of(texts.sources, texts.content, queries, corpus, grades)
        return corpus, queries, qrels

    with suppress(_NotReadError):
        return open_all(_not_read)
    files = [name for texts in splits.values() for name in texts.sources]
    # The lines are read once for all that is made of them. Who waits for this lock holds that of no
    # table, as who has it will wait for those.
    with being_written(entry_folder("texts", f"lines {content}")) as folder:
        with suppress(_NotReadError):
            return open_all(_not_read)  # another process has read them meanwhile
        with reading(files):
            return open_all(cache(lambda: _Lines(folder, splits)))


class _NotReadError(Exception):
    """Something is not in the cache, and the lines must be read for it."""


def _not_read() -> "_Lines":
    raise _NotReadError


class _Lines:
    """The lines of all splits, on disk as they come: their texts, how many documents each query has,
    and the labels of these.

    Attributes:
        documents, queries: the texts.
        left_out: of the lines, by split.
    """

    def __init__(self, folder: Path, splits: dict[str, TextFiles]) -> None:
        folder.mkdir()
        self.documents = UnsortedTexts(folder / "documents", "document")
        self.queries = UnsortedTexts(folder / "queries", "query")
        self.left_out: dict[str, LeftOut] = {}
        self._sizes_file = folder / "sizes.npy"
        self._labels_file = folder / "labels.npy"
        self._numbers: dict[str, tuple[slice, slice]] = {}  # of queries and documents, by split
        sizes = GrowingNumbers(self._sizes_file)
        labels = GrowingNumbers(self._labels_file, np.float32)
        with self.documents, self.queries, sizes, labels:
            for split, texts in splits.items():
                first_query = len(self.queries)
                first_document = len(self.documents)
                left_out = LeftOut()
                for source, read in zip(texts.sources, texts.readers, strict=True):
                    for lines in read(left_out):
                        self._append_texts(source, lines)
                        sizes.extend(lines.sizes)
                        labels.extend(lines.labels)
                documents = slice(first_document, len(self.documents))
                self._numbers[split] = slice(first_query, len(self.queries)), documents
                self.left_out[split] = left_out
                notes = left_out.notes()
                if notes and documents.start == documents.stop:
                    raise InputError(
                        f"{texts.sources[0]}: at least one row must have a query and a positive, got none: {'; '.join(notes)}"
                    )

    def _append_texts(self, source: str, lines: TextLines) -> None:
        numbers = np.repeat(lines.numbers, lines.sizes)
        try:
            self.documents.extend(lines.doc_ids, lines.texts, source, numbers)
            self.queries.extend(lines.query_ids, lines.queries, source, lines.numbers)
        except InputError:
            if len(lines.numbers) > 1:  # the first line that is wrong is told of
                for line in lines.each():
                    self._append_texts(source, line)
            raise

    def rows(self, split: str) -> LineRows:
        """The pairs of a query and a document of a split, by the rows of the tables."""
        queries, documents = self._numbers[split]
        sizes = np.load(self._sizes_file)[queries]
        return LineRows(
            self.documents.lines[documents],
            np.repeat(self.queries.rows[queries], sizes),
            self.documents.rows[documents],
            np.load(self._labels_file)[documents],
        )


def read_scores(texts: TextFiles) -> Iterator[tuple[str, tuple[str, str, float]]]:
    """The scores that stand in rows of texts, as a teacher's: of positives and negatives, and those
    of passages that are objects with a ``score``.

    Args:
        texts: of a split.

    Yields:
        the place ``file:line``, and the ids of query and document, as those of the collection of
        these files, with the score. Documents without one are left out.
    """
    for source, read in zip(texts.sources, texts.readers, strict=True):
        for lines in read(LeftOut()):
            for line in lines.each():
                query_id = line.query_ids[0] or id_of("q", line.queries[0].decode())
                for id_, text, score in zip(line.doc_ids, line.texts, line.scores, strict=True):
                    if score is not None:
                        where = f"{source}:{line.numbers[0]}"
                        yield where, (query_id, id_ or id_of("d", text.decode()), score)


def may_have_scores(texts: TextFiles) -> bool:
    """Whether :func:`read_scores` may find some: the first rows have a place for them, or objects of
    JSON have one further on.
    """
    return texts.has_scores or any(
        mentions(Path(source), ("text", "score")) for source in texts.sources
    )


def _grades_of_split(
    read: Callable[[], _Lines], split: str, texts: TextFiles, queries: TextTable, corpus: TextTable
) -> Noted[QueryLists]:
    """The grades of all lines; a query and a document may stand together in several."""
    lines = read()
    rows = lines.rows(split)
    if not len(rows):
        raise InputError(
            f"{texts.sources[0]}: the split is empty; at least one line query<TAB>positive is needed"
        )
    counted = lines.left_out[split]
    left_out = counted.notes()
    n_lines = 1 + np.count_nonzero(np.diff(rows.line_numbers))
    conflict = rows.first_conflict()
    if conflict is not None:
        where = place_of_line(lines.documents.sources, rows.line_numbers[conflict])
        text = corpus.texts[rows.doc_rows[conflict]]
        if texts.has_labels:
            raise InputError(f"{where}: a text has two labels for the same query: {text[:60]!r}")
        # As mined negatives have it: who mined knew the positives of one line.
        best = rows.best_of_pairs()
        n_left_out = len(rows) - len(best)
        left_out.append(
            f"{n_left_out} negatives are positives of the same query, too, and left out, first told by {Path(where).name}: {text[:60]!r}"
        )
        rows = best
    rows = rows.without_repeats()  # those with repeats need no more memory
    lists = rows.lists()
    n_queries = len(lists.query_rows)
    if not texts.has_labels and MANY_LINES_A_QUERY * n_queries <= n_lines:
        left_out.append(
            f"{n_lines} lines hold {n_queries} queries; the lines of one query are one list, and an epoch has each query once"
        )
    n_files = len(texts.sources)
    noun = "rows" if n_files == 1 else f"rows of {n_files} files"
    return lists, Notes(noun, counted.n_rows, counted.n_kept, left_out)


def _tab_separated_rows(layout: LineLayout, file: Path) -> Iterator[Row | ColumnBlock]:
    """The lines of a file whose columns have been looked at, with the columns of :data:`TRIPLES` or
    :data:`LABELLED`.
    """
    for first, block in text_blocks(file):
        if first > layout.line_of_names and not layout.has_labels:
            together = split_tabs(block)
            if together is not None:
                names = ["query", "positive", *["negative"] * (len(together.columns) - 2)]
                yield ColumnBlock(first + together.places, names, together.columns)
                continue
        for number, line in numbered_lines_in(file, first, block):
            is_header = number == layout.line_of_names
            if is_header:
                continue
            query, text, *others = line.split("\t")
            if not layout.has_labels:
                yield number, {"query": query, "positive": text, "negative": others}
                continue
            where = f"{file}:{number}"
            if len(others) != 1:
                raise InputError(
                    f"{where}: expected 3 columns (query<TAB>document<TAB>label), got {len(others) + 2}: {line[:60]!r}"
                )
            grade = trec.grade_of(others[0], where)
            yield number, {"query": query, "document": text, "label": grade}
