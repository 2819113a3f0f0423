"""Experiments are compared over queries and seeds."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.compare.comparison import pairs_with_baselines
from ltr.compare.statistics import estimate, holm, randomisation_p
from ltr.errors import InputError
from tests.world.tested_runs import CONVENTION, compared_in_one_group, write_run


def values_of(folder: Path) -> np.ndarray:
    """``[3, Q]`` of the three seeds of a folder."""
    rows = []
    for seed in range(3):
        lines = (folder / f"seed={seed}/per_query.tsv").read_text().splitlines()[1:]
        rows.append([float(line.split("\t")[1]) for line in lines])
    return np.array(rows)


def test_experiments_are_compared_with_the_first_one(runs):
    (found,) = compared_in_one_group(["runs/base", "runs/good", "runs/same"])
    assert (found.metric, found.n_queries, found.convention) == ("AP", 40, CONVENTION)
    base, good, same = (values_of(runs / name) for name in ("base", "good", "same"))
    for row, own in zip(found.rows, (base, good, same), strict=True):
        assert row.estimate == estimate(own)
        assert row.deviation == pytest.approx(own.mean(axis=1).std(ddof=1))
        assert (row.start, row.ceiling, row.seconds) == (pytest.approx(0.4), 0.9, 11.0)
    expected = holm([estimate(one, base).p for one in (good, same)])
    for one, own, corrected in zip(found.comparisons, (good, same), expected, strict=True):
        by_query = own.mean(axis=0) - base.mean(axis=0)
        assert (one.baseline, one.difference) == ("base", estimate(own, base))
        assert one.has_several_seeds
        assert one.corrected == corrected and one.p_models == randomisation_p(by_query)
        assert one.effect == pytest.approx(by_query.mean() / by_query.std(ddof=1))
        assert (one.wins, one.ties, one.losses) == ((by_query > 0).sum(), 0, (by_query < 0).sum())
        assert one.detectable == one.difference.detectable(0.05 / 2)
    assert [one.verdict for one in found.comparisons] == [
        "better",
        f"not shown (this data could show a difference of {found.comparisons[1].detectable:.3f})",
    ]


def test_several_baselines_and_metrics_are_one_family_and_no_pair_is_counted_twice(runs):
    pairs = pairs_with_baselines(["base", "good", "same"], ["good", "runs/base"])
    (found,) = compared_in_one_group(["runs/*"], pairs=pairs)
    compared = [(one.name, one.baseline) for one in found.comparisons]
    assert compared == [("base", "good"), ("same", "good"), ("same", "base")]
    assert found.comparisons[0].verdict == "worse"
    corrected = [one.corrected for one in found.comparisons]
    assert corrected == holm([one.p for one in found.comparisons])


def compared_two(*folders):
    """Two experiments, and how the second differs from the first."""
    (found,) = compared_in_one_group([str(folder) for folder in folders])
    (one,) = found.comparisons
    return found, one


def test_rounding_is_no_difference(tmp_path):
    """The same values under other seeds in another order: the mean differs in its last bit, and no
    query in anything.
    """
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, (3, 40)).round(6)
    for name, order in (("x", (0, 1, 2)), ("y", (2, 0, 1))):
        for seed, at in enumerate(order):
            write_run(tmp_path / name / f"seed={seed}", values[at], seed=seed)
    for seed in range(2):
        write_run(tmp_path / f"z/seed={seed}", np.full(40, 0.1), seed=seed)
    for seed in range(3):
        write_run(tmp_path / f"w/seed={seed}", np.full(40, 0.1), seed=seed)
    for first, second in (("x", "y"), ("z", "w")):
        _, one = compared_two(tmp_path / first, tmp_path / second)
        assert (one.wins, one.ties, one.losses) == (0, 40, 0)
        assert (one.verdict, one.p, one.p_models) == ("equal", 1.0, 1.0)


def test_few_seeds_against_many_are_said_and_one_seed_can_be_planned_with(runs, capsys):
    rng = np.random.default_rng(1)
    for seed in range(5):
        write_run(runs / f"many/seed={seed}", rng.uniform(0.2, 0.6, 40), seed=seed, loss="many")
    shutil.rmtree(runs / "base/seed=2")
    assert main(["compare", "runs/base", "runs/many"]) == 0
    said = "2 and 5 seeds are compared: false differences are then likelier"
    assert said in capsys.readouterr().out
    shutil.rmtree(runs / "base/seed=1")
    assert main(["compare", "runs/base", "runs/many", "--plan", "0.01"]) == 0
    assert "for these models" in capsys.readouterr().out


def test_few_seeds_against_many_are_said_of_the_pairs_that_are_compared(tmp_path):
    rng = np.random.default_rng(0)
    numbers = {"one": 1, "two": 2, "pair": 2, "three": 3, "five": 5, "six": 6, "seven": 7}
    for name, n_seeds in numbers.items():
        for seed in range(n_seeds):
            folder = tmp_path / name / f"seed={seed}"
            write_run(folder, rng.uniform(0.2, 0.6, 40), seed=seed, loss=name)

    def notes(*pairs):
        notes = compared_in_one_group([str(tmp_path)], pairs=pairs)[0].notes
        of_few = [note for note in notes if "decided before the first look" in note]
        assert bool(of_few) == any("one" not in pair for pair in pairs)
        return [note[:20] for note in notes if note not in of_few]

    assert notes(("one", "five"), ("two", "five"), ("two", "three")) == ["2 and 5 seeds are co"]
    assert notes(("seven", "three"), ("three", "six")) == ["3 and 7 seeds are co"]
    assert notes(("seven", "three"), ("two", "five")) == ["2 and 5, 3 and 7 see"]
    assert notes(("pair", "two"), ("six", "three"), ("one", "five")) == []


def test_few_queries_without_variance_show_nothing(tmp_path, monkeypatch):
    """Three queries, one value: of eight sign flips two are as far from 0."""
    monkeypatch.setattr("tests.world.tested_runs.QUERIES", ["q0", "q1", "q2"])
    for name, value in (("low", 0.0), ("high", 1.0)):
        for seed in range(2):
            write_run(tmp_path / f"{name}/seed={seed}", [value] * 3, seed=seed, loss=name)
    _, one = compared_two(tmp_path / "low", tmp_path / "high")
    assert (one.p, one.p_models) == (0.25, 0.25)
    assert one.verdict == "not shown (3 queries can't show any)"


def test_one_difference_on_all_queries_has_no_effect_size(tmp_path):
    """Its deviation is rounding alone, and would make an effect of 1e15."""
    low = np.linspace(0.1, 0.5, 40).round(2)
    write_run(tmp_path / "low", low, loss="low")
    write_run(tmp_path / "high", low + 0.1, loss="high")
    _, one = compared_two(tmp_path / "low", tmp_path / "high")
    assert np.isnan(one.effect) and one.wins == 40


def test_less_is_better_for_swapped_pairs(tmp_path):
    """The runs say which metrics these are."""
    rng = np.random.default_rng(0)
    options = {"name": "swapped_pairs", "report": {"lower_is_better": ["swapped_pairs"]}}
    for name, gain in (("a", 0), ("b", 3)):
        for seed in range(2):
            values = rng.normal(9 + gain, 0.1, 40)
            write_run(tmp_path / f"{name}/seed={seed}", values, seed=seed, loss=name, **options)
    _, one = compared_two(tmp_path / "a", tmp_path / "b")
    assert one.verdict == "worse" and one.difference.mean == pytest.approx(3, abs=0.1)
    assert one.effect < 0 and one.losses == 40


def test_one_seed_says_something_of_its_model_alone(runs):
    found, one = compared_two("runs/base/seed=0", "runs/good")
    assert not one.has_several_seeds and one.p == one.p_models
    assert one.verdict == "better (one seed: of these models alone)"
    assert found.rows[0].deviation is None
    copy = write_run(runs / "copy", values_of(runs / "base")[0])
    _, equal = compared_two("runs/base/seed=0", copy)
    assert equal.verdict == "equal (one seed: of these models alone)" and equal.p == 1.0


def test_a_query_without_a_value_is_left_out_for_all(runs):
    values = values_of(runs / "base")[0]
    values[3] = np.nan
    write_run(runs / "nan", values)
    (found,) = compared_in_one_group(["runs/nan", "runs/good"])
    assert found.n_queries == 39 and np.isfinite(found.comparisons[0].p)
    (note,) = found.notes
    assert note.startswith("1 of 40 queries have a value of AP in some runs and none in others")
    write_run(runs / "nan too", values)
    (found,) = compared_in_one_group(["runs/nan", "runs/nan too"])
    assert found.n_queries == 39 and not found.notes


def test_a_baseline_is_named_by_the_end_of_its_path_or_by_a_longer_path():
    names = ["x/base", "y/base", "good"]
    assert pairs_with_baselines(names, ["x/base"]) == [("y/base", "x/base"), ("good", "x/base")]
    assert pairs_with_baselines(["x/base", "good"], ["base"]) == [("good", "x/base")]
    assert pairs_with_baselines(["x/base", "good"], ["runs/x/base/"]) == [("good", "x/base")]
    assert pairs_with_baselines(["a", "x/a"], ["runs/x/a"]) == [("a", "x/a")]
    with pytest.raises(InputError, match="must be one of x/base, y/base, good, got 'base'"):
        pairs_with_baselines(names, ["base"])


def test_the_ceiling_is_that_of_all_seeds_and_below_1(tmp_path):
    for name, ceilings in (("agree", (0.9, 0.9)), ("differ", (0.8, 0.9)), ("none", (1.0, 1.0))):
        for seed, ceiling in enumerate(ceilings):
            report = {"ceiling": {"AP": ceiling}}
            folder = tmp_path / name / f"seed={seed}"
            write_run(folder, [0.5] * 40, seed=seed, loss=name, report=report)
    names = ("agree", "differ", "none")
    (found,) = compared_in_one_group([str(tmp_path / name) for name in names])
    assert [row.ceiling for row in found.rows] == [0.9, None, None]
