"""Which look a comparison is, by the seeds and the budgets of its runs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ltr.compare.comparison import compare
from ltr.compare.experiment import Experiment
from ltr.compare.looked_at import look_at, notes_on_looks
from ltr.compare.looks import Look
from ltr.compare.query_groups import Groups
from ltr.compare.statistics import estimate_over_sets
from ltr.compare.tested_run import Run
from tests.world.tested_runs import report_of

BUDGET = (5, 0, 3, 1)


def experiment(name: str, values: np.ndarray, seeds: Sequence[int], *budgets) -> Experiment:
    """Of values ``[S, Q]`` by seed, and the budget of each run, or one of all."""
    runs = []
    for number, (seed, of_seed) in enumerate(zip(seeds, values, strict=True)):
        by_query = {f"q{n}": float(value) for n, value in enumerate(of_seed)}
        report = report_of("AP", float(of_seed.mean()))
        budget = budgets[number % len(budgets)]
        runs.append(
            Run(Path(name), seed, {}, {"test": report}, {"AP": by_query}, "test", None, budget)
        )
    return Experiment(name, runs)


def made(seeds: Sequence[int], *budgets) -> Experiment:
    return experiment("x", np.zeros((len(seeds), 4)), seeds, *budgets)


@pytest.mark.parametrize(
    ("first", "second", "look"),
    [
        (made([0, 5], BUDGET), made([5, 0], BUDGET), Look(2, 4)),
        (made([0, 1, 3, 5], BUDGET), made([0, 1, 3, 5], BUDGET), Look(4, 4)),
        # What was left of the budget was trained by ltr grid alone.
        (made([5, 0, 3], BUDGET, BUDGET, ()), made([5, 0, 3], BUDGET), Look(3, 4)),
        (made([0, 1], BUDGET), made([0, 1], BUDGET), None),  # not the first two
        (made([0, 5], BUDGET), made([0, 5, 3], BUDGET), None),
        (made([0, 5], BUDGET), made([0, 5], ()), None),
        (made([0, 5], BUDGET), made([0, 5], (0, 5)), None),
        (made([0, 5], BUDGET, (0, 5)), made([0, 5], BUDGET), None),
        (made([0, 1, 3, 5, 6], BUDGET), made([0, 1, 3, 5, 6], BUDGET), None),  # one too many
    ],
)
def test_a_look_is_of_the_first_seeds_of_one_budget_and_all_else_is_said(first, second, look):
    assert look_at(first, second) == look
    (note,) = notes_on_looks([(first, second), (first, second)])
    assert ("p counts no looks" in note) == (look is None)


def test_one_seed_and_seeds_that_nobody_looked_at_are_no_look():
    for pair in ((made([5], BUDGET), made([5], BUDGET)), (made([0, 5], ()), made([0, 5], ()))):
        assert look_at(*pair) is None and notes_on_looks([pair]) == []


def test_a_baseline_of_one_seed_is_compared_with_looked_at_seeds_without_a_look():
    one = made([0], ())
    for pair in ((made([5, 0], BUDGET), one), (one, made([5, 0], BUDGET))):
        assert look_at(*pair) is None
        (note,) = notes_on_looks([pair])
        assert "p counts no looks" in note
    assert notes_on_looks([(made([5], BUDGET), made([0, 1], ()))]) == []


def test_the_note_names_the_alpha_whose_level_it_says():
    (note,) = notes_on_looks([(made([0, 5], BUDGET), made([0, 5], BUDGET))])
    assert f"held against {Look(2, 4).level(0.05):.2g} here for an alpha of 0.05" in note


def test_the_mean_over_sets_counts_the_looks_too():
    rng = np.random.default_rng(0)
    seeds = BUDGET[:3]
    base = [rng.uniform(0.2, 0.6, (3, n)) for n in (12, 20)]
    new = [values + 0.1 + rng.normal(0, 0.02, values.shape) for values in base]
    sets = {}
    for number, values in enumerate(zip(base, new, strict=True)):
        sets[f"s{number}"] = [
            experiment(name, of_set, seeds, BUDGET)
            for name, of_set in zip(("base", "new"), values, strict=True)
        ]
    (result,) = compare(Groups("set", sets))
    (of_mean,) = result.over_sets.comparisons
    look = Look(3, 4)
    alone = estimate_over_sets(new, base)
    assert of_mean.look == look
    assert of_mean.p == look.repeated_p(look.cautious(alone).p) > alone.p
    for of_set in result.groups.values():
        assert of_set.comparisons[0].look == look
        assert of_set.comparisons[0].p > of_set.comparisons[0].difference.p
