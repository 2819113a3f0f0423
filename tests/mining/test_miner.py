"""Mined negatives against brute force over all documents."""

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
from tests.world.collections import write_collection, write_collection_with_twin


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mining") / "c"
    return open_collection(str(write_collection_with_twin(folder, n_queries=12)))


@pytest.fixture(scope="module")
def model(backbone):
    return DualEncoder(backbone, max_length=24)


@pytest.fixture
def ranker(backbone):
    torch.manual_seed(1)
    return PairWiseBertRanker(backbone, max_length=32)


@pytest.fixture
def mine(model, collection, tmp_path):
    """Mine with the model for the training queries, if nothing else is given."""

    def mine(recipe, *, judged=None, by=model, of=collection, **options):
        judged = of.judgements("train") if judged is None else judged
        miner = Miner(by, of, judged, recipe, **options)
        return miner.mine(TemporaryEncodings(tmp_path / "encodings"))

    (tmp_path / "encodings").mkdir()
    return mine


@pytest.fixture(scope="module")
def embeddings(model, collection):
    """Of all queries and of all documents, one text at a time, as numpy [n, H]."""
    found = []
    towers = (model.query_tower, model.doc_tower)
    tables = (collection.queries, collection.corpus)
    for tower, form, table in zip(towers, model.reads, tables, strict=True):
        store = form.store(table)
        rows = np.arange(len(store)).reshape(-1, 1)
        with torch.no_grad():
            alone = [tower.eval()(form.lay_out(store, row)).numpy() for row in rows]
        found.append(np.concatenate(alone))
    return found


def brute_force(embeddings, collection, similarity, judged, recipe):
    """Of each query, hardest first, with distances, from every score there is."""
    queries, docs = embeddings
    if similarity == "cosine":
        queries, docs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in embeddings)
    texts = [collection.corpus.texts[row] for row in range(len(docs))]
    for query in judged.query_rows:
        distance = np.linalg.norm(docs - queries[query], axis=1)
        score = -distance if similarity == "euclidean" else docs @ queries[query]
        rows, grades = judged.of(query)
        relevant = rows[grades > 0]
        relevant_texts = {texts[row] for row in relevant}
        threshold = score[relevant].min() - (1 - recipe.relative) * abs(score[relevant].min())
        best = np.argsort(-score, kind="stable")[: recipe.depth]
        kept = [d for d in best if texts[d] not in relevant_texts and score[d] <= threshold]
        yield kept[: recipe.n], distance[kept[: recipe.n]]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_the_negatives_are_those_of_brute_force(
    collection, backbone, embeddings, mine, tmp_path, similarity
):
    judged = collection.judgements("train")
    recipe = Recipe(depth=40, n=6, relative=1.0)
    mined = mine(recipe, by=DualEncoder(backbone, max_length=24, similarity=similarity))
    expected = brute_force(embeddings, collection, similarity, judged, recipe)
    n_found = 0
    for query, (rows, distances) in zip(judged.query_rows, expected, strict=True):
        mined_rows, mined_distances = mined.lists.of(query)
        if len(rows):  # else one random document, see below
            assert mined_rows.tolist() == rows
            np.testing.assert_allclose(mined_distances, distances, rtol=1e-4, atol=1e-5)
        n_found += len(rows)
    assert n_found > 4 and mined.manifest["counts"]["chosen"] == n_found
    assert np.isin(mined.lists.query_rows, judged.query_rows).all()
    assert not list((tmp_path / "encodings").iterdir()), "the embeddings are gone"


def test_a_text_of_a_relevant_document_is_no_negative_under_another_id(collection, mine):
    mined = mine(Recipe(depth=500, n=500, relative=None))
    first, second = (collection.queries.row(f"train-q{number}") for number in (0, 1))
    twin, relevant = (collection.corpus.row(name) for name in ("twin", "train-q0-d0"))
    mined_rows, _ = mined.lists.of(first)
    assert twin not in mined_rows and relevant not in mined_rows
    assert len(mined_rows) == len(collection.corpus) - 2
    assert twin in mined.lists.of(second)[0]


def test_a_text_is_not_its_own_negative_where_queries_are_documents(collection, mine):
    """Row 7 is at distance 0 from itself: it would be the hardest negative, or a random one."""
    twice = collection._replace(queries=collection.corpus)
    judged = QueryLists.from_rows([7, 9], [8, 10], [1.0, 1.0])
    for recipe in (Recipe(depth=20, n=20, relative=None), Recipe(depth=20, n=20, max_score=-2.0)):
        mined = mine(recipe, judged=judged, of=twice, min_negatives=len(twice.corpus))
        for query_row, relevant in ((7, 8), (9, 10)):
            ids, _ = mined.lists.of(query_row)
            assert len(ids) > 20 and not np.isin([query_row, relevant], ids).any()


def test_a_query_with_too_few_gets_random_documents(collection, embeddings, mine):
    judged = collection.judgements("train")
    mined = mine(Recipe(depth=3, n=2, max_score=-2.0), min_negatives=4)
    counts = mined.manifest["counts"]
    assert counts["chosen"] == 0 and counts["short"] == 12 and counts["random"] == 48
    queries, docs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in embeddings)
    for query in judged.query_rows:
        rows, distances = mined.lists.of(query)
        assert len(set(rows)) == 4 and not set(rows) & set(judged.of(query)[0][:1])
        expected = np.linalg.norm(docs[rows] - queries[query], axis=1)
        np.testing.assert_allclose(distances, expected, rtol=1e-4)


@pytest.mark.parametrize("min_negatives", [1, 2, 3])
def test_a_query_gets_whatever_documents_are_left(collection, mine, min_negatives):
    """All documents but two are relevant, and none is near enough: few draws would hit the two."""
    docs = np.arange(len(collection.corpus))
    left = {0: [3, 50], 1: [8, 9]}
    rows = [(q, doc) for q, others in left.items() for doc in np.setdiff1d(docs, others)]
    judged = QueryLists.from_rows(*zip(*rows, strict=True), [1.0] * len(rows))
    recipe = Recipe(depth=3, n=1, max_score=-2.0)
    mined = mine(recipe, judged=judged, min_negatives=min_negatives)
    for q, others in left.items():
        filled = mined.lists.of(q)[0].tolist()
        assert len(filled) == min(min_negatives, 2) and set(filled) <= set(others)
    assert mined.manifest["counts"]["random"] == 2 * min(min_negatives, 2)


def scores_of(ranker, collection, query, docs):
    """Of a cross-encoder, for one query and some documents."""
    queries = ranker.reads.store(collection.queries, "query")
    corpus = ranker.reads.store(collection.corpus, "document")
    batch = ranker.reads.lay_out(queries, np.full(len(docs), query), corpus, docs)
    with torch.no_grad():
        return ranker.eval().score(batch).numpy()


def test_a_judge_leaves_out_what_it_scores_above_the_relevant_document(collection, ranker, mine):
    judged = collection.judgements("train")
    recipe = Recipe(depth=20, n=5, relative=None)
    without = mine(recipe)
    mined = mine(recipe, judge=TextScorer("a cross-encoder", ranker, collection))
    n_out = 0
    for query in judged.query_rows:
        rows, grades = judged.of(query)
        found, _ = without.lists.of(query)
        candidates = np.concatenate([rows[grades > 0], found])
        relevant, *others = scores_of(ranker, collection, query, candidates)
        kept = [row for row, score in zip(found, others, strict=True) if score <= relevant]
        mined_rows, _ = mined.lists.of(query)
        assert mined_rows.tolist() == (kept or mined_rows[:1].tolist())
        n_out += 5 - len(kept)
    assert mined.manifest["counts"]["judge"] == n_out > 0


def test_what_the_judge_suspects_does_not_come_back_at_random(collection, ranker, mine):
    """All 40 documents found are suspected, and all others together are wanted."""
    recipe = Recipe(depth=40, n=40, relative=None, judge_margin=1000.0)
    found = mine(recipe)
    mined = mine(recipe, min_negatives=100, judge=TextScorer("a judge", ranker, collection))
    assert mined.manifest["counts"]["chosen"] == 0 < mined.manifest["counts"]["random"]
    for query in collection.judgements("train").query_rows:
        suspects, _ = found.lists.of(query)
        assert not np.isin(suspects, mined.lists.of(query)[0]).any()


def test_a_rescorer_ranks_what_the_filters_leave_of_all_that_was_found(collection, ranker, mine):
    """Of 20 documents all but the miner's best two; of these the cross-encoder's best 5."""
    recipe = Recipe(depth=20, n=5, relative=None, skip_top=2)
    assert ranker.training
    mined = mine(recipe, rescorer=TextScorer("a cross-encoder", ranker, collection))
    assert ranker.training and ranker.encoder.model.training, "it goes on training, with dropout"
    every = mine(replace(recipe, n=20))
    n_moved = 0
    for query in collection.judgements("train").query_rows:
        left, distances = every.lists.of(query)
        scores = scores_of(ranker, collection, query, left)
        best = np.argsort(-scores, kind="stable")[:5]
        mined_rows, mined_distances = mined.lists.of(query)
        assert mined_rows[: len(best)].tolist() == left[best].tolist()
        np.testing.assert_allclose(mined_distances[: len(best)], distances[best], rtol=1e-5)
        n_moved += left[best].tolist() != left[:5].tolist()
    assert n_moved > 6
    assert mined.manifest["rescorer"] == "a cross-encoder" and every.manifest["rescorer"] is None
    counts = mined.manifest["counts"]
    assert counts["found"] == 12 * 20, "what the search has found, not what the filters leave"
    left_out = f"relevant {counts['relevant']}, skip_top {counts['skip_top']}; "
    lines = [line for line in summary_lines(mined.manifest) if "found" in line]
    assert lines[0].startswith(f"  of 240 found, left out: {left_out}")


def test_the_key_tells_all_that_decides(collection, backbone):
    model = DualEncoder(backbone, max_length=24)
    miner = Miner(model, collection, collection.judgements("train"))
    scorer = TextScorer("one", PairWiseBertRanker(backbone, max_length=24), collection)
    changes = [
        {"judge": scorer},
        {"rescorer": scorer},
        {"recipe": Recipe(n=29)},
        {"seed": (0, 1)},
        {"judged": collection.judgements("dev")},
        {"min_negatives": 2},
    ]
    for options in (
        {"max_length": 23},
        {"similarity": "dot"},
        {"normalise": True},
        {"query_prompt": "w1 "},
        {"encoder": TextEncoder.Options(pooling="cls")},
    ):
        changes.append({"searcher": DualEncoder(backbone, **{"max_length": 24} | options)})
    assert replace(miner).key == miner.key
    keys = {miner.key, *(replace(miner, **change).key for change in changes)}
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    assert len(keys | {miner.key}) == 13


def test_an_approximate_index_says_what_it_finds(mine):
    recipe = Recipe(depth=10, relative=None)
    exact_search = mine(recipe)
    rough = mine(replace(recipe, index="IVF8,Flat"))
    assert exact_search.manifest["recall"] == 1.0 and 0.2 < rough.manifest["recall"] < 1.0
    with pytest.raises(InputError, match="faiss can build"):
        mine(Recipe(index="IVF8,Falt"))


def test_a_corpus_that_is_relevant_as_a_whole_has_no_negatives(mine, tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=1, n_docs=2)
    names = [f"{split}-q0-d{doc}" for split in ("train", "dev", "test") for doc in (0, 1)]
    lines = [f"train-q0\t{name}\t1\n" for name in names]
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    message = "no query has a document to rank below its relevant ones; nothing can be mined"
    with pytest.raises(InputError, match=message):
        mine(Recipe(), of=open_collection(str(folder)))


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
    collection, ranker, mine, monkeypatch, options
):
    """Bit by bit, with tiles of one query, which are the same in every block. Some are filled up at
    random: 24 are wanted of at most 20.
    """
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 1)
    scorer = TextScorer("a judge", ranker, collection)
    options = dict(options)
    scorers = {name: scorer for name in ("judge", "rescorer") if options.pop(name, False)}
    recipe = Recipe(depth=20, **options)
    mined = []
    for queries_of_block in (1, 2, 5, 100):
        monkeypatch.setattr(shards, "FOUND_AT_ONCE", 20 * queries_of_block)
        mined.append(mine(recipe, min_negatives=24, **scorers))
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
