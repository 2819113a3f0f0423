"""The names of splits, and collections with splits of other names than train, dev and test."""

import gzip
from pathlib import Path

import pytest

from ltr.data.collection import open_collection, with_split
from ltr.data.splits import lacking_parts, parent_split, split_named
from tests.world.collections import write_collection
from tests.world.refusals import refused

PLAIN = ["test", "test.clean", "2024+x_y-z"]


@pytest.mark.parametrize("name, split", [("validation", "dev"), *zip(PLAIN, PLAIN, strict=True)])
def test_a_split_may_have_any_plain_name(name, split):
    assert split_named(name) == split


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../test", "a b", "-x", "a\nb", "a\\b"])
def test_what_is_no_plain_name_is_refused(name):
    with refused("the name of a split must be letters"):
        split_named(name, "split")


def test_a_name_that_no_file_can_have_is_refused():
    assert split_named("s" * 200) == "s" * 200
    for name in ("s" * 201, "é" * 101):
        with refused("the name of a split must have at most 200 bytes"):
            split_named(name)


@pytest.mark.parametrize(
    ("numbers", "lacking"),
    [("0 1 2", None), ("1 2 3", None), ("0 2", "a-1-of-3"), ("1 3", "a-2-of-3"), ("1", "a-0-of-3")],
)
def test_parts_are_counted_from_0_or_1(numbers, lacking):
    said = lacking_parts([Path(f"a-{number}-of-3.tsv") for number in numbers.split()])
    assert (f"; fetch the others ({lacking}" in said) if lacking else said == ""


def test_a_split_is_a_part_of_what_stands_before_its_last_dot():
    assert parent_split("test.clean.hard") == "test.clean"
    assert parent_split("test") is None


@pytest.fixture
def folder(tmp_path):
    """Three queries a split, with pools of three documents."""
    return write_collection(tmp_path / "c", n_queries=3, n_docs=3)


def write_split(folder, name: str, *queries: str, packed: bool = False) -> None:
    lines = "".join(f"{query}\t{query}-d0\t1\n" for query in queries)
    content = f"query-id\tcorpus-id\tscore\n{lines}".encode()
    file = folder / f"qrels/{name}.tsv{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(content) if packed else content)


def ids(collection, lists) -> list[str]:
    return [collection.queries.ids[row] for row in lists.query_rows.tolist()]


@pytest.mark.parametrize("packed", [False, True])
def test_a_part_of_test_has_its_pools_for_its_own_queries(folder, packed):
    write_split(folder, "test.clean", "test-q2", "test-q0", packed=packed)
    opened = open_collection(folder)
    assert sorted(opened.qrels) == sorted(opened.candidates) == ["dev", "test", "train"]
    collection = with_split(opened, "test.clean")
    judged, pools = collection.judgements("test.clean"), collection.candidates["test.clean"]
    assert ids(collection, judged) == ids(collection, pools) == ["test-q0", "test-q2"]
    whole = collection.candidates["test"]
    for row in pools.query_rows.tolist():
        assert pools.of(row)[0].tolist() == whole.of(row)[0].tolist()
    assert collection.qrels["test"] is opened.qrels["test"], "the others stay"


def test_pools_of_its_own_come_before_those_of_the_whole(folder):
    write_split(folder, "test.clean", "test-q0", "test-q1")
    write_split(folder, "test.clean.hard", "test-q1")
    (folder / "candidates/test.clean.trec").write_text(
        "test-q1 Q0 test-q0-d0 1 1 pool\ntest-q2 Q0 test-q0-d0 1 1 pool\n"
    )
    collection = open_collection(folder)
    for split in ("test.clean", "test.clean.hard"):
        pools = with_split(collection, split).candidates[split]
        assert ids(collection, pools) == ["test-q1"], "of its judged queries"
        assert collection.corpus.ids[pools.doc_rows[0]] == "test-q0-d0"


def test_a_split_that_is_a_part_of_none_has_no_pools(folder):
    write_split(folder, "hard", "test-q0")
    collection = with_split(open_collection(folder), "hard")
    assert "hard" not in collection.candidates
    with refused(r"candidates for the split 'hard'; add candidates/hard.trec"):
        collection.pools("hard", option="candidates")


def test_a_broken_split_is_read_by_nobody_who_did_not_ask_for_it(folder):
    (folder / "qrels/test.clean.tsv").write_text("broken\n")
    (folder / "candidates/test.clean.trec").write_text("broken\n")
    collection = open_collection(folder)
    assert with_split(collection, "test") is collection
    with refused(r"test\.clean\.tsv:1: "):
        with_split(collection, "test.clean")


def test_a_split_that_is_not_there_leads_to_those_that_are(folder, tmp_path):
    write_split(folder, "test.clean", "test-q0")
    with refused(r"one of train, dev, test, test\.clean, got 'nope'"):
        with_split(open_collection(folder), "nope")
    (tmp_path / "triples").mkdir()
    for name in ("train", "other"):
        (tmp_path / f"triples/{name}.tsv").write_text("a b\tc d\te f\n")
    with refused(r"one of train, got 'other'; only a data folder with qrels/"):
        with_split(open_collection(tmp_path / "triples"), "other")
