"""Lists by query, read from files of judgements, runs and pools: checked once, then cached."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ltr.data import trec
from ltr.data.cache_folder import Notes, cached, details, keep_notes, log_notes, origin_of
from ltr.data.columns import Label
from ltr.data.files import digest_of
from ltr.data.forms import Form
from ltr.data.lines import (
    IdTable,
    Line,
    LineRows,
    in_line,
    lines_of_all,
    lists_of_lines,
    look_up,
    second_of_pair,
)
from ltr.data.pair_files import (
    candidate_lines,
    columns_line,
    has_grades,
    judgement_lines,
    ranked_lines,
    scored_lines,
)
from ltr.data.progress import reading
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.errors import InputError

RUN = ".trec"  # how a run ends; other pools may be pairs

T = TypeVar("T")
Noted = tuple[T, Notes]  # what was read, and what is to be said of it


def cached_lists(
    files: Sequence[Path],
    queries: TextTable,
    corpus: TextTable,
    read: Callable[[Sequence[Path], TextTable, TextTable], Noted[QueryLists]],
    kind: str = "",
) -> QueryLists:
    """The lists of a file, or of the parts of one: read and checked once, then cached under the
    content of the files and of both tables, and mapped by every process. What is to be said of them
    is said at each opening.

    Args:
        files: to be read, in their order.
        queries, corpus: the tables that know the ids.
        read: reads them.
        kind: of the lists, where the same bytes may be read as others.
    """
    content = kind + " ".join(f"{Form(file).key}{digest_of(file)}" for file in files)
    if details.isEnabledFor(logging.INFO):
        label: Label = "grade" if read is read_judgements else "score"
        details.info("%s: columns are read as %s", files[0], columns_line(files[0], label))
    with reading(files):
        return cached_lists_of(files, content, queries, corpus, partial(read, files))


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


def read_judgements(files: Sequence[Path], queries: IdTable, corpus: IdTable) -> Noted[QueryLists]:
    """The judgements of a file, or of the parts of one. As in the files that others ship, absent
    queries and documents may be judged, and a pair twice with one grade: such judgements are left
    out and counted. Where none has a grade, each is of grade 1.
    """
    are_graded = has_grades(files[0])
    lines = lines_of_all(files, partial(judgement_lines, are_graded=are_graded))
    lists, notes = _known_lists(files, lines, "judgement", queries, corpus)
    if not are_graded:
        notes.left_out.append("judgements have no grades, so each pair that is listed has grade 1")
    return lists, notes


def read_scores(files: Sequence[Path], queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The scores of files of pairs. Those of absent queries and documents, and a pair again with the
    same score, are left out and counted.
    """
    lines = lines_of_all(files, scored_lines)
    lists, notes = _known_lists(files, lines, "score", queries, corpus)
    if Form(files[0]).n_columns == 3 and are_ranks(lists, files[0]):
        raise InputError(
            f"{files[0]}: column 3 must hold scores, higher for better documents, got whole numbers that rise from line to line of a query, as ranks do; write scores, or, where these are scores, query_id<TAB>doc_id<TAB>score as the first line"
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
    files: Sequence[Path],
    lines: Iterable[Line],
    kind: str,
    queries: IdTable,
    corpus: IdTable,
) -> Noted[QueryLists]:
    """Lines as lists by query, without those of absent queries and documents and those of a pair
    again, which are counted; an InputError for a pair with two values.
    """
    known, notes = known_judgements(files, look_up(lines, queries, corpus), kind)
    second = known.first_conflict()
    if second is not None:
        raise second_of_pair(files, kind, queries, corpus, known, second)
    return lists_without_repeats(files, known, notes)


def known_judgements(
    sources: Sequence[str | Path], rows: LineRows, kind: str = "judgement"
) -> Noted[LineRows]:
    """The judgements of queries and documents that are there; the notes say how many are of others.

    Args:
        sources: the files that they come from, for errors.
        rows: all judgements.
        kind: what a row is, if no judgement, for errors.

    Raises:
        InputError: if there is none, or none of a query and a document that are there.
    """
    if not len(rows):
        raise InputError(f"{sources[0]}: the split is empty; at least one {kind} is needed")
    known = rows.select((rows.query_rows >= 0) & (rows.doc_rows >= 0))
    if not len(known):
        raise InputError(
            f"{sources[0]}: at least one {kind} must be of a query and a document that are there, got {len(rows)} of others; these may be ids of other data"
        )
    left_out = []
    for side, side_rows in (("queries", rows.query_rows), ("documents", rows.doc_rows)):
        absent = np.flatnonzero(side_rows < 0)
        if len(absent):
            left_out.append(
                f"{len(absent)} of {len(rows)} {kind}s are of absent {side} and left out, first {in_line(sources, rows.line_numbers[absent[0]])}"
            )
    return known, Notes(f"{kind}s", len(rows), len(known), left_out)


def lists_without_repeats(
    sources: Sequence[str | Path], known: LineRows, notes: Notes
) -> Noted[QueryLists]:
    """The first judgement of each pair of a query and a document.

    Args:
        sources: the files that they come from.
        known: judgements of queries and documents that are there.
        notes: what is to be said of them already.
    """
    repeats = np.flatnonzero(known.first_places != np.arange(len(known)))
    left_out = notes.left_out
    if len(repeats):
        first = in_line(sources, known.line_numbers[repeats[0]])
        again = f"{len(repeats)} {notes.noun} are of a pair again and left out, first {first}"
        left_out = [*left_out, again]
    firsts = known.without_repeats()
    return firsts.lists(), notes._replace(n_kept=len(firsts), left_out=left_out)


def lists_of_run(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The documents of each query of a run file, best first; every id and pair checked."""
    return lists_of_lines([file], "line", queries, corpus, trec.read_run(file)).best_first()


def lists_of_ranking(file: Path, queries: IdTable, corpus: IdTable) -> QueryLists:
    """The documents of each query of a ranking in any form, in the order of trec_eval: best first, and
    of equal scores the larger id.
    """
    lists = lists_of_lines([file], "line", queries, corpus, ranked_lines(file))
    lists = _with_ranks_turned(lists, file).best_first()
    equals_next = (np.diff(lists.values) == 0) & (np.diff(lists.query_of_doc) == 0)
    is_tied = np.append(equals_next, False) | np.insert(equals_next, 0, False)
    tied_rows = np.unique(lists.doc_rows[is_tied])
    by_id = sorted(range(len(tied_rows)), key=[corpus.ids[row] for row in tied_rows].__getitem__)
    places = np.empty(len(tied_rows), dtype=np.int64)
    places[by_id] = np.arange(len(tied_rows))
    place_of_doc = np.zeros(len(lists.doc_rows), dtype=np.int64)
    place_of_doc[is_tied] = places[np.searchsorted(tied_rows, lists.doc_rows[is_tied])]
    order = np.lexsort((-place_of_doc, -lists.values, lists.query_of_doc))
    return lists._replace(doc_rows=lists.doc_rows[order], values=lists.values[order])


def open_pools(files: Sequence[Path], queries: TextTable, corpus: TextTable) -> QueryLists:
    """The lists of a run file; or of pairs, where those without a score have 0, so that their order
    tells nothing. Either may come in parts. All lines are kept.
    """
    # The same bytes as judgements are other lists; a run has six columns, and is only one.
    kind = "" if Form(files[0]).ending == RUN else "pools-2 "
    return cached_lists(files, queries, corpus, _read_pools, kind)


def _read_pools(files: Sequence[Path], queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    is_run = Form(files[0]).ending == RUN
    lines = lines_of_all(files, trec.read_run if is_run else candidate_lines)
    lists = lists_of_lines(files, "line", queries, corpus, lines)
    if not is_run:
        lists = _with_ranks_turned(lists, files[0])
    n_docs = len(lists.doc_rows)
    return lists.best_first(), Notes("candidates", n_docs, n_docs, [])


def _with_ranks_turned(lists: QueryLists, file: Path) -> QueryLists:
    """Higher numbers for better documents, also where text of three columns has ranks: MS MARCO's own
    form of a run.
    """
    if Form(file).n_columns == 3 and are_ranks(lists, file):
        return lists._replace(values=-lists.values)
    return lists
