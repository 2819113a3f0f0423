"""A run that was made again: the verdict on each of its numbers."""

from pathlib import Path

import pytest

from ltr.compare.reproduction import other_seeds, reproduction_lines
from ltr.compare.tested_run import Run
from ltr.errors import InputError
from tests.world.tested_runs import write_run


def run_of(value, **evaluated):
    test = {"AP": value, "conventions": {"AP": ""}, "evaluated": evaluated}
    return Run(Path("x"), 0, {}, {"test": test}, {})


@pytest.mark.parametrize(
    "now, verdict",
    [
        (0.5, "same"),
        (0.5 + 5e-7, "same"),
        # Of 0.5, 0.52 and 0.54: mean 0.52, deviation 0.02, and t(0.975, 2) = 4.3027 times 0.02
        # times sqrt(4/3) = 0.0994.
        (0.61, "within seeds (0.5200 ± 0.0994)"),
        (0.62, "not within seeds (0.5200 ± 0.0994)"),
        (0.42, "not within seeds (0.5200 ± 0.0994)"),
        (0.43, "within seeds (0.5200 ± 0.0994)"),
    ],
)
def test_verdicts_by_hand(now, verdict):
    (line,) = reproduction_lines(run_of(0.5), run_of(now), [run_of(0.52), run_of(0.54)])
    assert line == f"AP: 0.5000 then, {now:.4f} now: {verdict}"


def test_other_data_is_no_reproduction():
    with pytest.raises(InputError, match="was tested on other data"):
        reproduction_lines(run_of(0.5, judgements="a"), run_of(0.5, judgements="b"), [])


def test_other_seeds_are_the_tested_seeds_of_the_same_experiment(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a/seed={seed}", [0.5] * 40, seed=seed)
    write_run(tmp_path / "a/seed=2", [0.5] * 40, seed=2, lr=0.2)
    write_run(tmp_path / "a/seed=3/reproduced", [0.5] * 40, seed=3)
    first = write_run(tmp_path / "a/first", [0.5] * 40)
    assert [run.seed for run in other_seeds(tmp_path / "a/seed=0")] == [1]
    assert other_seeds(first) == [], "its name does not say that it is a seed"
