"""Ranking metrics over padded lists, one value per query, as trec_eval and LETOR count them.

A measure is one class here. Letters of shapes: b row (one query), n rank or column, m column of
``ideal``. A query with nothing to find gives NaN: :class:`RankingMetric` says what becomes of it.
"""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from ltr.errors import InputError, one_of, positive
from ltr.gains import exp_gain
from ltr.pairs import find_uppers, hinge, pair_sums
from ltr.pairs.lists import check_shapes

Empty = Literal["skip", "zero", "one"]


class RankedLists:
    """Lists to be measured: what the measures share is computed once, when the first of them asks.

    Args:
        scores: ``[B, N]``, compared as float32 (trec_eval stores them so).
        labels: ``[B, N]`` grades, 0 for unjudged; by rank a grade below 0 counts as 0 (trec_eval).
        mask: ``[B, N]`` bool, True for a ranked document; None means no padding.
        ties: ``[B, N]``, of equal scores the larger one of these comes first (trec_eval: the later
            document id); None keeps the order of the columns.
        ideal: ``[B, M]``, the grades of every relevant document of the query, 0 as padding; None
            where the list holds them all.

    Raises:
        ValueError: for shapes that differ, or a score that is NaN (the model has diverged).
    """

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        ties: Tensor | None = None,
        ideal: Tensor | None = None,
    ) -> None:
        self.scores, self.labels, mask = check_shapes(scores.float(), labels, mask)
        self.mask = torch.ones_like(self.labels, dtype=torch.bool) if mask is None else mask
        if (self.scores.isnan() & self.mask).any():
            raise ValueError(
                "scores must be numbers to be ranked, got NaN; the model has diverged: lower its learning rate"
            )
        self.ties = ties if scores.shape[1] else None
        self._ideal = ideal

    @cached_property
    def grades(self) -> Tensor:
        """``[B, N]``: the grades in the order of the ranking, best rank first; 0 at the padding,
        which comes last.
        """
        order = torch.arange(self.scores.shape[1], device=self.scores.device)
        order = order.expand(self.scores.shape)
        # Stable sorts from the least important key to the most.
        for key in (self.ties, self.scores, self.mask.int()):
            if key is not None:
                places = key.gather(1, order).argsort(dim=1, descending=True, stable=True)
                order = order.gather(1, places)
        return self.labels.clamp(min=0).masked_fill(~self.mask, 0.0).gather(1, order)

    @cached_property
    def ideal(self) -> Tensor:
        """``[B, M]``: the grades of all relevant documents, largest first."""
        ideal = self.labels.masked_fill(~self.mask, 0) if self._ideal is None else self._ideal
        return ideal.float().clamp(min=0).sort(dim=1, descending=True).values

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """``[B]`` each: the pairs with y_i > y_j, how many of them have s_j > s_i, and how many are
        tied in score.
        """
        # A hinge of margin 0 costs something where s_j > s_i; with the scores negated, where s_i >
        # s_j.
        n_pairs_b = find_uppers(self.labels, self.mask).n_pairs()
        scores = self.scores.detach()
        swapped_b, concordant_b = (
            pair_sums(s, self.labels, self.mask, hinge, active=True)[1] for s in (scores, -scores)
        )
        return n_pairs_b, swapped_b, n_pairs_b - swapped_b - concordant_b


class Measure(ABC):
    """One value for each ranked list: a class of its own, with its convention beside its formula.

    Args:
        k: ranks that count; None counts all.
        max_grade: the largest grade of the scale.

    Attributes:
        name: as options name it.
        takes_cut, needs_cut: whether ``@k`` may, or must, stand behind the name.
        by_rank: whether it looks for relevant documents by their ranks; else it counts pairs of the
            list with different labels, and has no ceiling.
        lower_is_better: whether it counts what is wrong.
        counted: how, to stand beside the number; empty for the usual.
    """

    name: str
    takes_cut: bool = True
    needs_cut: bool = False
    by_rank: bool = True
    lower_is_better: bool = False
    counted: str = ""

    def __init__(self, k: int | None = None, max_grade: float = 4.0) -> None:
        self.k = k
        self.max_grade = max_grade

    @abstractmethod
    def of(self, lists: RankedLists) -> Tensor:
        """``[B]``; NaN for a query with nothing to find."""


class NDCG(Measure):
    r"""Normalised discounted cumulative gain: :math:`\sum_{r \le k} y_r / \log_2(r + 1)` over that
    of the best order, as trec_eval has it.

    References: Järvelin & Kekäläinen (2002), Cumulated gain-based evaluation of IR techniques.
    """

    name = "nDCG"
    counted = "gain = grade"

    def gain(self, grades: Tensor) -> Tensor:
        """What grades are worth."""
        return grades

    def of(self, lists: RankedLists) -> Tensor:
        gained_b = _discounted(self.gain(lists.grades[:, : self.k]))
        best_b = _discounted(self.gain(lists.ideal[:, : self.k]))
        return _or_nan(gained_b / best_b.clamp(min=1e-30), lists.ideal)


class ExponentialNDCG(NDCG):
    r""":class:`NDCG` with the gain :math:`2^y - 1`, as LETOR has it."""

    name = "nDCG_exp"
    counted = "gain = 2^grade − 1"

    def gain(self, grades: Tensor) -> Tensor:
        return exp_gain(grades)


class ReciprocalRank(Measure):
    """1 / rank of the first relevant document, 0 if there is none among the first k."""

    name = "RR"

    def of(self, lists: RankedLists) -> Tensor:
        relevant_bn = _relevant(lists.grades, self.k)
        return _or_nan((relevant_bn / _ranks(relevant_bn)).amax(dim=1), lists.ideal)


class AveragePrecision(Measure):
    """Mean over all relevant documents of the precision at their rank; those not among the first k
    count 0.
    """

    name = "AP"

    def of(self, lists: RankedLists) -> Tensor:
        relevant_bn = _relevant(lists.grades, self.k)
        hits_b = (relevant_bn * relevant_bn.cumsum(dim=1) / _ranks(relevant_bn)).sum(dim=1)
        return _or_nan(hits_b / _n_relevant(lists.ideal), lists.ideal)


class Precision(Measure):
    """Share of relevant documents among the first k; ranks that a short list lacks count as
    irrelevant.
    """

    name = "P"
    needs_cut = True

    def of(self, lists: RankedLists) -> Tensor:
        assert self.k is not None, "it needs a cut"
        return _or_nan(_relevant(lists.grades, self.k).sum(dim=1) / self.k, lists.ideal)


class Recall(Measure):
    """Share of all relevant documents that stand among the first k."""

    name = "R"

    def of(self, lists: RankedLists) -> Tensor:
        found_b = _relevant(lists.grades, self.k).sum(dim=1)
        return _or_nan(found_b / _n_relevant(lists.ideal), lists.ideal)


class Success(Measure):
    """1 if a relevant document stands among the first k."""

    name = "Success"

    def of(self, lists: RankedLists) -> Tensor:
        return _or_nan(_relevant(lists.grades, self.k).amax(dim=1), lists.ideal)


class ExpectedReciprocalRank(Measure):
    r"""Expected 1 / rank at which a user who reads downwards is satisfied.

    .. math:: \sum_{r \le k} \frac{1}{r} R_r \prod_{i < r} (1 - R_i), \qquad R = (2^y - 1) / 2^{y_{max}}

    References: Chapelle et al. (2009), Expected reciprocal rank for graded relevance.
    """

    name = "ERR"

    def __init__(self, k: int | None = None, max_grade: float = 4.0) -> None:
        super().__init__(k, max_grade)
        self.counted = f"grades up to {max_grade:g}"

    def of(self, lists: RankedLists) -> Tensor:
        grades_bn = lists.grades
        if grades_bn.numel() and grades_bn.max() > self.max_grade:
            raise InputError(
                f"ERR needs grades up to max_grade={self.max_grade:g}, got {grades_bn.max():g}; raise it",
                option="max_grade",
            )
        satisfied_bn = exp_gain(grades_bn[:, : self.k]) / 2.0**self.max_grade
        still_reading_bn = torch.cumprod(1 - satisfied_bn, dim=1).roll(1, dims=1)
        still_reading_bn[:, :1] = 1.0
        expected_b = (satisfied_bn * still_reading_bn / _ranks(satisfied_bn)).sum(dim=1)
        return _or_nan(expected_b, lists.ideal)


class SwappedPairs(Measure):
    """Number of pairs of the list with different labels that stand in the wrong order; a tie of
    scores counts one half.

    Counted exactly, by sorting where a list is long.
    """

    name = "swapped_pairs"
    takes_cut = False
    by_rank = False
    lower_is_better = True

    def of(self, lists: RankedLists) -> Tensor:
        n_pairs_b, swapped_b, tied_b = lists.pairs
        # A number of pairs beyond 2^24 is not exact in float32.
        halves_b = (2 * swapped_b + tied_b).to(_sum_dtype())
        return (halves_b / 2).masked_fill(n_pairs_b == 0, math.nan)


class KendallTau(Measure):
    """Kendall's rank correlation τ-b of scores and labels within the list, from −1 to 1; 0 where
    all scores are equal.

    References: Kendall (1945), The treatment of ties in ranking problems.
    """

    name = "tau"
    takes_cut = False
    by_rank = False

    def of(self, lists: RankedLists) -> Tensor:
        n_pairs_b, swapped_b, tied_b = lists.pairs
        concordant_b = n_pairs_b - swapped_b - tied_b
        n_by_score_b = _pairs_with_two_scores(lists.scores, lists.mask)
        # Two roots, not the root of a product: that overflows for lists of some 10,000 documents.
        tau_b = (
            (concordant_b - swapped_b)
            / n_pairs_b.sqrt().clamp(min=1)
            / n_by_score_b.sqrt().clamp(min=1)
        )
        return tau_b.masked_fill(n_pairs_b == 0, math.nan)


MEASURES: dict[str, type[Measure]] = {
    kind.name: kind
    for kind in (
        NDCG,
        ExponentialNDCG,
        ReciprocalRank,
        AveragePrecision,
        Precision,
        Recall,
        Success,
        ExpectedReciprocalRank,
        SwappedPairs,
        KendallTau,
    )
}


def measure_named(measure: str, max_grade: float = 4.0) -> Measure:
    """A measure by its name, such as ``nDCG@10``; an InputError for another name."""
    name, _, cut = measure.partition("@")
    kind = MEASURES.get(name)
    is_number = cut.isdigit() and int(cut) > 0
    if kind is None or (cut and not (kind.takes_cut and is_number)) or (kind.needs_cut and not cut):
        ranks = [known.name for known in MEASURES.values() if known.takes_cut]
        pairs = [known.name for known in MEASURES.values() if not known.takes_cut]
        rule = f"one of {', '.join(ranks)} with or without @k (P needs one), or {', '.join(pairs)}"
        raise InputError(f"a measure must be {rule}; got {measure!r}", option="metrics")
    return kind(int(cut) if cut else None, max_grade)


def swapped_pairs(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """See :class:`SwappedPairs`."""
    return SwappedPairs().of(RankedLists(scores, labels, mask))


def kendall_tau(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """See :class:`KendallTau`."""
    return KendallTau().of(RankedLists(scores, labels, mask))


def _ranks(by_rank_bn: Tensor) -> Tensor:
    return torch.arange(1, by_rank_bn.shape[1] + 1, device=by_rank_bn.device)


def _relevant(grades_bn: Tensor, k: int | None) -> Tensor:
    return (grades_bn[:, :k] > 0).float()


def _n_relevant(ideal_bm: Tensor) -> Tensor:
    """How many relevant documents there are, at least 1, to divide by."""
    return (ideal_bm > 0).sum(dim=1).clamp(min=1)


def _discounted(gains_bn: Tensor) -> Tensor:
    return (gains_bn / torch.log2(_ranks(gains_bn) + 1.0)).sum(dim=1)


def _or_nan(value_b: Tensor, ideal_bm: Tensor) -> Tensor:
    return value_b.masked_fill(~(ideal_bm > 0).any(dim=1), math.nan)


def _sum_dtype() -> torch.dtype:
    # Apple's GPUs have no float64.
    return torch.float32 if torch.backends.mps.is_available() else torch.float64


def _pairs_with_two_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """``[B]`` int64: the pairs of real documents whose scores differ."""
    by_score = scores.masked_fill(~mask, torch.inf).sort(dim=1).values
    n_docs_b = mask.sum(dim=1, keepdim=True)
    n_not_above = torch.searchsorted(by_score, by_score, right=True).clamp(max=n_docs_b)
    return (n_docs_b - n_not_above).sum(dim=1)


class RankingMetric(Metric):
    """Mean of one measure over queries; under several ranks each query counts exactly once.

    Args:
        measure: ``nDCG@10`` (gain = grade), ``nDCG_exp@10`` (gain = 2^grade − 1), ``RR@10``,
            ``AP``, ``P@5``, ``R@100``, ``Success@1``, ``ERR@10``, ``swapped_pairs`` or ``tau``;
            without ``@k`` the whole list counts (``P`` needs a k).
        empty: whether a query with nothing to find is left out (``skip``), or counts 0 (``zero``,
            trec_eval) or 1 (``one``).
        max_grade: the largest grade of the scale; only ERR uses it.

    Example:
        >>> metric = RankingMetric("RR@10")
        >>> metric.update(torch.tensor([[0.3, 0.9, 0.1]]), torch.tensor([[1.0, 0.0, 0.0]]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    full_state_update = False
    total: Tensor
    queries: Tensor

    def __init__(
        self, measure: str = "nDCG@10", empty: Empty = "skip", max_grade: float = 4.0
    ) -> None:
        super().__init__()
        one_of(get_args(Empty), empty=empty)
        self.measure = measure
        self.measured = measure_named(measure, positive("max_grade", max_grade))
        self.empty = empty
        self.add_state("total", torch.zeros((), dtype=_sum_dtype()), dist_reduce_fx="sum")
        self.add_state("queries", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def convention(self) -> str:
        """How this number was counted, to stand beside it."""
        left_out = {"skip": "are left out", "zero": "count 0", "one": "count 1"}[self.empty]
        nothing = "without two different labels"
        if self.measured.by_rank:
            nothing = "without a relevant document"
        counted = f"{self.measured.counted}; " if self.measured.counted else ""
        return f"{counted}queries {nothing} {left_out}"

    def per_query(self, scores: Tensor | RankedLists, *others: Any) -> Tensor:
        """One value per query, ``[B]``, without touching the running mean; NaN for a query that is
        left out.

        Args:
            scores: lists to be measured (several metrics may share them: they are ranked once), or
                the ``scores`` of :class:`RankedLists`.
            others: with plain scores, its other arguments.
        """
        lists = scores if isinstance(scores, RankedLists) else RankedLists(scores, *others)
        value_b = self.measured.of(lists)
        if self.empty == "skip":
            return value_b
        return value_b.nan_to_num(nan=1.0 if self.empty == "one" else 0.0)

    def update(self, scores: Tensor | RankedLists, *others: Any) -> None:
        """Count B more queries; arguments as in :meth:`per_query`."""
        value_b = self.per_query(scores, *others)
        counted_b = ~value_b.isnan()
        self.total = self.total + value_b[counted_b].sum(dtype=self.total.dtype)
        # Not in place: the state may stem from inference mode.
        self.queries = self.queries + counted_b.sum()

    def compute(self) -> Tensor:
        """The mean; NaN if no query was counted."""
        return self.total / self.queries
