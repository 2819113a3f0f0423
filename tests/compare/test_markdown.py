"""Tables in Markdown."""

from ltr.compare.markdown import as_markdown
from tests.compare.tables_by_hand import TABLE


def test_markdown_by_hand():
    assert as_markdown([TABLE], ["a note"]) == (
        "**100 % of a_b**\n\n"
        "| name | p |\n| --- | --- |\n| x\\|y | < 0.001 |\n| bm25-2 [b] | -0.1 ± 0.2 |\n\n"
        "a note\n"
    )
