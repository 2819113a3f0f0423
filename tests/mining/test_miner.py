"""Mined negatives against brute force over all documents."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.mining.filters import Recipe
from ltr.mining.judge import TextScorer
from ltr.mining.miner import Miner
from ltr.mining.refresh_report import summary_lines
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.search import exact, shards
from ltr.search.encoding_places import TemporaryEncodings
from tests.world.collections import write_collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Twins: the text of the relevant document of train-q0 stands in the corpus again, under
    another id.
    """
    folder = write_collection(tmp_path_factory.mktemp("mining") / "c", n_queries=12)
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    twin = next(json.loads(line) for line in lines if json.loads(line)["_id"] == "train-q0-d0") | {
        "_id": "twin"
    }
    (folder / "corpus.jsonl").write_text("\n".join([*lines, json.dumps(twin)]) + "\n")
    return open_collection(str(folder))


def embeddings(model, collection):
    """Of all queries and of all documents, one text at a time, as numpy [n, H]."""
    found = []
    for tower, form, table in zip(
        (model.query_tower, model.doc_tower),
        model.reads,
        (collection.queries, collection.corpus),
        strict=True,
    ):
        store = form.store(table)
        with torch.no_grad():
            found.append(
                np.concatenate(
                    [
                        tower.eval()(form.lay_out(store, np.array([row]))).numpy()
                        for row in range(len(store))
                    ]
                )
            )
    return found


def brute_force(model, collection, judged, recipe):
    """The negatives of each query by rows, hardest first, and their distances, from every score
    there is.
    """
    queries, docs = embeddings(model, collection)
    if model.similarity.name == "cosine":
        queries, docs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, docs))
    texts = [collection.corpus.texts[row] for row in range(len(docs))]
    for query in judged.query_rows:
        distance = np.linalg.norm(docs - queries[query], axis=1)
        score = -distance if model.similarity.name == "euclidean" else docs @ queries[query]
        rows, grades = judged.of(query)
        relevant = rows[grades > 0]
        threshold = score[relevant].min() - (1 - recipe.relative) * abs(score[relevant].min())
        best = np.argsort(-score, kind="stable")[: recipe.depth]
        kept = [
            d
            for d in best
            if texts[d] not in {texts[r] for r in relevant} and score[d] <= threshold
        ]
        yield kept[: recipe.n], distance[kept[: recipe.n]]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_the_negatives_are_those_of_brute_force(collection, backbone, tmp_path, similarity):
    model = DualEncoder(backbone, max_length=24, similarity=similarity)
    judged = collection.judgements("train")
    recipe = Recipe(depth=40, n=6, relative=1.0)
    mined = Miner(model, collection, judged, recipe).mine(TemporaryEncodings(tmp_path))
    n_found = 0
    for query, (rows, distances) in zip(
        judged.query_rows, brute_force(model, collection, judged, recipe), strict=True
    ):
        mined_rows, mined_distances = mined.lists.of(query)
        if len(rows):  # else one random document, see below
            assert mined_rows.tolist() == rows
            np.testing.assert_allclose(mined_distances, distances, rtol=1e-4, atol=1e-5)
        n_found += len(rows)
    assert n_found > 4 and mined.manifest["counts"]["chosen"] == n_found
    assert np.isin(mined.lists.query_rows, judged.query_rows).all()
    assert not list(tmp_path.iterdir()), "the embeddings are gone"


def test_a_text_of_a_relevant_document_is_no_negative_under_another_id(
    collection, backbone, tmp_path
):
    model = DualEncoder(backbone, max_length=24)
    mined = Miner(
        model, collection, collection.judgements("train"), Recipe(depth=500, n=500, relative=None)
    ).mine(TemporaryEncodings(tmp_path))
    query = collection.queries.row("train-q0")
    twin = collection.corpus.row("twin")
    relevant = collection.corpus.row("train-q0-d0")
    mined_rows, _ = mined.lists.of(query)
    assert twin not in mined_rows and relevant not in mined_rows
    assert len(mined_rows) == len(collection.corpus) - 2
    assert twin in mined.lists.of(collection.queries.row("train-q1"))[0]


def test_a_text_is_not_its_own_negative_where_queries_are_documents(collection, backbone, tmp_path):
    """Row 7 is at distance 0 from itself: it would be the hardest negative, or a random one."""
    model = DualEncoder(backbone, max_length=24)
    twice = collection._replace(queries=collection.corpus)
    judged = QueryLists.from_rows([7, 9], [8, 10], [1.0, 1.0])
    for recipe in (Recipe(depth=20, n=20, relative=None), Recipe(depth=20, n=20, max_score=-2.0)):
        mined = Miner(model, twice, judged, recipe, min_negatives=len(twice.corpus)).mine(
            TemporaryEncodings(tmp_path)
        )
        for query_row, relevant in ((7, 8), (9, 10)):
            ids, _ = mined.lists.of(query_row)
            assert len(ids) > 20 and not np.isin([query_row, relevant], ids).any()


def test_a_query_with_too_few_gets_random_documents(collection, backbone, tmp_path):
    model = DualEncoder(backbone, max_length=24)
    judged = collection.judgements("train")
    mined = Miner(
        model, collection, judged, Recipe(depth=3, n=2, max_score=-2.0), min_negatives=4
    ).mine(TemporaryEncodings(tmp_path))
    counts = mined.manifest["counts"]
    assert counts["chosen"] == 0 and counts["short"] == 12 and counts["random"] == 48
    _, docs = embeddings(model, collection)
    queries = embeddings(model, collection)[0]
    for query in judged.query_rows:
        rows, distances = mined.lists.of(query)
        assert len(set(rows)) == 4 and not set(rows) & set(judged.of(query)[0][:1])
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (docs[rows], queries[query])]
        np.testing.assert_allclose(distances, np.linalg.norm(unit[0] - unit[1], axis=1), rtol=1e-4)


@pytest.mark.parametrize("min_negatives", [1, 2, 3])
def test_a_query_gets_whatever_documents_are_left(collection, backbone, tmp_path, min_negatives):
    """All documents but two are relevant, and none is near enough: few draws would hit the two."""
    docs = np.arange(len(collection.corpus))
    left = {0: [3, 50], 1: [8, 9]}
    rows = [(q, doc) for q, others in left.items() for doc in np.setdiff1d(docs, others)]
    judged = QueryLists.from_rows(*zip(*rows, strict=True), [1.0] * len(rows))
    recipe = Recipe(depth=3, n=1, max_score=-2.0)
    miner = Miner(DualEncoder(backbone, max_length=24), collection, judged, recipe, min_negatives)
    mined = miner.mine(TemporaryEncodings(tmp_path))
    for q, others in left.items():
        filled = mined.lists.of(q)[0].tolist()
        assert len(filled) == min(min_negatives, 2) and set(filled) <= set(others)
    assert mined.manifest["counts"]["random"] == 2 * min(min_negatives, 2)


def test_a_judge_leaves_out_what_it_scores_above_the_relevant_document(
    collection, backbone, tmp_path
):
    torch.manual_seed(1)
    model = DualEncoder(backbone, max_length=24)
    ranker = PairWiseBertRanker(backbone, max_length=32)
    judged = collection.judgements("train")
    recipe = Recipe(depth=20, n=5, relative=None)
    judge = TextScorer("a cross-encoder", ranker, collection)
    without = Miner(model, collection, judged, recipe).mine(TemporaryEncodings(tmp_path))
    mined = Miner(model, collection, judged, recipe, judge=judge).mine(TemporaryEncodings(tmp_path))
    queries = ranker.reads.store(collection.queries, "query")
    docs = ranker.reads.store(collection.corpus, "document")
    n_out = 0
    for query in judged.query_rows:
        rows, grades = judged.of(query)
        candidates = np.concatenate([rows[grades > 0], without.lists.of(query)[0]])
        with torch.no_grad():
            scores = (
                ranker.eval()
                .score(
                    ranker.reads.lay_out(queries, np.full(len(candidates), query), docs, candidates)
                )
                .numpy()
            )
        kept = [
            row
            for row, score in zip(without.lists.of(query)[0], scores[1:], strict=True)
            if score <= scores[0]
        ]
        mined_rows, _ = mined.lists.of(query)
        assert mined_rows.tolist() == (kept or mined_rows[:1].tolist())
        n_out += 5 - len(kept)
    assert mined.manifest["counts"]["judge"] == n_out > 0


def test_what_the_judge_suspects_does_not_come_back_at_random(collection, backbone, tmp_path):
    """All 40 documents found are suspected, and all others together are wanted."""
    model = DualEncoder(backbone, max_length=24)
    judge = TextScorer("a judge", PairWiseBertRanker(backbone, max_length=32), collection)
    judged = collection.judgements("train")
    recipe = Recipe(depth=40, n=40, relative=None, judge_margin=1000.0)
    found = Miner(model, collection, judged, recipe).mine(TemporaryEncodings(tmp_path))
    mined = Miner(model, collection, judged, recipe, min_negatives=100, judge=judge).mine(
        TemporaryEncodings(tmp_path)
    )
    assert mined.manifest["counts"]["chosen"] == 0 < mined.manifest["counts"]["random"]
    for query in judged.query_rows:
        suspects, _ = found.lists.of(query)
        assert not np.isin(suspects, mined.lists.of(query)[0]).any()


def test_a_rescorer_ranks_what_the_filters_leave_of_all_that_was_found(
    collection, backbone, tmp_path
):
    """Of 20 documents found, all but the miner's best two; of these the 5 best of the
    cross-encoder.
    """
    torch.manual_seed(1)
    model = DualEncoder(backbone, max_length=24)
    ranker = PairWiseBertRanker(backbone, max_length=32)
    judged = collection.judgements("train")
    recipe = Recipe(depth=20, n=5, relative=None, skip_top=2)
    assert ranker.training
    mined = Miner(
        model,
        collection,
        judged,
        recipe,
        rescorer=TextScorer("a cross-encoder", ranker, collection),
    ).mine(TemporaryEncodings(tmp_path))
    assert ranker.training and ranker.encoder.model.training, "it goes on training, with dropout"
    every = Miner(model, collection, judged, replace(recipe, n=20)).mine(
        TemporaryEncodings(tmp_path)
    )
    queries = ranker.reads.store(collection.queries, "query")
    docs = ranker.reads.store(collection.corpus, "document")
    n_moved = 0
    for query in judged.query_rows:
        left, distances = every.lists.of(query)
        with torch.no_grad():
            scores = (
                ranker.eval()
                .score(ranker.reads.lay_out(queries, np.full(len(left), query), docs, left))
                .numpy()
            )
        expected = left[np.argsort(-scores, kind="stable")][:5]
        mined_rows, mined_distances = mined.lists.of(query)
        assert mined_rows[: len(expected)].tolist() == expected.tolist()
        places = [left.tolist().index(row) for row in expected]
        np.testing.assert_allclose(mined_distances[: len(expected)], distances[places], rtol=1e-5)
        n_moved += expected.tolist() != left[:5].tolist()
    assert (
        n_moved > 6
        and mined.manifest["rescorer"] == "a cross-encoder"
        and every.manifest["rescorer"] is None
    )
    counts = mined.manifest["counts"]
    assert counts["found"] == 12 * 20, "what the search has found, not what the filters leave"
    assert next(line for line in summary_lines(mined.manifest) if "found" in line).startswith(
        f"  of 240 found, left out: relevant {counts['relevant']}, skip_top {counts['skip_top']}; "
    )


def test_the_key_tells_all_that_decides(collection, backbone):
    model = DualEncoder(backbone, max_length=24)
    judged = collection.judgements("train")
    miner = Miner(model, collection, judged)
    keys = {miner.key, Miner(model, collection, judged).key}
    assert len(keys) == 1
    scorer = TextScorer("one", PairWiseBertRanker(backbone, max_length=24), collection)
    keys |= {
        Miner(model, collection, judged, judge=scorer).key,
        Miner(model, collection, judged, rescorer=scorer).key,
    }
    keys |= {
        Miner(model, collection, judged, Recipe(n=29)).key,
        Miner(model, collection, judged, seed=(0, 1)).key,
    }
    keys |= {
        Miner(model, collection, collection.judgements("dev")).key,
        Miner(model, collection, judged, min_negatives=2).key,
    }
    for options in (
        {"max_length": 23},
        {"similarity": "dot"},
        {"normalise": True},
        {"query_prompt": "w1 "},
    ):
        keys |= {
            Miner(DualEncoder(backbone, **{"max_length": 24} | options), collection, judged).key
        }
    keys |= {
        Miner(
            DualEncoder(backbone, max_length=24, encoder=TextEncoder.Options(pooling="cls")),
            collection,
            judged,
        ).key
    }
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    assert len(keys | {miner.key}) == 13


def test_an_approximate_index_says_what_it_finds(collection, backbone, tmp_path):
    model = DualEncoder(backbone, max_length=24)
    judged = collection.judgements("train")
    exact = Miner(model, collection, judged, Recipe(depth=10, relative=None)).mine(
        TemporaryEncodings(tmp_path)
    )
    rough = Miner(
        model, collection, judged, Recipe(depth=10, relative=None, index="IVF8,Flat")
    ).mine(TemporaryEncodings(tmp_path))
    assert exact.manifest["recall"] == 1.0 and 0.2 < rough.manifest["recall"] < 1.0
    with pytest.raises(InputError, match="faiss can build"):
        Miner(model, collection, judged, Recipe(index="IVF8,Falt")).mine(
            TemporaryEncodings(tmp_path)
        )


def test_a_corpus_that_is_relevant_as_a_whole_has_no_negatives(backbone, tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=1, n_docs=2)
    qrels = folder / "qrels/train.tsv"
    docs = [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    qrels.write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"train-q0\t{doc}\t1\n" for doc in docs)
    )
    one = open_collection(str(folder))
    with pytest.raises(
        InputError,
        match="no query has a document to rank below its relevant ones; nothing can be mined",
    ):
        Miner(DualEncoder(backbone, max_length=24), one, one.judgements("train")).mine(
            TemporaryEncodings(tmp_path)
        )


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "softmax", "n": 3},
        {"sampling": "uniform", "n": 3, "skip_top": 2},
        {"n": 4, "relative": 0.9, "judge": True},
        {"n": 4, "rescorer": True},
    ],
    ids=["softmax", "uniform", "judge", "rescorer"],
)
def test_queries_in_blocks_of_any_size_get_the_same_negatives(
    collection, backbone, tmp_path, monkeypatch, options
):
    """Bit by bit, with tiles of one query, which are the same in every block. Some are filled up at
    random: 24 are wanted of at most 20.
    """
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 1)
    torch.manual_seed(0)
    model = DualEncoder(backbone, max_length=24)
    scorer = TextScorer("a judge", PairWiseBertRanker(backbone, max_length=32), collection)
    recipe = dict(options)
    scorers = {name: scorer for name in ("judge", "rescorer") if recipe.pop(name, False)}
    mined = []
    for queries_of_block in (1, 2, 5, 100):
        monkeypatch.setattr(shards, "FOUND_AT_ONCE", 20 * queries_of_block)
        miner = Miner(
            model,
            collection,
            collection.judgements("train"),
            Recipe(depth=20, **recipe),
            min_negatives=24,
            **scorers,
        )
        mined.append(miner.mine(TemporaryEncodings(tmp_path)))
    *in_blocks, whole = mined
    assert whole.manifest["counts"]["random"] > 0
    for negatives in in_blocks:
        if scorers:  # whose scores may differ in the last bit, by what is in a batch
            for query in whole.lists.query_rows:
                ours, theirs = (np.sort(each.lists.of(query)[0]) for each in (negatives, whole))
                assert np.array_equal(ours, theirs)
        else:
            for array, array_of_whole in zip(negatives.lists, whole.lists, strict=True):
                np.testing.assert_array_equal(array, array_of_whole)
        for name in ("counts", "recall"):
            assert negatives.manifest[name] == whole.manifest[name]
