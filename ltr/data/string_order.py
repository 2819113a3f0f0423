"""Strings by their bytes: the order of many, and the places of others among them.

Both compare a few bytes of many strings at once, by numpy. Strings must hold no NUL.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ltr.data.strings import BLOCK, Strings
from ltr.spans import spans

KEY_BYTES = 8  # that are compared at once where strings are sorted
BLOCK_OF_NEIGHBOURS = 4096  # strings that are compared with the one before at once
LONG = 256  # bytes of a string that is looked up alone


class Repeat(NamedTuple):
    """Two equal strings, by their numbers."""

    first: int
    second: int


def order_of(strings: Strings) -> tuple[np.ndarray, Repeat | None]:
    """The order of strings by their bytes, and a pair of equal ones, if there is any.

    They are sorted by their first 8 bytes; those that have these in common by their next 8, and so
    on. This takes up to 36 bytes of memory for each string.

    Returns:
        ``[N]``, the numbers of the strings in their order, equal ones as they come; and of all
        pairs of neighbours in it that are equal the one whose second number is the lowest: the
        second is the first string that repeats an earlier one.
    """
    dtype: type[np.uint32 | np.int64] = np.uint32 if len(strings) < 2**32 else np.int64
    order = np.arange(len(strings), dtype=dtype)
    repeat: Repeat | None = None
    # Places in the order whose strings are equal to that of a neighbour, as far as was compared,
    # and for each a number that those with the same beginning share.
    places = order.copy()
    groups = np.zeros_like(places)
    n_compared = 0
    while len(places):
        keys = _keys(strings, order[places], n_compared)
        n_compared += KEY_BYTES
        # If all go on alike, nothing is to be moved.
        if keys.min() > 0 and keys.min() == keys.max():
            del keys  # the next ones need the room
            continue
        # Strings move within their group alone, so the groups themselves need no sorting.
        is_first = n_compared == KEY_BYTES
        by_key = np.argsort(keys, kind="stable") if is_first else np.lexsort((keys, groups))
        is_same_group = groups[1:] == groups[:-1]
        del groups  # here the memory is at its peak
        order[places] = order[places][by_key]
        keys = keys[by_key]
        del by_key
        is_repeat = (keys[1:] == keys[:-1]) & is_same_group
        repeat = _earlier(repeat, _first_repeat(order, places, keys, is_repeat))
        remains, groups = _remaining_groups(keys, is_repeat, dtype)
        places = places[remains]
        del keys
    return order, repeat


def are_repeats(strings: Strings, order: np.ndarray) -> np.ndarray:
    """``[N]`` bool: for each string in this order whether it equals the one before it."""
    found = np.zeros(len(order), dtype=bool)
    for span in spans(len(order), BLOCK_OF_NEIGHBOURS):
        start = max(span.start - 1, 0)
        rows = order[start : span.stop]
        lengths = strings.lengths(rows)
        width = min(int(lengths.max()), LONG)
        beginnings = strings.bytes_at(rows, 0, width)
        is_same = (beginnings[1:] == beginnings[:-1]).all(axis=1)
        is_same &= lengths[1:] == lengths[:-1]
        for place in np.flatnonzero(is_same & (lengths[1:] > LONG)):
            is_same[place] = strings[rows[place]] == strings[rows[place + 1]]
        found[start + 1 : span.stop] = is_same
    return found


def _first_repeat(
    order: np.ndarray, places: np.ndarray, keys: np.ndarray, is_repeat: np.ndarray
) -> Repeat | None:
    """Of N sorted strings the one with the lowest number that has ended and equals the one before.

    Args:
        order: the numbers of all strings.
        places: ``[N]``, where those that are compared stand in it.
        keys: ``[N]`` uint64; 0 for a string that has ended.
        is_repeat: ``[N - 1]``, whether all bytes up to here are those of the string before.
    """
    seconds = 1 + np.flatnonzero(is_repeat & (keys[1:] == 0))
    if not len(seconds):
        return None
    second = seconds[order[places[seconds]].argmin()]
    return Repeat(*order[places[second - 1 : second + 1]].tolist())


def _remaining_groups(
    keys: np.ndarray, is_repeat: np.ndarray, dtype: type[np.uint32 | np.int64]
) -> tuple[np.ndarray, np.ndarray]:
    """Which of N sorted strings are to be compared further, and the groups of those.

    Args:
        keys: ``[N]`` uint64.
        is_repeat: ``[N - 1]``, whether all bytes up to here are those of the string before.
        dtype: of the groups.
    """
    begins_group = np.concatenate([[True], ~is_repeat])
    ends_group = np.concatenate([~is_repeat, [True]])
    has_ended = keys == 0
    remains = ~(has_ended | (begins_group & ends_group))
    return remains, np.cumsum(begins_group, dtype=dtype)[remains]


def _earlier(one: Repeat | None, other: Repeat | None) -> Repeat | None:
    """The one whose second string comes first, of those that there are."""
    if one is None or other is None:
        return one or other
    return other if other.second < one.second else one


def _keys(strings: Strings, rows: np.ndarray, start: int) -> np.ndarray:
    """``[N]`` uint64: the 8 bytes of each string from ``start`` on, as a number that sorts as they
    do; 0 for a string that has ended.
    """
    keys = np.empty(len(rows), dtype=np.uint64)
    for span in spans(len(rows), BLOCK):
        columns = strings.bytes_at(rows[span].astype(np.int64), start, KEY_BYTES)
        keys[span] = columns.view(">u8")[:, 0]
    return keys


def rows_among(strings: Strings, wanted: Sequence[bytes]) -> np.ndarray:
    """``[N]`` int64: where each wanted string is among sorted ones, -1 where it is not. The search
    halves all ranges together, so it takes as many steps as one search.
    """
    rows = np.empty(len(wanted), dtype=np.int64)
    for span in spans(len(wanted), BLOCK):
        rows[span] = _rows_of_block(strings, wanted[span])
    return rows


def _rows_of_block(strings: Strings, wanted: Sequence[bytes]) -> np.ndarray:
    lengths = np.fromiter(map(len, wanted), dtype=np.int64, count=len(wanted))
    width = int(min(lengths.max(), LONG)) + 1  # one more than any of them: a longer one differs
    keys = np.array(wanted, dtype=f"S{width}")
    last = len(strings) - 1

    def strings_at(rows: np.ndarray) -> np.ndarray:
        columns = strings.bytes_at(rows.clip(max=last), 0, width)
        return columns.view(f"S{width}")[:, 0]

    # Of each wanted string: its row is low or above, and high or below.
    low = np.zeros(len(wanted), dtype=np.int64)
    high = np.full(len(wanted), len(strings), dtype=np.int64)
    for _ in range(len(strings).bit_length()):
        middle = (low + high) // 2
        is_before = (strings_at(middle) < keys) & (low < high)
        low = np.where(is_before, middle + 1, low)
        high = np.where(is_before, high, middle)
    rows = low.clip(max=last)
    # numpy takes no notice of NUL at the end of a key, but a wanted string may have one.
    is_there = (strings_at(rows) == keys) & (strings.lengths(rows) == lengths)
    rows[~is_there] = -1
    for number in np.flatnonzero(lengths > LONG).tolist():
        rows[number] = _row_of_one(strings, wanted[number])
    return rows


def _row_of_one(strings: Strings, wanted: bytes) -> int:
    """As :func:`rows_among`, for a string of any length."""
    text = wanted.decode("utf-8", errors="surrogatepass")
    row = bisect_left(strings, text)
    if row < len(strings) and strings[row] == text:
        return row
    return -1
