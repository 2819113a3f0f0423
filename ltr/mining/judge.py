"""A second ranker that scores what was found: above the relevant document, it is likely a false negative."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from ltr.data.collection import Collection
from ltr.data.formats import FeatureVectors, PairsAndTexts
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.models.ranker import Ranker
from ltr.search.pairs import pair_scores
from ltr.search.ranks import rank, summed, world_size


@dataclass
class Judge:
    """Scores documents of queries with a ranker of texts, a cross-encoder or a dual encoder.

    Args:
        name: the ranker's, for the manifest.
        ranker: reads the texts of the collection by its own tokenizer.
        collection: holds the texts.
    """

    name: str
    ranker: Ranker
    collection: Collection

    def scores(self, judged: QueryLists, doc_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of documents, and of the relevant document of each query that scores lowest.

        Args:
            judged: Q queries with their relevant documents.
            doc_rows: ``[Q, n]`` int64, −1 for none.

        Returns:
            ``[Q, n]`` and ``[Q]`` float32, the same on every process: each scores its share of the queries. 0 for no document.
        """
        own = range(rank(), len(doc_rows), world_size())
        lists = []
        for at in own:
            judged_rows, grades = judged.of(int(judged.query_rows[at]))
            rows = np.concatenate([judged_rows[grades > 0], doc_rows[at][doc_rows[at] >= 0]])
            lists.append(LabelledList(int(judged.query_rows[at]), rows, np.zeros(len(rows), dtype=np.float32)))
        whole = np.zeros((len(doc_rows), doc_rows.shape[1] + 1), dtype=np.float32)
        for at, scores in zip(own, self.scored(lists), strict=True):
            negative = doc_rows[at] >= 0
            n_relevant = len(scores) - negative.sum()
            whole[at, :-1][negative], whole[at, -1] = scores[n_relevant:], scores[:n_relevant].min()
        whole = summed(whole)
        return whole[:, :-1], whole[:, -1]

    def scored(self, lists: list[LabelledList]) -> list[np.ndarray]:
        """Scores of each list's documents."""
        reads, tables = self.ranker.reads, (self.collection.queries, self.collection.corpus)
        if isinstance(reads, FeatureVectors | PairsAndTexts):
            raise InputError(f"a judge must read texts, got {type(self.ranker).__name__}", option="judge")
        queries, docs = (TokenStore.open(*side) for side in zip(tables, reads.tokenizers, strict=True))
        reads.check_queries(tables[0].ids, tables[0].texts, queries)
        sizes = [len(one.doc_rows) for one in lists]
        query_rows = np.repeat(np.array([one.query_row for one in lists], np.int64), sizes)
        doc_rows = np.concatenate([np.empty(0, np.int64), *(one.doc_rows for one in lists)])
        scores = iter(pair_scores(self.ranker, queries, docs, query_rows, doc_rows))
        return [np.fromiter(islice(scores, size), np.float32, size) for size in sizes]
