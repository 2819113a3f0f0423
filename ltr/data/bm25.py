"""BM25: the lexical baseline, the first stage for re-ranking, and a source of hard negatives."""

import hashlib
import logging
import re
from collections.abc import Iterable
from itertools import pairwise

import bm25s
import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import cached
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists

log = logging.getLogger(__name__)

# As in Anserini and the published BEIR baselines.
K1 = 0.9
B = 0.4
# Kana and Chinese characters, which are written without spaces: each is a term, any other run of
# letters and digits is one.
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_TERM = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")


def terms(text: str) -> list[str]:
    """Lower-case words; Chinese and Japanese as single characters and pairs of neighbours."""
    words = _TERM.findall(text.lower())
    pairs = []
    for word, next_word in pairwise(words):
        if _is_cjk(word) and _is_cjk(next_word):
            pairs.append(word + next_word)
    return words + pairs


def _is_cjk(word: str) -> bool:
    """Whether a term is a single character of _CJK. Any other single letter beyond U+3040 counts,
    too, such as a Hangul syllable that stands alone.
    """
    return len(word) == 1 and word >= "\u3040"


def bm25_lists(collection: Collection, query_rows: np.ndarray, depth: int) -> QueryLists:
    """The best documents of the whole corpus for each query, best first, cached on disk.

    Scores are those of Lucene's variant with k1 0.9 and b 0.4, without stop words or stemming.

    Args:
        collection: its corpus is searched.
        query_rows: ``[Q]`` ascending.
        depth: documents per query at most; those that share no term with the query are left out.
    """
    rows = np.ascontiguousarray(query_rows, dtype=np.int64)
    rows_digest = hashlib.sha256(rows.tobytes()).hexdigest()
    content = f"bm25-1 {collection.corpus.key} {collection.queries.key} {rows_digest} {depth}"
    folder = cached("bm25", content, lambda folder: _search(collection, rows, depth).save(folder))
    return QueryLists.load(folder)


def _search(collection: Collection, query_rows: np.ndarray, depth: int) -> QueryLists:
    log.info(
        "BM25: indexing %d documents, searching %d queries", len(collection.corpus), len(query_rows)
    )
    index, vocabulary = _index_of(collection.corpus.texts)
    queries = []
    docs = []
    scores = []
    for query_row in track(query_rows.tolist(), "BM25", "queries"):
        query_terms = terms(collection.queries.texts[query_row])
        known = [vocabulary[term] for term in query_terms if term in vocabulary]
        if not known:
            continue
        score_of_doc = index.get_scores(known)
        candidates = score_of_doc > 0
        if depth < len(score_of_doc):
            # Sorting all documents would take longer than this cut, which keeps those that share
            # the last score.
            last_score = np.partition(score_of_doc, -depth)[-depth]
            candidates &= score_of_doc >= last_score
        best = np.flatnonzero(candidates)
        # Of equal scores the larger row comes first, and stays at the cut, as everywhere.
        order = np.lexsort((-best, -score_of_doc[best]))
        best = best[order][:depth]
        queries += [query_row] * len(best)
        docs += best.tolist()
        scores += score_of_doc[best].tolist()
    return QueryLists.from_rows(queries, docs, scores)


def _index_of(texts: Iterable[str]) -> tuple[bm25s.BM25, dict[str, int]]:
    """The index of all texts, and the number of each of its terms."""
    vocabulary: dict[str, int] = {}
    ids = []
    for text in texts:
        ids_of_text = []
        for term in terms(text):
            # A new term takes the next number.
            ids_of_text.append(vocabulary.setdefault(term, len(vocabulary)))
        ids.append(ids_of_text)
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index(bm25s.tokenization.Tokenized(ids=ids, vocab=vocabulary), show_progress=False)
    return index, vocabulary
