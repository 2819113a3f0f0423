"""Texts as token ids: tokenised once, on disk, or a few in memory."""

import json
import logging
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ltr.data.files import cached, encoded, new_array
from ltr.data.progress import track
from ltr.data.texts import TextTable
from ltr.errors import InputError

log = logging.getLogger(__name__)

BATCH = 4096  # texts handed to the tokenizer at once; it spreads them over the cores


class Tokens:
    """Token ids of texts, without special tokens, end to end.

    Args:
        ids: the tokens of all texts.
        offsets: ``[texts + 1]``, where each begins, and the end of the last.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self._ids = ids
        self._offsets = offsets
        self._buffer = ids.data
        self.dtype = ids.dtype

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Token ids of one text."""
        return self._ids[self._offsets[row] : self._offsets[row + 1]]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of each of these texts; an IndexError if there is no such text."""
        if len(rows) and rows.min() < 0:  # a search's sign for "none", and not the last text
            raise IndexError(f"rows must be between 0 and {len(self) - 1}, got {rows.min()}")
        return self._offsets[rows + 1] - self._offsets[rows]

    def views(
        self, rows: np.ndarray, counts: np.ndarray, *, last: bool = False
    ) -> list[memoryview]:
        """The first (or last) ``counts`` tokens of each of these texts, as views: nothing is
        copied.

        Both arrays are ``[S]`` int64, and a count is at most that of :meth:`lengths`.
        """
        starts = self._offsets[rows + 1] - counts if last else self._offsets[rows]
        return [
            self._buffer[start:stop]
            for start, stop in zip(starts.tolist(), (starts + counts).tolist(), strict=True)
        ]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> "Tokens":
        """Tokenise a few texts, in memory; an InputError if one is no valid Unicode, or the
        tokenizer is not a fast one.
        """
        backend = _fast(tokenizer)
        for text in texts:
            encoded(text, ascii(text)[:80])
        options = {
            "add_special_tokens": False,
            "truncation": False,
            "padding": False,
            "verbose": False,
        }
        # By the tokenizer itself: a copy of its backend, as for a store, takes longer than a
        # query's encoding.
        found = tokenizer(list(texts), **options)["input_ids"] if len(texts) else []
        offsets = np.cumsum([0, *map(len, found)])
        return cls(
            np.fromiter(chain.from_iterable(found), _smallest(backend), int(offsets[-1])), offsets
        )


class TokenStore(Tokens):
    """The tokens of every text of a table, in a memory-mapped array."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # As plain arrays: every slice of an np.memmap costs microseconds.
        super().__init__(
            *(
                np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
                for name in ("ids", "offsets")
            )
        )

    def __reduce__(self) -> tuple:
        return TokenStore, (
            self.folder,
        )  # a worker started by spawn maps the files again, instead of a copy of them

    @classmethod
    def open(cls, table: TextTable, tokenizer: PreTrainedTokenizerBase) -> "TokenStore":
        """Open the store of these texts under this tokenizer; tokenise them first where it is not
        there.

        The store is keyed by the content of the texts and all settings of the tokenizer, which must
        have a fast (Rust) backend. It is written whole or not at all, and by one process where
        several want it.
        """
        backend = _plain(tokenizer)
        content = f"tokens-1 {table.key} {backend.to_str()}"
        return cls(cached("tokens", content, lambda folder: _tokenise(folder, table, backend)))


def _fast(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer's backend; an InputError if it has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InputError(
            f"the tokenizer must be a fast one (with tokenizer.json), got {type(tokenizer).__name__}"
        )
    return backend


def _plain(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer's backend, without the truncation and padding that its file may
    carry.
    """
    backend = Tokenizer.from_str(_fast(tokenizer).to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend


def _smallest(backend: Tokenizer) -> type[np.uint16 | np.int32]:
    """The smallest type that holds the tokenizer's ids."""
    return (
        np.uint16 if max(backend.get_vocab(with_added_tokens=True).values()) < 2**16 else np.int32
    )


def _tokenise(folder: Path, table: TextTable, backend: Tokenizer) -> None:
    start = time.perf_counter()
    dtype = _smallest(backend)
    lengths = np.empty(len(table), dtype=np.int64)
    raw = folder / "raw"
    with open(raw, "wb") as file:
        for first in track(range(0, len(table), BATCH), "tokenising", f"batches of {BATCH} texts"):
            texts = [table.texts[row] for row in range(first, min(first + BATCH, len(table)))]
            for row, encoding in enumerate(
                backend.encode_batch_fast(texts, add_special_tokens=False), start=first
            ):
                ids = np.asarray(encoding.ids, dtype=dtype)
                lengths[row] = len(ids)
                file.write(ids.tobytes())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = new_array(folder / "ids.npy", dtype, (max(1, int(offsets[-1])),))
    if offsets[-1]:
        flat[:] = np.memmap(raw, dtype=dtype, mode="r")
    flat.flush()
    raw.unlink()
    np.save(folder / "offsets.npy", offsets)
    seconds = time.perf_counter() - start
    counts = {"texts": len(table), "tokens": int(offsets[-1]), "seconds": round(seconds, 3)}
    (folder / "manifest.json").write_text(json.dumps(counts))
    log.info(
        "tokenised %d texts, %d tokens, %.0f tokens/s",
        len(table),
        offsets[-1],
        offsets[-1] / max(seconds, 1e-9),
    )
