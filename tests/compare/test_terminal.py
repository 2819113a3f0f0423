"""Tables on a terminal."""

import io

from rich.console import Console

from ltr.compare.terminal import print_tables
from tests.compare.tables_by_hand import TABLE


def test_on_a_terminal_brackets_are_no_markup():
    out = io.StringIO()
    print_tables([TABLE], ["[note]"], Console(file=out, width=60))
    assert "bm25-2 [b]" in out.getvalue() and "[note]" in out.getvalue()
