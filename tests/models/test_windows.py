"""Rankers that read long documents in windows: against the same rankers over each window by itself."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ltr.data.collate import PairCollator, TextCollator
from ltr.data.layouts import JoinedPairs
from ltr.data.query_lists import LabelledList
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries, OwnLists
from ltr.margins import FromDistance
from ltr.mining.miner import _digest_of_scorer
from ltr.models import DecoderRanker, DualEncoder, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.pair_ranker import PairRanker
from ltr.search.scores import pair_scores
from ltr.use.rankers import TextRanker
from ltr.use.retriever import Retriever
from tests.world.backbones import make_classifier, wordpiece_tokenizer
from tests.world.collections import WORDS
from tests.world.encoders import gradients

SIZE, STRIDE = 6, 4
QUERIES = ["w1 w2", "w50 w3 w9"]
# Words are tokens. Of 6, 7, 20, 1 and 14 tokens: 1, 2, 5, 1 and 3 windows.
LENGTHS = [6, 7, 20, 1, 14]
DOCS = [" ".join(np.random.default_rng(n).permutation(WORDS)[:n]) for n in LENGTHS]
LISTS = [[0, 1, 2], [2, 4]]  # of each query: its documents
BEST = Windows(SIZE, STRIDE)
MEAN = Windows(SIZE, STRIDE, "mean")


def windows_of(document: str) -> list[str]:
    """By hand: words 0 to 5, 4 to 9 and so on, up to the first window that ends the document."""
    words = document.split()
    windows = []
    for first in range(0, len(words), STRIDE):
        windows.append(" ".join(words[first : first + SIZE]))
        if first + SIZE >= len(words):
            break
    return windows


def batch_of(ranker, lists=LISTS, first_query=0):
    queries = ranker.reads.tokens(QUERIES, "query")
    docs = ranker.reads.tokens(DOCS, "document")
    collator = PairCollator if isinstance(ranker.reads, JoinedPairs) else TextCollator
    return collator(queries, docs, ranker.reads)(
        [
            LabelledList(query, np.array(rows), np.eye(len(rows), dtype=np.float32)[0])
            for query, rows in enumerate(lists, start=first_query)
        ]
    )


def cross(backbone, windows=None, **options):
    """The same weights every time."""
    torch.manual_seed(1)
    options = {"encoder": TextEncoder.Options(dropout="none"), "dropout": 0.0} | options
    return PairWiseBertRanker(backbone, 24, windows=windows, **options)


def dual(backbone, windows=None, similarity="dot", **options):
    torch.manual_seed(1)
    options = {"encoder": TextEncoder.Options(dropout="none")} | options
    return DualEncoder(backbone, max_length=24, similarity=similarity, windows=windows, **options)


def scores_of_windows(plain, lists=LISTS) -> list[list[list[float]]]:
    """Of each list, document and window, by a ranker that knows no windows."""
    score = TextRanker(plain).score

    def of_document(query, doc):
        return score([(QUERIES[query], text) for text in windows_of(DOCS[doc])]).tolist()

    return [[of_document(query, doc) for doc in docs] for query, docs in enumerate(lists)]


def assert_scored_by(reduce, scores, plain, tolerance=1e-4):
    """Each document of the lists by the windows of it; the one of the padding is 0."""
    for row, of_list in zip(scores.tolist(), scores_of_windows(plain), strict=True):
        expected = [reduce(of_doc) for of_doc in of_list]
        assert row[: len(expected)] == pytest.approx(expected, abs=tolerance)
        assert not any(row[len(expected) :])


def best_windows(plain) -> list[str]:
    """Of each document of the lists; some are not the first of theirs."""
    best = []
    for docs, of_list in zip(LISTS, scores_of_windows(plain), strict=True):
        for doc, of_doc in zip(docs, of_list, strict=True):
            best.append(windows_of(DOCS[doc])[int(np.argmax(of_doc))])
    assert {*best} - {windows_of(text)[0] for text in DOCS}
    return best


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> str:
    """A cross-encoder with a head of its own."""
    return make_classifier(tmp_path_factory.mktemp("windows") / "classifier", n_layers=2, seed=2)


class HighestId(nn.Module):
    """An encoder of one dimension: the highest token id of a text."""

    pooling = "max"

    def forward(self, texts):
        ids = texts.ids.split(texts.lengths.tolist())
        return torch.stack([each.max() for each in ids]).float().unsqueeze(1)


@pytest.mark.parametrize(("score", "expected"), [("best", 45.0), ("mean", (20 + 45 + 30) / 3)])
def test_a_score_by_hand(score, expected):
    """A word's id is its number + 6; the highest of three windows of two words: 20, 45, 30."""
    tokenizer = wordpiece_tokenizer()
    head = nn.Linear(1, 1)
    nn.init.ones_(head.weight)
    nn.init.zeros_(head.bias)
    reads = JoinedPairs(tokenizer, 8, windows=Windows(2, 2, score))
    ranker = PairRanker(HighestId(), reads, head, 0.0, {})
    document = " ".join(f"w{id_ - 6}" for id_ in (20, 7, 45, 9, 30))
    queries, docs = reads.tokens(["w0"], "query"), reads.tokens([document], "document")
    scores = pair_scores(ranker, queries, docs, np.array([0]), np.array([0]))
    assert scores.tolist() == pytest.approx([expected])


@pytest.mark.parametrize("windows", [BEST, MEAN], ids=["best", "mean"])
@pytest.mark.parametrize("kind", ["linear head", "own head", "padded", "plain kernels"])
def test_a_cross_encoder_scores_a_document_by_its_windows(backbone, classifier, windows, kind):
    name = classifier if kind == "own head" else backbone
    options = {}
    if kind == "plain kernels":
        options["encoder"] = TextEncoder.Options(dropout="none", kernels="plain")
    plain, ranker = cross(name, **options), cross(name, windows, **options)
    if kind == "padded":
        assert ranker.encoder.reads_packed
        ranker.encoder.reads_packed = False
    batch = batch_of(ranker)
    scores = ranker.eval()(batch).detach()
    assert_scored_by(max if windows.score == "best" else np.mean, scores, plain, 1e-5)
    assert batch.pairs.windows.tolist() == [1, 2, 5, 5, 3]
    if ranker.gives_embeddings:
        represented, embeddings = ranker.represent(batch)
        assert torch.equal(represented, scores)
        of_head = ranker.head(embeddings[batch.mask]).squeeze(1)
        torch.testing.assert_close(of_head, scores[batch.mask])


@pytest.mark.parametrize("windows", [BEST, MEAN], ids=["best", "mean"])
def test_documents_of_one_window_train_bit_by_bit_as_without(backbone, windows):
    """With dropout, whose draws are the list's own."""
    options = {"encoder": TextEncoder.Options(), "dropout": 0.1}
    results = []
    for how in (None, windows):
        ranker = cross(backbone, how, **options)
        batch = batch_of(ranker, [[0, 3], [3]]).with_keys(torch.tensor([5, 6]))
        scores = ranker(batch)
        scores.square().sum().backward()
        results.append([scores, *(p.grad for p in ranker.parameters() if p.grad is not None)])
    assert len(results[0]) > 10
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0])
QUERY_OF_PAIR = np.array([0, 0, 0, 1, 1])


def pair_scores_of(plain, docs):
    """By a cross-encoder or a dual encoder that knows no windows, of a text for each document."""
    rows = np.arange(len(docs))
    queries = plain.reads.tokens(QUERIES, "query")
    docs = plain.reads.tokens(docs, "document")
    if isinstance(plain, PairWiseBertRanker):
        return plain.score(plain.reads.lay_out(queries, QUERY_OF_PAIR, docs, rows))
    queries = plain.query_tower(plain.reads.queries.lay_out(queries, QUERY_OF_PAIR))
    return (queries * plain.doc_tower(plain.reads.docs.lay_out(docs, rows))).sum(dim=1)


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_the_gradient_is_that_of_the_best_windows_alone(backbone, kind):
    build, tolerance = {
        "cross": (cross, {"atol": 1e-6, "rtol": 1e-4}),
        "dual": (dual, {"atol": 1e-5, "rtol": 1e-3}),
    }[kind]
    plain, ranker = build(backbone), build(backbone, BEST)
    (pair_scores_of(plain.train(), best_windows(plain)) * WEIGHTS).sum().backward()
    batch = batch_of(ranker)
    (ranker.train()(batch)[batch.mask] * WEIGHTS).sum().backward()
    for ours, theirs in zip(ranker.parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_training_on_the_chosen_windows_is_training_on_all(backbone, kind, kernels, dtype):
    """With dropout, in which every window has a gradient graph, most of it 0; and under autocast,
    which keeps weights that it has cast.
    """
    options = {"encoder": TextEncoder.Options(kernels=kernels)}
    if kind == "cross":
        options["dropout"] = 0.2
    ranker = (cross if kind == "cross" else dual)(backbone, BEST, **options)
    batch = batch_of(ranker).with_keys(torch.tensor([5, 6]))

    def by_definition():
        """Of all windows, with their graph."""
        if kind == "cross":
            rows = ranker._scores_of_texts(batch.pairs)
            return BEST.document_values(rows, batch.pairs.windows)
        queries, rows = ranker.embed_windows(batch)
        list_of_row = torch.from_numpy(QUERY_OF_PAIR).repeat_interleave(batch.docs.windows)
        scores = ranker.score(queries[list_of_row].unsqueeze(1), rows.unsqueeze(1)).flatten()
        return BEST.document_values(scores, batch.docs.windows)

    results = []
    for scores_of_documents in (by_definition, lambda: ranker(batch)[batch.mask]):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            scores = scores_of_documents()
        results.append((scores.detach(), gradients(ranker, (scores * WEIGHTS).sum())))
    (expected, theirs), (scores, ours) = results
    atol, rtol = (1e-5, 1e-3) if dtype == torch.float32 else (0.02, 0.1)
    torch.testing.assert_close(scores, expected, atol=atol, rtol=rtol)
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name, gradient in ours.items():
        assert (gradient - theirs[name]).norm() <= 1e-4 + rtol * theirs[name].norm(), name


def test_all_windows_of_a_document_are_read_with_one_draw(backbone):
    """A document of equal windows: each then has the same score, under dropout too."""
    ranker = cross(backbone, Windows(2, 2), encoder=TextEncoder.Options(), dropout=0.5)
    queries = ranker.reads.tokens(QUERIES, "query")
    docs = ranker.reads.tokens(["w5 w6 w5 w6 w5 w6", "w5 w6"], "document")
    lists = [LabelledList(0, np.array([0]), np.ones(1, np.float32))]
    batch = PairCollator(queries, docs, ranker.reads)(lists).with_keys(torch.tensor([5]))
    rows = ranker._scores_of(ranker.encoder(batch.pairs), batch.pairs)
    assert len(rows) == 3
    torch.testing.assert_close(rows, rows[:1].expand(3))


@pytest.mark.parametrize("similarity", ["dot", "cosine", "euclidean", "squared_euclidean"])
def test_a_dual_encoder_scores_by_the_best_window(backbone, similarity):
    plain, ranker = dual(backbone, similarity=similarity), dual(backbone, BEST, similarity)
    batch = batch_of(ranker)
    scores, queries, docs = ranker.eval().score_lists(batch)
    assert_scored_by(max, scores, plain)
    again = ranker.score(queries.unsqueeze(1), docs).squeeze(1)
    torch.testing.assert_close(again[batch.mask], scores[batch.mask])
    pairs = [(QUERIES[q], DOCS[doc]) for q, docs in enumerate(LISTS) for doc in docs]
    of_pairs = torch.from_numpy(TextRanker(ranker).score(pairs))
    assert_scored_by(max, batch.in_lists(of_pairs), plain)


@pytest.mark.parametrize("normalise", [False, True])
def test_the_mean_of_dot_products_is_that_with_the_mean_embedding(backbone, normalise):
    """With ``normalise`` these are cosines, of which it is the mean, too."""
    plain, ranker = (dual(backbone, how, normalise=normalise) for how in (None, MEAN))
    scores, _, docs = ranker.eval().score_lists(batch_of(ranker))
    assert_scored_by(np.mean, scores, plain)
    embeddings = Retriever(ranker).encode(DOCS)
    np.testing.assert_allclose(embeddings[LISTS[0]], docs[0].detach(), atol=1e-5)
    by_window = Retriever(plain).encode(windows_of(DOCS[2]))
    np.testing.assert_allclose(embeddings[2], by_window.mean(axis=0), atol=1e-5)
    if normalise:
        assert np.linalg.norm(embeddings[2]) < 0.9999, "the mean is not scaled again"


def test_own_lists_of_a_dual_encoder_have_the_embedding_and_distance_of_the_best_window(backbone):
    ranker = dual(backbone, BEST, "cosine")
    batch = batch_of(ranker)
    lists = OwnLists()(ranker.eval(), batch, FromDistance())
    assert lists.embeddings.shape[:2] == batch.mask.shape
    cosines = 1 - lists.distances.square() / 2  # of vectors of length 1
    torch.testing.assert_close(cosines[batch.mask], lists.scores[batch.mask], atol=1e-4, rtol=0)


def lists_of_others(ranker):
    policy = OtherQueries()
    policy.attach(ranker)
    return policy(ranker, batch_of(ranker, [[0, 1], [2, 4]]))


def test_other_queries_compare_the_mean_embedding(backbone):
    ranker = dual(backbone, MEAN)
    lists = lists_of_others(ranker.eval())
    embeddings = Retriever(ranker).encode(DOCS)
    queries = Retriever(ranker).encode(QUERIES, "query")
    expected = queries @ embeddings[[0, 1, 2, 4]].T
    torch.testing.assert_close(lists.scores.detach(), torch.from_numpy(expected), atol=1e-4, rtol=0)


def test_a_learnt_temperature_is_bounded_beside_documents_of_other_queries(backbone):
    ranker = dual(backbone, BEST, temperature=0.5, learn_temperature=True).train()
    ranker.log_temperature.data.fill_(-9.0)
    lists_of_others(ranker)
    assert ranker.log_temperature.item() == pytest.approx(math.log(0.01))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda name: dual(name, MEAN, "cosine"), "windows.score mean needs the similarity dot"),
        (lambda name: cross(name, Windows(21, 4)), "windows.size must be at most 20, .* got 21"),
        (
            lambda name: Retriever(dual(name, BEST)).encode(DOCS),
            "encode needs one embedding of each document",
        ),
        (
            lambda name: AllTexts().attach(dual(name, BEST)),  # whose anchors are documents
            "needs one embedding of each document, got windows.score",
        ),
    ],
)
def test_what_can_not_be_is_refused(backbone, build, message):
    with pytest.raises(InputError, match=message):
        build(backbone)


def test_queries_are_encoded_and_a_decoder_knows_no_windows(backbone):
    assert Retriever(dual(backbone, BEST)).encode(QUERIES, "query").shape == (2, 16)
    with pytest.raises(TypeError, match="windows"):
        DecoderRanker(backbone, windows=BEST)


def test_windows_are_part_of_the_keys_of_what_is_made_of_scores(backbone):
    for made in (cross, dual):
        rankers = [made(backbone, windows) for windows in (None, BEST, MEAN)]
        assert len({str(ranker.key) for ranker in rankers}) == 3
        assert len({str(_digest_of_scorer(ranker)) for ranker in rankers}) == 3
    forms = [dual(backbone, windows).reads.docs.key for windows in (None, MEAN)]
    assert forms[0] != forms[1]
