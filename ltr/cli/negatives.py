"""``ltr negatives``: folders of negatives made of other files, compared, and audited."""

import logging
from collections.abc import Iterator
from pathlib import Path

import jsonargparse
import numpy as np

from ltr.cli.audit import Data, audit
from ltr.data.collection import Collection, open_collection
from ltr.data.files import write_whole
from ltr.data.texts import TextTable
from ltr.errors import InputError
from ltr.mining.compare import SideBySide
from ltr.mining.imported import imported
from ltr.mining.negatives import MinedNegatives

log = logging.getLogger(__name__)

SHOWN = 3  # queries that changed, and suspects
LETTERS = 100  # of a text


def import_negatives(source: str, output: str, data: Data, distances: str | None = None) -> None:
    """Make a folder of negatives of a run file, an array or a table.

    Args:
        source: A run file in TREC format (.trec, .run, plain or .gz), document rows [Q, K] (.npy), or a table with the columns
            query_id, doc_id and, if it has them, distance or score (.parquet).
        output: The new folder.
        data: The collection.
        distances: An array [Q, K] (.npy) beside that of rows: the Euclidean distances of documents and queries.
    """
    if Path(output).exists():
        raise InputError(f"{output} must be a new folder, and is there already; name another one")
    collection = open_collection(data.path)
    found = imported(Path(source), collection, None if distances is None else Path(distances))
    found.save(Path(output), collection)
    counts, known = found.manifest["counts"], "with distances" if found.has_distances else "without distances"
    log.info("%s: %d negatives of %d queries, %s", output, counts["chosen"], found.manifest["mined_queries"], known)
    if counts["relevant"]:
        log.info("  %d documents are left out: they, or others of the same text, are judged relevant", counts["relevant"])
    if "train" in collection.qrels:
        without = np.setdiff1d(collection.qrels["train"].query_rows, found.lists().query_rows)
        log.info("  %d training queries have none", len(without))
    log.info("  to train on them: --data.negatives %s", output)


def diff(first: str, second: str, data: Data, tsv: str | None = None) -> None:
    """Compare two folders of negatives: overlap, moved ranks, queries that changed most, likely false negatives.

    Args:
        first: A folder of negatives.
        second: Another one.
        data: The collection.
        tsv: Also write all pairs of queries and documents to this file.
    """
    collection = open_collection(data.path)
    folders = [MinedNegatives.open(Path(path), collection) for path in (first, second)]
    for path, one in zip((first, second), folders, strict=True):
        if not (one.ids >= 0).any():
            raise InputError(f"{path}: there must be a negative to compare, and there is none")
    pairs = SideBySide.of(*folders)
    for line in _told(pairs, collection):
        log.info("%s", line)
    if tsv is not None:
        write_whole(tsv, _table(pairs, collection))
        log.info("all %d pairs are in %s", len(pairs.doc_rows), tsv)


def _told(pairs: SideBySide, collection: Collection) -> Iterator[str]:
    queries, jaccard = pairs.changed()
    first, second = (pairs.ranks > 0).T
    yield f"{first.sum():,} and {second.sum():,} negatives, {(first & second).sum():,} in both; {len(queries):,} queries in both"
    for k in (1, 5, 10, None):
        one, name = pairs.overlap(k), "all" if k is None else f"first {k}"
        yield f"  {name:8} {one.share:7.1%} of the first folder's are in the second; Jaccard {one.jaccard:.3f}"
    yield f"  a negative of both moves by {pairs.rank_shift():.1f} places on average"
    yield "changed most:"
    for query, value in zip(queries[:SHOWN].tolist(), jaccard[:SHOWN].tolist(), strict=True):
        yield f"  {value:.3f} {_shown(collection.queries, query)}"
    if np.isnan(pairs.nearness).all():
        yield "no folder says how far relevant documents are, which would tell likely false negatives"
        return
    suspects = np.flatnonzero(pairs.suspected)
    suspects = suspects[np.argsort(pairs.nearness[suspects], kind="stable")]
    yield f"likely false negatives (in both, nearer than relevant documents are on average): {len(suspects):,} pairs"
    for at in suspects[:SHOWN].tolist():
        yield f"  {_shown(collection.queries, int(pairs.query_rows[at]))}"
        near = f"rank {pairs.ranks[at, 0]} and {pairs.ranks[at, 1]}, at {pairs.nearness[at]:.0%} of that distance"
        yield f"    {near}: {_shown(collection.corpus, int(pairs.doc_rows[at]))}"


def _shown(table: TextTable, row: int) -> str:
    return f"{table.ids[row]}: {_short(table.texts[row])}"


def _table(pairs: SideBySide, collection: Collection) -> Iterator[str]:
    """A line for each pair; texts where it is suspected."""
    yield "query\tdoc\trank_1\trank_2\tdistance_1\tdistance_2\tsuspected\tquery_text\tdoc_text\n"
    for query, doc, ranks, distances, suspected, _ in zip(*(part.tolist() for part in pairs), strict=True):
        known = ["" if value != value else f"{value:.6g}" for value in distances]  # NaN differs from itself
        texts = [_short(collection.queries.texts[query]), _short(collection.corpus.texts[doc])] if suspected else ["", ""]
        cells = [collection.queries.ids[query], collection.corpus.ids[doc], *(str(rank or "") for rank in ranks), *known]
        yield "\t".join([*cells, str(int(suspected)), *texts]) + "\n"


def _short(text: str) -> str:
    """The beginning of a text, in one line."""
    text = " ".join(text.split())
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}…"


COMMANDS = {"import": import_negatives, "diff": diff, "audit": audit}


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr negatives``, and do what they say."""
    jsonargparse.auto_cli(COMMANDS, args=args, prog="ltr negatives", exit_on_error=False, allow_abbrev=False)
