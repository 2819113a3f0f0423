"""Ranking metrics over padded lists, one value per query, as trec_eval and LETOR count them.

A measure is one class here. Which queries have nothing to find, and what becomes of them, says
:class:`RankingMetric`. Letters of shapes: b row (one query), n rank or column, m column of ``ideal``.
"""

import math
import re
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from ltr.errors import InputError, one_of, positive
from ltr.gains import exp_gain
from ltr.pairs import find_uppers, hinge, pair_sums
from ltr.pairs.list_tensors import check_tensors, labels_as, prepare_types

Empty = Literal["skip", "zero", "one"]


class PairCounts(NamedTuple):
    """How many pairs (i, j) of each list have y_i > y_j, ``[B]`` int64 each."""

    total: Tensor
    swapped: Tensor  # those with s_j > s_i
    tied: Tensor  # those with s_j = s_i

    @property
    def concordant(self) -> Tensor:
        """Those with s_i > s_j."""
        return self.total - self.swapped - self.tied


class MeasuredLists:
    """Lists to be measured: what the measures share is computed once, when the first of them asks.

    Args:
        scores: ``[B, N]``, compared as float32 (trec_eval stores them so).
        labels: ``[B, N]`` grades, 0 for unjudged; by rank a grade below 0 counts as 0 (trec_eval).
        mask: ``[B, N]`` bool, True for a ranked document; None means no padding.
        tie_breaker: ``[B, N]``, of two equal scores the one with the larger number here comes first
            (trec_eval: the later document id); None keeps the order of the columns.
        ideal: ``[B, M]``, the grades of every relevant document of the query, 0 as padding; None
            where the list holds them all.
        judged: ``[B, N]`` bool, whether a document has a judgement, of whatever grade; None where
            all have.

    Raises:
        TypeError: for arrays or lists instead of tensors, or a mask that is not bool.
        ValueError: for shapes that differ, a score that is NaN, or a label that is no finite number
            or too large for float32 (see :func:`ltr.pairs.list_tensors.prepare_types`).

    Example:
        >>> lists = MeasuredLists(torch.tensor([[0.3, 0.9, 0.1]]), torch.tensor([[1.0, 0.0, 2.0]]))
        >>> lists.order, lists.grades
        (tensor([[1, 0, 2]]), tensor([[0., 1., 2.]]))
    """

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        tie_breaker: Tensor | None = None,
        ideal: Tensor | None = None,
        judged: Tensor | None = None,
    ) -> None:
        check_tensors(scores, labels, mask)
        self.scores, self.labels, mask = prepare_types(scores.float(), labels, mask)
        if mask is None:
            mask = torch.ones_like(self.labels, dtype=torch.bool)
        self.mask = mask
        if (self.scores.isnan() & self.mask).any():
            raise ValueError(
                "scores must be numbers to be ranked, got NaN; the model has diverged: lower its learning rate, unless its loss was NaN before a score was"
            )
        _check_finite(self.labels.masked_fill(~self.mask, 0.0))
        if ideal is not None:
            ideal = labels_as(torch.float32, ideal)
            _check_finite(ideal)
        # Lists without columns were given one column of padding; the others have none for it.
        self.tie_breaker = tie_breaker if scores.shape[1] else None
        self._given_judged = judged if scores.shape[1] else None
        self._given_ideal = ideal

    def take_rows(self, rows: Tensor) -> "MeasuredLists":
        """Some of the lists: ``rows`` is ``[B]`` bool."""
        ties = self.tie_breaker
        ideal = self._given_ideal
        judged = self._given_judged
        return MeasuredLists(
            self.scores[rows],
            self.labels[rows],
            self.mask[rows],
            None if ties is None else ties[rows],
            None if ideal is None else ideal[rows],
            None if judged is None else judged[rows],
        )

    @cached_property
    def order(self) -> Tensor:
        """``[B, N]`` int64: the columns in the order of the ranking, best rank first; the padding
        comes last.
        """
        columns = torch.arange(self.scores.shape[1], device=self.scores.device)
        order = columns.expand(self.scores.shape)
        # By mask, then score, then tie breaker: a stable sort by each, the least important key first.
        for key in (self.tie_breaker, self.scores, self.mask.int()):
            if key is None:
                continue
            sorted_places = key.gather(1, order).argsort(dim=1, descending=True, stable=True)
            order = order.gather(1, sorted_places)
        return order

    @cached_property
    def grades(self) -> Tensor:
        """``[B, N]``: the grades by rank; 0 at the padding."""
        grades = self.labels.clamp(min=0).masked_fill(~self.mask, 0.0)
        return grades.gather(1, self.order)

    @cached_property
    def judged(self) -> Tensor:
        """``[B, N]`` bool, by rank: whether a document has a judgement; False at the padding."""
        judged = self.mask if self._given_judged is None else self._given_judged & self.mask
        return judged.gather(1, self.order)

    @cached_property
    def ideal(self) -> Tensor:
        """``[B, M]``: the grades of all relevant documents, largest first."""
        ideal = self._given_ideal
        if ideal is None:
            ideal = self.labels.masked_fill(~self.mask, 0)
        return ideal.clamp(min=0).sort(dim=1, descending=True).values

    @cached_property
    def pairs(self) -> PairCounts:
        """The pairs of each list with different labels, by the order of their scores."""
        n_pairs_b = find_uppers(self.labels, self.mask).n_pairs()
        scores = self.scores.detach()
        # A hinge of margin 0 costs something just where s_j > s_i, and with the scores negated just
        # where s_i > s_j: the pairs with a cost are counted, by sorting where lists are long.
        _, swapped_b = pair_sums(scores, self.labels, self.mask, hinge, active=True)
        _, concordant_b = pair_sums(-scores, self.labels, self.mask, hinge, active=True)
        return PairCounts(n_pairs_b, swapped_b, n_pairs_b - swapped_b - concordant_b)


class Measure(ABC):
    """A measure of ranked lists, one value for each list.

    Args:
        k: how many ranks count, from the best; None counts all.
        max_grade: the largest grade of the scale.
        level: the grade from which on a document is relevant; None: any above 0.

    Attributes:
        name: its name in options.
        takes_level: whether ``(rel=N)`` may stand behind the name, and say the level.
        takes_cut: whether ``@k`` may stand behind these.
        needs_cut: whether ``@k`` must stand there.
        by_rank: True: it measures the ranks of the query's relevant documents, also of those that
            the list lacks. False: it looks at nothing but the list.
        lower_is_better: whether it counts what is wrong.
        note: what to print beside the number, such as the gain that it counts; empty if there is
            nothing to say.

    Example:
        >>> class FirstGrade(Measure):  # the grade of the document at the top
        ...     name = "FirstGrade"
        ...     def per_query(self, lists: MeasuredLists) -> Tensor:
        ...         return lists.grades[:, 0]
        >>> FirstGrade().per_query(MeasuredLists(torch.tensor([[0.3, 0.9]]), torch.tensor([[1.0, 3.0]])))
        tensor([3.])
    """

    name: str
    takes_level: bool = False
    takes_cut: bool = True
    needs_cut: bool = False
    by_rank: bool = True
    lower_is_better: bool = False
    note: str = ""

    def __init__(
        self, k: int | None = None, max_grade: float = 4.0, level: int | None = None
    ) -> None:
        self.k = k
        self.max_grade = max_grade
        self.level = level

    @property
    def to_find(self) -> str:
        """What a query must have to be measured; empty where it needs nothing."""
        if not self.by_rank:
            return "two different labels"
        if self.level is None:
            return "a relevant document"
        return f"a document of grade {self.level} or above"

    def is_relevant(self, grades: Tensor) -> Tensor:
        """Whether documents of these grades are relevant, bool."""
        return grades > 0 if self.level is None else grades >= self.level

    @abstractmethod
    def per_query(self, lists: MeasuredLists) -> Tensor:
        """``[B]``; anything for a query with nothing to find."""

    def can_measure(self, lists: MeasuredLists) -> Tensor:
        """``[B]`` bool: whether a query has something to find."""
        if self.by_rank:
            return self.is_relevant(lists.ideal).any(dim=1)
        return lists.pairs.total > 0

    def _relevant(self, lists: MeasuredLists) -> Tensor:
        """``[B, k]``, by rank: 1 for a relevant document among the first k ranks, else 0."""
        return self.is_relevant(lists.grades[:, : self.k]).float()

    def _n_relevant(self, lists: MeasuredLists) -> Tensor:
        """``[B]``: how many relevant documents there are, at least 1, to divide by."""
        return self.is_relevant(lists.ideal).sum(dim=1).clamp(min=1)


class NDCG(Measure):
    r"""Normalised discounted cumulative gain: :math:`\sum_{r \le k} y_r / \log_2(r + 1)` over that
    of the best order, as trec_eval has it.

    References: Järvelin & Kekäläinen (2002), Cumulated gain-based evaluation of IR techniques.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 0.0, 1.0]]))
        >>> NDCG().per_query(lists)  # 1 / log2(4), of 1
        tensor([0.5000])
    """

    name = "nDCG"
    note = "gain = grade"

    def gain(self, grades: Tensor, top: Tensor) -> Tensor:
        """The gain of each grade, in any unit; ``top`` ``[B, 1]`` is the largest of each query."""
        return grades

    def per_query(self, lists: MeasuredLists) -> Tensor:
        top = torch.cat([lists.grades, lists.ideal], dim=1).amax(dim=1, keepdim=True)
        gained_b = _discounted_sum(self.gain(lists.grades[:, : self.k], top))
        best_b = _discounted_sum(self.gain(lists.ideal[:, : self.k], top))
        return gained_b / best_b.clamp(min=1e-30)


class ExponentialNDCG(NDCG):
    r""":class:`NDCG` with the gain :math:`2^y - 1`, as LETOR has it.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 0.0, 2.0]]))
        >>> ExponentialNDCG().per_query(lists)  # 3 / log2(4), of 3
        tensor([0.5000])
    """

    name = "nDCG_exp"
    note = "gain = 2^grade − 1"

    def gain(self, grades: Tensor, top: Tensor) -> Tensor:
        return exp_gain(grades, top)


class ReciprocalRank(Measure):
    """1 / rank of the first relevant document, 0 if there is none among the first k.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 1.0, 1.0]]))
        >>> ReciprocalRank(k=10).per_query(lists)
        tensor([0.5000])
    """

    name = "RR"
    takes_level = True

    def per_query(self, lists: MeasuredLists) -> Tensor:
        relevant_bn = self._relevant(lists)
        return (relevant_bn / _ranks(relevant_bn)).amax(dim=1)


class AveragePrecision(Measure):
    """Mean over all relevant documents of the precision at their rank; those not among the first k
    count 0.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0]]))
        >>> AveragePrecision().per_query(lists)  # (1/1 + 2/3) / 2
        tensor([0.8333])
    """

    name = "AP"
    takes_level = True

    def per_query(self, lists: MeasuredLists) -> Tensor:
        relevant_bn = self._relevant(lists)
        precision_bn = relevant_bn.cumsum(dim=1) / _ranks(relevant_bn)
        sum_b = (relevant_bn * precision_bn).sum(dim=1)
        return sum_b / self._n_relevant(lists)


class Precision(Measure):
    """Share of relevant documents among the first k; ranks that a short list lacks count as
    irrelevant.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0]]))
        >>> Precision(k=2).per_query(lists)
        tensor([0.5000])
    """

    name = "P"
    takes_level = True
    needs_cut = True

    def per_query(self, lists: MeasuredLists) -> Tensor:
        assert self.k is not None, "it needs a cut"
        found_b = self._relevant(lists).sum(dim=1)
        return found_b / self.k


class Recall(Measure):
    """Share of all relevant documents that stand among the first k.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0]]))
        >>> Recall(k=2).per_query(lists)
        tensor([0.5000])
    """

    name = "R"
    takes_level = True

    def per_query(self, lists: MeasuredLists) -> Tensor:
        found_b = self._relevant(lists).sum(dim=1)
        return found_b / self._n_relevant(lists)


class Success(Measure):
    """1 if a relevant document stands among the first k.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 0.0, 1.0]]))
        >>> Success(k=2).per_query(lists), Success(k=3).per_query(lists)
        (tensor([0.]), tensor([1.]))
    """

    name = "Success"
    takes_level = True

    def per_query(self, lists: MeasuredLists) -> Tensor:
        return self._relevant(lists).amax(dim=1)


class Judged(Measure):
    """Share of the first k documents that have a judgement, of whatever grade; of a list of fewer
    documents the share of these, and 0 for an empty one (ir_measures).

    Example:
        >>> judged = torch.tensor([[True, False, True]])
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.zeros(1, 3), judged=judged)
        >>> Judged(k=2).per_query(lists)
        tensor([0.5000])
    """

    name = "Judged"
    needs_cut = True
    by_rank = False
    note = "of k documents, or of all of a shorter list"

    @property
    def to_find(self) -> str:
        return ""

    def per_query(self, lists: MeasuredLists) -> Tensor:
        assert self.k is not None, "it needs a cut"
        n_judged_b = lists.judged[:, : self.k].sum(dim=1)
        n_docs_b = lists.mask.sum(dim=1).clamp(max=self.k)
        return n_judged_b / n_docs_b.clamp(min=1)

    def can_measure(self, lists: MeasuredLists) -> Tensor:
        return lists.mask.new_ones(len(lists.mask))


class ExpectedReciprocalRank(Measure):
    r"""Expected 1 / rank at which a user who reads downwards is satisfied.

    .. math:: \sum_{r \le k} \frac{1}{r} R_r \prod_{i < r} (1 - R_i), \qquad R = (2^y - 1) / 2^{y_{max}}

    References: Chapelle et al. (2009), Expected reciprocal rank for graded relevance.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 1.0, 0.0]]))
        >>> ExpectedReciprocalRank(max_grade=1.0).per_query(lists)  # 1/2 * (2 - 1) / 2
        tensor([0.2500])
    """

    name = "ERR"

    def __init__(
        self, k: int | None = None, max_grade: float = 4.0, level: int | None = None
    ) -> None:
        super().__init__(k, max_grade, level)
        self.note = f"grades up to {max_grade:.9g}"

    def per_query(self, lists: MeasuredLists) -> Tensor:
        grades_bn = lists.grades
        if grades_bn.numel() and grades_bn.max() > self.max_grade:
            raise InputError(
                f"ERR needs grades up to max_grade={self.max_grade:.9g}, got {grades_bn.max():.9g}; raise it",
                option="max_grade",
            )
        satisfied_bn = exp_gain(grades_bn[:, : self.k], self.max_grade)
        # The probability to get as far as a rank: the product over the ranks above it, so the
        # running product moves down by one rank and begins with 1.
        reaches_bn = torch.cumprod(1 - satisfied_bn, dim=1).roll(1, dims=1)
        reaches_bn[:, :1] = 1.0
        return (satisfied_bn * reaches_bn / _ranks(satisfied_bn)).sum(dim=1)


class SwappedPairs(Measure):
    """Number of pairs of the list with different labels that stand in the wrong order; a tie of
    scores counts one half.

    Counted exactly, by sorting where a list is long.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 1.0, 2.0]]))
        >>> SwappedPairs().per_query(lists)
        tensor([3.], dtype=torch.float64)
    """

    name = "swapped_pairs"
    takes_cut = False
    by_rank = False
    lower_is_better = True

    def per_query(self, lists: MeasuredLists) -> Tensor:
        pairs = lists.pairs
        # In whole numbers, halved at the end; float32 is not exact beyond 2^24 pairs.
        twice_b = (2 * pairs.swapped + pairs.tied).to(_sum_dtype())
        return twice_b / 2


class KendallTau(Measure):
    """Kendall's rank correlation τ-b of scores and labels within the list, from −1 to 1; 0 where
    all scores are equal.

    References: Kendall (1945), The treatment of ties in ranking problems.

    Example:
        >>> lists = MeasuredLists(torch.tensor([[2.0, 1.0]]), torch.tensor([[0.0, 1.0]]))
        >>> KendallTau().per_query(lists)
        tensor([-1.])
    """

    name = "tau"
    takes_cut = False
    by_rank = False

    def per_query(self, lists: MeasuredLists) -> Tensor:
        pairs = lists.pairs
        n_two_scores_b = _pairs_with_two_scores(lists.scores, lists.mask)
        # Two roots, not the root of a product: that overflows for lists of some 10,000 documents.
        root_labels_b = pairs.total.sqrt().clamp(min=1)
        root_scores_b = n_two_scores_b.sqrt().clamp(min=1)
        return (pairs.concordant - pairs.swapped) / root_labels_b / root_scores_b


_ALL: tuple[type[Measure], ...] = (
    NDCG,
    ExponentialNDCG,
    ReciprocalRank,
    AveragePrecision,
    Precision,
    Recall,
    Success,
    Judged,
    ExpectedReciprocalRank,
    SwappedPairs,
    KendallTau,
)
MEASURES = {kind.name: kind for kind in _ALL}


def bare_name(measure: str) -> str:
    """The name of a measure without its level and its cut.

    >>> bare_name("AP(rel=2)@10")
    'AP'
    """
    return re.split("[(@]", measure, maxsplit=1)[0]


def measure_named(measure: str, max_grade: float = 4.0) -> Measure:
    """A measure by its name, such as ``nDCG@10`` or ``AP(rel=2)@10``; an InputError for another
    name.
    """
    parts = re.fullmatch(r"([^(@]+)(?:\(rel=(.*)\))?(?:@([1-9][0-9]*))?", measure)
    kind = MEASURES.get(parts[1]) if parts else None
    if parts is None or kind is None or not _fits(kind, level=parts[2], cut=parts[3]):
        with_cut = ", ".join(known.name for known in _ALL if known.takes_cut)
        need_cut = " and ".join(known.name for known in _ALL if known.needs_cut)
        with_level = ", ".join(known.name for known in _ALL if known.takes_level)
        without_cut = ", ".join(known.name for known in _ALL if not known.takes_cut)
        raise InputError(
            f"a measure must be one of {with_cut} with or without @k ({need_cut} need one), or {without_cut}; {with_level} take a level before @k, as AP(rel=2)@10; got {measure!r}",
            option="metrics",
        )
    if parts[2] is not None and re.fullmatch("[1-9][0-9]{0,6}", parts[2]) is None:
        raise InputError(
            f"the level of a measure must be a whole number from 1 to 9999999, without zeros before it, got {measure!r}; write {kind.name}(rel=2), say",
            option="metrics",
        )
    level = None if parts[2] is None else int(parts[2])
    cut = None if parts[3] is None else int(parts[3])
    return kind(cut, max_grade, level)


def _fits(kind: type[Measure], *, level: str | None, cut: str | None) -> bool:
    """Whether what stands behind the name is right for this measure."""
    if level is not None and not kind.takes_level:
        return False
    return not kind.needs_cut if cut is None else kind.takes_cut


def swapped_pairs(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """See :class:`SwappedPairs`; NaN for a list of one label."""
    return RankingMetric(SwappedPairs.name).per_query(scores, labels, mask)


def _ranks(like_bn: Tensor) -> Tensor:
    """``[N]``: the ranks 1, 2, … of the columns of ``like_bn``."""
    return torch.arange(1, like_bn.shape[1] + 1, device=like_bn.device)


def _discounted_sum(gains_bn: Tensor) -> Tensor:
    """``[B]``: each gain divided by log2(1 + rank), summed over the ranks."""
    return (gains_bn / torch.log2(_ranks(gains_bn) + 1.0)).sum(dim=1)


def _check_finite(grades: Tensor) -> None:
    """Refuse a grade that is no number, which no measure could tell from a query left out."""
    if not grades.isfinite().all():
        raise ValueError("labels must be grades to be measured, got NaN or infinity; mend the data")


def _sum_dtype() -> torch.dtype:
    """float64; Apple's GPUs have float32 only."""
    return torch.float32 if torch.backends.mps.is_available() else torch.float64


def _pairs_with_two_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """``[B]`` int64: the pairs of real documents whose scores differ."""
    ascending_bn = scores.masked_fill(~mask, torch.inf).sort(dim=1).values
    n_docs_b1 = mask.sum(dim=1, keepdim=True)
    # Documents with a score of at most this one's; n_docs less that is how many score more. Clamped,
    # so that padding (+inf) gives 0.
    n_not_above_bn = torch.searchsorted(ascending_bn, ascending_bn, right=True)
    n_not_above_bn = n_not_above_bn.clamp(max=n_docs_b1)
    return (n_docs_b1 - n_not_above_bn).sum(dim=1)


class RankingMetric(Metric):
    """Mean of one measure over queries; under several ranks each query counts exactly once.

    Args:
        measure: ``nDCG@10`` (gain = grade), ``nDCG_exp@10`` (gain = 2^grade − 1), ``RR@10``,
            ``AP``, ``P@5``, ``R@100``, ``Success@1``, ``Judged@10``, ``ERR@10``, ``swapped_pairs``
            or ``tau``; without ``@k`` the whole list counts (``P`` and ``Judged`` need a k). RR, AP,
            P, R and Success take a level, as ``AP(rel=2)@10``: the grade from which on a document
            is relevant.
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
        self.name = measure  # as options have it
        self.measure = measure_named(measure, positive("max_grade", max_grade))
        self.empty = empty
        self.add_state("total", torch.zeros((), dtype=_sum_dtype()), dist_reduce_fx="sum")
        self.add_state("queries", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def convention(self) -> str:
        """How this number was counted, to stand beside it."""
        if not self.measure.to_find:
            return self.measure.note
        what_they_do = {"skip": "are left out", "zero": "count 0", "one": "count 1"}
        empty_queries = f"queries without {self.measure.to_find} {what_they_do[self.empty]}"
        if self.measure.note:
            return f"{self.measure.note}; {empty_queries}"
        return empty_queries

    def per_query(self, scores: Tensor | MeasuredLists, *others: Any) -> Tensor:
        """One value per query, ``[B]``, without touching the running mean; NaN for a query that is
        left out, and for no other.

        Args:
            scores: lists to be measured (several metrics may share them: they are ranked once), or
                the ``scores`` of :class:`MeasuredLists`.
            others: with plain scores, its other arguments.

        Raises:
            ValueError: as :class:`MeasuredLists`, and if the measure of a query with something to
                find is no number: it would be taken for one that is left out.
        """
        lists = scores if isinstance(scores, MeasuredLists) else MeasuredLists(scores, *others)
        value_b = self.measure.per_query(lists)
        can_measure_b = self.measure.can_measure(lists)
        if (~value_b.isfinite() & can_measure_b).any():
            raise ValueError(
                f"{self.name} of a query with {self.measure.to_find or 'a list'} must be a number, got NaN or infinity; the measure is at fault, not the model"
            )
        value_of_empty = {"skip": math.nan, "zero": 0.0, "one": 1.0}
        return value_b.masked_fill(~can_measure_b, value_of_empty[self.empty])

    def update(self, scores: Tensor | MeasuredLists, *others: Any) -> None:
        """Count B more queries; arguments as in :meth:`per_query`."""
        value_b = self.per_query(scores, *others)
        counted_b = ~value_b.isnan()
        # Not in place: the state may stem from inference mode.
        self.total = self.total + value_b[counted_b].sum(dtype=self.total.dtype)
        self.queries = self.queries + counted_b.sum()

    def compute(self) -> Tensor:
        """The mean; NaN if no query was counted."""
        return self.total / self.queries
