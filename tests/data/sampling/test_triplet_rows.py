"""Rows of relevant documents with others below them."""

import numpy as np

from ltr.data.query_lists import QueryLists
from ltr.data.sampling.triplet_rows import Negatives, TripletRows
from tests.world.refusals import refused


def triplet_rows(judged, n_docs, *, negatives=5, epoch="queries", positives=1, **options):
    """Rows of so many negatives from the corpus."""
    options |= {"epoch_over": epoch, "where": "here"}
    drawn = (Negatives(negatives, None),)
    return TripletRows(judged, judged, drawn, n_docs, positives, 0, **options)


def of_relevant(*counts):
    """Queries with so many relevant documents each, of which no two are one."""
    rows = np.arange(sum(counts))
    return QueryLists.from_rows(np.repeat(np.arange(len(counts)), counts), rows, rows * 0 + 1.0)


def test_rows_drawn_from_the_corpus_avoid_the_relevant_ones():
    drawn = triplet_rows(of_relevant(9), n_docs=11).draw(0, 0)
    assert sorted(drawn.doc_rows[1:].tolist()) == [9, 10], "there are only two others"


def test_a_corpus_of_relevant_documents_has_no_negatives():
    with refused("here: no query has a document to rank below"):
        triplet_rows(of_relevant(2), n_docs=2, negatives=1)


def test_a_document_that_is_forbidden_twice_counts_once():
    dropped = QueryLists.from_rows([0], [0], [float("nan")])
    rows = triplet_rows(of_relevant(2), n_docs=3, negatives=1, audit_labels=dropped)
    assert rows.draw(0, 0).doc_rows[1:].tolist() == [2]


def test_pairs_and_queries_are_one_where_a_row_holds_all_documents():
    over_queries, over_pairs = (
        triplet_rows(of_relevant(4, 3), 1000, epoch=epoch, positives=4)
        for epoch in ("queries", "pairs")
    )
    assert len(over_queries) == len(over_pairs) == 2
    for epoch, row in ((0, 0), (0, 1), (3, 0), (3, 1)):
        a = over_queries.draw(epoch, row)
        b = over_pairs.draw(epoch, row)
        assert a.doc_rows.tolist() == b.doc_rows.tolist() and a.labels.tolist() == b.labels.tolist()


def test_each_pair_draws_negatives_of_its_own():
    """Seven rows with five of some 995 others each: no two rows of a query have the same ones."""
    rows = triplet_rows(of_relevant(4, 3), 1000, epoch="pairs")
    lists = [rows.draw(0, row) for row in range(len(rows))]
    assert [one.query_row for one in lists] == [0, 0, 0, 0, 1, 1, 1]
    assert sorted(one.doc_rows[0] for one in lists) == list(range(7))
    assert all(one.labels.tolist() == [1] + [0] * 5 for one in lists)
    assert all(not set(one.doc_rows[1:].tolist()) & set(one.known_rows.tolist()) for one in lists)
    assert len({tuple(sorted(one.doc_rows[1:].tolist())) for one in lists}) == 7
