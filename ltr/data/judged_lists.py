"""Lists by query, read from files of judgements, runs and pools: checked once, then cached."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ltr.data import trec
from ltr.data.cache_folder import cached, keep_notes, log_notes, origin_of
from ltr.data.files import digest_of
from ltr.data.first_bytes import unpacked_name
from ltr.data.lines import Line, LineRows, lists_of_lines, look_up
from ltr.data.named_rows import is_row_file
from ltr.data.pair_files import candidate_lines, graded_lines, has_three_columns, scored_lines
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
    kind: str = "",
) -> QueryLists:
    """The lists of a file: read and checked once, then cached under the content of the file and of
    both tables, and mapped by every process. What is to be said of them is said at each opening.

    Args:
        file: to be read.
        queries, corpus: the tables that know its ids.
        read: reads it.
        kind: of the lists, where the same bytes may be read as others.
    """
    # The ending of rows with names chooses their reader.
    form = f"rows {Path(unpacked_name(file.name.lower())).suffix} " if is_row_file(file) else ""
    content = f"{kind}{form}{digest_of(file)}"
    return cached_lists_of([file], content, queries, corpus, partial(read, file))


def cached_lists_of(
    sources: Sequence[str | Path],
    content: str,
    queries: TextTable,
    corpus: TextTable,
    read: Callable[[TextTable, TextTable], Noted[QueryLists]],
) -> QueryLists:
    """The same of several files, or of what has another name, whose content is named by a text."""

    def build(folder: Path) -> None:
        lists, notes = read(queries, corpus)
        lists.save(folder)
        keep_notes(folder, notes)

    def open_lists(folder: Path) -> QueryLists:
        log_notes(folder, sources[0])
        return QueryLists.load(folder)

    # Without a kind, the same bytes never pass two readers: a run has six columns, judgements have
    # three or four, and the keys of texts from triples name the layout.
    content = f"lists-2 {content} {queries.key} {corpus.key}"
    origin = origin_of(*sources, queries.folder, corpus.folder)
    return cached("lists", content, build, open_lists, origin)


def read_judgements(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The judgements of a file. As in the files that others ship, absent queries and documents may be
    judged, and a pair twice with one grade: such judgements are left out and counted.
    """
    lines = graded_lines(file) if is_row_file(file) else trec.read_qrels(file)
    return _known_lists(file, lines, "judgement", queries, corpus)


def read_scores(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The scores of a file of pairs. Those of absent queries and documents, and a pair again with the
    same score, are left out and counted.
    """
    lists, notes = _known_lists(file, scored_lines(file), "score", queries, corpus)
    if has_three_columns(file) and are_ranks(lists, file):
        raise InputError(
            f"{file}: column 3 must hold scores, higher for better documents, got whole numbers that rise from line to line of a query, as ranks do; write scores, or, where these are scores, query_id<TAB>doc_id<TAB>score as the first line"
        )
    return lists, notes


def are_ranks(lists: QueryLists, file: Path) -> bool:
    """Whether the values of lists in the order of a file are ranks: whole numbers, each of a query
    larger than the one before. Lists of one document do not tell.

    Raises:
        InputError: where they may be ranks or scores: most lists begin with 1, and most numbers
            are no smaller than the one before.
    """
    is_behind_another = lists.place_in_list > 0
    rises = np.diff(lists.values, prepend=0)[is_behind_another]
    is_whole = lists.values == np.floor(lists.values)
    if not (len(rises) and (rises > 0).any() and is_whole.all()):
        return False
    if (rises > 0).all():
        return True
    firsts = lists.values[lists.offsets[:-1]][np.diff(lists.offsets) > 1]
    if (firsts == 1).mean() >= 0.5 and (rises >= 0).mean() >= 0.5:
        raise InputError(
            f"{file}: the numbers of column 3 may be ranks, which a query repeats, or scores; write query_id<TAB>doc_id<TAB>score as the first line, with higher numbers for better documents"
        )
    return False


def _known_lists(
    file: Path, lines: Iterable[Line], kind: str, queries: TextTable, corpus: TextTable
) -> Noted[QueryLists]:
    """Lines as lists by query, without those of absent queries and documents and those of a pair
    again, which are counted; an InputError for a pair with two values.
    """
    known, notes = known_judgements(str(file), look_up(lines, queries, corpus), kind)
    second = known.first_conflict()
    if second is not None:
        first = known.first_places[second]
        query_id = queries.ids[known.query_rows[second]]
        doc_id = corpus.ids[known.doc_rows[second]]
        raise InputError(
            f"{file}:{known.line_numbers[second]}: a second {kind} for query {query_id!r} and document {doc_id!r}, {known.values[second]:.9g}, first {known.values[first]:.9g} in line {known.line_numbers[first]}; keep one"
        )
    return lists_without_repeats(known, notes, kind)


def known_judgements(where: str, rows: LineRows, kind: str = "judgement") -> Noted[LineRows]:
    """The judgements of queries and documents that are there, and how many are of others.

    Args:
        where: they come from, for errors.
        rows: all judgements.
        kind: what a row is, if no judgement, for errors.

    Raises:
        InputError: if there is none, or none of a query and a document that are there.
    """
    if not len(rows):
        raise InputError(f"{where}: the split is empty; at least one {kind} is needed")
    known = rows.select((rows.query_rows >= 0) & (rows.doc_rows >= 0))
    if not len(known):
        raise InputError(
            f"{where}: at least one {kind} must be of a query and a document that are there, got {len(rows)} of others; these may be ids of other data"
        )
    notes = []
    for side, side_rows in (("queries", rows.query_rows), ("documents", rows.doc_rows)):
        absent = np.flatnonzero(side_rows < 0)
        if len(absent):
            notes.append(
                f"{len(absent)} of {len(rows)} {kind}s are of absent {side} and left out, first in line {rows.line_numbers[absent[0]]}"
            )
    return known, notes


def lists_without_repeats(
    known: LineRows, notes: list[str], kind: str = "judgement"
) -> Noted[QueryLists]:
    """The first judgement of each pair of a query and a document.

    Args:
        known: judgements of queries and documents that are there.
        notes: what is to be said of them already.
        kind: what a row is, if no judgement.
    """
    firsts = known.without_repeats()
    n_again = len(known) - len(firsts)
    if n_again:
        notes = [*notes, f"{n_again} {kind}s are of a pair again and left out"]
    return firsts.lists(), notes


def lists_of_run(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The documents of each query of a run file, best first; every id and pair checked."""
    return lists_of_lines(file, "line", queries, corpus, trec.read_run(file)).best_first()


def kind_of_pools(file: Path) -> str:
    """What makes lists of pools other ones than those of a run with the same bytes, for the cache."""
    return "" if ".trec" in file.suffixes else "pools "


def read_pools(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The lists of a run file; or of pairs, where those without a score have 0, so that their order
    tells nothing. Of them nothing is to be said.
    """
    if ".trec" in file.suffixes:
        return lists_of_run(file, queries, corpus), []
    lists = lists_of_lines(file, "line", queries, corpus, candidate_lines(file))
    if has_three_columns(file) and are_ranks(
        lists, file
    ):  # as MS MARCO's own form of a run has them
        lists = lists._replace(values=-lists.values)
    return lists.best_first(), []
