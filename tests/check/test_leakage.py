"""What leaks between splits: counts by hand, MinHash beside datasketch's, files, what is said."""

import json
import re
from pathlib import Path

import datasketch
import numpy as np
import pytest
import regex
import yaml

from ltr.check import leakage_section as leakage_section_module
from ltr.check.clean import check_place, write_clean
from ltr.check.judgements import judgements_section
from ltr.check.leakage import find_leakage
from ltr.check.leakage_section import leakage_section, severe_leaks
from ltr.check.near import signatures
from ltr.check.trained_on import data_sets_of_card, open_trained_on
from ltr.check.word_sets import WordSets, words_of
from ltr.cli.check import _leakage, _LeakageOptions
from ltr.data.collection import open_collection
from ltr.data.terms import folded
from ltr.errors import InputError
from tests.world.collections import small_collection
from tests.world.commands import refusal, run_ltr

HEADER = "query-id\tcorpus-id\tscore\n"
MEDQUAD = Path("examples/medquad")


def write_folder(folder, queries, docs, qrels):
    """Texts by id, and (query, document) by split."""
    judged = {split: [(*pair, 1) for pair in pairs] for split, pairs in qrels.items()}
    small_collection(folder, docs, queries, **judged)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Of test: q1 is t1 in other letters; q2 shares d1 with t2 by the text of d9, one of its two;
    q3 has the relevant documents of t3; q4 has nothing of them.
    """
    queries = {
        "t1": "What is a whale?",
        "t2": "how do birds fly",
        "t3": "who built the pyramids",
        "q1": "what is  A ＷＨＡＬＥ",
        "q2": "speed of sound",
        "q3": "egyptian tombs",
        "q4": "largest desert",
    }
    docs = {f"d{n}": f"document number{n} alone{n}" for n in range(1, 9)}
    docs["d9"] = "Document: NUMBER1, alone1."
    qrels = {
        "train": [("t1", "d2"), ("t2", "d1"), ("t3", "d4")],
        "test": [("q1", "d3"), ("q2", "d9"), ("q2", "d5"), ("q3", "d4"), ("q4", "d6")],
    }
    return write_folder(tmp_path / "data", queries, docs, qrels)


def counts(leakage, split="test", other="train"):
    return leakage_section(leakage).entries["queries"][split][other]


def test_counts_by_hand(folder):
    leakage = find_leakage(open_collection(folder))
    assert counts(leakage) == {"equal": 1, "near": 0, "set": 1, "document": 2}
    assert counts(leakage, "train", "test") == {"equal": 1, "near": 0, "set": 1, "document": 2}
    ids = leakage.collection.queries.ids
    leaked = {kind: [] for kind in ("equal", "set", "document")}
    for kind, queries in leaked.items():
        for leaks in leakage.leaks_of("test", [kind]):
            for query, partner in zip(leaks.query_rows, leaks.partner_rows, strict=True):
                queries.append((ids[query], ids[partner]))
    assert leaked["equal"] == [("q1", "t1")] and leaked["set"] == [("q3", "t3")]
    assert leaked["document"] == [("q2", "t2"), ("q3", "t3")]
    corpus = leakage_section(leakage).entries["corpus"]
    assert corpus["equal"] == 2  # d1 and d9
    assert corpus["judged"] == 7  # all but d7 and d8


def test_the_similarity_is_the_jaccard_index_of_weighed_words(tmp_path):
    """Eight texts: a word of at most 2 = 8^(1/3) weighs 3, of at most 4 = 8^(2/3) weighs 2. In the
    first two texts "in" (6 texts) weighs 1, "snow" (4) 2, "a1" and "b1" (1) 3: (1 + 2) / 9.
    """
    texts = ["in snow a1", "in snow b1", "in snow c1", "in snow d1", "in e1", "in f1", "g1", "h1"]
    docs = {f"d{n}": text for n, text in enumerate(texts)}
    folder = write_folder(tmp_path / "eight", {"q": "x"}, docs, {"train": [("q", "d0")]})
    corpus = open_collection(folder).corpus
    sets = WordSets.from_tables([(corpus.texts, np.arange(8))])
    assert sets.similarities(np.array([0, 0]), np.array([1, 0])) == pytest.approx([3 / 9, 1.0])
    assert sets.sizes[0] == 6


def test_a_signature_is_that_of_datasketch(folder):
    corpus = open_collection(folder).corpus
    sets = WordSets.from_tables([(corpus.texts, np.arange(len(corpus)))])
    hashes, starts = sets.elements(slice(2, 5))
    a, b = datasketch.MinHash(num_perm=32).permutations
    ours = signatures(sets, slice(2, 5), a, b)
    for values, of_text in zip(ours.T, np.split(hashes, starts[1:]), strict=True):
        theirs = datasketch.MinHash(num_perm=32, hashfunc=int)
        theirs.update_batch(of_text.tolist())
        np.testing.assert_array_equal(values, theirs.hashvalues)


def test_words_of_a_text():
    assert words_of("Don't ÉTÉ; 中国") == ["don", "t", "été", "中", "国", "中国"]


@pytest.mark.parametrize(
    "text",
    [
        "in\u00advisible dou\u00adble",  # soft hyphen
        "in\u200bvisible double",  # zero-width space
        "in\u200cvis\u200dible \u2060double",  # (non-)joiners, word joiner
        "\ufeffinvisible double",  # byte order mark
        "\u202einvisible\u202c \u200edouble\u200f\u061c",  # marks of direction
        "\u2067invisible\u2069 double",
        "invisible\ufe0f double\U000e0101",  # variation selectors
        "in\u034fvisible dou\u180eble\u3164",  # grapheme joiner, Mongolian separator, Hangul filler
        "invisible\U000e0064 double\ufff9",  # a tag, a mark of annotations
        "invisible_double",
        "__invisible__ double_",
        "invisible＿double",  # the underscore of full width
        "invisible\u2011double",  # a hyphen that is not broken
        "ｉnvi\u00adsible\u00a0DOUBLE",
    ],
)
def test_what_no_reader_sees_hides_no_leak(text):
    assert words_of(text) == ["invisible", "double"]


def test_an_invisible_character_parts_no_accent():
    """a + joiner + accent is one letter: the joiner goes before letters are composed."""
    assert words_of("cafe\u200d\u0301") == words_of("café") == ["café"]


def test_invisible_characters_are_those_of_unicode():
    """Of all characters, those that fold to nothing: by the property that ``regex`` knows."""
    unseen = regex.compile(r"[\p{Default_Ignorable_Code_Point}\ufff9-\ufffb]")
    surrogates = range(0xD800, 0xE000)
    for code in set(range(0x110000)) - set(surrogates):
        assert (folded(chr(code)) == "") == bool(unseen.match(chr(code))), hex(code)


def test_the_example_has_near_queries_of_its_own():
    """Of 311 test queries 28; docs/results_check.md shows some."""
    leakage = find_leakage(open_collection(MEDQUAD), with_corpus=False)
    assert len(leakage.leaked("test", ["equal"])) == 0
    assert len(leakage.leaked("test", ["near"])) == 28


# Files


def test_a_clean_split_has_the_other_queries(folder):
    leakage = find_leakage(open_collection(folder))
    clean = write_clean(leakage, folder)
    assert (clean.n_left, clean.n_removed) == (2, 2)
    assert clean.qrels.read_text() == HEADER + "q2\td9\t1\nq2\td5\t1\nq4\td6\t1\n"
    removed = [json.loads(line) for line in clean.removed.read_text().splitlines()]
    assert [(line["query"], line["leak"], line["in"], line["partner"]) for line in removed] == [
        ("q1", "equal query", "train", "t1"),
        ("q3", "same relevant documents", "train", "t3"),
    ]
    files = (clean.qrels, clean.removed)
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]
    write_clean(find_leakage(open_collection(folder)), folder)
    assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in files] == before


def test_large_grades_stay_as_they_are(folder):
    """The largest that a file may hold has seven digits."""
    grades = [1, 10, 1_000_000, 1_000_001, 9_999_999, 0]
    lines = [f"q4\td{number}\t{grade}\n" for number, grade in enumerate(grades, start=1)]
    (folder / "qrels/test.tsv").write_text(HEADER + "".join(lines))
    collection = open_collection(folder)
    clean = write_clean(find_leakage(collection), folder)
    rows = [line.split("\t") for line in clean.qrels.read_text().splitlines()[1:]]
    assert [int(grade) for _, _, grade in rows] == grades
    of_grade = judgements_section(collection).entries["splits"]["test"]["of_grade"]
    assert of_grade == {"0": 1, "1": 1, "10": 1, "1000000": 1, "1000001": 1, "9999999": 1}


def test_another_content_is_not_overwritten(folder):
    for content in (b"mine", b"\xff"):
        (folder / "qrels/test.clean.tsv").write_bytes(content)
        with pytest.raises(InputError, match=r"test.clean.tsv stands there with another content"):
            write_clean(find_leakage(open_collection(folder)), folder)
        assert not (folder / "qrels/test.clean.removed.jsonl").exists()


@pytest.mark.parametrize("name", ["test.clean.tsv", "test.clean.removed.jsonl"])
def test_a_folder_in_the_place_of_a_clean_split_is_refused_before_any_work(folder, name):
    collection = open_collection(folder)
    (folder / "qrels" / name).mkdir()
    with pytest.raises(InputError, match=rf"{name}: expected a file, got a folder; remove it"):
        check_place(collection, folder)


def test_other_data_counts_as_training(folder, tmp_path):
    queries = {"o1": "Largest desert?", "o2": "cheese"}
    docs = {"x1": "document number5 ALONE5", "x2": "more"}
    judged = {"train": [("o1", "x2"), ("o2", "x1")]}
    other = write_folder(tmp_path / "other", queries, docs, judged)
    trained_on, _ = open_trained_on([str(other)])
    leakage = find_leakage(open_collection(folder), trained_on)
    of_other = counts(leakage, other=f"train of {other}")
    # q4 is o1; q2 shares the text of d5 with o2.
    assert of_other == {"equal": 1, "near": 0, "set": 0, "document": 1}


def test_data_sets_of_a_model_card(folder, tmp_path):
    card = tmp_path / "README.md"
    card.write_text("---\ndatasets:\n- a/b\n- ms_marco\nlanguage: en\n---\n# A model\n")
    assert data_sets_of_card(card) == ["a/b", "ms_marco"]
    _, absent = open_trained_on([], tmp_path)
    assert absent == ["a/b", "ms_marco"]
    leakage_options = _LeakageOptions([], 0.6, False)
    section = _leakage(open_collection(folder), leakage_options, str(tmp_path))
    assert "not looked at: a/b, ms_marco; name their folders" in section.lines[-1]
    for text in ("no front matter", "---\ndatasets: [\n---\n", "---\ndatasets: 3\n---\n"):
        card.write_text(text)
        assert data_sets_of_card(card) == []


def test_the_command_writes_a_clean_split(folder, capsys):
    assert "Leakage between splits" in page_of(capsys, f"--data {folder} --write")
    assert (folder / "qrels/test.clean.tsv").is_file()


def test_a_training_is_told_of_equal_and_near_queries_alone(folder, monkeypatch):
    """q1 is equal to t1; that q3 has the documents of t3 is not looked at. Of 4 queries it is a
    quarter.
    """
    collection = open_collection(folder)
    expected = "1 of 4 queries of test (25.0%) are duplicates or near-duplicates of queries of train; ltr check --write makes a clean split"
    assert severe_leaks(collection) == [expected]
    assert leakage_section(find_leakage(collection)).severe == [expected], "as ltr check says it"
    assert severe_leaks(collection._replace(qrels={"test": collection.qrels["test"]})) == []
    monkeypatch.setattr(leakage_section_module, "MOST_QUERIES", 6)
    assert severe_leaks(collection) == [], "it would take long"


def test_a_training_goes_without_the_package_that_finds_leaks(folder, monkeypatch):
    monkeypatch.setattr(leakage_section_module, "find_spec", lambda name: None)
    assert severe_leaks(open_collection(folder)) == []


# What the command says where there is little, or nowhere to write


def page_of(capsys, words):
    """What a check prints."""
    assert run_ltr(f"check {words}") == 0
    return capsys.readouterr().out


def test_one_split_has_nothing_to_leak_into(tmp_path, capsys):
    docs = {"d0": "one text", "d1": "another"}
    alone = write_folder(tmp_path / "alone", {"q": "what"}, docs, {"test": [("q", "d0")]})
    page = page_of(capsys, f"--data {alone}")
    assert "test is the only split: there is no other one to leak into it" in page
    assert "Queries of a split that stand in another" not in page
    # Nor is a table without a row printed, or a share of no document.
    assert "smallest difference" not in page and "0.0%" not in page


def test_only_a_clean_split_of_test_is_promised(tmp_path, capsys):
    queries = {"t": "what is a whale", "d": "What is a whale?", "x": "who was it"}
    docs = {"d0": "one text", "d1": "another"}
    qrels = {"train": [("t", "d0")], "dev": [("d", "d1")], "test": [("x", "d1")]}
    page = page_of(capsys, f"--data {write_folder(tmp_path / 'three', queries, docs, qrels)}")
    assert (
        "1 of 1 queries of dev (100.0%) are duplicates or near-duplicates of queries of train\n"
        in page
    )
    assert "--write" not in page


def test_texts_stand_to_the_left(folder, capsys):
    page = page_of(capsys, f"--data {folder}")
    (heading,) = [line for line in page.splitlines() if "query or text" in line]
    row = next(line for line in page.splitlines() if re.search(r"test q3: .*train t3: ", line))
    assert row.index("test q3:") == heading.index("query or text")
    assert row.index("train t3:") == heading.index("stands also in")


def test_no_clean_split_without_test(tmp_path, capsys):
    docs = {"d0": "one text"}
    folder = write_folder(tmp_path / "train", {"q": "what"}, docs, {"train": [("q", "d0")]})
    error = refused_before_the_work(capsys, folder)
    assert "a clean split is made of test, but" in error and "has only train" in error


def refused_before_the_work(capsys, folder):
    """The one line by which a clean split is refused; no page is printed."""
    assert run_ltr(f"check --data {folder} --write") == 2
    page, error = capsys.readouterr()
    assert page == "" and error.count("\n") == 1
    return error


def test_a_folder_that_takes_no_file_is_refused_before_the_work(folder, capsys, monkeypatch):
    """As root everything can be written, so the file system is told to refuse."""

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ltr.data.outputs.tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("ltr.cli.check.find_leakage", lambda *args: pytest.fail("too late"))
    error = refused_before_the_work(capsys, folder)
    assert "where something can be written" in error and "Permission denied" in error


def test_a_threshold_of_one_finds_texts_of_the_same_words(tmp_path):
    queries = {"a": "red green blue", "b": "blue red green", "c": "red green white"}
    docs = {"x": "one two", "y": "three four", "z": "five six"}
    qrels = {"train": [("a", "x")], "test": [("b", "y"), ("c", "z")]}
    collection = open_collection(write_folder(tmp_path / "d", queries, docs, qrels))
    assert counts(find_leakage(collection, threshold=1))["near"] == 1


FRONTS = {
    "deep": "datasets: " + "[" * 5000 + "]" * 5000,
    "long": f"datasets: [{'x' * 5000}]",
    "NUL": 'datasets: ["a\\0b"]',
    "no date": "date: 2024-99-99",
}


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_a_card_of_a_stranger_ends_no_check(tmp_path, front):
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n")
    assert open_trained_on([], tmp_path)[0] == []


def test_a_card_that_names_the_data_that_is_checked_adds_none(folder, tmp_path):
    """All of it would leak. Other data that it names twice is there once."""
    other = write_folder(tmp_path / "o", {"o1": "a b"}, {"x": "c"}, {"train": [("o1", "x")]})
    names = [f"{folder}/../{folder.name}", str(other), f"{other}/../o"]
    (tmp_path / "README.md").write_text("---\n" + yaml.safe_dump({"datasets": names}) + "---\n")
    found, absent = open_trained_on([], tmp_path, str(folder))
    assert [name for name, _ in found] == [str(other)] and absent == []


def test_other_data_is_named_once_and_not_the_data_itself(folder, tmp_path, capsys):
    other = write_folder(tmp_path / "o", {"o1": "a b"}, {"x": "c"}, {"train": [("o1", "x")]})
    for names in (f"{folder}", f"{other} {other}/../o"):
        line = refusal(capsys, f"check --data {folder} --trained_on {names}")
        assert "must be named once, and not be the data that is checked" in line
