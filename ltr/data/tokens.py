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
        offsets: ``[texts + 1]``; those of text i stand from offsets[i] to offsets[i + 1].
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self._ids = ids
        self._offsets = offsets
        self._buffer = ids.data  # a slice of it costs less than a slice of the array
        self.dtype = ids.dtype

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Token ids of one text."""
        return self._ids[self._offsets[row] : self._offsets[row + 1]]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of each of these texts; an IndexError if there is no such text."""
        # -1 is padding in the results of a search; numpy would take it for the last text.
        if len(rows) and rows.min() < 0:
            raise IndexError(f"rows must be between 0 and {len(self) - 1}, got {rows.min()}")
        return self._offsets[rows + 1] - self._offsets[rows]

    def views(
        self, rows: np.ndarray, counts: np.ndarray, *, last: bool = False
    ) -> list[memoryview]:
        """The first tokens of each of these texts, or the last ones, as views: nothing is copied.

        Args:
            rows: ``[S]`` int64.
            counts: ``[S]`` int64, how many of each text, at most what :meth:`lengths` says.
            last: take the last tokens.
        """
        if last:
            starts = self._offsets[rows + 1] - counts
        else:
            starts = self._offsets[rows]
        stops = starts + counts
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return [self._buffer[start:stop] for start, stop in spans]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> "Tokens":
        """Tokenise a few texts, in memory.

        Raises:
            InputError: if a text is not valid Unicode, or the tokenizer not a fast one.
        """
        dtype = _smallest_dtype(_fast_backend(tokenizer))
        for text in texts:
            encoded(text, ascii(text)[:80])  # only to refuse what is not valid Unicode
        options = {
            "add_special_tokens": False,
            "truncation": False,
            "padding": False,
            "verbose": False,
        }
        # The tokenizer itself encodes them. A store is made by a copy of its backend, but to copy
        # that takes longer than to encode a query. The tokenizer refuses an empty list.
        ids_of_texts = tokenizer(list(texts), **options)["input_ids"] if len(texts) else []
        offsets = np.cumsum([0, *map(len, ids_of_texts)])
        ids = np.fromiter(chain.from_iterable(ids_of_texts), dtype, count=int(offsets[-1]))
        return cls(ids, offsets)


class TokenStore(Tokens):
    """The tokens of every text of a table, in a memory-mapped array."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # As plain arrays over the maps: every slice of an np.memmap costs microseconds.
        ids = np.asarray(np.load(folder / "ids.npy", mmap_mode="r"))
        offsets = np.asarray(np.load(folder / "offsets.npy", mmap_mode="r"))
        super().__init__(ids, offsets)

    def __reduce__(self) -> tuple:
        # A worker started by spawn maps the files again: it gets no copy of the arrays.
        return TokenStore, (self.folder,)

    @classmethod
    def open(cls, table: TextTable, tokenizer: PreTrainedTokenizerBase) -> "TokenStore":
        """Open the store of these texts under this tokenizer; tokenise them first where it is not
        there.

        The store is keyed by the content of the texts and all settings of the tokenizer, which must
        have a fast (Rust) backend. It is written whole or not at all, and by one process where
        several want it.
        """
        backend = _backend_without_cutting(tokenizer)
        content = f"tokens-1 {table.key} {backend.to_str()}"
        folder = cached("tokens", content, lambda folder: _tokenise(folder, table, backend))
        return cls(folder)


def _fast_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer's backend; an InputError if it has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InputError(
            f"the tokenizer must be a fast one (with tokenizer.json), got {type(tokenizer).__name__}"
        )
    return backend


def _backend_without_cutting(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer's backend, without the truncation and padding that its file may
    carry.
    """
    backend = Tokenizer.from_str(_fast_backend(tokenizer).to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend


def _smallest_dtype(backend: Tokenizer) -> type[np.uint16 | np.int32]:
    """The smallest type that holds the tokenizer's ids."""
    largest_id = max(backend.get_vocab(with_added_tokens=True).values())
    return np.uint16 if largest_id < 2**16 else np.int32


def _tokenise(folder: Path, table: TextTable, backend: Tokenizer) -> None:
    """Write the token ids of all texts, their offsets, and what it took."""
    start_time = time.perf_counter()
    dtype = _smallest_dtype(backend)
    lengths = np.empty(len(table), dtype=np.int64)
    # The header of ids.npy holds the number of all tokens, which is known at the end only: until
    # then they are written to a file without one.
    raw = folder / "raw"
    with open(raw, "wb") as file:
        for first in track(range(0, len(table), BATCH), "tokenising", f"batches of {BATCH} texts"):
            texts = [table.texts[row] for row in range(first, min(first + BATCH, len(table)))]
            encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
            for row, encoding in enumerate(encodings, start=first):
                ids = np.asarray(encoding.ids, dtype=dtype)
                lengths[row] = len(ids)
                file.write(ids.tobytes())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n_tokens = int(offsets[-1])
    # One number at least: an array of 0 bytes cannot be mapped.
    flat = new_array(folder / "ids.npy", dtype, (max(1, n_tokens),))
    if n_tokens:
        flat[:] = np.memmap(raw, dtype=dtype, mode="r")
    flat.flush()
    raw.unlink()
    np.save(folder / "offsets.npy", offsets)
    seconds = time.perf_counter() - start_time
    counts = {"texts": len(table), "tokens": n_tokens, "seconds": round(seconds, 3)}
    (folder / "manifest.json").write_text(json.dumps(counts))
    tokens_per_second = n_tokens / max(seconds, 1e-9)
    log.info(
        "tokenised %d texts, %d tokens, %.0f tokens/s", len(table), n_tokens, tokens_per_second
    )
