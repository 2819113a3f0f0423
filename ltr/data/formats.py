"""Layouts: how stored token ids become what an encoder reads, a query joined with a document or a
text alone ("apart").
"""

import logging
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ltr.batch import Texts
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens, TokenStore
from ltr.errors import InputError

Side = Literal["query", "document"]

log = logging.getLogger(__name__)

EXAMPLE = "a"  # the text that shows where a tokenizer puts its special tokens


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
        self._template = _Template(tokenizer, EXAMPLE, EXAMPLE)
        self._cuts_left = tokenizer.truncation_side == "left"
        self.n_special = self._template.n_special
        if max_length < self.n_special + 2:
            raise InputError(
                f"max_length must leave room for a query and a document beside {self.n_special} special tokens, got {max_length}",
                option="max_length",
            )

    def tokens(self, texts: Sequence[str], side: Side) -> Tokens:
        """The tokens of a few texts, in memory.

        Raises:
            InputError: if a query leaves no room for a document.
        """
        tokens = Tokens.of(texts, self.tokenizer)
        if side == "query" and len(texts):
            self._check_queries([str(place) for place in range(len(texts))], texts, tokens)
        return tokens

    def store(self, table: TextTable, side: Side) -> Tokens:
        """The tokens of a table of texts, on disk; an InputError as :meth:`tokens`."""
        store = TokenStore.open(table, self.tokenizer)
        warn_of_instructions(table)
        if side == "query":
            self._check_queries(table.ids, table.texts, store)
        return store

    def lengths(self, query_lengths: np.ndarray, doc_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each joined pair."""
        return np.minimum(query_lengths + doc_lengths + self.n_special, self.max_length)

    def lay_out(
        self, queries: Tokens, query_rows: np.ndarray, docs: Tokens, doc_rows: np.ndarray
    ) -> Texts:
        """Join the query of each row with the document of the same place.

        Args:
            queries, docs: the tokens, as :meth:`tokens` and :meth:`store` make them.
            query_rows, doc_rows: ``[S]`` int64.
        """
        n_query = queries.lengths(query_rows)
        n_pair = self.lengths(n_query, docs.lengths(doc_rows))
        n_doc = n_pair - self.n_special - n_query  # what is left for the document
        assert (n_doc >= 0).all(), "the longest query is checked when it is tokenised"
        assert queries.dtype == docs.dtype, "one tokenizer made both stores"
        query_column = _Column(queries.views(query_rows, n_query), n_query)
        doc_column = _Column(docs.views(doc_rows, n_doc, last=self._cuts_left), n_doc)
        return self._template.fill(query_column, doc_column, dtype=docs.dtype)

    def _check_queries(self, ids: Sequence[str], texts: Sequence[str], tokens: Tokens) -> None:
        """Raise an InputError if the longest query leaves no room for a token of a document."""
        room = self.max_length - self.n_special - 1
        longest = tokens.longest()
        length = len(tokens[longest])
        if length > room:
            raise InputError(
                f"query {ids[longest]!r} has {length} tokens, but max_length {self.max_length} leaves {room} beside {self.n_special} special tokens and a document; raise max_length, or shorten the query, {texts[longest][:60]!r}",
                option="max_length",
            )


class SingleTexts:
    """Gives a text its special tokens as
    ``tokenizer(prompt + text, truncation=True, max_length=…)`` does.

    Prompt and text are tokenised together and cut as one, as by sentence-transformers.

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
        self._template = _Template(tokenizer, EXAMPLE)
        self._cuts_left = tokenizer.truncation_side == "left"
        self.n_special = self._template.n_special
        prompt_encoding = tokenizer(prompt, add_special_tokens=False, truncation=False)
        n_prompt = len(prompt_encoding["input_ids"])
        if max_length < self.n_special + n_prompt + 1:
            raise InputError(
                f"max_length must leave room for a token of the text beside {n_prompt} of the prompt {prompt!r} and {self.n_special} special tokens, got {max_length}",
                option="max_length",
            )

    @property
    def key(self) -> list[object]:
        """All that decides which tokens of a text are read, beside its tokenizer; for keys of what
        is made of texts.
        """
        key: list[object] = [self.max_length, self.prompt]
        if self.prompt:
            key.append("together")  # no word stands here in older keys, of prompts tokenised apart
        return key

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """The tokens of a few texts with their prompts, in memory."""
        return Tokens.of(texts, self.tokenizer, self.prompt)

    def store(self, table: TextTable) -> TokenStore:
        """The tokens of a table of texts with their prompts, on disk."""
        warn_of_instructions(table)
        return TokenStore.open(table, self.tokenizer, self.prompt)

    def lengths(self, text_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each text with its special tokens, of the tokens of text and prompt."""
        return np.minimum(text_lengths + self.n_special, self.max_length)

    def lay_out(self, tokens: Tokens, rows: np.ndarray) -> Texts:
        """Lay out the texts of these rows, ``[S]`` int64.

        Args:
            tokens: as :meth:`tokens` and :meth:`store` make them.
            rows: which texts.
        """
        assert tokens.prompt == self.prompt, "these are tokens of another prompt"
        counts = self.lengths(tokens.lengths(rows)) - self.n_special  # what stays of each
        column = _Column(tokens.views(rows, counts, last=self._cuts_left), counts)
        return self._template.fill(column, dtype=tokens.dtype)


def warn_of_instructions(table: TextTable) -> None:
    """Say that queries have instructions where a ranker does not read them."""
    if table.instructions is not None:
        log.warning(
            "queries have instructions (instruction in queries.jsonl), which this ranker does not read: only a DecoderRanker whose template has {instruction} does"
        )


class ApartTexts(NamedTuple):
    """Queries and documents laid out apart, each in the form that its tower reads."""

    queries: SingleTexts
    docs: SingleTexts

    def of(self, side: Side) -> SingleTexts:
        """The form of one side."""
        return self.queries if side == "query" else self.docs

    def tokens(self, texts: Sequence[str], side: Side) -> Tokens:
        """The tokens of a few texts, in memory."""
        return self.of(side).tokens(texts)

    def store(self, table: TextTable, side: Side) -> TokenStore:
        """The tokens of a table of texts, on disk."""
        return self.of(side).store(table)


class PairsAndTexts(NamedTuple):
    """Both: joined pairs for a cross-encoder, and texts apart for the dual encoder that is trained
    beside it.
    """

    pairs: JoinedPairs
    apart: ApartTexts


class FeatureVectors(NamedTuple):
    """Documents as feature vectors, of ``n_features`` numbers each."""

    n_features: int


# What a ranker is given of its documents; its attribute `reads` is one of these.
TextReads = JoinedPairs | ApartTexts | PairsAndTexts
Reads = TextReads | FeatureVectors


class _Column(NamedTuple):
    """A span of token ids for each of S texts: S buffers, and the tokens of each, ``[S]`` int64."""

    views: Sequence[memoryview | bytes]
    lengths: np.ndarray


class _Part(NamedTuple):
    """A stretch of what a tokenizer makes of a text or of a pair: special tokens of one type, or the
    slot in which a text stands.
    """

    slot: int | None  # 0 for the first text, 1 for the second one of a pair, None: special tokens
    type: int  # the token type of all its tokens
    ids: list[int]  # used for special tokens only


class _Template:
    """Which special tokens stand where, and which part has which type. It is read off what the
    tokenizer makes of an example: one text, or two for a pair.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *example: str) -> None:
        encoding = tokenizer(*example, truncation=False)
        slots = encoding.sequence_ids()
        ids = encoding["input_ids"]
        types = encoding.get("token_type_ids", [0] * len(ids))
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        self.n_special = slots.count(None)
        for slot in range(len(example)):
            if slot not in slots:
                raise InputError(
                    f"the tokenizer must know {example[0]!r}, to find its special tokens, got no token for it"
                )
        self._parts: list[_Part] = []
        for slot, type_, token_id in zip(slots, types, ids, strict=True):
            if self._parts and self._parts[-1][:2] == (slot, type_):
                self._parts[-1].ids.append(token_id)
            else:
                self._parts.append(_Part(slot, type_, [token_id]))

    def fill(self, *slots: _Column, dtype: np.dtype) -> Texts:
        """Put token ids in the place of the example's texts, and lay all S texts end to end.

        Args:
            slots: for each text of the example the column that takes its place.
            dtype: of the token ids.
        """
        n_texts = len(slots[0].lengths)
        columns: list[_Column] = []  # from the left to the right of each text
        for part in self._parts:
            if part.slot is None:
                special = np.asarray(part.ids, dtype=dtype).tobytes()
                columns.append(_Column([special] * n_texts, np.full(n_texts, len(part.ids))))
            else:
                columns.append(slots[part.slot])
        types = [part.type for part in self._parts]
        # All spans of the first text, then all of the second: buffers[t * n_columns + n] is the
        # span that column n has for text t.
        n_columns = len(columns)
        buffers: list[memoryview | bytes] = [b""] * (n_texts * n_columns)
        for n, column in enumerate(columns):
            buffers[n::n_columns] = column.views
        # Joining buffers takes half the time of copying slices between arrays; an index for every
        # token takes longer still.
        ids = np.frombuffer(b"".join(buffers), dtype=dtype).astype(np.int64)
        lengths = np.stack([column.lengths for column in columns], axis=1)
        type_ids = None
        if self.has_types:
            type_ids = torch.from_numpy(np.repeat(np.tile(types, n_texts), lengths.ravel()))
        return Texts(
            ids=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths.sum(axis=1)),
            type_ids=type_ids,
        )
