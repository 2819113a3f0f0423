"""Embeddings ``[D, H]`` float32, in memory or mapped from a file: read in spans, and checked."""

from collections.abc import Callable

import numpy as np

from ltr.errors import InputError
from ltr.spans import spans

# A function from embeddings [D, H] to what a search compares, see
# :meth:`ltr.similarity.Similarity.prepare`.
Prepare = Callable[[np.ndarray], np.ndarray]

DOCS_AT_ONCE = 16384  # that are read from a memory map


def checked_sum(
    embeddings: np.ndarray, name: str, row_numbers: np.ndarray | None = None
) -> np.ndarray:
    """The sum of the embeddings, ``[H]`` float64, of which all must be finite; also called for the
    check alone.

    Args:
        embeddings: ``[D, H]``.
        name: of the embeddings, for the error.
        row_numbers: ``[D]``, what the error calls the rows; None: 0, 1, ….

    Raises:
        InputError: naming the first row that is not finite.
    """
    total = np.zeros(embeddings.shape[1])
    for span in spans(len(embeddings), DOCS_AT_ONCE):
        is_finite = np.isfinite(embeddings[span]).all(axis=1)
        if not is_finite.all():
            place = span.start + int(is_finite.argmin())
            row_number = place if row_numbers is None else row_numbers[place]
            raise InputError(
                f"{name} must be finite, got NaN or infinity in row {row_number}; check the model that made them"
            )
        total += embeddings[span].sum(axis=0, dtype=np.float64)
    return total
