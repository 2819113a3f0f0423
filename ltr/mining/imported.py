"""Negatives from elsewhere: a run file, an array of rows or a table, for training to read."""

from pathlib import Path

import numpy as np
import pandas as pd

from ltr.data.collection import Collection
from ltr.data.files import map_given_array
from ltr.data.first_bytes import unpacked_name
from ltr.data.judged_lists import lists_of_run
from ltr.data.lines import lists_of_lines
from ltr.data.query_lists import QueryLists, cannot_be_negatives
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives, lists_of_arrays
from ltr.mining.same_texts import excluded_documents

RUN_ENDINGS = (".trec", ".run")  # or packed


def negatives_of_file(
    source: Path, collection: Collection, distances: Path | None = None
) -> MinedNegatives:
    """Make negatives of a file.

    Documents that are judged relevant in any split, or have the text of one that is, are left out,
    and so are those that have the text of the query: see
    :func:`ltr.mining.same_texts.excluded_documents`.

    Args:
        source: a run file in TREC format (``.trec``, ``.run``, plain or packed), whose scores give
            the order; an array of document rows ``[Q, K]`` (``.npy``), hardest first, −1 where
            there is none; or a table (``.parquet``) with the columns query_id, doc_id and, if it
            has them, distance or score.
        collection: knows the ids.
        distances: an array ``[Q, K]`` beside that of rows: the Euclidean distance of each document
            to its query.

    Raises:
        InputError: for another kind of file, unknown ids, a document twice, distances below 0, or
            no negatives at all.
    """
    if distances is not None and source.suffix != ".npy":
        raise InputError(f"{source}: distances go with an array of rows (.npy)", option="distances")
    if unpacked_name(source.name).endswith(RUN_ENDINGS):
        lists = lists_of_run(source, collection.queries, collection.corpus).without_values()
    elif source.suffix == ".npy":
        lists = _from_arrays(source, distances, collection)
    elif source.suffix == ".parquet":
        lists = _from_table(source, collection)
    else:
        raise InputError(
            f"{source}: negatives must be a run file (.trec, .trec.gz, .run, .run.gz; lines query Q0 doc rank score tag), .npy, or .parquet with query_id and doc_id"
        )
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
    judgements = list(collection.qrels.values())
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


def _from_table(source: Path, collection: Collection) -> QueryLists:
    try:
        table = pd.read_parquet(source)
    except ImportError:
        raise InputError(f"{source}: parquet needs another package: pip install pyarrow") from None
    except Exception as error:  # whatever a broken file makes the reader stumble over
        text = " ".join(str(error).split())[:100]
        raise InputError(f"{source}: expected a parquet file, got an error ({text})") from None
    missing = {"query_id", "doc_id"} - {*table.columns}
    if missing:
        raise InputError(
            f"{source}: a table must have the columns query_id and doc_id, and has no {' and no '.join(missing)}"
        )
    if "distance" in table:
        column = "distance"
    elif "score" in table:
        column = "score"
    else:
        column = None  # the documents keep their order
    values = np.zeros(len(table))
    if column is not None:
        values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float32)
    is_finite = np.isfinite(values)
    if not is_finite.all():
        first = int(np.argmin(is_finite)) + 1
        raise InputError(f"{source}:{first}: a {column} must be a finite number (float32)")
    # Lists are sorted by value, largest first: distances change their sign before, and back after.
    sorted_by = -values if column == "distance" else values
    query_ids = table["query_id"].map(str)
    doc_ids = table["doc_id"].map(str)
    lines = enumerate(zip(query_ids, doc_ids, sorted_by.tolist(), strict=True), start=1)
    lists = lists_of_lines(source, "row", collection.queries, collection.corpus, lines)
    if column is not None:
        lists = lists.best_first()
    if column == "distance":
        return lists._replace(values=-lists.values)
    return lists.without_values()
