"""What is opened again and again holds no more files open than once: long sessions of notebooks and
services do so.
"""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import ltr
from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.data.teacher_scores import TeacherScores
from ltr.mining.mined_negatives import MinedNegatives

OPEN_FILES = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not OPEN_FILES.exists(), reason="a folder of Linux")


def n_open_files() -> int:
    gc.collect()
    return len(os.listdir(OPEN_FILES))


@pytest.fixture(scope="module")
def world(tmp_path_factory, collection_folder, runs, copied_run):
    """Runs of each kind of ranker, and folders of negatives and scores."""
    folder = tmp_path_factory.mktemp("world")
    collection = open_collection(str(collection_folder))
    ids = np.zeros((len(collection.queries), 2), np.int64)
    distances = np.ones(ids.shape, np.float32)
    negatives = MinedNegatives.from_matrix(np.arange(len(ids)), ids, distances, {})
    negatives.save(folder / "negatives", collection)
    lists = QueryLists.from_rows([0, 0], [0, 1], [1, 3])
    TeacherScores(lists, {}).save(folder / "scores", collection)
    return {
        "folder": folder,
        "data": str(collection_folder),
        "collection": collection,
        "features": copied_run(folder, "features"),
        **runs,
    }


OPENED = {
    "a collection": lambda world: open_collection(world["data"]).judgements("train"),
    "negatives": lambda world: MinedNegatives.open(
        world["folder"] / "negatives", world["collection"]
    ),
    "scores": lambda world: TeacherScores.open(world["folder"] / "scores", world["collection"]),
    "a cross-encoder": lambda world: ltr.load(world["cross"]).rank("w1", ["w2", "w3"]),
    "a dual encoder": lambda world: ltr.load(world["dual"]).rank("w1", ["w2", "w3"]),
    "a feature ranker": lambda world: ltr.load(world["features"]),
    "a corpus that is searched": lambda world: (
        ltr.load(world["dual"]).corpus(world["data"]).search("w1")
    ),
}


@pytest.mark.parametrize("what", OPENED)
def test_what_is_dropped_again_and_again_holds_no_more_files_open_than_once(what, world):
    OPENED[what](world)  # what a first time keeps: imported modules, the pools of threads
    before = n_open_files()
    for _ in range(3):
        OPENED[what](world)
    assert n_open_files() <= before


def test_the_count_sees_what_is_held(world):
    """Three collections map their files three times."""
    before = n_open_files()
    held = [open_collection(world["data"]) for _ in range(3)]
    assert n_open_files() >= before + 3
    del held
    assert n_open_files() <= before
