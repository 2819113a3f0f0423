"""Tables of texts: their order, their ids, and what is refused."""

import random

import pytest

from ltr.data.texts import Record, TextTable, beginning, first_of_each, id_of
from tests.world.refusals import refused


def table(*pairs: tuple[str, str]) -> TextTable:
    """Of pairs of an id and a text, which come from the lines of a file f."""
    records = [Record(id_, text, "f", n) for n, (id_, text) in enumerate(pairs, start=1)]
    return TextTable.open(repr(pairs), iter(records), "document")


def test_texts_are_sorted_by_their_ids_as_bytes():
    """In UTF-8 "Z" is 5a, "a" 61, "é" c3 a9, "中" e4 b8 ad, and U+10000 begins with f0."""
    ids = ["中", "\U00010000", "a", "é", "Z"]
    texts = table(*[(id_, f"text of {id_}") for id_ in ids])
    assert list(texts.ids) == ["Z", "a", "é", "中", "\U00010000"]
    assert list(texts.texts) == [f"text of {id_}" for id_ in texts.ids]
    assert [texts.row(id_) for id_ in ids] == [3, 4, 1, 2, 0]
    assert texts.row("b") is None
    assert texts.row("\U00010001") is None
    assert texts.rows(["a", "b", "a", "\ud800", "", "中"]).tolist() == [1, -1, 1, -1, -1, 3]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("", "x")], "f:1: a document must have an id"),
        ([("a b", "x")], "f:1: an id must not hold white space or NUL, got 'a b'"),
        ([("a\0", "x")], "f:1: an id must not hold white space or NUL"),
        ([("a", " \t")], "f:1: document 'a' has an empty text"),
        ([], "there is no document at all"),
    ],
)
def test_what_makes_no_table(pairs, message):
    with refused(message):
        table(*pairs)


def test_records_are_read_only_where_the_table_must_be_written():
    written = table(("a", "x"))

    def unread():
        raise AssertionError("the table is there")
        yield

    key = repr((("a", "x"),))
    assert TextTable.open(key, unread(), "document").folder == written.folder
    other_kind = TextTable.open(key, iter([Record("a", "x", "f", 1)]), "query")
    assert other_kind.folder != written.folder


def test_the_first_record_of_an_id_counts():
    records = [Record("a", "1", "f", 1), Record("b", "2", "f", 2), Record("a", "3", "f", 3)]
    assert list(first_of_each(records)) == records[:2]


def test_the_beginning_of_a_text_is_one_line():
    assert beginning("one\n two\tthree", 13) == "one two three"
    assert beginning("one\n two\tthree", 12) == "one two thre…"


def test_equal_texts_have_one_id():
    assert id_of("d", "text") == id_of("d", "text") != id_of("d", "text ")
    assert id_of("q", "text")[1:] == id_of("d", "text")[1:]
    assert id_of("q", "text")[0] == "q"


def test_twins_count_once_and_other_texts_of_an_id_are_refused():
    """30 random tables against a plain dict: the first conflict is named by both its places."""
    rng = random.Random(0)
    for number in range(30):
        share = rng.choice([0.0, 0.1])
        pairs = []
        for _ in range(rng.randint(1, 30)):
            id_ = f"d{rng.randrange(12)}"
            text = f"{number} {id_}" if rng.random() >= share else f"{number} other {len(pairs)}"
            pairs.append((id_, text))
        first: dict[str, int] = {}
        conflict = None
        for place, (id_, text) in enumerate(pairs, start=1):
            before = first.setdefault(id_, place)
            if pairs[before - 1][1] != text and conflict is None:
                conflict = (
                    f"f:{place}: document id '{id_}' stands twice with different texts, "
                    f"first at f:{before}$"
                )
        if conflict:
            with refused(conflict):
                table(*pairs)
            continue
        texts = table(*pairs)
        assert dict(zip(texts.ids, texts.texts, strict=True)) == dict(pairs)
        assert list(texts.ids) == sorted(first)


def test_a_query_twice_with_another_instruction_is_refused():
    records = [Record("q", "text", "f", 1, "do"), Record("q", "text", "f", 2, "do not")]
    with refused("f:2: query id 'q' stands twice"):
        TextTable.open("instructions of twins", iter(records), "query")
