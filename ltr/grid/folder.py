"""The runs of a grid in a folder: which cells are made, and how the others are."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import yaml
from filelock import FileLock, Timeout

from ltr.compare.tested_run import is_tested
from ltr.data.console import say
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.grid.definition import Cell, Grid
from ltr.run.config_file import read_config
from ltr.run.run_folder import RunFolder
from ltr.run.same_options import may_differ_for

# In the values of an option that --option+ adds to: stands for its value in the base's files.
IN_BASE = "base"

MEND = "remove the folder, or name another one (--runs)"


class CellContent(TypedDict):
    """What makes a cell what it is."""

    base: list[str]  # the text of each file
    options: list[str]  # names and values in turn
    seed: int
    until_shown: NotRequired[list[int]]  # the seeds of the budget, in their order


@dataclass(frozen=True)
class GridFolder:
    """The runs of a grid, ``root/<value on each axis>/seed=<n>``. Several processes may make them at
    once and share the work.

    Args:
        grid: what its file says.
        root: the folder.
        fit_options: of ``ltr fit`` for all cells, as the command line takes them, beside those of
            the file: names and values in turn.
        budget: the seeds that may be trained, in this order, where somebody looks after each; empty:
            all are trained before anybody looks. It lies in each run, and can't be another one later.
    """

    grid: Grid
    root: Path
    fit_options: Sequence[str] = ()
    budget: tuple[int, ...] = ()

    def run_folder(self, cell: Cell) -> RunFolder:
        """Where a cell lies, or will."""
        return RunFolder(self.root / cell.folder)

    def fit_words(self, cell: Cell) -> list[str]:
        """The command that trains a cell, but for its folder and its seed."""
        words = ["fit"]
        for file in self.grid.base:
            words += ["--config", str(file)]
        return [*words, *cell.words(), *self.fit_options]

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that are not made yet."""
        return [cell for cell in cells if not self.is_made(cell)]

    def is_made(self, cell: Cell) -> bool:
        """Whether a cell was trained and tested.

        Raises:
            InputError: if the run there is of another grid file, of other options, or of no grid.
        """
        run = self.run_folder(cell)
        # Without a configuration nothing was trained. A cell.json may be there, perhaps of other
        # options; it will be written anew.
        if not run.config.is_file():
            return False
        self._check_same_options(run, cell)
        # An interrupted test lacks one of its files. A run that was tested and has steps left to train
        # has results of weights that are not its last.
        has_results = is_tested(run.path) and run.test_run.is_file()
        return has_results and _reached_its_end(run)

    def _check_same_options(self, run: RunFolder, cell: Cell) -> None:
        """Check that a run was made by the options that its cell has now."""
        now = decisive_options(self.content(cell))
        made_of = _made_of(run)
        if len(made_of["options"]) % 2:
            raise InputError(
                f"{run.grid_cell}: the file is damaged, each of the options must have a value; {MEND}"
            )
        then = decisive_options(made_of)
        differing = [name for name in now.keys() | then.keys() if now.get(name) != then.get(name)]
        if differing:
            names = ", ".join(sorted(differing))
            raise InputError(
                f"{run.path} was made by other options than {self.grid.name} has now ({names}); remove it, or name another folder (--runs)"
            )

    def check_budget(self, cells: Sequence[Cell]) -> None:
        """Check that what is trained of the experiments of cells, with whatever seeds, was made for the
        looks that the grid has now. Levels of looks hold for a budget that was decided before the
        first one: whoever adds another budget of other seeds looks again and again.

        Raises:
            InputError: if a run was made for another budget, or for none.
        """
        for experiment in dict.fromkeys(cell.experiment for cell in cells):
            self._check_budget_of(experiment)

    def _check_budget_of(self, experiment: Path) -> None:
        """See :meth:`check_budget`; of the folder of one experiment."""
        for_looks = list[RunFolder]()
        for_none = list[RunFolder]()
        for path in sorted((self.root / experiment).glob("seed=*")):
            run = RunFolder(path)
            if not run.config.is_file():
                continue  # nothing was trained
            made_for = _made_of(run).get("until_shown")
            if made_for is None:
                for_none.append(run)
            elif made_for == [*self.budget]:
                for_looks.append(run)
            else:
                raise InputError(
                    f"{run.path} was made with a budget of the seeds {_in_words(made_for)}, and that is {_in_words(self.budget)} now; a budget must stay as it was before the first look: give these seeds, or name another folder (--runs)"
                )
        if for_none and for_looks:
            raise InputError(
                f"{for_none[0].path} was made without --until_shown, and {for_looks[0].path} with it: no look ends a grid of which more was trained than its looks asked for; leave out --until_shown to train and compare all seeds, or compare the runs that are there (ltr compare)"
            )
        if for_none:
            raise InputError(
                f"{for_none[0].path} was made without --until_shown, so somebody may have looked at it before the budget was decided; name another folder (--runs)"
            )

    def content(self, cell: Cell) -> CellContent:
        """What lies in the cell's run folder, in ``cell.json``."""
        content: CellContent = {
            "base": [file.read_text() for file in self.grid.base],
            "options": [*cell.words(), *self.fit_options],
            "seed": cell.seed,
        }
        if self.budget:
            content["until_shown"] = [*self.budget]
        return content

    def make(self, cells: Sequence[Cell], run_command: Callable[[list[str]], None]) -> None:
        """Train and test cells; wait for those that other processes make.

        Where a run fails, the others are made all the same: it may be the middle of the night.

        Args:
            cells: in this order.
            run_command: runs a command of ltr, given by its words, and waits for it. It raises an
                InputError where the command fails.

        Raises:
            InputError: in the end, if some failed.
        """
        elsewhere = list[Cell]()  # another process works on them
        failed = list[str]()

        def try_cell(cell: Cell, wait: bool) -> None:
            try:
                if not self._train_and_test(cell, run_command, wait):
                    elsewhere.append(cell)
            except InputError as error:
                say(f"{self.run_folder(cell).path}: {error}", to=sys.stderr)
                failed.append(str(cell.folder))

        for number, cell in enumerate(cells, start=1):
            say(f"{self.run_folder(cell).path} ({number} of {len(cells)})")
            try_cell(cell, wait=False)
        for cell in list(elsewhere):
            say(f"{self.run_folder(cell).path}: another process works on it; waiting")
            try_cell(cell, wait=True)
        if failed:
            raise InputError(
                f"{self.root}: {len(failed)} of {len(cells)} runs failed, see above: {', '.join(failed)}; called again, ltr grid makes these alone"
            )

    def _train_and_test(
        self, cell: Cell, run_command: Callable[[list[str]], None], wait: bool
    ) -> bool:
        """Train and test a cell; False where another process does, and nobody is to wait for it."""
        run = self.run_folder(cell)
        run.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(run.path / ".cell", timeout=-1 if wait else 0, poll_interval=0.5):
                if self.is_made(cell):  # by now
                    return True
                content = self.content(cell)
                # Somebody may have looked at what is trained, and whoever ends it need not look.
                if run.config.is_file() and "until_shown" in (made_of := _made_of(run)):
                    content["until_shown"] = made_of["until_shown"]
                write_whole(run.grid_cell, [json.dumps(content, indent=1), "\n"])
                where = ["--trainer.default_root_dir", str(run.path)]
                seed = ["--seed_everything", str(cell.seed)]
                run_command([*self.fit_words(cell), *where, *seed, "--ckpt_path", "last"])
                run_command(["test", str(run.path)])
                return True
        except Timeout:
            return False

    def chosen_on_dev(self, cells: Sequence[Cell]) -> list[Cell]:
        """Of the cells that differ on the chosen axis alone, the one that is best on dev.

        Raises:
            InputError: if one is not made, or kept no best weights.
        """
        from ltr.run.checkpoint_options import BestOptions  # torch takes seconds to import

        # Score and cell of the best, by the names that its rivals share.
        best_of: dict[tuple[str, ...], tuple[float, Cell]] = {}
        for cell in cells:
            run = self.run_folder(cell)
            if not run.test_run.is_file():
                raise InputError(
                    f"{run.path} is not there yet, so nothing can be chosen; leave out --table to make it"
                )
            if not run.best.is_file():
                raise InputError(
                    f"{run.path} has no best.ckpt, so nothing can be chosen on dev; it wants a dev split and best.monitor"
                )
            monitor = read_config(run.config).get("best", {}).get("monitor")
            scores = run.kept_scores(monitor)
            if not scores:
                raise InputError(
                    f"{run.best} has no score by {monitor}, so nothing can be chosen on dev; remove {run.path} to train it again"
                )
            # The greatest score is the best: kept scores of a metric of which less is better are
            # negated.
            score = max(scores.values())
            measured = BestOptions(monitor).sign * score  # the metric itself
            say(f"{cell.experiment}: {monitor} {measured:.4f} with seed {cell.seed}")
            rivals = self.grid.names_but_chosen(cell.names)
            if rivals not in best_of or score > best_of[rivals][0]:
                best_of[rivals] = (score, cell)
        chosen = [cell for _, cell in best_of.values()]
        names = ", ".join(str(cell.experiment) for cell in chosen)
        say("chosen on dev:", names)
        return chosen


def _made_of(run: RunFolder) -> CellContent:
    """What a trained run was made of.

    Raises:
        InputError: if no grid has made it.
    """
    if not run.grid_cell.is_file():
        raise InputError(
            f"{run.path} holds a run that no grid has made; name another folder (--runs)"
        )
    content = read_json(run.grid_cell, MEND)
    check_entries(content, CellContent, run.grid_cell, MEND)
    return cast(CellContent, content)


def _in_words(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def decisive_options(content: Mapping[str, Any]) -> dict[str, Any]:
    """What changes a cell's result: the base's files, and each option as it was said last, with
    what ``--option+`` has added.
    """
    words = content["options"]
    values_of = dict[str, list[str]]()
    for name, value in zip(words[::2], words[1::2], strict=True):
        option = name.removesuffix("+")
        if name.endswith("+"):
            values_of[option] = [*values_of.get(option, [IN_BASE]), value]
        else:
            values_of[option] = [value]
    deciding: dict[str, Any] = {"base": content["base"], "seed": content["seed"]}
    for name, values in values_of.items():
        # Those who may find another value of it.
        if "cell" not in may_differ_for(name.removeprefix("--")):
            deciding[name] = values
    return deciding


def _reached_its_end(run: RunFolder) -> bool:
    """Whether a run has done all its steps. Where its last weights were removed, its results stand;
    where they are damaged, not.
    """
    # Lightning takes seconds to import.
    from ltr.checkpoint import check_resumable, read_checkpoint
    from ltr.run.which_checkpoint import Limits, finished_message

    if not run.last.is_file():
        return True
    trainer = read_config(run.config)["trainer"]
    max_time = trainer.get("max_time")
    if isinstance(max_time, str) and max_time.startswith("{"):
        max_time = yaml.safe_load(max_time)  # the parser dumps a mapping as text
    with suppress(InputError):
        checkpoint = read_checkpoint(run.last, checksums=False)
        check_resumable(checkpoint, run.last)
        limits = Limits(trainer.get("max_epochs"), trainer.get("max_steps", -1), max_time)
        return finished_message(checkpoint, limits) is not None
    return False
