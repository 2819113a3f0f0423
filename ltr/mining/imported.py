"""Negatives from elsewhere: a run file, an array of rows or a table becomes negatives that training reads."""

from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd

from ltr.data.collection import Collection, lists_of_lines, lists_of_run
from ltr.data.files import read_array
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.mining.negatives import MinedNegatives

RUNS = (".trec", ".trec.gz", ".run", ".run.gz")


def imported(source: Path, collection: Collection, distances: Path | None = None) -> MinedNegatives:
    """Make negatives of a file. Documents that are judged relevant in any split, or have the text of one that is, are left out.

    Args:
        source: a run file in TREC format (``.trec``, ``.run``, plain or ``.gz``), whose scores give the order; an array of
            document rows ``[Q, K]`` (``.npy``), hardest first, −1 where there is none; or a table (``.parquet``) with the columns
            query_id, doc_id and, if it has them, distance or score.
        collection: knows the ids.
        distances: an array ``[Q, K]`` beside that of rows: the Euclidean distance of each document to its query.

    Raises:
        InputError: for another kind of file, unknown ids, a document twice, distances below 0, or no negatives at all.
    """
    if distances is not None and source.suffix != ".npy":
        raise InputError(f"{source}: distances go with an array of rows (.npy)", option="distances")
    if source.name.endswith(RUNS):
        lists = _unknown(lists_of_run(source, collection.queries, collection.corpus))
    elif source.suffix == ".npy":
        lists = _from_arrays(source, distances, collection)
    elif source.suffix == ".parquet":
        lists = _from_table(source, collection)
    else:
        raise InputError(f"{source}: negatives must be a run file ({', '.join(RUNS)}), .npy or .parquet")
    if (lists.values < 0).any():
        raise InputError(f"{source}: distances must be at least 0, got {lists.values.min()}")
    query_rows = np.repeat(lists.query_rows, np.diff(lists.offsets))
    left = ~_relevant(query_rows, lists.doc_rows, collection)
    if not left.any():
        raise InputError(f"{source}: there must be a negative, got {len(left)} documents, all of them judged relevant")
    kept = QueryLists.from_rows(query_rows[left], lists.doc_rows[left], lists.values[left])
    manifest = {
        "key": kept.digest(),
        "source": source.name,
        "distance": None if np.isnan(kept.values).any() else "given with the source",
        "mined_queries": len(kept.query_rows),
        "counts": {"found": len(left), "relevant": int((~left).sum()), "chosen": int(left.sum())},
    }
    return MinedNegatives.of_lists(kept, len(collection.queries), manifest)


def _unknown(lists: QueryLists) -> QueryLists:
    """The same documents, whose distances nobody knows."""
    return lists._replace(values=np.full_like(lists.values, np.nan))


def _from_arrays(source: Path, distances: Path | None, collection: Collection) -> QueryLists:
    ids = read_array(source)
    known = np.zeros(ids.shape, np.float32) if distances is None else read_array(distances)
    lists = MinedNegatives(ids, known, {}).checked(str(source), collection).lists()
    pairs = np.repeat(lists.query_rows, np.diff(lists.offsets)) * len(collection.corpus) + lists.doc_rows
    if len(pairs) > len(np.unique(pairs)):
        values, counts = np.unique(pairs, return_counts=True)
        query, doc = divmod(int(values[counts > 1][0]), len(collection.corpus))
        raise InputError(f"{source}: a query must have a document once, got document {doc} again in row {query}")
    return _unknown(lists) if distances is None else lists


def _from_table(source: Path, collection: Collection) -> QueryLists:
    try:
        table = pd.read_parquet(source)
    except ImportError:
        raise InputError(f"{source}: parquet needs another package: pip install pyarrow") from None
    except Exception as error:  # whatever a broken file makes the reader stumble over
        raise InputError(f"{source}: expected a parquet file, got an error ({' '.join(str(error).split())[:100]})") from None
    if missing := {"query_id", "doc_id"} - {*table.columns}:
        raise InputError(f"{source}: a table must have the columns query_id and doc_id, and has no {' and no '.join(missing)}")
    name = next((name for name in ("distance", "score") if name in table), None)
    values = np.zeros(len(table)) if name is None else table[name].to_numpy(dtype=np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"{source}:{int(np.argmin(np.isfinite(values))) + 1}: a {name} must be a finite number (float32)")
    better = -values if name == "distance" else values
    lines = zip(count(1), zip(table["query_id"].map(str), table["doc_id"].map(str), better.tolist(), strict=True), strict=False)
    lists = lists_of_lines(source, "row", collection.queries, collection.corpus, lines)
    lists = lists if name is None else lists.best_first()
    return lists._replace(values=-lists.values) if name == "distance" else _unknown(lists)


def _relevant(query_rows: np.ndarray, doc_rows: np.ndarray, collection: Collection) -> np.ndarray:
    """``[P]`` bool, whether a document is judged relevant for its query, or has the text of one, or is the query itself."""
    judged = [(np.repeat(one.query_rows, np.diff(one.offsets)), one.doc_rows, one.values) for one in collection.qrels.values()]
    queries, docs, grades = (np.concatenate(parts) for parts in zip(*judged, strict=True))
    numbers: dict[str, int] = {}

    def pairs(query_rows: np.ndarray, doc_rows: np.ndarray) -> np.ndarray:
        """A number for each query and text."""
        rows, inverse = np.unique(doc_rows, return_inverse=True)
        texts = np.asarray([numbers.setdefault(collection.corpus.texts[row], len(numbers)) for row in rows.tolist()], np.int64)
        return query_rows * len(collection.corpus) + texts[inverse]

    found = np.isin(pairs(query_rows, doc_rows), pairs(queries[grades > 0], docs[grades > 0]))
    return found | (doc_rows == query_rows) if collection.queries.key == collection.corpus.key else found
