"""Tables in LaTeX."""

import re
from collections.abc import Sequence

from ltr.compare.tables import Table


def as_latex(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables for the package booktabs."""
    paragraphs = []
    for table in tables:
        columns = "l" + "r" * (len(table.header) - 1)  # names to the left, numbers to the right
        lines = [
            r"\begin{table}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(table.header),
            r"\midrule",
            *map(_latex_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_latex_text(table.title)}}}",
            r"\end{table}",
        ]
        paragraphs.append("\n".join(lines))
    paragraphs += [f"% {note}" for note in notes]
    return "\n\n".join(paragraphs) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, cells)) + r" \\"


def _latex_text(text: str) -> str:
    """Text with LaTeX's special letters escaped."""
    # The backslash first: the later escapes add backslashes of their own.
    text = text.replace("\\", r"\textbackslash ")
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    text = text.replace("±", r"$\pm$")
    text = text.replace("−", "$-$")
    text = text.replace("<", "$<$")
    text = text.replace("~", r"\textasciitilde ")
    text = text.replace("^", r"\textasciicircum ")
    # A minus before a number; not a hyphen within a name, as in bm25-2.
    return re.sub(r"(?<![\w$.])-(?=\d)", "$-$", text)
