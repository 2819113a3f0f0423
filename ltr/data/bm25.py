"""BM25: the lexical baseline, the first stage for re-ranking, and a source of hard negatives."""

import hashlib
import logging
import re

import bm25s
import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import cached
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists

log = logging.getLogger(__name__)

# as Anserini and the published BEIR baselines
K1 = 0.9
B = 0.4
_TERM = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)


def terms(text: str) -> list[str]:
    """Lower-case words; Chinese and Japanese as single characters and pairs of neighbours."""
    words = _TERM.findall(text.lower())
    wide = [len(word) == 1 and word >= "\u3040" for word in words]
    return words + [
        words[i] + words[i + 1] for i in range(len(words) - 1) if wide[i] and wide[i + 1]
    ]


def bm25_lists(collection: Collection, query_rows: np.ndarray, depth: int) -> QueryLists:
    """The best documents of the whole corpus for each query, best first, kept on disk.

    Scores are those of Lucene's variant with k1 0.9 and b 0.4, without stop words or stemming.

    Args:
        query_rows: ``[Q]`` ascending.
        depth: documents per query at most; those that share no term with the query are left out.
    """
    rows = np.ascontiguousarray(query_rows, dtype=np.int64)
    content = f"bm25-1 {collection.corpus.key} {collection.queries.key} {hashlib.sha256(rows.tobytes()).hexdigest()} {depth}"
    return QueryLists.load(
        cached("bm25", content, lambda folder: _search(collection, rows, depth).save(folder))
    )


def _search(collection: Collection, query_rows: np.ndarray, depth: int) -> QueryLists:
    log.info(
        "BM25: indexing %d documents, searching %d queries", len(collection.corpus), len(query_rows)
    )
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    vocabulary: dict[str, int] = {}
    ids = [
        [vocabulary.setdefault(t, len(vocabulary)) for t in terms(text)]
        for text in collection.corpus.texts
    ]
    index.index(bm25s.tokenization.Tokenized(ids=ids, vocab=vocabulary), show_progress=False)
    queries = []
    docs = []
    scores = []
    for query_row in track(query_rows.tolist(), "BM25", "queries"):
        known = [
            vocabulary[t] for t in terms(collection.queries.texts[query_row]) if t in vocabulary
        ]
        if not known:
            continue
        score = index.get_scores(known)
        last = np.partition(score, -depth)[-depth] if depth < len(score) else 0.0
        best = np.flatnonzero((score >= last) & (score > 0))
        best = best[np.lexsort((-best, -score[best]))][
            :depth
        ]  # equal scores at the cut: the larger row stays, as everywhere
        queries += [query_row] * len(best)
        docs += best.tolist()
        scores += score[best].tolist()
    return QueryLists.from_rows(queries, docs, scores)
