"""Strings on disk: their order and their places, beside Python's own; bytes of growing arrays
beside numpy's.
"""

import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest

from ltr.data import string_order, strings
from ltr.data.growing import GrowingArray, GrowingNumbers
from ltr.data.string_order import Repeat, are_repeats, order_of, rows_among
from ltr.data.strings import Strings

BEGINNINGS = ["", "p", "msmarco_passage_", "msmarco_passage_01_", "é", "中中中"]
LETTERS = "ab1_\x01\x7fé\uffff\U00010000"


def random_ids(rng: random.Random, n: int) -> list[str]:
    """Ids with shared beginnings, of lengths around 8 and 16 bytes; some come again."""
    ids = []
    for _ in range(n):
        ids.append(rng.choice(BEGINNINGS) + "".join(rng.choices(LETTERS, k=rng.randint(1, 12))))
    return ids


def written(folder, ids: list[str], name: str = "ids") -> Strings:
    Strings.write(folder, name, [id_.encode() for id_ in ids])
    return Strings(folder, name)


def test_strings_of_any_length_are_read_back(tmp_path):
    Strings.write(tmp_path, "names", [b"", "é".encode(), b"", b"abc"])
    names = Strings(tmp_path, "names")
    assert list(names) == names.between(0, 4) == ["", "é", "", "abc"]
    assert names.between(1, 3) == ["é", ""] and len(names) == 4
    assert list(names.in_order(np.array([3, 1, 3]))) == [b"abc", "é".encode(), b"abc"]
    assert list(pickle.loads(pickle.dumps(names))) == list(names)  # as a worker gets them


@pytest.mark.parametrize("lengths", [[0, 1, 5, 70], [3], [0]])
def test_strings_in_another_order_are_the_same_however_many_are_read_at_once(
    tmp_path, monkeypatch, lengths
):
    rng = random.Random(2)
    letters = "aé中" if len(lengths) > 1 else "abc"  # then all have as many bytes
    texts = [rng.choice(letters) * rng.choice(lengths) for _ in range(200)]
    order = np.array(rng.choices(range(200), k=300))
    expected = [texts[row].encode() for row in order]
    for buffered, in_order, gap, piece in [(1, 64, 0, 1), (7, 3000, 30, 200), (256, 9**9, 9, 9**9)]:
        monkeypatch.setattr(strings, "BUFFERED", buffered)
        monkeypatch.setattr(strings, "IN_ORDER", in_order)
        monkeypatch.setattr(strings, "GAP", gap)
        monkeypatch.setattr(strings, "PIECE", piece)
        folder = tmp_path / f"{buffered}"
        folder.mkdir()
        table = written(folder, texts)
        assert list(table) == texts
        assert list(table.in_order(order)) == expected
        assert list(table.in_order(order[:0])) == []
        (folder / "ordered").mkdir()
        table.write_in_order(folder / "ordered", order)
        assert [*Strings(folder / "ordered", "ids")] == [texts[row] for row in order]


@pytest.mark.parametrize("block", [7, 65_536])
def test_the_order_is_pythons_order_of_their_bytes(tmp_path, monkeypatch, block):
    monkeypatch.setattr(strings, "BLOCK", block)
    monkeypatch.setattr(string_order, "BLOCK", block)
    rng = random.Random(0)
    for n in [1, 2, 3, 40, 300]:
        ids = random_ids(rng, n)
        if n == 40:  # one beginning for all, so long that it fills whole keys
            ids = ["x" * 24 + id_ for id_ in ids]
        order, _ = order_of(written(tmp_path, ids))
        assert order.tolist() == sorted(range(n), key=lambda number: ids[number].encode())


def test_the_first_repeat_is_that_of_the_lowest_second_number(tmp_path):
    """ "a" at 3 repeats 0; "b" at 2 repeats 1 before that; "b" at 4 comes later."""
    assert order_of(written(tmp_path, ["a", "b", "b", "a", "b"]))[1] == Repeat(1, 2)
    assert order_of(written(tmp_path, ["a", "ab", "abcdefgh", "abcdefghi"]))[1] is None
    long = ["x" * 40, "y", "x" * 41, "x" * 40]
    assert order_of(written(tmp_path, long))[1] == Repeat(0, 3)


def test_sorting_takes_the_memory_that_it_says(tmp_path, monkeypatch):
    """Of 36 bytes a string numpy tells of 33; the others it takes while it sorts."""
    monkeypatch.setattr(string_order, "BLOCK", 100)
    n = 50_000
    ids = written(tmp_path, [f"msmarco_passage_{k % 64:02d}_{k}" for k in range(n)])
    tracemalloc.start()
    order_of(ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 34 * n, peak / n


def test_rows_are_those_of_a_dictionary(tmp_path):
    rng = random.Random(1)
    for n in [1, 2, 17, 256]:
        ids = sorted(set(random_ids(rng, n)) | {"z" * 300}, key=str.encode)
        sorted_strings = written(tmp_path, ids)
        wanted = [*ids, *random_ids(rng, 100), "", "z" * 299, "z" * 301, f"{ids[0]}\0"]
        row_of_id = {id_: row for row, id_ in enumerate(ids)}
        rows = rows_among(sorted_strings, [id_.encode() for id_ in wanted])
        assert rows.tolist() == [row_of_id.get(id_, -1) for id_ in wanted]
    assert rows_among(sorted_strings, []).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_a_growing_array_has_the_bytes_that_numpy_saves(tmp_path, dtype, n):
    array = np.arange(n).astype(dtype)
    with GrowingArray(tmp_path / "grown.npy", dtype) as file:
        file.write(array[:7].tobytes())
        file.write(array[7:].tobytes())
    np.save(tmp_path / "saved.npy", array)
    assert (tmp_path / "grown.npy").read_bytes() == (tmp_path / "saved.npy").read_bytes()


def test_numbers_that_come_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("ltr.data.growing.BUFFERED", 3)
    with GrowingNumbers(tmp_path / "numbers.npy") as numbers:
        for number in range(-2, 5):
            numbers.extend([number])
        numbers.extend([5, 6, 7, 8])
        numbers.extend([])
        numbers.extend(np.array([9, 10]))
    assert np.load(tmp_path / "numbers.npy").tolist() == list(range(-2, 11))


def test_repeats_in_an_order_are_told_from_strings_that_begin_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(string_order, "BLOCK_OF_NEIGHBOURS", 2)
    long = "x" * 300
    ids = ["a", "ab", "b", "a", "b", "b", f"{long}1", f"{long}2", f"{long}1"]
    strings = written(tmp_path, ids)
    order, _ = order_of(strings)
    expected = [sorted(ids)[n] == sorted(ids)[n - 1] for n in range(1, len(ids))]
    assert are_repeats(strings, order).tolist() == [False, *expected]


def test_a_file_that_is_cut_while_it_is_open_is_told(tmp_path):
    """The map has the length of before; a read that comes short fills in nothing of another string."""
    texts = written(tmp_path, ["alpha", "beta", "gamma"], "texts")
    path = tmp_path / "texts.npy"
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(OSError, match="texts.npy ended while it was read: 12 of 14 bytes came"):
        list(texts.in_order(np.array([2, 0, 1])))
