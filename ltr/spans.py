"""Cutting rows into spans, so that memory does not grow with their number."""

from collections.abc import Iterator


def spans(n: int, size: int) -> Iterator[slice]:
    """The spans of ``size`` rows that n rows are cut into; the last may be shorter.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for begin in range(0, n, size):
        yield slice(begin, min(begin + size, n))
