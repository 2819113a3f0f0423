"""``ltr grid``: train and test a family of experiments, and compare them."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ltr.cli.arguments import call_with
from ltr.cli.compare import check_files, print_and_write
from ltr.cli.messages import line_for_user
from ltr.cli.near_names import near_option
from ltr.cli.process import run_in_process
from ltr.compare.group_result import ExperimentResult, GroupResult
from ltr.data.console import say
from ltr.data.outputs import check_folder, check_inside
from ltr.errors import InputError
from ltr.grid.compared_cells import ComparedCells
from ltr.grid.definition import Cell, Grid
from ltr.grid.folder import GridFolder
from ltr.grid.until_shown import cells_until_shown, check_looks

FIT_OPTIONS = ("--wandb", "--wandb_model", "--init_from")  # and all with a dot
GIVEN_BY_GRID = ("--config", "--ckpt_path", "--seed_everything")


def run_grid(command_line: list[str]) -> None:
    """Call :func:`grid` with the words of a command line. What is like no option of ``ltr grid`` is
    taken for one of ``ltr fit``, which says what is wrong with it.

    Raises:
        InputError: for an option of ``ltr fit`` without a value, or one that the grid itself gives.
    """
    own_options = ["help", *inspect.signature(grid).parameters]
    own_words = list[str]()
    fit_options = list[str]()
    words = iter(command_line[1:])
    for word in words:
        name, equals, value = word.partition("=")
        if name in GIVEN_BY_GRID:
            raise InputError(
                f"ltr grid gives {name} to each run itself, by base and seeds of the grid file; leave it out"
            )
        is_of_fit = _is_of_fit(name)
        if name == "--until-shown":
            word = "--until_shown"
        is_own = not name.startswith("--") or near_option(name.removeprefix("--"), own_options)
        if is_own and not is_of_fit:
            own_words.append(word)
            continue
        if not equals:
            value = next(words, "")
        if value == "" or value.startswith("--"):
            if is_of_fit:
                raise InputError(f"ltr grid: the option {name} must have a value, and has none")
            raise InputError(
                f"ltr grid: the option {name} is none of ltr grid, and one of ltr fit must have a value; see ltr grid --help"
            )
        fit_options += [name, value]
    call_with(grid, own_words, "ltr grid", fit_options=fit_options)


def _is_of_fit(name: str) -> bool:
    """Whether a word is certainly an option of ``ltr fit``."""
    return name in FIT_OPTIONS or (name.startswith("--") and "." in name)


def grid(
    file: str,
    *,
    runs: str | None = None,
    only: list[str] | None = None,
    seeds: list[int] | None = None,
    folds: int | None = None,
    until_shown: bool = False,
    table: bool = False,
    fit_options: list[str],
    markdown: str | None = None,
    latex: str | None = None,
    csv: str | None = None,
    html: str | None = None,
) -> None:
    """Train and test each cell of a grid that is not there yet, resume one that was interrupted, and
    compare the experiments.

    The options of all cells are checked before the first is trained. Where a run fails all the
    same, the others are made first. Several commands may run at once and share the work: a cell
    that another one works on is left to it, and waited for in the end. Options with a dot, --wandb
    and --init_from are those of ltr fit, and hold for all cells: --trainer.precision bf16-mixed.

    Args:
        file: The grid: base, axes, and perhaps options, seeds, choose, metrics, baseline
            (docs/grid.md).
        runs: Where the runs lie. None: runs/<name of the file>, of folds runs/<name of the file>-<folds>-folds.
        only: Only cells with these names: with one of them on each axis that has one.
        seeds: Other seeds than those of the file.
        folds: Cross-validate over the questions of train and dev, dealt into so many parts, with the first seed; test is not
            read. What is best is named in the end, on the axis that the file chooses, else of all.
        until_shown: Train one seed after the other, look at the comparison after each, and stop when every
            difference is shown, or hardly can be with the seeds that are left. p and the verdicts count
            all looks (docs/grid.md).
        table: Train nothing.
        fit_options: Options of ltr fit for all cells: names and values in turn.
        markdown: Also write the comparison to this file.
        latex: Also write the comparison to this file.
        csv: Also write the comparison to this file.
        html: Also write a page of the comparison to this file.
    """
    definition = Grid.read(Path(file))
    if folds is not None and folds < 3:
        raise InputError(
            f"--folds must be at least 3: one to test, one to choose the epoch, the others to train; got {folds}"
        )
    name = definition.name if folds is None else f"{definition.name}-{folds}-folds"
    root = Path("runs", name) if runs is None else Path(runs)
    files = {"markdown": markdown, "latex": latex, "csv": csv, "html": html}
    check_files(files)
    check_folder(runs, "--runs")
    if not table:
        check_inside(root, "--runs")
    if until_shown and folds is not None:
        raise InputError(
            "--until_shown looks after each seed, and --folds has one; leave out either"
        )
    if folds is not None:
        seeds = seeds or [definition.seeds[0]]
    seeds = list(dict.fromkeys(seeds or definition.seeds))
    if min(seeds) < 0:
        raise InputError(f"--seeds must be whole numbers of at least 0, got {min(seeds)}")
    folder = GridFolder(definition, root, fit_options, tuple(seeds) if until_shown else ())
    # What is perhaps no option of ltr fit either is refused before anything else, even with --table:
    # by parsing one cell with it.
    taken_for_fit = [name for name in fit_options[::2] if not _is_of_fit(name)]
    if taken_for_fit:
        _refuse_options(folder, list(definition.cells())[:1])
    cells = list(definition.cells(seeds, only or (), folds))
    if until_shown:
        check_looks(folder, cells)
    if definition.choose is not None and folds is None:
        tried = [cell for cell in cells if cell.seed == seeds[0]]
        if not table:
            _make_missing(folder, tried)
        chosen = {cell.names for cell in folder.chosen_on_dev(tried)}
        cells = [cell for cell in cells if cell.names in chosen]
    if until_shown:
        if not table:
            _refuse_options(folder, folder.missing(cells))  # of all seeds, before the first
        cells = cells_until_shown(folder, cells, None if table else _make)
    elif not table:
        _make_missing(folder, cells)
    _compare_made(folder, cells, files, folds)


def _make_missing(folder: GridFolder, cells: Sequence[Cell]) -> None:
    missing = folder.missing(cells)
    _refuse_options(folder, missing)
    _make(folder, missing)


def _make(folder: GridFolder, missing: Sequence[Cell]) -> None:
    # A cell that refuses its input does not end the others.
    folder.make(missing, partial(run_in_process, refusal_ends_program=False))


def _refuse_options(folder: GridFolder, cells: Sequence[Cell]) -> None:
    """Raise an InputError for what ``ltr fit`` or the metrics of the grid have against the options of
    an experiment. This is before the first is trained: the last one would be refused hours later.
    """
    if not cells:
        return
    from ltr.cli.parsed import ParsedCommand  # Lightning takes seconds to import
    from ltr.module import METRICS

    name = folder.grid.name
    one_of_each = {cell.experiment: cell for cell in cells}
    for experiment, cell in one_of_each.items():
        try:
            command = ParsedCommand(folder.fit_words(cell))
        except Exception as error:
            line = line_for_user(error)
            if line is None:
                raise
            raise InputError(
                f"{name}: {experiment} would be refused, so nothing was trained: {line}"
            ) from None
        measured = command.options.model.metrics or METRICS
        unknown = [metric for metric in folder.grid.metrics if metric not in measured]
        if unknown:
            raise InputError(
                f"{name}: metrics must be among those of model.metrics, {', '.join(measured)}; got {', '.join(unknown)} ({experiment}); nothing was trained"
            )


def _compare_made(
    folder: GridFolder, cells: Sequence[Cell], files: Mapping[str, str | None], folds: int | None
) -> None:
    """Compare the cells that are there; of a cross-validation, name what is best."""
    missing = folder.missing(cells)
    # Of the folds of a seed all must be there.
    incomplete = {(cell.names, cell.seed) for cell in missing}
    made = [cell for cell in cells if (cell.names, cell.seed) not in incomplete]
    notes = []
    if missing:
        first = folder.root / missing[0].folder
        notes.append(f"{len(missing)} of {len(cells)} runs are not there yet, first {first}")
    if not made:
        raise InputError(f"{notes[0]}, so there is nothing to compare")
    compared = ComparedCells.of(folder, made)
    results = compared.results
    print_and_write(results, files=files, remarks=[*notes, *compared.remarks])
    if folds is not None:
        _print_best(folder.grid, compared.values_of, results[0].main, folds)


def _print_best(
    definition: Grid, values_of: Mapping[str, tuple[str, ...]], result: GroupResult, folds: int
) -> None:
    """Say which experiment a cross-validation chooses: on the axis that the grid chooses, else of
    all. ``values_of`` has the values on the axes, by the names of the experiments in the
    comparison.
    """
    sign = -1 if result.lower_is_better else 1
    best_of: dict[tuple[str, ...], ExperimentResult] = {}  # by what the rivals share
    for row in result.rows:
        values = values_of[row.experiment.name]
        rivals = () if definition.choose is None else definition.names_but_chosen(values)
        best = best_of.get(rivals)
        if best is None or sign * row.estimate.mean > sign * best.estimate.mean:
            best_of[rivals] = row
    for row in best_of.values():
        say(
            f"chosen by {folds} folds: {row.experiment.name} ({result.metric} {row.estimate.mean:.4f} on {result.n_queries:,} questions of train and dev)"
        )
