"""A corpus is encoded once, kept, and searched."""

import gzip
import io
import json
import subprocess
import sys

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.text_files import open_texts
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use import retriever as module
from ltr.use.rankers import TextRanker
from ltr.use.reranking import lines_of_search, reranked, searched_twice
from ltr.use.retriever import Retriever, SearchableCorpus
from tests.conftest import write_collection
from tests.use.runs import trained_on_texts


@pytest.fixture
def retriever(backbone):
    return Retriever(DualEncoder(backbone, max_length=20))


def counted(monkeypatch):
    """The calls of ``encode`` from now on."""
    calls, encode = [], module.encode
    monkeypatch.setattr(module, "encode", lambda *args, **options: calls.append(1) or encode(*args, **options))
    return calls


def test_a_search_is_the_order_of_all_similarities(retriever, collection_folder):
    corpus = retriever.corpus(collection_folder)
    docs = open_collection(str(collection_folder)).corpus
    found = retriever.search("w3 w4", corpus, k=7)
    similarity = retriever.score([("w3 w4", text) for text in docs.texts])
    order = np.lexsort((-np.arange(len(docs)), -similarity))[:7]
    assert [one.place for one in found] == order.tolist()
    assert [one.score for one in found] == pytest.approx(similarity[order].tolist(), abs=1e-5)
    assert [(one.id, one.text) for one in found] == [(docs.ids[row], docs.texts[row]) for row in order]
    assert len(corpus.search("w3", k=10**6)) == len(docs)


def test_the_test_of_a_run_finds_the_same(tmp_path, collection_folder, backbone):
    """``candidates: corpus`` searches as ``ltr search`` does, to the digit."""
    options = ["--data.candidates", "corpus", "--data.depth", "10"]
    run = trained_on_texts(tmp_path, "dual", collection_folder, backbone, *options)
    file, wanted = tmp_path / "found.trec", tmp_path / "queries.jsonl"
    lines = (collection_folder / "queries.jsonl").read_text().splitlines(keepends=True)
    wanted.write_text("".join(line for line in lines if '"test-' in line))
    assert (
        main(
            ["search", str(run), "--corpus", str(collection_folder), "--queries", str(wanted), "--output", str(file), "--k", "10"]
        )
        == 0
    )
    found, expected = (sorted(line for _, line in read_run(path)) for path in (file, run / "test.run"))
    assert len(found) == 300 and [one[:2] for one in found] == [one[:2] for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)


def test_an_encoded_corpus_is_kept_until_weights_texts_or_forms_change(backbone, tmp_path, monkeypatch):
    calls = counted(monkeypatch)
    folder = write_collection(tmp_path / "own", n_queries=4, seed=5)
    first = Retriever(DualEncoder(backbone, max_length=20))
    assert not first.corpus(folder).was_kept and len(calls) == 1
    assert first.corpus(folder).was_kept and Retriever(DualEncoder(backbone, max_length=20)).corpus(folder).was_kept
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
    retriever, encode = Retriever(DualEncoder(backbone, max_length=13)), module.encode

    def overflown(*args, **options):
        made = np.array(encode(*args, **options))
        made[3, 0] = np.inf
        return made

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", overflown)
        with pytest.raises(InputError, match="embeddings must be finite, got NaN or infinity in row 3"):
            retriever.corpus(collection_folder)
    corpus = retriever.corpus(collection_folder)
    assert not corpus.was_kept and corpus.search("w1")


def test_texts_without_ids(retriever):
    documents = [f"w{n}" for n in range(12)]
    found = retriever.search("w11", documents, k=12)
    assert found[0].text == "w11" and found[0].place == 11 and {one.place for one in found} == set(range(12))


def test_a_second_ranker_orders_what_was_found(retriever, backbone, collection_folder):
    second = TextRanker(PairWiseBertRanker(backbone, max_length=24))
    corpus = retriever.corpus(collection_folder)
    found, again = corpus.search("w3 w4", 6), searched_twice(corpus, second, "w3 w4", 6)
    assert {one.id for one in again} == {one.id for one in found}
    assert [one.score for one in again] == sorted(second.score([("w3 w4", one.text) for one in found]).tolist(), reverse=True)
    queries = open_collection(str(collection_folder)).queries
    lines = list(lines_of_search(corpus, queries, 4, second, depth=6))
    asked = [line for line in lines if line.query == queries.ids[7]]
    expected = searched_twice(corpus, second, queries.texts[7], 6)[:4]
    assert [line.doc for line in asked] == [one.id for one in expected] and len(lines) == 4 * len(queries)


def test_a_run_is_ranked_again(tmp_path, collection_folder, backbone):
    """The run of a test, read in another order, is what the same ranker makes of it."""
    run = trained_on_texts(tmp_path, "cross", collection_folder, backbone)
    given, file = tmp_path / "given.trec", tmp_path / "again.trec"
    given.write_text("".join(f"{q} Q0 {d} 1 {-s} x\n" for _, (q, d, s) in read_run(run / "test.run")))
    options = ["--run", str(given), "--data", str(collection_folder), "--output", str(file)]
    assert main(["rank", str(run), *options]) == 0
    again, expected = ([line for _, line in read_run(path)] for path in (file, run / "test.run"))
    assert sorted(one[:2] for one in again) == sorted(one[:2] for one in expected)
    scores = {one[:2]: one.score for one in expected}
    assert [one.score for one in again] == pytest.approx([scores[one[:2]] for one in again], abs=1e-5)
    assert main(["rank", str(run), *options, "--depth", "2"]) == 0
    few = [line for _, line in read_run(file)]
    assert len(few) == 60 and {one[:2] for one in few} <= set(scores)


def test_a_query_on_the_command_line(tmp_path, backbone, capsys):
    (tmp_path / "d.txt").write_text("w1 w2\nw9\nw3 w4\tw5\n")
    model = tmp_path / "exported"
    PairWiseBertRanker(backbone, max_length=20).save(model)
    assert main(["rank", str(model), "--query", "w1", "--documents", str(tmp_path / "d.txt"), "--k", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    expected = TextRanker(PairWiseBertRanker(str(model), max_length=20)).rank("w1", ["w1 w2", "w9", "w3 w4\tw5"], k=2)
    assert [row[0] for row in rows] == ["1", "2"] and [int(row[2]) for row in rows] == [one.place + 1 for one in expected]
    assert [float(row[1]) for row in rows] == pytest.approx([one.score for one in expected], abs=1e-6)
    assert [row[3] for row in rows] == [" ".join(one.text.split()) for one in expected]


@pytest.mark.parametrize("query", ["null", "~", "true", "3", ""])
def test_a_query_is_taken_as_it_stands(query, backbone, collection_folder, tmp_path, capsys, monkeypatch):
    """YAML reads None in some, and nobody types any more."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("w3 w4\n"))
    assert main(["search", backbone, "--corpus", str(collection_folder), "--query", query, "--k", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    (best,) = Retriever(DualEncoder(backbone)).search(query, collection_folder, k=1)
    assert line.split("\t")[2] == best.id
    (tmp_path / "d.txt").write_text("w1\n")
    assert main(["rank", backbone, "--query", query, "--documents", str(tmp_path / "d.txt")]) == (0 if query else 2)


@pytest.mark.long
def test_only_results_are_on_stdout(backbone, collection_folder):
    """With WANDB_MODE=offline, transformers speaks when it is imported."""
    words = ["search", backbone, "--corpus", str(collection_folder), "--query", "w1", "--k", "2"]
    done = subprocess.run([sys.executable, "-m", "ltr", *words], capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["1", "2"]


def test_queries_are_typed(backbone, collection_folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("w3 w4\nw5\n\nw6\n"))
    assert main(["search", backbone, "--corpus", str(collection_folder), "--k", "3"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "3"] * 2, "an empty line ends"
    own = Retriever(DualEncoder(backbone)).search("w5", collection_folder, k=3)
    assert [row[2] for row in rows[3:]] == [one.id for one in own]


TABLES = {
    "a.jsonl": json.dumps({"_id": "b", "text": "w1"}) + "\n" + json.dumps({"_id": "a", "title": "w2", "text": "w3"}),
    "a.tsv": "b\tw1\na\tw2 w3\n",
    "a.txt": "w2 w3\nw1\n",
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("packed", [False, True])
def test_files_of_texts(tmp_path, name, packed):
    file = tmp_path / (name + ".gz" * packed)
    file.write_bytes(gzip.compress(TABLES[name].encode()) if packed else TABLES[name].encode())
    table = open_texts(str(file), "document", "--documents")
    assert dict(zip(table.ids, table.texts, strict=True)) == (
        {"1": "w2 w3", "2": "w1"} if name == "a.txt" else {"a": "w2 w3", "b": "w1"}
    )


BAD = [
    ("a.tsv", "b w1\n", r"a\.tsv:1: expected id<TAB>text, got no tab"),
    ("a.tsv", "b\tw1\nb\tw2\n", r"a\.tsv:2: document id 'b' stands twice"),
    ("a.tsv", "b\t \n", r"a\.tsv:1: document 'b' has an empty text"),
    ("a.jsonl", "{}\n", r"a\.jsonl:1: a line must be an object with '_id'"),
    ("a.txt", "", "no document at all"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_broken_files_of_texts(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        open_texts(str(tmp_path / name), "document", "--documents")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["rank", "M", "--query", "w1"], "needs either --query and --documents, or --run, --data and --output"),
        (["rank", "M", "--query", "w1", "--documents", "F", "--k", "0"], "--k must be at least 1, got 0"),
        (["rank", "M", "--query", "w1", "--documents", "nope.txt"], "--documents nope.txt: expected a file of texts"),
        (["rank", "./nope", "--query", "w1", "--documents", "F"], "there is no run, checkpoint or model"),
        (["search", "M", "--corpus", "F", "--queries", "F"], "takes --query, or --queries and --output, or neither"),
        (["search", "C", "--corpus", "F"], "is no dual encoder, and only one can search a corpus"),
        (["search", "M"], "corpus"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, backbone, capsys, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "F").write_text("w1\nw2\n")
    if "C" in args:
        PairWiseBertRanker(backbone, max_length=20).save("C")
    assert main([backbone if one == "M" else str(tmp_path / one) if one == "C" else one for one in args]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_lists_ranked_again_are_best_first(backbone, collection_folder):
    collection = open_collection(str(collection_folder))
    ranker = TextRanker(PairWiseBertRanker(backbone, max_length=24))
    found = reranked(ranker, collection.queries, collection.corpus, collection.candidates["test"])
    assert sorted(found.doc_rows) == sorted(collection.candidates["test"].doc_rows)
    for query in found.query_rows.tolist():
        rows, scores = found.of(query)
        own = ranker.score([(collection.queries.texts[query], collection.corpus.texts[int(row)]) for row in rows])
        assert scores == pytest.approx(own, abs=1e-5) and (np.diff(scores) <= 0).all()


def test_a_corpus_that_is_not_finite_is_refused(retriever):
    next(retriever.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match="must be finite"):
        SearchableCorpus(retriever, open_texts_of(["w1", "w2"]))


def open_texts_of(texts):
    return module.listed(texts)
