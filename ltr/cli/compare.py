"""``ltr compare``: is the difference of runs real?"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import jsonargparse
from rich.console import Console

from ltr.compare.comparison import Compared, against, compare
from ltr.compare.runs import Experiment, experiments
from ltr.compare.tables import as_csv, footnotes, latex, markdown, tables, terminal
from ltr.data.files import write_whole
from ltr.errors import InputError

WRITTEN = ("markdown", "latex", "csv", "html")
WIDTH = 200  # letters of a line where no terminal says it


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr compare``, and do what they say."""
    parser = jsonargparse.ArgumentParser(
        prog="ltr compare", description=__doc__, exit_on_error=False, allow_abbrev=False
    )
    help = "Run folders, folders that hold seed=0, seed=1 …, or glob patterns of these. The first experiment is the baseline."
    parser.add_argument("runs", nargs="+", help=help)
    help = "Metrics to test, all one family. Default: the first that was measured."
    parser.add_argument("--metric", nargs="+", default=[], help=help)
    parser.add_argument(
        "--baseline", nargs="+", default=[], help="Experiments that the others are compared with."
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.05,
        help="The chance of even one false difference in the family.",
    )
    parser.add_argument(
        "--plan",
        type=float | None,
        default=None,
        help="Also say how many queries would show this difference.",
    )
    for name in ("markdown", "latex", "csv"):
        parser.add_argument(
            f"--{name}", type=str | None, default=None, help="Also write the tables to this file."
        )
    help = "Also write a page of tables, figures, and the queries that differ most, to this file."
    parser.add_argument("--html", type=str | None, default=None, help=help)
    asked = parser.parse_args(args)
    if asked.plan is not None and not asked.plan > 0:
        raise InputError(f"--plan must be a difference above 0, got {asked.plan:g}")
    runs = experiments(asked.runs)
    pairs = against([one.name for one in runs], asked.baseline)
    found = compare(runs, asked.metric, pairs, asked.alpha)
    tell(runs, found, asked.alpha, asked.plan, {name: getattr(asked, name) for name in WRITTEN})


def tell(
    runs: Sequence[Experiment],
    found: Sequence[Compared],
    alpha: float = 0.05,
    plan: float | None = None,
    written: Mapping[str, str | None] = MappingProxyType({}),
    missing: Sequence[str] = (),
) -> None:
    """Print a comparison, and write it to files.

    Args:
        runs: the experiments.
        found: what :func:`ltr.compare.comparison.compare` says of them.
        alpha: the level of the family.
        plan: a difference to plan for.
        written: a file for each of :data:`WRITTEN`; None for none.
        missing: lines on what is not there, to stand beside the tables.
    """
    made = tables(found, alpha, plan)
    notes = [*missing, *footnotes(found)]
    if written.get("html") is not None:
        from ltr.compare.page import page  # matplotlib takes a second to import
    for name, write in (
        ("markdown", lambda: markdown(made, notes)),
        ("latex", lambda: latex(made, notes)),
        ("csv", lambda: as_csv(found)),
        ("html", lambda: page(runs, found, made, notes)),
    ):
        if (file := written.get(name)) is not None:
            write_whole(Path(file), [write()])
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    terminal(made, notes, console)  # last: perhaps nobody reads on
    for file in filter(None, written.values()):
        console.print(f"written to {file}", markup=False, highlight=False)
