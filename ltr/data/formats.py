"""Layouts: how stored token ids become what an encoder reads, a query joined with a document or a
text alone ("apart").
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ltr.batch import Texts
from ltr.data.rendering import Cutter, rendering_of
from ltr.data.template import THE_TEXTS, Side, Template
from ltr.data.texts import TextTable
from ltr.data.tokens import Rendering, Tokens, TokenStore
from ltr.errors import InputError

log = logging.getLogger(__name__)

EXAMPLE = "a"  # the text that shows where a tokenizer puts its special tokens


class JoinedPairs:
    """Joins the ids of a query and a document as
    ``tokenizer(query, document, truncation="only_second", max_length=…)`` does, each put into its
    part of a template.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of a pair, special ones counted; the document is cut.
        template: what is read of each.

    Attributes:
        queries, docs: what is read of queries and of documents.
        n_special: tokens beside those of the two.
        n_template: tokens around an empty query and an empty document.

    Raises:
        InputError: if max_length leaves no room for a query and a document, or the template has text
            where the document is cut.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        template: Template = THE_TEXTS,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.template = template
        self._cutter = Cutter(tokenizer)
        self.queries = rendering_of(template, "query", self._cutter)
        self.docs = rendering_of(template, "document", self._cutter)
        self.n_special = self._prepare()
        self._n_document = self._cutter.n_tokens(self.docs.around(""))
        n_query = self._cutter.n_tokens(self.queries.around(""))
        self.n_template = self.n_special + n_query + self._n_document
        if max_length < self.n_template + 2:
            raise InputError(
                f"max_length must leave room for a query and a document beside {self.n_template} {self._tokens_around}, got {max_length}",
                option="max_length",
            )

    def _prepare(self) -> int:
        """Check the template, and find the tokens beside those of the two; returns their number."""
        front, _, behind = self.template.document.partition("{document}")
        if self.template.pair is not None:
            raise InputError(
                "a model that reads two texts has no template of both; leave out template.pair",
                option="template",
            )
        if front if self._cutter.cuts_left else behind:
            raise InputError(
                f"the document is cut where template.document must have no text, got {self.template.document!r}; set template.pair, in which nothing but the document is cut",
                option="template",
            )
        self._frame = _Frame(self.tokenizer, EXAMPLE, EXAMPLE)
        return self._frame.n_special

    @property
    def _tokens_around(self) -> str:
        return "special tokens" if self.template == THE_TEXTS else "tokens of the template"

    def tokens(
        self, texts: Sequence[str], side: Side, instructions: Sequence[str] | None = None
    ) -> Tokens:
        """The tokens of a few texts, in memory.

        Args:
            texts: queries or documents.
            side: which they are.
            instructions: of each query its own; an empty one is none.

        Raises:
            InputError: if a query leaves no room for a document.
        """
        tokens = Tokens.of(texts, self.tokenizer, self._rendering(side), instructions)
        if side == "query" and len(texts):
            self._check_queries([str(place) for place in range(len(texts))], texts, tokens)
        return tokens

    def store(self, table: TextTable, side: Side) -> Tokens:
        """The tokens of a table of texts, on disk; an InputError as :meth:`tokens`."""
        store = TokenStore.open(table, self.tokenizer, self._rendering(side))
        warn_of_instructions(table, self.queries)
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
        doc_column = _Column(docs.views(doc_rows, n_doc, last=self._cutter.cuts_left), n_doc)
        return self._frame.fill(query_column, doc_column, dtype=docs.dtype)

    @property
    def prompts(self) -> dict[str, str] | None:
        """The prompts of sentence-transformers by which it reads the same; None where whoever asks it
        must put texts into the template.
        """
        if self.queries.prompt is None or self.docs.prompt != "":
            return None
        return {"query": self.queries.prompt}

    def rendered(self, query: str, document: str, instruction: str = "") -> list[str]:
        """What goes into the tokenizer: two texts."""
        return [self.queries(query, instruction), self.docs(document)]

    @property
    def reads_instructions(self) -> bool:
        """Whether an instruction of a query's own changes what is read of it."""
        return self.queries.reads_instructions

    def fields(self, query: str, document: str) -> list[str]:
        """A query and a document, each cut to its budget."""
        return [self.queries.field(query), self.docs.field(document)]

    def _rendering(self, side: Side) -> Rendering:
        return self.queries if side == "query" else self.docs

    def _check_queries(self, ids: Sequence[str], texts: Sequence[str], tokens: Tokens) -> None:
        """Raise an InputError if the longest query leaves no room for a token of a document."""
        n_around = self.n_special + self._n_document
        room = self.max_length - n_around - 1
        longest = tokens.longest()
        length = len(tokens[longest])
        if length <= room:
            return
        what = "" if self.template == THE_TEXTS else " with its instruction and template"
        mend = "shorten the query"
        if self.template != THE_TEXTS:
            mend = "set template.query_tokens and template.instruction_tokens for the query"
        raise InputError(
            f"query {ids[longest]!r} has {length} tokens{what}, but max_length {self.max_length} leaves {room} beside {n_around} {self._tokens_around} and a document; raise max_length, or {mend}, {texts[longest][:60]!r}",
            option="max_length",
        )


class SingleTexts:
    """Gives a text its special tokens as ``tokenizer(text, truncation=True, max_length=…)`` does,
    with a prompt in front, or in its part of a template.

    Prompt and text are tokenised together and cut as one, as by sentence-transformers. In a template
    with text behind, or with budgets, the text alone is cut.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of a text, those around it and special ones counted.
        prompt: what stands in front of every text.
        template: what is read of each, in the place of a prompt.
        side: whose texts these are, for the template.

    Attributes:
        prompt: what stands in front of a text that has no instruction of its own; None where
            something stands behind it.
        rendering: what is read of a text.

    Raises:
        InputError: if max_length leaves no room for the prompt and a token of the text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        prompt: str = "",
        template: Template | None = None,
        side: Side = "document",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.template = template
        self._frame = _Frame(tokenizer, EXAMPLE)
        self._cutter = Cutter(tokenizer)
        self.n_special = self._frame.n_special
        self.rendering = Rendering(prompt)
        if template is not None:
            room = max_length - self.n_special
            self.rendering = rendering_of(template, side, self._cutter, room)
        self.prompt = self.rendering.prompt
        self._check_room("")

    @property
    def key(self) -> list[object]:
        """All that decides which tokens of a text are read, beside its tokenizer; for keys of what
        is made of texts.
        """
        key: list[object] = [self.max_length, self.rendering.key]
        if self.rendering.key:
            key.append("together")  # no word stands here in older keys, of prompts tokenised apart
        return key

    def tokens(self, texts: Sequence[str], instructions: Sequence[str] | None = None) -> Tokens:
        """The tokens of a few texts with what stands around them, in memory.

        Args:
            texts: as they stand in the data.
            instructions: of each its own; an empty one is none.

        Raises:
            InputError: if an instruction leaves no room for a text.
        """
        self._check_instructions(instructions)
        return Tokens.of(texts, self.tokenizer, self.rendering, instructions)

    def store(self, table: TextTable) -> TokenStore:
        """The tokens of a table of texts with what stands around them, on disk; an InputError as
        :meth:`tokens`.
        """
        warn_of_instructions(table, self.rendering)
        self._check_instructions(table.instructions)
        return TokenStore.open(table, self.tokenizer, self.rendering)

    def lengths(self, text_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each text with its special tokens, of the tokens of text and prompt."""
        return np.minimum(text_lengths + self.n_special, self.max_length)

    def lay_out(self, tokens: Tokens, rows: np.ndarray) -> Texts:
        """Lay out the texts of these rows, ``[S]`` int64.

        Args:
            tokens: as :meth:`tokens` and :meth:`store` make them.
            rows: which texts.
        """
        assert tokens.read_as == self.rendering.key, "these are tokens of another prompt"
        counts = self.lengths(tokens.lengths(rows)) - self.n_special  # what stays of each
        column = _Column(tokens.views(rows, counts, last=self._cutter.cuts_left), counts)
        return self._frame.fill(column, dtype=tokens.dtype)

    def fields(self, text: str) -> list[str]:
        """A text, cut to its budget."""
        return [self.rendering.field(text)]

    def rendered(self, text: str, instruction: str = "") -> list[str]:
        """What goes into the tokenizer: one text."""
        return [self.rendering(text, instruction)]

    def _check_instructions(self, instructions: Iterable[str] | None) -> None:
        """Refuse an instruction that leaves no room for a text."""
        if instructions is None or not self.rendering.reads_instructions:
            return
        for instruction in dict.fromkeys(instructions):
            self._check_room(instruction)

    def _check_room(self, instruction: str) -> None:
        around = self.rendering.around("", instruction)
        n_around = self._cutter.n_tokens(around)
        if self.max_length < self.n_special + n_around + 1:
            name = "prompt" if self.template is None else "template"
            mend = "; raise max_length, or set template.instruction_tokens" if instruction else ""
            raise InputError(
                f"max_length must leave room for a token of the text beside {n_around} of the {name} {around!r:.200} and {self.n_special} special tokens, got {self.max_length}{mend}",
                option="max_length",
            )


def warn_of_instructions(table: TextTable, rendering: Rendering) -> None:
    """Say that queries have instructions where a ranker does not read them."""
    if table.instructions is not None and not rendering.reads_instructions:
        log.warning(
            "queries have instructions (instruction in queries.jsonl), which this ranker does not read: its template has no {instruction}; write it into template.query"
        )


class ApartTexts(NamedTuple):
    """Queries and documents laid out apart, each in the form that its tower reads."""

    queries: SingleTexts
    docs: SingleTexts

    def of(self, side: Side) -> SingleTexts:
        """The form of one side."""
        return self.queries if side == "query" else self.docs

    @property
    def template(self) -> Template | None:
        """What is read of both; None where prompts say it."""
        return self.queries.template

    @property
    def reads_instructions(self) -> bool:
        """See :attr:`JoinedPairs.reads_instructions`."""
        return self.queries.rendering.reads_instructions

    @property
    def prompts(self) -> dict[str, str] | None:
        """See :attr:`JoinedPairs.prompts`."""
        if self.queries.prompt is None or self.docs.prompt is None:
            return None
        return {"query": self.queries.prompt, "document": self.docs.prompt}

    def tokens(
        self, texts: Sequence[str], side: Side, instructions: Sequence[str] | None = None
    ) -> Tokens:
        """The tokens of a few texts, in memory, of queries with instructions of their own."""
        return self.of(side).tokens(texts, instructions)

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


class _Frame:
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
