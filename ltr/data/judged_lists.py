"""Lists by query, read from files of judgements, runs and pools: checked once, then cached."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ltr.data import trec
from ltr.data.cache_folder import cached, keep_notes, log_notes, origin_of
from ltr.data.files import digest_of
from ltr.data.lines import LineRows, lists_of_lines, look_up
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.errors import InputError

T = TypeVar("T")
Noted = tuple[T, list[str]]  # what was read, and what is to be said of it


def cached_lists(
    file: Path,
    queries: TextTable,
    corpus: TextTable,
    read: Callable[[Path, TextTable, TextTable], Noted[QueryLists]],
) -> QueryLists:
    """The lists of a file: read and checked once, then cached under the content of the file and of
    both tables, and mapped by every process. What is to be said of them is said at each opening.
    """
    return cached_lists_of([file], queries, corpus, partial(read, file))


def cached_lists_of(
    files: Sequence[Path],
    queries: TextTable,
    corpus: TextTable,
    read: Callable[[TextTable, TextTable], Noted[QueryLists]],
) -> QueryLists:
    """The same of several files, in their order."""

    def build(folder: Path) -> None:
        lists, notes = read(queries, corpus)
        lists.save(folder)
        keep_notes(folder, notes)

    def open_lists(folder: Path) -> QueryLists:
        log_notes(folder, files[0])
        return QueryLists.load(folder)

    # The reader is no part of the key, as the same bytes never pass two of them: a run has six
    # columns, judgements have three or four, and the keys of texts from triples name the layout.
    digests = " ".join(map(digest_of, files))
    content = f"lists-2 {digests} {queries.key} {corpus.key}"
    origin = origin_of(*files, queries.folder, corpus.folder)
    return cached("lists", content, build, open_lists, origin)


def read_judgements(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The judgements of a file. As in the files that others ship, absent queries and documents may be
    judged, and a pair twice with one grade: such judgements are left out and counted.
    """
    rows = look_up(trec.read_qrels(file), queries, corpus)
    known, notes = known_judgements(str(file), rows)
    second = known.first_conflict()
    if second is not None:
        first = known.first_places[second]
        query_id = queries.ids[known.query_rows[second]]
        doc_id = corpus.ids[known.doc_rows[second]]
        raise InputError(
            f"{file}:{known.line_numbers[second]}: a second judgement for query {query_id!r} and document {doc_id!r}, {known.values[second]:g}, first {known.values[first]:g} in line {known.line_numbers[first]}; keep one"
        )
    return lists_without_repeats(known, notes)


def known_judgements(where: str, rows: LineRows) -> Noted[LineRows]:
    """The judgements of queries and documents that are there, and how many are of others.

    Args:
        where: they come from, for errors.
        rows: all judgements.

    Raises:
        InputError: if there is none, or none of a query and a document that are there.
    """
    if not len(rows):
        raise InputError(f"{where}: the split is empty; at least one judgement is needed")
    known = rows.select((rows.query_rows >= 0) & (rows.doc_rows >= 0))
    if not len(known):
        raise InputError(
            f"{where}: at least one judgement must be of a query and a document that are there, got {len(rows)} of others; these may be ids of other data"
        )
    notes = []
    for kind, kind_rows in (("queries", rows.query_rows), ("documents", rows.doc_rows)):
        absent = np.flatnonzero(kind_rows < 0)
        if len(absent):
            notes.append(
                f"{len(absent)} of {len(rows)} judgements are of absent {kind} and left out, first in line {rows.line_numbers[absent[0]]}"
            )
    return known, notes


def lists_without_repeats(known: LineRows, notes: list[str]) -> Noted[QueryLists]:
    """The first judgement of each pair of a query and a document.

    Args:
        known: judgements of queries and documents that are there.
        notes: what is to be said of them already.
    """
    firsts = known.without_repeats()
    n_again = len(known) - len(firsts)
    if n_again:
        notes = [*notes, f"{n_again} judgements are of a pair again and left out"]
    return firsts.lists(), notes


def lists_of_run(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The documents of each query of a run file, best first; every id and pair checked."""
    return lists_of_lines(file, "line", queries, corpus, trec.read_run(file)).best_first()


def read_pools(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The lists of a run file, of which nothing is to be said."""
    return lists_of_run(file, queries, corpus), []
