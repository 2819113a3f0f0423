"""Tables in LaTeX."""

from ltr.compare.latex import as_latex
from tests.compare.tables_by_hand import TABLE


def test_latex_by_hand():
    """A minus before a number is one; a hyphen within a name stays."""
    assert as_latex([TABLE], ["a note"]) == (
        "\\begin{table}\n\\begin{tabular}{lr}\n\\toprule\n"
        "name & p \\\\\n\\midrule\n"
        "x|y & $<$ 0.001 \\\\\nbm25-2 [b] & $-$0.1 $\\pm$ 0.2 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\caption{100 \\% of a\\_b}\n\\end{table}\n\n"
        "% a note\n"
    )
