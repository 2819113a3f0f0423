"""Tables on a terminal, in Markdown and in LaTeX."""

import re
from collections.abc import Sequence

from rich import box
from rich.table import Table as RichTable

from ltr.compare.tables import Table
from ltr.data.console import Console


def print_tables(tables: Sequence[Table], notes: Sequence[str], console: Console) -> None:
    """Print the tables."""
    for table in tables:
        console.print(table.title, style="bold", markup=False, highlight=False)
        printed = RichTable(box=box.SIMPLE_HEAD)
        for number, name in enumerate(table.header):
            is_text = number == 0 or name in table.text_columns
            printed.add_column(name, justify="left" if is_text else "right", overflow="fold")
        for cells in table.rows:
            printed.add_row(*(cell.replace("[", r"\[") for cell in cells))  # else rich reads markup
        console.print(printed)
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def as_markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables under their titles."""
    paragraphs = []
    for table in tables:
        lines = [_markdown_row(table.header), _markdown_row(["---"] * len(table.header))]
        lines += map(_markdown_row, table.rows)
        paragraphs += [f"**{table.title}**", "\n".join(lines)]
    return "\n\n".join([*paragraphs, *notes]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def as_latex(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables for the package booktabs."""
    paragraphs = []
    for table in tables:
        columns = "l" + "r" * (
            len(table.header) - 1
        )  # the first to the left, all others to the right
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
