"""BM25: terms, scores by the formula, and the best documents of a corpus."""

import math
import os
import random
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer

from ltr.check.word_sets import words_of
from ltr.data import bm25
from ltr.data.bm25 import ALL_WORDS, K1, B, Bm25Words, bm25_lists
from ltr.data.cache_contents import Cache
from ltr.data.collection import Collection, open_collection
from ltr.data.postings import Postings
from ltr.data.terms import terms
from tests.child_processes import fork
from tests.data.programs import start
from tests.world.collections import by_ids, small_collection
from tests.world.refusals import refused


# Scripts without spaces by characters with their marks; other words keep their marks; the forms of a
# letter are one letter.
@pytest.mark.parametrize(
    "text, expected",
    [
        ("The Cat's 2 mats", "the cat s 2 mats"),
        ("头痛 ok 药", "头 痛 ok 药 头痛"),
        ("X线b超", "x 线 b 超"),
        ("서울은", "서 울 은 서울 울은"),
        ("ไทย", "ไ ท ย ไท ทย"),
        ("ที่", "ที่"),
        ("ລາວ", "ລ າ ວ ລາ າວ"),
        ("ភាសា", "ភា សា ភាសា"),
        ("နိုင်", "နို င် နိုင်"),
        ("हिन्दी में", "हिन्दी में"),
        ("தமிழ்", "தமிழ்"),
        ("العَرَبِيَّة", "العَرَبِيَّة"),
        ("ＵＮＩＸ ﬁle", "unix file"),
        ("cafe\u0301", "café"),
        ("ｶﾞﾗｽ", "ガ ラ ス ガラ ラス"),
        ("Straße", "strasse"),
        ("🎉 party", "🎉 party"),
        ("❤\ufe0f", "❤"),
        ("𠮷野", "𠮷 野 𠮷野"),
    ],
)
def test_terms_of_scripts_and_forms(text, expected):
    assert terms(text) == expected.split(" ")
    assert words_of(text) == terms(text), "one rule for BM25 and ltr check"


def test_a_noun_finds_itself_behind_particles_and_under_other_forms(tmp_path):
    docs = {
        "ko": "서울은 대한민국의 수도이다.",
        "th": "เมืองหลวงของไทย",
        "file": "a ﬁle of ＵＮＩＸ",
    }
    queries = {"q-ko": "대한민국 수도", "q-th": "ไทย", "q-file": "unix file", "q-none": "ж"}
    collection = small_collection(tmp_path, docs, queries, [("q-ko", "ko", 1)])
    found = by_ids(collection, bm25_lists(collection, np.arange(4), 1))
    assert {query: [*docs] for query, docs in found.items()} == {f"q-{id_}": [id_] for id_ in docs}


@pytest.mark.parametrize("between", ["，", "。", "・", "゠", "(", " ", "\n", "1", "　"])
def test_characters_with_something_between_them_are_no_pair(between):
    single = ["头", "痛", *re.findall(r"\w", between), "药", "片"]
    assert terms(f"头痛{between}药片") == [*single, "头痛", "药片"]


@pytest.fixture
def collection(tmp_path):
    docs = {"a": "cat cat mat", "b": "cat dog", "c": "bird", "d": "cat dog"}
    queries = {"q1": "Cat mat?", "q2": "zebra"}
    return small_collection(tmp_path, docs, queries, [("q1", "a", 1), ("q2", "c", 1)])


def test_scores_by_the_formula(collection):
    """Lucene's BM25: idf = log(1 + (N - df + 0.5) / (df + 0.5)), weight idf * tf / (tf + k1 (1 - b
    + b len / mean len)); mean length 2."""

    def weight(tf, df, length):
        return math.log(1 + (4 - df + 0.5) / (df + 0.5)) * tf / (tf + K1 * (1 - B + B * length / 2))

    lists = bm25_lists(collection, np.array([0, 1]), depth=10)
    docs, scores = lists.of(0)
    ids = [collection.corpus.ids[doc] for doc in docs]
    assert ids == ["a", "d", "b"], "of equal scores the later id first"
    expected = [weight(2, 3, 3) + weight(1, 1, 3), weight(1, 3, 2), weight(1, 3, 2)]
    assert scores.tolist() == pytest.approx(expected, rel=1e-5)
    assert lists.of(1)[0].tolist() == [], "no term in common, no candidate"
    assert len(bm25_lists(collection, np.array([0]), depth=2).of(0)[0]) == 2


def test_terms_of_ascii_are_those_of_any_text():
    """Of ASCII text the terms are found in another way; a term of no ASCII letter, added in front,
    makes it take the general one.
    """
    drawn = random.Random(0)
    alphabet = [chr(place) for place in range(128)] + [*"ABCabcÄéßİK١"]
    for _ in range(500):
        text = "".join(drawn.choices(alphabet, k=30))
        assert ["ж", *terms(text)] == terms(f"ж {text}")


def random_collection(folder: Path, seed: int, n_docs: int = 60) -> Collection:
    """Short documents of few words, so that scores are tied; one has no term at all."""
    drawn = random.Random(seed)
    words = [*"abcdefgh", "头痛", "药", "long-word", "longer_words", "longer_wordy"]
    shares = [1 / rank for rank in range(1, len(words) + 1)]
    docs = [" ".join(drawn.choices(words, shares, k=drawn.randint(1, 9))) for _ in range(n_docs)]
    queries = [" ".join(drawn.choices(words, k=drawn.randint(1, 5))) for _ in range(20)]
    tables = [
        {f"{number:03d}": text for number, text in enumerate(texts)}
        for texts in ([*docs, "!?"], [*queries, "zebra", "?"])
    ]
    return small_collection(folder, *tables, [("000", "000", 1)])


def lists_of_bm25s(collection: Collection, query_row: int, depth: int):
    """Documents and scores of a query by one index of bm25s over the whole corpus."""
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index([terms(text) for text in collection.corpus.texts], show_progress=False)
    words = terms(collection.queries.texts[query_row])
    known = [word for word in words if word in index.vocab_dict]
    if not known:
        return [], []
    scores = index.get_scores(known)
    best = [row for row in range(len(scores)) if scores[row] > 0]
    best.sort(key=lambda row: (-scores[row], -row))
    return best[:depth], scores[best[:depth]].tolist()


@pytest.mark.parametrize("seed, n_bytes", [(0, 60), (1, 300), (2, 1 << 26)])
def test_blocks_of_any_size_find_what_one_index_of_bm25s_finds(
    seed, n_bytes, tmp_path, monkeypatch
):
    """The same documents in the same order, and the same scores, bit by bit: idf and mean length are
    those of the whole corpus in each block.
    """
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bm25, "BYTES_AT_ONCE", n_bytes)
    monkeypatch.setattr(bm25, "TEXTS_AT_ONCE", 7)
    collection = random_collection(tmp_path / "data", seed)
    rows = np.arange(len(collection.queries))
    for depth in (1, 7, 1000):
        lists = bm25_lists(collection, rows, depth)
        for row in rows.tolist():
            docs, scores = lists.of(row)
            expected = lists_of_bm25s(collection, row, depth)
            assert (docs.tolist(), scores.tolist()) == expected


@pytest.mark.parametrize("n_bytes", [1, 50, 1 << 26])
def test_spans_of_texts_have_every_row_once(n_bytes, tmp_path):
    texts = random_collection(tmp_path / "data", seed=0).corpus.texts
    blocks = texts.spans_of_bytes(n_bytes)
    assert blocks[0].start == 0 and blocks[-1].stop == len(texts)
    assert all(first.stop == second.start for first, second in pairwise(blocks))
    for block in blocks:
        sizes = [len(texts[row].encode()) for row in range(block.start, block.stop)]
        assert sizes and sum(sizes[:-1]) <= n_bytes


def test_a_corpus_without_any_term_is_searched(tmp_path):
    collection = random_collection(tmp_path / "data", seed=0, n_docs=0)
    lists = bm25_lists(collection, np.arange(5), depth=3)
    assert len(lists.query_rows) == len(lists.doc_rows) == 0 and lists.offsets.tolist() == [0]
    assert len(bm25_lists(collection, np.arange(0), depth=3).query_rows) == 0


def test_the_index_is_made_once_for_all_queries_and_named_by_its_corpus(tmp_path, monkeypatch):
    collection = random_collection(tmp_path / "data", seed=3)
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    collection = open_collection(collection.source)
    bm25_lists(collection, np.array([0, 1]), depth=3)
    monkeypatch.setattr(Postings, "write", None)
    assert len(bm25_lists(collection, np.array([2]), depth=5).of(2)[0]) == 5
    lying = Cache()
    (entry,) = [entry for entry in lying.entries if entry.kind == "bm25-index"]
    assert lying.first_origins(entry)[0].data == (str(tmp_path / "data/corpus.jsonl"),)


def test_a_kill_loses_the_block_that_was_begun(tmp_path, monkeypatch):
    collection = random_collection(tmp_path / "data", seed=4)
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bm25, "BYTES_AT_ONCE", 200)
    write = Postings.write
    written = []

    def counted(folder, docs):
        write(folder, docs)
        written.append(folder)

    def killed(folder, docs):
        counted(folder, docs)
        if len(written) == 3:  # before the third has its name
            os.kill(os.getpid(), signal.SIGKILL)

    def until_it_is_killed():
        Postings.write = staticmethod(killed)
        bm25_lists(collection, np.arange(22), depth=5)

    assert os.waitpid(fork(until_it_is_killed), 0)[1] == signal.SIGKILL
    monkeypatch.setattr(Postings, "write", staticmethod(counted))
    lists = bm25_lists(collection, np.arange(22), depth=5)
    n_blocks = len(collection.corpus.texts.spans_of_bytes(200))
    assert n_blocks > 3 and len(written) == n_blocks - 2
    for row in range(22):
        assert lists.of(row)[0].tolist() == lists_of_bm25s(collection, row, 5)[0]


# As bm25s reads them with the same options: its words, but for letters that stand alone.
@pytest.mark.parametrize(
    "stemmer, stop_words, text",
    [
        ("english", "english", "The cats were running to their houses, and I was not!"),
        ("english", None, "The cats were running to their houses"),
        (None, "en_plus", "However, the cats were running for some of their houses"),
        ("german", "german", "Die Häuser stehen für die großen Katzen, und nicht für uns"),
        ("french", "french", "Les chevaux étaient dans les forêts qu'il aimait"),
        ("russian", "russian", "Кошки бежали по всем домам, и это было не для них"),
    ],
)
def test_stems_and_stop_words_are_those_of_bm25s(stemmer, stop_words, text):
    of_bm25s = bm25s.tokenize(
        [text],
        token_pattern=r"\w+",
        stopwords=stop_words or [],
        stemmer=None if stemmer is None else Stemmer.Stemmer(stemmer),
        show_progress=False,
        return_ids=False,
    )
    words = Bm25Words(stemmer, stop_words).reader()(text)
    assert words == of_bm25s[0] and words != terms(text)


def test_stems_and_stop_words_find_what_words_do_not(tmp_path):
    """And what is found by one choice of words is not taken for that of another."""
    docs = {"a": "the cats ran", "b": "the dogs"}
    collection = small_collection(tmp_path, docs, {"q": "the cat"}, [("q", "a", 1)])
    found = {}
    for words in (
        ALL_WORDS,
        Bm25Words("english"),
        Bm25Words(None, "en"),
        Bm25Words("english", "en"),
    ):
        lists = bm25_lists(collection, np.arange(1), 9, words)
        found[words.stemmer, words.stopwords] = by_ids(collection, lists).get("q", {}).keys()
    assert [*found.values()] == [{"a", "b"}, {"a", "b"}, set(), {"a"}]
    assert words_of("the cats ran") == ["the", "cats", "ran"], (
        "ltr check compares words as they are"
    )


def test_other_languages_are_refused_with_a_list(monkeypatch):
    with refused("bm25.stopwords must be one of chinese, danish, .*, en, .*, english, got 'latin'"):
        Bm25Words(stopwords="latin")
    with refused("bm25.stemmer must be one of .*, english, .*, got 'chinese'"):
        Bm25Words("chinese")
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with refused("a stemmer needs another package: pip install PyStemmer"):
        Bm25Words("english")


def test_postings_are_mapped_for_reading_and_only_those_of_the_terms_are_read(tmp_path):
    """By hand: x stands in documents 0 (twice) and 2, y in 0, z in 1. Damage to the postings of y
    does not change the scores of x.
    """
    Postings.write(tmp_path, [["x", "y", "x"], ["z"], ["x"]])
    postings = Postings(tmp_path)
    assert postings.numbers_of(["x", "none", "z", "y"]).tolist() == [0, -1, 2, 1]
    assert postings.n_docs_with(np.array([0, -1, 2])).tolist() == [2, 0, 1]
    assert postings.docs.tolist() == [0, 2, 0, 1] and postings.counts.tolist() == [2, 1, 1, 1]
    assert postings.lengths.tolist() == [3, 1, 1] and postings.starts.tolist() == [0, 2, 3, 4]
    assert postings.docs.dtype == np.int32 and postings.counts.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        postings.docs[0] = 1

    idf = np.array([0.5], dtype=np.float32)
    scores = bm25._engine(postings, np.array([0]), idf, 5 / 3).get_scores_from_ids([0])
    damaged = np.load(tmp_path / "docs.npy")
    damaged[2] = 10**9
    np.save(tmp_path / "docs.npy", damaged)
    again = bm25._engine(Postings(tmp_path), np.array([0]), idf, 5 / 3).get_scores_from_ids([0])
    assert again.tolist() == scores.tolist() and scores[0] > scores[2] > scores[1] == 0


@pytest.mark.long
def test_jax_is_not_imported_as_it_would_take_most_of_a_gpu(tmp_path):
    """bm25s imports it where it is installed, and runs an operation: the GPU is then short of memory
    for everything else. A jax that says so when it is imported stands for it.
    """
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("print('jax is imported')")
    (tmp_path / "jax/lax.py").write_text("def top_k(scores, k): print('the GPU is taken')")

    def prints(code: str) -> str:
        process = start(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}")
        output, _ = process.communicate()
        assert process.returncode == 0
        return output

    assert "the GPU is taken" in prints("import bm25s"), "there is something to avoid"
    # The user's own is as it was, imported after or before.
    assert prints("import ltr.data.bm25; print('now'); import jax") == "now\njax is imported\n"
    assert prints("import jax, ltr.data.bm25, sys; assert sys.modules['jax'] is jax") == (
        "jax is imported\n"
    )
