"""What a check says of judgements: counts by hand, and the line that ``ltr fit`` says too."""

import json
from pathlib import Path

import numpy as np
import pytest

from ltr.check.judgements import judgements_section, sample_of, unjudged_share
from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from tests.world.collections import small_collection, write_collection
from tests.world.commands import refusal, run_ltr


@pytest.fixture
def folder(tmp_path):
    """Four queries. Of dev: a with grades 2 and 1, b with 0 alone; c is in train, nobody judged d."""
    folder = tmp_path / "four"
    corpus = {f"x{n}": f"word{n}" for n in range(4)}
    queries = {"a": "word0 word3", "b": "word1", "c": "word2", "d": "word3"}
    dev = [("a", "x0", 2), ("a", "x1", 1), ("b", "x1", 0)]
    small_collection(folder, corpus, queries, [("c", "x2", 1)], dev=dev)
    (folder / "candidates").mkdir()
    (folder / "candidates/dev.trec").write_text("a Q0 x0 1 1 pool\nb Q0 x1 1 1 pool\n")
    return folder


def test_counts_by_hand(folder):
    section = judgements_section(open_collection(folder))
    entries = section.entries
    assert entries["queries_without_judgement"] == 1  # d
    dev = entries["splits"]["dev"]
    assert (dev["queries"], dev["judgements"], dev["without_relevant"]) == (2, 3, 1)
    assert dev["of_grade"] == {"0": 1, "1": 1, "2": 1}
    assert (dev["relevant_mean"], dev["relevant_most"]) == (1.0, 2)
    # BM25 finds x0 and x3 for a, of which x0 is judged; x1 for b, which is.
    third = pytest.approx(1 / 3)
    assert entries["unjudged"]["BM25"]["dev"] == {"top_10": third, "top_100": third}
    # The pool of a lacks x1, one of its two relevant documents; b has none.
    assert entries["ceiling"]["dev"]["R"] == pytest.approx(0.5)
    assert section.severe == [
        "1 of 2 queries of dev have no relevant document: no metric by rank counts them",
        "the candidates of dev hold 50.0% of the relevant documents; no re-ranking of them finds the others",
    ]


def test_training_queries_without_a_relevant_document_are_told_with_what_keeps_them(tmp_path):
    texts = {"x0": "word0", "x1": "word1"}
    train = [("a", "x0", 1), ("b", "x1", 0)]
    small_collection(tmp_path, texts, {"a": "word0", "b": "word1"}, train)
    section = judgements_section(open_collection(tmp_path))
    assert section.severe == [
        "1 of 2 queries of train have no relevant document: they are left out, but by a ListDataModule whose loss learns from each document (MSELoss, BCELoss) or from the whole batch (OneList)"
    ]


def test_a_run_is_looked_at_beside_bm25(folder, tmp_path, capsys):
    """The run ranks x3 and then x0 for a: half of it is not judged; 0 of b's x1."""
    (tmp_path / "a.run").write_text("a Q0 x3 1 2 t\na Q0 x0 2 1 t\nb Q0 x1 1 1 t\n")
    file = tmp_path / "out.json"
    assert run_ltr(f"check --data {folder} --run {tmp_path / 'a.run'} --json {file}") == 0
    assert "Judgements" in capsys.readouterr().out
    (section,) = [s for s in json.loads(file.read_text())["sections"] if s["title"] == "Judgements"]
    assert section["entries"]["unjudged"]["the run"]["dev"]["top_10"] == pytest.approx(1 / 3)


def test_the_share_counts_documents_and_not_queries():
    """Of 1 + 3 documents of the first two ranks … of 1 + 2, those that are not judged: 1."""
    lists = QueryLists.from_rows([0, 1, 1, 1], [5, 5, 6, 7], [1.0, 3.0, 2.0, 1.0])
    judged = QueryLists.from_rows([0, 1], [5, 5], [1.0, 0.0])
    assert unjudged_share(lists, judged, 2) == pytest.approx(1 / 3)
    assert unjudged_share(lists, judged, 1) == 0.0


def test_a_sample_is_the_same_each_time_and_ascends():
    rows = np.arange(5000)
    first = sample_of(rows, 1000)
    assert len(np.unique(first)) == 1000 and (np.diff(first) > 0).all()
    assert (sample_of(rows, 1000) == first).all() and len(sample_of(rows[:10])) == 10


BAD = {
    "": "must be told what to check",
    "runs/a --config b.yaml": "takes a run folder or --config, got both",
    "--data nowhere": "nowhere: there is no such data folder or file",
    "--data DATA --run no.run": "no.run",
    "--data DATA --json .": "--json",
    "--data DATA --json both --html both": "--json and --html must be two files",
    "--data DATA --threshold 0": "must be above 0 and at most 1, got 0",
    "--data DATA --trained_on nowhere": "nowhere",
    "--data DATA --html ''": "--html must",
    "--data DATA --json ''": "--json must",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words, folder, capsys, here):
    line = refusal(capsys, f"check {words.replace('DATA', str(folder))}")
    assert BAD[words] in line
    assert not Path("both").exists()


def test_the_page_escapes_texts_and_asks_for_nothing(tmp_path):
    folder = write_collection(tmp_path / "a<b>", n_queries=3)
    file = tmp_path / "page.html"
    assert run_ltr(f"check --data {folder} --html {file}") == 0
    text = file.read_text()
    assert "a&lt;b&gt;" in text and "a<b>" not in text
    assert "http" not in text and "<h2>Judgements</h2>" in text


def test_equal_queries_and_queries_that_are_documents_are_counted(tmp_path):
    """a and b have one text, but c has it with an instruction of its own; x0 is document x0."""
    corpus = {"x0": "zoos help", "x1": "zoos harm", "x2": "zoos are"}
    queries = {"a": "ask zoos", "b": "ask zoos", "c": "ask zoos", "x0": "zoos help"}
    judged = [("a", "x1", 1), ("b", "x2", 1), ("c", "x1", 1), ("x0", "x1", 1)]
    collection = small_collection(
        tmp_path / "c", corpus, queries, judged, {"c": "in Latin"}, test=judged[1:]
    )
    section = judgements_section(collection, search=False)
    train = section.entries["splits"]["train"]
    test = section.entries["splits"]["test"]
    assert (train["equal_queries"], train["own_documents"]) == (2, 1)
    assert (test["equal_queries"], test["own_documents"]) == (0, 1), "b and c differ"
    assert (
        "2 of 4 queries of train have the text of another one, under another id: what is relevant for one is never a negative of the other"
        in section.lines
    )
    own = "test: 1 of 3 queries are documents of the corpus, by id and text; their rankings leave their own document out, as BEIR's do"
    assert own in section.lines
