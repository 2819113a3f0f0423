"""What a split can show: the formula by hand, and a simulation of the test that it speaks of."""

import math

import numpy as np
import pytest

from ltr.check.power import (
    difference_before_runs,
    difference_of_seeds,
    power_section,
    values_of,
)
from ltr.compare.statistics import estimate
from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.metrics import RankingMetric
from tests.conftest import write_collection


def test_the_variance_before_runs_by_hand():
    """2 (1 - 0.5) 0.08 / 100 = 0.0008."""
    difference = difference_before_runs(0.08, 100, correlation=0.5)
    assert difference.error == pytest.approx(math.sqrt(0.0008))
    # Student's quantiles of 99 degrees of freedom: 1.9842 and 0.8453.
    assert difference.detectable() == pytest.approx(math.sqrt(0.0008) * 2.8295, rel=1e-3)


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


def test_so_is_the_difference_of_two_ways_to_train():
    """Five seeds each, b_s and e_sq drawn; planned with the variances of 60 seeds. A test of so few
    seeds takes the larger of two uncertain variances, so it finds a little less than it should.
    """
    rng = np.random.default_rng(1)
    n_queries, seed_deviation, both = 80, 0.03, 0.2

    def seeds(count):
        of_seed = rng.normal(0, seed_deviation, (count, 1))
        return query + of_seed + rng.normal(0, both, (count, n_queries))

    query = rng.normal(0, 0.3, n_queries)
    shown = difference_of_seeds(seeds(60)).planned(n_queries, 5).detectable()
    found = 0
    for _ in range(2000):
        found += estimate(seeds(5) + shown, seeds(5)).p < 0.05
    assert found / 2000 == pytest.approx(0.78, abs=0.05)


def test_values_by_hand_keep_the_order_of_the_ranking():
    """Scores may tie or be of any size: the order of the list counts. RR is 1/2, 1, and none."""
    lists = QueryLists.from_rows([0, 0, 1, 2], [4, 5, 6, 6], [0.0, 0.0, -3.0, 1.0])
    judged = QueryLists.from_rows([0, 1, 2], [5, 6, 6], [1.0, 2.0, 0.0])
    values = values_of(lists, judged, RankingMetric("RR"))
    assert values[:2].tolist() == [0.5, 1.0] and math.isnan(values[2])


def test_a_split_of_few_queries_is_severe(tmp_path):
    """30 queries of dev; train is left out."""
    collection = open_collection(write_collection(tmp_path / "c"))
    section = power_section(collection, "nDCG@10")
    assert [row[0] for row in section.tables[0].rows] == ["dev", "dev", "test", "test"]
    seeds = np.random.default_rng(0).normal(0.5, 0.1, (3, 30))
    with_seeds = power_section(collection, "nDCG@10", of_seeds=seeds)
    assert set(with_seeds.entries["test"]["seeds"]) == {"3", "5", "10"}
    two = open_collection(write_collection(tmp_path / "d", n_queries=1))
    assert "can show no difference" in power_section(two, "nDCG@10").severe[0]
