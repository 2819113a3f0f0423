"""What a row of an epoch holds: triplets, whole lists and what long ones become, groups."""

from collections import Counter

import numpy as np
import pytest

from ltr.data.letor import FeatureSplit
from ltr.data.query_lists import QueryLists
from ltr.data.rows import (
    GradedLists,
    LabelGroups,
    ListRows,
    QueryGroups,
    RelevantRows,
    Source,
    TripletRows,
    cut_list,
    with_two_grades,
)
from ltr.errors import InputError

# Triplets


def test_rows_drawn_from_the_corpus_avoid_the_relevant_ones():
    judged = QueryLists.from_rows([0] * 9, range(9), [1.0] * 9)
    rows = TripletRows(judged, (Source(5, None),), n_docs=11, positives=1, seed=0, epoch="queries", where="here")
    assert sorted(rows.draw(0, 0).doc_rows[1:].tolist()) == [9, 10]  # there are only two others


def relevant_rows(size: int, epoch: str, seed: int = 0) -> RelevantRows:
    """Of the queries 2, 3, 4 and 7, with 3, 4, 5 and 3 relevant documents."""
    return RelevantRows(many_judged(), np.asarray([2, 3, 4, 7]), size, epoch, seed)


def drawn_pairs(rows: RelevantRows, epoch: int) -> list[tuple[int, list[int]]]:
    """Query and documents of each row."""
    lists = [rows.draw(epoch, row)[0] for row in range(len(rows.query_rows))]
    assert [len(one.doc_rows) for one in lists] == rows.counts.tolist()
    assert all(one.labels.tolist() == [doc % 10 % 3 + 1 for doc in one.doc_rows] for one in lists)
    return [(one.query_row, one.doc_rows.tolist()) for one in lists]


@pytest.mark.parametrize(
    "size, counts",
    [(1, [[1] * 3, [1] * 4, [1] * 5, [1] * 3]), (2, [[2, 1], [2, 2], [2, 2, 1], [2, 1]]), (3, [[3], [2, 2], [3, 2], [3]])],
)
def test_an_epoch_over_pairs_has_each_pair_once(size, counts):
    """In rows of nearly one size, and dealt out anew in each epoch."""
    rows, every = (
        relevant_rows(size, "pairs"),
        [(q, 10 * q + d) for q, n in ((2, 3), (3, 4), (4, 5), (7, 3)) for d in range(1, n + 1)],
    )
    assert rows.query_rows.tolist() == [q for q, n in zip([2, 3, 4, 7], counts, strict=True) for _ in n]
    assert rows.counts.tolist() == sum(counts, [])
    epochs = [drawn_pairs(rows, epoch) for epoch in range(4)]
    assert all(sorted((query, doc) for query, docs in epoch for doc in docs) == every for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 4 and epochs != [
        drawn_pairs(relevant_rows(size, "pairs", 1), e) for e in range(4)
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_over_queries_has_each_query_once(size):
    rows = relevant_rows(size, "queries")
    assert [query for query, _ in drawn_pairs(rows, 0)] == [2, 3, 4, 7] and rows.counts.tolist() == [size] * 4


def triplet_rows(epoch: str, positives: int) -> TripletRows:
    """Queries 0 and 1 with the documents 0 to 3 and 4 to 6 of 1000."""
    judged = QueryLists.from_rows([0] * 4 + [1] * 3, range(7), [1.0] * 7)
    return TripletRows(judged, (Source(5, None),), 1000, positives, 0, epoch=epoch, where="here")


def test_pairs_and_queries_are_one_where_a_row_holds_all_documents():
    over_queries, over_pairs = (triplet_rows(epoch, positives=4) for epoch in ("queries", "pairs"))
    assert len(over_queries) == len(over_pairs) == 2
    for epoch, row in ((0, 0), (0, 1), (3, 0), (3, 1)):
        a, b = over_queries.draw(epoch, row), over_pairs.draw(epoch, row)
        assert a.doc_rows.tolist() == b.doc_rows.tolist() and a.labels.tolist() == b.labels.tolist()


def test_each_pair_draws_negatives_of_its_own():
    """Seven rows with five of some 995 others each: no two rows of a query have the same ones."""
    rows = triplet_rows("pairs", positives=1)
    lists = [rows.draw(0, row) for row in range(len(rows))]
    assert [one.query_row for one in lists] == [0, 0, 0, 0, 1, 1, 1]
    assert sorted(one.doc_rows[0] for one in lists) == list(range(7)) and all(
        one.labels.tolist() == [1] + [0] * 5 for one in lists
    )
    assert all(not set(one.doc_rows[1:].tolist()) & set(one.judged_rows.tolist()) for one in lists)
    assert len({tuple(sorted(one.doc_rows[1:].tolist())) for one in lists}) == 7


# Lists


def rows_of(grades: dict[int, float], pool: list[int], list_size=None, keep="relevant") -> ListRows:
    """One query, number 3."""
    judged = QueryLists.from_rows([3] * len(grades), grades.keys(), grades.values())
    pools = QueryLists.from_rows([3] * len(pool), pool, [0.0] * len(pool))
    lists = GradedLists(judged, pools)
    return ListRows(lists, with_two_grades(lists, judged.query_rows, "here"), list_size, keep, seed=0)


def drawn(rows: ListRows, epochs: int) -> list[dict[int, float]]:
    lists = [rows.draw(epoch, 0) for epoch in range(epochs)]
    assert all(len(set(one.doc_rows.tolist())) == len(one.doc_rows) for one in lists)
    return [dict(zip(one.doc_rows.tolist(), one.labels.tolist(), strict=True)) for one in lists]


def test_a_list_is_the_pool_and_the_judged_documents_beside_it():
    rows = rows_of({9: 2, 4: 0, 7: 1}, pool=[5, 7, 6])
    one = rows.draw(0, 0)
    assert one.query_row == 3 and one.doc_rows.tolist() == [5, 7, 6, 9, 4] and one.labels.tolist() == [0, 1, 0, 2, 0]
    assert one.judged_rows.tolist() == [9, 4, 7] and one.judged_grades.tolist() == [2, 0, 1] and one.ideal is None


def test_the_relevant_documents_of_a_long_list_stay_and_others_are_drawn():
    """2 relevant and 8 others in lists of 4: both relevant ones, best first, and each other in a quarter of the epochs."""
    rows = rows_of({0: 1, 1: 3, 2: 0}, pool=list(range(2, 10)), list_size=4)
    lists = drawn(rows, 400)
    assert all(list(one)[:2] == [1, 0] and list(one.values()) == [3, 1, 0, 0] for one in lists)
    counts = Counter(doc for one in lists for doc in one)
    assert all(60 < counts[doc] < 140 for doc in range(2, 10))  # each expected 100 times, with a deviation of 9


def test_of_too_many_relevant_documents_the_best_graded_stay():
    """Grades 3, 2, 2, 1, 1 in lists of 4: 3, 2, 2 and either of the last two, never an irrelevant one."""
    lists = drawn(rows_of({0: 1, 1: 2, 2: 3, 3: 2, 4: 1}, pool=[5, 6], list_size=4), 30)
    assert all(list(one.values()) == [3, 2, 2, 1] for one in lists) and {list(one)[3] for one in lists} == {0, 4}


@pytest.mark.parametrize("others, expected", [({}, [1, 1, 0]), ({9: 2}, [2, 1, 1])])
def test_a_list_always_has_something_to_rank(others, expected):
    """Five documents of grade 1 would fill a list of 3: one of another grade has the last place, if none is there already."""
    lists = drawn(rows_of({doc: 1 for doc in range(5)} | others, pool=[5, 6, 7], list_size=3), 30)
    assert all(list(one.values()) == expected for one in lists)
    assert drawn(rows_of({0: 2, 1: 2, 2: 1, 3: 2}, pool=[2], list_size=2), 1)[0] in ({d: 2.0, 2: 1.0} for d in (0, 1, 3))


def test_a_sample_favours_no_document():
    """Of 10 documents 4 are drawn, each in two fifths of 500 epochs."""
    lists = drawn(rows_of({0: 1, 1: 3}, pool=list(range(2, 10)), list_size=4, keep="any"), 500)
    counts = Counter(doc for one in lists for doc in one)
    assert all(150 < counts[doc] < 250 for doc in range(10)) and {len(one) for one in lists} == {4}  # 200, deviation 11
    assert all(one[doc] == (1 if doc == 0 else 3 if doc == 1 else 0) for one in lists for doc in one)


def one_query(labels: list[float]) -> FeatureSplit:
    """A split of one list; document d has the feature d."""
    n = len(labels)
    features = np.arange(n, dtype=np.float32)[:, None]
    return FeatureSplit("one", features, np.asarray(labels, np.float32), np.asarray([0, n]), ["q"], [str(d) for d in range(n)])


def of_features(labels: list[float], list_size: int, keep: str) -> ListRows:
    return ListRows(one_query(labels), np.arange(1), list_size, keep, seed=0)


def test_features_keep_the_relevant_documents_too():
    """Of 2 relevant and 8 others, 4 are drawn: both relevant ones, and two of the others, each as likely."""
    rows = of_features([0, 0, 1, 0, 0, 0, 2, 0, 0, 0], 4, "relevant")
    counts = np.zeros(10)
    for epoch in range(400):
        one = rows.draw(epoch, 0)
        assert len(set(one.doc_rows.tolist())) == 4 and (one.labels == rows.source.labels[one.doc_rows]).all()
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
        assert [len(one) for one in lists] == [4, 3, 3] and sorted(sum(lists, [])) == list(range(10))
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
    assert with_two_grades(GradedLists(judged, None), judged.query_rows, "here").tolist() == [1]
    pools = QueryLists.from_rows([4], [9], [0.0])
    assert with_two_grades(GradedLists(judged, pools), judged.query_rows, "here").tolist() == [1, 4]
    with pytest.raises(InputError, match="here: no query has two documents of different grades"):
        with_two_grades(GradedLists(judged, None), np.asarray([4]), "here")


# Groups


def many_judged(n_queries=11, n_relevant=5) -> QueryLists:
    """Query q has 1 to 5 relevant documents of grades 1 to 3, and a judged irrelevant one; rows 10 q to 10 q + 5."""
    rows = [(q, 10 * q + d, d % 3 + 1 if d else 0) for q in range(n_queries) for d in range(q % n_relevant + 2)]
    return QueryLists.from_rows(*zip(*rows, strict=True))


def shuffled(*sizes: int) -> np.ndarray:
    """Labels 0, 1, … of so many texts each, in any order."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_a_group_is_drawn_from_the_relevant_documents_without_repeats():
    """Query 3 has four relevant documents, 31 to 34, of which every pair comes about as often."""
    judged = many_judged()
    groups = QueryGroups(judged, 2, 0, epoch="queries", where="here")
    drawn = Counter()
    for epoch in range(600):
        one = groups.draw(epoch, 3)
        rows, grades = judged.of(3)
        assert one.labels.tolist() == [grades[rows == doc].item() for doc in one.doc_rows] and len(set(one.doc_rows)) == 2
        assert one.judged_rows is not None and one.judged_rows.tolist() == [30, 31, 32, 33, 34]
        drawn[frozenset(one.doc_rows.tolist())] += 1
    assert len(drawn) == 6 and min(drawn.values()) > 65 and max(drawn.values()) < 135  # each expected 100 times, deviation 9
    assert set().union(*drawn) == {31, 32, 33, 34}


def test_a_rest_of_two_is_a_group_and_a_rest_of_one_is_not():
    """In threes: 8 texts give 3, 3 and 2; 7 give 3 and 3; 2 give 2; one gives nothing."""
    groups = LabelGroups(np.repeat([0, 1, 2, 3], [8, 7, 2, 1]), 3, 0, where="here")
    sizes = [(owner, len(groups.draw(0, group).doc_rows)) for group, owner in enumerate(groups.owners.tolist())]
    assert sizes == [(0, 3), (0, 3), (0, 2), (1, 3), (1, 3), (2, 2)] and groups.n_labels == 3
