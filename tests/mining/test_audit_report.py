"""What is told of an audit, by hand."""

import numpy as np

from ltr.mining.audit import Suspects
from ltr.mining.audit_report import SHOWN, audit_lines, audit_tsv
from tests.mining.audited import negatives_of

COUNTS = {"negatives": 40, "queries": 20, "suspects": 1, "suspect_queries": 1}


def suspects(n: int) -> Suspects:
    """Query 1, document 7 at place 1, 2.5 against 1.5 of the relevant document 4."""
    rows = [np.full(n, row) for row in (1, 7, 1)]
    return Suspects(*rows, np.full(n, 2.5), np.full(n, 4), np.full(n, 1.5))


def test_lines_by_hand(collection):
    lines = audit_lines(suspects(1), COUNTS, collection)
    docs = collection.corpus
    assert lines[0] == "40 negatives of 20 queries are judged"
    assert lines[1] == "likely false negatives: 1 (2.5%), of 1 queries"
    assert lines[4] == f"  negative   2.500  {docs.ids[7]}  {docs.texts[7]}"
    assert lines[5] == f"  relevant   1.500  {docs.ids[4]}  {docs.texts[4]}"
    assert len(lines) == 6


def test_no_more_than_some_are_shown_and_the_others_are_counted(collection):
    n = SHOWN + 3
    lines = audit_lines(suspects(n), COUNTS | {"suspects": n}, collection)
    assert sum(line.startswith("  negative") for line in lines) == SHOWN
    assert lines[-1] == "… and 3 more"


def test_the_table_by_hand(collection):
    """The distance of place 1 is 1, as audited.py makes them."""
    negatives = negatives_of(collection, {1: [3, 7]})
    header, row = audit_tsv(suspects(1), negatives, collection)
    values = dict(zip(header.rstrip("\n").split("\t"), row.rstrip("\n").split("\t"), strict=True))
    assert values["doc_id"] == collection.corpus.ids[7]
    assert (values["score"], values["relevant_score"]) == ("2.5", "1.5")
    assert (values["place"], values["distance"]) == ("1", "1")
