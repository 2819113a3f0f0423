"""Labelled texts: what is read, what is refused, and who is relevant to whom."""

import gzip

import numpy as np
import pytest

from ltr.data import labelled_texts
from ltr.data.labelled_texts import open_labelled_texts
from tests.world.refusals import refused


def of_split(texts, split) -> dict[str, str]:
    labels = [texts.label_names[number] for number in texts.labels[split]]
    return dict(zip(texts.tables[split].texts, labels, strict=True))


def test_a_folder_is_read_split_by_split(tmp_path):
    (tmp_path / "train.tsv").write_text("so bad\tneg\nvery good\tpos\n\nfair \t neg\n")
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress("größer\tpos\r\nodd\tother\r\n".encode()))
    texts = open_labelled_texts(str(tmp_path))
    assert list(texts.label_names) == ["neg", "other", "pos"]
    assert of_split(texts, "train") == {"so bad": "neg", "very good": "pos", "fair": "neg"}
    assert of_split(texts, "dev") == {"größer": "pos", "odd": "other"}
    alone = open_labelled_texts(str(tmp_path / "train.tsv"))
    assert of_split(alone, "train") == of_split(texts, "train")
    (tmp_path / "dev.tsv.gz").unlink()
    (tmp_path / "train.tsv").rename(tmp_path / "validation.tsv")
    renamed = open_labelled_texts(str(tmp_path))
    assert of_split(renamed, "dev") == of_split(texts, "train")


def test_a_text_of_one_label_is_kept_once(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("twice\ta\nonce\tb\ntwice\ta\ntwice\ta\n")
    (tmp_path / "dev.tsv").write_text("once\tb\nnew\tb\n")
    with caplog.at_level("INFO"):
        texts = open_labelled_texts(str(tmp_path))
    assert of_split(texts, "train") == {"twice": "a", "once": "b"}
    assert of_split(texts, "dev") == {"once": "b", "new": "b"}
    assert "2 lines repeat a text with its label" in caplog.text
    assert "1 of 2 texts stand in another split" in caplog.text


def test_the_others_of_its_label_are_relevant_to_a_text(tmp_path):
    """Of a, a, a, b, b, c: three texts with two relevant others, two with one, and one without a
    judgement.
    """
    lines = "one\ta\ntwo\ta\nthree\ta\nfour\tb\nfive\tb\nsix\tc\n"
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text(lines)
    texts = open_labelled_texts(str(tmp_path))
    collection = texts.collection("dev")
    assert collection.queries is collection.corpus and not collection.candidates
    assert not texts.collection("train").qrels
    found = {}
    judged = collection.judgements("dev")
    for query_row in judged.query_rows:
        rows, grades = judged.of(query_row)
        assert (grades == 1).all()
        found[collection.queries.texts[query_row]] = {collection.corpus.texts[row] for row in rows}
    assert found == {
        "one": {"two", "three"},
        "two": {"one", "three"},
        "three": {"one", "two"},
        "four": {"five"},
        "five": {"four"},
    }
    assert (np.diff(judged.query_rows) > 0).all() and len(judged.query_rows) == 5


BROKEN = {
    "no tab": (
        {"train.tsv": b"good\tpos\nno tab here\n"},
        r"train.tsv:2: expected 2 columns \(text<TAB>label\), got 1: 'no tab here'",
    ),
    "two tabs": (
        {"train.tsv": b"a\tb\tc\n"},
        r"train.tsv:1: expected 2 columns \(text<TAB>label\), got 3",
    ),
    "no text": ({"train.tsv": b"good\tpos\n  \tpos\n"}, "train.tsv:2: the text is empty"),
    "no label": ({"train.tsv": b"good\t \n"}, "train.tsv:1: the label is empty"),
    "not UTF-8": (
        {"train.tsv": b"good\tpos\ncaf\xe9\tpos\n"},
        "train.tsv:2: text must be UTF-8, got byte 0xe9",
    ),
    "nothing": ({"train.tsv": b"\n\n"}, "train.tsv: the split is empty"),
    "two labels": (
        {"train.tsv": b"fine\tb\nboth\ta\nboth\tb\n"},
        "train.tsv:3: a text must have one label, got 'b', but 'a' at .*train.tsv:2: 'both'",
    ),
    "two labels in two splits": (
        {"train.tsv": b"fine\tb\nboth\ta\n", "test.tsv": b"both\tb\n"},
        "test.tsv:1: a text must have one label, got 'b', but 'a' at .*train.tsv:2",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_with_their_line(tmp_path, case):
    files, words = BROKEN[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with refused(words):
        open_labelled_texts(str(tmp_path))


def test_missing_files_are_said(tmp_path):
    with refused("there is no such data folder or file"):
        open_labelled_texts(str(tmp_path / "nowhere"))
    (tmp_path / "corpus.jsonl").write_text("{}\n")
    with refused(r"must hold \{train,dev,test\}.tsv.*found \['corpus.jsonl'\]"):
        open_labelled_texts(str(tmp_path))


def test_there_must_be_something_to_find_and_not_too_much(tmp_path, monkeypatch):
    (tmp_path / "dev.tsv").write_text("one\ta\ntwo\tb\n")
    with refused("split 'dev': no two texts have the same label"):
        open_labelled_texts(str(tmp_path)).collection("dev")
    monkeypatch.setattr(labelled_texts, "MOST_PAIRS", 5)
    (tmp_path / "dev.tsv").write_text("one\ta\ntwo\ta\nthree\ta\n")
    with refused("split 'dev': 6 pairs of texts share a label, more than the 5"):
        open_labelled_texts(str(tmp_path)).collection("dev")
