"""Collators: lists of rows → RankingBatch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from ltr.batch import HostLists, RankingBatch
from ltr.data.concatenated import concatenated
from ltr.data.cuts import say_what_is_cut
from ltr.data.layouts import ApartTexts, JoinedPairs, PairsAndTexts, TextReads
from ltr.data.query_lists import LabelledList, are_among
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens


class Collator(ABC):
    """Makes a batch of lists."""

    @abstractmethod
    def costs(self, ranked_list: LabelledList) -> np.ndarray:
        """The cost of scoring each document of a list, ``[N]``: tokens, or 1 for each vector."""

    def sort_length(self, ranked_list: LabelledList) -> float:
        """The length by which training rows are sorted, so that similar ones share a batch: the
        mean cost of the documents of a list.
        """
        return float(self.costs(ranked_list).mean())

    @abstractmethod
    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        """Pad the lists to one width, and add what the ranker reads of their documents."""


class PairCollator(Collator):
    """Joins each query with each document of its list."""

    def __init__(self, query_tokens: Tokens, doc_tokens: Tokens, layout: JoinedPairs) -> None:
        self.query_tokens = query_tokens
        self.doc_tokens = doc_tokens
        self.layout = layout

    def costs(self, ranked_list: LabelledList) -> np.ndarray:
        query_length = self.query_tokens.lengths(np.asarray([ranked_list.query_row]))
        doc_lengths = self.doc_tokens.lengths(ranked_list.doc_rows)
        return self.layout.lengths(query_length, doc_lengths)

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        batch = padded_lists(lists)
        counts = batch.mask.sum(dim=1).numpy()
        query_rows = np.repeat(batch.query_rows.numpy(), counts)
        doc_rows = _all_doc_rows(lists)
        pairs = self.layout.lay_out(self.query_tokens, query_rows, self.doc_tokens, doc_rows)
        return batch._replace(pairs=pairs)


class TextCollator(Collator):
    """Lays queries and documents out apart; ``query_tokens`` is None where lists have no query, as
    for the groups of labelled texts.
    """

    def __init__(
        self, query_tokens: Tokens | None, doc_tokens: Tokens, layouts: ApartTexts
    ) -> None:
        self.query_tokens = query_tokens
        self.doc_tokens = doc_tokens
        self.layouts = layouts
        # By row. Those of judged documents are needed in every epoch, and each is computed once.
        self._hashes: dict[int, int] = {}

    def costs(self, ranked_list: LabelledList) -> np.ndarray:
        doc_lengths = self.doc_tokens.lengths(ranked_list.doc_rows)
        return self.layouts.docs.lengths(doc_lengths)

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        batch = padded_lists(lists)
        queries = None
        if self.query_tokens is not None:
            query_rows = batch.query_rows.numpy()
            queries = self.layouts.queries.lay_out(self.query_tokens, query_rows)
        judged_rows = []
        judged_grades = []
        judged_hashes = []
        for ranked_list in lists:
            judged_rows.append(ranked_list.known_rows)
            judged_grades.append(ranked_list.known_grades)
            judged_hashes.append(self._judged_hashes(ranked_list))
        batch = batch._replace(
            queries=queries,
            docs=self.layouts.docs.lay_out(self.doc_tokens, _all_doc_rows(lists)),
            judged_rows=_padded_if_all(judged_rows, np.int64, fill=-1),
            judged_grades=_padded_if_all(judged_grades),
            judged_hashes=_padded_if_all(judged_hashes, np.int64),
        )
        if any(ranked_list.ideal is not None for ranked_list in lists):
            return batch  # for evaluation
        return batch._replace(on_host=_on_host(batch))

    def _judged_hashes(self, ranked_list: LabelledList) -> np.ndarray | None:
        """The hashes of the judged texts of a training list, ``[J]`` int64; None for other lists."""
        is_for_evaluation = ranked_list.ideal is not None  # training lists have no ideal grades
        if ranked_list.known_rows is None or is_for_evaluation:  # no loss asks for its hashes
            return None
        rows = ranked_list.known_rows.tolist()
        new_rows = [row for row in rows if row not in self._hashes]
        if new_rows:
            new_texts = self.layouts.docs.lay_out(self.doc_tokens, np.asarray(new_rows))
            new_hashes = new_texts.hashes()
            self._hashes.update(zip(new_rows, new_hashes.tolist(), strict=True))
        return np.asarray([self._hashes[row] for row in rows], dtype=np.int64)


class BothCollator(Collator):
    """Lays out joined pairs, and the same texts apart; lists are sorted by the lengths of the pairs,
    which cost more.
    """

    def __init__(self, pairs: Collator, apart: Collator) -> None:
        self.pair_collator = pairs
        self.text_collator = apart

    def costs(self, ranked_list: LabelledList) -> np.ndarray:
        return self.pair_collator.costs(ranked_list)

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        texts_apart = self.text_collator(lists)
        joined_pairs = self.pair_collator(lists)
        return texts_apart._replace(pairs=joined_pairs.pairs)


class SourcesCollator(Collator):
    """Says beside each list of a batch which source its query is of.

    Args:
        collator: makes the batch of lists of all sources.
        first_queries: ``[S]`` int64, the number of the first query of each source, ascending.
    """

    def __init__(self, collator: Collator, first_queries: np.ndarray) -> None:
        self.collator = collator
        self.first_queries = first_queries

    def costs(self, ranked_list: LabelledList) -> np.ndarray:
        return self.collator.costs(ranked_list)

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        batch = self.collator(lists)
        sources = sources_of_queries(self.first_queries, batch.query_rows.numpy())
        batch = batch._replace(sources=torch.from_numpy(sources))
        if batch.on_host is None:
            return batch
        on_host = HostLists(batch.on_host.lists._replace(sources=batch.sources))
        return batch._replace(on_host=on_host)


def sources_of_queries(first_queries: np.ndarray, query_rows: np.ndarray) -> np.ndarray:
    """``[Q]`` int64: the sources of queries, by number.

    >>> sources_of_queries(np.array([0, 12, 21]), np.array([0, 11, 12, 20, 21, 32]))
    array([0, 0, 1, 1, 2, 2])
    """
    return np.searchsorted(first_queries, query_rows, side="right").astype(np.int64) - 1


def collator_of(
    queries: Sequence[TextTable], docs: Sequence[TextTable], reads: TextReads
) -> Collator:
    """The collator of what a ranker reads. Tokenises all texts, unless their tokens are stored
    already, and says which share of them is cut.

    Args:
        queries, docs: the tables, of all sources.
        reads: how their texts are laid out.

    Raises:
        InputError: if a query leaves no room for a document.
    """
    if isinstance(reads, PairsAndTexts):
        pairs = collator_of(queries, docs, reads.pairs)
        apart = collator_of(queries, docs, reads.apart)
        return BothCollator(pairs, apart)
    query_tokens = concatenated([reads.store(table, "query") for table in queries])
    doc_tokens = concatenated([reads.store(table, "document") for table in docs])
    uncut_queries = concatenated([reads.uncut(table, "query") for table in queries])
    uncut_docs = concatenated([reads.uncut(table, "document") for table in docs])
    say_what_is_cut(reads, uncut_queries, query_tokens, uncut_docs, doc_tokens)
    if isinstance(reads, JoinedPairs):
        return PairCollator(query_tokens, doc_tokens, reads)
    return TextCollator(query_tokens, doc_tokens, reads)


class FeatureCollator(Collator):
    """Looks up the feature vectors of the documents in ``features``, ``[R, F]`` float32 by row."""

    def __init__(self, features: np.ndarray) -> None:
        self.features = features

    @classmethod
    def open(cls, file: str) -> "FeatureCollator":
        """Map the vectors of a ``.npy`` file."""
        return cls(np.load(file, mmap_mode="r"))

    def __reduce__(self) -> tuple:
        # A worker that is not forked maps the file again: pickled as it is, a map becomes a copy of
        # all its rows.
        if isinstance(self.features, np.memmap):
            return FeatureCollator.open, (self.features.filename,)
        return FeatureCollator, (self.features,)

    def costs(self, ranked_list: LabelledList) -> np.ndarray:
        return np.ones(len(ranked_list.doc_rows))

    def sort_length(self, ranked_list: LabelledList) -> float:
        return float(len(ranked_list.doc_rows))  # lists of equal length need no padding

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        batch = padded_lists(lists)
        features = np.zeros((*batch.mask.shape, self.features.shape[1]), dtype=np.float32)
        for row, ranked_list in enumerate(lists):
            n_docs = len(ranked_list.doc_rows)
            features[row, :n_docs] = self.features[ranked_list.doc_rows]
        return batch._replace(features=torch.from_numpy(features))


def padded_lists(lists: Sequence[LabelledList]) -> RankingBatch:
    """Lists padded to one width, with their labels and without what a ranker reads."""
    query_rows = []
    doc_rows = []
    labels = []
    distances = []
    ideal = []
    judged = []
    for ranked_list in lists:
        query_rows.append(ranked_list.query_row)
        doc_rows.append(ranked_list.doc_rows)
        labels.append(ranked_list.labels)
        mined_distances = ranked_list.distances
        if mined_distances is None:
            mined_distances = np.full(len(ranked_list.doc_rows), np.nan, np.float32)
        distances.append(mined_distances)
        ideal.append(ranked_list.ideal)
        judged.append(_are_judged(ranked_list))
    mask = _mask_of(doc_rows)
    return RankingBatch(
        labels=_padded(labels, mask, np.float32),
        mask=torch.from_numpy(mask),
        query_rows=torch.tensor(query_rows, dtype=torch.int64),
        doc_rows=_padded(doc_rows, mask, np.int64),
        distances=_padded(distances, mask, np.float32),
        ideal=_padded_if_all(ideal),
        judged=_padded_if_all(judged, np.bool_),
        places=torch.from_numpy(np.flatnonzero(mask)),
        placed_in=mask.shape[1],
    )


def _are_judged(ranked_list: LabelledList) -> np.ndarray | None:
    """``[N]`` bool, which documents of a list to be measured have a judgement; None for a training
    list, and where all have one.
    """
    if ranked_list.ideal is None or ranked_list.known_rows is None:
        return None
    return are_among(ranked_list.doc_rows, ranked_list.known_rows)


def _on_host(batch: RankingBatch) -> HostLists:
    """What longer lists are laid out by, of a batch on the host."""
    assert batch.docs is not None, "the collator lays them out"
    # Equal queries are one query, under whatever ids: known by their hashes. Of groups without
    # queries it is the number of the group's label.
    query_rows = batch.query_rows if batch.queries is None else batch.queries.hashes()
    lists = RankingBatch(
        labels=batch.labels,
        mask=batch.mask,
        query_rows=query_rows,
        doc_rows=batch.doc_rows,
        doc_hashes=batch.in_lists(batch.docs.hashes()),
        distances=batch.distances,
        judged_rows=batch.judged_rows,
        judged_grades=batch.judged_grades,
        judged_hashes=batch.judged_hashes,
    )
    return HostLists(lists)


def _all_doc_rows(lists: Sequence[LabelledList]) -> np.ndarray:
    """The documents of all lists end to end, int64; there may be no list."""
    doc_rows = [np.empty(0, dtype=np.int64)]
    for ranked_list in lists:
        doc_rows.append(ranked_list.doc_rows)
    return np.concatenate(doc_rows)


def _mask_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """``[B, longest]`` bool: True at the places that the B arrays fill."""
    lengths = np.fromiter(map(len, arrays), dtype=np.int64)
    width = lengths.max(initial=1)  # a batch has a column even if all its lists are empty
    return np.arange(width) < lengths[:, None]


def _padded(
    arrays: Sequence[np.ndarray], mask: np.ndarray, dtype: type, fill: int = 0
) -> torch.Tensor:
    """The arrays as rows of one tensor, with ``fill`` where the mask is False."""
    padded: np.ndarray = np.full(mask.shape, fill, dtype=dtype)
    if len(arrays):
        padded[mask] = np.concatenate(arrays)
    return torch.from_numpy(padded)


def _padded_if_all(
    arrays: Sequence[np.ndarray | None], dtype: type = np.float32, fill: int = 0
) -> torch.Tensor | None:
    """As :func:`_padded`; None if a list lacks its array."""
    present = [array for array in arrays if array is not None]
    if len(present) < len(arrays):
        return None
    return _padded(present, _mask_of(present), dtype, fill)
