"""Mined negatives as a run file: the hardest first, with 1 / rank for a score."""

from ltr.data.trec import read_run
from ltr.mining.exported import write_trec
from tests.mining.audited import negatives_of


def test_a_run_file_by_hand(collection, tmp_path):
    """Query 1 has the negatives 7 and 3, query 4 has 2; no query has a place that holds −1."""
    write_trec(str(tmp_path / "a.trec"), negatives_of(collection, {1: [7, 3], 4: [2]}), collection)
    queries = collection.queries.ids
    docs = collection.corpus.ids
    lines = [line.split() for line in (tmp_path / "a.trec").read_text().splitlines()]
    assert [(line[0], line[2], float(line[4])) for line in lines] == [
        (queries[1], docs[7], 1.0),
        (queries[1], docs[3], 0.5),
        (queries[4], docs[2], 1.0),
    ]
    assert {line[5] for line in lines} == {"mined"}
    assert len(list(read_run(tmp_path / "a.trec"))) == 3
