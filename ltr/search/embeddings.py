"""Embeddings ``[D, H]`` float32, in memory or mapped from a file: read in spans, checked, prepared for comparison."""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from ltr.errors import InputError

Similarity = Literal["dot", "cosine", "euclidean", "squared_euclidean"]

Prepare = Callable[[np.ndarray], np.ndarray]  # see :func:`prepared`

DOCS = 16384  # documents read at once


def spans(n: int, size: int) -> Iterator[slice]:
    """Cut n rows into spans of ``size``; the last may be shorter.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(begin, min(begin + size, n)) for begin in range(0, n, size))


def checked_sum(embeddings: np.ndarray, name: str, numbers: np.ndarray | None = None) -> np.ndarray:
    """The sum of the embeddings, ``[H]`` float64.

    Raises:
        InputError: naming the first row that is not finite, by its number ``[D]`` if the rows have numbers of their own.
    """
    total = np.zeros(embeddings.shape[1])
    for span in spans(len(embeddings), DOCS):
        finite = np.isfinite(embeddings[span]).all(axis=1)
        if not finite.all():
            bad = span.start + int(finite.argmin())
            bad = bad if numbers is None else numbers[bad]
            raise InputError(f"{name} must be finite, got NaN or infinity in row {bad}; check the model that made them")
        total += embeddings[span].sum(axis=0, dtype=np.float64)
    return total


def prepared(embeddings: np.ndarray, similarity: Similarity, centre: np.ndarray | None) -> np.ndarray:
    """A copy whose inner products (or squared distances, where there is a centre) are the scores.

    Subtracting the ``centre`` ``[H]`` changes no distance, but keeps digits where all embeddings lie close together.
    """
    embeddings = np.array(embeddings, dtype=np.float32, order="C")
    if similarity == "cosine":
        embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    elif centre is not None:
        embeddings -= centre
    return embeddings
