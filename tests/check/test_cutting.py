"""What will be cut: shares by hand, of texts apart and of pairs."""

from dataclasses import replace

import numpy as np
import pytest

from ltr.check.cutting import cutting_section
from ltr.data.cuts import cut_of
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.template import Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.data.tokens import Tokens
from ltr.data.windows import Windows
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import small_collection


def test_shares_by_hand():
    """Of 2 + 4 + 8 tokens 0 + 1 + 5 are not read where 2 special ones of 5 leave 3; all but 1 % of
    200 texts are those of 4.
    """
    form = SingleTexts(wordpiece_tokenizer(), 5)

    def cut_at_5(lengths):
        tokens = Tokens(np.zeros(sum(lengths), np.uint16), np.cumsum([0, *lengths]))
        return cut_of(ApartTexts(form, form), "document", "train", tokens, tokens)

    cut = cut_at_5([2, 4, 8])
    assert cut.cut_texts == pytest.approx(2 / 3) and cut.cut_tokens == pytest.approx(6 / 14)
    assert cut.keeps_whole == 10
    assert cut_at_5([2] * 198 + [7] * 2).keeps_whole == 4
    assert cut_at_5([2] * 197 + [7] * 3).keeps_whole == 9
    assert cut_at_5([3, 3]).cut_texts == 0


@pytest.fixture
def collection(tmp_path):
    """A query of one word, documents of 2, 6 and 20 words; the last one is not judged."""
    docs = {name: " ".join(["w1"] * n) for name, n in {"a": 2, "b": 6, "c": 20}.items()}
    return small_collection(tmp_path / "c", docs, {"q": "w2"}, [("q", "a", 1), ("q", "b", 0)])


def test_texts_apart(collection):
    """[CLS] and [SEP] count: documents have 4, 8 and 22 tokens, and 6 are read."""
    tokenizer = wordpiece_tokenizer()
    form = SingleTexts(tokenizer, 6)
    entries = cutting_section(collection, ApartTexts(form, form)).entries
    assert entries["query.train"]["cut_texts"] == 0
    assert entries["document.train"]["cut_texts"] == pytest.approx(1 / 2)
    assert entries["document.train"]["cut_tokens"] == pytest.approx(2 / 8)
    assert entries["document.corpus"]["cut_tokens"] == pytest.approx((2 + 16) / 28)
    assert entries["document.corpus"]["keeps_whole"] == 22


def test_the_length_that_keeps_a_query_whole_beside_a_document(tmp_path):
    """A query of 9 tokens, three special ones and a token of a document: 13, and 12 cuts it."""

    docs = {"a": "w1", "b": "w2"}
    query = " ".join(["w3"] * 9)
    long = small_collection(tmp_path / "c", docs, {"q": query}, [("q", "a", 1), ("q", "b", 0)])
    for max_length, share in ((10, 1), (12, 1), (13, 0)):
        section = cutting_section(long, JoinedPairs(wordpiece_tokenizer(), max_length))
        assert section.entries["query.train"]["cut_texts"] == share
        assert section.entries["query.train"]["keeps_whole"] == 13


def test_pairs(collection):
    """Three special tokens and the query's: of 8 four are left for documents of 2, 6 and 20."""
    section = cutting_section(collection, JoinedPairs(wordpiece_tokenizer(), 8))
    assert section.entries["pair.train"]["cut_tokens"] == pytest.approx(2 / 8)
    assert section.entries["pair.corpus"]["cut_texts"] == pytest.approx(2 / 3)
    assert section.entries["pair.corpus"]["cut_tokens"] == pytest.approx(18 / 28)
    assert section.entries["query.train"]["cut_texts"] == 0


@pytest.mark.parametrize("windows", [None, Windows(4, 2)])
@pytest.mark.parametrize("template", ["{document}", "{document} w9", "w8 {document}"])
def test_what_a_budget_cuts_is_counted_as_what_max_length_cuts(collection, template, windows):
    """Four of 2, 6 and 20 words are read; text around them is read always."""
    if windows and template.endswith("w9"):
        pytest.skip("nothing may stand behind windows")
    n_around = len(template.split()) - 1
    template = Template(document=template, document_tokens=4)
    tokenizer = wordpiece_tokenizer()
    form = SingleTexts(tokenizer, 40, template=template, windows=windows)
    reads = [ApartTexts(SingleTexts(tokenizer, 40, template=template), form)]
    if not template.document.endswith("w9"):
        reads.append(JoinedPairs(tokenizer, 40, template, windows=windows))
    for form in reads:
        section = cutting_section(collection, form)
        side = "pair" if isinstance(form, JoinedPairs) else "document"
        whole = section.entries[f"{side}.corpus"]
        assert whole["cut_texts"] == pytest.approx(2 / 3)
        assert whole["cut_tokens"] == pytest.approx((2 + 16) / (28 + 3 * n_around))
        assert not any("read whole" in line for line in section.lines)
    pairs = TemplatedPairs(tokenizer, 60, replace(template, pair="w5 {query} {document} w6"))
    whole = cutting_section(collection, pairs).entries["pair.corpus"]
    assert whole["cut_texts"] == pytest.approx(2 / 3)


def test_a_budget_of_queries_and_a_query_that_leaves_no_room_are_counted(tmp_path):
    queries = {"q": "w2", "r": " ".join(["w3"] * 39)}
    judged = [("q", "a", 1), ("r", "a", 1)]
    collection = small_collection(tmp_path / "c", {"a": "w1 w2"}, queries, judged)
    tokenizer = wordpiece_tokenizer()
    # Of 39 tokens the budget leaves 5; of 13 tokens 3 are special, and 5 of 10 stay.
    for form in (JoinedPairs(tokenizer, 60, Template(query_tokens=5)), JoinedPairs(tokenizer, 13)):
        section = cutting_section(collection, form)
        assert section.entries["query.train"]["cut_texts"] == 1 / 2
        assert section.entries["query.train"]["cut_tokens"] == pytest.approx(34 / 40)
        assert section.entries["pair.train"]["cut_texts"] == 0
        assert "85% of the tokens of the queries of train are cut by" in section.severe[0]


def test_windows_cut_nothing(collection):
    """Of 2, 6 and 20 words 4 at a time, one window every 2: 1, 2 and 9 windows."""
    windows = Windows(4, 2)
    pairs = cutting_section(collection, JoinedPairs(wordpiece_tokenizer(), 8, windows=windows))
    form = SingleTexts(wordpiece_tokenizer(), 6)
    in_windows = SingleTexts(wordpiece_tokenizer(), 6, windows=windows)
    apart = cutting_section(collection, ApartTexts(form, in_windows))
    for section, side in ((pairs, "pair"), (apart, "document")):
        for where in ("train", "corpus"):
            assert section.entries[f"{side}.{where}"]["cut_texts"] == 0
            assert section.entries[f"{side}.{where}"]["cut_tokens"] == 0
        assert section.lines == [
            "documents are read whole, in windows of 4 tokens, one every 2: 4.0 of a document of the corpus in the mean, 9 of the longest"
        ]
    assert apart.entries["document.corpus"]["keeps_whole"] == 22


def test_much_that_is_cut_is_severe(collection):
    """One of 5 is left for documents of 2 and 6: 6 of 8 tokens are cut."""
    (line,) = cutting_section(collection, JoinedPairs(wordpiece_tokenizer(), 5)).severe
    cut = "75% of the tokens of the documents of train are cut by max_length 5"
    assert line == f"{cut}; a length of 10 keeps 99% of them whole"
