"""Documents by query: made of lines and of a matrix, cut, sorted and joined."""

from pathlib import Path

import numpy as np
import pytest

from ltr.data.query_lists import LabelledList, QueryLists, values_of
from tests.world.refusals import refused

LINES = QueryLists.from_rows([7, 3, 7], [1, 2, 0], [0.5, 0.1, 0.9])


def as_dict(lists: QueryLists) -> dict[int, list[tuple[int, float]]]:
    found = {}
    for query in lists.query_rows.tolist():
        docs, values = lists.of(query)
        found[query] = [
            (doc, round(value, 3))
            for doc, value in zip(docs.tolist(), values.tolist(), strict=True)
        ]
    return found


def test_lines_are_grouped_in_their_order():
    assert as_dict(LINES) == {3: [(2, 0.1)], 7: [(1, 0.5), (0, 0.9)]}
    assert [len(part) for part in LINES.of(5)] == [0, 0]


def test_a_matrix_leaves_out_what_is_not_there():
    lists = QueryLists.from_matrix(
        np.array([3, 5, 7]),
        np.array([[2, -1], [-1, -1], [1, 0]]),
        np.array([[0.1, -np.inf], [np.nan, 0], [0.5, 0.9]]),
    )
    assert as_dict(lists) == {3: [(2, 0.1)], 5: [], 7: [(1, 0.5), (0, 0.9)]}
    assert lists.doc_rows.dtype == np.int64
    assert lists.values.dtype == np.float32


def test_empty_lists_have_no_relevant_document():
    for docs, n_relevant in (([[-1], [5]], [0, 1]), ([[5], [-1]], [1, 0]), ([[-1], [-1]], [0, 0])):
        lists = QueryLists.from_matrix(np.array([0, 1]), np.array(docs), np.ones((2, 1)))
        assert lists.n_relevant().tolist() == n_relevant


def test_best_first_and_the_first_of_them():
    assert as_dict(LINES.best_first().cut(1)) == {3: [(2, 0.1)], 7: [(0, 0.9)]}
    tied = QueryLists.from_rows([1, 1], [4, 6], [0.5, 0.5])
    assert as_dict(tied.best_first()) == {1: [(6, 0.5), (4, 0.5)]}


def test_joined_lists_keep_the_value_of_the_first():
    other = QueryLists.from_rows([7, 9], [1, 8], [3.0, 4.0])
    assert as_dict(LINES.joined(other)) == as_dict(LINES) | {9: [(8, 4.0)]}


def test_a_document_that_nobody_judged_has_grade_0():
    grades = values_of(np.array([5, 1]), np.array([1, 2]), np.array([2.0, 1.0], dtype=np.float32))
    assert grades.tolist() == [0.0, 2.0]
    labelled = QueryLists.from_rows([4, 4], [1, 2], [2.0, 0.0]).labelled(4, np.array([5, 1]))
    assert labelled.labels.tolist() == [0.0, 2.0]
    assert labelled.ideal.tolist() == [2.0]


def test_first_and_best_first():
    lists = QueryLists.from_rows([7, 3, 7, 7], [1, 2, 3, 4], [0.5, 1.0, 2.0, 0.5])
    best = lists.best_first()
    assert best.query_rows.tolist() == [3, 7] and best.of(7)[0].tolist() == [3, 4, 1]
    assert best.cut(2).of(7)[0].tolist() == [3, 4] and best.cut(2).of(3)[0].tolist() == [2]
    assert best.cut(2**63).of(7)[0].tolist() == [3, 4, 1]
    assert best.cut(None) is best and best.of(5)[0].tolist() == []


def test_places_begin_anew_in_each_list():
    lists = QueryLists.from_rows([4, 4, 7, 9, 9], range(5), [1.0] * 5)
    assert lists.place_in_list.tolist() == [0, 1, 0, 0, 1]


def test_a_document_alone_was_not_mined():
    """What is known of the query stays."""
    mined = np.array([0.5, 0.25], np.float32)
    judged = np.array([3, 8])
    labelled = LabelledList(2, np.array([3, 4]), np.ones(2, np.float32), mined, known_rows=judged)
    alone = labelled.alone(8)
    assert alone.doc_rows.tolist() == [8] and alone.labels.tolist() == [0.0]
    assert alone.distances is None and alone.query_row == 2 and alone.known_rows is judged


@pytest.mark.parametrize("query_rows", [[2, 1], [1, 1]])
def test_lists_of_a_folder_are_in_the_order_of_their_queries(query_rows):
    """A query that stands out of order would silently have no list."""
    lists = QueryLists.from_rows([1, 2], [0, 0], [1.0, 2.0])
    lists.check(3, 1, Path("f"), "score again", "labels.scores")
    disordered = lists._replace(query_rows=np.array(query_rows))
    with refused("query_rows.npy: the file is damaged, its numbers must rise; score again"):
        disordered.check(3, 1, Path("f"), "score again", "labels.scores")
