"""The cache: built once, made again where it is damaged; what lies there, for whom, and what of it
is removed.
"""

import errno
import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.data.cache_contents import Cache
from ltr.data.cache_folder import cached, origin_of
from ltr.data.collection import open_collection
from ltr.data.files import cache_root, map_array
from tests.child_processes import fork
from tests.data.programs import start
from tests.world.collections import write_collection

ORIGIN = origin_of("nothing")


def test_a_folder_of_the_cache_is_built_once_for_each_content():
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("whole")

    folders = [cached("tests", content, build, Path, ORIGIN) for content in ("a", "b", b"a")]
    assert folders[0] == folders[2] != folders[1] and len(built) == 2
    assert folders[0].parent == cache_root() / "tests"
    assert (folders[0] / "file").read_text() == "whole"


DAMAGE = {
    "empty": lambda folder, whole: (folder / "a.npy").write_bytes(b""),
    "cut": lambda folder, whole: (folder / "a.npy").write_bytes(whole[:30_000]),
    "zeros": lambda folder, whole: (folder / "a.npy").write_bytes(bytes(len(whole))),
    "zeros at the end": lambda folder, whole: (folder / "a.npy").write_bytes(
        whole[:30_000] + bytes(len(whole) - 30_000)
    ),
    "gone": lambda folder, whole: (folder / "a.npy").unlink(),
    "another file": lambda folder, whole: (folder / "b").write_text("b"),
    "no seal": lambda folder, whole: (folder / "seal").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_of_the_cache_is_made_again(damage, caplog):
    """What a crash or a full disk leaves: it is told by sizes and the ends of files, and costs one
    more build.
    """
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        np.save(folder / "a.npy", np.arange(5000))

    def opened():
        return cached("tests", f"damaged {damage}", build, Path, ORIGIN)

    folder = opened()
    whole = (folder / "a.npy").read_bytes()
    DAMAGE[damage](folder, whole)
    assert opened() == folder and len(built) == 2
    assert f"{folder} is damaged: it is made again" in caplog.text
    assert (folder / "a.npy").read_bytes() == whole
    assert {path.name for path in folder.iterdir()} == {"a.npy", "made-of", "seal"}
    assert opened() == folder and len(built) == 2


def test_a_damaged_table_of_texts_is_read_again(tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=2)
    table = open_collection(str(folder)).corpus
    texts = list(table.texts)
    for name in ("texts.npy", "ids.offsets.npy"):
        (table.folder / name).write_bytes(b"")
        assert list(open_collection(str(folder)).corpus.texts) == texts


def write_three(folder):
    np.save(folder / "a.npy", np.arange(3))


def map_a(folder):
    return map_array(folder / "a.npy")


def entry_of(content):
    """The entry of a content, opened and let go."""
    return Path(cached("tests", content, write_three, map_a, ORIGIN).filename).parent


def listed(folder):
    return next(entry for entry in Cache().entries if entry.folder == folder)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_entry_is_unused_once_all_that_it_was_made_of_is_gone(empty_cache, tmp_path):
    """Two sets of data with the same content share an entry: it goes with the second."""
    for name in ("data-1", "data-2", "model"):
        (tmp_path / name).mkdir()
    origins = [
        origin_of(tmp_path / data, model=tmp_path / "model") for data in ("data-1", "data-2")
    ]
    for origin in [*origins, *origins]:
        cached("tests", "shared", write_three, map_a, origin)
    (tmp_path / "cache/tests" / ("0" * 32)).write_text("a file of others")
    (entry,) = Cache().entries
    assert Cache().first_origins(entry) == origins and Cache().why_unused(entry, None) is None
    (tmp_path / "data-1").rmdir()
    assert Cache().why_unused(entry, None) is None
    (tmp_path / "data-2").rmdir()
    assert Cache().why_unused(entry, None) == f"gone: {tmp_path / 'data-1'}"
    (tmp_path / "data-2").mkdir()
    (tmp_path / "model").rmdir()
    assert Cache().why_unused(entry, None) == f"gone: {tmp_path / 'data-1'}"
    (tmp_path / "model").mkdir()
    assert Cache().why_unused(entry, None) is None


def test_what_was_made_of_an_entry_goes_with_it_and_names_are_never_gone(empty_cache, tmp_path):
    (tmp_path / "data").mkdir()
    first = cached("tests", "first", write_three, Path, origin_of(tmp_path / "data"))
    second = cached("tests", "second", write_three, Path, origin_of(first, model="owner/name"))
    origin = origin_of(tmp_path / "data", model="owner/name")
    assert Cache().first_origins(listed(second)) == [origin]
    assert Cache().why_unused(listed(second), None) is None
    (tmp_path / "data").rmdir()
    assert Cache().why_unused(listed(second), None) == f"gone: {tmp_path / 'data'}"
    assert listed(first).try_remove()
    assert Cache().why_unused(listed(second), None) == f"gone: {first}"


def test_an_entry_of_unknown_origin_is_unused_by_its_age_alone(empty_cache):
    """One whose command was killed before it said so; opened again, its origin is known."""
    folder = entry_of("old")
    (folder / "made-of").unlink()
    entry = listed(folder)
    assert [origin.data for origin in Cache().first_origins(entry)] == [("unknown",)]
    assert Cache().why_unused(entry, None) is None
    ten_days_ago = time.time() - 10 * 24 * 60 * 60
    os.utime(folder / "seal", (ten_days_ago, ten_days_ago))
    entry = listed(folder)
    assert Cache().why_unused(entry, None) is None and Cache().why_unused(entry, 11) is None
    assert Cache().why_unused(entry, 9) == "not used for 10 days"
    assert entry_of("old") == folder
    assert Cache().why_unused(listed(folder), 9) is None
    assert Cache().first_origins(listed(folder)) == [ORIGIN]
    assert not entry.try_remove(), "it was opened since it was listed"
    (folder / "made-of").write_text('{"data": 3}\n[\nnull\n')
    assert [origin.data for origin in Cache().first_origins(listed(folder))] == [("unknown",)]


def test_an_entry_that_is_mapped_is_kept_also_for_a_forked_process(empty_cache):
    array = cached("tests", "mapped", write_three, map_a, ORIGIN)
    folder = Path(array.filename).parent
    assert not listed(folder).try_remove() and folder.is_dir()
    view = np.asarray(array)[1:]
    del array
    assert not listed(folder).try_remove()
    child = fork(signal.pause)
    del view
    assert not listed(folder).try_remove()
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert listed(folder).try_remove() and not any(folder.parent.iterdir())


def test_on_a_disk_without_locks_entries_are_read_and_none_is_removed(
    empty_cache, monkeypatch, capsys
):
    """As some network disks are."""
    folder = entry_of("without locks")

    def no_locks(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert cached("tests", "without locks", write_three, map_a, ORIGIN).tolist() == [0, 1, 2]
    assert main(["cache", "--older_than", "0", "--remove"]) == 2
    told = capsys.readouterr()
    assert told.out.startswith("tests\tnothing\t"), "listed all the same"
    assert f"{folder.parent}: files can't be locked on this disk" in told.err
    assert entry_of("without locks") == folder


HOLDER = """
import sys, time
from pathlib import Path
from ltr.data.files import map_array
array = map_array(Path(sys.argv[1]) / "a.npy")
print("mapped", flush=True)
sys.stdin.readline()
print(array.sum(), flush=True)
"""


def test_an_entry_that_another_process_maps_is_kept_until_it_ends(empty_cache):
    folder = entry_of("held")
    process = start(HOLDER, folder)
    assert process.stdout.readline() == "mapped\n"
    assert not listed(folder).try_remove()
    # Removed by hand, it stays readable where it is mapped.
    shutil.rmtree(folder)
    assert process.communicate("\n")[0] == "3\n"
    assert entry_of("held") == folder
    assert listed(folder).try_remove() and not folder.exists()


def open_often():
    for _ in range(60):
        array = cached("tests", "raced", write_three, map_a, ORIGIN)
        assert array.tolist() == [0, 1, 2]
        del array


def test_entries_are_opened_whole_while_another_process_removes_them(empty_cache):
    openers = [fork(open_often) for _ in range(2)]
    n_removed = 0
    while openers:
        n_removed += sum(entry.try_remove() for entry in Cache().entries)
        child, status = os.waitpid(openers[0], os.WNOHANG)
        if child:
            assert status == 0
            openers.pop(0)
    assert n_removed > 0


def test_what_a_killed_build_has_left_is_told_and_removed(empty_cache):
    def killed(folder):
        np.save(folder / "a.npy", np.arange(1000))
        os.kill(os.getpid(), 9)

    child = fork(lambda: cached("tests", "killed", killed, map_a, ORIGIN))
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (entry,) = Cache().entries
    assert Cache().why_unused(entry, None) == "left by a killed command" and entry.size > 8000

    def seen_from_within(folder):
        assert not Cache().entries, "what is being made was not left"
        assert not entry.try_remove()
        write_three(folder)

    # The next build removes it; so does ltr cache.
    cached("tests", "killed", seen_from_within, map_a, ORIGIN)
    assert [entry.size < 1000 for entry in Cache().entries] == [True]
    child = fork(lambda: cached("tests", "killed again", killed, map_a, ORIGIN))
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert all(entry.try_remove() for entry in Cache().entries)
    assert not list((empty_cache / "tests").iterdir())


def test_folders_that_are_no_entries_are_not_looked_at(empty_cache):
    """LTR_CACHE may name a folder with other things in it."""
    for name in ("other/file", "other/seal", f"other/{'0' * 32}/file", f"{'0' * 32}/seal", "seal"):
        (empty_cache / name).parent.mkdir(parents=True, exist_ok=True)
        (empty_cache / name).touch()
    assert Cache().entries == []
