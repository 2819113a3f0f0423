"""``ltr export-corpus``: whole or not at all, in bounded memory, and one line for what is wrong."""

import json
import os
import shutil
import signal
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.errors import InputError
from ltr.use.handover import faiss_file
from ltr.use.handover.encoded_corpus import EncodedCorpus
from ltr.use.handover.hand_over import WRITERS, hand_over
from ltr.use.load import load
from tests.child_processes import fork
from tests.cli import damages
from tests.use.handover.corpora import ROWS, write_encoding

CHANGED = "the shards, the ids and manifest.json must be those that were written together, and have changed since; start its ltr encode again, which makes it anew"
PACKAGES = {"parquet": "pyarrow", "faiss": "faiss"}


@pytest.fixture
def encoding(tmp_path):
    return write_encoding(tmp_path / "encoded", "dot")


def export_corpus(encoded, format, output) -> int:
    return main(["export-corpus", str(encoded), "--format", format, "--output", str(output)])


def check_refused(capsys, said, encoded, format, output) -> None:
    """In one line."""
    assert export_corpus(encoded, format, output) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert said in line


def test_the_package_of_each_format_is_known():
    assert list(PACKAGES) == list(WRITERS)


def test_what_ltr_search_finds_is_found_in_the_index(backbone, collection_folder, tmp_path, capsys):
    """From the texts on: the tiny encoder compares by cosine."""
    faiss = pytest.importorskip("faiss")
    words = ["--corpus", str(collection_folder)]
    assert main(["encode", backbone, *words, "--output", str(tmp_path / "encoded")]) == 0
    capsys.readouterr()
    assert export_corpus(tmp_path / "encoded", "faiss", tmp_path / "out") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        f"{tmp_path}/out: 720 documents of 16 dimensions, at length 1, to be compared by inner product; "
        f"read it: faiss.read_index('{tmp_path}/out/index.faiss'), whose row i is line i + 1 of ids.txt"
    )
    for query in ("w1 w3", "w7", "w20 w5 w40"):
        assert main(["search", backbone, *words, "--query", query]) == 0
        expected = [hit.split("\t")[2] for hit in capsys.readouterr().out.splitlines()]
        index = faiss.read_index(str(tmp_path / "out/index.faiss"))
        _, rows = index.search(load(backbone).encode([query], "query"), 10)
        ids = (tmp_path / "out/ids.txt").read_text().splitlines()
        assert [ids[row] for row in rows[0].tolist()] == expected


def test_an_encoding_without_ids_and_similarity_is_refused(encoding):
    """As those of the cache."""
    for file in encoding.folder.glob("ids.*"):
        file.unlink()
    encoding.finish()
    with pytest.raises(InputError, match="start its ltr encode again, which adds them"):
        EncodedCorpus(encoding.folder)


@pytest.mark.parametrize("format", WRITERS)
def test_a_missing_package_is_named(encoding, tmp_path, format, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGES[format]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, PACKAGES[format], None)
    monkeypatch.setattr(faiss_file, "faiss", None)
    check_refused(capsys, "pip install ", encoding.folder, format, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def changed(change):
    """What changes a file by its bytes."""
    return lambda file: file.write_bytes(change(bytearray(file.read_bytes())))


def offsets(change):
    return lambda file: np.save(file, change(np.load(file)))


def manifest(**entries):
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def in_a_folder(file):
    file.unlink()
    file.mkdir()


def with_other_bit(content):
    content[200] ^= 1
    return content


SHARD, IDS, OFFSETS, MANIFEST = "000001.npy", "ids.npy", "ids.offsets.npy", "manifest.json"
# What is done to a file of an encoding, and what is told.
DAMAGES = {
    "unfinished": (
        MANIFEST,
        Path.unlink,
        "the encoding is not finished, there is no manifest.json",
    ),
    "a shard less": (
        SHARD,
        Path.unlink,
        "000001.npy is missing or damaged; start its ltr encode again",
    ),
    "another bit": (
        SHARD,
        changed(with_other_bit),
        "000001.npy: the bytes of this shard are not those that were written; start",
    ),
    "fewer ids": (OFFSETS, offsets(lambda rows: rows[:-1]), CHANGED),
    "other ids": (OFFSETS, offsets(lambda rows: np.r_[0, rows[2:], rows[-1:]]), CHANGED),
    "ids by floats": (OFFSETS, offsets(lambda rows: rows.astype(np.float64)), CHANGED),
    "swapped ids": (IDS, offsets(lambda letters: np.roll(letters, 10)), CHANGED),
    "no ids": (OFFSETS, changed(lambda content: b""), CHANGED),
    "no offsets": (OFFSETS, Path.unlink, CHANGED),
    "offsets in a folder": (
        OFFSETS,
        in_a_folder,
        "ids.offsets.npy: expected a file, got a folder; remove it",
    ),
    "ids of other letters": (IDS, changed(lambda content: content[:-1] + b"\xff"), CHANGED),
    "another similarity": (MANIFEST, manifest(similarity="cosine"), CHANGED),
    "a similarity that is a list": (
        MANIFEST,
        manifest(similarity=[]),
        "similarity must be a text, got []; start its ltr encode",
    ),
    "another dimension": (MANIFEST, manifest(dim=5), CHANGED),
    "a number as ranker": (
        MANIFEST,
        manifest(ranker=5),
        "ranker must be a text, got 5; start its ltr encode again",
    ),
    "nested": (
        MANIFEST,
        changed(lambda content: b"[" * 100_000),
        "manifest.json: the file is damaged (nested too deep",
    ),
    "nothing": ("", shutil.rmtree, "expected an encoding, as ltr encode writes it"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_encoding_is_refused(encoding, tmp_path, capsys, how):
    pytest.importorskip("pyarrow")
    name, damage, said = DAMAGES[how]
    damage(encoding.folder / name)
    check_refused(capsys, said, encoding.folder, "parquet", tmp_path / "out")
    assert {file.name for file in tmp_path.iterdir()} <= {"encoded"}


@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "ids.offsets.npy"])
def test_whatever_is_in_a_file_of_an_encoding_one_line_says_it(encoding, name):
    """Every damage is refused; of the manifest, what informs alone may be another text."""
    file = encoding.folder / name
    raw = file.read_bytes()
    every = damages.of_json(raw) if name.endswith(".json") else damages.of_array(raw)
    n_refused = 0
    for what, content in every:
        file.write_bytes(content())
        if file.read_bytes() == raw:
            continue
        if name == "manifest.json" and what == "ranker = a text":
            assert EncodedCorpus(encoding.folder).about["ranker"] == "x"
            continue
        with pytest.raises(InputError) as refused:
            EncodedCorpus(encoding.folder)
        assert str(encoding.folder) in str(refused.value), what
        assert "\n" not in str(refused.value), what
        n_refused += 1
    assert n_refused > 20


def test_a_name_that_is_too_long_is_one_line(tmp_path):
    with pytest.raises(InputError, match="expected an encoding, as ltr encode writes it, found no"):
        EncodedCorpus(tmp_path / ("a" * 5000))


@pytest.mark.parametrize(
    ("format", "output", "said"),
    [
        ("csv", "out", "must be one of 'parquet', 'faiss', got csv"),
        ("parquet", "there", "the output must not exist yet, got 'there'"),
        ("faiss", "folder", "the output must not exist yet, got 'folder'"),
        ("parquet", "there/out", "the output must lie in a folder, got there/out"),
        ("parquet", "s3://bucket/out", "must be a local path, got 's3://bucket/out'"),
    ],
)
def test_bad_words_are_one_line(encoding, here, capsys, format, output, said):
    (here / "there").write_text("mine")
    (here / "folder").mkdir()
    check_refused(capsys, said, "encoded", format, output)
    assert sorted(file.name for file in here.iterdir()) == ["encoded", "folder", "there"]
    assert (here / "there").read_text() == "mine"


def test_a_format_that_is_not_there_is_refused_in_python(tmp_path):
    with pytest.raises(InputError, match="format must be one of parquet, faiss, got"):
        hand_over(tmp_path, "csv", tmp_path / "out")


@pytest.mark.parametrize("format", ["parquet", "faiss"])
def test_a_killed_one_leaves_nothing_under_its_name(encoding, tmp_path, format, monkeypatch):
    pytest.importorskip(PACKAGES[format])
    real = EncodedCorpus.shards

    def killed_at_the_last_shard(corpus):
        for number, shard in enumerate(real(corpus)):
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield shard

    with monkeypatch.context() as patch:
        patch.setattr(EncodedCorpus, "shards", killed_at_the_last_shard)
        child = fork(lambda: hand_over(encoding.folder, format, tmp_path / "out"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "out").exists() and (tmp_path / ".out.ltr-tmp").exists()
    hand_over(encoding.folder, format, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["encoded", "out"]


@pytest.mark.parametrize("format", ["parquet", "faiss"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, format):
    """20 shards of half a megabyte; of those that are counted, what numpy and Python hold, some at
    a time.
    """
    pytest.importorskip(PACKAGES[format])
    shard = ROWS * 512 * 4
    write_encoding(tmp_path / "small", "cosine", "float32", 512, 2 * ROWS)
    hand_over(tmp_path / "small", format, tmp_path / "imported")  # packages are memory, too
    write_encoding(tmp_path / "encoded", "cosine", "float32", 512, 20 * ROWS)
    tracemalloc.start()
    try:
        hand_over(tmp_path / "encoded", format, tmp_path / "out")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shard < most < 6 * shard
