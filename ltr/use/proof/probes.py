"""The probes of a proof: queries, each with some documents, that show what a server may do wrong.

Most are queries of dev (else test, else train) and documents of the corpus. Some are changed so that every layer has a text that
shows it: documents and a query that are too long, and texts that ship with ltr.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ltr.data.collection import Collection
from ltr.use.proof.shipped_texts import DOCUMENTS, QUERIES

N_LISTS = 16
N_DOCUMENTS = 4  # of a list
LONGEST = 2048  # tokens of the longest probe: a server that cuts, cuts earlier


class ProbeList(NamedTuple):
    """A query with its documents, as texts."""

    query: str
    documents: list[str]


def probe_lists(
    collection: Collection | None, longest: int, n_tokens: Callable[[str], int], query_room: int
) -> list[ProbeList]:
    """``N_LISTS`` queries with ``N_DOCUMENTS`` documents each.

    Args:
        collection: of whose dev split (else test, else train) they are, as far as it has one; None: texts that ship.
        longest: tokens of the longest text, or joined pair, that the ranker reads.
        n_tokens: of a query.
        query_room: tokens of the longest query that leaves room for a document; longer ones are
            shortened.
    """
    lists = [] if collection is None else _lists_of_data(collection)
    shipped = _shipped()
    # The last lists are of the texts that ship: they have capitals, accents, brackets.
    n_of_data = min(len(lists), N_LISTS * 3 // 4)
    lists = lists[:n_of_data] + shipped[n_of_data:]
    words = [word for one in lists for text in one.documents for word in text.split()]
    n_words = min(longest, LONGEST)
    # Three documents that are cut, of other words.
    for place in range(3):
        documents = list(lists[place].documents)
        documents[-1] = _long_text(words, place, n_words + 16 * place + 8, documents[-1])
        lists[place] = lists[place]._replace(documents=documents)
    # Where query and document are both long, a server may cut the query.
    n_query_words = min(query_room, n_words) * 5 // 8
    if n_query_words > 8:
        last = lists[-1]
        query = _long_text(words, 5, n_query_words // 2, last.query)
        documents = [_long_text(words, 7, n_words + 8, last.documents[0]), *last.documents[1:]]
        lists[-1] = ProbeList(query, documents)
    return [one._replace(query=_shortened(one.query, n_tokens, query_room)) for one in lists]


def _lists_of_data(collection: Collection) -> list[ProbeList]:
    """Lists of dev, else of test, else of train; evenly spaced, the judged documents first, then those of the
    pool, then any of the corpus.
    """
    split = next((name for name in ("dev", "test", "train") if name in collection.qrels), None)
    if split is None:
        return []
    judged = collection.qrels[split]
    places = np.linspace(0, len(judged.query_rows) - 1, N_LISTS).astype(int)
    n_corpus = len(collection.corpus)
    lists = []
    for number, place in enumerate(np.unique(places).tolist()):
        row = int(judged.query_rows[place])
        rows = judged.of(row)[0].tolist()[: N_DOCUMENTS // 2]
        if split in collection.candidates:
            rows += collection.candidates[split].of(row)[0].tolist()[:N_DOCUMENTS]
        rows += [(number * 7919 + 31 * k) % n_corpus for k in range(2 * N_DOCUMENTS)]
        texts = [collection.corpus.texts[each] for each in dict.fromkeys(rows)]
        lists.append(_list_of(collection.queries.texts[row], texts))
    return lists


def _shipped() -> list[ProbeList]:
    """The texts that ship: a query, the document that answers it, and others."""
    lists = []
    for place, query in enumerate(QUERIES):
        others = [DOCUMENTS[(place + step) % len(DOCUMENTS)] for step in (0, 3, 10, 16)]
        lists.append(ProbeList(query, others[:N_DOCUMENTS]))
    return lists


def _list_of(query: str, texts: Sequence[str]) -> ProbeList:
    """A list of distinct texts; filled up with those that ship where there are too few."""
    distinct = list(dict.fromkeys([*texts, *DOCUMENTS]))
    return ProbeList(query, distinct[:N_DOCUMENTS])


def _long_text(words: Sequence[str], first: int, n_words: int, begin: str) -> str:
    """A text with its own beginning and at least so many words."""
    text = begin.split()[:8]
    while len(text) < n_words:
        text.append(words[(first * 97 + 13 * len(text)) % len(words)])
    return " ".join(text)


def _shortened(query: str, n_tokens: Callable[[str], int], room: int) -> str:
    """The beginning of a query that has at most so many tokens."""
    while n_tokens(query) > room and len(query) > 1:
        words = query.split()
        if len(words) > 1:
            query = " ".join(words[: max(1, len(words) * 3 // 4)])
        else:
            query = query[: len(query) // 2]
    return query
