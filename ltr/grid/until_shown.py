"""A grid whose seeds are trained one after the other, until its differences are shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ltr.compare.comparison import MetricResult
from ltr.compare.group_result import Comparison
from ltr.compare.looks import FIRST, FUTILE
from ltr.data.console import say
from ltr.errors import InputError
from ltr.grid.compared_cells import ComparedCells
from ltr.grid.definition import Cell
from ltr.grid.folder import GridFolder

ALPHA = 0.05  # of all comparisons at all looks


@dataclass(frozen=True)
class Seen:
    """What a look sees of one comparison.

    Attributes:
        comparison: of two experiments.
        metric: by which.
        level: that ``difference.p`` is held against, by Holm's correction and the look.
        chance: that the last look shows the difference.
    """

    comparison: Comparison
    metric: str
    level: float
    chance: float

    @property
    def is_shown(self) -> bool:
        """Whether this look shows the difference."""
        return self.comparison.corrected <= ALPHA

    @property
    def is_futile(self) -> bool:
        """Whether the budget will hardly show it."""
        return not self.is_shown and self.chance < FUTILE

    @property
    def is_last(self) -> bool:
        """Whether the budget is spent."""
        return self.comparison.look is not None and self.comparison.look.is_last

    def __str__(self) -> str:
        comparison = self.comparison
        low, high = comparison.interval(self.metric)
        if self.is_shown or self.is_last:
            says = comparison.verdict.partition(" (")[0]
        else:
            says = f"{'futile' if self.is_futile else 'open'}, chance {self.chance:.2f}"
        return f"{comparison.name} − {comparison.baseline}, {self.metric} {comparison.difference.mean:+.4f} ({low:+.4f} to {high:+.4f}), p {comparison.difference.p:.2g}, level {self.level:.2g}: {says}"


def check_looks(folder: GridFolder, cells: Sequence[Cell]) -> None:
    """Raise an InputError where there is nothing to look at, one seed or one experiment, or where what
    is trained is of another budget.
    """
    if len(folder.budget) < FIRST:
        raise InputError(
            f"--until_shown needs a budget of two seeds or more, in the grid file or by --seeds, got {len(folder.budget)}; where each job has one seed, as in an array, leave it out, or give the whole grid to one job"
        )
    # One is chosen among those that share these names.
    rivals = {folder.grid.names_but_chosen(cell.names): cell.names for cell in cells}
    pairs, remarks = folder.grid.pairs_by_place(list(rivals.values()))
    if not pairs:
        reason = f" ({remarks[0]})" if remarks else ""
        raise InputError(
            f"--until_shown needs two experiments that are compared, got {len(rivals)}{reason}"
        )
    folder.check_budget(cells)


def cells_until_shown(
    folder: GridFolder,
    cells: Sequence[Cell],
    make: Callable[[GridFolder, Sequence[Cell]], None] | None,
) -> list[Cell]:
    """The cells of the first seeds, up to that whose look ends the grid. Nothing of a look is stored: each
    follows from the runs of its seeds, so a grid that is started again takes the same looks.

    Args:
        folder: with a budget.
        cells: of all seeds of the budget.
        make: trains and tests those that are missing; None: none is, and the last look is that before
            the first seed that is missing.

    Raises:
        InputError: where a run fails, or seeds were trained behind the look that ends the grid.
    """
    looked_at: list[Cell] = []
    for n_seeds, seed in enumerate(folder.budget, start=1):
        of_seed = [cell for cell in cells if cell.seed == seed]
        missing = folder.missing(of_seed)
        if missing and make is None:
            say(f"seed {seed} is not there yet, so this look is not the last one")
            return looked_at or of_seed
        if missing and make is not None:
            make(folder, missing)
            folder.check_budget(cells)  # another process may have trained others meanwhile
        looked_at += of_seed
        if n_seeds < FIRST:
            continue
        seen = seen_of(ComparedCells.of(folder, looked_at).results)
        for each in seen:
            say(f"{n_seeds} of {len(folder.budget)} seeds: {each}")
        if n_seeds < len(folder.budget) and all(each.is_shown or each.is_futile for each in seen):
            _check_nothing_behind(folder, cells, n_seeds)
            _say_end(seen, n_seeds, len(folder.budget))
            return looked_at
    say(f"ended after {len(folder.budget)} seeds: the budget is spent")
    return looked_at


def seen_of(results: Sequence[MetricResult]) -> list[Seen]:
    """What a look sees of each comparison. Those by all metrics are one family: in the order of their p
    each is held against the alpha that Holm's correction has for it.
    """
    compared = [
        (comparison, result.main.metric)
        for result in results
        for comparison in result.main.comparisons
    ]
    n = len(compared)
    places = sorted(range(n), key=lambda place: compared[place][0].p)
    rank_of = {place: rank for rank, place in enumerate(places)}
    seen = []
    for place, (comparison, metric) in enumerate(compared):
        look = comparison.look
        assert look is not None  # so are all runs of a grid with a budget compared
        alpha = ALPHA / (n - rank_of[place])
        chance = look.chance(comparison.difference, alpha)
        seen.append(Seen(comparison, metric, look.level(alpha), chance))
    return seen


def _check_nothing_behind(folder: GridFolder, cells: Sequence[Cell], n_seeds: int) -> None:
    """Check that no seed was trained behind the look that ends the grid: whoever sees more than a look
    must not decide by it alone.
    """
    behind = folder.budget[n_seeds:]
    for cell in cells:
        run = folder.run_folder(cell)
        if cell.seed in behind and run.config.is_file():
            raise InputError(
                f"{run.path} was trained, and the look at {n_seeds} seeds would have ended the grid before: the runs, the metrics or the experiments (--only) have changed since; leave out --until_shown to train and compare all seeds, or compare the runs that are there (ltr compare)"
            )


def _say_end(seen: Sequence[Seen], n_seeds: int, budget: int) -> None:
    n_futile = sum(each.is_futile for each in seen)
    if n_futile == 0:
        why = "every difference is shown" if len(seen) > 1 else "the difference is shown"
    else:
        what = "the difference" if len(seen) == 1 else f"{n_futile} of {len(seen)} differences"
        why = f"{what} would be shown by the whole budget with a chance below {FUTILE:g}"
    say(f"ended after {n_seeds} of {budget} seeds: {why}")
