"""What is cut is said once, with shares by hand."""

import logging

import numpy as np
import pytest

from ltr.data.cuts import say_what_is_cut
from ltr.data.formats import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.tokens import Tokens
from ltr.data.windows import Windows
from tests.conftest import wordpiece_tokenizer

QUERIES = Tokens(np.zeros(9, np.uint16), np.array([0, 1, 4, 9]))  # of 1, 3 and 5 tokens
DOCS = Tokens(np.zeros(40, np.uint16), np.array([0, 2, 8, 20, 40]))  # of 2, 6, 12 and 20 tokens


@pytest.mark.parametrize("texts_at_once", [1, 3, 1000])
def test_shares_by_hand(caplog, monkeypatch, texts_at_once):
    """A pair of 16 has 3 special tokens and, in the median, 3 of a query: 10 are left, and 2 + 10
    of 40 tokens are cut, of two documents. A text of 10 has 2 special ones: 4 + 12 of 40.
    """
    monkeypatch.setattr("ltr.data.cuts.TEXTS_AT_ONCE", texts_at_once)
    tokenizer = wordpiece_tokenizer()
    single = SingleTexts(tokenizer, 10)
    with caplog.at_level(logging.INFO, "ltr"):
        say_what_is_cut(JoinedPairs(tokenizer, 16), QUERIES, DOCS)
        say_what_is_cut(ApartTexts(single, single), QUERIES, DOCS)
    assert [record.message for record in caplog.records] == [
        "max_length 16 cuts 50.0% of the documents beside a query, and leaves 30.0% of all their tokens unread; windows would read them",
        "max_length 10 cuts 50.0% of the documents, and leaves 40.0% of all their tokens unread; windows would read them",
    ]


def test_nothing_is_said_where_nothing_is_cut(caplog):
    tokenizer = wordpiece_tokenizer()
    windows = Windows(8, 8)
    single = SingleTexts(tokenizer, 10, windows=windows)
    with caplog.at_level(logging.INFO, "ltr"):
        say_what_is_cut(JoinedPairs(tokenizer, 26), QUERIES, DOCS)
        say_what_is_cut(JoinedPairs(tokenizer, 16, windows=windows), QUERIES, DOCS)
        say_what_is_cut(ApartTexts(SingleTexts(tokenizer, 10), single), QUERIES, DOCS)
        say_what_is_cut(JoinedPairs(tokenizer, 16), QUERIES.between(0, 0), DOCS.between(0, 2))
    assert not caplog.records
