"""Rows of relevant documents with others below them."""

from ltr.data.query_lists import QueryLists
from ltr.data.sampling.triplet_rows import Negatives, TripletRows
from tests.world.refusals import refused


def test_rows_drawn_from_the_corpus_avoid_the_relevant_ones():
    judged = QueryLists.from_rows([0] * 9, range(9), [1.0] * 9)
    rows = TripletRows(
        judged,
        judged,
        negatives=(Negatives(5, None),),
        n_docs=11,
        positives_per_row=1,
        seed=0,
        epoch_over="queries",
        where="here",
    )
    assert sorted(rows.draw(0, 0).doc_rows[1:].tolist()) == [9, 10]  # there are only two others


def corpus_rows(n_docs: int, labels: QueryLists | None = None) -> TripletRows:
    """Query 0 has documents 0 and 1 as relevant ones; one negative is drawn from the corpus."""
    judged = QueryLists.from_rows([0, 0], [0, 1], [1.0, 1.0])
    return TripletRows(
        judged,
        judged,
        (Negatives(1, None),),
        n_docs,
        1,
        0,
        epoch_over="queries",
        where="here",
        audit_labels=labels,
    )


def test_a_corpus_of_relevant_documents_has_no_negatives():
    with refused("here: no query has a document to rank below"):
        corpus_rows(2)


def test_a_document_that_is_forbidden_twice_counts_once():
    dropped = QueryLists.from_rows([0], [0], [float("nan")])
    assert corpus_rows(3, dropped).draw(0, 0).doc_rows[1:].tolist() == [2]


def triplet_rows(epoch: str, positives: int) -> TripletRows:
    """Queries 0 and 1 with the documents 0 to 3 and 4 to 6 of 1000."""
    judged = QueryLists.from_rows([0] * 4 + [1] * 3, range(7), [1.0] * 7)
    return TripletRows(
        judged,
        judged,
        (Negatives(5, None),),
        1000,
        positives,
        0,
        epoch_over=epoch,
        where="here",
    )


def test_pairs_and_queries_are_one_where_a_row_holds_all_documents():
    over_queries, over_pairs = (triplet_rows(epoch, positives=4) for epoch in ("queries", "pairs"))
    assert len(over_queries) == len(over_pairs) == 2
    for epoch, row in ((0, 0), (0, 1), (3, 0), (3, 1)):
        a = over_queries.draw(epoch, row)
        b = over_pairs.draw(epoch, row)
        assert a.doc_rows.tolist() == b.doc_rows.tolist() and a.labels.tolist() == b.labels.tolist()


def test_each_pair_draws_negatives_of_its_own():
    """Seven rows with five of some 995 others each: no two rows of a query have the same ones."""
    rows = triplet_rows("pairs", positives=1)
    lists = [rows.draw(0, row) for row in range(len(rows))]
    assert [one.query_row for one in lists] == [0, 0, 0, 0, 1, 1, 1]
    assert sorted(one.doc_rows[0] for one in lists) == list(range(7)) and all(
        one.labels.tolist() == [1] + [0] * 5 for one in lists
    )
    assert all(not set(one.doc_rows[1:].tolist()) & set(one.known_rows.tolist()) for one in lists)
    assert len({tuple(sorted(one.doc_rows[1:].tolist())) for one in lists}) == 7
