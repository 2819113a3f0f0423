"""Lists of graded documents: what they hold, and what stays of long ones."""

from collections import Counter

import numpy as np
import pytest

from ltr.data.letor import FeatureSplit
from ltr.data.query_lists import QueryLists
from ltr.data.sampling.list_rows import (
    GradedLists,
    ListRows,
    cut_list,
    n_with_relevant_and_not,
    with_two_grades,
)
from tests.data.sampling.judgements import labels_by_epoch
from tests.world.refusals import refused


def rows_of(grades: dict[int, float], pool: list[int], list_size=None, keep="relevant") -> ListRows:
    """One query, number 3."""
    judged = QueryLists.from_rows([3] * len(grades), grades.keys(), grades.values())
    pools = QueryLists.from_rows([3] * len(pool), pool, [0.0] * len(pool))
    lists = GradedLists(judged, judged, pools)
    queries = with_two_grades(lists, judged.query_rows, "here")
    return ListRows(lists, queries, list_size, keep, seed=0)


def grades_of(lists):
    """The grades of each list, in its order."""
    return [list(one.values()) for one in lists]


def test_a_list_is_the_pool_and_the_judged_documents_beside_it():
    rows = rows_of({9: 2, 4: 0, 7: 1}, pool=[5, 7, 6])
    one = rows.draw(0, 0)
    assert one.query_row == 3 and one.ideal is None
    assert one.doc_rows.tolist() == [5, 7, 6, 9, 4] and one.labels.tolist() == [0, 1, 0, 2, 0]
    assert one.known_rows.tolist() == [9, 4, 7] and one.known_grades.tolist() == [2, 0, 1]


def test_the_relevant_documents_of_a_long_list_stay_and_others_are_drawn():
    """2 relevant and 8 others in lists of 4: both relevant ones, best first, and each other in a
    quarter of the epochs: 100 times, with a deviation of 9.
    """
    rows = rows_of({0: 1, 1: 3, 2: 0}, pool=list(range(2, 10)), list_size=4)
    lists = labels_by_epoch(rows, 400)
    assert all(list(one)[:2] == [1, 0] for one in lists)
    assert grades_of(lists) == [[3, 1, 0, 0]] * 400
    counts = Counter(doc for one in lists for doc in one)
    assert all(60 < counts[doc] < 140 for doc in range(2, 10))


def test_of_too_many_relevant_documents_the_best_graded_stay():
    """Grades 3, 2, 2, 1, 1 in lists of 5: 3, 2, 2, either of the last two, and either of the
    irrelevant ones, for which the last place makes room.
    """
    grades = {0: 1, 1: 2, 2: 3, 3: 2, 4: 1}
    lists = labels_by_epoch(rows_of(grades, pool=[5, 6], list_size=5), 30)
    without = labels_by_epoch(rows_of(grades, pool=[0], list_size=4), 30)
    assert grades_of(lists) == [[3, 2, 2, 1, 0]] * 30
    assert grades_of(without) == [[3, 2, 2, 1]] * 30
    assert {list(one)[4] for one in lists} == {5, 6}
    for one_of_two in (lists, without):
        assert {list(one)[3] for one in one_of_two} == {0, 4}


def test_a_cut_list_has_an_irrelevant_document_wherever_there_is_one():
    """1,000 lists of grades from -1 to 3: by sorting the grades in plain Python, all but the last
    place, which goes to the best of grade 0 or less where the others leave it out.
    """
    rng = np.random.default_rng(0)
    for _ in range(1000):
        n_docs = int(rng.integers(3, 12))
        size = int(rng.integers(2, n_docs))
        lowest = int(rng.integers(-1, 3))
        labels = rng.integers(lowest, 4, n_docs).astype(np.float32)
        expected = sorted(labels.tolist(), reverse=True)[:size]
        irrelevant = [label for label in labels.tolist() if label <= 0]
        others = [label for label in labels.tolist() if label < expected[0]]
        if irrelevant and expected[-1] > 0:
            expected[-1] = max(irrelevant)
        elif expected[-1] == expected[0] and others:
            expected[-1] = max(others)
        (kept,) = cut_list(labels, size, "relevant", rng)
        assert sorted(labels[kept].tolist(), reverse=True) == expected
        assert len(set(kept.tolist())) == size


def test_lists_with_relevant_and_irrelevant_documents_are_counted():
    """Grades 2 and 1; 0 alone; 1 and 0; 1 and -1 are irrelevant beside relevant ones twice."""
    queries = [1, 1, 2, 3, 3, 4, 4]
    judged = QueryLists.from_rows(queries, [0, 1, 0, 0, 1, 0, 1], [2, 1, 0, 1, 0, 1, -1])
    lists = GradedLists(judged, judged, None)
    assert (
        n_with_relevant_and_not(ListRows(lists, judged.query_rows, None, "relevant", seed=0)) == 2
    )


@pytest.mark.parametrize("others, expected", [({}, [1, 1, 0]), ({9: 2}, [2, 1, 0])])
def test_a_list_always_has_something_to_rank(others, expected):
    """Five documents of grade 1 would fill a list of 3: an irrelevant one has the last place, also
    where another grade is there already.
    """
    grades = dict.fromkeys(range(5), 1) | others
    lists = labels_by_epoch(rows_of(grades, pool=[5, 6, 7], list_size=3), 30)
    assert grades_of(lists) == [expected] * 30
    (one,) = labels_by_epoch(rows_of({0: 2, 1: 2, 2: 1, 3: 2}, pool=[2], list_size=2), 1)
    assert one in [{0: 2, 2: 1}, {1: 2, 2: 1}, {3: 2, 2: 1}]


def test_a_sample_favours_no_document():
    """Of 10 documents 4 are drawn, each in 200 of 500 epochs, with a deviation of 11."""
    grades = {0: 1, 1: 3} | dict.fromkeys(range(2, 10), 0)
    rows = rows_of({0: 1, 1: 3}, pool=list(range(2, 10)), list_size=4, keep="any")
    lists = labels_by_epoch(rows, 500)
    counts = Counter(doc for one in lists for doc in one)
    assert all(150 < counts[doc] < 250 for doc in range(10))
    assert {len(one) for one in lists} == {4}
    assert all(one.items() <= grades.items() for one in lists)


def of_features(labels: list[float], list_size: int, keep: str) -> ListRows:
    """Of a split of one list; document d has the feature d."""
    n = len(labels)
    features = np.arange(n, dtype=np.float32)[:, None]
    names = [str(doc) for doc in range(n)]
    grades = np.asarray(labels, np.float32)
    split = FeatureSplit("one", features, grades, np.asarray([0, n]), ["q"], names)
    return ListRows(split, np.arange(1), list_size, keep, seed=0)


def test_features_keep_the_relevant_documents_too():
    """Of 2 relevant and 8 others, 4 are drawn: both relevant ones, and two of the others, each as
    likely.
    """
    rows = of_features([0, 0, 1, 0, 0, 0, 2, 0, 0, 0], 4, "relevant")
    counts = np.zeros(10)
    for epoch in range(400):
        one = rows.draw(epoch, 0)
        assert len(set(one.doc_rows.tolist())) == 4
        assert (one.labels == rows.whole_lists.labels[one.doc_rows]).all()
        counts[one.doc_rows] += 1
    assert counts[2] == counts[6] == 400
    others = np.delete(counts, [2, 6])  # each expected 100 times, with a deviation of 9
    assert others.min() > 60 and others.max() < 140


def test_there_is_room_for_one_irrelevant_document():
    rows = of_features([1, 1, 1, 1, 1, 0], 3, "relevant")
    for epoch in range(20):
        assert sorted(rows.draw(epoch, 0).labels.tolist()) == [0, 1, 1]
    without = of_features([1, 2, 1, 2], 3, "relevant")
    assert len(without.draw(0, 0).doc_rows) == 3


def test_parts_of_a_list_hold_every_document_once_an_epoch():
    """10 documents in lists of at most 4: 4, 3 and 3 of them, dealt out anew in the next epoch."""
    rows = of_features([0] * 10, 4, "all")
    assert len(rows) == 3
    epochs = [[rows.draw(epoch, row).doc_rows.tolist() for row in range(3)] for epoch in range(2)]
    for lists in epochs:
        assert [len(one) for one in lists] == [4, 3, 3]
        assert sorted(sum(lists, [])) == list(range(10))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("keep", ["relevant", "any", "all"])
def test_what_stays_of_a_list_are_different_documents_in_lists_of_the_size(keep):
    """13 documents in lists of 5: one list, or three of 5, 4 and 4 with all of them."""
    for labels in (np.zeros(13), np.arange(13) % 3, np.repeat([2, 1], [12, 1])):
        kept = cut_list(labels.astype(np.float32), 5, keep, np.random.default_rng(0))
        assert [len(one) for one in kept] == ([5, 4, 4] if keep == "all" else [5])
        every = np.concatenate(kept).tolist()
        assert len(set(every)) == len(every) and set(every) <= set(range(13))


def test_queries_of_one_grade_have_nothing_to_rank():
    """Query 1 has grades 0 and 1, query 4 has 2 twice; its pool brings it a 0."""
    judged = QueryLists.from_rows([1, 1, 4, 4], [0, 1, 2, 3], [0, 1, 2, 2])
    plain = GradedLists(judged, judged, None)
    pooled = GradedLists(judged, judged, QueryLists.from_rows([4], [9], [0.0]))
    for lists, expected in ((plain, [1]), (pooled, [1, 4])):
        assert with_two_grades(lists, judged.query_rows, "here").tolist() == expected
    with refused("here: no query has two documents of different grades"):
        with_two_grades(plain, np.asarray([4]), "here")
