"""A template says what is read, and refuses what would be read wrongly."""

import pytest

from ltr.data.template import Template
from tests.world.refusals import refused


def test_fields_are_filled_in_once_and_braces_of_texts_stay():
    template = Template(
        query="Do: {instruction} Q: {query}",
        document="D: {document}",
        pair="<{query}|{document}>",
        instruction="rank {query}",
    )
    query = template.query_text("what is {document}?")
    assert query == "Do: rank {query} Q: what is {document}?"
    document = template.document_text("{query} {instruction}")
    assert template.pair_text(query, document) == (
        "<Do: rank {query} Q: what is {document}?|D: {query} {instruction}>"
    )
    assert template.query_text("why", "explain") == "Do: explain Q: why"
    assert template.query_text("why", "") == "Do:  Q: why"


def test_the_plain_template_adds_nothing():
    template = Template()
    assert (template.query_text("a b"), template.document_text("c")) == ("a b", "c")
    assert not template.reads_instructions
    assert Template("{instruction}{query}").reads_instructions


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"query": "q"}, r"template.query must hold \{query\} once, got 'q'; write"),
        ({"query": "{query} {query}"}, r"template.query must hold \{query\} once"),
        ({"document": "{query}"}, r"template.document must hold \{document\} once"),
        ({"pair": "{query}"}, r"template.pair must hold \{document\} once"),
        ({"query": "{query} {title}"}, r"has the fields \{instruction\}, \{query\}, got \{title\}"),
        (
            {"pair": "{query} {document} {instruction}"},
            r"has the fields \{document\}, \{query\}, got \{instruction\}; leave it out",
        ),
        ({"instruction": "find"}, r"must hold \{instruction\} where there is an instruction"),
        ({"query": "a\0 {query}"}, "template.query: text must not hold NUL"),
        ({"document": "{document}\0"}, "template.document: text must not hold NUL"),
        ({"pair": "{query}\0{document}"}, "template.pair: text must not hold NUL"),
        (
            {"query": "{instruction} {query}", "instruction": "\0"},
            "template.instruction: text must",
        ),
        ({"query": "\ud800{query}"}, "template.query: text must be valid Unicode"),
        ({"query_tokens": 0}, "query_tokens must be at least 1, got 0"),
        ({"document_tokens": -3}, "document_tokens must be at least 1, got -3"),
        ({"instruction_tokens": 0}, "instruction_tokens must be at least 1, got 0"),
    ],
)
def test_bad_templates_are_refused(options, said):
    with refused(said):
        Template(**options)
