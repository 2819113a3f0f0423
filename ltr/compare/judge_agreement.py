"""How a machine's labels agree with those of people, document by document."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ltr.compare.named_judgements import Judgements
from ltr.compare.ranked_files import RankedFile
from ltr.compare.tables import Table

RANKS = (3, 10)  # the last ones of the first groups of ranks


@dataclass(frozen=True)
class JudgedPairs:
    """P pairs of a query and a document that both people and a machine have judged.

    Attributes:
        docs: ``[P]``, the ids of the documents.
        human, machine: ``[P]``, the grades.
        ranks: ``[P]``, the best rank of the document in any ranking; 0 where none has it.
    """

    docs: list[str]
    human: np.ndarray
    machine: np.ndarray
    ranks: np.ndarray

    @property
    def excess(self) -> np.ndarray:
        """``[P]``: what the machine gives beyond its mean over documents of the same grade by people."""
        _, group = np.unique(self.human, return_inverse=True)
        means = np.bincount(group, self.machine) / np.bincount(group)
        return self.machine - means[group]


def judged_pairs(
    human: Judgements, machine: Judgements, rankings: Sequence[RankedFile]
) -> JudgedPairs:
    """The pairs that both have judged.

    Args:
        human, machine: what they say; the ids are those of one collection.
        rankings: read with the ids of ``machine``.
    """
    by_people = _by_ids(human)
    best_rank: dict[tuple[str, str], int] = {}
    for ranking in rankings:
        lists = ranking.lists
        ranks = (lists.place_in_list + 1).tolist()
        rows = zip(lists.query_of_doc.tolist(), lists.doc_rows.tolist(), ranks, strict=True)
        for query, doc, rank in rows:
            pair = (machine.queries.ids[query], machine.docs.ids[doc])
            if pair in by_people:
                best_rank[pair] = min(rank, best_rank.get(pair, rank))
    both = [
        (pair, by_people[pair], grade)
        for pair, grade in _by_ids(machine).items()
        if pair in by_people
    ]
    return JudgedPairs(
        [doc for (_, doc), _, _ in both],
        np.array([grade for _, grade, _ in both]),
        np.array([grade for _, _, grade in both]),
        np.array([best_rank.get(pair, 0) for pair, _, _ in both]),
    )


def _by_ids(judgements: Judgements) -> dict[tuple[str, str], float]:
    lists = judgements.lists
    rows = zip(
        lists.query_of_doc.tolist(), lists.doc_rows.tolist(), lists.values.tolist(), strict=True
    )
    return {(judgements.queries.ids[q], judgements.docs.ids[d]): v for q, d, v in rows}


def kappa(first: np.ndarray, second: np.ndarray) -> float:
    r"""Cohen's kappa of two who judge the same: :math:`(p_o - p_e) / (1 - p_e)`, with :math:`p_o` the
    share on which they agree and :math:`p_e` what chance would give. NaN where both say one thing of
    all.

    References:
        Cohen (1960), A coefficient of agreement for nominal scales.

    Example:
        >>> round(kappa(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])), 3)
        0.5
    """
    observed = float((first == second).mean())
    expected = 0.0
    for value in np.union1d(first, second):
        expected += float((first == value).mean() * (second == value).mean())
    return (observed - expected) / (1 - expected) if expected < 1 else float("nan")


def agreement_line(pairs: JudgedPairs, are_graded: bool) -> str:
    """How far they agree, in words: kappa of grades and of what is relevant, and Spearman's rank
    correlation, each where it says something.
    """
    n = len(pairs.docs)
    if not n:
        return (
            "no document is judged by people and by the judge, so nothing is known of its agreement"
        )
    parts = [f"{n:,} documents are judged by both"]
    if are_graded:
        if pairs.human.max() == pairs.machine.max():
            parts.append(f"Cohen's kappa of grades {_number(kappa(pairs.human, pairs.machine))}")
        relevant = kappa(pairs.human > 0, pairs.machine > 0)
        parts.append(f"of relevant or not {_number(relevant)}")
    if np.ptp(pairs.human) > 0 and np.ptp(pairs.machine) > 0:
        spearman = float(stats.spearmanr(pairs.human, pairs.machine).statistic)
        parts.append(f"Spearman's correlation {_number(spearman)}")
    return ", ".join(parts)


def bias_table(title: str, pairs: JudgedPairs, lengths: np.ndarray) -> Table:
    """How much more the machine gives to documents of some length or rank than to others of the same
    grade by people.

    Args:
        title: of the table.
        pairs: what both have judged.
        lengths: ``[P]``, bytes of the documents.
    """
    groups: list[tuple[str, np.ndarray]] = []
    low, high = np.quantile(lengths, [1 / 3, 2 / 3])
    groups.append((f"the shortest third, to {low:,.0f} bytes", lengths <= low))
    groups.append(("the middle third", (lengths > low) & (lengths <= high)))
    groups.append((f"the longest third, from {high:,.0f} bytes", lengths > high))
    ranks = pairs.ranks
    first, second = RANKS
    groups.append((f"ranks 1 to {first} of any ranking", (ranks >= 1) & (ranks <= first)))
    groups.append((f"ranks {first + 1} to {second}", (ranks > first) & (ranks <= second)))
    groups.append((f"ranks from {second + 1}, or none", (ranks > second) | (ranks == 0)))
    excess = pairs.excess
    rows = []
    for name, is_in in groups:
        n = int(is_in.sum())
        if n < 2:
            rows.append([name, f"{n:,}", "", "", "", ""])
            continue
        values = excess[is_in]
        half = float(values.std(ddof=1) / np.sqrt(n) * stats.t.ppf(0.975, n - 1))
        rows.append(
            [
                name,
                f"{n:,}",
                f"{pairs.human[is_in].mean():.3f}",
                f"{pairs.machine[is_in].mean():.3f}",
                f"{values.mean():+.3f}",
                f"± {half:.3f}",
            ]
        )
    header = ["documents", "number", "people", "judge", "beyond others of the grade", "95 %"]
    return Table(title, header, rows)


def _number(value: float) -> str:
    return "not defined" if np.isnan(value) else f"{value:.2f}"
