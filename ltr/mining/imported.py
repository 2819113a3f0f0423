"""Negatives from elsewhere: a run file, an array of rows or a file of pairs, for training to read."""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import map_given_array
from ltr.data.forms import Form, lines_of_columns
from ltr.data.judged_lists import are_ranks, known_judgements, lists_of_run, lists_without_repeats
from ltr.data.lines import Line, look_up
from ltr.data.pair_files import pair_rows
from ltr.data.query_lists import QueryLists, cannot_be_negatives
from ltr.data.trec import is_score
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives, lists_of_arrays
from ltr.mining.same_texts import excluded_documents

log = logging.getLogger(__name__)

RUN_ENDINGS = (".trec", ".run")  # or packed
LINES_LOOKED_AT = 1000  # that say what the third of three columns is


def negatives_of_file(
    source: Path,
    collection: Collection,
    distances: Path | None = None,
    systems: Sequence[str] | None = None,
) -> MinedNegatives:
    """Make negatives of a file.

    Documents that are judged relevant in any split, from the collection's level on, or have the text of one that is, are left out,
    and so are those that have the text of the query: see
    ``ltr.mining.same_texts.excluded_documents``.

    Args:
        source: a run file in TREC format (``.trec``, ``.run``, plain or packed), whose scores give
            the order; an array of document rows ``[Q, K]`` (``.npy``), hardest first, −1 where
            there is none; or any other file of pairs, see ``ltr.data.pair_files.pair_rows``. Of
            these distances or scores give the order where there are some, else the order of the
            file does.
        collection: knows the ids. Pairs of absent ones are left out with a warning, but for those
            of a run.
        distances: an array ``[Q, K]`` beside that of rows: the Euclidean distance of each document
            to its query.
        systems: whose documents to take, and in which order, of a file that has those of several
            for each query; None: those of all, in the order of the file.

    Raises:
        InputError: for another kind of file, unknown ids in a run, a document twice there,
            distances below 0, or no negatives at all.
    """
    if distances is not None and source.suffix != ".npy":
        raise InputError(f"{source}: distances go with an array of rows (.npy)", option="distances")
    is_run = Form(source).ending in RUN_ENDINGS
    if systems is not None and (is_run or source.suffix == ".npy"):
        raise InputError(
            f"{source}: a run and an array are of one system; leave the systems out",
            option="systems",
        )
    if is_run:
        lists = lists_of_run(source, collection.queries, collection.corpus).without_values()
    elif source.suffix == ".npy":
        lists = _from_arrays(source, distances, collection)
    else:
        lists = _from_pairs(source, collection, systems)
    if (lists.values < 0).any():
        raise InputError(f"{source}: distances must be at least 0, got {lists.values.min()}")
    query_rows = lists.query_of_doc
    is_excluded = _are_excluded(query_rows, lists.doc_rows, collection)
    if is_excluded.all():
        raise InputError(
            f"{source}: there must be a negative, got {len(is_excluded)} documents, all of them judged relevant or of the text of such a document or of the query"
        )
    negatives = QueryLists.from_rows(
        query_rows[~is_excluded], lists.doc_rows[~is_excluded], lists.values[~is_excluded]
    )
    has_distances = not np.isnan(negatives.values).any()
    manifest = {
        "key": negatives.digest(),
        "source": source.name,
        "distance": "given with the source" if has_distances else None,
        "relevant_from": collection.relevant_from,
        "mined_queries": len(negatives.query_rows),
        "counts": {
            "found": len(is_excluded),
            "relevant": int(is_excluded.sum()),
            "chosen": int((~is_excluded).sum()),
        },
    }
    return MinedNegatives(negatives, manifest, width=int(np.diff(negatives.offsets).max()))


def _are_excluded(
    query_rows: np.ndarray, doc_rows: np.ndarray, collection: Collection
) -> np.ndarray:
    """``[P]`` bool, which pairs of a query and a document must not be negatives."""
    n_docs = len(collection.corpus)
    judgements = [collection.learnt(split) for split in collection.qrels]
    known = [np.empty(0, np.int64)]
    for documents in [*judgements, excluded_documents(collection, *judgements)]:
        pairs = documents.query_of_doc * n_docs
        known.append((pairs + documents.doc_rows)[cannot_be_negatives(documents.values)])
    return np.isin(query_rows * n_docs + doc_rows, np.concatenate(known))


def _from_arrays(source: Path, distances: Path | None, collection: Collection) -> QueryLists:
    array = map_given_array(source)
    if distances is None:
        values = np.full(array.shape, np.nan, np.float32)
    else:
        values = map_given_array(distances)
    known = distances is not None
    lists = lists_of_arrays(str(source), collection, array, values, known=known)
    # Each pair of a query and a document gets a number of its own.
    n_docs = len(collection.corpus)
    pairs, counts = np.unique(lists.query_of_doc * n_docs + lists.doc_rows, return_counts=True)
    if (counts > 1).any():
        query_row, doc_row = divmod(int(pairs[counts > 1][0]), n_docs)
        raise InputError(
            f"{source}: a query must have a document once, got document {doc_row} again in row {query_row}"
        )
    return lists


def _from_pairs(source: Path, collection: Collection, systems: Sequence[str] | None) -> QueryLists:
    """The pairs of a file, hardest first. The values are distances, or NaN where it has none."""
    has_three_columns = Form(source).n_columns == 3
    is_triples = has_three_columns and _are_triples(source, collection)
    seen: set[str] = set()  # the systems of the file
    kinds: set[str] = set()  # of the values
    relevant: list[int] = []  # the numbers of rows that call their document so

    def lines() -> Iterator[Line]:
        for number, row in pair_rows(source, is_triples):
            if row.has_grade_from(collection.relevant_from):
                relevant.append(number)
                continue
            seen.update(row.systems)
            kind, pairs = row.negatives(systems)
            kinds.add(kind)
            for pair in pairs:
                yield number, pair

    rows = look_up(lines(), collection.queries, collection.corpus)
    absent = [] if systems is None else [name for name in systems if name not in seen]
    if absent:
        there = ", ".join(sorted(seen)) or "no names of systems"
        raise InputError(
            f"{source}: systems must be some of those of the file, got {absent[0]!r}; it has {there}",
            option="systems",
        )
    if len(kinds) > 1:
        raise InputError(
            f"{source}: all rows or none must have a distance or a score, got {' and '.join(sorted(kinds))}"
        )
    if relevant:
        n_rows = len(relevant)
        log.warning(
            "%s: %d rows are of documents that their grade calls relevant and left out, first in line %d",
            source,
            n_rows,
            relevant[0],
        )
    known, notes = known_judgements([source], rows, "negative")
    lists, notes = lists_without_repeats([source], known, notes)
    for note in notes.left_out:
        log.warning("%s: %s", source, note)
    if kinds == {"order"} or (has_three_columns and are_ranks(lists, source)):
        return lists.without_values()
    lists = lists.best_first()
    if kinds == {"distance"}:
        return lists._replace(values=-lists.values)
    return lists.without_values()


def _rise_in_queries(query_ids: Sequence[str], numbers: Sequence[str]) -> bool:
    """Whether numbers rise from line to line of each query, and a query has several."""
    last: dict[str, int] = {}
    several = False
    for query, number in zip(query_ids, map(int, numbers), strict=True):
        if query in last:
            several = True
            if number <= last[query]:
                return False
        last[query] = number
    return several


def _are_triples(source: Path, collection: Collection) -> bool:
    """Whether three columns without names are ids of a query, a positive and a negative, and not a
    score or a rank behind a pair.

    Words that are ids can be no scores. Of numbers, those behind a pair that comes again are ids,
    and so are those of a file called so; those that rise within each query behind documents that
    are not relevant are ranks.

    Raises:
        InputError: where numbers may be either.
    """
    first_lines = [parts for _, parts in islice(lines_of_columns(source), LINES_LOOKED_AT)]
    query_ids, doc_ids, third = zip(
        *(parts for parts in first_lines if len(parts) == 3), strict=True
    )
    query_rows = collection.queries.rows(query_ids)
    doc_rows = collection.corpus.rows(doc_ids)
    are_there = collection.corpus.rows(third) >= 0
    n_docs = len(collection.corpus)
    relevant = [np.empty(0, np.int64)]
    for judged in collection.qrels.values():
        pairs = judged.query_of_doc * n_docs + judged.doc_rows
        relevant.append(pairs[judged.values > 0])
    is_known = (query_rows >= 0) & (doc_rows >= 0)
    pairs = query_rows[is_known] * n_docs + doc_rows[is_known]
    are_relevant = len(pairs) and np.isin(pairs, np.concatenate(relevant)).mean() > 0.5
    are_numbers = all(map(is_score, third))
    are_triples = bool(are_there.any()) and not are_numbers
    if are_there.any() and all(map(str.isdecimal, third)):
        thirds = dict(zip(zip(query_ids, doc_ids, strict=True), third, strict=True))
        come_again = any(
            thirds[query, doc] != other
            for query, doc, other in zip(query_ids, doc_ids, third, strict=True)
        )
        are_triples = come_again or "triples" in source.name
        are_ranks_behind = not are_relevant and _rise_in_queries(query_ids, third)
        is_unclear = are_relevant or bool(are_there.all())
        if is_unclear and not (are_triples or are_ranks_behind):
            raise InputError(
                f"{source}: the numbers of column 3 may be ids of documents or scores; write names in the first line, query_id<TAB>pos<TAB>neg or query_id<TAB>doc_id<TAB>score"
            )
    if are_triples:
        log.info("%s: three columns are read as a query, a positive and a negative", source)
    return are_triples
