"""Layouts: how stored token ids become what an encoder reads, a query joined with a document or a
text alone ("apart").
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ltr.batch import Texts
from ltr.data.files import encoded
from ltr.data.frame import Frame, TokenColumn
from ltr.data.rendering import Cutter, rendering_of
from ltr.data.template import PLAIN_TEMPLATE, Side, Template
from ltr.data.texts import TextTable
from ltr.data.tokens import Rendering, Tokens, TokenStore, backend_without_cutting
from ltr.data.windows import InWindows, Windows, with_windows
from ltr.errors import InputError

log = logging.getLogger(__name__)

EXAMPLE = "a"  # the text that shows where a tokenizer puts its special tokens
MANY_TEXTS = 256  # as the smallest shard has: so many are worth a copy of the tokenizer's backend


class JoinedPairs(InWindows):
    """Joins the ids of a query and a document as
    ``tokenizer(query, document, truncation="only_second", max_length=…)`` does, each put into its
    part of a template.

    A query that leaves no room for a token of the document, which that tokenizer refuses, is cut: it
    keeps half of the tokens that there are for both, or all that a window leaves.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of a pair, special ones counted; beyond it the document is cut.
        template: what is read of each.
        windows: a document is read in these, and each makes a pair; None: it is cut.

    Attributes:
        queries, docs: what is read of queries and of documents.
        n_special: tokens beside those of the two.
        n_template: tokens around an empty query and an empty document, special ones counted.

    Raises:
        InputError: if max_length leaves no room for a query and a document, or a window of it, or
            the template has text where the document is cut.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        template: Template = PLAIN_TEMPLATE,
        windows: Windows | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.template = template
        self._cutter = Cutter(tokenizer)
        self._said = set[str]()  # tables of which it was said how many queries are cut
        self.queries = rendering_of(template, "query", self._cutter)
        self.docs = rendering_of(template, "document", self._cutter)
        self._check_template()
        self.n_special = self._prepare_special_tokens()
        n_around_query = self._cutter.n_tokens(self.queries.around(""))
        self._n_around_doc = self._cutter.n_tokens(self.docs.around(""))
        self.n_template = self.n_special + n_around_query + self._n_around_doc
        if max_length < self.n_template + 2:
            raise InputError(
                f"max_length must leave room for a query and a document beside {self.n_template} {self._kind_of_tokens}, got {max_length}",
                option="max_length",
            )
        self._prepare_windows(
            windows, self.docs, self._cutter, max_length - self.n_template - 1, "a query and"
        )
        # Tokens of a query with what stands around it, and of a document without.
        n_for_both = max_length - self.n_special - self._n_around_doc
        self._least_of_doc = 1 if windows is None else windows.size
        self._longest_query = n_for_both - self._least_of_doc  # that is read whole
        self.least_beside_query = self._n_around_doc + self._least_of_doc  # tokens
        # What a longer one keeps: all that a window leaves, or half of what is there for both.
        self._length_of_cut_query = self._longest_query
        if windows is None:
            self._length_of_cut_query = max(n_for_both // 2, n_around_query + 1)

    def _check_template(self) -> None:
        if self.template.pair is not None:
            raise InputError(
                "a model that reads two texts has no template of both; leave out template.pair",
                option="template",
            )
        front, _, behind = self.template.document.partition("{document}")
        text_at_cut = front if self._cutter.cuts_left else behind
        if text_at_cut:
            raise InputError(
                f"the document is cut where template.document must have no text, got {self.template.document!r}; set template.pair, in which nothing but the document is cut",
                option="template",
            )

    def _prepare_special_tokens(self) -> int:
        """Find the tokens beside those of query and document, for :meth:`lay_out`. Returns their
        number.
        """
        self._frame = Frame(self.tokenizer, EXAMPLE, EXAMPLE)
        return self._frame.n_special

    @property
    def _kind_of_tokens(self) -> str:
        return "special tokens" if self.template == PLAIN_TEMPLATE else "tokens of the template"

    def tokens(
        self, texts: Sequence[str], side: Side, instructions: Sequence[str] | None = None
    ) -> Tokens:
        """The tokens of a few texts, in memory.

        Args:
            texts: queries or documents.
            side: which they are.
            instructions: of each query its own; an empty one is none.

        Raises:
            InputError: if an instruction leaves no room for a query and a document.
        """
        tokens = Tokens.from_texts(texts, self.tokenizer, self._rendering(side), instructions)
        if side == "document":
            return tokens
        return self._cut_queries(tokens, texts, instructions, texts)

    def store(self, table: TextTable, side: Side) -> Tokens:
        """The tokens of a table of texts, on disk; an InputError as :meth:`tokens`."""
        store = TokenStore.open(table, self.tokenizer, self._rendering(side))
        if side == "document":
            return store
        _warn_of_instructions(table, self.queries)
        names = None if table.read_key in self._said else table.ids
        self._said.add(table.read_key)
        return self._cut_queries(store, table.texts, table.instructions, names)

    def uncut(self, table: TextTable, side: Side) -> Tokens:
        """As :meth:`store`, without the budgets of the template and with long queries whole."""
        rendering = rendering_of(_without_budgets(self.template), side, self._cutter)
        return TokenStore.open(table, self.tokenizer, rendering)

    def query_text(self, query: str, instruction: str = "") -> str:
        """What is read of a query, with what stands around it: so much of a long one that a document
        has room beside it.

        Args:
            query: as it stands in the data.
            instruction: its own; empty: it has none.

        Raises:
            InputError: if the instruction leaves no room for a query and a document.
        """
        text = self.queries(query, instruction)
        if self._n_around_document(text) + self._least_of_doc <= self.max_length:
            return text
        if self._cutter.n_tokens(self.queries.around("", instruction)) >= self._length_of_cut_query:
            raise InputError(
                f"the instruction of a query must leave room for the query and a document among max_length {self.max_length} tokens, got {instruction[:60]!r}; raise max_length, or set template.instruction_tokens",
                option="max_length",
            )
        fitting = self._cutter.fitting(
            self.queries.field(query),
            lambda kept: self.queries.around(kept, instruction),
            self._length_of_cut_query,
        )
        assert fitting is not None, "there is room for more than what stands around the query"
        return self.queries.around(fitting, instruction)

    def lengths(self, query_lengths: np.ndarray, doc_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each joined pair, or of all pairs of a query with a window of the document."""
        if self.windows is not None:
            n_beside_doc = query_lengths + self.n_special
            return self.windows.n_tokens_read(doc_lengths, self.n_front, n_beside_doc)
        return np.minimum(query_lengths + doc_lengths + self.n_special, self.max_length)

    def lay_out(
        self, queries: Tokens, query_rows: np.ndarray, docs: Tokens, doc_rows: np.ndarray
    ) -> Texts:
        """Join the query of each row with the document of the same place.

        Args:
            queries, docs: the tokens, as :meth:`tokens` and :meth:`store` make them.
            query_rows, doc_rows: ``[S]`` int64.
        """
        n_windows = None
        if self.windows is not None:
            docs, n_windows = self.windows_of(docs, doc_rows)
            doc_rows = np.arange(len(docs))
            query_rows = np.repeat(query_rows, n_windows)
        n_query = queries.lengths(query_rows)
        room = self.max_length - self.n_special - n_query
        n_kept = np.minimum(docs.lengths(doc_rows), room)  # what stays of each document
        assert (n_kept >= 0).all(), "long queries are cut when they are tokenised"
        assert queries.dtype == docs.dtype, "one tokenizer made both stores"
        query_column = TokenColumn(queries.views(query_rows, n_query), n_query)
        kept_views = docs.views(doc_rows, n_kept, last=self._cutter.cuts_left)
        doc_column = TokenColumn(kept_views, n_kept)
        texts = self._frame.fill(query_column, doc_column, dtype=docs.dtype)
        return with_windows(texts, n_windows)

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
        return [self.query_text(query, instruction), self.docs(document)]

    @property
    def reads_instructions(self) -> bool:
        """Whether an instruction of a query's own changes what is read of it."""
        return self.queries.reads_instructions

    def fields(self, query: str, document: str) -> list[str]:
        """A query and a document, each cut to its budget."""
        return [self.queries.field(query), self.docs.field(document)]

    def _rendering(self, side: Side) -> Rendering:
        return self.queries if side == "query" else self.docs

    def _n_around_document(self, query_text: str) -> int:
        """Tokens of a pair of this query, as it is read, and no document."""
        return self._cutter.n_tokens(query_text) + self.n_special + self._n_around_doc

    def _cut_queries(
        self,
        tokens: Tokens,
        texts: Sequence[str],
        instructions: Sequence[str] | None,
        names: Sequence[str] | None,
    ) -> Tokens:
        """The tokens of queries, with fewer of those that leave no room for a document. One line
        counts these and names the first, where names are given.
        """
        lengths = np.diff(tokens.offsets)
        rows = np.flatnonzero(lengths > self._longest_query)
        if not len(rows):
            return tokens
        if names is not None:
            log.warning(
                "%d of %d queries leave no room for a document among max_length %d tokens, and are cut to %d tokens; the longest has %d, the first is %.60r",
                len(rows),
                len(tokens),
                self.max_length,
                self._length_of_cut_query,
                lengths.max(),
                names[int(rows[0])],
            )
        cut_queries = []
        for row in rows.tolist():
            instruction = "" if instructions is None else instructions[row]
            cut_queries.append(self.query_text(texts[row], instruction))
        return _replaced(tokens, rows, Tokens.from_texts(cut_queries, self.tokenizer))


class SingleTexts(InWindows):
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
        windows: a text is read in these; None: it is cut.

    Attributes:
        prompt: what stands in front of a text that has no instruction of its own; None where
            something stands behind it.
        rendering: what is read of a text.

    Raises:
        InputError: if max_length leaves no room for the prompt and a token of the text, or a window
            of it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        prompt: str = "",
        template: Template | None = None,
        side: Side = "document",
        windows: Windows | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.template = template
        self._side: Side = side
        self._frame = Frame(tokenizer, EXAMPLE)
        self._cutter = Cutter(tokenizer)
        self._said = set[str]()  # tables of which it was said how many queries are cut
        self.n_special = self._frame.n_special
        encoded(prompt, "the prompt")  # only to refuse NUL and what is not valid Unicode
        if template is None:
            self.rendering = Rendering(prompt)
        else:
            room = max_length - self.n_special
            self.rendering = rendering_of(template, side, self._cutter, room)
        self.prompt = self.rendering.prompt
        self._check_room("")
        n_beside_text = self.n_special + self._cutter.n_tokens(self.rendering.around(""))
        self._prepare_windows(windows, self.rendering, self._cutter, max_length - n_beside_text)

    @property
    def key(self) -> list[object]:
        """All that decides which tokens of a text are read, beside its tokenizer; for keys of what
        is made of texts.
        """
        key: list[object] = [self.max_length, self.rendering.key]
        if self.windows is not None:
            key.append(asdict(self.windows))
        return key

    def tokens(self, texts: Sequence[str], instructions: Sequence[str] | None = None) -> Tokens:
        """The tokens of texts with what stands around them, in memory.

        Args:
            texts: as they stand in the data.
            instructions: of each its own; an empty one is none.

        Raises:
            InputError: if an instruction leaves no room for a text.
        """
        self._check_instructions(instructions)
        backend = self._backend if len(texts) >= MANY_TEXTS else None
        return Tokens.from_texts(texts, self.tokenizer, self.rendering, instructions, backend)

    @cached_property
    def _backend(self) -> Tokenizer:
        return backend_without_cutting(self.tokenizer)

    def store(self, table: TextTable) -> TokenStore:
        """The tokens of a table of texts with what stands around them, on disk; an InputError as
        :meth:`tokens`. Says which queries are cut, once for each table.
        """
        _warn_of_instructions(table, self.rendering)
        self._check_instructions(table.instructions)
        tokens = TokenStore.open(table, self.tokenizer, self.rendering)
        if self._side == "query" and table.read_key not in self._said:
            self._said.add(table.read_key)
            self._say_cut_queries(self.uncut(table), table.ids)
        return tokens

    def uncut(self, table: TextTable) -> Tokens:
        """See :meth:`JoinedPairs.uncut`."""
        return TokenStore.open(table, self.tokenizer, self._uncut_rendering)

    def say_cut_queries(
        self, texts: Sequence[str], instructions: Sequence[str] | None = None
    ) -> None:
        """Say in one line how many of some queries are cut; arguments as of :meth:`tokens`."""
        tokens = Tokens.from_texts(texts, self.tokenizer, self._uncut_rendering, instructions)
        self._say_cut_queries(tokens, texts)

    @property
    def _uncut_rendering(self) -> Rendering:
        """What is read of a text that is not cut."""
        if self.template is None:
            return self.rendering
        return rendering_of(_without_budgets(self.template), self._side, self._cutter)

    def _say_cut_queries(self, uncut: Tokens, names: Sequence[str]) -> None:
        room = self.max_length - self.n_special
        lengths = np.diff(uncut.offsets)
        rows = np.flatnonzero(lengths > room)
        if len(rows):
            log.warning(
                "%d of %d queries have more tokens than max_length %d reads, and are cut to %d tokens; the longest has %d, the first is %.60r",
                len(rows),
                len(uncut),
                self.max_length,
                room,
                lengths.max(),
                names[int(rows[0])],
            )

    def lengths(self, text_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each text, or of all its windows, special ones counted.

        Args:
            text_lengths: tokens of each text with its prompt.
        """
        if self.windows is not None:
            return self.windows.n_tokens_read(text_lengths, self.n_front, self.n_special)
        return np.minimum(text_lengths + self.n_special, self.max_length)

    def lay_out(self, tokens: Tokens, rows: np.ndarray) -> Texts:
        """Lay out the texts of these rows, ``[S]`` int64.

        Args:
            tokens: as :meth:`tokens` and :meth:`store` make them.
            rows: which texts.
        """
        assert tokens.rendering_key == self.rendering.key, "these are tokens of another prompt"
        n_windows = None
        if self.windows is not None:
            tokens, n_windows = self.windows_of(tokens, rows)
            rows = np.arange(len(tokens))
        room = self.max_length - self.n_special
        n_kept = np.minimum(tokens.lengths(rows), room)  # what stays of each
        column = TokenColumn(tokens.views(rows, n_kept, last=self._cutter.cuts_left), n_kept)
        return with_windows(self._frame.fill(column, dtype=tokens.dtype), n_windows)

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
        n_prompt = self._cutter.n_tokens(around)
        if self.max_length < self.n_special + n_prompt + 1:
            name = "prompt" if self.template is None else "template"
            mend = "; raise max_length, or set template.instruction_tokens" if instruction else ""
            raise InputError(
                f"max_length must leave room for a token of the text beside {n_prompt} of the {name} {around!r:.200} and {self.n_special} special tokens, got {self.max_length}{mend}",
                option="max_length",
            )


def _without_budgets(template: Template) -> Template:
    """A template that cuts no text."""
    return replace(template, instruction_tokens=None, query_tokens=None, document_tokens=None)


def _replaced(tokens: Tokens, rows: np.ndarray, others: Tokens) -> Tokens:
    """Tokens of texts with those of others in the place of some.

    Args:
        tokens: of all texts.
        rows: ``[n]`` int64, ascending: which are replaced.
        others: n texts.
    """
    parts = []
    begin = 0
    for place, row in enumerate(rows.tolist()):
        parts += [tokens.ids[tokens.offsets[begin] : tokens.offsets[row]], others[place]]
        begin = row + 1
    parts.append(tokens.ids[tokens.offsets[begin] : tokens.offsets[-1]])
    lengths = np.diff(tokens.offsets)
    lengths[rows] = np.diff(others.offsets)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(np.concatenate(parts), offsets, tokens.rendering_key)


def _warn_of_instructions(table: TextTable, rendering: Rendering) -> None:
    """Say that queries have instructions where a ranker does not read them."""
    if table.instructions is not None and not rendering.reads_instructions:
        log.warning(
            "queries have instructions (instruction in queries.jsonl), which this ranker does not read: its template has no {instruction}; write it into template.query"
        )


class ApartTexts(NamedTuple):
    """Queries and documents laid out apart, each in the form that its tower reads."""

    queries: SingleTexts
    docs: SingleTexts

    def layout_of(self, side: Side) -> SingleTexts:
        """How the texts of a side are laid out."""
        return self.queries if side == "query" else self.docs

    @property
    def template(self) -> Template | None:
        """What is read of both; None where prompts say it."""
        return self.queries.template

    @property
    def windows(self) -> Windows | None:
        """In which a document is read; None: it is cut. Queries are cut always."""
        return self.docs.windows

    @property
    def reads_instructions(self) -> bool:
        """See :attr:`JoinedPairs.reads_instructions`."""
        return self.queries.rendering.reads_instructions

    def n_windows(self, doc_lengths: np.ndarray) -> np.ndarray:
        """See :meth:`JoinedPairs.n_windows`."""
        return self.docs.n_windows(doc_lengths)

    def without_windows(self) -> "ApartTexts":
        """See :meth:`JoinedPairs.without_windows`."""
        return self._replace(docs=self.docs.without_windows())

    @property
    def prompts(self) -> dict[str, str] | None:
        """See :attr:`JoinedPairs.prompts`."""
        if self.queries.prompt is None or self.docs.prompt is None:
            return None
        return {"query": self.queries.prompt, "document": self.docs.prompt}

    def tokens(
        self, texts: Sequence[str], side: Side, instructions: Sequence[str] | None = None
    ) -> Tokens:
        """The tokens of a few texts, in memory, of queries with instructions of their own. Says how
        many queries are cut.
        """
        if side == "query":
            self.queries.say_cut_queries(texts, instructions)
        return self.layout_of(side).tokens(texts, instructions)

    def store(self, table: TextTable, side: Side) -> TokenStore:
        """The tokens of a table of texts, on disk."""
        return self.layout_of(side).store(table)

    def uncut(self, table: TextTable, side: Side) -> Tokens:
        """See :meth:`JoinedPairs.uncut`."""
        return self.layout_of(side).uncut(table)


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
