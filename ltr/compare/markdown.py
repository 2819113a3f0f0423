"""Tables in Markdown."""

from collections.abc import Sequence

from ltr.compare.tables import Table


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
