"""``ltr doctor``: does this machine compute the right numbers?"""

import sys

from rich.table import Table

from ltr.data.console import Console, say
from ltr.machine_checks import examine

COLOURS = {"ok": "green", "fell back": "yellow", "wrong": "bold red"}


def doctor(*, backbone: str | None = None) -> None:
    """Check what this machine computes: kernels, search, processes.

    Prints a table, or in a pipe lines with tabs. Ends with code 1 if a check found wrong numbers,
    and nothing else is used instead.

    Args:
        backbone: The encoder that is checked: a hub id, a folder, or package:NAME. None: a tiny
            BERT with new weights.

    Raises:
        InputError: if the backbone can't be loaded.
    """
    on_terminal = sys.stdout.isatty()
    findings = []
    for finding in examine(backbone):
        findings.append(finding)
        if not on_terminal:  # at once: if a check hangs, the last line is of the one before it
            say(*finding, sep="\t")
    if on_terminal:
        table = Table("what", "uses", "result", "why")
        for finding in findings:
            table.add_row(*finding, style=COLOURS.get(finding.result))
        Console(markup=False).print(table)
    if any(finding.result == "wrong" for finding in findings):
        raise SystemExit(1)
