"""Several collections as one: their texts laid one behind the other.

Row r of the queries of source s has the number ``first_queries[s] + r`` among all, and so have its
documents. Sources whose corpus has the same texts share it: its rows are there once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ltr.data.collate import Collator, SourcesCollator, collator_of
from ltr.data.collection import Collection
from ltr.data.concatenated import concatenated
from ltr.data.layouts import TextReads
from ltr.data.query_lists import LabelledList
from ltr.data.texts import TextTable


@dataclass(frozen=True)
class Shift:
    """Gives a list of a source the numbers that its texts have among all.

    Attributes:
        first_query, first_doc: of the source, among all.
    """

    first_query: int
    first_doc: int

    def __call__(self, labelled: LabelledList) -> LabelledList:
        if self.first_query == 0 and self.first_doc == 0:  # of the first source: nothing is copied
            return labelled
        known_rows = labelled.known_rows
        return labelled._replace(
            query_row=labelled.query_row + self.first_query,
            doc_rows=labelled.doc_rows + self.first_doc,
            known_rows=None if known_rows is None else known_rows + self.first_doc,
        )


class JoinedCollections:
    """Collections under names, with the numbers of their texts among those of all.

    Args:
        names: each once.

    Attributes:
        first_queries: ``[S]`` int64, the number of the first query of each source.
        first_docs: ``[S]`` int64, that of the first document of its corpus.
        query_ids, doc_ids: ``SOURCE/ID`` by number; those of a shared corpus have the name of the
            first source that has it.
    """

    def __init__(self, names: Sequence[str], collections: Sequence[Collection]) -> None:
        self.names = tuple(names)
        self.collections = list(collections)
        query_tables = [collection.queries for collection in self.collections]
        query_counts = [len(table) for table in query_tables]
        self.first_queries = np.cumsum([0, *query_counts])[:-1]
        # Each corpus once, in the order of the sources that have it first.
        self._corpora: list[TextTable] = []
        corpus_names: list[str] = []
        number_of_corpus: dict[str, int] = {}  # by key
        corpus_of_source: list[int] = []
        for name, collection in zip(self.names, self.collections, strict=True):
            key = collection.corpus.key
            if key not in number_of_corpus:
                number_of_corpus[key] = len(self._corpora)
                self._corpora.append(collection.corpus)
                corpus_names.append(name)
            corpus_of_source.append(number_of_corpus[key])
        first_of_corpus = np.cumsum([0, *map(len, self._corpora)])[:-1]
        self.first_docs = first_of_corpus[corpus_of_source]
        self._queries = query_tables
        self.query_ids = concatenated([table.ids for table in query_tables], self.names)
        self.doc_ids = concatenated([table.ids for table in self._corpora], corpus_names)

    def shift_of(self, source: int) -> Shift:
        """What gives a list of a source the numbers that its texts have among all."""
        return Shift(int(self.first_queries[source]), int(self.first_docs[source]))

    def collator(self, reads: TextReads) -> Collator:
        """Makes batches of lists of all sources; each text is tokenised once."""
        collator = collator_of(self._queries, self._corpora, reads)
        return SourcesCollator(collator, self.first_queries)
