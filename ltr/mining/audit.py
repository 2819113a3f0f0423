"""An audit of mined negatives: which of them a judge takes for relevant."""

from typing import NamedTuple

import numpy as np

from ltr.data.progress import track
from ltr.data.query_lists import QueryLists
from ltr.mining.judge import RelevantAndNegatives, TextScorer
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.overlay import Remedy
from ltr.mining.same_texts import known_documents

QUERIES_AT_ONCE = 64  # that are judged
# Gaps beyond it count as this one: its soft label is already within a millionth of 0 or 1, and
# float32 still tells it from both.
LARGEST_GAP = 14.0


class Suspects(NamedTuple):
    """S likely false negatives, the largest gap of scores first.

    Attributes:
        query_rows: ``[S]`` int64.
        doc_rows: ``[S]`` int64.
        places: ``[S]`` int64, places among the negatives of the query; 0 has the hardest.
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

    def labels(self, policy: Remedy, grade: float) -> np.ndarray:
        r"""What training takes the suspects for, ``[S]`` float32.

        NaN to ``drop``, the grade to ``relabel``, and for ``soft`` :math:`\sigma(s - s^+)`: the
        probability, by Bradley and Terry's model, that the document is better than the relevant one
        whose score is :math:`s^+`; at least 0.5 where it scores higher.

        >>> suspects = Suspects(*np.array([[0], [7], [2], [1.5], [4], [1.5]]))
        >>> suspects.labels("soft", 1.0)
        array([0.5], dtype=float32)
        """
        if policy == "soft":
            gaps = self.gaps.clip(-LARGEST_GAP, LARGEST_GAP)
            return (1 / (1 + np.exp(-gaps))).astype(np.float32)
        label = np.nan if policy == "drop" else grade
        return np.full(len(self.scores), label, dtype=np.float32)


# A row of a table of suspects: one number for each array of Suspects.
SUSPECT = np.dtype(
    [
        ("query_rows", np.int64),
        ("doc_rows", np.int64),
        ("places", np.int64),
        ("scores", np.float32),
        ("relevant_rows", np.int64),
        ("relevant_scores", np.float32),
    ]
)


def find_suspects(
    negatives: MinedNegatives, judgements: QueryLists, judge: TextScorer, margin: float = 0.0
) -> tuple[Suspects, dict[str, int]]:
    """The negatives that a judge scores above a relevant document of their query minus a margin.

    Documents with a judgement, of whatever grade, are known: they are not suspected. Nor are those
    that training never takes for negatives (``ltr.mining.same_texts.known_documents``).

    Args:
        negatives: of a whole collection.
        judgements: of people: the queries to audit, with their relevant documents.
        judge: scores them.
        margin: in units of the judge's score; below 0 it takes fewer.

    Returns:
        The suspects; and how many queries and negatives were audited, and how many of each are
        suspected.
    """
    known = known_documents(judge.collection, judgements)
    lists, places = _lists_to_judge(negatives, judgements, known)
    all_scores: list[tuple[np.ndarray, np.ndarray]] = []
    blocks = range(0, len(lists), QUERIES_AT_ONCE)
    for start in track(blocks, "audit", f"blocks of {QUERIES_AT_ONCE} queries"):
        all_scores += judge.score_apart(lists[start : start + QUERIES_AT_ONCE])

    records = []
    for judged_list, places_of_list, scores in zip(lists, places, all_scores, strict=True):
        query_row, relevant_rows, negative_rows = judged_list
        of_relevant, of_negatives = scores
        weakest = int(of_relevant.argmin())
        bound = of_relevant[weakest] - margin
        for negative in np.flatnonzero(of_negatives > bound).tolist():
            record = (
                query_row,
                negative_rows[negative],
                places_of_list[negative],
                of_negatives[negative],
                relevant_rows[weakest],
                of_relevant[weakest],
            )
            records.append(record)
    suspects = _sorted_suspects(np.array(records, dtype=SUSPECT))
    counts = {
        "queries": len(lists),
        "negatives": sum(map(len, places)),
        "suspects": len(records),
        "suspect_queries": len(np.unique(suspects.query_rows)),
    }
    return suspects, counts


def _sorted_suspects(table: np.ndarray) -> Suspects:
    """Suspects of a table ``[S]``, the largest gap first; of equal gaps the smaller rows."""
    gaps = table["scores"] - table["relevant_scores"]
    table = table[np.lexsort((table["doc_rows"], table["query_rows"], -gaps))]
    return Suspects(**{name: table[name].copy() for name in Suspects._fields})


def _lists_to_judge(
    negatives: MinedNegatives, judgements: QueryLists, known: QueryLists
) -> tuple[list[RelevantAndNegatives], list[np.ndarray]]:
    """Each query with its relevant documents and its negatives; and the places of these."""
    lists: list[RelevantAndNegatives] = []
    places = []
    for query_row in judgements.query_rows.tolist():
        judged_rows, grades = judgements.of(query_row)
        negative_rows, _ = negatives.lists.of(query_row)
        known_rows, _ = known.of(query_row)
        is_unknown = ~np.isin(negative_rows, known_rows)
        relevant_rows = judged_rows[grades > 0]
        if is_unknown.any() and len(relevant_rows):
            lists.append((query_row, relevant_rows, negative_rows[is_unknown]))
            places.append(np.flatnonzero(is_unknown))
    return lists, places
