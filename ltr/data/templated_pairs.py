"""A query and a document in a template, as one text: what decoder rankers read."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ltr.batch import Texts
from ltr.data.formats import JoinedPairs, Side, warn_of_instructions
from ltr.data.template import Template
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens, TokenStore, backend_without_cutting
from ltr.errors import InputError


class FieldTexts(Tokens):
    """Texts that are put into a template.

    Args:
        tokens: of each text alone; their numbers are the lengths of the texts.
        texts: the texts themselves.
        instructions: of queries, where they have their own; an empty one is none.
    """

    def __init__(
        self, tokens: Tokens, texts: Sequence[str], instructions: Sequence[str] | None = None
    ) -> None:
        super().__init__(tokens.ids, tokens.offsets, tokens.prompt)
        self._tokens = tokens
        self.texts = texts
        self.instructions = instructions

    def __reduce__(self) -> tuple:
        # A token store and the strings of a table map their files again: nothing is copied.
        return FieldTexts, (self._tokens, self.texts, self.instructions)

    def instruction(self, row: int) -> str | None:
        """The instruction of a query; None where it has none of its own."""
        if self.instructions is None:
            return None
        return self.instructions[row] or None


class TemplatedPairs(JoinedPairs):
    """Puts queries and documents into a template, and tokenises the whole, as
    ``tokenizer(template.of_pair(…))`` does: so the tokens are those that any server makes of the
    same text.

    Where the text would have more than ``max_length`` tokens, the document is cut. A template that
    holds special tokens, as that of a chat, gets no others; any other gets those that the tokenizer
    adds.

    Args:
        tokenizer: a fast tokenizer.
        max_length: tokens of the whole, those of the template counted.
        template: with a ``pair``.

    Attributes:
        n_special: tokens of the template, around empty texts.

    Raises:
        InputError: if max_length leaves no room for a query and a document, or the template has no
            ``pair``.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, template: Template
    ) -> None:
        if template.pair is None:
            raise InputError(
                "a model that reads query and document as one text needs a template of both, got none; set template.pair",
                option="template",
            )
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.template = template
        self._backend = backend_without_cutting(tokenizer)
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self._cuts_left = tokenizer.truncation_side == "left"
        empty = self._text_of_query("", None)
        text = template.of_pair(empty, template.of_document(""))
        special = [
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        ]
        self._adds_special = not any(token in text for token in special)
        self.n_special = len(self._ids([text])[0])
        if max_length < self.n_special + 2:
            raise InputError(
                f"max_length must leave room for a query and a document beside {self.n_special} tokens of the template, got {max_length}",
                option="max_length",
            )

    def tokens(self, texts: Sequence[str], side: Side) -> FieldTexts:
        """The tokens of a few texts, in memory; an InputError as :meth:`JoinedPairs.tokens`."""
        tokens = FieldTexts(Tokens.of(texts, self.tokenizer), texts)
        if side == "query" and len(texts):
            self._check_queries([str(place) for place in range(len(texts))], texts, tokens)
        return tokens

    def store(self, table: TextTable, side: Side) -> FieldTexts:
        """The tokens of a table of texts, on disk; an InputError as :meth:`tokens`."""
        store = TokenStore.open(table, self.tokenizer)
        if side == "document":
            return FieldTexts(store, table.texts)
        instructions = None
        if self.template.reads_instructions:
            instructions = table.instructions
        else:
            warn_of_instructions(table)
        tokens = FieldTexts(store, table.texts, instructions)
        self._check_queries(table.ids, table.texts, tokens)
        self._check_instructions(table.ids, tokens)
        return tokens

    def lengths(self, query_lengths: np.ndarray, doc_lengths: np.ndarray) -> np.ndarray:
        """Tokens of each whole, but for words that the template's text and the texts share a token
        with, and for other instructions.
        """
        n_query = np.minimum(query_lengths, self.template.query_tokens or self.max_length)
        n_doc = np.minimum(doc_lengths, self.template.document_tokens or self.max_length)
        return np.minimum(n_query + n_doc + self.n_special, self.max_length)

    def lay_out(
        self, queries: Tokens, query_rows: np.ndarray, docs: Tokens, doc_rows: np.ndarray
    ) -> Texts:
        """Put the query of each row and the document of the same place into the template.

        Args:
            queries, docs: as :meth:`tokens` and :meth:`store` make them.
            query_rows, doc_rows: ``[S]`` int64.

        Raises:
            InputError: for a query that leaves no room for a document.
        """
        assert isinstance(queries, FieldTexts) and isinstance(docs, FieldTexts)
        text_of_query = {}
        for row in np.unique(query_rows).tolist():
            text_of_query[row] = self._text_of_query(queries.texts[row], queries.instruction(row))
        query_texts = [text_of_query[row] for row in query_rows.tolist()]
        documents = []
        for row in doc_rows.tolist():
            documents.append(self._cut(docs.texts[row], self.template.document_tokens))
        ids_of_texts = self._ids(list(map(self._text_of_pair, query_texts, documents)))
        for place, ids_of_text in enumerate(ids_of_texts):
            if len(ids_of_text) > self.max_length:
                ids_of_texts[place] = self._fitting(
                    query_texts[place], documents[place], ids_of_text
                )
        lengths = torch.tensor([len(ids_of_text) for ids_of_text in ids_of_texts])
        ids = torch.tensor(list(chain.from_iterable(ids_of_texts)), dtype=torch.int64)
        types = torch.zeros_like(ids) if self._has_types else None
        return Texts(ids, lengths.long(), types)

    def special_texts(self) -> tuple[str, str]:
        """The special tokens that the tokenizer adds in front of the whole and behind it, as text."""
        if not self._adds_special:
            return "", ""
        encoding = self._backend.encode("a", add_special_tokens=True)
        is_special = np.array(encoding.special_tokens_mask, dtype=bool)
        first = int((~is_special).argmax())
        stop = first + int((~is_special).sum())
        return "".join(encoding.tokens[:first]), "".join(encoding.tokens[stop:])

    def shown(self, query: str, document: str, instruction: str | None = None) -> str:
        """The text that is read of a query and a document, each cut as it is for the model."""
        query_text = self._text_of_query(query, instruction)
        document = self._cut(document, self.template.document_tokens)
        (ids,) = self._ids([self._text_of_pair(query_text, document)])
        if len(ids) > self.max_length:
            document = self._document_that_fits(query_text, document, ids)
        return self._text_of_pair(query_text, document)

    def _text_of_query(self, query: str, instruction: str | None) -> str:
        """What is read of a query, with its own instruction or that of the template."""
        template = self.template
        instruction = template.instruction if instruction is None else instruction
        instruction = self._cut(instruction, template.instruction_tokens)
        return template.of_query(self._cut(query, template.query_tokens), instruction)

    def _text_of_pair(self, query_text: str, document: str) -> str:
        return self.template.of_pair(query_text, self.template.of_document(document))

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of whole texts."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=self._adds_special)
        return [encoding.ids for encoding in encodings]

    def _fitting(self, query_text: str, document: str, ids: list[int]) -> list[int]:
        """Token ids with so much of the document that they are at most ``max_length``."""
        document = self._document_that_fits(query_text, document, ids)
        return self._ids([self._text_of_pair(query_text, document)])[0]

    def _document_that_fits(self, query_text: str, document: str, ids: list[int]) -> str:
        """So much of a document that the whole, which has these token ids now, fits."""
        n_doc = self._n_tokens(document)
        cut = document
        # Once, as a rule. A cut may part a token that the template's text shares with the document.
        while len(ids) > self.max_length:
            if n_doc == 0:
                raise InputError(
                    f"a query must leave room for a document among max_length {self.max_length} tokens, got {query_text[:60]!r}; raise max_length, or set template.query_tokens",
                    option="max_length",
                )
            n_doc = max(0, n_doc - (len(ids) - self.max_length))
            cut = self._cut(document, n_doc)
            (ids,) = self._ids([self._text_of_pair(query_text, cut)])
        return cut

    def _cut(self, text: str, n_tokens: int | None) -> str:
        """The first tokens of a text, or its last ones where the tokenizer cuts at the left; fewer
        where the cut would part a character of several tokens.
        """
        if n_tokens is None:
            return text
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        n_left_out = len(offsets) - n_tokens
        if n_left_out <= 0:
            return text
        if self._cuts_left:
            first = n_left_out
            while first < len(offsets) and offsets[first][0] < offsets[first - 1][1]:
                first += 1
            return text[offsets[first][0] :] if first < len(offsets) else ""
        stop = n_tokens
        while stop > 0 and offsets[stop][0] < offsets[stop - 1][1]:
            stop -= 1
        return text[: offsets[stop - 1][1]] if stop > 0 else ""

    def _check_queries(self, ids: Sequence[str], texts: Sequence[str], tokens: Tokens) -> None:
        """Refuse a query that leaves no room for a document, where none is cut."""
        if self.template.query_tokens is None:
            super()._check_queries(ids, texts, tokens)
        elif self.template.query_tokens + self.n_special >= self.max_length:
            raise InputError(
                f"template.query_tokens must leave room for a document beside {self.n_special} tokens of the template and max_length {self.max_length}, got {self.template.query_tokens}",
                option="template",
            )

    def _check_instructions(self, ids: Sequence[str], tokens: FieldTexts) -> None:
        """Refuse a query that leaves no room for a document beside an instruction of its own."""
        if tokens.instructions is None or self.template.instruction_tokens is not None:
            return
        n_usual = self._n_tokens(self.template.instruction)
        n_of_instruction: dict[str, int] = {}
        longest_query = self.template.query_tokens or self.max_length
        for row, instruction in enumerate(tokens.instructions):
            if not instruction:
                continue
            if instruction not in n_of_instruction:
                n_of_instruction[instruction] = self._n_tokens(instruction)
            n_more = n_of_instruction[instruction] - n_usual
            length = min(len(tokens[row]), longest_query) + self.n_special + n_more
            if length >= self.max_length:
                raise InputError(
                    f"query {ids[row]!r} and its instruction make {length} tokens with the template, but max_length {self.max_length} must leave room for a document; raise max_length, or set template.instruction_tokens",
                    option="max_length",
                )

    def _n_tokens(self, text: str) -> int:
        """Of a text alone."""
        return len(self._backend.encode(text, add_special_tokens=False).ids)
