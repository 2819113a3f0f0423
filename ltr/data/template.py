"""What a model reads of a query and a document: the text around them, and how long each may be."""

import re
from dataclasses import dataclass
from typing import Literal

from ltr.data.files import encoded
from ltr.errors import InputError, at_least

Side = Literal["query", "document"]
A_FIELD = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Template:
    """What a model reads of a query, of a document, and of both.

    A text is cut to its budget before it is put in, so a long document never crowds out the query,
    nor what stands behind it.

    >>> template = Template("{instruction}: {query}", pair="{query} | {document}?", instruction="Answer")
    >>> template.pair_text(template.query_text("why"), "because")
    'Answer: why | because?'
    >>> template.query_text("why", "Explain")
    'Explain: why'

    Args:
        query: What is read of a query: ``{query}`` stands for the query, ``{instruction}`` for its
            instruction.
        document: What is read of a document, ``{document}``.
        pair: What a model that reads both as one text is given: ``{query}`` and ``{document}`` stand
            for the two above. None: the model reads two texts, apart or as its tokenizer joins them.
        instruction: That of queries without one of their own (``instruction`` in queries.jsonl).
        instruction_tokens: Most tokens of an instruction; None: no bound.
        query_tokens: Most tokens of a query; None: no bound.
        document_tokens: Most tokens of a document; None: what ``max_length`` leaves.

    Raises:
        InputError: for a field that is unknown or missing, NUL or half a letter, a bound below 1, or an instruction that
            nothing would read.
    """

    query: str = "{query}"
    document: str = "{document}"
    pair: str | None = None
    instruction: str = ""
    instruction_tokens: int | None = None
    query_tokens: int | None = None
    document_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("query", "document", "pair", "instruction"):
            encoded(getattr(self, name) or "", f"template.{name}")
        _check_fields("query", self.query, {"query"}, {"instruction"})
        _check_fields("document", self.document, {"document"}, set())
        if self.pair is not None:
            _check_fields("pair", self.pair, {"query", "document"}, set())
        if self.instruction and not self.reads_instructions:
            raise InputError(
                f"template.query must hold {{instruction}} where there is an instruction, got {self.query!r}; put it in, or leave out template.instruction",
                option="template",
            )
        at_least(1, instruction_tokens=self.instruction_tokens)
        at_least(1, query_tokens=self.query_tokens)
        at_least(1, document_tokens=self.document_tokens)

    @property
    def reads_instructions(self) -> bool:
        """Whether an instruction changes what is read of a query."""
        return "{instruction}" in self.query

    def budget(self, side: Side) -> int | None:
        """Tokens of a text of this side at most; None: as many as it has."""
        return self.query_tokens if side == "query" else self.document_tokens

    def prompt(self, side: Side) -> str | None:
        """What stands in front of a text of this side, with the instruction of queries that have
        none of their own; None where something stands behind it.
        """
        front, _, behind = getattr(self, side).partition(f"{{{side}}}")
        return None if behind else _filled(front, {"instruction": self.instruction})

    def query_text(self, query: str, instruction: str | None = None) -> str:
        """What is read of a query, with its own instruction where it has one."""
        if instruction is None:
            instruction = self.instruction
        return _filled(self.query, {"query": query, "instruction": instruction})

    def document_text(self, document: str) -> str:
        """What is read of a document."""
        return _filled(self.document, {"document": document})

    def pair_text(self, query: str, document: str) -> str:
        """What is read of both, of what is read of each."""
        assert self.pair is not None, "the model reads two texts"
        return _filled(self.pair, {"query": query, "document": document})


def _filled(template: str, fields: dict[str, str]) -> str:
    """A template with its fields filled in. Braces of what is filled in are text."""

    def content(match: re.Match[str]) -> str:
        return fields.get(match[1], match[0])

    return A_FIELD.sub(content, template)


def _check_fields(name: str, template: str, needed: set[str], allowed: set[str]) -> None:
    fields = A_FIELD.findall(template)
    for field in sorted(needed):
        if fields.count(field) != 1:
            raise InputError(
                f"template.{name} must hold {{{field}}} once, got {template!r:.80}; write {{{field}}} where the {field} stands",
                option="template",
            )
    unknown = sorted(set(fields) - needed - allowed)
    if unknown:
        known = ", ".join(f"{{{field}}}" for field in sorted(needed | allowed))
        raise InputError(
            f"template.{name} has the fields {known}, got {{{unknown[0]}}}; leave it out",
            option="template",
        )


PLAIN_TEMPLATE = Template()  # the query and the document as they are
