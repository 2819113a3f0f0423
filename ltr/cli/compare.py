"""``ltr compare``: is the difference of runs real?"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from ltr.compare import comparison, tables
from ltr.compare.comparison import MetricResult
from ltr.compare.runs import Experiment, experiments
from ltr.data.files import write_whole
from ltr.data.outputs import check_file
from ltr.errors import InputError

WIDTH = 200  # letters of a line where no terminal says it


def compare(
    runs: list[str],
    *,
    metric: list[str] | None = None,
    baseline: list[str] | None = None,
    alpha: float = 0.05,
    plan: float | None = None,
    markdown: str | None = None,
    latex: str | None = None,
    csv: str | None = None,
    html: str | None = None,
) -> None:
    """Compare experiments over queries and seeds: is the difference of runs real?

    Args:
        runs: Run folders, folders that hold seed=0, seed=1 …, or glob patterns of these. The first
            experiment is the baseline.
        metric: Metrics to test, all one family. None: the first that was measured.
        baseline: Experiments that the others are compared with. None: the first.
        alpha: The chance of even one false difference in the family.
        plan: Also say how many queries would show this difference.
        markdown: Also write the tables to this file.
        latex: Also write the tables to this file.
        csv: Also write the tables to this file.
        html: Also write a page of tables, figures, and the queries that differ most, to this file.
    """
    if plan is not None and not plan > 0:
        raise InputError(f"--plan must be a difference above 0, got {plan:g}")
    files = {"markdown": markdown, "latex": latex, "csv": csv, "html": html}
    check_files(files)
    compared = experiments(runs)
    pairs = comparison.pairs_with_baselines(
        [experiment.name for experiment in compared], baseline or []
    )
    differences = comparison.compare(compared, metric or [], pairs, alpha)
    show(compared, differences, alpha, plan, files)


def check_files(files: Mapping[str, str | None]) -> None:
    """Raise an InputError for a file of :func:`show` that can't be written."""
    for form, file in files.items():
        check_file(file, f"--{form}")


def show(
    compared: Sequence[Experiment],
    differences: Sequence[MetricResult],
    alpha: float = 0.05,
    plan: float | None = None,
    files: Mapping[str, str | None] = MappingProxyType({}),
    remarks: Sequence[str] = (),
) -> None:
    """Print a comparison, and write it to files.

    Args:
        compared: the experiments.
        differences: what :func:`ltr.compare.comparison.compare` says of them.
        alpha: the level of the family.
        plan: a difference to plan for.
        files: to write, by their form: ``markdown``, ``latex``, ``csv``, ``html``; None for none.
        remarks: lines to stand before the notes of the tables, such as what is not there.
    """
    shown = tables.tables(differences, alpha, plan)
    notes = [*remarks, *tables.footnotes(differences)]

    def text_of(form: str) -> str:
        if form == "markdown":
            return tables.markdown(shown, notes)
        if form == "latex":
            return tables.latex(shown, notes)
        if form == "csv":
            return tables.as_csv(differences)
        from ltr.compare.page import page  # matplotlib takes a second to import

        return page(compared, differences, shown, notes)

    written = {form: file for form, file in files.items() if file is not None}
    for form, file in written.items():
        write_whole(Path(file), [text_of(form)])
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    # After the files: where nobody reads on (… | head), printing raises.
    tables.terminal(shown, notes, console)
    for file in written.values():
        console.print(f"written to {file}", markup=False, highlight=False)
