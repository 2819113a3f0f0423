"""Lines, files written whole, the cache: what fails leads to the line, and leaves nothing
half-written.
"""

import errno
import gzip
import json
import os
import random
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from ltr.data import disk, whole_files
from ltr.data.collection import open_collection
from ltr.data.disk import new_array
from ltr.data.files import blocks, cache_root, map_given_array, numbered_lines, plain_or_packed
from ltr.data.letor import read_letor
from ltr.data.normalise import Normalisation
from ltr.data.whole_files import locked, write_whole
from tests.child_processes import fork, until
from tests.world.collections import write_collection
from tests.world.features import write_letor
from tests.world.refusals import refused

TEXT = "\ufeffone\r\n\n  \nfour é\nlast"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_have_their_numbers_and_empty_ones_are_left_out(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    assert list(numbered_lines(file)) == [(1, "one"), (4, "four é"), (5, "last")]
    assert plain_or_packed(tmp_path, "a.txt") == file and plain_or_packed(tmp_path, "b.txt") is None


@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_blocks_are_whole_lines_that_add_up_to_the_file(tmp_path, size):
    (tmp_path / "a").write_bytes(TEXT.encode())
    found = list(blocks(tmp_path / "a", size))
    assert b"".join(block for _, block in found) == TEXT.encode()[3:]
    for (number, block), (next_number, _) in zip(found, found[1:], strict=False):
        assert block.endswith(b"\n") and next_number == number + block.count(b"\n")
    assert len(found) == {0: 5, 1: 4, 7: 3, 1000: 1}[size] and found[0][0] == 1


UNREADABLE = [
    # name, content, words of the refusal
    ("a.tsv", b"good\nna\xefve\n", r"a.tsv:2: text must be UTF-8, got byte 0xef at column 3"),
    (
        "a.tsv",
        b"good\na\0b\n",
        r"a.tsv:2: text must be UTF-8, got a NUL byte at column 2; "
        "the file is damaged, or UTF-16: save",
    ),
    (
        "a.tsv",
        "é\n".encode("utf-16-be"),
        r"a.tsv:1: text must be UTF-8, got a NUL byte at column 1",
    ),
    (
        "a.tsv",
        b"q\tp\rq\tr\r",
        r"a.tsv: lines must end in \\n or \\r\\n, got \\r alone; "
        "save the file with other line ends",
    ),
    ("a.tsv", b"q\tp\rq\tr", r"a.tsv: lines must end in"),
]


@pytest.mark.parametrize("name, content, words", UNREADABLE)
def test_what_cannot_be_read_leads_to_the_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with refused(words):
        list(numbered_lines(tmp_path / name))


def test_what_is_no_whole_file_is_said(tmp_path):
    for read in (numbered_lines, lambda file: blocks(file, 1000)):
        with refused("nowhere: there is no such file"):
            list(read(tmp_path / "nowhere"))
        with refused("expected a file, got a folder"):
            list(read(tmp_path))


def test_a_stray_return_is_white_space_of_its_line(tmp_path):
    (tmp_path / "a").write_bytes(b"one\rtwo\nthree\rfour")
    assert list(numbered_lines(tmp_path / "a")) == [(1, "one\rtwo"), (2, "three\rfour")]
    (tmp_path / "b").write_bytes(b"alone\r")
    assert list(numbered_lines(tmp_path / "b")) == [(1, "alone")]


HALF = r"5: text must be valid Unicode, got half a surrogate pair '\\ud800'"
NUL = "5: text must not hold NUL, got one after 3 characters; remove"


@pytest.mark.parametrize(
    "file, field, value, words",
    [
        ("corpus.jsonl", "_id", "\ud800", HALF),
        ("corpus.jsonl", "text", "half \ud800", HALF),
        ("corpus.jsonl", "text", "w1 \0 w2", NUL),
        ("queries.jsonl", "text", "w1 \0 w2", NUL),
    ],
)
def test_what_json_alone_can_spell_is_refused(tmp_path, file, field, value, words):
    """UTF-8 has no bytes for half a surrogate pair; a NUL is refused as a raw one is."""
    folder = write_collection(tmp_path / "c", n_queries=2)
    lines = (folder / file).read_text().splitlines()
    lines[4] = json.dumps(json.loads(lines[4]) | {field: value})
    (folder / file).write_text("\n".join(lines))
    with refused(f"{file}:{words}"):
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
    with refused("set the environment variable LTR_CACHE"):
        cache_root()
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_root() == tmp_path / ".cache/ltr"


def test_a_new_array_is_zeros_with_its_blocks_on_disk(tmp_path):
    array = new_array(tmp_path / "a.npy", np.float32, (1000, 100))
    assert array.shape == (1000, 100) and not array.any()
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= array.nbytes


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("EVIL_RAN"),)


def test_an_array_of_objects_is_refused(here):
    """numpy keeps objects as pickles, which run code when they are read."""
    np.save("a.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    with refused("a.npy: expected a whole .npy file, got an error"):
        map_given_array(Path("a.npy"))
    assert not Path("EVIL_RAN").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("630 requested and 496 written"),
        RuntimeError("No space left on device (28)"),
        OSError("LanceError(IO): No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_no_folder(tmp_path, error):
    """Packages in Rust have errors of their own."""

    def full(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "half").write_text("half")
        raise error

    with refused(r"made: the disk is full \(No space left on device\); make room$"):
        whole_files.write_folder(tmp_path / "made", full)
    assert not list(tmp_path.iterdir())
    with refused(r"made: the disk is full"):
        whole_files.write_new(tmp_path / "made", full, "the output")
    assert not list(tmp_path.iterdir())


def test_a_new_output_is_a_file_or_a_folder_and_replaces_nothing(tmp_path):
    def write_tree(path: Path) -> None:
        assert path.parent == tmp_path / "out" and path.name != "folder"
        (path / "deep").mkdir(parents=True)
        (path / "deep/0").write_text("0")

    out = tmp_path / "out"
    whole_files.write_new(out / "file", lambda path: path.write_text("whole"), "the output")
    whole_files.write_new(out / "folder", write_tree, "the output")
    (out / "link").symlink_to("nowhere")
    for name in ("file", "folder", "link"):
        with refused(f"the output must not exist yet, got .*out/{name}'"):
            whole_files.write_new(out / name, Path.touch, "the output")
    assert (out / "file").read_text() == "whole"
    assert (out / "folder/deep/0").read_text() == "0"
    assert len(list(out.iterdir())) == 3


@pytest.fixture
def small_disk():
    """No file grows beyond 4,096 bytes: what numpy does then it also does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_lies_beside_an_output_stays(tmp_path):
    """Hidden files and folders of the user's that are called as those of other programs are."""
    names = [f".{name}.{kind}" for name in ("out", "file") for kind in ("tmp", "lock", "parts")]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
    whole_files.write_new(tmp_path / "out", Path.mkdir, "the folder")
    write_whole(tmp_path / "file", ["a"])
    whole_files.folder_once(tmp_path / "once", lambda _: None)
    assert {file.name for file in tmp_path.iterdir()} == {*names, "out", "file", "once"}
    assert all((tmp_path / name / "thesis.txt").read_text() == "mine" for name in names)


def test_an_array_that_was_written_in_part_means_a_full_disk(tmp_path, small_disk):
    """By numpy itself, whose words are these in all versions that we take."""
    with pytest.raises(OSError, match="requested and .* written") as raised:
        np.save(tmp_path / "a.npy", np.ones(1000))
    assert disk.means_full_disk(raised.value)
    with refused(r"made: the disk is full"):
        whole_files.write_folder(tmp_path / "made", lambda to: np.save(to / "a.npy", np.ones(1000)))
    assert not (tmp_path / "made").exists()


def test_a_full_disk_leaves_no_table_of_features(tmp_path, monkeypatch):
    """The room for both tables is taken before they are written: an error, and not a process killed
    by a write to a map.
    """
    split = read_letor([write_letor(tmp_path / "read") / "train.txt"])
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))

    def full(file: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "reserve_space", full)
    with refused(r"cache/letor/\w+: the disk is full \(No space .*\); make room, or .*LTR_CACHE"):
        read_letor([tmp_path / "read/train.txt"])
    with refused(r"cache/normalised/\w+: the disk is full"):
        Normalisation(["log1p"]).fit(split, split.n_features).apply(split)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640)])
def test_what_is_written_has_the_modes_of_new_files_and_folders(tmp_path, umask, mode):
    """safetensors writes files of mode 0600: another user could not load a saved model."""

    def build(folder):
        (folder / "inner").mkdir()
        for file in (folder / "plain", folder / "inner/private"):
            file.touch()
        (folder / "inner/private").chmod(0o600)

    before = os.umask(umask)
    try:
        whole_files.write_folder(tmp_path / "made", build)
        write_whole(tmp_path / "file", ["text"])
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    of_folders = dict.fromkeys(("made", "inner"), 0o777 & ~umask)
    assert modes == of_folders | dict.fromkeys(("plain", "private", "file"), mode)


def write_often(name, out, rounds):
    def build(folder):
        for number in range(3):
            (folder / f"{number}").write_text(name)

    for number in range(rounds):
        whole_files.write_folder(out / f"folder-{name}-{number}", build)
        write_whole(out / "file", [f"{name}\n"] * 1000)


@pytest.mark.parametrize(
    "kills", [4, pytest.param(20, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_what_a_killed_writer_has_left_the_next_one_removes(tmp_path, kills):
    """Killed at a random moment, it leaves what is whole, and at most two names that are not. The
    next writer of the same output removes these.
    """
    n_left = 0
    for kill in range(kills):
        out = tmp_path / str(kill)
        writer = fork(lambda out=out: write_often("a", out, 100_000))
        until(out.exists)
        time.sleep(random.uniform(0, 0.05))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        for folder in out.glob("folder-*"):
            assert [file.read_text() for file in folder.iterdir()] == ["a"] * 3
        left = sorted(path.name for path in out.glob(".*"))
        assert len(left) <= 2 and len({name.rpartition(".")[0] for name in left}) <= 1
        for name in left:  # .NAME.ltr-lock, .NAME.ltr-tmp
            n_left += 1
            unfinished = out / name[1:].rpartition(".")[0]
            if unfinished.name == "file":
                write_whole(unfinished, ["whole"])
                assert unfinished.read_text() == "whole"
            elif not unfinished.exists():
                whole_files.write_folder(unfinished, lambda folder: (folder / "0").touch())
                assert [file.name for file in unfinished.iterdir()] == ["0"]
            else:  # killed after the last step
                whole_files.folder_once(unfinished, lambda folder: None, lambda folder: False)
        assert not list(out.glob(".*"))
    print("names left by the killed:", n_left)


def test_a_file_that_two_processes_write_at_once_is_that_of_one(tmp_path):
    writers = [fork(lambda name=name: write_often(name, tmp_path, 15)) for name in "ab"]
    seen = set()
    while writers:
        if (tmp_path / "file").exists():
            seen.add((tmp_path / "file").read_text())
        ended, status = os.waitpid(writers[0], os.WNOHANG)
        if ended:
            assert status == 0
            writers.pop(0)
    assert seen <= {"a\n" * 1000, "b\n" * 1000} and not list(tmp_path.glob(".*"))
    assert len(list(tmp_path.iterdir())) == 31


def hold_often(folder):
    for _ in range(300):
        with locked(folder / "lock"):
            # An error if there is one.
            os.close(os.open(folder / "holder", os.O_CREAT | os.O_EXCL))
            os.unlink(folder / "holder")


def test_a_lock_has_one_holder_though_its_file_is_removed_each_time(tmp_path):
    holders = [fork(lambda: hold_often(tmp_path)) for _ in range(3)]
    assert [os.waitpid(holder, 0)[1] for holder in holders] == [0, 0, 0]
    assert not list(tmp_path.iterdir())


def test_a_lock_is_let_go_though_a_forked_process_has_its_file_open(tmp_path):
    with locked(tmp_path / "lock"):
        child = fork(signal.pause)
        waiter = fork(lambda: hold_often(tmp_path))
        time.sleep(0.5)
        assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
    try:
        assert os.waitpid(waiter, 0)[1] == 0
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
