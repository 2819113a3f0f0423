"""What a split can show: the formula by hand, and a simulation of the test that it speaks of."""

import json
import math
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from ltr.check.judgements import found_by_bm25
from ltr.check.power import (
    answerable_queries,
    difference_before_runs,
    difference_of_seeds,
    power_section,
    promise_line,
    ranked_values,
)
from ltr.compare.statistics import estimate
from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.datamodules import Evaluation
from ltr.metrics import RankingMetric
from tests.world.collections import write_collection


def test_the_variance_before_runs_by_hand():
    """2 (1 - 0.5) 0.08 / 100 = 0.0008."""
    difference = difference_before_runs(0.08, 100, correlation=0.5)
    assert difference.error == pytest.approx(math.sqrt(0.0008))
    # Student's quantiles of 99 degrees of freedom, 1.9842 and 0.8453, were the variance known; by an
    # estimate of 99 degrees of freedom a little more.
    shown = difference.detectable() / math.sqrt(0.0008)
    assert 2.8295 < shown < 2.8295 * 1.02


def test_more_queries_and_more_alike_rankers_show_less():
    shown = [difference_before_runs(0.1, n, 0.5).detectable() for n in (50, 200, 800)]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] / shown[1] == pytest.approx(2, rel=0.03)  # four times the queries
    alike = difference_before_runs(0.1, 50, 0.9).detectable()
    assert alike / shown[0] == pytest.approx(math.sqrt(0.1 / 0.5))


def test_the_difference_named_is_found_four_times_of_five():
    """Two rankers of one seed each: 3,000 draws of their values, and the test of ltr compare."""
    rng = np.random.default_rng(0)
    n_queries, variance, correlation = 120, 0.09, 0.7
    shown = difference_before_runs(variance, n_queries, correlation).detectable()
    found = 0
    for _ in range(3000):
        common = rng.normal(0, math.sqrt(variance * correlation), n_queries)
        own = rng.normal(0, math.sqrt(variance * (1 - correlation)), (2, n_queries))
        first, second = common + own
        found += estimate(first[None] + shown, second[None]).p < 0.05
    assert found / 3000 == pytest.approx(0.8, abs=0.03)


def share_of_tests_that_find(rng, difference, n_tests, n_seeds, n_queries, of_seed, of_both):
    """Of drawn experiments that differ by this much, the share that the test of ltr compare finds
    at level 0.05: its formulas once more, for all of them at once.
    """
    means_q, means_s, both = [], [], []
    for _ in range(2):
        x = rng.normal(0, of_seed, (n_tests, n_seeds, 1))
        x = x + rng.normal(0, of_both, (n_tests, n_seeds, n_queries))
        rest = x - x.mean(1, keepdims=True) - x.mean(2, keepdims=True)
        rest += x.mean((1, 2), keepdims=True)
        means_q.append(x.mean(1))
        means_s.append(x.mean(2).var(1, ddof=1) / n_seeds)
        degrees = (n_seeds - 1) * (n_queries - 1)
        both.append((rest**2).sum((1, 2)) / degrees / (n_seeds * n_queries))
    by_query = means_q[0] - means_q[1]
    of_queries = by_query.var(1, ddof=1) / n_queries
    of_seeds = means_s[0] + means_s[1]
    variance = np.maximum.reduce([of_queries + of_seeds - both[0] - both[1], of_queries, of_seeds])
    parts = of_queries**2 / (n_queries - 1) + (means_s[0] ** 2 + means_s[1] ** 2) / (n_seeds - 1)
    freedom = np.maximum(1, variance**2 / parts)
    t = (by_query.mean(1) + difference) / np.sqrt(variance)
    return float((t > stats.t.ppf(0.975, freedom)).mean())


@pytest.mark.parametrize(
    "n_seeds, planned, n_queries, of_seed, least, most",
    [
        (2, 2, 100, 0.02, 0.78, 1),
        (2, 10, 100, 0.05, 0.78, 0.9),
        (3, 3, 60, 0.05, 0.78, 0.85),
        (3, 3, 100, 0.0, 0.78, 1),
        (5, 5, 100, 0.02, 0.78, 0.85),
        (10, 3, 60, 0.02, 0.78, 0.9),
        (10, 10, 100, 0.02, 0.78, 0.85),
    ],
)
def test_so_is_the_difference_that_few_seeds_name(
    n_seeds, planned, n_queries, of_seed, least, most
):
    """The seeds that tell how seeds vary are as few as those of the test. Where seeds do not vary,
    they can't say so: then it is found more often.
    """
    rng = np.random.default_rng(n_seeds)
    shares = []
    for _ in range(150):
        x = rng.normal(0, of_seed, (n_seeds, 1)) + rng.normal(0, 0.1, (n_seeds, n_queries))
        x += rng.normal(0, 0.3, n_queries)  # of the query itself: both ways to train have it
        shown = difference_of_seeds(x).planned(n_queries, planned).detectable()
        shares.append(
            share_of_tests_that_find(rng, shown, 40, planned, n_queries, of_seed, of_both=0.1)
        )
    assert least <= np.mean(shares) <= most


def test_values_by_hand_keep_the_order_of_the_ranking():
    """Scores may tie or be of any size: the order of the list counts. RR is 1/2, 1, and none."""
    lists = QueryLists.from_rows([0, 0, 1, 2], [4, 5, 6, 6], [0.0, 0.0, -3.0, 1.0])
    judged = QueryLists.from_rows([0, 1, 2], [5, 6, 6], [1.0, 2.0, 0.0])
    values = ranked_values(lists, judged, RankingMetric("RR"))
    assert values[:2].tolist() == [0.5, 1.0] and math.isnan(values[2])


def test_a_query_that_a_run_gives_no_value_is_left_out(tmp_path):
    """The order of labels needs two of them: the run ranks none but the relevant document of the
    first query of dev. Without it there are as many queries as when the run does not rank it.
    """
    collection = open_collection(write_collection(tmp_path / "c"))
    judged = collection.qrels["dev"]
    found = found_by_bm25(collection, "dev")
    relevant, _ = judged.of(judged.query_rows[0])
    one = QueryLists.from_rows(judged.query_rows[:1], relevant[:1], [1.0])
    rest = found.lists_at(np.arange(1, len(found.query_rows)))
    ranked = QueryLists.end_to_end([one, rest])
    sections = [power_section(collection, "tau", run) for run in (ranked, rest)]
    assert sections[0].entries == sections[1].entries
    assert "run_and_bm25" in sections[0].entries["dev"]


def test_a_split_of_few_queries_is_severe(tmp_path):
    """30 queries of dev; train is left out."""
    collection = open_collection(write_collection(tmp_path / "c"))
    section = power_section(collection, "nDCG@10")
    assert [row[0] for row in section.tables[0].rows] == ["dev", "dev", "test", "test"]
    seeds = np.random.default_rng(0).normal(0.5, 0.1, (3, 30))
    with_seeds = power_section(collection, "nDCG@10", seed_values=seeds)
    assert set(with_seeds.entries["test"]["seeds"]) == {"3", "5", "10"}
    assert "3 seeds tell little of how seeds vary" in with_seeds.lines[0]
    few = open_collection(write_collection(tmp_path / "e", n_queries=5))
    severe = power_section(few, "nDCG@10").severe
    assert all("it can't show any difference in nDCG@10" in line for line in severe)
    assert "none" not in str(severe)
    two = open_collection(write_collection(tmp_path / "d", n_queries=1))
    assert "can show no difference" in power_section(two, "nDCG@10").severe[0]


def test_a_collection_without_dev_and_test_says_so(tmp_path):
    collection = open_collection(write_collection(tmp_path / "data"))
    train = collection._replace(qrels={"train": collection.qrels["train"]})
    section = power_section(train, "nDCG@10")
    assert section.lines == ["there is neither dev nor test"]  # nor a line of what a promise needs
    assert not section.tables and not section.severe


def test_what_a_threshold_would_keep_follows_from_the_queries_of_dev(tmp_path):
    """Of 30 queries: k = floor(0.1 * 31) = 3, so a share by Beta(28, 3). In 5 % of draws it is below the
    first number, and in 5 % above the second. The pool of one query lacks its relevant document.
    """
    folder = write_collection(tmp_path / "c")
    low, high = stats.beta(28, 3).interval(0.9)
    line = f"dev: a threshold that is to keep all relevant documents of 90% of queries (ltr calibrate), set by 30 queries with a relevant document among their candidates, keeps them of {low:.1%} to {high:.1%} of new ones in 90% of draws"
    section = power_section(open_collection(folder), "nDCG@10")
    assert section.lines[-1] == line and "80.5% to 97.2%" in line
    promise = {"promise": 0.9, "queries": 30, "new_queries": pytest.approx([low, high])}
    assert section.entries["promise"] == promise
    pools = folder / "candidates/dev.trec"
    lines = pools.read_text().splitlines(keepends=True)
    pools.write_text("".join(each for each in lines if " dev-q4-d0 " not in each))
    assert answerable_queries(open_collection(folder), "dev") == 29
    # The relevant document is the first of its pool; and the last, where pools are turned round.
    assert answerable_queries(open_collection(folder), "dev", Evaluation(depth=1)) == 29
    turned = [
        re.sub(r"(-d\d) (\d+) (\d+) pool", lambda m: f"{m[1]} {9 - int(m[2])} {m[2]} pool", each)
        for each in lines
    ]
    pools.write_text("".join(turned))
    assert answerable_queries(open_collection(folder), "dev") == 30
    assert answerable_queries(open_collection(folder), "dev", Evaluation(depth=7)) == 0
    assert answerable_queries(open_collection(folder), "dev", Evaluation("bm25")) == 30
    assert answerable_queries(open_collection(folder), "dev", Evaluation(None)) == 30
    shutil.rmtree(folder / "candidates")
    collection = open_collection(folder)
    assert answerable_queries(collection, "dev") == 30
    assert answerable_queries(collection._replace(relevant_from=2), "dev") == 0
    # A query whose relevant document shares no word with it is not found by BM25.
    corpus = folder / "corpus.jsonl"
    documents = [json.loads(line) for line in open(corpus)]
    unfound = [{**d, "text": "nothing"} if d["_id"] == "dev-q4-d0" else d for d in documents]
    corpus.write_text("".join(f"{json.dumps(document)}\n" for document in unfound))
    assert answerable_queries(open_collection(folder), "dev") == 29
    few = power_section(collection._replace(relevant_from=2), "nDCG@10")
    assert few.entries["promise"]["new_queries"] is None
    assert not any("threshold" in each for each in [*section.severe, *few.severe])


def test_a_dev_that_is_too_small_for_a_threshold_is_told_what_it_needs():
    assert promise_line(9).endswith(
        "set by 9 queries with a relevant document among their candidates, keeps them of 71.7% to 99.4% of new ones in 90% of draws"
    )
    assert promise_line(8).endswith(
        "needs 9 queries with a relevant document among their candidates, and there are 8"
    )


def test_only_queries_with_a_document_at_the_level_count(tmp_path):
    """Of nDCG@10 each query with a relevant document has a value, of AP(rel=2) those of grade 2."""
    collection = open_collection(write_collection(tmp_path / "data", n_queries=6))
    judged = collection.qrels["dev"]
    grades = np.minimum(judged.values, 1)
    first_two = judged.offsets[2]
    at_level = np.where((np.arange(len(grades)) < first_two) & (grades > 0), 2, grades)
    for values, told in ((at_level, None), (grades, "a document of grade 2 or above")):
        changed = judged._replace(values=values.astype(np.float32))
        section = power_section(collection._replace(qrels={"dev": changed}), "AP(rel=2)")
        if told is None:
            assert section.entries["dev"]["queries"] == 2
        else:
            assert f"must have {told}, and one that BM25 finds; 0 have" in section.severe[0]
    section = power_section(collection._replace(qrels={"dev": changed}), "nDCG@10")
    assert section.entries["dev"]["queries"] > 2
