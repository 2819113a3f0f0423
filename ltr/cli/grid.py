"""``ltr grid``: train and test a family of experiments, and compare them."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from ltr.cli import one_line
from ltr.cli.compare import WRITTEN, tell
from ltr.cli.process import call
from ltr.compare.comparison import compare
from ltr.compare.runs import experiments, is_tested
from ltr.data.files import write_whole
from ltr.errors import InputError
from ltr.grid import Cell, Grid
from ltr.run.folder import RunFolder
from ltr.run.yaml_files import read_yaml

# Options that change no result.
FREE = {
    f"--trainer.{name}"
    for name in ("enable_progress_bar", "enable_model_summary", "log_every_n_steps")
} | {"--wandb"}
USAGE = """\
usage: ltr grid FILE [--runs FOLDER] [--only NAME …] [--seeds N …] [--table] [options of ltr fit]

Train and test each cell of a grid that is not there yet, resume one that was interrupted, and compare the experiments.
The options of all cells are checked before the first is trained. Where a run fails all the same, the others are made first.
Several may run at once and share the work: a cell that another one works on is left to it, and waited for in the end.

  FILE           the grid: base, axes, and perhaps options, seeds, choose, metrics, baseline (docs/compare.md)
  --runs FOLDER  where the runs lie; runs/<name of FILE>
  --only NAME …  only cells with these names: with one of them on each axis that has one
  --seeds N …    other seeds than those of FILE
  --table        train nothing
  --html FILE, --markdown FILE, --latex FILE, --csv FILE: also write the comparison, see ltr compare --help
"""


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr grid``, and do what they say."""
    if not args or {"-h", "--help"} & {*args}:
        print(USAGE, end="")
        return
    file = Path(args[0])
    asked = _Asked()
    options = list[str]()
    _parse(args[1:], asked, options)
    grid = Grid.read(file)
    root = asked.runs or Path("runs", grid.name)
    seeds = tuple(asked.seeds) or grid.seeds
    cells = [
        Cell(one.names, one.options, seed)
        for one in grid.cells()
        if one.seed == grid.seeds[0]
        for seed in seeds
    ]
    cells = chosen_by_name(grid, cells, asked.only)
    if grid.choose is not None:
        tried = [one for one in cells if one.seed == seeds[0]]
        _train(grid, tried, root, options, asked.table)
        cells = _chosen(grid, tried, cells, root)
    _train(grid, cells, root, options, asked.table)
    _compare(grid, cells, root, options, asked.written)


def chosen_by_name(grid: Grid, cells: list[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells that have, on each axis with some of these names, one of them; an InputError for an
    unknown name.
    """
    unknown = set(only) - {name for axis in grid.axes.values() for name in axis}
    if unknown:
        known = ", ".join(name for axis in grid.axes.values() for name in axis)
        raise InputError(
            f"--only must name values of an axis, {known}; got {', '.join(sorted(unknown))}"
        )
    for at, axis in enumerate(grid.axes.values()):
        kept = axis.keys() & {*only}
        cells = [one for one in cells if not kept or one.names[at] in kept]
    return cells


class _Asked:
    def __init__(self) -> None:
        self.runs: Path | None = None
        self.only: list[str] = []
        self.seeds: list[int] = []
        self.table = False
        self.written: dict[str, str] = {}


def _parse(args: list[str], asked: _Asked, options: list[str]) -> None:
    """Sort the arguments into those of this command and those of ``ltr fit``."""
    groups: list[list[str]] = []
    for word in args:
        if word.startswith("--") or not groups:
            groups.append(word.split("=", 1) if word.startswith("--") and "=" in word else [word])
        else:
            groups[-1].append(word)
    for name, *values in groups:
        if name == "--runs" and len(values) == 1:
            asked.runs = Path(values[0])
        elif name == "--only" and values:
            asked.only += values
        elif name == "--seeds" and values and all(one.isdecimal() for one in values):
            asked.seeds += map(int, values)
        elif name == "--table" and not values:
            asked.table = True
        elif name.removeprefix("--") in WRITTEN and len(values) == 1:
            asked.written[name.removeprefix("--")] = values[0]
        elif (
            name in ("--wandb", "--init_from") or (name.startswith("--") and "." in name)
        ) and len(values) == 1:
            options += [name, *values]
        else:
            raise InputError(
                f"ltr grid does not know {' '.join([name, *values])!r}; ltr grid --help says what it takes"
            )


def _train(grid: Grid, cells: Sequence[Cell], root: Path, options: list[str], table: bool) -> None:
    """Make the cells that are not there; wait for those that other processes make."""
    missing = [cell for cell in cells if not _is_done(grid, cell, root / cell.folder, options)]
    if table:
        return
    _check(grid, missing, options)
    busy = list[Cell]()
    failed = list[str]()

    def make(cell: Cell, wait: bool) -> None:
        try:
            if not _made(grid, cell, root, options, wait):
                busy.append(cell)
        except (
            InputError
        ) as error:  # the others are made all the same: it may be the middle of the night
            print(f"{root / cell.folder}: {error}", file=sys.stderr, flush=True)
            failed.append(str(cell.folder))

    for number, cell in enumerate(missing, start=1):
        print(f"{root / cell.folder} ({number} of {len(missing)})", flush=True)
        make(cell, wait=False)
    for cell in busy:
        print(f"{root / cell.folder}: another process works on it; waiting", flush=True)
        make(cell, wait=True)
    if failed:
        text = f"{len(failed)} of {len(missing)} runs failed, see above: {', '.join(failed)}"
        raise InputError(f"{root}: {text}; called again, ltr grid makes these alone")


def _check(grid: Grid, cells: Sequence[Cell], options: list[str]) -> None:
    """Parse the options of each experiment before the first is trained: the last one would be
    refused hours later.
    """
    if not cells:
        return
    from ltr.cli.command import metrics_of  # Lightning takes seconds to import

    for cell in {cell.experiment: cell for cell in cells}.values():
        try:
            measured = metrics_of([*_fit(grid, cell), *options])
        except Exception as error:
            if (told := one_line(error)) is None:
                raise
            raise InputError(
                f"{grid.name}: {cell.experiment} would be refused, so nothing was trained: {told}"
            ) from None
        if unknown := [metric for metric in grid.metrics if metric not in measured]:
            text = f"metrics must be among those of model.metrics, {', '.join(measured)}; got {', '.join(unknown)}"
            raise InputError(f"{grid.name}: {text} ({cell.experiment}); nothing was trained")


def _fit(grid: Grid, cell: Cell) -> list[str]:
    return ["fit", *(word for file in grid.base for word in ("--config", str(file))), *cell.words()]


def _made(grid: Grid, cell: Cell, root: Path, options: list[str], wait: bool) -> bool:
    """Train and test a cell, unless another process does."""
    folder = root / cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".cell", timeout=-1 if wait else 0, poll_interval=0.5):
            if _is_done(grid, cell, folder, options):  # by now
                return True
            write_whole(
                RunFolder(folder).cell, [json.dumps(_content(grid, cell, options), indent=1), "\n"]
            )
            where = ["--trainer.default_root_dir", str(folder), "--seed_everything", str(cell.seed)]
            call([*_fit(grid, cell), *where, *options, "--ckpt_path", "last"])
            call(["test", str(folder)])
            return True
    except Timeout:
        return False


def _content(grid: Grid, cell: Cell, options: list[str]) -> dict[str, Any]:
    """What makes the cell what it is."""
    return {
        "base": [file.read_text() for file in grid.base],
        "options": cell.words() + options,
        "seed": cell.seed,
    }


def _is_done(grid: Grid, cell: Cell, folder: Path, options: list[str]) -> bool:
    """Whether a cell was trained and tested.

    Raises:
        InputError: if the run there is of another grid file, of other options, or of no grid.
    """
    run = RunFolder(folder)
    file = run.cell
    if not run.config.is_file():  # nothing was trained: a cell that was refused may be mended
        return False
    if not file.is_file():
        raise InputError(
            f"{folder} holds a run that no grid has made; name another folder (--runs)"
        )
    try:
        then = _deciding(json.loads(file.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError):
        then = {}
    now = _deciding(_content(grid, cell, options))
    if differ := sorted(
        name for name in then.keys() | now.keys() if then.get(name) != now.get(name)
    ):
        text = f"{folder} was made by other options than {grid.name} has now ({', '.join(differ)})"
        raise InputError(f"{text}; remove it, or name another folder (--runs)")
    # An interrupted test is made again.
    return is_tested(folder) and run.ranking.is_file() and _is_trained(folder)


def _deciding(content: Mapping[str, Any]) -> dict[str, Any]:
    """What changes a cell's result: the base's files, and each option as it was said last, with
    what ``--option+`` has added.
    """
    words = content["options"]
    said = dict[str, list[str]]()
    for name, value in zip(words[::2], words[1::2], strict=True):
        option = name.removesuffix("+")
        said[option] = [*said.get(option, ["base"]), value] if name.endswith("+") else [value]
    return {"base": content["base"], "seed": content["seed"]} | {
        k: v for k, v in said.items() if k not in FREE
    }


def _is_trained(folder: Path) -> bool:
    """Whether a run has reached its end. Where its last weights were removed, its results stand;
    where they are damaged, not.
    """
    # torch takes seconds to import
    from ltr.checkpoint import read_checkpoint
    from ltr.run.folder import RunFolder
    from ltr.run.progress import finished_message

    run = RunFolder(folder)
    if not run.last.is_file():
        return True
    trainer = (read_yaml(run.config) or {})["trainer"]
    epochs, steps, time = (trainer[name] for name in ("max_epochs", "max_steps", "max_time"))
    if isinstance(time, str) and time.startswith("{"):
        time = yaml.safe_load(time)  # the parser dumps a mapping as text
    with suppress(InputError):
        return (
            finished_message(read_checkpoint(run.last, quick=True), epochs, steps, time) is not None
        )
    return False


def _chosen(grid: Grid, tried: Sequence[Cell], cells: Sequence[Cell], root: Path) -> list[Cell]:
    """Of the cells that differ on the chosen axis alone, those of the value that was best on dev
    with the first seed.
    """
    from ltr.run.checkpoints import Best
    from ltr.run.folder import RunFolder

    best: dict[tuple[str, ...], tuple[float, Cell]] = {}
    for cell in tried:
        folder = RunFolder(root / cell.folder)
        if not folder.ranking.is_file():
            raise InputError(
                f"{folder.path} is not there yet, so nothing can be chosen; leave out --table to make it"
            )
        if not folder.best.is_file():
            raise InputError(
                f"{folder.path} has no best.ckpt, so nothing can be chosen on dev; it wants a dev split and best.monitor"
            )
        monitor = (read_yaml(folder.config) or {})["best"]["monitor"]
        value = max(folder.kept_scores(monitor).values())
        if grid.rival(cell) not in best or value > best[grid.rival(cell)][0]:
            best[grid.rival(cell)] = (value, cell)
        sign = Best(monitor).sign
        print(f"{cell.experiment}: {monitor} {sign * value:.4f} with seed {cell.seed}")
    names = {cell.names for _, cell in best.values()}
    print(
        "chosen on dev:", ", ".join(str(cell.experiment) for _, cell in best.values()), flush=True
    )
    return [cell for cell in cells if cell.names in names]


def _compare(
    grid: Grid, cells: Sequence[Cell], root: Path, options: list[str], written: Mapping[str, str]
) -> None:
    there = [cell for cell in cells if _is_done(grid, cell, root / cell.folder, options)]
    missing = (
        [f"{len(cells) - len(there)} of {len(cells)} runs are not there yet"]
        if len(there) < len(cells)
        else []
    )
    if not there:
        raise InputError(f"{root}: {missing[0]}, so there is nothing to compare")
    runs = experiments([str(root / cell.folder) for cell in there])
    combinations = list(dict.fromkeys(cell.names for cell in there))
    name_of = {one.runs[0].folder.parent: one.name for one in runs}
    names = [name_of[root / Cell(own, {}, 0).experiment] for own in combinations]
    pairs, alone = grid.pairs(combinations)
    found = compare(runs, grid.metrics, [(names[one], names[other]) for one, other in pairs])
    tell(runs, found, written=written, missing=[*missing, *alone])
