"""Groups of relevant documents, and of texts of one label."""

from collections import Counter

import numpy as np

from ltr.data.sampling.group_rows import LabelGroups, QueryGroups
from tests.data.sampling.judgements import many_judged


def test_a_group_is_drawn_from_the_relevant_documents_without_repeats():
    """Query 3 has four relevant documents, 31 to 34, of which each of six pairs is expected 100
    times, with a deviation of 9.
    """
    judged = many_judged()
    groups = QueryGroups(judged, judged, 2, 0, epoch_over="queries", where="here")
    drawn = Counter()
    for epoch in range(600):
        one = groups.draw(epoch, 3)
        rows, grades = judged.of(3)
        assert one.labels.tolist() == [grades[rows == doc].item() for doc in one.doc_rows]
        assert len(set(one.doc_rows)) == 2
        assert one.known_rows.tolist() == [30, 31, 32, 33, 34]
        drawn[frozenset(one.doc_rows.tolist())] += 1
    assert len(drawn) == 6 and min(drawn.values()) > 65 and max(drawn.values()) < 135
    assert set().union(*drawn) == {31, 32, 33, 34}


def test_a_rest_of_two_is_a_group_and_a_rest_of_one_is_not():
    """In threes: 8 texts give 3, 3 and 2; 7 give 3 and 3; 2 give 2; one gives nothing."""
    groups = LabelGroups(np.repeat([0, 1, 2, 3], [8, 7, 2, 1]), 3, 0, where="here")
    assert groups.owners.tolist() == [0, 0, 0, 1, 1, 2] and groups.n_trained_labels == 3
    assert [len(groups.draw(0, group).doc_rows) for group in range(6)] == [3, 3, 2, 3, 3, 2]
