"""Texts tokenised once, on disk; a query and a document are joined from their ids."""

import hashlib
import json
import logging
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ltr.data.cache import cache_root, folder_once
from ltr.data.progress import track
from ltr.data.texts import TextTable
from ltr.errors import InputError

log = logging.getLogger(__name__)

BATCH = 4096  # texts handed to the tokenizer at once; it spreads them over the cores


class TokenStore:
    """Token ids of every text of a table, without special tokens, end to end in a memory-mapped array.

    Args:
        folder: a folder that :meth:`open` wrote.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")

    def __reduce__(self) -> tuple:
        return TokenStore, (self.folder,)  # a worker started by spawn maps the files again, instead of a copy of them

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Token ids of one text."""
        return self._ids[self._offsets[row] : self._offsets[row + 1]]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of each of these texts."""
        return self._offsets[rows + 1] - self._offsets[rows]

    @classmethod
    def open(cls, table: TextTable, tokenizer: PreTrainedTokenizerBase) -> "TokenStore":
        """Open the store of these texts under this tokenizer; tokenise them first where it is not there.

        The store is keyed by the content of the texts and all settings of the tokenizer. It is written whole or not at all,
        and by one process where several want it.

        Raises:
            InputError: for a tokenizer without a fast (Rust) backend.
        """
        backend = _plain(tokenizer)
        key = hashlib.sha256(f"tokens-1 {table.key} {backend.to_str()}".encode()).hexdigest()[:32]
        return cls(folder_once(cache_root() / "tokens" / key, lambda folder: _tokenise(folder, table, backend)))


def _plain(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer's backend, without the truncation and padding that its file may carry."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InputError(f"the tokenizer must be a fast one (with tokenizer.json), got {type(tokenizer).__name__}")
    backend = Tokenizer.from_str(backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend


def _tokenise(folder: Path, table: TextTable, backend: Tokenizer) -> None:
    start = time.perf_counter()
    dtype = np.uint16 if backend.get_vocab_size(with_added_tokens=True) <= 2**16 else np.int32
    lengths = np.empty(len(table), dtype=np.int64)
    raw = folder / "raw"
    with open(raw, "wb") as file:
        for first in track(range(0, len(table), BATCH), "tokenising", f"batches of {BATCH} texts"):
            rows = range(first, min(first + BATCH, len(table)))
            for row, encoding in zip(
                rows,
                backend.encode_batch_fast([table.texts[row] for row in rows], add_special_tokens=False),
                strict=True,
            ):
                ids = np.asarray(encoding.ids, dtype=dtype)
                lengths[row] = len(ids)
                file.write(ids.tobytes())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.lib.format.open_memmap(folder / "ids.npy", mode="w+", dtype=dtype, shape=(max(1, int(offsets[-1])),))
    if offsets[-1]:
        flat[:] = np.memmap(raw, dtype=dtype, mode="r")
    flat.flush()
    raw.unlink()
    np.save(folder / "offsets.npy", offsets)
    seconds = time.perf_counter() - start
    counts = {"texts": len(table), "tokens": int(offsets[-1]), "seconds": round(seconds, 3)}
    (folder / "manifest.json").write_text(json.dumps(counts))
    log.info("tokenised %d texts, %d tokens, %.0f tokens/s", len(table), offsets[-1], offsets[-1] / max(seconds, 1e-9))


class JoinedPairs:
    """Joins the ids of a query and a document as ``tokenizer(query, document, truncation="only_second", max_length=…)`` does.

    Which special tokens stand where, and which part has which type, is read off one pair that the tokenizer itself joined.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of a pair, special ones counted; the document is cut.

    Raises:
        InputError: if max_length leaves no room for a query and a document.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        probe = tokenizer("a", "a", truncation=False)
        part_of = probe.sequence_ids()
        ids = np.asarray(probe["input_ids"], dtype=np.int64)
        types = np.asarray(probe.get("token_type_ids", np.zeros_like(ids)), dtype=np.int64)
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        query, doc = part_of.index(0), part_of.index(1)
        after_query = query + part_of.count(0)
        after_doc = doc + part_of.count(1)
        self._before, self._between, self._after = (
            _Specials(ids[part], types[part]) for part in (slice(0, query), slice(after_query, doc), slice(after_doc, None))
        )
        self._query_type, self._doc_type = types[query], types[doc]
        self._cut_left = tokenizer.truncation_side == "left"
        self.n_special = len(self._before.ids) + len(self._between.ids) + len(self._after.ids)
        if max_length < self.n_special + 2:
            raise InputError(
                f"max_length must leave room for a query and a document beside {self.n_special} special tokens, got {max_length} "
                "(option model.init_args.max_length)"
            )

    def lengths(self, query_lengths: np.ndarray, doc_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each joined pair."""
        return np.minimum(query_lengths + doc_lengths + self.n_special, self.max_length)

    def __call__(self, query: np.ndarray, doc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and type ids of one pair, int64."""
        room = self.max_length - self.n_special - len(query)
        assert room >= 0, "the longest query is checked when the data is set up"
        if len(doc) > room:
            doc = doc[len(doc) - room :] if self._cut_left else doc[:room]
        ids = np.concatenate([self._before.ids, query, self._between.ids, doc, self._after.ids], dtype=np.int64)
        types = np.concatenate(
            [
                self._before.types,
                np.full(len(query), self._query_type),
                self._between.types,
                np.full(len(doc), self._doc_type),
                self._after.types,
            ]
        )
        return ids, types

    def check_queries(self, queries: TextTable, tokens: TokenStore) -> None:
        """Every query must fit beside at least one token of a document.

        Raises:
            InputError: naming the longest query.
        """
        lengths = tokens.lengths(np.arange(len(tokens)))
        longest = int(lengths.argmax())
        if lengths[longest] > self.max_length - self.n_special - 1:
            raise InputError(
                f"query {queries.ids[longest]!r} has {lengths[longest]} tokens, but max_length {self.max_length} leaves "
                f"{self.max_length - self.n_special - 1} beside {self.n_special} special tokens and a document; raise "
                "model.init_args.max_length, or shorten the query"
            )


class _Specials(NamedTuple):
    ids: np.ndarray
    types: np.ndarray
