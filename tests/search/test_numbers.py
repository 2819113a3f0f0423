import numpy as np
import pytest

from ltr.errors import InputError
from ltr.search.numbers import dimension_of, numbers_of, overlap, to_float32, to_stored

ROWS = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [3e-5, 1e-5, -2e-5]], np.float32)


@pytest.mark.parametrize("numbers", ["float32", "float16", "int8"])
def test_what_is_stored_is_read_again(numbers):
    """Halves have 11 bits; of bytes the step is a 127th of the largest component of a row."""
    stored = to_stored(ROWS, numbers)
    read = to_float32(stored)
    step = {
        "float32": np.zeros((3, 1)),
        "float16": np.abs(ROWS) * 2**-11 + 2**-25,
        "int8": np.abs(ROWS).max(axis=1, keepdims=True) / 127 / 2 * 1.001,
    }[numbers]
    assert (np.abs(read - ROWS) <= step).all() and read.dtype == np.float32
    assert numbers_of(stored) == numbers and dimension_of(stored) == 3
    bytes_of_row = {"float32": 12, "float16": 6, "int8": 4 + 3}[numbers]
    assert stored.nbytes == 3 * bytes_of_row


def test_a_byte_is_its_share_of_the_largest():
    """The scale of the first row is 2 / 127: 1.0 is 63.5 of it, to even 64; −2.0 is −127."""
    (first, zeros, _) = to_stored(ROWS, "int8")
    assert first["values"].tolist() == [64, -127, 32] and first["scale"] == np.float32(2 / 127)
    assert zeros["values"].tolist() == [0, 0, 0] and zeros["scale"] == 0


def test_what_halves_cannot_hold_is_refused():
    with pytest.raises(InputError, match="within ±65504 to be stored as float16, got 7e.04"):
        to_stored(np.array([[70_000.0]], np.float32), "float16")


def test_the_overlap_of_a_sample():
    """Four rows on a line. Stored, the last two have changed places: of the two nearest of each row
    (the largest products are those with the largest rows), one of two stays.
    """
    rows = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    assert overlap(rows, rows, k=2) == 1
    stored = np.array([[1.0], [3.5], [3.0], [4.0]], np.float32)  # the best two: rows 3 and 1
    assert overlap(rows, stored, k=2) == 0.5
    assert overlap(rows, stored, k=100) == 1, "all four are among the four nearest"
