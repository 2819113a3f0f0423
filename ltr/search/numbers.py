"""The numbers in which embeddings are stored: float32, halves, or bytes with a scale for each row.

Letters of shapes: n rows, H dimensions, Q queries, k nearest rows of each.
"""

from typing import Literal

import numpy as np
import torch

from ltr.errors import InputError

Numbers = Literal["float32", "float16", "int8"]

LARGEST_INT8 = 127
SAMPLE_QUERIES = 200  # rows of a sample that are searched for among all of them


def to_stored(embeddings: np.ndarray, numbers: Numbers) -> np.ndarray:
    """Embeddings ``[n, H]`` float32 as they are stored.

    ``float32`` and ``float16``: ``[n, H]``. ``int8``: ``[n]`` records of a scale (float32) and H
    values (int8); an embedding is scale · values, and the scale is its largest component over 127.

    Raises:
        InputError: for a number beyond 65,504 in ``float16``.
    """
    if numbers == "float32":
        return np.ascontiguousarray(embeddings, np.float32)
    if numbers == "float16":
        largest = float(np.finfo(np.float16).max)
        if embeddings.size and np.abs(embeddings).max() > largest:
            raise InputError(
                f"embeddings must lie within ±{largest:.0f} to be stored as float16, got {np.abs(embeddings).max():.3g}; store them as float32"
            )
        return embeddings.astype(np.float16)
    record = np.dtype([("scale", "<f4"), ("values", "i1", (embeddings.shape[1],))])
    stored = np.zeros(len(embeddings), record)
    scales = np.abs(embeddings).max(axis=1, initial=0.0) / LARGEST_INT8
    stored["scale"] = scales
    divisors = np.where(scales > 0, scales, 1.0)  # a row of zeros stays one
    stored["values"] = np.rint(embeddings / divisors[:, None])
    return stored


def to_float32(stored: np.ndarray) -> np.ndarray:
    """``[n, H]`` float32 of what :func:`to_stored` has made."""
    if stored.dtype.names is None:
        return np.asarray(stored, np.float32)
    return stored["values"].astype(np.float32) * stored["scale"][:, None]


def numbers_of(stored: np.ndarray) -> Numbers:
    """In which numbers an array is stored."""
    if stored.dtype.names is not None:
        return "int8"
    return "float16" if stored.dtype == np.float16 else "float32"


def dimension_of(stored: np.ndarray) -> int:
    """H."""
    return stored.dtype["values"].shape[0] if stored.dtype.names else stored.shape[1]


def overlap(embeddings: np.ndarray, stored: np.ndarray, k: int = 100) -> float:
    """How many of the k nearest rows by inner product, among n, stay the same when embeddings are
    stored: the mean share over the first 200 rows as queries, from 0 to 1.

    Args:
        embeddings: ``[n, H]`` float32.
        stored: the same rows, as :func:`to_stored` makes them.
        k: of which the nearest are compared; at most n.
    """
    k = min(k, len(embeddings))
    nearest = _nearest(embeddings, k)
    nearest_stored = _nearest(to_float32(stored), k)
    shares = [
        np.isin(rows, rows_stored).mean()
        for rows, rows_stored in zip(nearest, nearest_stored, strict=True)
    ]
    return float(np.mean(shares))


def _nearest(embeddings: np.ndarray, k: int) -> np.ndarray:
    rows = torch.from_numpy(np.ascontiguousarray(embeddings, np.float32))
    return (rows[:SAMPLE_QUERIES] @ rows.T).topk(k).indices.numpy()
