"""ltr cache: what lies in the cache, for whom, and what of it is removed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from ltr.cli.cache import cache
from ltr.data.cache_folder import cached, origin_of
from tests.data.test_cache_folder import HOLDER, map_a, write_three
from tests.world.backbones import make_backbone
from tests.world.collections import write_collection
from tests.world.commands import run_ltr


def lines_of(capsys):
    """The rows (kind, data, model, reason), and the lines below."""
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("\t") for line in lines if line.count("\t") == 5]
    told = [line for line in lines if line.count("\t") != 5]
    return sorted((*row[:3], row[5]) for row in rows), told


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    """Two models have searched two collections, each both."""
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    for number in (1, 2):
        write_collection(tmp_path / f"data-{number}", n_queries=2, seed=number)
        make_backbone(tmp_path / f"model-{number}")
    # Other weights: of the same ones, the embeddings would be the same entry.
    encoder = BertModel.from_pretrained(tmp_path / "model-2")
    encoder.embeddings.LayerNorm.bias.data.add_(torch.arange(16))
    encoder.save_pretrained(tmp_path / "model-2")
    for model in ("model-1", "model-2"):
        for data in ("data-1", "data-2"):
            assert run_ltr(f"search {tmp_path / model} --corpus {tmp_path / data} --query w1") == 0
    capsys.readouterr()
    return tmp_path


def test_what_no_run_uses_is_told_and_removed(world, capsys):
    """By hand: the texts of 2 corpora, and the embeddings of 2 corpora by 2 models."""
    corpora = [str(world / f"data-{number}/corpus.jsonl") for number in (1, 2)]
    models = [str(world / f"model-{number}") for number in (1, 2)]
    assert run_ltr("cache") == 0
    rows, told = lines_of(capsys)
    expected = [("texts", corpus, "", "") for corpus in corpora]
    expected += [("encodings", corpus, model, "") for corpus in corpora for model in models]
    assert rows == sorted(expected)
    assert len(told) == 1 and told[0].startswith(f"{world / 'cache'}: 6 entries, ")
    assert told[0].endswith("; unused: 0 entries, 0 B")

    shutil.rmtree(world / "data-1")
    shutil.rmtree(world / "model-2")
    assert run_ltr("cache") == 0
    rows, told = lines_of(capsys)
    gone = {row[:3]: row[3] for row in rows if row[3]}
    # Of what reads data-1 and of what model-2 has made nothing is left in use.
    assert gone == {
        ("texts", corpora[0], ""): f"gone: {corpora[0]}",
        ("encodings", corpora[0], models[0]): f"gone: {corpora[0]}",
        ("encodings", corpora[0], models[1]): f"gone: {corpora[0]}",
        ("encodings", corpora[1], models[1]): f"gone: {models[1]}",
    }
    assert "unused: 4 entries" in told[0] and "--remove" in told[1]
    assert len(list((world / "cache").glob("*/*"))) == 6, "nothing is removed without --remove"

    assert run_ltr("cache --remove") == 0
    assert lines_of(capsys)[1][1].startswith("removed: 4 entries, ")
    assert run_ltr("cache") == 0
    rows, told = lines_of(capsys)
    assert rows == sorted(set(expected) - {(*row, "") for row in gone})
    assert len(list((world / "cache").glob("*/*"))) == 2
    # What is left is used, and what was removed is made again.
    assert run_ltr(f"search {models[0]} --corpus {world / 'data-2'} --query w1") == 0
    assert len(list((world / "cache").glob("*/*"))) == 2


@pytest.fixture
def one_entry(tmp_path, monkeypatch):
    """The cache with one entry."""
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    cached("tests", "one", write_three, Path, origin_of("ir_datasets:NAME"))
    return tmp_path / "cache"


def test_by_age_and_of_nothing(one_entry, capsys):
    assert run_ltr("cache --older_than 1 --remove") == 0
    _, told = lines_of(capsys)
    assert "unused: 0 entries" in told[0] and told[1] == "removed: 0 entries, 0 B"
    assert run_ltr("cache --older_than 0 --remove") == 0
    rows, told = lines_of(capsys)
    assert rows == [("tests", "ir_datasets:NAME", "", "not used for 0 days")]
    assert told[1].startswith("removed: 1 entry, ")
    assert run_ltr("cache") == 0
    assert lines_of(capsys) == ([], [f"{one_entry}: 0 entries, 0 B; unused: 0 entries, 0 B"])
    assert run_ltr("cache --older_than -1") == 2
    assert "must be a number of days of at least 0, got -1" in capsys.readouterr().err


def removed_by_age(capsys):
    """The lines below the rows of a removal of all that nothing has open."""
    assert run_ltr("cache --older_than 0 --remove") == 0
    return lines_of(capsys)[1]


def test_what_a_command_has_open_is_kept_and_told(one_entry, capsys):
    array = cached("tests", "one", write_three, map_a, origin_of("ir_datasets:NAME"))
    told = removed_by_age(capsys)
    assert told[1] == "removed: 0 entries, 0 B" and told[2].startswith("kept: 1 that a running")
    assert array.tolist() == [0, 1, 2]


def started(script: str, *words: str) -> subprocess.Popen:
    """A Python process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_another_process_has_open_is_kept_until_that_ends(one_entry, capsys):
    (folder,) = one_entry.glob("tests/*")
    holder = started(HOLDER, str(folder))
    assert holder.stdout.readline() == "mapped\n"
    told = removed_by_age(capsys)
    assert told[1] == "removed: 0 entries, 0 B" and told[2].startswith("kept: 1 that a running")
    assert {file.name for file in folder.iterdir()} == {"a.npy", "made-of", "seal"}
    assert holder.communicate("\n")[0] == "3\n"
    assert removed_by_age(capsys)[1].startswith("removed: 1 entry, ")
    assert not any(folder.parent.iterdir())


@pytest.mark.parametrize("options", ["", "--remove", "--older_than 0 --remove"])
def test_where_there_is_no_cache_yet(options, tmp_path, monkeypatch, capsys):
    root = tmp_path / "none"
    monkeypatch.setenv("LTR_CACHE", str(root))
    assert run_ltr(f"cache {options}") == 0
    told = f"{root}: 0 entries, 0 B; unused: 0 entries, 0 B"
    removed = ["removed: 0 entries, 0 B"] if options else []
    assert lines_of(capsys) == ([], [told, *removed])
    assert not root.exists()


# Waits for a line, so that all begin at once.
REMOVER = """
import sys
from ltr.__main__ import main
import ltr.cli.cache
print("ready", flush=True)
sys.stdin.readline()
sys.exit(main(["cache", "--older_than", "0", "--remove"]))
"""


def test_two_processes_remove_at_once(one_entry):
    """Each says of every entry that it lists that it is removed or kept, and none is left."""
    for number in range(60):
        cached("tests", f"entry {number}", write_three, Path, origin_of("ir_datasets:NAME"))
    removers = [started(REMOVER) for _ in range(2)]
    for remover in removers:
        assert remover.stdout.readline() == "ready\n"
    for remover in removers:
        remover.stdin.write("\n")
        remover.stdin.flush()
    n_told = 0
    for remover in removers:
        out, err = remover.communicate()
        assert (remover.returncode, err) == (0, "")
        n_unused = int(re.search(r"; unused: (\d+) ", out)[1])
        n_removed = int(re.search(r"^removed: (\d+) ", out, flags=re.MULTILINE)[1])
        kept = re.search(r"^kept: (\d+) ", out, flags=re.MULTILINE)
        assert n_removed + (0 if kept is None else int(kept[1])) == n_unused
        n_told += n_removed
    assert n_told >= 61
    assert not any((one_entry / "tests").iterdir())


def test_on_a_terminal_it_is_a_table(one_entry, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cache()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # without colours
    head, row, *_ = shown.splitlines()
    assert head.split() == ["kind", "data", "model", "size", "last", "used", "unused"]
    assert row.split()[:2] == ["tests", "ir_datasets:NAME"]


@pytest.mark.parametrize("kind", ["a file", "a loop of links"])
def test_what_is_no_folder_is_no_empty_cache(kind, tmp_path, monkeypatch, capsys):
    place = tmp_path / "place"
    place.write_text("") if kind == "a file" else place.symlink_to(place)
    monkeypatch.setenv("LTR_CACHE", str(place))
    assert run_ltr("cache") == 2
    assert "must be a folder, got" in capsys.readouterr().err
