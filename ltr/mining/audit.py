"""An audit of mined negatives: which of them a judge takes for relevant."""

from typing import NamedTuple

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
        r"""What training takes the suspects for, ``[S]`` float32.

        NaN to ``drop``, the grade to ``relabel``, and for ``soft`` :math:`\sigma(s - s^+)`: the
        probability, by Bradley and Terry's model, that the document is better than the relevant one
        whose score is :math:`s^+`; at least 0.5 where it scores higher.

        >>> suspects = Suspects(*np.array([[0], [7], [2], [1.5], [4], [1.5]]))
        >>> suspects.labels("soft", 1.0)
        array([0.5], dtype=float32)
        """
        if policy == "soft":
            return (1 / (1 + np.exp(-self.gaps.clip(-FAR, FAR)))).astype(np.float32)
        label = np.nan if policy == "drop" else grade
        return np.full(len(self.scores), label, dtype=np.float32)


KINDS = (np.int64, np.int64, np.int64, np.float32, np.int64, np.float32)  # of Suspects' arrays


def find_suspects(
    negatives: MinedNegatives, judged: QueryLists, judge: Judge, margin: float = 0.0
) -> tuple[Suspects, dict[str, int]]:
    """The negatives that a judge scores above a relevant document of their query minus a margin.

    Documents that are judged, with whatever grade, are known: they are not suspected.

    Args:
        negatives: of a whole collection.
        judged: the queries to audit, with their relevant documents.
        judge: scores them.
        margin: in units of the judge's score; below 0 it takes fewer.

    Returns:
        The suspects; and how many queries and negatives were audited, and how many of each are
        suspected.
    """
    lists, columns = _lists_to_judge(negatives, judged)
    scores: list[np.ndarray] = []
    for start in track(range(0, len(lists), BLOCK), "audit", f"times {BLOCK} queries"):
        scores += judge.score_lists(lists[start : start + BLOCK])

    rows = []
    for documents, columns_of_query, scores_of_query in zip(lists, columns, scores, strict=True):
        n_relevant = int(documents.labels.sum())
        weakest = int(scores_of_query[:n_relevant].argmin())
        bound = scores_of_query[weakest] - margin
        for number in np.flatnonzero(scores_of_query[n_relevant:] > bound).tolist():
            row = (
                documents.query_row,
                documents.doc_rows[n_relevant + number],
                columns_of_query[number],
                scores_of_query[n_relevant + number],
                documents.doc_rows[weakest],
                scores_of_query[weakest],
            )
            rows.append(row)
    arrays = []
    for column, kind in enumerate(KINDS):
        arrays.append(np.array([row[column] for row in rows], dtype=kind))
    suspects = Suspects(*arrays)
    order = np.lexsort((suspects.doc_rows, suspects.query_rows, -suspects.gaps))
    suspects = Suspects(*(array[order] for array in suspects))
    counts = {
        "queries": len(lists),
        "negatives": sum(map(len, columns)),
        "suspects": len(rows),
        "suspect_queries": len(np.unique(suspects.query_rows)),
    }
    return suspects, counts


def _lists_to_judge(
    negatives: MinedNegatives, judged: QueryLists
) -> tuple[list[LabelledList], list[np.ndarray]]:
    """For each query that has both, its relevant documents (label 1) and then its negatives (0).

    Returns:
        The lists; and the columns of their negatives in the folder.
    """
    lists = []
    columns = []
    for query_row in judged.query_rows.tolist():
        judged_rows, grades = judged.of(query_row)
        ids = negatives.ids[query_row]
        unjudged = np.flatnonzero((ids >= 0) & ~np.isin(ids, judged_rows))
        relevant = judged_rows[grades > 0]
        if len(unjudged) and len(relevant):
            labels = np.zeros(len(relevant) + len(unjudged), dtype=np.float32)
            labels[: len(relevant)] = 1
            doc_rows = np.concatenate([relevant, ids[unjudged]])
            lists.append(LabelledList(query_row, doc_rows, labels))
            columns.append(unjudged)
    return lists, columns
