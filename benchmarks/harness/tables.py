"""Lines of a Markdown table."""

from collections.abc import Sequence


def row(cells: Sequence[object]) -> str:
    """One line."""
    return f"| {' | '.join(map(str, cells))} |"


def head(columns: Sequence[str]) -> str:
    """The names of the columns, and the rule below them."""
    return f"{row(columns)}\n{row(['---'] * len(columns))}"
