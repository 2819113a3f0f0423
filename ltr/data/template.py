"""STUB, taken over from w-tmpl by the merge."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """What is read of a query and a document."""

    query: str = "{query}"
    document: str = "{document}"
    pair: str | None = None
    instruction: str = ""
    instruction_tokens: int | None = None
    query_tokens: int | None = None
    document_tokens: int | None = None
