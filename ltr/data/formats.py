"""How token ids of the stores become what an encoder reads: a query joined with a document, or a
text alone.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ltr.batch import Texts
from ltr.data.tokens import Tokens
from ltr.errors import InputError


class JoinedPairs:
    """Joins the ids of a query and a document as
    ``tokenizer(query, document, truncation="only_second", max_length=…)`` does.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of a pair, special ones counted; the document is cut.

    Raises:
        InputError: if max_length leaves no room for a query and a document.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._template = _Template(tokenizer, "a", "a")
        self._cut_left = tokenizer.truncation_side == "left"
        self.n_special = self._template.n_special
        if max_length < self.n_special + 2:
            needed = f"a query and a document beside {self.n_special} special tokens"
            raise InputError(
                f"max_length must leave room for {needed}, got {max_length}", option="max_length"
            )

    @property
    def tokenizers(self) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """Of queries and of documents."""
        return self.tokenizer, self.tokenizer

    def lengths(self, query_lengths: np.ndarray, doc_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each joined pair."""
        return np.minimum(query_lengths + doc_lengths + self.n_special, self.max_length)

    def texts(
        self, queries: Tokens, query_rows: np.ndarray, docs: Tokens, doc_rows: np.ndarray
    ) -> Texts:
        """Join each query with the document beside it (rows ``[S]`` int64); each query must fit,
        see :meth:`check_queries`.
        """
        n_query = queries.lengths(query_rows)
        n_doc = docs.lengths(doc_rows)
        n_doc = self.lengths(n_query, n_doc) - self.n_special - n_query
        assert (n_doc >= 0).all(), "the longest query is checked when the data is set up"
        assert queries.dtype == docs.dtype, "one tokenizer made both stores"
        return self._template.filled(
            [_Spans(queries.views(query_rows, n_query), n_query)],
            [_Spans(docs.views(doc_rows, n_doc, last=self._cut_left), n_doc)],
            dtype=docs.dtype,
        )

    def check_queries(self, ids: Sequence[str], texts: Sequence[str], tokens: Tokens) -> None:
        """Every query must fit beside at least one token of a document: else an InputError names
        the longest.
        """
        lengths = tokens.lengths(np.arange(len(tokens)))
        room = self.max_length - self.n_special - 1
        longest = int(lengths.argmax())
        if lengths[longest] > room:
            came = f"{lengths[longest]} tokens, but max_length {self.max_length} leaves {room}"
            beside = f"beside {self.n_special} special tokens and a document"
            hint = f"raise max_length, or shorten the query, {texts[longest][:60]!r}"
            raise InputError(
                f"query {ids[longest]!r} has {came} {beside}; {hint}", option="max_length"
            )


class SingleTexts:
    """Gives a text its special tokens as
    ``tokenizer(prompt + text, truncation=True, max_length=…)`` does.

    Prompt and text are tokenised apart and cut as one. Tokenised together they give the same ids
    where no token reaches over the seam. With WordPiece that holds if the prompt ends with a space
    or a punctuation mark (``"query: "``). SentencePiece puts a space of its own in front of every
    text: give the prompt without the one it ends with (``"query:"``). A byte-level BPE keeps the
    space that ends a prompt as a token, where together it would open the first word of the text: no
    prompt gives those ids.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of a text, the prompt's and special ones counted.
        prompt: what stands in front of every text.

    Raises:
        InputError: if max_length leaves no room for the prompt and a token of the text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, prompt: str = ""
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.prompt = prompt
        self._template = _Template(tokenizer, "a")
        self._cut_left = tokenizer.truncation_side == "left"
        self._prompt_ids = tokenizer(prompt, add_special_tokens=False, truncation=False)[
            "input_ids"
        ]
        self.n_special = self._template.n_special
        if max_length < self.n_special + len(self._prompt_ids) + 1:
            taken = f"{len(self._prompt_ids)} of the prompt {prompt!r} and {self.n_special} special tokens"
            text = f"max_length must leave room for a token of the text beside {taken}, got {max_length}"
            raise InputError(text, option="max_length")

    def lengths(self, text_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each text with its prompt and special tokens."""
        return np.minimum(text_lengths + len(self._prompt_ids) + self.n_special, self.max_length)

    def texts(self, store: Tokens, rows: np.ndarray) -> Texts:
        """The texts of these rows, ``[S]`` int64."""
        n_text = store.lengths(rows)
        n_both = self.lengths(n_text) - self.n_special
        n_text = np.minimum(n_text, n_both) if self._cut_left else n_both - len(self._prompt_ids)
        spans = [_Spans(store.views(rows, n_text, last=self._cut_left), n_text)]
        if self._prompt_ids:
            n_prompt = n_both - n_text
            prompt = np.asarray(self._prompt_ids, dtype=store.dtype).data
            spans.insert(
                0, _Spans([prompt[len(prompt) - n :] for n in n_prompt.tolist()], n_prompt)
            )
        return self._template.filled(spans, dtype=store.dtype)


class ApartTexts(NamedTuple):
    """Queries and documents laid out apart, each in the form that its tower reads."""

    queries: SingleTexts
    docs: SingleTexts

    @property
    def tokenizers(self) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """Of queries and of documents."""
        return self.queries.tokenizer, self.docs.tokenizer

    def check_queries(self, ids: Sequence[str], texts: Sequence[str], tokens: Tokens) -> None:
        """Every query will do: one that is too long is cut, as a document is."""


class PairsAndTexts(NamedTuple):
    """Both: joined pairs for a cross-encoder, and texts apart for the dual encoder that is trained
    beside it.
    """

    pairs: JoinedPairs
    apart: ApartTexts


class FeatureVectors(NamedTuple):
    """Documents as feature vectors, of ``n_features`` numbers each."""

    n_features: int


TextReads = JoinedPairs | ApartTexts | PairsAndTexts
Reads = TextReads | FeatureVectors


class _Spans(NamedTuple):
    """One span of token ids of each of S texts: S buffers, and the tokens of each, ``[S]`` int64."""

    views: Sequence[memoryview | bytes]
    lengths: np.ndarray


class _Part(NamedTuple):
    """A stretch of what a tokenizer makes of a text or of a pair: its tokens have one type."""

    slot: (
        int | None
    )  # 0 where the text stands, or the first of a pair, 1 where the second stands, None for special tokens
    type: int
    ids: list[int]


class _Template:
    """Which special tokens stand where, and which part has which type: read off an example, one
    text, or two for a pair.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *example: str) -> None:
        encoding = tokenizer(*example, truncation=False)
        slots = encoding.sequence_ids()
        ids = encoding["input_ids"]
        types = encoding.get("token_type_ids", [0] * len(ids))
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        self.n_special = slots.count(None)
        if not set(range(len(example))) <= set(slots):
            raise InputError(
                f"the tokenizer must know {example[0]!r}, to find its special tokens, got no token for it"
            )
        self._parts = [
            _Part(slot, type_id, [token for _, _, token in tokens])
            for (slot, type_id), tokens in groupby(
                zip(slots, types, ids, strict=True), key=lambda token: token[:2]
            )
        ]

    def filled(self, *slots: Sequence[_Spans], dtype: np.dtype) -> Texts:
        """Put spans of token ids where the example had its texts, one after the other, and lay all
        end to end.
        """
        n_texts = len(slots[0][0].lengths)
        spans: list[_Spans] = []
        types: list[int] = []
        for part in self._parts:
            constant = _Spans(
                [np.asarray(part.ids, dtype=dtype).tobytes()] * n_texts,
                np.full(n_texts, len(part.ids)),
            )
            filling = [constant] if part.slot is None else slots[part.slot]
            spans += filling
            types += [part.type] * len(filling)
        buffers: list[memoryview | bytes] = [b""] * (n_texts * len(spans))
        for at, one in enumerate(spans):
            buffers[at :: len(spans)] = one.views
        # Joining buffers takes half the time of copying slices between arrays; an index for every
        # token takes longer still.
        ids = np.frombuffer(b"".join(buffers), dtype=dtype).astype(np.int64)
        lengths = np.stack([one.lengths for one in spans], axis=1)
        return Texts(
            ids=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths.sum(axis=1)),
            type_ids=torch.from_numpy(np.repeat(np.tile(types, n_texts), lengths.ravel()))
            if self.has_types
            else None,
        )
