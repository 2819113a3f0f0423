"""What takes a while says how far it is, and never more than it should."""

import logging
import os
import pty
import subprocess
import sys
import time

import pytest

from ltr.__main__ import main
from ltr.data import files, progress
from ltr.data.progress import LogLines, Pace, duration, reading, track

# A search with batches so small that there are several, and a line after each.
SEARCH = """
import sys
import ltr.search.embed_texts
from ltr.data import progress
progress.EVERY = 0.0
ltr.search.embed_texts.BATCH_TOKENS = 256
from ltr.cli.program import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is moved: ``clock[0] += seconds``."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def said(caplog):
    """The lines that are said."""
    caplog.set_level(logging.INFO)
    return caplog


def test_a_line_each_half_minute(clock, said):
    """Four batches of 20 s: after 40 s two of five are done, at 1/20 of a batch in a second, so
    three are left for 60 s. After 80 s four are, and after 100 s there is nothing left to say."""
    for _ in track(range(5), "encoding", "batches of 8 texts"):
        clock[0] += 20
    assert said.messages == [
        "encoding: 2 of 5 batches of 8 texts, 0.05 batches/s, 1 min 00 s left",
        "encoding: 4 of 5 batches of 8 texts, 0.05 batches/s, 20 s left",
    ]


def test_how_much_of_files_is_read(tmp_path, clock, said, monkeypatch):
    """Two files of two lines of 5 bytes, 31 s each line: 5/31 bytes a second."""
    monkeypatch.setattr(progress, "MEGABYTE", 1)
    monkeypatch.setattr(files, "NOTED", 1)
    monkeypatch.setattr(files, "READ_AT_ONCE", 1)  # a line
    paths = [tmp_path / "one", tmp_path / "other"]
    for path in paths:
        path.write_text("four\nfour\n")
    with reading([*paths, "a name of a hub"]):
        for path in paths:
            for _ in files.numbered_lines(path):
                clock[0] += 31
    list(files.numbered_lines(paths[0]))  # behind the block nobody is told
    assert said.messages == [
        "reading: 5 of 20 MB, 0.161 MB/s, 1 min 33 s left",
        "reading: 10 of 20 MB, 0.161 MB/s, 1 min 02 s left",
        "reading: 15 of 20 MB, 0.161 MB/s, 31 s left",
    ]


def test_what_is_inside_another_says_nothing(clock, said):
    """Also after one that was left early, and what comes after says its own."""
    for _ in track(range(2), "outer", "parts"):
        for _ in track(range(2), "inner", "batches"):
            clock[0] += 31
    for _ in track(range(9), "left", "batches"):
        break
    for _ in track(range(2), "next", "batches"):
        clock[0] += 31
    assert [line.split(":")[0] for line in said.messages] == ["outer", "next"]


def test_other_processes_say_nothing(clock, said, monkeypatch):
    monkeypatch.setattr("ltr.processes.rank", lambda: 1)
    for _ in track(range(3), "encoding", "batches"):
        clock[0] += 31
    assert not said.messages


def test_a_pace_leaves_out_what_it_is_told_to(clock):
    """Ten steps in 40 s, of which 20 s went to something else, are 0.5 a second, told when 30 s of
    its own are over."""
    pace = Pace(done=5)
    clock[0] += 40
    pace.leave_out(20)
    assert pace.rate_if_due(15) is None
    clock[0] += 12
    assert pace.rate_if_due(21) == 0.5
    clock[0] += 100
    assert pace.rate_if_due(21) is None, "nothing was done since"


def test_nothing_is_said_at_the_end(clock, said):
    log_lines = LogLines("testing", "batches", 1)
    clock[0] += 31
    log_lines.report(1)
    assert not said.messages


def test_a_duration_in_words():
    words = {0.4: "0 s", 41: "41 s", 59.6: "1 min 00 s", 200: "3 min 20 s", 7507: "2 h 05 min"}
    assert [duration(seconds) for seconds in words] == [*words.values()]


def line_of_encoding(out: str, err: str) -> str:
    """Of a search for two documents; stdout is for results alone."""
    assert [line.split("\t")[0] for line in out.splitlines()] == ["1", "2"]
    (line,) = [line for line in err.splitlines() if line.startswith("encoding: 1 of ")]
    return line


@pytest.fixture
def search(backbone, collection_folder, tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setenv("LTR_CACHE", str(tmp_path))
    return ["search", backbone, "--corpus", str(collection_folder), "--query", "w1", "--k", "2"]


def test_lines_of_a_search(search, capsys, monkeypatch):
    """Without a terminal."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr("ltr.search.embed_texts.BATCH_TOKENS", 256)
    assert main(search) == 0
    line = line_of_encoding(*capsys.readouterr())
    assert " of 3 shards of 256 texts, " in line and line.endswith(" % of the matmul peak")


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
def test_lines_of_a_real_search(search):
    command = [sys.executable, "-c", SEARCH, *search]
    done = subprocess.run(command, capture_output=True, text=True)
    assert line_of_encoding(done.stdout, done.stderr)


def test_a_bar_on_a_real_terminal(monkeypatch):
    """It vanishes at the end. What is done at once gets none."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(progress, "BEFORE_BAR", 0.1)
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        for _ in track(range(2), "at once", "parts"):
            pass
        for _ in track(range(2), "encoding", "parts"):
            time.sleep(0.3)
        terminal.flush()
        shown = ""
        while not shown.endswith("\x1b[2K"):  # the line is cleared; a read gives a part of it
            shown += os.read(ours, 100_000).decode()
    os.close(ours)
    assert "encoding" in shown and "1/2" in shown and "at once" not in shown
