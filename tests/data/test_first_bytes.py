"""Packed files are read under any name; what is no text is named by its first bytes."""

import bz2
import gzip
import io
import lzma
import pickle
import random
import sqlite3
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from ltr.data.files import blocks, map_given_array, numbered_lines
from ltr.data.first_bytes import kind_of_file
from ltr.data.named_rows import read_rows
from tests.world.refusals import refused

PACK = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "Zstandard": zstandard.compress,
}
LINES = [f"{number}\té {random.Random(number).random()}" for number in range(1, 5001)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()
ALL = list(enumerate(LINES, start=1))


@pytest.fixture(params=["zstandard", "pyarrow"])
def zstandard_by(request, monkeypatch):
    """Zstandard is unpacked by either package."""
    if request.param == "pyarrow":
        monkeypatch.setitem(sys.modules, "zstandard", None)
    return request.param


@pytest.mark.parametrize("name", ["corpus.jsonl", "a.tsv.gz", "b.zst", "c"])
@pytest.mark.parametrize("kind", PACK)
def test_a_packed_file_is_read_under_any_name(tmp_path, zstandard_by, kind, name):
    file = tmp_path / name
    file.write_bytes(PACK[kind](TEXT))
    assert kind_of_file(file) == kind and list(numbered_lines(file)) == ALL
    assert b"".join(block for _, block in blocks(file, 1000)) == TEXT
    half = len(TEXT) // 2
    file.write_bytes(PACK[kind](TEXT[:half]) + PACK[kind](b"") + PACK[kind](TEXT[half:]))
    assert list(numbered_lines(file)) == ALL
    file.write_bytes(PACK[kind](b"\xef\xbb\xbfone"))
    assert list(numbered_lines(file)) == [(1, "one")]
    file.write_bytes(PACK[kind](b""))
    assert kind_of_file(file) == kind and list(numbered_lines(file)) == []


@pytest.mark.parametrize("name", ["a.gz", "a.zst", "a.bz2", "a.xz"])
def test_plain_text_is_read_under_the_name_of_a_packed_file(tmp_path, name):
    (tmp_path / name).write_bytes(TEXT)
    assert list(numbered_lines(tmp_path / name)) == ALL
    (tmp_path / name).write_bytes(b"")
    assert list(numbered_lines(tmp_path / name)) == []


@pytest.mark.parametrize("kind", PACK)
def test_a_broken_packed_file_leads_to_the_line(tmp_path, zstandard_by, kind):
    """Cut anywhere, or followed by what is no such file, it is never taken for a shorter one, and the
    lines before are read.
    """
    whole = PACK[kind](TEXT)
    file = tmp_path / "train.tsv"
    cuts = [whole[:-1], whole[:-9], whole[: len(whole) // 2], whole[:12]]
    for content in (*cuts, whole + b"?" + whole[1:], whole + b"garbage"):
        file.write_bytes(content)
        read = []
        with refused(
            rf"the {kind} file is broken here or further on \(.+\); fetch or comp"
        ) as refusal:
            for line in numbered_lines(file):
                read.append(line)
        assert read == ALL[: len(read)]
        assert f"train.tsv:{len(read) + 1}:" in str(refusal.value)


def test_zeros_behind_a_packed_file_are_no_part_of_it(tmp_path):
    """As tapes and gzip have them."""
    for kind in ("gzip", "bzip2", "xz"):
        (tmp_path / "a").write_bytes(PACK[kind](TEXT) + bytes(40_000) + PACK[kind](b"end"))
        assert list(numbered_lines(tmp_path / "a")) == [*ALL, (5001, "end")]


def test_without_a_package_zstandard_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "train.tsv").write_bytes(zstandard.compress(b"q\tp\n"))
    with refused("train.tsv: Zstandard needs another package: pip install zstandard"):
        list(numbered_lines(tmp_path / "train.tsv"))


def test_a_long_window_of_zstandard_is_read(tmp_path, zstandard_by):
    """As zstd --long=28 writes it; pyarrow gives no more than 128 MB of memory to one."""
    long = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=long)
    file = tmp_path / "train.tsv.zst"
    packed = io.BytesIO()
    with compressor.stream_writer(packed, closefd=False) as writer:
        writer.write(TEXT)
    file.write_bytes(packed.getvalue())
    if zstandard_by == "zstandard":
        assert list(numbered_lines(file)) == ALL
        return
    with refused(r"train.tsv.zst: Zstandard with a long window \(zstd --long\) needs another pack"):
        list(numbered_lines(file))


def written(write) -> bytes:
    """What a function writes into an open file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def tar(file):
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("corpus.jsonl"))


def arrow(file):
    table = pa.table({"text": ["one"]})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def database(folder) -> bytes:
    with sqlite3.connect(folder / "a.db") as connection:
        connection.execute("create table texts (id text)")
    return (folder / "a.db").read_bytes()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
NO_TEXT = {
    "Git LFS": (LFS, "a pointer of Git LFS in the place of the file; fetch it by git lfs pull"),
    "PDF": (b"%PDF-1.7\n", "PDF; write its text as text"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive; unpack it by 7z x"),
    "RAR": (b"Rar!\x1a\x07\x01\0", "a RAR archive; unpack it by unrar x"),
    "ZIP": (b"PK\x03\x04\x14\0", "ZIP, or a spreadsheet; unpack it, or save the sheet as text"),
    "spreadsheet": (b"\xd0\xcf\x11\xe0\xa1\xb1", "an old spreadsheet; save the sheet as text"),
    "tar": (written(tar), "a tar archive; unpack it by tar"),
    "Parquet": (
        written(lambda file: pyarrow.parquet.write_table(pa.table({"text": ["one"]}), file)),
        "Parquet; call it .parquet",
    ),
    "Arrow": (written(arrow), "Arrow; write it as text"),
    "SQLite": (database, "an SQLite database; write its table as text"),
    "NumPy": (written(lambda file: np.save(file, np.ones(3))), "an array of NumPy; call it .npy"),
    "pickle": (pickle.dumps({"text": "one"}), "a pickle, which could run code; write it as text"),
}
UTF_16 = {"utf-16": "q\té\n", "utf-16-le": "q\té\n", "utf-16-be": "q\té\n"}


@pytest.mark.parametrize("kind", [*NO_TEXT, *UTF_16])
def test_what_is_no_text_is_named(tmp_path, kind):
    if kind in UTF_16:
        content, words = UTF_16[kind].encode(kind), "UTF-16; save it as UTF-8"
    else:
        content, words = NO_TEXT[kind]
    if callable(content):
        content = content(tmp_path)
    file = tmp_path / "train.tsv"
    file.write_bytes(content)
    assert kind_of_file(file) == ("UTF-16" if kind in UTF_16 else kind)
    with refused(f"train.tsv: the file must hold text as UTF-8, got {words}"):
        list(numbered_lines(file))
    file.write_bytes(bz2.compress(content))
    with refused(f"train.tsv: the file must hold text as UTF-8, got {words}"):
        list(blocks(file, 100))


@pytest.mark.parametrize("kind", ["Git LFS", "PDF", "ZIP"])
@pytest.mark.parametrize("name", ["train.parquet", "train.arrow", "train.npy"])
def test_what_is_no_table_is_named(tmp_path, name, kind):
    """Not as a file that is broken."""
    content, words = NO_TEXT[kind]
    file = tmp_path / name
    file.write_bytes(content)
    with refused(rf"{name}: (the file must hold \w+|expected a whole .npy file), got {words}"):
        map_given_array(file) if name.endswith(".npy") else list(read_rows(file))


def test_a_packed_table_is_named(tmp_path):
    file = tmp_path / "train.parquet.gz"
    file.write_bytes(gzip.compress(NO_TEXT["Parquet"][0]))
    with refused("train.parquet.gz: the file must hold Parquet, got gzip; unpack it"):
        list(read_rows(file))


@pytest.mark.parametrize(
    "kind, program",
    [("gzip", "gunzip"), ("bzip2", "bunzip2"), ("xz", "unxz"), ("Zstandard", "zstd -d")],
)
def test_what_is_packed_twice_is_named(tmp_path, kind, program):
    (tmp_path / "a.gz").write_bytes(gzip.compress(PACK[kind](b"q\tp\n")))
    with refused(f"UTF-8, got {kind}, packed twice; unpack it by {program}"):
        list(numbered_lines(tmp_path / "a.gz"))


def test_words_that_such_files_begin_with_are_text(tmp_path):
    (tmp_path / "a").write_text("PAR1\tone\nBZh\ttwo\nPK\tthree\nARROW1\tfour\n")
    assert len(list(numbered_lines(tmp_path / "a"))) == 4
    for first in ("PAR1\tone", "BZh9\ttwo", "ARROW1\tfour", "PK 3", "SQLite format 3", "P*M"):
        (tmp_path / "a").write_text(first)
        assert list(numbered_lines(tmp_path / "a")) == [(1, first)]


def test_nothing_and_what_is_no_file_are_of_no_kind(tmp_path):
    (tmp_path / "empty").touch()
    for name in ("empty", "nowhere", "."):
        assert kind_of_file(tmp_path / name) == "text"
