"""Tables on a terminal, in Markdown and in LaTeX."""

import io

from rich.console import Console

from ltr.compare.table_formats import as_latex, as_markdown, print_tables
from ltr.compare.tables import Table

# With the letters that the formats must escape.
TABLE = Table("100 % of a_b", ["name", "p"], [["x|y", "< 0.001"], ["bm25-2 [b]", "-0.1 ± 0.2"]])


def test_on_a_terminal_brackets_are_no_markup():
    out = io.StringIO()
    print_tables([TABLE], ["[note]"], Console(file=out, width=60))
    assert "bm25-2 [b]" in out.getvalue() and "[note]" in out.getvalue()


def test_markdown_by_hand():
    assert as_markdown([TABLE], ["a note"]) == (
        "**100 % of a_b**\n\n"
        "| name | p |\n| --- | --- |\n| x\\|y | < 0.001 |\n| bm25-2 [b] | -0.1 ± 0.2 |\n\n"
        "a note\n"
    )


def test_latex_by_hand():
    """A minus before a number is one; a hyphen within a name stays."""
    assert as_latex([TABLE], ["a note"]) == (
        "\\begin{table}\n\\begin{tabular}{lr}\n\\toprule\n"
        "name & p \\\\\n\\midrule\n"
        "x|y & $<$ 0.001 \\\\\nbm25-2 [b] & $-$0.1 $\\pm$ 0.2 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\caption{100 \\% of a\\_b}\n\\end{table}\n\n"
        "% a note\n"
    )
