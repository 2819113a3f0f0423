"""Bounds over all grades that documents without a judgement may have: found by trying them all."""

from itertools import product

import numpy as np
import pytest
import torch

from ltr.compare.unjudged_bounds import ABSENT, RankedQuery, difference_bounds
from ltr.metrics import MeasuredLists, measure_named

OF_GAINS = ("nDCG@3", "nDCG", "nDCG_exp@2", "nDCG_exp", "P@2", "P(rel=2)@3", "R@2", "R(rel=2)@3")
OF_BEST = ("RR", "RR@2", "RR(rel=2)@3", "Success@2", "Success(rel=2)@3")
OF_PREFIXES = ("AP", "AP@2", "AP(rel=2)", "ERR", "ERR@2")


def random_query(rng: np.random.Generator, n_seeds: int = 1, in_both: bool = True) -> RankedQuery:
    """Of some judged documents, one of them of the largest grade, and up to four others."""
    grades = np.concatenate([[2.0], rng.integers(0, 3, rng.integers(0, 4)).astype(float)])
    grades = np.append(grades, np.full(rng.integers(0, 5), np.nan))
    of_one = rng.integers(0, 2, len(grades))  # 0: of the first, 1: of the second
    ranks = []
    for ranker in (0, 1):
        rows = np.full((n_seeds, len(grades)), ABSENT)
        for row in rows:
            docs = np.flatnonzero(rng.random(len(grades)) < 0.8)
            if not in_both:
                docs = docs[~np.isnan(grades[docs]) | (of_one[docs] == ranker)]
            row[docs] = 1 + rng.permutation(len(docs))
        ranks.append(rows)
    return RankedQuery(*ranks, grades, 2.0)


def values(name: str, ranks: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """By the metric itself, ``[F]`` of fillings ``[F, D]``."""
    is_there = ranks < ABSENT
    labels = torch.tensor(grades[:, is_there], dtype=torch.float32)
    scores = torch.tensor(-ranks[is_there], dtype=torch.float32).expand(labels.shape)
    ideal = torch.tensor(grades, dtype=torch.float32)
    return measure_named(name).per_query(MeasuredLists(scores, labels, ideal=ideal)).numpy()


def brute_force(name: str, query: RankedQuery) -> tuple[float, float]:
    """The smallest and the largest difference of the means over the seeds."""
    places = np.flatnonzero(~query.is_judged)
    fillings = np.array(list(product((0.0, 1.0, 2.0), repeat=len(places))))
    grades = np.repeat(query.grades[None], len(fillings), axis=0)
    grades[:, places] = fillings
    means = []
    for of_ranker in (query.first, query.second):
        means.append(np.mean([values(name, ranks, grades) for ranks in of_ranker], axis=0))
    differences = means[0] - means[1]
    return float(differences.min()), float(differences.max())


def bounds(name: str, query: RankedQuery) -> tuple[float, float]:
    found = difference_bounds(measure_named(name), query)
    assert found is not None
    return found


def test_by_hand():
    """The first puts a document that nobody judged above the relevant one, the second another below."""
    first = np.array([[2, 1, ABSENT]])
    second = np.array([[1, ABSENT, 2]])
    query = RankedQuery(first, second, np.array([1.0, np.nan, np.nan]), 1.0)
    assert bounds("RR", query) == (-0.5, 0.0)
    assert bounds("P@2", query) == (-0.5, 0.5)
    assert bounds("R@2", query) == (-0.5, 0.5)
    assert bounds("AP", query) == pytest.approx((0.25 - 1, 1 - 0.5))
    # Irrelevant both: 1 / log2(3) - 1. The first's alone, of two: 1 - 1 / (1 + 1 / log2(3)).
    w = 1 / np.log2(3)
    assert bounds("nDCG", query) == pytest.approx((w / (1 + w) - 1, 1 - 1 / (1 + w)))


@pytest.mark.parametrize("n_seeds", [1, 2])
@pytest.mark.parametrize("name", OF_GAINS)
def test_bounds_of_gains_are_attained(name, n_seeds):
    rng = np.random.default_rng(0)
    for _ in range(60):
        query = random_query(rng, n_seeds)
        assert bounds(name, query) == pytest.approx(brute_force(name, query), abs=1e-6)


@pytest.mark.parametrize("name", OF_BEST)
def test_bounds_of_the_first_relevant_document_are_attained(name):
    rng = np.random.default_rng(1)
    for _ in range(60):
        query = random_query(rng)
        assert bounds(name, query) == pytest.approx(brute_force(name, query), abs=1e-6)


@pytest.mark.parametrize("name", OF_PREFIXES)
def test_bounds_of_prefixes_are_attained_where_no_such_document_is_in_both(name):
    rng = np.random.default_rng(2)
    for _ in range(60):
        query = random_query(rng, in_both=False)
        assert bounds(name, query) == pytest.approx(brute_force(name, query), abs=1e-6)


@pytest.mark.parametrize("name", [*OF_BEST, *OF_PREFIXES])
def test_nothing_lies_beyond_the_bounds(name):
    """Whatever both have, and over seeds."""
    rng = np.random.default_rng(3)
    for number in range(80):
        query = random_query(rng, 1 + number % 2)
        low, high = bounds(name, query)
        lowest, highest = brute_force(name, query)
        assert low <= lowest + 1e-6
        assert high >= highest - 1e-6


@pytest.mark.parametrize("name", [*OF_GAINS, *OF_BEST, *OF_PREFIXES])
def test_the_same_ranking_twice_differs_in_nothing(name):
    rng = np.random.default_rng(4)
    for _ in range(20):
        query = random_query(rng)
        twice = RankedQuery(query.first, query.first, query.grades, 2.0)
        assert bounds(name, twice) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("name", [*OF_GAINS, *OF_BEST, *OF_PREFIXES])
def test_where_all_is_judged_there_is_one_difference(name):
    rng = np.random.default_rng(5)
    for _ in range(20):
        query = random_query(rng, n_seeds=2)
        grades = np.nan_to_num(query.grades)
        judged = RankedQuery(query.first, query.second, grades, 2.0)
        low, high = bounds(name, judged)
        assert low == pytest.approx(high, abs=1e-12)
        assert low == pytest.approx(brute_force(name, judged)[0], abs=1e-6)


def test_many_documents_are_bounded_in_steps():
    """As all numbers of them, or a little wider."""
    rng = np.random.default_rng(6)
    grades = np.append(np.ones(3), np.full(300, np.nan))
    query = RankedQuery(1 + rng.permutation(303)[None], 1 + rng.permutation(303)[None], grades, 1.0)
    low, high = bounds("AP", query)
    filled = np.repeat(grades[None], 200, axis=0)
    filled[:, 3:] = rng.random((200, 300)) < rng.random((200, 1))
    differences = values("AP", query.first[0], filled) - values("AP", query.second[0], filled)
    assert low - 1e-6 <= differences.min()
    assert differences.max() <= high + 1e-6


def test_no_bound_lies_beyond_what_a_measure_can_be():
    """Two long lists without a document in common, of which one of 1,000 is judged."""
    grades = np.append(1.0, np.full(1998, np.nan))
    first = np.append(np.arange(1, 1001), np.full(999, ABSENT))
    second = np.append(np.full(1000, ABSENT), np.arange(1, 1000))
    query = RankedQuery(first[None], second[None], grades, 1.0)
    assert bounds("AP", query)[1] == pytest.approx(1.0)
    assert bounds("AP", query)[0] >= -1


def test_a_measure_of_the_list_alone_is_not_bounded():
    query = random_query(np.random.default_rng(7))
    assert difference_bounds(measure_named("swapped_pairs"), query) is None
    assert difference_bounds(measure_named("Judged@3"), query) is None
