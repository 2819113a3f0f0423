"""Data sets by name, and suites of them: shipped, in a file, in a folder."""

import pytest

from ltr.errors import InputError
from ltr.run.data_sets import DataSet, data_sets

pytestmark = pytest.mark.usefixtures("here")


def test_a_set_is_named_by_the_last_part_of_its_path(here):
    (here / "data").mkdir()
    words = ["data/A/", "/else/B.tsv.gz", "ir_datasets:beir/scifact/test", "data/../data"]
    names = [data_set.name for data_set in data_sets(words, "--data.path")]
    assert names == ["A", "B", "beir-scifact-test", "data"]
    assert data_sets([".", "data"], "--data.path")[0] == DataSet(here.name, ".")


def test_the_suite_that_ships_names_the_13_sets_of_nanobeir():
    sets = data_sets(["suite:nanobeir"], "--data.path")
    assert len(sets) == 13 and sets[0] == DataSet("NanoArguAna", "ir_datasets:nano-beir/arguana")
    assert all(data_set.path.startswith("ir_datasets:nano-beir/") for data_set in sets)


def test_its_sets_are_known_to_ir_datasets():
    ir_datasets = pytest.importorskip("ir_datasets")
    for data_set in data_sets(["suite:nanobeir"], "--data.path"):
        found = ir_datasets.load(data_set.path.removeprefix("ir_datasets:"))
        assert found.has_docs() and found.has_queries() and found.has_qrels()


def test_paths_of_a_file_count_from_its_folder(here):
    (here / "suites").mkdir()
    file = here / "suites/mine.yaml"
    file.write_text("first: ../data/A\nsecond: /else/A\nhub: ir_datasets:beir/nq\n")
    assert data_sets(["suite:suites/mine.yaml", "B"], "--data.path") == [
        DataSet("first", "suites/../data/A"),
        DataSet("second", "/else/A"),
        DataSet("hub", "ir_datasets:beir/nq"),
        DataSet("B", "B"),
    ]


def test_a_folder_of_data_folders_is_a_suite(here):
    for name in ("b", "a", ".hidden"):
        (here / "all" / name).mkdir(parents=True)
    (here / "all/note.txt").write_text("no set")
    both = [DataSet("a", "all/a"), DataSet("b", "all/b")]
    assert data_sets(["suite:all"], "--data.path") == both


def test_a_file_or_folder_here_comes_before_the_suite_that_ships(here):
    (here / "nanobeir").write_text("mine: A\n")
    assert data_sets(["suite:nanobeir"], "--data.path") == [DataSet("mine", "A")]


WRONG_SUITES = {
    "empty": "",
    "list": "[A, B]",
    "number": "A: 3",
    "address": "A: s3://x/y",
    "twice": "A: x\nA: y\n",
    "up": "../A: x",
}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["suite:nobeir"], "a suite must be one of nanobeir, a YAML file, or a folder"),
        (["suite:"], "a suite must be one of nanobeir"),
        (["suite:empty"], "suite:empty must hold data folders, and holds none"),
        (["suite:empty.yaml"], "empty.yaml: a suite must have a line name: path"),
        (["suite:list.yaml"], "list.yaml: a suite must be options with their values"),
        (["suite:number.yaml"], "number.yaml: a line of a suite must be name: path"),
        (["suite:address.yaml"], "must be a local path, got 's3://x/y'"),
        (["suite:twice.yaml"], "twice.yaml:2: a key must be given once"),
        (["suite:up.yaml"], "the name of a data set must be letters, digits"),
        (["x/A", "y/A"], "names of their own, got 'A' of x/A and of y/A"),
        (["A", "s3://x/y"], "must be a local path, got 's3://x/y'"),
    ],
)
def test_what_names_no_sets_is_one_line(here, words, told):
    (here / "empty").mkdir()
    for name, text in WRONG_SUITES.items():
        (here / f"{name}.yaml").write_text(text)
    with pytest.raises(InputError) as raised:
        data_sets(words, "--data.path")
    assert told in str(raised.value) and "\n" not in str(raised.value)
