"""Lists of rows → RankingBatch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from ltr.batch import RankingBatch
from ltr.data.formats import ApartTexts, JoinedPairs, PairsAndTexts, TextReads
from ltr.data.query_lists import LabelledList
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens, TokenStore


class Collator(ABC):
    """Makes a batch of lists."""

    @abstractmethod
    def lengths(self, one: LabelledList) -> np.ndarray:
        """The cost of scoring each document of a list, ``[N]``."""

    def row_length(self, one: LabelledList) -> float:
        """What training rows are sorted by, to share a batch with similar ones: the mean over the
        documents.
        """
        return float(self.lengths(one).mean())

    @abstractmethod
    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        """Pad the lists to one width, and add what the ranker reads of their documents."""


class PairCollator(Collator):
    """Joins each query with each document of its list."""

    def __init__(self, queries: Tokens, docs: Tokens, join: JoinedPairs) -> None:
        self.queries = queries
        self.docs = docs
        self.join = join

    def lengths(self, one: LabelledList) -> np.ndarray:
        query = self.queries.lengths(np.asarray([one.query_row]))
        return self.join.lengths(query, self.docs.lengths(one.doc_rows))

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        query_rows = np.repeat(
            [one.query_row for one in lists], [len(one.doc_rows) for one in lists]
        ).astype(np.int64)
        doc_rows = np.concatenate([np.empty(0, dtype=np.int64), *(one.doc_rows for one in lists)])
        pairs = self.join.texts(self.queries, query_rows, self.docs, doc_rows)
        return without_content(lists)._replace(pairs=pairs)


class TextCollator(Collator):
    """Lays queries and documents out apart; ``queries`` is None where lists have no query, as the
    groups of labelled texts.
    """

    def __init__(self, queries: Tokens | None, docs: Tokens, forms: ApartTexts) -> None:
        self.queries = queries
        self.docs = docs
        self.forms = forms
        self._keys: dict[int, int] = {}  # of judged documents, by row

    def lengths(self, one: LabelledList) -> np.ndarray:
        return self.forms.docs.lengths(self.docs.lengths(one.doc_rows))

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        batch = without_content(lists)
        doc_rows = np.concatenate([np.empty(0, dtype=np.int64), *(one.doc_rows for one in lists)])
        return batch._replace(
            queries=None
            if self.queries is None
            else self.forms.queries.texts(self.queries, batch.query_rows.numpy()),
            docs=self.forms.docs.texts(self.docs, doc_rows),
            judged_rows=_optional([one.judged_rows for one in lists], np.int64, fill=-1),
            judged_grades=_optional([one.judged_grades for one in lists]),
            judged_keys=_optional([self._judged_keys(one) for one in lists], np.int64),
        )

    def _judged_keys(self, one: LabelledList) -> np.ndarray | None:
        """The keys of the judged texts of a training list, each computed once."""
        if one.judged_rows is None or one.ideal is not None:
            return None
        if new := [row for row in one.judged_rows.tolist() if row not in self._keys]:
            keys = self.forms.docs.texts(self.docs, np.asarray(new)).keys()
            self._keys |= zip(new, keys.tolist(), strict=True)
        return np.asarray([self._keys[row] for row in one.judged_rows.tolist()], dtype=np.int64)


class BothCollator(Collator):
    """Lays out joined pairs, and the same texts apart; lists are sorted by the pairs, which cost
    more.
    """

    def __init__(self, pairs: Collator, apart: Collator) -> None:
        self.pairs = pairs
        self.apart = apart

    def lengths(self, one: LabelledList) -> np.ndarray:
        return self.pairs.lengths(one)

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        return self.apart(lists)._replace(pairs=self.pairs(lists).pairs)


def text_collator(queries: TextTable, docs: TextTable, reads: TextReads) -> Collator:
    """The collator of what a ranker reads, on stored tokens; an InputError if a query leaves no
    room for a document.
    """
    if isinstance(reads, PairsAndTexts):
        return BothCollator(
            text_collator(queries, docs, reads.pairs), text_collator(queries, docs, reads.apart)
        )
    asked, found = (
        TokenStore.open(*side) for side in zip((queries, docs), reads.tokenizers, strict=True)
    )
    reads.check_queries(queries.ids, queries.texts, asked)
    return (
        PairCollator(asked, found, reads)
        if isinstance(reads, JoinedPairs)
        else TextCollator(asked, found, reads)
    )


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

    def lengths(self, one: LabelledList) -> np.ndarray:
        return np.ones(len(one.doc_rows))

    def row_length(self, one: LabelledList) -> float:
        return float(len(one.doc_rows))  # lists of equal length need no padding

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch:
        batch = without_content(lists)
        features = np.zeros((*batch.mask.shape, self.features.shape[1]), dtype=np.float32)
        for row, one in enumerate(lists):
            features[row, : len(one.doc_rows)] = self.features[one.doc_rows]
        return batch._replace(features=torch.from_numpy(features))


def without_content(lists: Sequence[LabelledList]) -> RankingBatch:
    """Lists with their labels, padded to one width, without what a ranker reads."""
    mask = _mask([len(one.doc_rows) for one in lists])
    return RankingBatch(
        labels=_padded([one.labels for one in lists], mask, np.float32),
        mask=torch.from_numpy(mask),
        query_rows=torch.tensor([one.query_row for one in lists], dtype=torch.int64),
        doc_rows=_padded([one.doc_rows for one in lists], mask, np.int64),
        distances=_optional([one.distances for one in lists]),
        ideal=_optional([one.ideal for one in lists]),
    )


def _mask(lengths: list[int]) -> np.ndarray:
    return (
        np.arange(max([1, *lengths])) < np.asarray(lengths, dtype=np.int64)[:, None]
    )  # a list may be empty: it still has a row


def _padded(
    arrays: Sequence[np.ndarray], mask: np.ndarray, dtype: type, fill: int = 0
) -> torch.Tensor:
    out: np.ndarray = np.full(mask.shape, fill, dtype=dtype)
    if len(arrays):
        out[mask] = np.concatenate(arrays)
    return torch.from_numpy(out)


def _optional(
    arrays: Sequence[np.ndarray | None], dtype: type = np.float32, fill: int = 0
) -> torch.Tensor | None:
    present = [array for array in arrays if array is not None]
    if len(present) < len(arrays):
        return None
    return _padded(present, _mask([len(array) for array in present]), dtype, fill)
