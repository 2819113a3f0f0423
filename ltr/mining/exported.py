"""Mined negatives as a run file, for other tools."""

from collections.abc import Iterator

from ltr.data.collection import Collection
from ltr.data.trec import RunLine, write_run
from ltr.mining.mined_negatives import MinedNegatives


def write_trec(file: str, negatives: MinedNegatives, collection: Collection) -> None:
    """Write negatives as a run file in TREC format, hardest first; the score is 1 / rank."""
    write_run(file, _ranked(negatives, collection), "mined")


def _ranked(negatives: MinedNegatives, collection: Collection) -> Iterator[RunLine]:
    lists = negatives.lists
    for query in lists.query_rows.tolist():
        doc_rows = lists.of(query)[0].tolist()
        for rank, doc in enumerate(doc_rows, start=1):
            yield RunLine(collection.queries.ids[query], collection.corpus.ids[doc], 1 / rank)
