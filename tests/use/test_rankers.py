"""A loaded ranker gives the scores that it was tested with, whichever way it is asked."""

import numpy as np
import pandas as pd
import pytest
import torch

import ltr
from ltr.data.letor import read_letor
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.rankers import RankedDocument, TextRanker
from ltr.use.retriever import Retriever
from tests.use.loaded import texts_of_run


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_scores_are_those_that_test_wrote(runs, kind, collection_folder):
    pairs, expected = texts_of_run(runs[kind], collection_folder)
    ranker = ltr.load(runs[kind])
    assert isinstance(ranker, Retriever) == (kind == "dual")
    assert len(pairs) == 240 and np.ptp(expected) > 0.1
    assert ranker.score(pairs) == pytest.approx(expected, abs=1e-5)
    in_order_given = pytest.approx(expected[::-1], abs=1e-5)
    assert ranker.score(pairs[::-1]) == in_order_given


def test_a_ranking_is_best_first_and_keeps_the_order_of_equals(backbone):
    ranker = TextRanker(PairWiseBertRanker(backbone, max_length=20))
    documents = ["w1 w2", "w9", "w1 w2", "w3 w4 w5"]
    scores = ranker.score([("w1", text) for text in documents])
    found = ranker.rank("w1", documents)
    assert [one.place for one in found] == sorted(range(4), key=lambda at: (-scores[at], at))
    assert [one.score for one in found] == sorted(scores.tolist(), reverse=True)
    places = [one.place for one in found]
    assert places.index(0) + 1 == places.index(2), "equal texts stay in their order"
    for one in found:
        assert one == RankedDocument(one.place, one.score, documents[one.place], str(one.place))
    assert ranker.rank("w1", documents, k=2) == found[:2]
    assert ranker.rank("w1", []) == []


def test_texts_are_taken_by_position(backbone):
    """The labels of a Series, which sorting and filtering leave in another order, count for
    nothing; texts that can be read only once are read once.
    """
    column = pd.Series(["w1 w2", "w3", "w9 w9", "w4"]).sort_values(ascending=False)[:3]
    texts = list(column)
    assert column.index.tolist() == [2, 3, 1]
    cross = TextRanker(PairWiseBertRanker(backbone, max_length=20))
    assert cross.rank("w1", column) == cross.rank("w1", texts)
    assert cross.rank("w1", (text for text in texts)) == cross.rank("w1", texts)
    dual = Retriever(DualEncoder(backbone, max_length=16))
    for given in (column, column.to_numpy(), tuple(texts), iter(texts)):
        assert np.array_equal(dual.encode(given), dual.encode(texts))
    assert dual.corpus(column).search("w1", k=3) == dual.corpus(texts).search("w1", k=3)
    with pytest.raises(InputError, match="documents must be a list .*, got a dict"):
        dual.corpus({"7": "w1"})


def test_pairs_are_joined_as_the_tokenizer_joins_them(backbone):
    """Against padded inputs from the tokenizer itself, in one batch of transformers."""
    model = PairWiseBertRanker(backbone, max_length=12)
    pairs = [("w1 w2", "w3 " * 30), ("w5", ""), ("w1 w2 w3 w4 w5 w6", "w7 w8 w9 w10 w11 w12 w13")]
    options = {"truncation": "only_second", "max_length": 12, "padding": True}
    inputs = model.tokenizer(*zip(*pairs, strict=True), **options, return_tensors="pt")
    with torch.no_grad():
        expected, _ = model.eval()(inputs, None)
    assert TextRanker(model).score(pairs) == pytest.approx(expected.numpy(), abs=1e-6)


def test_a_dual_encoder_embeds_each_side_in_its_form(backbone):
    options = {"query_prompt": "w50 ", "similarity": "dot", "temperature": 0.5}
    model = DualEncoder(backbone, max_length=10, **options)
    ranker = Retriever(model)
    queries = ranker.encode(["w1", "w2 w3"], "query")
    documents = ranker.encode(["w1", "w4", "w5 w6"])
    assert queries.dtype == np.float32 and queries.shape == (2, model.dim)
    assert not np.allclose(queries[0], documents[0]), "the prompt stands before queries alone"
    pairs = [(q, d) for q in ("w1", "w2 w3") for d in ("w1", "w4", "w5 w6")]
    assert ranker.score(pairs) == pytest.approx((queries @ documents.T).ravel() / 0.5, abs=1e-5)
    assert ranker.encode([]).shape == (0, model.dim)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "steps",
    [
        '["z-score", "min-max"]',
        pytest.param("[]", marks=LONG),
        pytest.param('["quantile"]', marks=LONG),
    ],
)
def test_feature_rankers_score_what_the_files_hold(tmp_path, letor_folder, copied_run, steps):
    """Features are given as in the file, and normalised as in training."""
    options = ["--model.ranker.preset", "list_attention", "--data.batch_size", "4"]
    run = copied_run(tmp_path, "features", *options, "--data.normalise", steps)
    expected = {(query, doc): score for _, (query, doc, score) in read_run(run / "test.run")}
    scorer = ltr.load(run)
    split = read_letor([letor_folder / "test.txt"], 1)
    for number, query in enumerate(split.query_ids):
        rows = slice(split.offsets[number], split.offsets[number + 1])
        wanted = [expected[query, split.doc_ids[row]] for row in range(rows.start, rows.stop)]
        assert scorer.score(split.features[rows]) == pytest.approx(wanted, abs=1e-5)
    assert scorer.score(np.empty((0, 5))).shape == (0,)
    narrow = np.ones((2, 3))
    assert np.array_equal(scorer.score(narrow), scorer.score(np.pad(narrow, ((0, 0), (0, 2)))))


def test_bad_features(tmp_path, copied_run):
    scorer = ltr.load(copied_run(tmp_path, "features"))
    for features, said in (
        ([1.0, 2.0], "at most 5 features"),
        (np.ones((1, 6)), "at most 5"),
        ([[1, np.nan]], "finite"),
    ):
        with pytest.raises(InputError, match=said):
            scorer.score(features)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda one: one.score(["w1", "w2"]), "got 'w1' at 0"),
        (lambda one: one.score([("w1", "w2"), ("w1", None)]), r"got \('w1', None\) at 1"),
        (lambda one: one.rank("w1", "w2 w3"), "one string"),
        (lambda one: one.rank("w1", {"w2", "w3"}), "documents must be a list .*, got a set"),
        (lambda one: one.rank("w1", {"7": "w2"}), "documents must be a list .*, got a dict"),
        (lambda one: one.rank("w1", None), "documents must be a list .*, got a NoneType"),
        (lambda one: one.rank("w1", ["w2", 3]), "documents must be strings, got 3 at 1"),
        (lambda one: one.rank("w1", ["w2"], k=0), "k must be at least 1"),
        (lambda one: one.rank("", ["w2"]), "query must be a text that is not blank, got ''"),
        (lambda one: one.rank(" \n", ["w2"]), "query must be a text that is not blank"),
        (lambda one: one.rank(None, ["w2"]), "query must be a text that is not blank, got None"),
        (lambda one: one.rank("w1", ["w2 \0"]), "text must not hold NUL, got one after 3"),
        (lambda one: one.rank("w\udcff", ["w2"]), "valid Unicode, got half a surrogate pair"),
    ],
)
def test_bad_texts(backbone, call, said):
    with pytest.raises(InputError, match=said):
        call(TextRanker(PairWiseBertRanker(backbone, max_length=20)))


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_scores_that_are_no_numbers(backbone, kind):
    """As those of an overflow in half precision."""
    model = kind(backbone, max_length=20)
    ranker = Retriever(model) if kind is DualEncoder else TextRanker(model)
    next(model.parameters()).data.fill_(float("nan"))
    said = "scores must be finite numbers, got nan; the ranker has diverged"
    with pytest.raises(InputError, match=said):
        ranker.score([("w1", "w2")])


def test_infinite_scores(backbone):
    model = PairWiseBertRanker(backbone, max_length=20)
    model.head.bias.data.fill_(float("-inf"))
    with pytest.raises(InputError, match="scores must be finite numbers, got -inf"):
        TextRanker(model).score([("w1", "w2")])
