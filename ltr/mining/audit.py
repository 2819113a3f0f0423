"""An audit of mined negatives: which of them a judge takes for relevant."""

from typing import Any, NamedTuple

import numpy as np

from ltr.data.progress import track
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.mining.judge import Judge
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import Policy

BLOCK = 64  # queries that are judged at once
FAR = 14.0  # a gap whose soft label is 1 but for a millionth


class Suspects(NamedTuple):
    """S likely false negatives, the largest gap of scores first.

    Attributes:
        query_rows: ``[S]`` int64.
        doc_rows: ``[S]`` int64.
        places: ``[S]`` int64, columns in the folder of the negatives; 0 has the hardest.
        scores: ``[S]`` float32, the judge's.
        relevant_rows: ``[S]`` int64, the relevant document with the lowest score of the query.
        relevant_scores: ``[S]`` float32, its score.
    """

    query_rows: np.ndarray
    doc_rows: np.ndarray
    places: np.ndarray
    scores: np.ndarray
    relevant_rows: np.ndarray
    relevant_scores: np.ndarray

    @property
    def gaps(self) -> np.ndarray:
        """``[S]``: how far each scores above the relevant document."""
        return self.scores - self.relevant_scores

    def labels(self, policy: Policy, grade: float) -> np.ndarray:
        r"""``[S]`` float32: NaN to ``drop``, the grade to ``relabel``, and for ``soft`` :math:`\sigma(s - s^+)`.

        The last is the probability, by Bradley and Terry's model, that the document is better than the relevant one whose score
        is :math:`s^+`; at least 0.5 where it scores higher.

        >>> one = Suspects(*np.array([[0], [7], [2], [1.5], [4], [1.5]]))
        >>> one.labels("soft", 1.0)
        array([0.5], dtype=float32)
        """
        if policy == "soft":
            return (1 / (1 + np.exp(-self.gaps.clip(-FAR, FAR)))).astype(np.float32)
        return np.full(len(self.scores), np.nan if policy == "drop" else grade, dtype=np.float32)


def audited(negatives: MinedNegatives, judged: QueryLists, judge: Judge, margin: float = 0.0) -> tuple[Suspects, dict[str, int]]:
    """The negatives that a judge scores above a relevant document of their query minus a margin.

    Documents that are judged, with whatever grade, are known: they are not suspected.

    Args:
        negatives: of a whole collection.
        judged: the queries to audit, with their relevant documents.
        judge: scores them.
        margin: in units of the judge's score; below 0 it takes fewer.

    Returns:
        The suspects; and how many queries and negatives were audited, and how many of each are suspected.
    """
    lists, columns = [], []
    for query in judged.query_rows.tolist():
        rows, grades = judged.of(query)
        at = np.flatnonzero((negatives.ids[query] >= 0) & ~np.isin(negatives.ids[query], rows))
        relevant = rows[grades > 0]
        if len(at) and len(relevant):
            doc_rows = np.concatenate([relevant, negatives.ids[query][at]])
            lists.append(LabelledList(query, doc_rows, (np.arange(len(doc_rows)) < len(relevant)).astype(np.float32)))
            columns.append(at)
    found: list[tuple[Any, ...]] = []
    starts = range(0, len(lists), BLOCK)
    blocks = track(starts, "audit", f"times {BLOCK} queries")
    scores = [one for start in blocks for one in judge.scored(lists[start : start + BLOCK])]
    for one, at, own in zip(lists, columns, scores, strict=True):
        weakest, n = int(own[one.labels > 0].argmin()), int(one.labels.sum())
        for place in np.flatnonzero(own[n:] > own[weakest] - margin).tolist():
            found.append((one.query_row, one.doc_rows[n + place], at[place], own[n + place], one.doc_rows[weakest], own[weakest]))
    kinds = (np.int64, np.int64, np.int64, np.float32, np.int64, np.float32)
    arrays = zip(*found, strict=True) if found else ((),) * len(kinds)
    whole = Suspects(*(np.asarray(values, dtype=kind) for values, kind in zip(arrays, kinds, strict=True)))
    order = np.lexsort((whole.doc_rows, whole.query_rows, -whole.gaps))
    counts = {"queries": len(lists), "negatives": sum(map(len, columns))}
    counts |= {"suspects": len(found), "suspect_queries": len(np.unique(whole.query_rows))}
    return Suspects(*(values[order] for values in whole)), counts
