"""``ltr doctor``: does this machine compute the right numbers?"""

import sys

import jsonargparse
from rich.console import Console
from rich.table import Table

from ltr.doctor import examine

COLOURS = {"ok": "green", "fell back": "yellow", "wrong": "bold red"}


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr doctor``, run the checks, and print a table, or in a pipe
    lines with tabs.

    Raises:
        InputError: if the backbone can't be loaded.
        SystemExit: with code 1 if a check found wrong numbers, and nothing else is used instead.
    """
    parser = jsonargparse.ArgumentParser(
        prog="ltr doctor", description=__doc__, exit_on_error=False, allow_abbrev=False
    )
    help = "The encoder that is checked: a hub id, a folder, or package:NAME. Default: a tiny BERT with new weights."
    parser.add_argument("--backbone", type=str | None, default=None, help=help)
    findings = []
    for finding in examine(parser.parse_args(args).backbone):
        findings.append(finding)
        if not sys.stdout.isatty():  # at once: a check that hangs shows behind which line
            print(*finding, sep="\t", flush=True)
    if sys.stdout.isatty():
        table = Table("what", "uses", "result", "why")
        for one in findings:
            table.add_row(*one, style=COLOURS.get(one.result))
        Console(markup=False).print(table)
    if any(one.result == "wrong" for one in findings):
        raise SystemExit(1)
