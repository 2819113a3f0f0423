"""Rows and groups: the training examples of an epoch. A row number here is that of an example, not
that of a text in its table; ``query_row`` and ``doc_rows`` are of texts.

What is *known* of a query are its judgements and, beside them, the documents that must not be its
negatives though nobody judged them: those with the text of a relevant document, which have its grade,
and those with the text of the query itself, whose grade is NaN
(:func:`ltr.mining.same_texts.known_documents`). Only what is *judged* is drawn as relevant.

All draws of an epoch follow from these seeds. Some may be equal, as those of window 3 and of query
3: what they draw has so little in common that nothing is lost by it. A 0 at the end changes nothing
either, so the order of rows and what query 0 draws are of one stream.

=============================  ==========================================================
``[seed, epoch]``              the order of rows (``Buckets``) or of groups (``GroupPlan``)
``[seed, epoch, 1]``           the texts of labels, dealt into groups (``LabelGroups``)
``[seed, epoch, window]``      the order of the batches of a window (``Buckets``)
``[seed, epoch, query]``       what a row of the query draws (``RelevantDraws``, ``ListRows``)
``[seed, epoch, query, part]`` the same, of its further rows (``RelevantDraws``)
=============================  ==========================================================
"""

from typing import Protocol

import numpy as np

from ltr.data.query_lists import LabelledList


class Rows(Protocol):
    """The training examples of an epoch, numbered as its rows: each is a query with a list, whose
    documents are drawn anew in every epoch.

    Attributes:
        query_rows: ``[R]`` int64, the query of each row, in any order. A query may have several
            rows, or none.
    """

    query_rows: np.ndarray

    def __len__(self) -> int: ...

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function of (seed, epoch, row)."""


class TextGroups(Protocol):
    """The groups of a training epoch: lists of texts that belong together, of one query or label.

    Attributes:
        owners: ``[G]`` int64, ascending. A batch never holds two groups of one owner: the owner is
            the group's label, or the group itself where any two groups may share a batch.
    """

    owners: np.ndarray

    def draw(self, epoch: int, group: int) -> LabelledList:
        """The list of a group in an epoch: a pure function of (seed, epoch, group)."""


def in_parts(query_rows: np.ndarray, n_parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each query as many times as it has parts, and beside it the number of the part.

    >>> in_parts(np.array([4, 7]), n_parts=np.array([1, 3]))
    (array([4, 7, 7, 7]), array([0, 0, 1, 2]))
    """
    parts = [np.arange(n) for n in n_parts]
    return np.repeat(query_rows, n_parts), np.concatenate(parts)
