"""`ltr rank` and `ltr search` on the command line."""

import io
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.rankers import TextRanker
from ltr.use.retriever import Retriever
from tests.world.commands import refusal, run_ltr


@pytest.fixture
def texts(tmp_path):
    """A file of one text."""
    (tmp_path / "d.txt").write_text("w1\n")
    return tmp_path / "d.txt"


def test_a_query_on_the_command_line(tmp_path, backbone, capsys):
    (tmp_path / "d.txt").write_text("w1 w2\nw9\nw3 w4\tw5\n")
    model = tmp_path / "exported"
    PairWiseBertRanker(backbone, max_length=20).save(model)
    capsys.readouterr()  # what packages say when they are imported
    of_texts = f"--query w1 --documents {tmp_path}/d.txt --k 2"
    assert run_ltr(f"rank {model} {of_texts} --precision 32-true") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    ranker = TextRanker(PairWiseBertRanker(str(model), max_length=20))
    expected = ranker.rank("w1", ["w1 w2", "w9", "w3 w4\tw5"], k=2)
    assert [row[0] for row in rows] == ["1", "2"]
    assert [int(row[2]) for row in rows] == [one.place + 1 for one in expected]
    scores = [one.score for one in expected]
    assert [float(row[1]) for row in rows] == pytest.approx(scores, abs=1e-6)
    assert [row[3] for row in rows] == [" ".join(one.text.split()) for one in expected]


@pytest.mark.usefixtures("programs_begin_warm")
def test_a_text_does_not_steer_the_terminal(backbone, tmp_path):
    """On a real terminal: no escape sequence and no bidirectional override of a text gets there."""
    (tmp_path / "d.txt").write_text("w1 \x1b[31mred\x1b]0;title\x07 \u202eback\u202c \x9b5m\n")
    command = [sys.executable, "-m", "ltr", "rank", backbone, "--query", "w1"]
    command += ["--documents", str(tmp_path / "d.txt")]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    shown = b""
    # Read while it runs: a full terminal lets it wait. With the last writer gone, EIO is its end.
    with suppress(OSError):
        while part := os.read(ours, 10_000):
            shown += part
    os.close(ours)
    assert process.wait() == 0
    shown = shown.decode()
    assert "w1 �[31mred�]0;title� �back� �5m" in shown
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & {*shown}


def test_without_an_output_nothing_fails(backbone, texts, monkeypatch):
    """Some schedulers close it."""
    monkeypatch.setattr("sys.stdout", None)
    assert run_ltr(f"rank {backbone} --query w1 --documents {texts}") == 0


def test_without_an_input_there_are_no_queries(backbone, texts, capsys, monkeypatch):
    """The caller has closed it, as some schedulers do."""
    monkeypatch.setattr("sys.stdin", None)
    assert run_ltr(f"search {backbone} --corpus {texts}") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("query", ["null", "~", "true", "3"])
def test_a_query_is_taken_as_it_stands(query, backbone, collection_folder, texts, capsys):
    """YAML reads None in some."""
    assert run_ltr(f"search {backbone} --corpus {collection_folder} --query {query} --k 1") == 0
    (line,) = capsys.readouterr().out.splitlines()
    (best,) = Retriever(DualEncoder(backbone)).search(query, collection_folder, k=1)
    assert line.split("\t")[2] == best.id
    assert run_ltr(f"rank {backbone} --query {query} --documents {texts}") == 0


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
def test_only_results_are_on_stdout(backbone, collection_folder):
    """With WANDB_MODE=offline, transformers speaks when it is imported."""
    words = ["search", backbone, "--corpus", str(collection_folder), "--query", "w1", "--k", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "ltr", *words], capture_output=True, text=True, check=True
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["1", "2"]


def test_queries_are_typed(backbone, collection_folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("w3 w4\nw5\n\nw6\n"))
    assert run_ltr(f"search {backbone} --corpus {collection_folder} --k 3") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "3"] * 2, "an empty line ends"
    own = Retriever(DualEncoder(backbone)).search("w5", collection_folder, k=3)
    assert [row[2] for row in rows[3:]] == [one.id for one in own]


def test_a_nul_is_no_query(backbone, collection_folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("w3 \0 w4\n"))
    assert run_ltr(f"search {backbone} --corpus {collection_folder} --k 3") == 2
    out, err = capsys.readouterr()
    assert out == ""
    message = "text must not hold NUL, got one after 3 characters; remove it"
    assert err == f"ltr: 'w3 \\x00 w4': {message}\n"


BLANK = "--query must be a text that is not blank"
NO_TEXTS = (
    "a file of texts must be .jsonl or .parquet with _id and text, .tsv with id<TAB>text, or .txt"
)
# M is a dual encoder, C a cross-encoder, F a file of two lines, and nothing is called nope or q.txt.
# Files are read before a ranker is loaded, so they are told of first.
REFUSED = {
    "rank M --query '' --documents F": BLANK,
    "rank M --query ' ' --documents F": BLANK,
    "search M --corpus F --query ''": BLANK,
    "search M --corpus F --query ' '": BLANK,
    "search M --corpus F --query w1 --depth 7": "--depth is of --rerank",
    "search M --corpus F --queries F --output o --depth 7": "--depth is of --rerank",
    "rank M --run r --data d --output o --k 7": "--k is of --query",
    "rank M --query w1 --documents F --device ''": "device '' can't be used here",
    "search ./nope --query w1 --corpus F.json": f"--corpus F.json: {NO_TEXTS}",
    "search ./nope --corpus F --queries q.txt --output o": "--queries q.txt: expected a file of texts",
    "search ./nope --corpus F --query w1 --memory 1MB --recall_queries q.txt": (
        "--recall_queries q.txt: expected a file of texts"
    ),
    "encode ./nope --corpus F.json --output o": f"corpus F.json: {NO_TEXTS}",
    "rank M --query w1": "needs either --query and --documents, or --run, --data and --output",
    "rank M --query w1 --documents F --k 0": "--k must be at least 1, got 0",
    "rank M --query w1 --documents F --depth 3": (
        "--depth is of --run: it says how many documents of a run are read"
    ),
    "rank M --query w1 --documents nope.txt": "--documents nope.txt: expected a file of texts",
    "rank ./nope --query w1 --documents F.csv": f"--documents F.csv: {NO_TEXTS}",
    "rank ./nope --query w1 --documents F": "there is no run, checkpoint or model",
    "search M --corpus F --queries F": "takes --query, or --queries and --output, or neither",
    "search C --corpus F": "is no dual encoder, and only one can search a corpus",
    "search M": "corpus",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_arguments_get_one_line(words, here, backbone, capsys):
    for name in ("F", "F.csv", "F.json"):
        (here / name).write_text("w1\nw2\n")
    if " C " in words:
        PairWiseBertRanker(backbone, max_length=20).save("C")
    command = re.sub(r"\bM\b", str(backbone), words)
    assert REFUSED[words] in refusal(capsys, command)


def test_search_within_a_budget_says_what_it_finds(backbone, collection_folder, tmp_path, capsys):
    """Of 720 documents of 16 dimensions two megabytes hold the codes, but no tile of scores."""
    search = f"search {backbone} --corpus {collection_folder} --query w5 --k 3"
    assert run_ltr(search) == 0
    exact = capsys.readouterr().out
    assert run_ltr(f"{search} --memory 2MB") == 0
    told = capsys.readouterr()
    # The same documents; scores that are added up in another order may differ in the last digit.
    found, expected = (
        [line.split("\t")[2] for line in out.splitlines()] for out in (told.out, exact)
    )
    assert found == expected
    assert "searching within 2MB: codes of one bit a dimension, " in told.err
    assert "best, measured on 30 queries" in told.err
    for more, message in {
        "--memory 1": "--memory must be a number above 0 with a unit",
        "--memory 1KB": "for 720 documents of 16 dimensions, got",
        "--recall 0.9": "--recall is of --memory",
        "--recall_queries q.txt": "--recall_queries is of --memory",
        "--memory 1MB --recall_queries q.txt": "--recall_queries q.txt: expected a file",
        "--memory 1MB --recall 2": "recall must lie above 0, and be at most 1",
    }.items():
        assert run_ltr(f"{search} {more}") == 2
        assert message in capsys.readouterr().err
    (tmp_path / "d.txt").write_text("w1 w2\nw3\n" * 20)
    alone = f"search {backbone} --corpus {tmp_path}/d.txt --query w1 --memory 100KB"
    assert run_ltr(alone) == 2
    assert "and there are none: name some by --recall_queries" in capsys.readouterr().err
    (tmp_path / "q.txt").write_text("w1\nw2\nw1 w3\n")
    assert run_ltr(f"{alone} --recall_queries {tmp_path}/q.txt") == 0
    assert "best, measured on 3 queries" in capsys.readouterr().err
