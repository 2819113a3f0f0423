"""Embeddings ``[D, H]`` float32, in memory or mapped from a file: read in spans, and checked."""

from collections.abc import Callable

import numpy as np

from ltr.errors import InputError
from ltr.spans import spans

# Embeddings as a search compares them, see :meth:`ltr.similarity.Similarity.prepare`.
Prepare = Callable[[np.ndarray], np.ndarray]

DOCS = 16384  # documents read at once


def checked_sum(embeddings: np.ndarray, name: str, numbers: np.ndarray | None = None) -> np.ndarray:
    """The sum of the embeddings, ``[H]`` float64.

    Raises:
        InputError: naming the first row that is not finite, by its number ``[D]`` if the rows have
            numbers of their own.
    """
    total = np.zeros(embeddings.shape[1])
    for span in spans(len(embeddings), DOCS):
        finite = np.isfinite(embeddings[span]).all(axis=1)
        if not finite.all():
            bad = span.start + int(finite.argmin())
            bad = bad if numbers is None else numbers[bad]
            raise InputError(
                f"{name} must be finite, got NaN or infinity in row {bad}; check the model that made them"
            )
        total += embeddings[span].sum(axis=0, dtype=np.float64)
    return total
