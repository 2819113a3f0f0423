"""What runs put on top: ranked documents with their grades and texts."""

import logging
from functools import cached_property
from pathlib import Path

import numpy as np

from ltr.compare.named_judgements import CollectionIds
from ltr.compare.tested_run import Run
from ltr.data.collection import Collection, open_collection, with_split
from ltr.data.judged_lists import lists_of_ranking
from ltr.data.query_lists import values_of, zero_below
from ltr.data.texts import TextTable, beginning
from ltr.errors import InputError

log = logging.getLogger(__name__)


class Ranking:
    """What a run ranked on the split that it was tested on, with the collection.

    Args:
        run: its file (``test.run`` in its folder) is read when it is first asked for.
        collection: holds judgements and texts.
    """

    def __init__(self, run: Run, collection: Collection) -> None:
        self.run = run
        self.collection = collection
        self._judged = collection.judgements(run.split)

    @cached_property
    def documents(self) -> dict[str, list[tuple[str, float]]]:
        """Ids and scores by query, best first; of equal scores the larger id, as in trec_eval.

        Raises:
            InputError: if the file ranks nothing, or a line of it is none of a run.
        """
        file = self.run.ranking
        queries = CollectionIds(self.collection.queries, "q")
        docs = CollectionIds(self.collection.corpus, "d")
        documents: dict[str, list[tuple[str, float]]] = {query: [] for query in self.queries}
        lists = lists_of_ranking(file, queries, docs)
        for query_row in lists.query_rows.tolist():
            query = queries.ids[query_row]
            if self.queries and query not in documents:  # nobody judged it, so it was not measured
                continue
            doc_rows, scores = lists.of(query_row)
            ids = [docs.ids[row] for row in doc_rows.tolist()]
            documents[query] = list(zip(ids, scores.tolist(), strict=True))
        return documents

    @property
    def queries(self) -> list[str]:
        """Those that were measured."""
        return list(next(iter(self.run.by_query.values()), ()))

    def has_only_known_documents(self) -> bool:
        """Whether the collection has all documents that are ranked."""
        docs = {doc for ranked in self.documents.values() for doc, _ in ranked}
        return bool((self.collection.corpus.rows(list(docs)) >= 0).all())

    def grades(self, query: str) -> dict[int, float]:
        """The grades of the documents that are judged for a query, by their rows."""
        doc_rows, grades = self._judged.of(row_of(self.collection.queries, query))
        return dict(zip(doc_rows.tolist(), grades.tolist(), strict=True))

    def precision(self, depth: int, level: int | None = None) -> np.ndarray:
        """``[depth]``: at each rank the share of relevant documents so far, the mean over the
        queries.

        Args:
            depth: how many ranks.
            level: the grade from which on a document is relevant; None: any above 0.
        """
        relevant = np.zeros((len(self.documents), depth))
        for row, (query, documents) in enumerate(self.documents.items()):
            doc_rows = [row_of(self.collection.corpus, doc) for doc, _ in documents[:depth]]
            ranked = np.array(doc_rows, dtype=np.int64)
            judged, grades = self._judged.of(row_of(self.collection.queries, query))
            relevant[row, : len(ranked)] = values_of(ranked, judged, zero_below(grades, level)) > 0
        return (relevant.cumsum(axis=1) / np.arange(1, depth + 1)).mean(axis=0)


def row_of(table: TextTable, name: str) -> int:
    """The row of a text; an InputError if it is not there."""
    row = table.row(name)
    if row is None:
        raise InputError(
            f"test.run names {name!r}, which is not in the collection; test the run again"
        )
    return row


def text_of(table: TextTable, name: str, letters: int) -> str:
    """The beginning of a text, in one line."""
    return beginning(table.texts[row_of(table, name)], letters)


def collection_of(run: Run) -> Collection | None:
    """The collection that a run was tested on, where its texts are still there; else None, and a
    warning says why.
    """
    path = run.config.get("data", {}).get("init_args", {}).get("path")
    if run.file is not None:
        path = run.report["path"]
    elif path is not None and run.config["data"]["class_path"].endswith("FeatureDataModule"):
        return None
    if path is None:
        return None
    if not isinstance(path, str):
        log.warning("documents are not shown of several sources: %s", run.folder)
        return None
    # A relative folder is looked for from where the run was started. What is not there, such as
    # ``package:NAME`` or a name on the hub, is opened as it is.
    from_start = Path(run.results.get("directory", "."), path)
    try:
        collection = open_collection(str(from_start) if from_start.exists() else path)
        if run.split != "test":
            collection = with_split(collection, run.split)
    except (InputError, OSError) as error:
        log.warning("documents are not shown: %s", error)
        return None
    evaluated = run.report["evaluated"]
    if "queries" not in evaluated:  # judgements of a file have measured it
        return None
    # Behind the digest of the texts may be one of an instruction.
    has_same_queries = str(evaluated["queries"]).split()[0] == collection.queries.key
    has_same_documents = evaluated.get("documents") == collection.corpus.key
    if has_same_queries and has_same_documents:
        return collection
    log.warning(
        "documents are not shown: the texts in %s have changed since %s was tested",
        path,
        run.folder,
    )
    return None
