"""The report of a refresh, from a manifest by hand."""

from ltr.data.query_lists import QueryLists
from ltr.mining.refresh_report import WIDTH, examples, logged_numbers, summary_lines
from tests.mining.audited import negatives_of

MANIFEST = {
    "step": 40,
    "mined_queries": 3,
    "recipe": {"depth": 10, "n": 30, "index": "Flat"},
    "seconds": {"encode": 1.26, "search": 0.5},
    "counts": {"found": 3000, "relevant": 4, "relative": 1200, "chosen": 90, "short": 0},
    "mean_distance": {"relevant": 0.25, "negatives": 0.5},
    "recall": 0.9,
}


def test_a_refresh_in_three_lines():
    assert [*summary_lines(MANIFEST)] == [
        "hard negatives at step 40: 3 queries, the 10 best documents of each; "
        "encode 1.3 s, search 0.5 s",
        "  of 3,000 found, left out: relevant 4, relative 1,200; kept: 90, at most 30 a query",
        "  mean distance of embeddings to the query: relevant documents 0.250, negatives 0.500",
    ]


def test_what_not_every_refresh_has_is_told_where_it_is_there():
    manifest = MANIFEST | {
        "recipe": {"depth": 10, "n": 30, "index": "HNSW32"},
        "counts": MANIFEST["counts"] | {"short": 2, "random": 5},
        "overlap": 0.75,
        "staleness": 6,
    }
    _, _, short, distances = summary_lines(manifest)
    assert short == "  2 queries had too few for a list, and got random documents: 5 in all"
    assert distances.split("; ")[1:] == [
        "75% were negatives before",
        "training went on for 6 steps meanwhile",
        "the index finds 90.0% of the exact search",
    ]


def test_a_logger_gets_filters_but_not_the_relevant_documents_that_were_found():
    assert logged_numbers(MANIFEST | {"overlap": 0.75}, "mining/") == {
        "mining/seconds_encode": 1.26,
        "mining/seconds_search": 0.5,
        "mining/left_out_relative": 1200,
        "mining/distance_relevant": 0.25,
        "mining/distance_negatives": 0.5,
        "mining/overlap": 0.75,
    }


def test_an_example_is_a_query_with_its_best_document_and_its_hardest_negative(collection):
    """Of query 0 document 2 has the highest grade, and 7 is hardest; query 1 has none."""
    judged = QueryLists.from_rows([0, 0, 1], [1, 2, 3], [1.0, 2.0, 1.0])
    negatives = negatives_of(collection, {0: [7, 8]})
    (example,) = examples(negatives, collection, judged)
    rows = (collection.queries.texts[0], collection.corpus.texts[2], collection.corpus.texts[7])
    texts = [" ".join(text.split())[:WIDTH] for text in rows]
    assert example == (*texts, 0.0)


def test_examples_are_always_the_same_queries_in_their_order(collection):
    judged = collection.judgements("train")
    assert len(judged.query_rows) > 20
    negatives = negatives_of(collection, {int(row): [0] for row in judged.query_rows})
    first = [*examples(negatives, collection, judged)]
    assert [*examples(negatives, collection, judged)] == first and len(first) == 20
    texts = [" ".join(text.split())[:WIDTH] for text in collection.queries.texts]
    places = [texts.index(query) for query, *_ in first]
    assert places == sorted(places)
