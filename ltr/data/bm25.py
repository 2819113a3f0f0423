"""BM25: the lexical baseline, the first stage for re-ranking, and a source of hard negatives."""

import hashlib
import logging
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.cache_folder import cached, origin_of
from ltr.data.collection import Collection
from ltr.data.files import digest_of_arrays
from ltr.data.postings import Postings
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists
from ltr.data.terms import folded, terms
from ltr.data.texts import TextTable
from ltr.errors import InputError, one_of

# bm25s tries jax while it is imported, and jax takes three quarters of a GPU's memory with its first
# operation. Without jax bm25s uses NumPy.
_jax = sys.modules.get("jax")
sys.modules["jax"] = None  # type: ignore[assignment]  # import jax raises ImportError
try:
    import bm25s
    from bm25s import stopwords
finally:
    del sys.modules["jax"]
    if _jax is not None:
        sys.modules["jax"] = _jax

log = logging.getLogger(__name__)

DEPTH = 100  # documents of a query, where no option says how many
# As in Anserini and the published BEIR baselines.
K1 = 0.9
B = 0.4
# A corpus is indexed and searched in blocks of so many bytes of text, so that memory does not grow
# with it. Writing such a block takes 0.6 GB for text of English words.
BYTES_AT_ONCE = 1 << 26
TEXTS_AT_ONCE = 4096  # that are in memory while their terms are counted
# The lists of bm25s, by language.
STOP_WORDS: dict[str, Iterable[str]] = {
    name.removeprefix("STOPWORDS_").lower(): words
    for name, words in sorted(vars(stopwords).items())
    if name.startswith("STOPWORDS_")
}
STOP_WORDS["english"] = STOP_WORDS["en"]


@dataclass(frozen=True)
class Bm25Words:
    """Which words of a text BM25 reads: the option ``bm25`` of a data module.

    By default they are those of ``ltr.data.terms.terms``, all of them and as they are. Stop words
    are left out before what remains is stemmed, as in bm25s.

    Args:
        stemmer: the language of a Snowball stemmer, such as ``english``; None: words are not
            stemmed. It needs PyStemmer.
        stopwords: the language of a list of bm25s, such as ``english``; None: all words count.

    Raises:
        InputError: for a language that is not known, or a package that is missing.

    Example:
        >>> Bm25Words(stopwords="english").reader()("The cats are running")
        ['cats', 'running']
    """

    stemmer: str | None = None
    stopwords: str | None = None

    def __post_init__(self) -> None:
        # Errors name the option by its path below ``data``, which is no Python name.
        if self.stopwords is not None:
            one_of(STOP_WORDS, **{"bm25.stopwords": self.stopwords})
        if self.stemmer is not None:
            try:
                import Stemmer
            except ImportError:
                raise InputError(
                    "a stemmer needs another package: pip install PyStemmer", option="bm25.stemmer"
                ) from None
            one_of(Stemmer.algorithms(), **{"bm25.stemmer": self.stemmer})

    def reader(self) -> Callable[[str], list[str]]:
        """The function that reads the words of a text."""
        left_out = set(map(folded, STOP_WORDS[self.stopwords])) if self.stopwords else set()

        def kept_terms(text: str) -> list[str]:
            return [term for term in terms(text) if term not in left_out]

        read = kept_terms if left_out else terms
        if self.stemmer is None:
            return read
        import Stemmer

        stems = Stemmer.Stemmer(self.stemmer).stemWords
        return lambda text: stems(read(text))

    def in_words(self) -> str:
        """What is done to the words, for reports.

        >>> Bm25Words("english", "en").in_words()
        'stemmer english, stopwords en'
        """
        parts = {"stemmer": self.stemmer, "stopwords": self.stopwords}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)

    def key(self) -> str:
        """What it adds to the key of what is cached: nothing where all words count as they are."""
        key = ""
        if self.stopwords is not None:
            key += f" without {self.stopwords} of bm25s {version('bm25s')}"
        if self.stemmer is not None:
            key += f" stemmed as {self.stemmer} by {version('PyStemmer')}"
        return key


ALL_WORDS = Bm25Words()


def bm25_lists(
    collection: Collection, query_rows: np.ndarray, depth: int, words: Bm25Words = ALL_WORDS
) -> QueryLists:
    """The best documents of the whole corpus for each query, best first, cached on disk.

    Scores are those of Lucene's variant with k1 0.9 and b 0.4. The index of the corpus is cached,
    too, in blocks of documents: a kill while it is made loses the block that was begun.

    Args:
        collection: its corpus is searched.
        query_rows: ``[Q]`` ascending.
        depth: documents per query at most; those that share no term with the query are left out, and
            so is the document that a query is itself (:meth:`Collection.documents_left_out`).
        words: which words of the texts are read.
    """
    rows = np.ascontiguousarray(query_rows, dtype=np.int64)
    rows_digest = hashlib.sha256(rows.tobytes()).hexdigest()
    own_docs = collection.documents_left_out()[rows]
    content = f"bm25-3 {collection.corpus.key} {collection.queries.key} {rows_digest} {depth}"
    if (own_docs >= 0).any():
        content += f" without {digest_of_arrays(own_docs)}"
    content += words.key()
    return cached(
        "bm25",
        content,
        lambda folder: _search(collection, rows, own_docs.tolist(), depth, words).save(folder),
        QueryLists.load,
        origin_of(collection.corpus.folder, collection.queries.folder),
    )


def _postings_of(corpus: TextTable, block: slice, words: Bm25Words) -> Postings:
    """The postings of some documents, cached on disk."""

    def write(folder: Path) -> None:
        Postings.write(folder, _terms_of_block(corpus, block, words))

    return cached(
        "bm25-index",
        f"postings-2 {corpus.key} {block.start} {block.stop}{words.key()}",
        write,
        Postings,
        origin_of(corpus.folder),
    )


def _terms_of_block(corpus: TextTable, block: slice, words: Bm25Words) -> Iterator[list[str]]:
    """The terms of some documents, one after the other."""
    read = words.reader()
    for first in range(block.start, block.stop, TEXTS_AT_ONCE):
        stop = min(first + TEXTS_AT_ONCE, block.stop)
        yield from map(read, corpus.texts.between(first, stop))


class _Best(NamedTuple):
    """The best documents of a query so far, best first; of equal scores the larger row, as
    everywhere.
    """

    docs: np.ndarray  # int64
    scores: np.ndarray  # float32

    def merge_block(self, score_of_doc: np.ndarray, first_row: int, depth: int) -> "_Best":
        """The ``depth`` best of these and of a block of documents ``[D]``, which are in none of the
        blocks before and have larger rows.
        """
        if len(self.docs) < depth:
            docs = np.flatnonzero(score_of_doc > 0)
        else:
            # An equal score comes in, too: its row is the larger one.
            docs = np.flatnonzero(score_of_doc >= self.scores[-1])
        scores = score_of_doc[docs]
        if depth < len(docs):
            # Sorting all of them would take longer than this cut, which keeps those that share the
            # last score.
            last_score = np.partition(scores, -depth)[-depth]
            docs = docs[scores >= last_score]
            scores = score_of_doc[docs]
        docs = np.concatenate([self.docs, docs + first_row])
        scores = np.concatenate([self.scores, scores])
        order = np.lexsort((-docs, -scores))[:depth]
        return _Best(docs[order], scores[order])


_NOTHING = _Best(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))


def _search(
    collection: Collection,
    query_rows: np.ndarray,
    own_docs: list[int],
    depth: int,
    words: Bm25Words,
) -> QueryLists:
    """The lists of :func:`bm25_lists`: of each block of documents, one after the other, merged."""
    corpus = collection.corpus
    log.info("BM25: searching %d documents for %d queries", len(corpus), len(query_rows))
    vocabulary, terms_of_query = _numbered_terms(collection.queries, query_rows, words)
    blocks = corpus.texts.spans_of_bytes(BYTES_AT_ONCE)
    n_docs_with = np.zeros(len(vocabulary), dtype=np.int64)
    n_words = 0
    numbers_of_block = []  # of each block: the number that it has for each term of the vocabulary
    for block in track(blocks, "indexing for BM25", "blocks of documents"):
        postings = _postings_of(corpus, block, words)
        numbers = postings.numbers_of(vocabulary)
        numbers_of_block.append(numbers)
        n_docs_with += postings.n_docs_with(numbers)
        n_words += int(postings.lengths.sum())
    idf = _idf(n_docs_with, len(corpus))

    best = [_NOTHING] * len(terms_of_query)
    searches = list(zip(blocks, numbers_of_block, strict=True))
    for block, numbers in track(searches, "BM25", "blocks of documents"):
        postings = _postings_of(corpus, block, words)
        engine = _engine(postings, numbers, idf, n_words / len(corpus))
        for place in track(range(len(terms_of_query)), "BM25", "queries"):
            known = numbers[terms_of_query[place]]
            known = known[known >= 0]
            if len(known):
                score_of_doc = engine.get_scores_from_ids(known)
                if block.start <= own_docs[place] < block.stop:
                    score_of_doc[own_docs[place] - block.start] = 0
                best[place] = best[place].merge_block(score_of_doc, block.start, depth)

    n_docs = np.array([len(docs) for docs, _ in best], dtype=np.int64)
    has_docs = n_docs > 0
    return QueryLists(
        query_rows[has_docs],
        np.concatenate([[0], np.cumsum(n_docs[has_docs])]),
        np.concatenate([_NOTHING.docs, *[docs for docs, _ in best]]),
        np.concatenate([_NOTHING.scores, *[scores for _, scores in best]]),
    )


def _numbered_terms(
    queries: TextTable, query_rows: np.ndarray, words: Bm25Words
) -> tuple[list[str], list[np.ndarray]]:
    """The different terms of some queries, and of each query the numbers that its terms have among
    them.
    """
    read = words.reader()
    number_of: defaultdict[str, int] = defaultdict(count().__next__)  # a new term: the next
    numbers = []
    for query_row in query_rows.tolist():
        numbers_of_query = [number_of[term] for term in read(queries.texts[query_row])]
        numbers.append(np.array(numbers_of_query, dtype=np.int64))
    return list(number_of), numbers


def _idf(n_docs_with: np.ndarray, n_docs: int) -> np.ndarray:
    """``[T]`` float32: log(1 + (N - df + 0.5) / (df + 0.5)) of terms that df of N documents hold."""
    idf = [math.log(1 + (n_docs - df + 0.5) / (df + 0.5)) for df in n_docs_with.tolist()]
    return np.array(idf, dtype=np.float32)


def _engine(
    postings: Postings, term_numbers: np.ndarray, idf: np.ndarray, mean_length: float
) -> bm25s.BM25:
    """An index of bm25s for the terms of these numbers ``[T]`` alone; -1 is none.

    bm25s would take idf and mean length of the documents it is given. They must be those of the
    whole corpus, so the weight of each term in each document is computed here:
    idf * tf / (tf + k1 (1 - b + b * length / mean length)).
    """
    # Only what belongs to the terms is filled, and no memory is taken by the rest: a search asks
    # for these terms alone.
    weights = np.empty(len(postings.docs), dtype=np.float32)
    for number, idf_of_term in zip(term_numbers.tolist(), idf, strict=True):
        if number >= 0:
            span = slice(postings.starts[number], postings.starts[number + 1])
            tf = postings.counts[span]
            lengths = postings.lengths[postings.docs[span]]
            weights[span] = idf_of_term * (tf / (K1 * ((1 - B) + B * lengths / mean_length) + tf))
    engine = bm25s.BM25(k1=K1, b=B, method="lucene")
    engine.scores = {
        "data": weights,
        "indices": postings.docs,
        "indptr": postings.starts,
        "num_docs": len(postings.lengths),
    }
    engine.nonoccurrence_array = None  # a document without a term gets 0 for it
    return engine
