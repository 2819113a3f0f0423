"""What will be cut: shares by hand, of texts apart and of pairs."""

import numpy as np
import pytest

from ltr.check.cutting import cut_of, cutting_section
from ltr.data.collection import open_collection
from ltr.data.formats import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.windows import Windows
from tests.conftest import wordpiece_tokenizer, write_jsonl


def test_shares_by_hand():
    """Of 4 + 6 + 10 tokens 0 + 1 + 5 lie beyond 5; all but 1 % of 200 texts are those of 4."""
    cut = cut_of(np.array([4, 6, 10]), 5, "document", "train")
    assert cut.cut_texts == pytest.approx(2 / 3) and cut.cut_tokens == pytest.approx(6 / 20)
    assert cut.keeps_whole == 10
    assert cut_of(np.array([4] * 198 + [9] * 2), 5, "document", "train").keeps_whole == 4
    assert cut_of(np.array([4] * 197 + [9] * 3), 5, "document", "train").keeps_whole == 9
    assert cut_of(np.array([5, 5]), 5, "query", "dev").cut_texts == 0


@pytest.fixture
def collection(tmp_path):
    """A query of one word, documents of 2, 6 and 20 words; the last one is not judged."""
    folder = tmp_path / "c"
    (folder / "qrels").mkdir(parents=True)
    docs = {"a": 2, "b": 6, "c": 20}
    write_jsonl(
        folder / "corpus.jsonl",
        [{"_id": name, "text": " ".join(["w1"] * n)} for name, n in docs.items()],
    )
    write_jsonl(folder / "queries.jsonl", [{"_id": "q", "text": "w2"}])
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\nq\tb\t0\n")
    return open_collection(folder)


def test_texts_apart(collection):
    """[CLS] and [SEP] count: documents have 4, 8 and 22 tokens, and 6 are read."""
    tokenizer = wordpiece_tokenizer()
    form = SingleTexts(tokenizer, 6)
    entries = cutting_section(collection, ApartTexts(form, form)).entries
    assert entries["query.train"]["cut_texts"] == 0
    assert entries["document.train"]["cut_texts"] == pytest.approx(1 / 2)
    assert entries["document.train"]["cut_tokens"] == pytest.approx(2 / 12)
    assert entries["document.corpus"]["cut_tokens"] == pytest.approx((2 + 16) / 34)
    assert entries["document.corpus"]["keeps_whole"] == 22


def test_pairs(collection):
    """Three special tokens and the query's: pairs of 6, 10 and 24 tokens, of which 8 are read."""
    section = cutting_section(collection, JoinedPairs(wordpiece_tokenizer(), 8))
    assert section.entries["pair.train"]["cut_tokens"] == pytest.approx(2 / 16)
    assert section.entries["pair.corpus"]["cut_texts"] == pytest.approx(2 / 3)
    assert not section.severe


def test_windows_cut_nothing(collection):
    """Of 2, 6 and 20 words 4 at a time, one window every 2: 1, 2 and 9 windows."""
    windows = Windows(4, 2)
    pairs = cutting_section(collection, JoinedPairs(wordpiece_tokenizer(), 8, windows=windows))
    form = SingleTexts(wordpiece_tokenizer(), 6)
    apart = cutting_section(
        collection,
        ApartTexts(form, SingleTexts(wordpiece_tokenizer(), 6, windows=windows)),
    )
    for section, side in ((pairs, "pair"), (apart, "document")):
        for where in ("train", "corpus"):
            assert section.entries[f"{side}.{where}"]["cut_texts"] == 0
            assert section.entries[f"{side}.{where}"]["cut_tokens"] == 0
        assert section.lines == [
            "documents are read whole, in windows of 4 tokens, one every 2: 4.0 of a document of the corpus in the mean, 9 of the longest"
        ]
    assert apart.entries["document.corpus"]["keeps_whole"] == 22


def test_much_that_is_cut_is_severe(collection):
    """5 are read of 6 and 10: 6 of 16 tokens are cut."""
    (line,) = cutting_section(collection, JoinedPairs(wordpiece_tokenizer(), 5)).severe
    assert (
        line
        == "38% of the tokens of the pairs of train are cut by max_length 5; 10 keeps 99% of them whole"
    )
