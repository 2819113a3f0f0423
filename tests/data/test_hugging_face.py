"""Data sets that the package ``datasets`` has written."""

import json
import sys

import pytest

from ltr.data.collection import open_collection
from tests.data.test_text_rows import judgements
from tests.world.refusals import refused

ROWS = {"anchor": ["a", "b", "c"], "positive": ["x", "y", "z"], "label": [1, 1, 1]}


@pytest.fixture
def data_set():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(ROWS).remove_columns("label")


def test_what_save_to_disk_has_written_is_read_by_its_splits(tmp_path, data_set, caplog):
    datasets = pytest.importorskip("datasets")
    # Chosen rows are written in their order, though the table beneath has others.
    splits = {"train": data_set.select([2, 0]), "validation": data_set, "extra": data_set}
    saved = datasets.DatasetDict(splits)
    saved.save_to_disk(tmp_path / "saved", num_shards={"train": 1, "validation": 2, "extra": 1})
    collection = open_collection(tmp_path / "saved")
    assert list(collection.qrels) == ["train", "dev"]
    assert judgements(collection) == {"c": {"z": 1}, "a": {"x": 1}}
    assert judgements(collection, "dev") == {"a": {"x": 1}, "b": {"y": 1}, "c": {"z": 1}}
    assert f"{tmp_path / 'saved'}: not read are the splits extra" in caplog.messages
    part = open_collection(tmp_path / "saved/extra")  # a data set without splits
    assert judgements(part) == judgements(collection, "dev")


def test_a_saved_data_set_that_is_not_whole_is_refused(tmp_path, data_set):
    data_set.save_to_disk(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / state["_data_files"][0]["filename"]).unlink()
    with refused("data-00000-of-00001.arrow: there is no such file"):
        open_collection(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with refused("state.json: it must name the files of the data set; save the data set again"):
        open_collection(tmp_path)


def test_a_split_without_rows_is_refused(tmp_path, data_set):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict(train=data_set, test=data_set.select([])).save_to_disk(tmp_path)
    with refused("test.*: the split is empty; at least one row is needed"):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    "names", [["not_entailment", "entailment"], ["entailment", "not_entailment"]]
)
def test_labels_are_what_the_names_of_their_classes_say(tmp_path, monkeypatch, names):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    features = {name: datasets.Value("string") for name in ("question", "sentence")}
    features["label"] = datasets.ClassLabel(names=names)
    columns = {"question": ["a", "a"], "sentence": ["b", "c"], "label": [1, 0]}
    rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    rows.save_to_disk(tmp_path / "saved")
    rows.to_parquet(tmp_path / "org/name/train.parquet")
    for source in ("saved", "org/name", "datasets:org/name"):
        if names[1] == "entailment":
            assert judgements(open_collection(source)) == {"a": {"b": 1, "c": 0}}
            continue
        with refused("'label': a grade must be a number .* got 'not_entailment'"):
            open_collection(source)


def test_a_data_set_of_the_hub_is_streamed(here, data_set, monkeypatch):
    """Beneath the working folder ``datasets`` takes a folder for one of the hub's names."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data_set.to_parquet(here / "org/name/data/train-00000-of-00001.parquet")
    data_set.select([1]).to_json(here / "org/lines/test.jsonl")
    collection = open_collection("datasets:org/name")
    assert collection.source == "datasets:org/name"
    assert judgements(collection) == {"a": {"x": 1}, "b": {"y": 1}, "c": {"z": 1}}
    columns = {"query": "positive", "positive": "anchor"}
    turned = open_collection("datasets:org/lines:default", columns)
    assert judgements(turned, "test") == {"y": {"b": 1}}
    # Other rows under the name of a data set are others.
    data_set.select([2]).to_json(here / "org/lines/test.jsonl")
    assert judgements(open_collection("datasets:org/lines"), "test") == {"c": {"z": 1}}


def test_what_the_hub_has_not_is_refused_in_one_line(here, data_set, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refused("datasets:org/none: the data set can't be opened .*org/none"):
        open_collection("datasets:org/none")
    data_set.to_parquet(here / "org/name/train.parquet")
    with refused("datasets:org/name:small: the data set can't be opened .*small.*not found"):
        open_collection("datasets:org/name:small")
    broken = data_set.to_pandas().assign(positive=[["x"], [None], ["z"]])
    broken["anchor"] = [1, 2, 3]
    (here / "org/broken").mkdir()
    broken.to_parquet(here / "org/broken/train.parquet")
    with refused("datasets:org/broken train:1: column 'anchor' must hold a text, .* got 1"):
        open_collection("datasets:org/broken")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("datasets:org/name needs the package datasets: pip install datasets"):
        open_collection("datasets:org/name")
