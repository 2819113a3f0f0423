"""Ranking metrics over padded lists, one value per query, as trec_eval and LETOR count them.

Letters of shapes: b row (one query), n rank or column, m column of ``ideal``. Measures by rank take the grades by rank, those of
all relevant documents, largest first, and k, the ranks counted (None counts all). A query with nothing to find gives NaN:
:class:`RankingMetric` says what becomes of it.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from ltr.errors import InputError
from ltr.gains import exp_gain
from ltr.losses.lists import check_shapes
from ltr.losses.loss import check_choice, positive
from ltr.losses.pairs import find_uppers, hinge, pair_sums

Empty = Literal["skip", "zero", "one"]


class RankedLists:
    """Lists to be measured: what the measures share is computed once, when the first of them asks.

    Args:
        scores: ``[B, N]``, compared as float32 (trec_eval stores them so).
        labels: ``[B, N]`` grades, 0 for unjudged; by rank a grade below 0 counts as 0 (trec_eval).
        mask: ``[B, N]`` bool, True for a ranked document; None means no padding.
        ties: ``[B, N]``, of equal scores the larger one of these comes first (trec_eval: the later document id); None keeps the
            order of the columns.
        ideal: ``[B, M]``, the grades of every relevant document of the query, 0 as padding; None where the list holds them all.

    Raises:
        ValueError: for shapes that differ, or a score that is NaN (the model has diverged).
    """

    def __init__(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, ties: Tensor | None = None, ideal: Tensor | None = None
    ) -> None:
        self.scores, self.labels, mask = check_shapes(scores.float(), labels, mask)
        self.mask = torch.ones_like(self.labels, dtype=torch.bool) if mask is None else mask
        if (self.scores.isnan() & self.mask).any():
            raise ValueError("scores must be numbers to be ranked, got NaN; the model has diverged: lower its learning rate")
        self.ties, self._ideal = ties if scores.shape[1] else None, ideal

    @cached_property
    def grades(self) -> Tensor:
        """``[B, N]``: the grades in the order of the ranking, best rank first; 0 at the padding, which comes last."""
        order = torch.arange(self.scores.shape[1], device=self.scores.device).expand(self.scores.shape)
        for key in (self.ties, self.scores, self.mask.int()):  # stable sorts from the least important key to the most
            if key is not None:
                order = order.gather(1, key.gather(1, order).argsort(dim=1, descending=True, stable=True))
        return self.labels.clamp(min=0).masked_fill(~self.mask, 0.0).gather(1, order)

    @cached_property
    def ideal(self) -> Tensor:
        """``[B, M]``: the grades of all relevant documents, largest first."""
        ideal = self.labels.masked_fill(~self.mask, 0) if self._ideal is None else self._ideal
        return ideal.float().clamp(min=0).sort(dim=1, descending=True).values

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """``[B]`` each: the pairs with y_i > y_j, how many of them have s_j > s_i, and how many are tied in score."""
        # A hinge of margin 0 costs something where s_j > s_i; with the scores negated, where s_i > s_j.
        n_pairs_b, scores = find_uppers(self.labels, self.mask).n_pairs(), self.scores.detach()
        swapped_b, right_b = (pair_sums(s, self.labels, self.mask, hinge, active=True)[1] for s in (scores, -scores))
        return n_pairs_b, swapped_b, n_pairs_b - swapped_b - right_b


def _ranks(by_rank_bn: Tensor) -> Tensor:
    return torch.arange(1, by_rank_bn.shape[1] + 1, device=by_rank_bn.device)


def _relevant(grades_bn: Tensor, k: int | None) -> Tensor:
    return (grades_bn[:, :k] > 0).float()


def _discounted(gains_bn: Tensor) -> Tensor:
    return (gains_bn / torch.log2(_ranks(gains_bn) + 1.0)).sum(dim=1)


def _or_nan(value_b: Tensor, ideal_bm: Tensor) -> Tensor:
    return value_b.masked_fill(~(ideal_bm > 0).any(dim=1), math.nan)


def ndcg(grades_bn: Tensor, ideal_bm: Tensor, k: int | None = None, gain: Literal["linear", "exp"] = "linear") -> Tensor:
    r"""Normalised discounted cumulative gain: :math:`\sum_{r \le k} g(y_r) / \log_2(r + 1)` over that of the best order.

    References: Järvelin & Kekäläinen (2002), Cumulated gain-based evaluation of IR techniques.

    Args:
        gain: ``linear``: the grade (trec_eval); ``exp``: 2^grade − 1 (LETOR).
    """
    gains_bn, best_bm = (grades[:, :k] if gain == "linear" else exp_gain(grades[:, :k]) for grades in (grades_bn, ideal_bm))
    return _or_nan(_discounted(gains_bn) / _discounted(best_bm).clamp(min=1e-30), ideal_bm)


def reciprocal_rank(grades_bn: Tensor, ideal_bm: Tensor, k: int | None = None) -> Tensor:
    """1 / rank of the first relevant document, 0 if there is none among the first k."""
    relevant_bn = _relevant(grades_bn, k)
    return _or_nan((relevant_bn / _ranks(relevant_bn)).amax(dim=1), ideal_bm)


def average_precision(grades_bn: Tensor, ideal_bm: Tensor, k: int | None = None) -> Tensor:
    """Mean over all relevant documents of the precision at their rank; those not among the first k count 0."""
    relevant_bn = _relevant(grades_bn, k)
    hits_b = (relevant_bn * relevant_bn.cumsum(dim=1) / _ranks(relevant_bn)).sum(dim=1)
    return _or_nan(hits_b / (ideal_bm > 0).sum(dim=1).clamp(min=1), ideal_bm)


def precision(grades_bn: Tensor, ideal_bm: Tensor, k: int) -> Tensor:
    """Share of relevant documents among the first k; ranks that a short list lacks count as irrelevant."""
    return _or_nan(_relevant(grades_bn, k).sum(dim=1) / k, ideal_bm)


def recall(grades_bn: Tensor, ideal_bm: Tensor, k: int | None = None) -> Tensor:
    """Share of all relevant documents that stand among the first k."""
    return _or_nan(_relevant(grades_bn, k).sum(dim=1) / (ideal_bm > 0).sum(dim=1).clamp(min=1), ideal_bm)


def success(grades_bn: Tensor, ideal_bm: Tensor, k: int | None = None) -> Tensor:
    """1 if a relevant document stands among the first k."""
    return _or_nan(_relevant(grades_bn, k).amax(dim=1), ideal_bm)


def expected_reciprocal_rank(grades_bn: Tensor, ideal_bm: Tensor, k: int | None = None, max_grade: float = 4.0) -> Tensor:
    r"""Expected 1 / rank at which a user who reads downwards is satisfied.

    .. math:: \sum_{r \le k} \frac{1}{r} R_r \prod_{i < r} (1 - R_i), \qquad R = (2^y - 1) / 2^{y_{max}}

    References: Chapelle et al. (2009), Expected reciprocal rank for graded relevance.
    """
    if grades_bn.numel() and grades_bn.max() > max_grade:
        raise InputError(f"ERR needs grades up to max_grade={max_grade:g}, got {grades_bn.max():g}; raise it", option="max_grade")
    satisfied_bn = exp_gain(grades_bn[:, :k]) / 2.0**max_grade
    still_reading_bn = torch.cumprod(1 - satisfied_bn, dim=1).roll(1, dims=1)
    still_reading_bn[:, :1] = 1.0
    return _or_nan((satisfied_bn * still_reading_bn / _ranks(satisfied_bn)).sum(dim=1), ideal_bm)


def swapped_pairs(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Number of pairs of the list with different labels that stand in the wrong order; a tie of scores counts one half.

    Lower is better. Counted exactly, by sorting where a list is long. NaN for a list without two different labels.
    """
    return _swapped(RankedLists(scores, labels, mask))


def kendall_tau(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kendall's rank correlation τ-b of scores and labels within the list, from −1 to 1; 0 where all scores are equal.

    NaN for a list without two different labels.

    References: Kendall (1945), The treatment of ties in ranking problems.
    """
    return _tau(RankedLists(scores, labels, mask))


def _swapped(lists: RankedLists) -> Tensor:
    n_pairs_b, swapped_b, tied_b = lists.pairs
    # A number of pairs beyond 2^24 is not exact in float32.
    return ((2 * swapped_b + tied_b).to(_exact()) / 2).masked_fill(n_pairs_b == 0, math.nan)


def _tau(lists: RankedLists) -> Tensor:
    n_pairs_b, swapped_b, tied_b = lists.pairs
    concordant_b = n_pairs_b - swapped_b - tied_b
    n_by_score_b = _pairs_with_two_scores(lists.scores, lists.mask)
    # Two roots, not the root of a product: that overflows for lists of some 10,000 documents.
    tau_b = (concordant_b - swapped_b) / n_pairs_b.sqrt().clamp(min=1) / n_by_score_b.sqrt().clamp(min=1)
    return tau_b.masked_fill(n_pairs_b == 0, math.nan)


def _exact() -> torch.dtype:
    return torch.float32 if torch.backends.mps.is_available() else torch.float64  # Apple's GPUs have no float64


def _pairs_with_two_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """``[B]`` int64: the pairs of real documents whose scores differ."""
    by_score = scores.masked_fill(~mask, torch.inf).sort(dim=1).values
    n_docs_b = mask.sum(dim=1, keepdim=True)
    n_not_above = torch.searchsorted(by_score, by_score, right=True).clamp(max=n_docs_b)
    return (n_docs_b - n_not_above).sum(dim=1)


_BY_RANK: dict[str, Callable[..., Tensor]] = {
    "nDCG": ndcg,
    "nDCG_exp": lambda grades_bn, ideal_bm, k: ndcg(grades_bn, ideal_bm, k, gain="exp"),
    "RR": reciprocal_rank,
    "AP": average_precision,
    "P": precision,
    "R": recall,
    "Success": success,
    "ERR": expected_reciprocal_rank,
}
LOWER_IS_BETTER = ("swapped_pairs",)
_BY_PAIR: dict[str, Callable[[RankedLists], Tensor]] = {"swapped_pairs": _swapped, "tau": _tau}


class RankingMetric(Metric):
    """Mean of one measure over queries; under several ranks each query counts exactly once.

    Args:
        measure: ``nDCG@10`` (gain = grade), ``nDCG_exp@10`` (gain = 2^grade − 1), ``RR@10``, ``AP``, ``P@5``, ``R@100``,
            ``Success@1``, ``ERR@10``, ``swapped_pairs`` or ``tau``; without ``@k`` the whole list counts (``P`` needs a k).
        empty: whether a query with nothing to find is left out (``skip``), or counts 0 (``zero``, trec_eval) or 1 (``one``).
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

    def __init__(self, measure: str = "nDCG@10", empty: Empty = "skip", max_grade: float = 4.0) -> None:
        super().__init__()
        name, _, cut = measure.partition("@")
        known = name in _BY_PAIR or name in _BY_RANK
        if not known or (cut and (name in _BY_PAIR or not cut.isdigit() or int(cut) < 1)) or (name == "P" and not cut):
            rule = f"one of {', '.join(_BY_RANK)} with or without @k (P needs one), or {', '.join(_BY_PAIR)}"
            raise InputError(f"a measure must be {rule}; got {measure!r}", option="metrics")
        check_choice("empty", empty, Empty)
        self.measure, self.name, self.k = measure, name, int(cut) if cut else None
        self.empty, self.max_grade = empty, positive("max_grade", max_grade)
        self.add_state("total", torch.zeros((), dtype=_exact()), dist_reduce_fx="sum")
        self.add_state("queries", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def convention(self) -> str:
        """How this number was counted, to stand beside it."""
        gain = {"nDCG": "gain = grade; ", "nDCG_exp": "gain = 2^grade − 1; ", "ERR": f"grades up to {self.max_grade:g}; "}
        left_out = {"skip": "are left out", "zero": "count 0", "one": "count 1"}[self.empty]
        nothing = "without two different labels" if self.name in _BY_PAIR else "without a relevant document"
        return f"{gain.get(self.name, '')}queries {nothing} {left_out}"

    def per_query(self, scores: Tensor | RankedLists, *others: Any) -> Tensor:
        """One value per query, ``[B]``, without touching the running mean; NaN for a query that is left out.

        Args:
            scores: lists to be measured, which several metrics rank but once; or scores alone, before
            *others: the other arguments of :class:`RankedLists`.
        """
        lists = scores if isinstance(scores, RankedLists) else RankedLists(scores, *others)
        if self.name in _BY_PAIR:
            value_b = _BY_PAIR[self.name](lists)
        else:
            options = {"max_grade": self.max_grade} if self.name == "ERR" else {}
            value_b = _BY_RANK[self.name](lists.grades, lists.ideal, self.k, **options)
        return value_b if self.empty == "skip" else value_b.nan_to_num(nan={"zero": 0.0, "one": 1.0}[self.empty])

    def update(self, scores: Tensor | RankedLists, *others: Any) -> None:
        """Count B more queries; arguments as in :meth:`per_query`."""
        value_b = self.per_query(scores, *others)
        counted_b = ~value_b.isnan()
        self.total = self.total + value_b[counted_b].sum(dtype=self.total.dtype)
        self.queries = self.queries + counted_b.sum()  # not in place: the state may stem from inference mode

    def compute(self) -> Tensor:
        """The mean; NaN if no query was counted."""
        return self.total / self.queries
