"""Labelled texts: what is read, what is refused, and who is relevant to whom."""

import gzip

import numpy as np
import pytest

from ltr.data import labelled_texts
from ltr.data.labelled_texts import open_labelled_texts
from ltr.errors import InputError
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
    assert of_split(open_labelled_texts(str(tmp_path / "train.tsv")), "train") == of_split(
        texts, "train"
    )


def test_dev_may_be_called_validation(tmp_path):
    (tmp_path / "validation.tsv").write_text("so bad\tneg\n")
    assert of_split(open_labelled_texts(str(tmp_path)), "dev") == {"so bad": "neg"}


def test_a_text_of_one_label_is_kept_once(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("twice\ta\nonce\tb\ntwice\ta\ntwice\ta\n")
    (tmp_path / "dev.tsv").write_text("once\tb\nnew\tb\n")
    with caplog.at_level("INFO"):
        texts = open_labelled_texts(str(tmp_path))
    assert of_split(texts, "train") == {"twice": "a", "once": "b"} and of_split(texts, "dev") == {
        "once": "b",
        "new": "b",
    }
    assert (
        "2 lines repeat a text with its label" in caplog.text
        and "1 of 2 texts stand in another split" in caplog.text
    )


def test_the_others_of_its_label_are_relevant_to_a_text(tmp_path):
    """Of a, a, a, b, b, c: three texts with two relevant others, two with one, and one without a
    judgement.
    """
    label_of = {"one": "a", "two": "a", "three": "a", "four": "b", "five": "b", "six": "c"}
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text(
            "".join(f"{text}\t{label}\n" for text, label in label_of.items())
        )
    texts = open_labelled_texts(str(tmp_path))
    collection = texts.collection("dev")
    assert (
        collection.queries is collection.corpus
        and not collection.candidates
        and not texts.collection("train").qrels
    )
    found = {}
    judged = collection.judgements("dev")
    for query_row in judged.query_rows:
        rows, grades = judged.of(query_row)
        assert (grades == 1).all()
        found[collection.queries.texts[query_row]] = {collection.corpus.texts[row] for row in rows}
    expected = {
        text: {other for other in label_of if label_of[other] == label_of[text]} - {text}
        for text in label_of
    }
    assert found == {text: others for text, others in expected.items() if others}
    assert (np.diff(judged.query_rows) > 0).all() and len(judged.query_rows) == 5


BROKEN = {
    "no tab": (
        b"good\tpos\nno tab here\n",
        "train.tsv:2: expected 2 columns (text<TAB>label), got 1: 'no tab here'",
    ),
    "two tabs": (b"a\tb\tc\n", "train.tsv:1: expected 2 columns (text<TAB>label), got 3"),
    "no text": (b"good\tpos\n  \tpos\n", "train.tsv:2: the text is empty"),
    "no label": (b"good\t \n", "train.tsv:1: the label is empty"),
    "not UTF-8": (b"good\tpos\ncaf\xe9\tpos\n", "train.tsv:2: text must be UTF-8, got byte 0xe9"),
    "nothing": (b"\n\n", "train.tsv: the split is empty"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_with_their_line(tmp_path, case):
    content, message = BROKEN[case]
    (tmp_path / "train.tsv").write_bytes(content)
    with pytest.raises(InputError) as error:
        open_labelled_texts(str(tmp_path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_text_with_two_labels_is_refused_with_both_lines(tmp_path):
    (tmp_path / "train.tsv").write_text("fine\tb\nboth\ta\nboth\tb\n")
    with refused(
        r"train.tsv:3: a text must have one label, got 'b', but 'a' at .*train.tsv:2: 'both'",
    ):
        open_labelled_texts(str(tmp_path))
    (tmp_path / "train.tsv").write_text("fine\tb\nboth\ta\n")
    (tmp_path / "test.tsv").write_text("both\tb\n")
    with refused(
        r"test.tsv:1: a text must have one label, got 'b', but 'a' at .*train.tsv:2",
    ):
        open_labelled_texts(str(tmp_path))


def test_a_broken_gzip_file_is_refused(tmp_path):
    whole = gzip.compress("".join(f"text {i}\tlabel {i % 7}\n" for i in range(5000)).encode())
    (tmp_path / "train.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with refused(r"train.tsv.gz:\d+: the gzip file is broken here"):
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
