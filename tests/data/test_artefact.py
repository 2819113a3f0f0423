"""Folders that belong to a collection: whole or absent, of one kind, and of that collection."""

import json
from typing import TypedDict

import numpy as np
import pytest

from ltr.data.artefact import ArtefactKind, key_of, name_in
from ltr.data.collection import open_collection
from tests.world.collections import write_collection
from tests.world.refusals import refused


class Entries(TypedDict, total=False):
    """What a manifest of these tests has."""

    n: int


WRITTEN = "a folder that ltr score has written, or a file of scores"
SCORES = ArtefactKind("scores", ("values",), Entries, WRITTEN, "score again")
OVERLAY = ArtefactKind("overlay", ("values",), Entries, "the folder of an audit", "audit again")


@pytest.fixture
def collection(collection_folder):
    return open_collection(str(collection_folder))


@pytest.fixture
def other(tmp_path):
    return open_collection(str(write_collection(tmp_path / "other", seed=9)))


def values(*numbers):
    return {"values": np.array(numbers, dtype=float)}


def test_what_was_written_is_opened(tmp_path, collection):
    folder = tmp_path / "a"
    SCORES.write(folder, collection, values(0, 1, 2), {"key": "k1", "n": 3})
    arrays, manifest = SCORES.open(folder, collection)
    assert arrays["values"].tolist() == [0, 1, 2] and manifest["n"] == 3
    assert (name_in(folder), key_of(folder)) == ("scores", "k1")
    assert (name_in(tmp_path), key_of(tmp_path)) == (None, None)


def test_the_first_of_several_processes_writes_and_other_content_fails(tmp_path, collection):
    folder = tmp_path / "a"
    SCORES.write(folder, collection, values(0), {"key": "first"})
    SCORES.write(folder, collection, values(1), {"key": "second"})
    assert key_of(folder) == "first"
    with pytest.raises(OSError, match="a"):
        SCORES.write(folder, collection, values(1), {"key": "second"}, keep_existing=False)
    assert key_of(folder) == "first"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


def test_a_folder_of_something_else_is_refused_and_kept(tmp_path, collection):
    folder = tmp_path / "a"
    folder.mkdir()
    (tmp_path / "file").write_text("x")
    OVERLAY.write(tmp_path / "overlay", collection, values(0), {})
    for path in (folder, tmp_path / "file", tmp_path / "overlay"):
        with refused("expected a new folder, or one with scores"):
            SCORES.write(path, collection, values(0), {})
    assert folder.is_dir() and name_in(tmp_path / "overlay") == "overlay"


def test_an_opened_manifest_does_not_bind_to_its_old_collection(tmp_path, collection, other):
    SCORES.write(tmp_path / "a", collection, values(0), {"n": 1})
    opened = SCORES.open(tmp_path / "a", collection)
    SCORES.write(tmp_path / "b", other, opened.arrays, opened.manifest)
    assert SCORES.open(tmp_path / "b", other).manifest["n"] == 1
    with refused("made of another collection"):
        SCORES.open(tmp_path / "b", collection)


def test_arrays_that_have_changed_are_refused(tmp_path, collection):
    """By their values: another program need not say a digest of them."""
    folder = tmp_path / "a"
    SCORES.write(folder, collection, values(0, 1, 2), {})
    np.save(folder / "values.npy", np.array([0.0, 1.0, 3.0]))
    with refused("have changed since; remove the folder, and score again"):
        SCORES.open(folder, collection, "labels.scores")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert SCORES.open(folder, collection).arrays["values"].tolist() == [0.0, 1.0, 3.0]


def test_another_kind_another_collection_and_damage_are_one_line(tmp_path, collection, other):
    folder = tmp_path / "a"
    SCORES.write(folder, collection, values(0, 0), {})
    with refused("a: overlay must be the folder of an audit, got a folder of scores"):
        OVERLAY.open(folder, collection)
    with refused("these scores were made of another collection .*; score again"):
        SCORES.open(folder, other)
    with refused("scores must be a folder that ltr score has written"):
        SCORES.open(tmp_path / "nowhere", collection, "labels.scores")
    (folder / "values.npy").write_bytes(b"")
    with refused("expected a whole .npy file"):
        SCORES.open(folder, collection)
    whole = (folder / "manifest.json").read_text()
    deep = "[" * 100_000 + "]" * 100_000
    of_another_type = whole.replace("{", '{"n": "three",', 1)
    for text in ("{", "[]", whole[:-3], "", deep, "null", of_another_type):
        (folder / "manifest.json").write_text(text)
        with refused("a/manifest.json: the file is damaged.*; score again"):
            SCORES.open(folder, collection)
    for text in ("{}", '{"kind": null}', '{"kind": ["scores"]}'):
        (folder / "manifest.json").write_text(text)
        with refused("a folder that .*, got a manifest.json of no kind"):
            SCORES.open(folder, collection)
    (folder / "manifest.json").write_bytes(b'{"kind": "\xe9"}')
    with refused("a/manifest.json: the file is damaged .*utf-8"):
        SCORES.open(folder, collection)
    (folder / "manifest.json").unlink()
    with refused("that ltr score has written, or a file of scores, and there is no manifest"):
        SCORES.open(folder, collection)
