"""Leakage: what stands in two splits of a collection, or in what else a ranker was trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from ltr.check.near import nearest
from ltr.check.word_sets import WordSets
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.data.splits import SPLITS
from ltr.draws import keys_inside
from ltr.errors import InputError

THRESHOLD = 0.6

Kind = Literal["equal", "near", "set", "document"]
# In words, the strictest first.
KINDS: dict[Kind, str] = {
    "equal": "equal query",
    "near": "near query",
    "set": "same relevant documents",
    "document": "a relevant document of both",
}


class JudgedQueries(NamedTuple):
    """Queries with their judgements: a split of the collection, or the split train of other data.

    Attributes:
        name: ``train``, ``dev`` or ``test``; else ``train of PATH``.
        collection: its texts.
        judged: the judgements.
        is_trained_on: whether it is of other data, which a ranker was trained on.
    """

    name: str
    collection: Collection
    judged: QueryLists
    is_trained_on: bool


class Leaks(NamedTuple):
    """The leaks of one kind from one part into another, a row for each query that has one.

    Attributes:
        kind: of leak.
        part: whose queries they are.
        other: where their partners are.
        query_rows: ``[n]`` int64, ascending, of the queries of ``part``.
        partner_rows: ``[n]`` int64: of the nearest or first partner of each, among the queries of
            ``other``.
        similarity: ``[n]`` float32; 1 but for near queries.
    """

    kind: Kind
    part: JudgedQueries
    other: JudgedQueries
    query_rows: np.ndarray
    partner_rows: np.ndarray
    similarity: np.ndarray


class AlikeTexts(NamedTuple):
    """Which documents of a corpus have the text of another one, or nearly.

    Attributes:
        is_equal: ``[D]`` bool, whether a document has the words of another one.
        equal_rows: ``[D]`` int64: the first document with the same words.
        nearest_rows: ``[D]`` int64: a document of other words that is near enough; -1 for none.
        similarity: ``[D]`` float32, to that of ``nearest_rows``.
        is_judged: ``[D]`` bool.
        is_unjudged_copy: ``[D]`` bool, whether nobody judged a document whose words are those of a
            relevant one.
    """

    is_equal: np.ndarray
    equal_rows: np.ndarray
    nearest_rows: np.ndarray
    similarity: np.ndarray
    is_judged: np.ndarray
    is_unjudged_copy: np.ndarray


@dataclass(frozen=True)
class Leakage:
    """What :func:`find_leakage` has found.

    Attributes:
        collection: that was looked at.
        parts: its splits, then the other data.
        leaks: of each kind, from each part into each other one; also those without a query.
        alike_texts: those of the corpus; None where they were not looked at.
        threshold: of near texts.
        n_cut: buckets of many alike texts, in which not all pairs were compared.
    """

    collection: Collection
    parts: list[JudgedQueries]
    leaks: list[Leaks]
    alike_texts: AlikeTexts | None
    threshold: float
    n_cut: int

    def leaked(self, split: str, kinds: Sequence[Kind]) -> np.ndarray:
        """``[n]`` int64: the rows of the queries of a split that leak, ascending."""
        rows = [leaks.query_rows for leaks in self.leaks_of(split, kinds)]
        return np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)

    def leaks_of(self, split: str, kinds: Sequence[Kind]) -> Iterator[Leaks]:
        """The leaks of some kinds that the queries of a split have, the strictest kind first."""
        for kind in KINDS:
            for leaks in self.leaks:
                if leaks.kind == kind and kind in kinds and leaks.part.name == split:
                    yield leaks


def find_leakage(
    collection: Collection,
    trained_on: Sequence[tuple[str, Collection]] = (),
    threshold: float = THRESHOLD,
    *,
    with_corpus: bool = True,
) -> Leakage:
    """Find what stands in two splits, or in other data that a ranker was trained on.

    Args:
        collection: whose splits are looked at.
        trained_on: names and collections of other data; what they have for training counts.
        threshold: how similar two texts must be to be near, see
            :meth:`ltr.check.word_sets.WordSets.similarities`.
        with_corpus: whether to look for near texts within the corpus too.

    Raises:
        InputError: for a threshold that is not above 0 and at most 1.
    """
    if not 0 < threshold <= 1:
        raise InputError(
            f"the similarity of near texts must be above 0 and at most 1, got {threshold:g}",
            option="threshold",
        )
    parts = _splits(collection)
    for name, other in trained_on:
        parts.append(JudgedQueries(f"train of {name}", other, other.judgements("train"), True))
    leaks_of_queries, n_cut = _alike_queries(parts, threshold)
    documents = _Documents.from_parts(parts, with_corpus)
    alike_texts = None
    if with_corpus:
        alike_texts, n_cut_of_corpus = _alike_texts(parts, documents, threshold)
        n_cut += n_cut_of_corpus
    leaks = [*leaks_of_queries, *_common_documents(parts, documents)]
    return Leakage(collection, parts, leaks, alike_texts, threshold, n_cut)


def find_alike_queries(collection: Collection) -> Leakage:
    """Find the queries that are equal or near to one of another split, and nothing else."""
    parts = _splits(collection)
    leaks, n_cut = _alike_queries(parts, THRESHOLD)
    return Leakage(collection, parts, leaks, None, THRESHOLD, n_cut)


def _splits(collection: Collection) -> list[JudgedQueries]:
    parts = []
    for split in SPLITS:
        if split in collection.qrels:
            parts.append(JudgedQueries(split, collection, collection.qrels[split], False))
    return parts


def _alike_queries(parts: Sequence[JudgedQueries], threshold: float) -> tuple[list[Leaks], int]:
    """Equal and near queries of each two parts, and the number of buckets that were cut."""
    tables = [(part.collection.queries.texts, part.judged.query_rows) for part in parts]
    sets = WordSets.from_tables(tables)
    rows = np.concatenate([part.judged.query_rows for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part.judged.query_rows) for part in parts])
    # A class is of equal queries; near ones are looked for among the first of each class.
    _, firsts, class_of = np.unique(sets.keys, return_index=True, return_inverse=True)
    # [C, L]: the first query of each class in each part, -1 for none. Written backwards, so that of
    # each class the first query is written last.
    first_row = np.full((len(firsts), len(parts)), -1)
    first_row[class_of[::-1], part_of[::-1]] = rows[::-1]
    best = nearest(sets.take(firsts), first_row >= 0, threshold, across=True)
    leaks = []
    for number, other_number in _pairs_of_parts(parts):
        part = parts[number]
        other = parts[other_number]
        classes = class_of[part_of == number]
        partners = first_row[classes, other_number]
        is_equal = partners >= 0
        ones = np.ones(int(is_equal.sum()), np.float32)
        query_rows = part.judged.query_rows
        leaks.append(Leaks("equal", part, other, query_rows[is_equal], partners[is_equal], ones))
        near_classes = best.nearest[classes, other_number]
        is_near = (near_classes >= 0) & ~is_equal
        leaks.append(
            Leaks(
                "near",
                part,
                other,
                query_rows[is_near],
                first_row[near_classes[is_near], other_number],
                best.similarities[classes[is_near], other_number],
            )
        )
    return leaks, best.n_cut


def _pairs_of_parts(parts: Sequence[JudgedQueries]) -> Iterator[tuple[int, int]]:
    """The numbers of each part of the collection and of each other part, in this order."""
    for number, part in enumerate(parts):
        for other_number in range(len(parts)):
            if number != other_number and not part.is_trained_on:
                yield number, other_number


class _Documents(NamedTuple):
    """The documents that are compared: of the corpus, then those of other data that are relevant.

    Attributes:
        sets: ``[N]`` sets of words.
        class_of: ``[N]`` int64; those with the same words are of one class.
        relevant: of each part the pairs of its queries and the classes of their relevant documents,
            each pair once, by query.
    """

    sets: WordSets
    class_of: np.ndarray
    relevant: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def from_parts(cls, parts: Sequence[JudgedQueries], with_corpus: bool) -> "_Documents":
        """Of all parts; without the corpus only of the documents that are relevant."""
        pairs_of_part = [_relevant(part.judged) for part in parts]
        corpus = parts[0].collection.corpus
        if with_corpus:
            corpus_rows = np.arange(len(corpus))
        else:
            docs_of_splits = []
            for part, (_, docs) in zip(parts, pairs_of_part, strict=True):
                if not part.is_trained_on:
                    docs_of_splits.append(docs)
            corpus_rows = np.unique(np.concatenate(docs_of_splits))
        tables = [(corpus.texts, corpus_rows)]
        places = []  # of the documents of the pairs of each part, among all that are compared
        n_before = len(corpus_rows)
        for part, (_, docs) in zip(parts, pairs_of_part, strict=True):
            if not part.is_trained_on:
                places.append(np.searchsorted(corpus_rows, docs))
                continue
            rows, inverse = np.unique(docs, return_inverse=True)
            tables.append((part.collection.corpus.texts, rows))
            places.append(n_before + inverse)
            n_before += len(rows)
        sets = WordSets.from_tables(tables)
        class_of = np.unique(sets.keys, return_inverse=True)[1]
        relevant = []
        for (query_rows, _), doc_places in zip(pairs_of_part, places, strict=True):
            pairs = np.unique(np.stack([query_rows, class_of[doc_places]]), axis=1)
            relevant.append((pairs[0], pairs[1]))
        return cls(sets, class_of, relevant)


def _common_documents(parts: Sequence[JudgedQueries], documents: _Documents) -> Iterator[Leaks]:
    """Queries of each two parts that have all their relevant documents in common, or one."""
    by_kind: dict[Kind, list[tuple[np.ndarray, np.ndarray]]] = {
        "set": [_whole_sets(*pairs) for pairs in documents.relevant],
        "document": documents.relevant,
    }
    for number, other_number in _pairs_of_parts(parts):
        for kind, keyed in by_kind.items():
            rows, partners = _with_common_key(keyed[number], keyed[other_number])
            ones = np.ones(len(rows), np.float32)
            yield Leaks(kind, parts[number], parts[other_number], rows, partners, ones)


def _with_common_key(
    pairs: tuple[np.ndarray, np.ndarray], others: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Which queries, of pairs of queries and keys ``[n]`` by query, have a key in common with
    others: ``[m]`` ascending; and of each the first of the others that has the first of these keys.
    """
    known_keys, firsts = np.unique(others[1], return_index=True)
    is_known = np.isin(pairs[1], known_keys)
    query_rows, first_places = np.unique(pairs[0][is_known], return_index=True)
    places = np.searchsorted(known_keys, pairs[1][is_known][first_places])
    return query_rows, others[0][firsts[places]]


def _relevant(judged: QueryLists) -> tuple[np.ndarray, np.ndarray]:
    """Queries and their relevant documents, in pairs."""
    is_relevant = judged.values > 0
    return judged.query_of_doc[is_relevant], judged.doc_rows[is_relevant]


def _whole_sets(queries: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each query ``[n]``, ascending, and a key of the set of its documents: a sum of hashes."""
    distinct, begins = np.unique(queries, return_index=True)
    if len(distinct) == 0:
        return distinct, np.zeros(0, np.uint64)
    # A hash of 64 bits of each class.
    keys = keys_inside(torch.zeros(1, dtype=torch.int64), torch.from_numpy(classes))
    return distinct, np.add.reduceat(keys.numpy().view(np.uint64), begins)


def _alike_texts(
    parts: Sequence[JudgedQueries], documents: _Documents, threshold: float
) -> tuple[AlikeTexts, int]:
    """Equal and near texts of the corpus, and the number of buckets that were cut."""
    n_docs = len(parts[0].collection.corpus)
    own_parts = [number for number, part in enumerate(parts) if not part.is_trained_on]
    # Classes of the corpus alone, numbered from 0.
    own_classes = documents.class_of[:n_docs]
    _, firsts, class_of_doc, counts = np.unique(
        own_classes, return_index=True, return_inverse=True, return_counts=True
    )
    one_group = np.ones((len(firsts), 1), bool)
    best = nearest(documents.sets.take(firsts), one_group, threshold, across=False)
    nearest_class = best.nearest[class_of_doc, 0]
    is_judged = np.zeros(n_docs, bool)
    for number in own_parts:
        is_judged[parts[number].judged.doc_rows] = True
    relevant = np.concatenate([documents.relevant[number][1] for number in own_parts])
    is_relevant = np.isin(own_classes, relevant)
    texts = AlikeTexts(
        is_equal=counts[class_of_doc] > 1,
        equal_rows=firsts[class_of_doc],
        nearest_rows=np.where(nearest_class >= 0, firsts[nearest_class], -1),
        similarity=best.similarities[class_of_doc, 0],
        is_judged=is_judged,
        is_unjudged_copy=is_relevant & ~is_judged,
    )
    return texts, best.n_cut
