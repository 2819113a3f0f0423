"""Embeddings of texts that were encoded before by the same weights: of a corpus of which some texts
have changed, only those are encoded.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import map_array
from ltr.data.growing import GrowingArray
from ltr.search.embeddings import StoredEmbeddings

KEYS = "texts.npy"  # [2D] uint64: two numbers for each text


class Known(NamedTuple):
    """What is known of n texts."""

    embeddings: np.ndarray  # [n, H] float32; 0 where a text is not known
    missing: np.ndarray  # int64, the places of the texts that are not known


class KnownRows:
    """The embeddings of an encoding, found by the texts.

    Args:
        folder: of the encoding, with what :func:`write_keys` has written.
        embeddings: all of it.

    Raises:
        ValueError: if it has other numbers for its texts than embeddings.
    """

    def __init__(self, folder: Path, embeddings: StoredEmbeddings) -> None:
        keys = np.asarray(map_array(folder / KEYS)).reshape(-1, 2)
        if len(keys) != len(embeddings):
            raise ValueError(f"{len(keys)} texts have {len(embeddings)} embeddings")
        self._embeddings = embeddings
        # Sorted by the first number; the second one confirms. Two texts with one first number and
        # two second ones are hardly ever met, and then one of them counts as not known.
        self._order = np.argsort(keys[:, 0], kind="stable")
        self._firsts = keys[self._order, 0]
        self._keys = keys

    def lookup(self, texts: Iterable[str]) -> Known:
        """What is known of these texts."""
        keys = _keys_of(texts)
        places = np.searchsorted(self._firsts, keys[:, 0]).clip(max=len(self._firsts) - 1)
        rows = self._order[places]
        is_known = (self._keys[rows] == keys).all(axis=1)
        embeddings = np.zeros((len(keys), self._embeddings.shape[1]), np.float32)
        embeddings[is_known] = self._embeddings[rows[is_known]]
        return Known(embeddings, np.flatnonzero(~is_known))


def write_keys(folder: Path, blocks: Iterable[Iterable[str]]) -> None:
    """Write what :class:`KnownRows` finds the texts of an encoding by."""
    with GrowingArray(folder / KEYS, np.uint64) as file:
        for texts in blocks:
            file.write(_keys_of(texts).tobytes())


def _keys_of(texts: Iterable[str]) -> np.ndarray:
    """``[n, 2]`` uint64, 128 bits of a hash of each text."""
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
