"""Texts as token ids: tokenised once, on disk, or a few in memory.

What stands around a text, such as a prompt, is tokenised together with it, as sentence-transformers
does. Apart they would give other tokens: to a byte-level BPE ``"query: "`` and ``"tree"`` are
``query : Ġ tree``, together ``query : Ġtree``.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ltr.data.cache_folder import cached, origin_of
from ltr.data.files import encoded, map_array
from ltr.data.growing import GrowingArray
from ltr.data.progress import track
from ltr.data.texts import TextTable
from ltr.data.token_parts import TEXTS_OF_PART, TokenPart, TokenParts
from ltr.data.whole_files import parts_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

BATCH = 4096  # texts handed to the tokenizer at once; it spreads them over the cores


class Rendering:
    """What is read of a text: a prompt, and the text. A subclass puts it into a template.

    Args:
        prompt: what stands in front of every text.

    Attributes:
        prompt: what stands in front of a text that has no instruction of its own; None where
            something stands behind it.
        key: all that decides what is made of a text, for keys; JSON can hold it.
        reads_instructions: whether an instruction of a text's own changes what is read.
    """

    prompt: str | None
    key: str | list[object]
    reads_instructions = False

    def __init__(self, prompt: str = "") -> None:
        self.prompt = prompt
        self.key = prompt

    def __call__(self, text: str, instruction: str = "") -> str:
        """What is tokenised for a text.

        Args:
            text: as it stands in the data.
            instruction: its own; empty: it has none.
        """
        return self.around(self.field(text), instruction)

    def field(self, text: str) -> str:
        """A text, cut to its budget."""
        return text

    def around(self, field: str, instruction: str = "") -> str:
        """The whole, of a text that is cut already and of an instruction, which is not."""
        return f"{self.prompt}{field}"


PLAIN_RENDERING = Rendering()


class Tokens:
    """Token ids of texts, without special tokens, end to end.

    Args:
        ids: the tokens of all texts.
        offsets: ``[texts + 1]``; those of text i stand from offsets[i] to offsets[i + 1].
        rendering_key: key of the rendering that made what was tokenised.
    """

    def __init__(
        self, ids: np.ndarray, offsets: np.ndarray, rendering_key: str | list[object] = ""
    ) -> None:
        self.ids = ids
        self.offsets = offsets
        self.rendering_key = rendering_key
        self._buffer = ids.data  # a slice of it costs less than a slice of the array
        self.dtype = ids.dtype

    def __reduce__(self) -> tuple:
        # A memoryview can't be pickled.
        return Tokens, (self.ids, self.offsets, self.rendering_key)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Token ids of one text."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of each of these texts; an IndexError if there is no such text."""
        # -1 is padding in the results of a search; numpy would take it for the last text.
        if len(rows) and rows.min() < 0:
            raise IndexError(f"rows must be between 0 and {len(self) - 1}, got {rows.min()}")
        return self.offsets[rows + 1] - self.offsets[rows]

    def between(self, first: int, stop: int) -> "Tokens":
        """The texts from one row up to another one, without a copy."""
        return Tokens(self.ids, self.offsets[first : stop + 1], self.rendering_key)

    def views(
        self, rows: np.ndarray, counts: np.ndarray, *, last: bool = False
    ) -> list[memoryview]:
        """The first tokens of each of these texts, or the last ones, as views: nothing is copied.

        Args:
            rows: ``[S]`` int64.
            counts: ``[S]`` int64, how many of each text, at most what :meth:`lengths` says.
            last: take the last tokens.
        """
        starts = self.lengths(rows) - counts if last else np.zeros_like(counts)
        return self.pieces(rows, starts, counts)

    def pieces(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> list[memoryview]:
        """Some tokens of each of these texts, as views.

        Args:
            rows: ``[S]`` int64.
            starts: ``[S]`` int64, the first token of each, counted from the begin of its text.
            counts: ``[S]`` int64, how many from there on.
        """
        begins = self.offsets[rows] + starts
        places = zip(begins.tolist(), (begins + counts).tolist(), strict=True)
        return [self._buffer[begin:end] for begin, end in places]

    @staticmethod
    def from_texts(
        texts: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        rendering: Rendering = PLAIN_RENDERING,
        instructions: Sequence[str] | None = None,
        backend: Tokenizer | None = None,
    ) -> "Tokens":
        """Tokenise texts, in memory.

        Args:
            texts: as they stand in the data.
            tokenizer: a fast one.
            rendering: what is read of each.
            instructions: of each text its own; an empty one is none.
            backend: of the tokenizer, by :func:`backend_without_cutting`: makes the same tokens of many
                texts in two thirds of the time. None: the tokenizer makes them, which for a few texts
                is faster than to copy its backend.

        Raises:
            InputError: if a text holds NUL or is not valid Unicode, or the tokenizer is not a fast one.
        """
        dtype = _smallest_dtype(_fast_backend(tokenizer))
        for text in [*texts, *(instructions or [])]:
            encoded(text, ascii(text)[:80])  # only to refuse NUL and what is not valid Unicode
        rendered = _rendered(texts, rendering, instructions)
        if backend is not None:
            ids_of_texts = _ids_of_texts(backend, rendered)
        elif rendered:
            options = {
                "add_special_tokens": False,
                "truncation": False,
                "padding": False,
                "verbose": False,
            }
            ids_of_texts = tokenizer(rendered, **options)["input_ids"]
        else:  # the tokenizer refuses an empty list
            ids_of_texts = []
        offsets = np.cumsum([0, *map(len, ids_of_texts)])
        ids = np.fromiter(chain.from_iterable(ids_of_texts), dtype, count=int(offsets[-1]))
        return Tokens(ids, offsets, rendering.key)


class TokenStore(Tokens):
    """The tokens of every text of a table, in a memory-mapped array.

    Attributes:
        folder: where the arrays lie.
        read_key: of what is read of the texts, see :attr:`ltr.data.texts.TextTable.read_key`.
    """

    def __init__(
        self, folder: Path, rendering_key: str | list[object] = "", read_key: str = ""
    ) -> None:
        self.folder = folder
        self.read_key = read_key
        # As plain arrays over the maps: every slice of an np.memmap costs microseconds.
        ids = np.asarray(map_array(folder / "ids.npy"))
        offsets = np.asarray(map_array(folder / "offsets.npy"))
        super().__init__(ids, offsets, rendering_key)

    def __reduce__(self) -> tuple:
        # A worker started by spawn maps the files again: it gets no copy of the arrays.
        return TokenStore, (self.folder, self.rendering_key, self.read_key)

    @classmethod
    def open(
        cls,
        table: TextTable,
        tokenizer: PreTrainedTokenizerBase,
        rendering: Rendering = PLAIN_RENDERING,
    ) -> "TokenStore":
        """Open the store of these texts, as a rendering makes them of the table's, under this
        tokenizer; tokenise them first where it is not there.

        The store is keyed by the content of the texts, the rendering, and all settings of the
        tokenizer, which must have a fast (Rust) backend. It is written whole or not at all, and by
        one process where several want it.
        """
        backend = backend_without_cutting(tokenizer)
        # A prompt in quotes: whatever stands in it, the parts can't be mistaken for each other.
        return cached(
            "tokens",
            f"tokens-2 {table.read_key} {rendering.key!a} {_settings(backend)}",
            lambda folder: _tokenise(folder, table, backend, rendering),
            lambda folder: cls(folder, rendering.key, table.read_key),
            origin_of(table.folder, model=tokenizer.name_or_path or None),
        )


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of all that decides what a tokenizer makes of a text: its settings, the side on which
    it cuts, and whether tokens have types. It must have a fast backend.
    """
    settings = _settings(backend_without_cutting(tokenizer))
    has_types = "token_type_ids" in tokenizer.model_input_names
    text = f"{tokenizer.truncation_side} {has_types} {settings}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _settings(backend: Tokenizer) -> str:
    """All that decides which tokens a backend makes of a text."""
    return f"{backend.encode_special_tokens} {backend.to_str()}"


def _fast_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer's backend; an InputError if it has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InputError(
            f"the tokenizer must be a fast one (with tokenizer.json), got {type(tokenizer).__name__}"
        )
    return backend


def backend_without_cutting(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer's backend, without the truncation and padding that its file may
    carry.
    """
    backend = Tokenizer.from_str(_fast_backend(tokenizer).to_str())
    backend.no_truncation()
    backend.no_padding()
    # Whether special tokens in a text are split like words. It is no part of the backend's file.
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def _smallest_dtype(backend: Tokenizer) -> type[np.uint16 | np.int32]:
    """The smallest type that holds the tokenizer's ids."""
    largest_id = max(backend.get_vocab(with_added_tokens=True).values())
    return np.uint16 if largest_id < 2**16 else np.int32


def _rendered(
    texts: Iterable[str], rendering: Rendering, instructions: Iterable[str] | None
) -> list[str]:
    """What is tokenised for each text."""
    if instructions is None or not rendering.reads_instructions:
        return list(map(rendering, texts))
    return list(map(rendering, texts, instructions))


def _ids_of_texts(backend: Tokenizer, rendered: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, by all cores."""
    encodings = backend.encode_batch_fast(rendered, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def _tokenise(folder: Path, table: TextTable, backend: Tokenizer, rendering: Rendering) -> None:
    """Write the token ids of all texts, as the rendering makes them, their offsets, and what it
    took. Finished parts are kept beside the folder, until the store is whole.
    """
    dtype = _smallest_dtype(backend)
    parts = TokenParts(parts_of(folder))
    if parts.n_texts:
        log.info("tokenising goes on after %d of %d texts", parts.n_texts, len(table))
    ids = []
    lengths = []
    start_time = time.perf_counter()
    batches = range(parts.n_texts, len(table), BATCH)
    for first in track(batches, "tokenising", f"batches of {BATCH} texts"):
        stop = min(first + BATCH, len(table))
        instructions = None
        if table.instructions is not None:
            instructions = table.instructions.between(first, stop)
        texts = _rendered(table.texts.between(first, stop), rendering, instructions)
        ids_of_texts = _ids_of_texts(backend, texts)
        ids.append(np.fromiter(chain.from_iterable(ids_of_texts), dtype))
        lengths.append(np.fromiter(map(len, ids_of_texts), np.int64))
        if stop - parts.n_texts >= TEXTS_OF_PART or stop == len(table):
            part_seconds = time.perf_counter() - start_time
            parts.append(TokenPart(np.concatenate(ids), np.concatenate(lengths), part_seconds))
            ids.clear()
            lengths.clear()
            start_time = time.perf_counter()
    n_tokens, seconds = _join(folder, parts, dtype)
    # Read by benchmarks alone.
    counts = {"texts": len(table), "tokens": n_tokens, "seconds": round(seconds, 3)}
    (folder / "manifest.json").write_text(json.dumps(counts))
    tokens_per_second = n_tokens / max(seconds, 1e-9)
    log.info(
        "tokenised %d texts, %d tokens, %.0f tokens/s", len(table), n_tokens, tokens_per_second
    )


def _join(folder: Path, parts: TokenParts, dtype: np.typing.DTypeLike) -> tuple[int, float]:
    """Write the parts end to end. Returns the number of tokens, and the seconds they took."""
    n_tokens = 0
    start_time = time.perf_counter()
    seconds = 0.0
    with (
        GrowingArray(folder / "ids.npy", dtype) as ids,
        GrowingArray(folder / "offsets.npy", np.int64) as offsets,
    ):
        offsets.write(np.int64(0).tobytes())
        for part in parts:
            ids.write(part.ids.tobytes())
            offsets.write((n_tokens + np.cumsum(part.lengths)).tobytes())
            n_tokens += len(part.ids)
            seconds += part.seconds
        if n_tokens == 0:  # one number at least: an array of 0 bytes cannot be mapped
            ids.write(bytes(ids.dtype.itemsize))
    return n_tokens, seconds + time.perf_counter() - start_time
