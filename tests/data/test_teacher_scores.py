"""Scores of a teacher on disk: their scale, and folders that are refused."""

import json

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.data.teacher_scores import TeacherScores, scale_of
from tests.world.refusals import refused

LISTS = QueryLists.from_rows([0, 0, 1, 1], [0, 1, 0, 1], [1, 3, 5, 5])


@pytest.fixture
def collection(collection_folder):
    return open_collection(str(collection_folder))


def test_the_scale_by_hand():
    """Lists (1, 3) and (5, 5): mean 3.5, deviations within 1 and 0. Empty ones change nothing."""
    deviation = pytest.approx(np.std([1, 3, 5, 5]), abs=1e-5)
    scale = {"mean": 3.5, "deviation": deviation, "deviation_in_lists": 0.5}
    assert scale_of(LISTS) == scale
    for offsets in ([0, 0, 2, 4], [0, 2, 2, 4], [0, 2, 4, 4]):
        with_empty = LISTS._replace(query_rows=np.arange(3), offsets=np.array(offsets))
        assert scale_of(with_empty) == scale_of(LISTS)


def test_what_was_saved_is_opened(tmp_path, collection):
    TeacherScores(LISTS, {"teachers": ["t"]}).save(tmp_path / "scores", collection)
    opened = TeacherScores.open(tmp_path / "scores", collection)
    assert opened.deviation_in_lists == 0.5
    assert opened.manifest["teachers"] == ["t"]
    assert opened.manifest["counts"] == {"queries": 2, "documents": 4}
    for name, array in LISTS._asdict().items():
        assert getattr(opened.lists, name).tolist() == array.tolist()


def test_an_existing_folder_is_kept(tmp_path, collection):
    """As several processes may write the same scores."""
    TeacherScores(LISTS, {}).save(tmp_path / "scores", collection)
    others = LISTS._replace(values=LISTS.values + 1)
    TeacherScores(others, {}).save(tmp_path / "scores", collection)
    values = TeacherScores.open(tmp_path / "scores", collection).lists.values
    assert values.tolist() == LISTS.values.tolist()


def test_changed_values_and_another_version_are_refused(tmp_path, collection):
    folder = tmp_path / "scores"
    TeacherScores(LISTS, {}).save(folder, collection)
    np.save(folder / "values.npy", LISTS.values + 1)
    with refused("have changed since; remove the folder, and score or import again"):
        TeacherScores.open(folder, collection)
    np.save(folder / "values.npy", LISTS.values)
    TeacherScores.open(folder, collection)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"counts": {"queries": 2}}))
    with refused("damaged, counts.documents must be there, and is not; sc"):
        TeacherScores.open(folder, collection)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"version": "scores-0"}))
    with refused("scores must be of version scores-1, got scores-0; score"):
        TeacherScores.open(folder, collection)


@pytest.mark.parametrize("name", ["values", "offsets"])
def test_an_array_in_a_list_is_refused(tmp_path, collection, name):
    """Of shape [1, P]: the digest is that of the same numbers."""
    folder = tmp_path / "scores"
    TeacherScores(LISTS, {}).save(folder, collection)
    array = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", array[None])
    with refused(rf"{name}\.npy: .* of shape \(1, {len(array)}\); score"):
        TeacherScores.open(folder, collection)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_neither_written_nor_read(tmp_path, collection, value):
    """The lists are (1, 3) and (5, value), of documents 0 and 1 each."""
    values = np.array([1, 3, 5, value], np.float32)
    message = (
        f"scores must be finite, got {value} for the query {collection.queries.ids[1]!r} "
        f"and the document {collection.corpus.ids[1]!r}; score or import again"
    )
    with refused(f"new: {message}"):
        TeacherScores(LISTS._replace(values=values), {}).save(tmp_path / "new", collection)
    assert not (tmp_path / "new").exists()
    folder = tmp_path / "scores"
    TeacherScores(LISTS, {}).save(folder, collection)
    np.save(folder / "values.npy", values)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = LISTS._replace(values=values).digest()
    (folder / "manifest.json").write_text(json.dumps(manifest | {"digest": digest}))
    with refused(f"scores: {message}"):
        TeacherScores.open(folder, collection)
