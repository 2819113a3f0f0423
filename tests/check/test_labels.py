"""How many texts the labels of each split have."""

from ltr.check.labels import labels_section
from ltr.cli.check import _collection_sections
from ltr.data.labelled_texts import open_labelled_texts


def test_texts_of_each_label_are_counted(tmp_path):
    """Three labels of 3, 1 and 2 texts; a text that comes again counts once."""
    lines = ["a\tx", "b\tx", "c\tx", "c\tx", "d\ty", "e\tz", "f\tz"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "dev.tsv").write_text("g\tx\nh\tx\n")
    texts = open_labelled_texts(str(tmp_path))
    section = labels_section(texts)
    assert section.tables[0].rows == [
        ["train", "6", "3", "2", "1", "3"],
        ["dev", "2", "1", "2", "2", "2"],
    ]
    assert section.lines == ["1 of 3 labels of train have one text, which belongs to no other"]
    assert section.entries["train"]["labels_of_one_text"] == 1
    # In the place of judgements, which would speak of queries that nobody has judged.
    made = _collection_sections(texts.collection("dev"), None, None, "AP", None, None, None, texts)
    assert [each.title for each in made][0] == "Labels"
