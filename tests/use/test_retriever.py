"""A corpus is encoded once, kept, and searched."""

import json

import numpy as np
import pytest
import torch

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.search import encoding_worker
from ltr.use.retriever import Retriever, SearchableCorpus, table_of_texts
from tests.world.collections import write_collection


def test_a_search_is_the_order_of_all_similarities(retriever, collection_folder):
    corpus = retriever.corpus(collection_folder)
    docs = open_collection(str(collection_folder)).corpus
    found = retriever.search("w3 w4", corpus, k=7)
    similarity = retriever.score([("w3 w4", text) for text in docs.texts])
    order = np.lexsort((-np.arange(len(docs)), -similarity))[:7]
    assert [one.place for one in found] == order.tolist()
    # Of embeddings that are stored as halves.
    assert [one.score for one in found] == pytest.approx(similarity[order].tolist(), abs=1e-3)
    named = [(docs.ids[row], docs.texts[row]) for row in order]
    assert [(one.id, one.text) for one in found] == named
    assert len(corpus.search("w3", k=10**6)) == len(docs)


def test_the_test_of_a_run_finds_the_same(tmp_path, collection_folder, copied_run):
    """``candidates: corpus`` searches as ``ltr search`` does, whose scores are similarities: of the
    run they are divided by its temperature.
    """
    options = ["--data.evaluation.candidates", "corpus", "--data.evaluation.depth", "10"]
    run = copied_run(tmp_path, "dual", *options)
    file = tmp_path / "found.trec"
    wanted = tmp_path / "queries.jsonl"
    lines = (collection_folder / "queries.jsonl").read_text().splitlines(keepends=True)
    wanted.write_text("".join(line for line in lines if '"test-' in line))
    words = ["--corpus", str(collection_folder), "--queries", str(wanted), "--k", "10"]
    assert main(["search", str(run), *words, "--output", str(file)]) == 0
    found, expected = (
        sorted(line for _, line in read_run(path)) for path in (file, run / "test.run")
    )
    assert len(found) == 300 and [one[:2] for one in found] == [one[:2] for one in expected]
    of_run = [one.score * 0.1 for one in expected]
    assert [one.score for one in found] == pytest.approx(of_run, abs=1e-6)


def test_an_encoded_corpus_is_kept_until_weights_or_forms_change(backbone, tmp_path, encoded):
    folder = write_collection(tmp_path / "own", n_queries=4, seed=5)
    n_docs = len(open_collection(str(folder)).corpus)
    first = Retriever(DualEncoder(backbone, max_length=20))
    first.corpus(folder)
    assert encoded == [n_docs]
    first.corpus(folder)
    Retriever(DualEncoder(backbone, max_length=20)).corpus(folder)
    assert encoded == [n_docs]
    for options, precision in (
        ({"max_length": 19}, "32-true"),
        ({"max_length": 20, "doc_prompt": "w1 "}, "32-true"),
        ({"max_length": 20, "normalise": True}, "32-true"),
        ({"max_length": 20}, "bf16-mixed"),
    ):
        encoded.clear()
        Retriever(DualEncoder(backbone, **options), precision).corpus(folder)
        assert encoded == [n_docs]
    next(first.model.parameters()).data[0, 0] += 1
    encoded.clear()
    first.corpus(folder)
    assert encoded == [n_docs], "other weights"
    before = first.search("w1", folder, k=3)
    assert encoded == [n_docs] and before == first.search("w1", folder, k=3)


def test_of_a_changed_corpus_only_changed_texts_are_encoded(backbone, tmp_path, encoded):
    """One text changes, one comes in front of all others, and one goes."""
    folder = write_collection(tmp_path / "own", n_queries=4, seed=5)
    retriever = Retriever(DualEncoder(backbone, max_length=20))
    retriever.corpus(folder)
    file = folder / "corpus.jsonl"
    changed, *others, _ = file.read_text().splitlines(keepends=True)
    document = json.loads(changed) | {"text": "w9 w9 w2 w7"}
    new = {"_id": "!", "text": "w9 w1 w3 w9"}
    file.write_text("".join([json.dumps(document) + "\n", *others, json.dumps(new) + "\n"]))
    encoded.clear()
    corpus = retriever.corpus(folder)
    assert encoded == [2]
    texts = list(corpus.documents.texts)
    assert corpus.documents.ids[0] == "!"
    alone = retriever.encode(texts)
    for query in ("w9 w9", "w2 w5"):
        encoded_query = retriever.encode([query], "query")[0]
        both = (torch.from_numpy(encoded_query[None]), torch.from_numpy(alone))
        similarity = retriever.model.similarity.score(*both)
        scores, rows = corpus.search_all([query], len(texts))
        np.testing.assert_allclose(scores[0], similarity[0, rows[0]], atol=1e-3)


def test_embeddings_that_are_not_finite_are_not_kept(backbone, collection_folder, monkeypatch):
    """What overflowed once, in half precision say, is not read again and again."""
    retriever = Retriever(DualEncoder(backbone, max_length=13))
    encode_batches = encoding_worker.encode_batches

    def overflown(*args):
        for places, embeddings in encode_batches(*args):
            embeddings[places == 3, 0] = np.inf
            yield places, embeddings

    with monkeypatch.context() as patch:
        patch.setattr(encoding_worker, "encode_batches", overflown)
        said = "embeddings must be finite, got NaN or infinity in row 3"
        with pytest.raises(InputError, match=said):
            retriever.corpus(collection_folder)
    assert retriever.corpus(collection_folder).search("w1")


def test_texts_without_ids(retriever):
    documents = [f"w{n}" for n in range(12)]
    found = retriever.search("w11", documents, k=12)
    assert (found[0].text, found[0].place) == ("w11", 11)
    assert {one.place for one in found} == set(range(12))


@pytest.mark.parametrize("query", ["", " \t"])
def test_a_blank_query_finds_nothing(retriever, query):
    corpus = retriever.corpus(["w1", "w2"])
    with pytest.raises(InputError, match="query 0 must be a text that is not blank"):
        corpus.search(query)
    with pytest.raises(InputError, match="query 1 must be a text that is not blank"):
        corpus.search_all(["w1", query])


@pytest.mark.parametrize("k", [0, None])
def test_a_search_for_no_number_of_documents_is_refused(retriever, k):
    corpus = retriever.corpus(["w1", "w2"])
    with pytest.raises(InputError, match=f"k must be at least 1, got {k}; 2 finds all"):
        corpus.search("w1", k)


def test_a_corpus_that_is_not_finite_is_refused(retriever):
    next(retriever.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match="must be finite"):
        SearchableCorpus(retriever, table_of_texts(["w1", "w2"]))
