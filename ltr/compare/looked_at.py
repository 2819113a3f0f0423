"""Which look at a grid a comparison of its runs is, and what must be said of it."""

from collections.abc import Iterable

from ltr.compare.experiment import Experiment
from ltr.compare.looks import FIRST, Look


def look_at(first: Experiment, second: Experiment) -> Look | None:
    """The look that a comparison is, if ``ltr grid --until_shown`` trains the seeds of both one after
    the other, and has got equally far with them; else None.
    """
    budget = _budget(first, second)
    seeds = {run.seed for run in first.runs}
    is_same = seeds == {run.seed for run in second.runs}
    if len(seeds) < FIRST or not is_same or seeds != {*budget[: len(seeds)]}:
        return None
    return Look(len(seeds), len(budget))


def _budget(first: Experiment, second: Experiment) -> tuple[int, ...]:
    """The seeds that both may have; none where one was not made for looks, or for others."""
    budgets: list[tuple[int, ...]] = []
    for experiment in (first, second):
        # What a grid has left of its budget may have been trained without looks, by ltr grid alone.
        of_runs = {run.budget for run in experiment.runs if run.budget}
        budgets.append(of_runs.pop() if len(of_runs) == 1 else ())
    return budgets[0] if budgets[0] == budgets[1] else ()


def _is_looked_at(experiment: Experiment) -> bool:
    """Whether what its runs show may have decided how many they are; the first one always is there."""
    return len(experiment.runs) >= FIRST and any(run.budget for run in experiment.runs)


def notes_on_looks(pairs: Iterable[tuple[Experiment, Experiment]]) -> list[str]:
    """Notes on comparisons that are looks, and on those of their runs that are none."""
    notes = []
    for pair in pairs:
        look = look_at(*pair)
        if look is not None:
            notes.append(
                f"seeds were trained one after the other (ltr grid --until_shown), {look.n_seeds} of at most {look.budget}: p, verdicts and intervals of differences count a look after each; the p of one look alone would be held against {look.level(0.05):.2g} here for an alpha of 0.05"
            )
            continue
        if any(_is_looked_at(experiment) for experiment in pair):
            notes.append(
                "seeds were trained until a difference was shown (ltr grid --until_shown), and are compared in another way now: p counts no looks, and false differences are likelier than the level says; compare the same seeds of experiments of that grid"
            )
    return list(dict.fromkeys(notes))
