"""A corpus is encoded once, kept, and searched."""

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.use import retriever as module
from ltr.use.retriever import Retriever, SearchableCorpus
from tests.conftest import write_collection
from tests.use.runs import trained_on_texts


def counted(monkeypatch):
    """The calls of ``encode`` from now on."""
    calls = []
    encode = module.encode
    monkeypatch.setattr(
        module, "encode", lambda *args, **options: calls.append(1) or encode(*args, **options)
    )
    return calls


def test_a_search_is_the_order_of_all_similarities(retriever, collection_folder):
    corpus = retriever.corpus(collection_folder)
    docs = open_collection(str(collection_folder)).corpus
    found = retriever.search("w3 w4", corpus, k=7)
    similarity = retriever.score([("w3 w4", text) for text in docs.texts])
    order = np.lexsort((-np.arange(len(docs)), -similarity))[:7]
    assert [one.place for one in found] == order.tolist()
    assert [one.score for one in found] == pytest.approx(similarity[order].tolist(), abs=1e-5)
    assert [(one.id, one.text) for one in found] == [
        (docs.ids[row], docs.texts[row]) for row in order
    ]
    assert len(corpus.search("w3", k=10**6)) == len(docs)


def test_the_test_of_a_run_finds_the_same(tmp_path, collection_folder, backbone):
    """``candidates: corpus`` searches as ``ltr search`` does, to the digit."""
    options = ["--data.evaluation.candidates", "corpus", "--data.evaluation.depth", "10"]
    run = trained_on_texts(tmp_path, "dual", collection_folder, backbone, *options)
    file = tmp_path / "found.trec"
    wanted = tmp_path / "queries.jsonl"
    lines = (collection_folder / "queries.jsonl").read_text().splitlines(keepends=True)
    wanted.write_text("".join(line for line in lines if '"test-' in line))
    assert (
        main(
            [
                "search",
                str(run),
                "--corpus",
                str(collection_folder),
                "--queries",
                str(wanted),
                "--output",
                str(file),
                "--k",
                "10",
            ]
        )
        == 0
    )
    found, expected = (
        sorted(line for _, line in read_run(path)) for path in (file, run / "test.run")
    )
    assert len(found) == 300 and [one[:2] for one in found] == [one[:2] for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)


def test_an_encoded_corpus_is_kept_until_weights_texts_or_forms_change(
    backbone, tmp_path, monkeypatch
):
    calls = counted(monkeypatch)
    folder = write_collection(tmp_path / "own", n_queries=4, seed=5)
    first = Retriever(DualEncoder(backbone, max_length=20))
    assert not first.corpus(folder).was_kept and len(calls) == 1
    assert (
        first.corpus(folder).was_kept
        and Retriever(DualEncoder(backbone, max_length=20)).corpus(folder).was_kept
    )
    assert len(calls) == 1
    for other in (
        Retriever(DualEncoder(backbone, max_length=19)),
        Retriever(DualEncoder(backbone, max_length=20, doc_prompt="w1 ")),
        Retriever(DualEncoder(backbone, max_length=20, normalise=True)),
        Retriever(DualEncoder(backbone, max_length=20), "bf16-mixed"),
    ):
        assert not other.corpus(folder).was_kept
    next(first.model.parameters()).data[0, 0] += 1
    assert not first.corpus(folder).was_kept, "other weights"
    file = folder / "corpus.jsonl"
    file.write_text(file.read_text().replace("w0", "w1", 1))
    assert not first.corpus(folder).was_kept, "other texts"
    assert len(calls) == 7
    before = first.search("w1", folder, k=3)
    assert len(calls) == 7 and before == first.search("w1", folder, k=3)


def test_embeddings_that_are_not_finite_are_not_kept(backbone, collection_folder, monkeypatch):
    """What overflowed once, in half precision say, is not read again and again."""
    retriever = Retriever(DualEncoder(backbone, max_length=13))
    encode = module.encode

    def overflown(*args, **options):
        made = np.array(encode(*args, **options))
        made[3, 0] = np.inf
        return made

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", overflown)
        with pytest.raises(
            InputError, match="embeddings must be finite, got NaN or infinity in row 3"
        ):
            retriever.corpus(collection_folder)
    corpus = retriever.corpus(collection_folder)
    assert not corpus.was_kept and corpus.search("w1")


def test_texts_without_ids(retriever):
    documents = [f"w{n}" for n in range(12)]
    found = retriever.search("w11", documents, k=12)
    assert (
        found[0].text == "w11"
        and found[0].place == 11
        and {one.place for one in found} == set(range(12))
    )


@pytest.mark.parametrize("query", ["", " \t"])
def test_a_blank_query_finds_nothing(retriever, query):
    corpus = retriever.corpus(["w1", "w2"])
    with pytest.raises(InputError, match="query 0 must be a text that is not blank"):
        corpus.search(query)
    with pytest.raises(InputError, match="query 1 must be a text that is not blank"):
        corpus.search_all(["w1", query])


def test_a_corpus_that_is_not_finite_is_refused(retriever):
    next(retriever.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match="must be finite"):
        SearchableCorpus(retriever, open_texts_of(["w1", "w2"]))


def open_texts_of(texts):
    return module.table_of_texts(texts)
