"""Finished parts of a long tokenisation: a kill loses the one that was being made."""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

TEXTS_OF_PART = 65_536


class TokenPart(NamedTuple):
    """The tokens of some texts that stand one after the other."""

    ids: np.ndarray  # of all texts, end to end
    lengths: np.ndarray  # [texts] int64
    seconds: float  # that it took


class TokenParts:
    """A folder of parts, each written whole under its number.

    Args:
        folder: what is there is taken over; it must be of the same texts and tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.n_texts = 0
        self._count = 0
        while (part := self._read(self._count)) is not None:
            self._count += 1
            self.n_texts += len(part.lengths)

    def append(self, part: TokenPart) -> None:
        """Write the next part. Not by ``write_whole``, which locks: who writes parts holds the lock of
        what they become.
        """
        file = self._file(self._count)
        unfinished = file.with_suffix(".tmp")
        with open(unfinished, "wb") as opened:
            np.savez(opened, **part._asdict())
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(unfinished, file)
        self._count += 1
        self.n_texts += len(part.lengths)

    def __iter__(self) -> Iterator[TokenPart]:
        for number in range(self._count):
            part = self._read(number)
            assert part is not None, "it was written, or read before"
            yield part

    def _read(self, number: int) -> TokenPart | None:
        """A part; None where there is none, or a damaged one, as its checksums tell, or as zipfile
        stumbles over it.
        """
        try:
            with open(self._file(number), "rb") as opened, np.load(opened) as arrays:
                return TokenPart(arrays["ids"], arrays["lengths"], float(arrays["seconds"]))
        except (OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile):
            return None

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06d}.npz"
