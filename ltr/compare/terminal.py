"""Tables on a terminal."""

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
