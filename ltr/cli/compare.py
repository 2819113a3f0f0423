"""``ltr compare``: is the difference of runs real?"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ltr.compare import comparison, csv_lines, split_tables, suite_tables, tables
from ltr.compare.comparison import MetricResult
from ltr.compare.latex import as_latex
from ltr.compare.markdown import as_markdown
from ltr.compare.runs import Experiment, experiments
from ltr.compare.sources import by_source
from ltr.compare.splits import compare_splits
from ltr.compare.suites import compare_suite
from ltr.compare.terminal import print_tables
from ltr.data.console import Console, without_controls
from ltr.data.outputs import check_file
from ltr.data.splits import split_named
from ltr.data.whole_files import write_whole
from ltr.errors import InputError
from ltr.run.data_sets import DataSet, data_sets

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
    data: list[str] | None = None,
    split: list[str] | None = None,
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
        data: Data sets on which the runs were tested by ltr test RUN --data.path …, named as there,
            and their mean: paths, or suite:NAME. None: the runs' own data.
        split: Splits on which the runs were tested by ltr test RUN --split …; of several, what changes
            from the first one to the others is told too. None: test.
    """
    if plan is not None and not plan > 0:
        raise InputError(f"--plan must be a difference above 0, got {plan:g}")
    files = {"markdown": markdown, "latex": latex, "csv": csv, "html": html}
    check_files(files)
    splits = list(dict.fromkeys(split_named(name, "split") for name in split or ["test"]))
    if len(splits) > 1:
        if plan is not None or data is not None:
            other = "--plan" if plan is not None else "--data"
            raise InputError(f"{other} is of one split, got {', '.join(splits)}; name one of them")
        _compare_splits(runs, splits, metric, baseline, alpha, files)
        return
    if data is not None:
        if plan is not None:
            raise InputError("--plan is of one data set; leave out --data")
        sets = data_sets(data, "--data")
        _compare_suite(runs, sets, splits[0], metric, baseline, alpha, files)
        return
    compared = experiments(runs, split=splits[0])
    of_sources = by_source(compared)
    if of_sources and plan is not None:
        raise InputError(
            "--plan is of one data set, and these runs were tested on several; leave it out"
        )
    pairs = comparison.pairs_with_baselines(
        [experiment.name for experiment in compared], baseline or []
    )
    if of_sources:
        show_suite(of_sources, metric or [], pairs, alpha, files)
        return
    differences = comparison.compare(compared, metric or [], pairs, alpha)
    show(compared, differences, alpha, plan, files)


def _compare_suite(
    runs: Sequence[str],
    sets: Sequence[DataSet],
    split: str,
    metric: Sequence[str] | None,
    baseline: Sequence[str] | None,
    alpha: float,
    files: Mapping[str, str | None],
) -> None:
    """Compare experiments over several data sets."""
    if len(sets) < 2:
        raise InputError(f"--data must name two data sets or more, got {sets[0].name}")
    experiments_of_set = {}
    for data_set in sets:
        experiments_of_set[data_set.name] = experiments(runs, data_set, split)
    names = [experiment.name for experiment in experiments_of_set[sets[0].name]]
    pairs = comparison.pairs_with_baselines(names, baseline or [])
    show_suite(experiments_of_set, metric or [], pairs, alpha, files)


def show_suite(
    experiments_of_set: Mapping[str, Sequence[Experiment]],
    metrics: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    alpha: float = 0.05,
    files: Mapping[str, str | None] = MappingProxyType({}),
    remarks: Sequence[str] = (),
) -> None:
    """Compare experiments over several data sets, print the comparison, and write it to files.

    Args:
        experiments_of_set: the same experiments on each set, by its name.
        metrics: to test; none: the first that was measured.
        pairs: names of an experiment and of its baseline.
        alpha: the level of each family.
        files: to write, as of :func:`show`.
        remarks: lines to stand before the notes of the tables.
    """
    results = compare_suite(experiments_of_set, metrics, pairs, alpha)
    shown = suite_tables.suite_tables(results, alpha)
    notes = [*remarks, *suite_tables.suite_footnotes(results)]
    n_experiments = len(next(iter(experiments_of_set.values())))

    def page() -> str:
        from ltr.compare.page import page_of_tables  # matplotlib takes a second to import

        title = f"{n_experiments} experiments on {len(experiments_of_set)} sets"
        return page_of_tables(title, shown, notes)

    _write_and_print(shown, notes, files, lambda: csv_lines.suite_csv(results), page)


def _compare_splits(
    runs: Sequence[str],
    splits: Sequence[str],
    metric: Sequence[str] | None,
    baseline: Sequence[str] | None,
    alpha: float,
    files: Mapping[str, str | None],
) -> None:
    """Compare experiments on several splits."""
    experiments_of_split = {split: experiments(runs, split=split) for split in splits}
    names = [experiment.name for experiment in experiments_of_split[splits[0]]]
    pairs = comparison.pairs_with_baselines(names, baseline or [])
    results = compare_splits(experiments_of_split, metric or [], pairs, alpha)
    shown = split_tables.split_tables(results, alpha)
    notes = split_tables.split_footnotes(results)

    def page() -> str:
        from ltr.compare.page import page_of_tables  # matplotlib takes a second to import

        return page_of_tables(f"{len(names)} experiments on {', '.join(splits)}", shown, notes)

    _write_and_print(shown, notes, files, lambda: csv_lines.split_csv(results), page)


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

    def as_page() -> str:
        from ltr.compare.page import page  # matplotlib takes a second to import

        return page(compared, differences, shown, notes)

    _write_and_print(shown, notes, files, lambda: csv_lines.as_csv(differences), as_page)


def _write_and_print(
    shown: Sequence[tables.Table],
    notes: Sequence[str],
    files: Mapping[str, str | None],
    as_csv: Callable[[], str],
    as_page: Callable[[], str],
) -> None:
    """Write tables to files, and print them.

    Args:
        shown: the tables.
        notes: what stands below them.
        files: to write, by their form; None for none.
        as_csv: makes the text of that form.
        as_page: makes the text of the form ``html``.
    """

    def text_of(form: str) -> str:
        if form == "csv":  # for programs, which take names as they are
            return as_csv()
        if form == "markdown":
            text = as_markdown(shown, notes)
        elif form == "latex":
            text = as_latex(shown, notes)
        else:
            text = as_page()
        return without_controls(text)

    written = {form: file for form, file in files.items() if file is not None}
    for form, file in written.items():
        write_whole(Path(file), [text_of(form)])
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    # After the files: where nobody reads on (… | head), printing raises.
    print_tables(shown, notes, console)
    for file in written.values():
        console.print(f"written to {file}", markup=False, highlight=False)
