"""``ltr compare``: is the difference of runs real?"""

import sys
from pathlib import Path

import jsonargparse
from rich.console import Console

from ltr.compare.comparison import compare
from ltr.compare.runs import experiments
from ltr.compare.tables import as_csv, footnotes, latex, markdown, tables, terminal
from ltr.data.files import write_whole
from ltr.errors import InputError

WIDTH = 200  # letters of a line where no terminal says it


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr compare``, and do what they say."""
    parser = jsonargparse.ArgumentParser(prog="ltr compare", description=__doc__, exit_on_error=False, allow_abbrev=False)
    help = "Run folders, folders that hold seed=0, seed=1 …, or glob patterns of these. The first experiment is the baseline."
    parser.add_argument("runs", nargs="+", help=help)
    parser.add_argument(
        "--metric", nargs="+", default=[], help="Metrics to test, all one family. Default: the first that was measured."
    )
    parser.add_argument("--baseline", nargs="+", default=[], help="Experiments that the others are compared with.")
    parser.add_argument("--alpha", type=float, default=0.05, help="The chance of even one false difference in the family.")
    parser.add_argument("--plan", type=float | None, default=None, help="Also say how many queries would show this difference.")
    for name in ("markdown", "latex", "csv"):
        parser.add_argument(f"--{name}", type=str | None, default=None, help="Also write the tables to this file.")
    help = "Also write a page of tables, figures, and the queries that differ most, to this file."
    parser.add_argument("--html", type=str | None, default=None, help=help)
    asked = parser.parse_args(args)
    if asked.plan is not None and not asked.plan > 0:
        raise InputError(f"--plan must be a difference above 0, got {asked.plan:g}")
    runs = experiments(asked.runs)
    found = compare(runs, asked.metric, asked.baseline, asked.alpha)
    made, notes = tables(found, asked.alpha, asked.plan), footnotes(found)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    terminal(made, notes, console)
    if asked.html is not None:
        from ltr.compare.page import page  # matplotlib takes a second to import
    for file, write in (
        (asked.markdown, lambda: markdown(made, notes)),
        (asked.latex, lambda: latex(made, notes)),
        (asked.csv, lambda: as_csv(found)),
        (asked.html, lambda: page(runs, found, made, notes)),
    ):
        if file is not None:
            write_whole(Path(file), [write()])
            console.print(f"written to {file}", markup=False, highlight=False)
