"""A query and a document in a template, as one text."""

from collections.abc import Sequence
from itertools import chain
from os.path import commonprefix
from typing import cast

import numpy as np
import torch

from ltr.batch import Texts
from ltr.data.layouts import JoinedPairs
from ltr.data.rendering import Cutter
from ltr.data.template import Side
from ltr.data.texts import TextTable
from ltr.data.tokens import Rendering, Tokens
from ltr.data.windows import Windows
from ltr.errors import InputError


class FieldTexts(Tokens):
    """Texts that are put into a template of both.

    Args:
        tokens: of each text in its own part of the template. Only their count is used, as the length
            of a text: :meth:`TemplatedPairs.lay_out` tokenises the whole anew.
        texts: the texts themselves.
        instructions: of queries, where they have their own; an empty one is none.
    """

    def __init__(
        self, tokens: Tokens, texts: Sequence[str], instructions: Sequence[str] | None = None
    ) -> None:
        super().__init__(tokens.ids, tokens.offsets, tokens.rendering_key)
        self._tokens = tokens
        self.texts = texts
        self.instructions = instructions

    def __reduce__(self) -> tuple:
        # A token store and the strings of a table map their files again: nothing is copied.
        return FieldTexts, (self._tokens, self.texts, self.instructions)

    def text(self, row: int) -> str:
        """A text, as it stands in the data."""
        return self.texts[row]

    def instruction(self, row: int) -> str:
        """The instruction of a query; empty where it has none of its own."""
        return "" if self.instructions is None else self.instructions[row]


class TemplatedPairs(JoinedPairs):
    """Puts queries and documents into a template, and tokenises the whole, as
    ``tokenizer(template.pair_text(…))`` does: so the tokens are those that any server makes of the
    same text.

    Where the whole has more than ``max_length`` tokens, the last ones of the document are left out,
    or its first characters where the tokenizer cuts at the left. A cut of tokens may part a character
    of several ones, as in sentence-transformers.

    A template that holds special tokens, as that of a chat, gets no others; any other gets those
    that the tokenizer adds. Lengths are those of the whole, but for words that share a token with
    the template's text.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of the whole, those of the template counted.
        template: with a ``pair``.

    Raises:
        InputError: if max_length leaves no room for a query and a document, or the template has no
            ``pair``; for windows.
    """

    def _check_template(self) -> None:
        if self.template.pair is None:
            raise InputError(
                "a model that reads query and document as one text needs a template of both, got none; set template.pair",
                option="template",
            )

    def _prepare_special_tokens(self) -> int:
        """Find out whether the tokenizer adds special tokens. Returns the number of tokens of the
        pair's template alone: those of a side's template count as its text's.
        """
        self._has_types = "token_type_ids" in self.tokenizer.model_input_names
        special = [
            token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special
        ]
        text = self._whole(self.queries.around(""), "")
        self._adds_special = not any(token in text for token in special)
        return self._cutter.n_tokens(self.template.pair_text("", ""), self._adds_special)

    def _prepare_windows(
        self,
        windows: Windows | None,
        rendering: Rendering,
        cutter: Cutter,
        room: int,
        beside: str = "",
    ) -> None:
        """Refuse windows; see :meth:`ltr.data.windows.InWindows._prepare_windows`."""
        if windows is not None:
            raise InputError(
                "windows are of documents that the tokenizer joins with a query, got template.pair, which makes one text of both; leave out windows",
                option="windows",
            )
        super()._prepare_windows(None, rendering, cutter, room, beside)

    def tokens(
        self, texts: Sequence[str], side: Side, instructions: Sequence[str] | None = None
    ) -> FieldTexts:
        """See :meth:`ltr.data.layouts.JoinedPairs.tokens`."""
        return FieldTexts(super().tokens(texts, side, instructions), texts, instructions)

    def store(self, table: TextTable, side: Side) -> FieldTexts:
        """See :meth:`ltr.data.layouts.JoinedPairs.store`."""
        return FieldTexts(super().store(table, side), table.texts, table.instructions)

    def lay_out(
        self, queries: Tokens, query_rows: np.ndarray, docs: Tokens, doc_rows: np.ndarray
    ) -> Texts:
        """Put the query of each row and the document of the same place into the template.

        Args:
            queries, docs: as :meth:`tokens` and :meth:`store` make them.
            query_rows, doc_rows: ``[S]`` int64.

        Raises:
            InputError: for an instruction that leaves no room for a query and a document.
        """
        query_fields = cast(FieldTexts, queries)  # or those of several tables
        doc_fields = cast(FieldTexts, docs)
        text_of_query = {}
        for row in np.unique(query_rows).tolist():
            instruction = query_fields.instruction(row)
            text_of_query[row] = self.query_text(query_fields.text(row), instruction)
        query_texts = [text_of_query[row] for row in query_rows.tolist()]
        fields = [self.docs.field(doc_fields.text(row)) for row in doc_rows.tolist()]
        ids_of_texts = self._ids(list(map(self._whole, query_texts, fields)))
        for place, ids_of_text in enumerate(ids_of_texts):
            # At exactly max_length too: sentence-transformers cuts there already, and so parts a token
            # that document and template share.
            if len(ids_of_text) >= self.max_length:
                ids_of_texts[place] = self._cut_ids(ids_of_text, query_texts[place], fields[place])
        lengths = np.fromiter(map(len, ids_of_texts), dtype=np.int64)
        ids = torch.tensor(list(chain.from_iterable(ids_of_texts)), dtype=torch.int64)
        types = torch.zeros_like(ids) if self._has_types else None
        return Texts(ids, torch.from_numpy(lengths), types, host_lengths=lengths)

    @property
    def prompts(self) -> dict[str, str]:
        """No prompt is needed: a chat template makes the text."""
        return {}

    def rendered(self, query: str, document: str, instruction: str = "") -> list[str]:
        """What goes into the tokenizer: one text of both, of as much of the document as has room. A
        character that the cut of the model parts is left out: half of it is no text.
        """
        query_text = self.query_text(query, instruction)
        return [self._whole(query_text, self._cut_document(query_text, self.docs.field(document)))]

    @property
    def cuts_the_end(self) -> bool:
        """Whether the document's end is cut and stands behind all other fields: that is the only cut
        of sentence-transformers.
        """
        pair = self.template.pair
        assert pair is not None, "checked when it was made"
        return not self._cutter.cuts_left and pair.index("{query}") < pair.index("{document}")

    def document_for_proof(self, query: str, document: str) -> str:
        """The document for a proof: whole, where it is read whole, or where a library that cuts tokens
        at the end reads the same of it; else cut already, as text.
        """
        query_text = self.query_text(query)
        field = self.docs.field(document)
        fitting = self._cut_document(query_text, field)
        ids, fitting_ids = self._ids([self._whole(query_text, kept) for kept in (field, fitting)])
        if len(ids) <= self.max_length:
            return document
        if self.cuts_the_end and self._cut_ids(ids, query_text, field) == fitting_ids:
            return document
        return fitting

    def special_texts(self) -> tuple[str, str]:
        """The special tokens that the tokenizer adds in front of the whole and behind it, as text."""
        if not self._adds_special:
            return "", ""
        encoding = self._cutter.backend.encode("a", add_special_tokens=True)
        is_special = np.array(encoding.special_tokens_mask, dtype=bool)
        first = int((~is_special).argmax())
        stop = first + int((~is_special).sum())
        return "".join(encoding.tokens[:first]), "".join(encoding.tokens[stop:])

    def _n_around_document(self, query_text: str) -> int:
        """See :meth:`ltr.data.layouts.JoinedPairs._n_around_document`."""
        return self._cutter.n_tokens(self._whole(query_text, ""), self._adds_special)

    def _whole(self, query_text: str, field: str) -> str:
        """What is read of a query in its part of the template, and of a document that is cut."""
        return self.template.pair_text(query_text, self.docs.around(field))

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of whole texts."""
        encodings = self._cutter.backend.encode_batch_fast(
            texts, add_special_tokens=self._adds_special
        )
        return [encoding.ids for encoding in encodings]

    def _cut_ids(self, ids: list[int], query_text: str, field: str) -> list[int]:
        """The tokens of a whole text without so many of its document that ``max_length`` are left."""
        if self._cutter.cuts_left:
            (fitting_ids,) = self._ids(
                [self._whole(query_text, self._cut_document(query_text, field))]
            )
            return fitting_ids
        if len(ids) > self.max_length and self._n_around_document(query_text) > self.max_length:
            raise self._no_room(query_text)
        behind = self._behind(query_text)
        return ids[: self.max_length - len(behind)] + behind

    def _behind(self, query_text: str) -> list[int]:
        """The tokens behind any document: those in which the texts of two short ones end alike. So
        sentence-transformers finds them, with the same two in a chat template.
        """
        texts = [self._whole(query_text, document) for document in ("0", "1 2 3 4")]
        short, long = self._cutter.backend.encode_batch(
            texts, add_special_tokens=self._adds_special
        )
        n_behind = len(commonprefix([short.ids[::-1], long.ids[::-1]]))
        # A tokenizer without digits makes one unknown token of each document, and these are alike
        # too. So only tokens from `begin` on, where the texts are alike, count, and those added.
        begin = len(texts[0]) - len(commonprefix([text[::-1] for text in texts]))
        places = range(len(short.ids) - n_behind, len(short.ids))
        is_added = short.special_tokens_mask
        return [
            short.ids[place]
            for place in places
            if is_added[place] or short.offsets[place][0] >= begin
        ]

    def _cut_document(self, query_text: str, field: str) -> str:
        """So much of a document that the whole has at most ``max_length`` tokens."""
        fitting = self._cutter.fitting(
            field,
            lambda kept: self._whole(query_text, kept),
            self.max_length,
            self._adds_special,
        )
        if fitting is None:
            raise self._no_room(query_text)
        return fitting

    def _no_room(self, query_text: str) -> InputError:
        return InputError(
            f"a query must leave room for a document among max_length {self.max_length} tokens, got {query_text[:60]!r}; raise max_length, or set template.query_tokens",
            option="max_length",
        )
