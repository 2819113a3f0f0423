"""What is cut is said once, with shares by hand."""

import logging

import numpy as np
import pytest

from ltr.data.cuts import corpus_cut, say_what_is_cut
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.template import Template
from ltr.data.tokens import Tokens
from ltr.data.windows import Windows
from tests.world.backbones import wordpiece_tokenizer

QUERIES = Tokens(np.zeros(9, np.uint16), np.array([0, 1, 4, 9]))  # of 1, 3 and 5 tokens
DOCS = Tokens(np.zeros(40, np.uint16), np.array([0, 2, 8, 20, 40]))  # of 2, 6, 12 and 20 tokens


@pytest.mark.parametrize("texts_at_once", [1, 3, 1000])
def test_shares_by_hand(caplog, monkeypatch, texts_at_once):
    """A pair of 16 has 3 special tokens and, in the median, 3 of a query: 10 are left, and 2 + 10
    of 40 tokens are cut, of two documents. A text of 10 has 2 special ones: 4 + 12 of 40.
    """
    unread = "of all their tokens unread; windows would read them"
    monkeypatch.setattr("ltr.data.cuts.TEXTS_AT_ONCE", texts_at_once)
    tokenizer = wordpiece_tokenizer()
    single = SingleTexts(tokenizer, 10)
    with caplog.at_level(logging.INFO, "ltr"):
        say_what_is_cut(JoinedPairs(tokenizer, 16), QUERIES, QUERIES, DOCS, DOCS)
        say_what_is_cut(ApartTexts(single, single), QUERIES, QUERIES, DOCS, DOCS)
    assert caplog.messages == [
        f"max_length 16 cuts 50.0% of the documents beside a query, and leaves 30.0% {unread}",
        f"max_length 10 cuts 50.0% of the documents, and leaves 40.0% {unread}",
    ]


def test_budgets_and_long_queries_are_counted(caplog):
    """A budget of 4 takes 2 + 8 + 16 of 40 tokens of three documents, whatever max_length is, and
    windows of what it leaves do not read them. Of a query of 5 one is cut to 3: 2 of 9 tokens. Where
    no budget cuts queries, the layout has said which are cut.
    """
    tokenizer = wordpiece_tokenizer()
    template = Template(query_tokens=3, document_tokens=4)
    four = Tokens(np.zeros(14, np.uint16), np.array([0, 2, 6, 10, 14]))
    three = Tokens(np.zeros(7, np.uint16), np.array([0, 1, 4, 7]))
    single = SingleTexts(tokenizer, 50, template=template)
    in_windows = SingleTexts(tokenizer, 50, template=template, windows=Windows(2, 2))
    pairs = JoinedPairs(tokenizer, 50, template)
    for form in (pairs, ApartTexts(single, single), ApartTexts(single, in_windows)):
        cut = corpus_cut(form, QUERIES, DOCS, four)
        assert (cut.cut_texts, cut.cut_tokens) == (3 / 4, 26 / 40)
        with caplog.at_level(logging.INFO, "ltr"):
            say_what_is_cut(form, QUERIES, three, DOCS, four)
        of_queries, of_docs = caplog.messages
        budget = "template.query_tokens 3 (with max_length 50)"
        assert of_queries.startswith(f"{budget} cuts 33.3% of the queries, and leaves 22.2% of")
        assert of_docs.startswith("template.document_tokens 4 (with max_length 50) cuts 75.0% of")
        assert "leaves 65.0% of all their tokens unread" in of_docs
        caplog.clear()


def test_nothing_is_said_where_nothing_is_cut(caplog):
    tokenizer = wordpiece_tokenizer()
    windows = Windows(8, 8)
    single = SingleTexts(tokenizer, 10, windows=windows)
    nobody = QUERIES.between(0, 0)
    few = DOCS.between(0, 2)
    with caplog.at_level(logging.INFO, "ltr"):
        for form in (
            JoinedPairs(tokenizer, 26),
            JoinedPairs(tokenizer, 16, windows=windows),
            ApartTexts(SingleTexts(tokenizer, 10), single),
        ):
            say_what_is_cut(form, QUERIES, QUERIES, DOCS, DOCS)
        say_what_is_cut(JoinedPairs(tokenizer, 16), nobody, nobody, few, few)
    assert not caplog.records
