"""Lines, files written whole, the cache: what fails leads to the line, and leaves nothing
half-written.
"""

import errno
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from ltr.data import files
from ltr.data.collection import open_collection
from ltr.data.files import (
    blocks,
    cache_root,
    cached,
    new_array,
    numbered_lines,
    plain_or_gz,
    write_whole,
)
from ltr.data.letor import read_letor
from ltr.data.normalise import Normalisation
from ltr.errors import InputError
from tests.conftest import write_collection, write_letor

TEXT = "\ufeffone\r\n\n  \nfour é\nlast"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_have_their_numbers_and_empty_ones_are_left_out(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    assert list(numbered_lines(file)) == [(1, "one"), (4, "four é"), (5, "last")]
    assert plain_or_gz(tmp_path, "a.txt") == file and plain_or_gz(tmp_path, "b.txt") is None


@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_blocks_are_whole_lines_that_add_up_to_the_file(tmp_path, size):
    (tmp_path / "a").write_bytes(TEXT.encode())
    found = list(blocks(tmp_path / "a", size))
    assert b"".join(block for _, block in found) == TEXT.encode()[3:]
    for (number, block), (next_number, _) in zip(found, found[1:], strict=False):
        assert block.endswith(b"\n") and next_number == number + block.count(b"\n")
    assert len(found) == {0: 5, 1: 4, 7: 3, 1000: 1}[size] and found[0][0] == 1


def test_what_cannot_be_read_leads_to_the_line(tmp_path):
    with pytest.raises(InputError, match="nowhere: there is no such file"):
        list(numbered_lines(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="expected a file, got a folder"):
        list(numbered_lines(tmp_path))
    (tmp_path / "latin").write_bytes(b"good\nna\xefve\n")
    with pytest.raises(InputError, match=r"latin:2: text must be UTF-8, got byte 0xef at column 3"):
        list(numbered_lines(tmp_path / "latin"))
    whole = gzip.compress(b"".join(b"line %d\n" % i for i in range(9)))
    (tmp_path / "cut.gz").write_bytes(whole[:-12])
    with pytest.raises(InputError, match=r"cut.gz:\d+: the gzip file is broken here \("):
        list(numbered_lines(tmp_path / "cut.gz"))
    with pytest.raises(InputError, match=r"cut.gz:1: the gzip file is broken here or further on"):
        list(blocks(tmp_path / "cut.gz", 1000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"good\na\0b\n",
            r"a.tsv:2: text must be UTF-8, got a NUL byte at column 2; the file is damaged, or UTF-16: save",
        ),
        ("q\tp\n".encode("utf-16"), r"a.tsv:1: text must be UTF-8, got a NUL byte at column 4"),
        ("q\tp\n".encode("utf-16-le"), r"a.tsv:1: text must be UTF-8, got a NUL byte at column 2"),
        ("é\n".encode("utf-16-be"), r"a.tsv:1: text must be UTF-8, got a NUL byte at column 1"),
        (
            b"q\tp\rq\tr\r",
            r"a.tsv: lines must end in \\n or \\r\\n, got \\r alone; save the file with other line ends",
        ),
        (b"q\tp\rq\tr", r"a.tsv: lines must end in"),
    ],
)
def test_files_of_other_encodings_and_line_ends_are_refused(tmp_path, content, message):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(numbered_lines(tmp_path / "a.tsv"))


def test_a_stray_return_is_white_space_of_its_line(tmp_path):
    (tmp_path / "a").write_bytes(b"one\rtwo\nthree\rfour")
    assert list(numbered_lines(tmp_path / "a")) == [(1, "one\rtwo"), (2, "three\rfour")]
    (tmp_path / "b").write_bytes(b"alone\r")
    assert list(numbered_lines(tmp_path / "b")) == [(1, "alone")]


@pytest.mark.parametrize("field", ["_id", "text"])
def test_half_a_surrogate_pair_is_one_line_that_leads_to_the_place(tmp_path, field):
    """JSON can spell it, and UTF-8 has no bytes for it."""
    folder = write_collection(tmp_path / "c", n_queries=2)
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    lines[4] = json.dumps(json.loads(lines[4]) | {field: "half \ud800"[5 * (field == "_id") :]})
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    with pytest.raises(
        InputError,
        match=r"corpus.jsonl:5: text must be valid Unicode, got half a surrogate pair '\\ud800'",
    ):
        open_collection(str(folder))


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "metrics.json"
    write_whole(file, ["old\n"])

    def lines():
        yield "new\n"
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError):
        write_whole(file, lines())
    assert file.read_text() == "old\n" and list(tmp_path.iterdir()) == [file]


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    """A user without a home folder, as in a container, needs none where LTR_CACHE or XDG_CACHE_HOME
    is set.
    """

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("LTR_CACHE")
    assert cache_root() == tmp_path / "user/ltr"
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(InputError, match="set the environment variable LTR_CACHE"):
        cache_root()
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_root() == tmp_path / ".cache/ltr"


def test_a_folder_of_the_cache_is_built_once_for_each_content():
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("whole")

    folders = [cached("tests", content, build) for content in ("a", "b", b"a")]
    assert folders[0] == folders[2] != folders[1] and len(built) == 2
    assert (
        folders[0].parent == cache_root() / "tests" and (folders[0] / "file").read_text() == "whole"
    )


@pytest.mark.parametrize(
    "damage", ["empty", "cut", "zeros", "zeros at the end", "gone", "another file", "no seal"]
)
def test_a_damaged_folder_of_the_cache_is_made_again(damage, caplog):
    """What a crash or a full disk leaves: it is told by sizes and the ends of files, and costs one
    more build.
    """
    built = []

    def build(folder: Path) -> None:
        built.append(np.arange(5000))
        np.save(folder / "a.npy", built[-1])

    folder = cached("tests", f"damaged {damage}", build)
    file = folder / "a.npy"
    whole = (folder / "a.npy").read_bytes()
    cut = {"empty": 0, "cut": 30_000, "zeros": 0, "zeros at the end": 30_000}.get(
        damage, len(whole)
    )
    file.write_bytes(whole[:cut] + b"\0" * (len(whole) - cut) * damage.startswith("zeros"))
    if damage in ("gone", "no seal"):
        (file if damage == "gone" else folder / "seal").unlink()
    if damage == "another file":
        (folder / "b").write_text("b")
    assert cached("tests", f"damaged {damage}", build) == folder and len(built) == 2
    assert f"{folder} is damaged, or of an older version: it is made again" in caplog.text
    assert file.read_bytes() == whole and sorted(p.name for p in folder.iterdir()) == [
        "a.npy",
        "seal",
    ]
    assert cached("tests", f"damaged {damage}", build) == folder and len(built) == 2


def test_a_damaged_table_of_texts_is_read_again(tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=2)
    table = open_collection(str(folder)).corpus
    texts = list(table.texts)
    for name in ("texts.npy", "ids.offsets.npy"):
        (table.folder / name).write_bytes(b"")
        assert list(open_collection(str(folder)).corpus.texts) == texts


def test_a_new_array_is_zeros_with_its_blocks_on_disk(tmp_path):
    array = new_array(tmp_path / "a.npy", np.float32, (1000, 100))
    assert array.shape == (1000, 100) and not array.any()
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= array.nbytes


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("No space left on device (28)"),
    ],
)
def test_a_full_disk_leaves_no_folder(tmp_path, error):
    """Packages in Rust have errors of their own."""

    def full(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(
        InputError, match=r"made: the disk is full \(No space left on device\); make room$"
    ):
        files.write_folder(tmp_path / "made", full)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_table_of_features(tmp_path, monkeypatch):
    """The room for both tables is taken before they are written: an error, and not a process killed
    by a write to a map.
    """
    split = read_letor([write_letor(tmp_path / "read") / "train.txt"])
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))

    def full(file: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "reserve_space", full)
    with pytest.raises(
        InputError,
        match=r"cache/letor/\w+: the disk is full \(No space left on device\); make room, or .*LTR_CACHE",
    ):
        read_letor([tmp_path / "read/train.txt"])
    with pytest.raises(InputError, match=r"cache/normalised/\w+: the disk is full"):
        Normalisation(["log1p"]).fit(split, split.n_features).apply(split)
    assert [
        p for p in (tmp_path / "cache").rglob("*") if p.is_file() and not p.name.endswith(".lock")
    ] == []


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640)])
def test_all_files_of_a_folder_have_the_mode_of_a_new_file(tmp_path, umask, mode):
    """safetensors writes files of mode 0600: another user could not load a saved model."""

    def build(folder):
        (folder / "inner").mkdir()
        for file in (folder / "plain", folder / "inner/private"):
            file.touch()
        (folder / "inner/private").chmod(0o600)

    before = os.umask(umask)
    try:
        files.write_folder(tmp_path / "made", build)
    finally:
        os.umask(before)
    written = [file for file in (tmp_path / "made").rglob("*") if file.is_file()]
    assert {file.name for file in written} == {"plain", "private"}
    assert {file.stat().st_mode & 0o777 for file in written} == {mode}
