"""Against pytrec_eval where it has the measure, against a plain loop or SciPy elsewhere."""

import math
import statistics

import numpy as np
import pytest
import pytrec_eval
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.errors import InputError
from ltr.losses import RankNetLoss
from ltr.metrics import MeasuredLists, RankingMetric, swapped_pairs
from ltr.source_metrics import SourceMetrics

TREC = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG@3": "ndcg_cut_3",
    "nDCG": "ndcg",
    "RR": "recip_rank",
    "AP": "map",
    "AP@5": "map_cut_5",
    "P@5": "P_5",
    "P@20": "P_20",
    "R@5": "recall_5",
    "Success@1": "success_1",
    "Success@5": "success_5",
}


def random_lists(seed: int, n_queries: int = 40, width: int = 12):
    """Graded lists with ties, unjudged documents, relevant documents outside of the list, empty and
    all-relevant queries.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 6, (n_queries, width), generator=generator).float() / 3
    labels = torch.randint(0, 4, (n_queries, width), generator=generator).float() * (
        torch.rand(n_queries, width, generator=generator) < 0.4
    )
    mask = torch.arange(width) < torch.randint(1, width + 1, (n_queries, 1), generator=generator)
    labels[0], labels[1] = 0.0, 1.0
    labels[~mask] = 0.0
    outside = torch.randint(0, 4, (n_queries, 3), generator=generator).float()
    outside[0] = 0.0
    ties = torch.stack([torch.randperm(width, generator=generator) for _ in range(n_queries)])
    return scores, labels, mask, ties, torch.cat([labels, outside], dim=1)


def as_trec(scores, labels, mask, ties, ideal):
    qrels = {}
    run = {}
    width = scores.shape[1]
    for q in range(len(scores)):
        name = [f"d{ties[q, d]:03d}" for d in range(width)]
        run[f"q{q}"] = {name[d]: float(scores[q, d]) for d in range(width) if mask[q, d]}
        judged = {f"outside{m}": int(g) for m, g in enumerate(ideal[q, width:])}
        for d in range(width):
            if mask[q, d] and (labels[q, d] > 0 or d % 2):  # others: unjudged
                judged[name[d]] = int(labels[q, d])
        qrels[f"q{q}"] = judged
    return qrels, run


TREC_FROM_A_LEVEL = {
    "AP": "map",
    "AP@10": "map_cut_10",
    "AP@100": "map_cut_100",
    "RR": "recip_rank",
    "P@1": "P_1",
    "P@10": "P_10",
    "R@5": "recall_5",
    "R@100": "recall_100",
    "Success@1": "success_1",
    "Success@5": "success_5",
}


def test_levels_equal_trec_eval_in_ten_thousand_lists():
    """As its ``-l``: grades from -1 to 3, ties, unjudged documents, relevant ones that are not
    ranked, and queries without a document at the level, which count 0.
    """
    generator = torch.Generator().manual_seed(0)
    n_queries = 10_000
    width = 12
    scores = torch.randint(0, 6, (n_queries, width), generator=generator).float() / 3
    grades = torch.randint(-1, 4, (n_queries, width + 3), generator=generator)
    # Of some queries all grades lie below 2, or below 3.
    grades = grades.clamp(max=torch.randint(1, 4, (n_queries, 1), generator=generator))
    is_judged = torch.rand(n_queries, width + 3, generator=generator) < 0.5
    is_judged[:, -1] = True  # trec_eval knows no query without a judgement
    lengths = torch.randint(1, width + 1, (n_queries, 1), generator=generator)
    mask = torch.arange(width) < lengths
    is_judged[:, :width] &= mask
    labels = (grades * is_judged).float()
    ties = torch.rand(n_queries, width, generator=generator).argsort(dim=1)
    names = [f"d{number:02d}" for number in range(width + 3)]  # of equal scores the later first
    qrels = {}
    run = {}
    for q in range(n_queries):
        docs = [*ties[q].tolist(), *range(width, width + 3)]
        columns = is_judged[q].nonzero().flatten().tolist()
        qrels[f"q{q}"] = {names[docs[d]]: int(grades[q, d]) for d in columns}
        run[f"q{q}"] = {names[docs[d]]: float(scores[q, d]) for d in range(lengths[q])}
    lists = MeasuredLists(scores, labels[:, :width], mask, ties, labels)
    for level in (1, 2, 3):
        oracle = pytrec_eval.RelevanceEvaluator(
            qrels, set(TREC_FROM_A_LEVEL.values()), relevance_level=level
        ).evaluate(run)
        has_any = (labels >= level).any(dim=1)
        assert 0 < has_any.sum() < n_queries
        for measure, theirs in TREC_FROM_A_LEVEL.items():
            name, at, cut = measure.partition("@")
            name = f"{name}(rel={level}){at}{cut}"
            expected = torch.tensor([oracle[f"q{q}"][theirs] for q in range(n_queries)])
            values = RankingMetric(name, empty="zero").per_query(lists)
            torch.testing.assert_close(values, expected, atol=1e-6, rtol=0)
            for empty, value in (("skip", math.nan), ("one", 1.0)):
                values = RankingMetric(name, empty).per_query(lists)
                expected[~has_any] = value
                torch.testing.assert_close(values, expected, atol=1e-6, rtol=0, equal_nan=True)
            if level == 1:  # what counts without a level, too
                without = RankingMetric(measure).per_query(lists)
                of_level_1 = RankingMetric(name).per_query(lists)
                assert torch.equal(without.nan_to_num(-1), of_level_1.nan_to_num(-1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("measure", TREC)
def test_equals_trec_eval(measure, seed):
    lists = random_lists(seed)
    qrels, run = as_trec(*lists)
    result = pytrec_eval.RelevanceEvaluator(qrels, {TREC[measure]}).evaluate(run)
    expected = [result[f"q{q}"][TREC[measure]] for q in range(len(run))]
    metric = RankingMetric(measure, empty="zero")
    assert metric.per_query(*lists).tolist() == pytest.approx(expected, abs=1e-6, rel=0)
    for part in (slice(0, 7), slice(7, None)):
        metric.update(*(t[part] for t in lists))
    assert metric.compute().item() == pytest.approx(statistics.mean(expected), abs=1e-6)


def ranked_grades(scores, labels, mask, ties):
    docs = [d for d in range(len(scores)) if mask[d]]
    docs.sort(key=lambda d: (-scores[d].item(), -ties[d].item()))
    return [labels[d].item() for d in docs]


def exp_dcg_at_5(grades):
    return sum((2**grade - 1) / math.log2(rank + 2) for rank, grade in enumerate(grades[:5]))


@pytest.mark.parametrize("seed", range(4))
def test_exponential_gain_and_err_equal_a_plain_loop(seed):
    lists = random_lists(seed)
    ndcg = RankingMetric("nDCG_exp@5", "zero").per_query(*lists)
    err = RankingMetric("ERR@5", "zero", max_grade=3).per_query(*lists)
    for q, (scores, labels, mask, ties, ideal) in enumerate(zip(*lists, strict=True)):
        grades = ranked_grades(scores, labels, mask, ties)
        dcg = exp_dcg_at_5(grades)
        top = exp_dcg_at_5(sorted(ideal.tolist(), reverse=True))
        assert ndcg[q].item() == pytest.approx(dcg / top if top else 0.0, abs=1e-6)
        reading = 1.0
        value = 0.0
        for rank, grade in enumerate(grades[:5], start=1):
            satisfied = (2**grade - 1) / 2**3
            value += reading * satisfied / rank
            reading *= 1 - satisfied
        assert err[q].item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_swapped_pairs_and_tau_equal_a_plain_loop_and_scipy(seed):
    scores, labels, mask, *_ = lists = random_lists(seed)
    swapped = RankingMetric("swapped_pairs").per_query(*lists)
    tau = RankingMetric("tau").per_query(*lists)
    for q in range(len(scores)):
        s = scores[q][mask[q]].tolist()
        y = labels[q][mask[q]].tolist()
        pairs = [(i, j) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
        if not pairs:
            assert swapped[q].isnan() and tau[q].isnan()
            continue
        expected = sum(1.0 if s[i] < s[j] else 0.5 * (s[i] == s[j]) for i, j in pairs)
        assert swapped[q].item() == expected
        expected = stats.kendalltau(s, y).statistic
        assert tau[q].item() == pytest.approx(0.0 if math.isnan(expected) else expected, abs=1e-6)


def test_values_by_hand():
    """Ranking by score: grades 0, 2, 1. nDCG = (2/log2 3 + 1/2) / (2 + 1/log2 3) = 0.6697; RR =
    AP's first term = 1/2; AP = (1/2 + 2/3) / 2; two pairs of three are swapped (0 above 2, 0 above
    1), so tau = (1 - 2) / 3.
    """
    lists = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 2.0, 1.0]])
    expected = {
        "nDCG": (2 / math.log2(3) + 0.5) / (2 + 1 / math.log2(3)),
        "RR": 0.5,
        "AP": (1 / 2 + 2 / 3) / 2,
        "P@2": 0.5,
        "R@2": 0.5,
        "Success@1": 0.0,
        "swapped_pairs": 2.0,
        "tau": -1 / 3,
    }
    for measure, value in expected.items():
        assert RankingMetric(measure).per_query(*lists).item() == pytest.approx(value), measure


def test_a_level_by_hand():
    """Ranking by score: grades 1, 2, -1, 3; a document of grade 2 and one of grade 1 are not ranked.
    At level 2 ranks 2 and 4 are relevant, of 3 that there are; at level 3 rank 4 of 1.
    """
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    labels = torch.tensor([[1.0, 2.0, -1.0, 3.0]])
    ideal = torch.tensor([[3.0, 2.0, 2.0, 1.0, 1.0]])
    expected = {
        "RR(rel=2)": 1 / 2,
        "RR(rel=3)@3": 0.0,
        "AP(rel=2)": (1 / 2 + 2 / 4) / 3,
        "AP(rel=2)@2": (1 / 2) / 3,
        "AP(rel=3)": 1 / 4,
        "P(rel=2)@3": 1 / 3,
        "R(rel=2)@4": 2 / 3,
        "R(rel=3)@3": 0.0,
        "Success(rel=2)@1": 0.0,
        "Success(rel=1)@1": 1.0,
        "Success(rel=2)@2": 1.0,
    }
    for measure, value in expected.items():
        values = RankingMetric(measure).per_query(scores, labels, None, None, ideal)
        assert values.item() == pytest.approx(value), measure
    told = "queries without a document of grade 2 or above are left out"
    assert RankingMetric("AP(rel=2)").convention == told


def test_the_judged_share_by_hand():
    """Ranks 1 and 3 of four are judged, one of them with a grade below 0; of a list of two the
    second; of an empty one none. A list counts by its own length where that is below k.
    """
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(3, 4)
    judged = torch.tensor([[True, False, True, False], [False, True, True, True], [True] * 4])
    labels = torch.tensor([[-1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [0.0] * 4])
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    lists = MeasuredLists(scores, labels, mask, None, None, judged)
    for measure, values in {
        "Judged@1": [1.0, 0.0, 0.0],
        "Judged@3": [2 / 3, 1 / 2, 0.0],
        "Judged@10": [2 / 4, 1 / 2, 0.0],
    }.items():
        for empty in ("skip", "one"):  # no query lacks what it counts
            assert RankingMetric(measure, empty).per_query(lists).tolist() == pytest.approx(values)
    first = lists.take_rows(torch.tensor([False, True, False]))
    assert RankingMetric("Judged@1").per_query(first).tolist() == [0.0]
    assert RankingMetric("Judged@3").convention == "of k documents, or of all of a shorter list"


def test_judgements_are_counted_in_the_order_of_the_ranking():
    """Scores 1, 3, 2: the second document is first, then the third. Nobody judged the second."""
    scores = torch.tensor([[1.0, 3.0, 2.0]])
    labels = torch.zeros(1, 3)
    judged = torch.tensor([[True, False, True]])
    lists = MeasuredLists(scores, labels, None, None, None, judged)
    assert RankingMetric("Judged@1").per_query(lists).item() == 0.0
    assert RankingMetric("Judged@2").per_query(lists).item() == 0.5
    assert RankingMetric("Judged@2").per_query(scores, labels).item() == 1.0  # all are


def test_queries_with_nothing_to_find_count_as_the_option_says():
    """One query with RR 1/2, one without a relevant document."""
    lists = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    for empty, value in (("skip", 0.5), ("zero", 0.25), ("one", 0.75)):
        metric = RankingMetric("RR", empty)
        metric.update(*lists)
        assert metric.compute().item() == value
    assert "left out" in RankingMetric("RR", "skip").convention
    assert "count 0" in RankingMetric("RR", "zero").convention


def test_padding_with_any_score_changes_nothing():
    scores, labels, mask, *others = lists = random_lists(0)
    noisy = torch.where(mask, scores, torch.inf), torch.where(mask, labels, 3.0), mask, *others
    for measure in [*TREC, "swapped_pairs", "tau", "nDCG_exp@10", "ERR", "AP(rel=2)", "Judged@5"]:
        metric = RankingMetric(measure)
        expected = metric.per_query(*lists)
        torch.testing.assert_close(metric.per_query(*noisy), expected, equal_nan=True)


UNKNOWN = ["NDCG@10", "P", "nDCG@0", "nDCG@x", "nDCG@010", "nDCG@", "nDCG@²", "tau@3", "", "Judged"]
WITHOUT_LEVEL = ["nDCG(rel=2)@10", "Judged(rel=2)@10", "tau(rel=2)", "ERR(rel=2)"]
NOT_AS_NAMED = ["AP@10(rel=2)", "AP(2)", "AP(rel=2", "AP (rel=2)", "P(rel=2)", "AP(level=2)"]


@pytest.mark.parametrize("name", [*UNKNOWN, *WITHOUT_LEVEL, *NOT_AS_NAMED])
def test_an_unknown_measure_is_refused(name):
    told = r"a measure must be one of nDCG.* Judged.*; RR, AP, P, R, Success take a level before @k, as AP\(rel=2\)@10"
    with pytest.raises(InputError, match=told):
        RankingMetric(name)


@pytest.mark.parametrize("level", ["0", "-1", "1.5", "x", "", "²", "02", "9" * 20])
def test_a_level_that_is_no_grade_is_refused(level):
    told = "the level of a measure must be a whole number from 1 to 9999999, without zeros before"
    with pytest.raises(InputError, match=told):
        RankingMetric(f"AP(rel={level})@10")


SCORES = torch.tensor([[0.3, 0.1]])


def test_the_label_of_the_padding_may_be_nan():
    labels = torch.tensor([[1.0, math.nan]])
    assert RankingMetric("nDCG").per_query(SCORES, labels, torch.tensor([[True, False]])) == 1.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_grade_that_is_no_number_is_refused_also_of_a_document_that_is_not_ranked(wrong):
    """Its query would be taken for one without a relevant document, and left out."""
    labels = torch.tensor([[1.0, 0.0]])
    told = "labels must be grades to be measured, got NaN or infinity"
    for measure in ("nDCG_exp", "nDCG", "AP", "tau"):
        metric = RankingMetric(measure)
        with pytest.raises(ValueError, match=told):
            metric.per_query(SCORES, torch.tensor([[wrong, 0.0]]))
        with pytest.raises(ValueError, match=told):
            metric.per_query(SCORES, labels, None, None, torch.tensor([[1.0, wrong]]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_two_grades_that_are_one_float32_are_refused(dtype):
    """2^24 + 1 is 2^24 as float32; 2^24 and 2^25 are themselves."""
    wide = torch.tensor([[2**24, 2**24 + 1]], dtype=dtype)
    for lists in ((SCORES, wide), (SCORES, torch.ones(1, 2), None, None, wide)):
        with pytest.raises(ValueError, match="numbers that float32 can hold, .* got 16777217"):
            RankingMetric("nDCG").per_query(*lists)
    with pytest.raises(ValueError, match="numbers that float32 can hold"):
        RankNetLoss()(SCORES, wide)
    assert RankNetLoss()(SCORES.double(), wide) > 0
    exact = torch.tensor([[2**24, 2**25]], dtype=dtype)
    assert RankingMetric("swapped_pairs").per_query(SCORES, exact).item() == 1.0
    assert RankNetLoss()(SCORES, torch.tensor([[0.1, 1e-9]], dtype=torch.float64)) > 0


@pytest.mark.parametrize("empty", ["skip", "zero", "one"])
@pytest.mark.parametrize("measure", ["nDCG_exp@10", "tau"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_measure_that_is_no_number_is_never_left_out(measure, empty, wrong, monkeypatch):
    """Of a query with something to find; of one without, it may be anything."""
    metric = RankingMetric(measure, empty)
    scores = SCORES.expand(2, 2)
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    expected = {"skip": 1.0, "zero": 0.5, "one": 1.0}[empty]
    metric.update(scores, labels)
    assert metric.compute().item() == expected
    broken = torch.tensor([1.0, wrong])
    monkeypatch.setattr(type(metric.measure), "per_query", lambda self, lists: broken)
    metric.update(scores, labels)
    assert metric.compute().item() == expected
    told = f"^{measure} of a query with .* must be a number"
    with pytest.raises(ValueError, match=told):
        metric.update(scores, labels.flip(0))
    lists = MeasuredLists(scores, labels.flip(0))
    with pytest.raises(ValueError, match=told):
        SourceMetrics([metric], ["one"]).update(lists, torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("max_grade", [-1.0, 0.0, float("nan")])
def test_a_scale_without_a_grade_is_refused(max_grade):
    told = r"max_grade must be finite and above 0, got .* \(option max_grade\)"
    with pytest.raises(InputError, match=told):
        RankingMetric("ERR", max_grade=max_grade)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="scores must be a tensor, got list"):
        swapped_pairs([[1.0]], torch.ones(1, 1))
    with pytest.raises(TypeError, match="labels must be a tensor, got ndarray"):
        swapped_pairs(torch.ones(1, 1), np.ones((1, 1)))


def test_a_nan_score_and_a_grade_above_the_scale_are_refused():
    with pytest.raises(ValueError, match="diverged"):
        RankingMetric().update(torch.tensor([[math.nan, 1.0]]), torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ValueError, match="max_grade"):
        RankingMetric("ERR", max_grade=2).update(SCORES, torch.tensor([[3.0, 0.0]]))


class Sorts(TorchDispatchMode):
    """Counts the sorts, by the tensor's width."""

    def __init__(self):
        super().__init__()
        self.widths = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.sort, torch.ops.aten.argsort):
            self.widths.append(args[0].shape[1])
        return function(*args, **(kwargs or {}))


def sorts_of(measures):
    metrics = [RankingMetric(measure) for measure in measures]
    tensors = random_lists(0)
    with Sorts() as seen:
        lists = MeasuredLists(*tensors)
        for metric in metrics:
            metric.per_query(lists)
            metric.update(lists)
    return len(seen.widths)


def test_a_list_is_ranked_once_whatever_the_number_of_metrics():
    """By rank: ties, scores, padding, and the ideal order. Pairs: one sort of the labels, here of
    short lists.
    """
    by_rank = ["nDCG@10", "RR@10", "AP", "P@5", "R@5", "Success@1", "nDCG_exp@10", "ERR@10"]
    by_rank += ["AP(rel=2)", "Judged@5"]
    assert sorts_of(by_rank[:1]) == sorts_of(by_rank) == 4
    assert sorts_of(["swapped_pairs"]) == sorts_of(["swapped_pairs"] * 3) == 1
    assert sorts_of([*by_rank, "swapped_pairs"]) == 5


def test_lists_without_documents_have_nothing_to_find_in_them():
    """No columns: 0 where the query has relevant documents elsewhere, else left out."""
    nothing = torch.zeros(2, 0)
    ideal = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    for measure in ("nDCG@10", "nDCG_exp", "RR", "AP", "P@5", "R(rel=1)", "Success@1", "ERR"):
        values = RankingMetric(measure).per_query(nothing, nothing, nothing.bool(), None, ideal)
        assert values[0] == 0 and values[1].isnan(), measure
    for measure in ("swapped_pairs", "tau"):
        assert RankingMetric(measure).per_query(nothing, nothing).isnan().all()


def test_grades_below_zero_count_as_zero_by_rank_and_as_grades_in_pairs():
    """As trec_eval: nDCG of grades (-2, 1) in this order is that of (0, 1); but 0 above -2 is a
    pair.
    """
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    labels = torch.tensor([[-2.0, 1.0, 0.0]])
    for measure in ("nDCG", "nDCG_exp", "AP", "RR", "ERR", "R@2"):
        metric = RankingMetric(measure)
        from_zero = metric.per_query(scores, labels.clamp(min=0))
        assert metric.per_query(scores, labels) == from_zero, measure
    assert swapped_pairs(scores, labels).tolist() == [2.0]
    assert RankingMetric("tau").per_query(scores, labels).item() == pytest.approx(-1 / 3)


def test_swapped_pairs_are_exact_beyond_what_float32_counts():
    """5,000 relevant documents below 4,999 others, and one tie among them: 5,000 · 4,999 − 1/2."""
    n = 5000
    labels = (torch.arange(2 * n - 1) < n).float().view(1, -1)
    scores = 1 - labels
    scores[0, 0] = 2.0
    scores[0, -1] = 2.0
    # The first relevant one, at 2, stands above 4,998 others and ties with the last; the other
    # 4,999 stand below all.
    swapped = RankingMetric("swapped_pairs").per_query(scores, labels).item()
    assert swapped == (n - 1) * (n - 1) + 0.5
