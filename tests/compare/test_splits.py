"""Experiments on several splits: the change of a mean by hand and by laws, and the command."""

import csv
import io
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.compare.comparison import compare
from ltr.compare.csv_lines import as_csv
from ltr.compare.experiment import read_experiments
from ltr.compare.query_groups import Groups
from ltr.compare.statistics import estimate, estimate_of_change
from ltr.compare.tables import footnotes, tables
from tests.world import tested_runs
from tests.world.tested_runs import (
    QUERIES,
    edit_metrics,
    forget_test,
    refuses_to_compare,
    write_run,
)

N_LEAKED = 8  # the first queries of test are not in test.clean


def change(first, second, n_skipped: int):
    """The change from all queries to those after the first ones."""
    names = [f"q{n}" for n in range(np.shape(first)[1])]
    return estimate_of_change(np.array(first), np.array(second), names, names[n_skipped:])


def test_the_change_of_a_mean_by_hand():
    """Test has the values 1, 1/2, 1/2, 0, and the first query leaks: the mean falls from 1/2 to 1/3.
    By query, n/|B| (y − 1/3) − (x − 1/2) is −1/2, 2/9, 2/9 and 1/18, and their sum is 0. The sum of
    their squares is 114/324; over 3 it is their variance, over 4 that of the mean. One query is
    taken out: one degree of freedom.
    """
    found = change([[1.0, 0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]], 1)
    assert found.mean == pytest.approx(-1 / 6)
    assert found.query_variance == pytest.approx(114 / 324 / 3 / 4)
    assert found.freedom == pytest.approx(1) and found.seed_variances == ()
    low, high = found.interval()
    assert high - found.mean == pytest.approx(12.7062 * math.sqrt(38 / 1296), rel=1e-4)


def test_nothing_changes_where_nothing_is_taken_out():
    values = np.random.default_rng(0).random((3, 20))
    found = change(values, values, 0)
    assert found.mean == 0 and found.interval() == pytest.approx((0, 0), abs=1e-12)


def test_on_the_same_queries_it_is_the_paired_difference():
    """As where two splits judge the same queries otherwise."""
    first, second = np.random.default_rng(1).random((2, 1, 30))
    found = change(first, second, 0)
    paired = estimate(second - first)
    assert found.mean == pytest.approx(paired.mean)
    assert found.query_variance == pytest.approx(paired.query_variance)
    assert found.freedom == pytest.approx(29)


def test_on_splits_without_a_common_query_variances_add_up():
    """Up to the factor n/(n − 1) of the whole and (m − 1)/m of each part."""
    rng = np.random.default_rng(2)
    first, second = rng.random((1, 12)), 0.3 * rng.random((1, 30))
    names = [f"q{n}" for n in range(42)]
    found = estimate_of_change(first, second, names[:12], names[12:])
    parts = first.var(ddof=0) / 12 + second.var(ddof=0) / 30
    assert found.query_variance == pytest.approx(42 / 41 * parts)
    assert found.mean == pytest.approx(second.mean() - first.mean())
    assert found.query_freedom == 11, "as many as the smaller one has, less 1"


def test_the_order_of_queries_has_no_effect_and_the_direction_a_sign():
    values = np.random.default_rng(3).random((2, 9))
    names = list("abcdefghi")
    part = [7, 2, 5, 0]
    others = [names[place] for place in part]
    found = estimate_of_change(values, values[:, part], names, others)
    order = [4, 8, 0, 1, 7, 2, 6, 3, 5]
    reordered = [names[place] for place in order]
    shuffled = estimate_of_change(values[:, order], values[:, part], reordered, others)
    back = estimate_of_change(values[:, part], values, others, names)
    assert found.interval() == pytest.approx(shuffled.interval())
    assert back.mean == pytest.approx(-found.mean) and back.error == pytest.approx(found.error)


def test_a_seed_is_good_or_bad_on_both_splits():
    """A seed that is 0.1 better everywhere changes no change; one that is so on leaked queries does:
    the changes of the seeds are 0 and −0.05, of variance 0.00125, over 2 seeds.
    """
    values = np.full((2, 4), 0.5)
    assert change(values + [[0.0], [0.1]], values[:, 2:] + [[0.0], [0.1]], 2).seed_variances == (
        pytest.approx(0.0, abs=1e-15),
    )
    leaked = values + np.array([[0.0], [0.1]]) * [1, 1, 0, 0]
    assert change(leaked, leaked[:, 2:], 2).seed_variances == (pytest.approx(0.00125 / 2),)
    with pytest.raises(ValueError, match="the same seeds"):
        change(values, values[:1, 2:], 2)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.85])
def test_intervals_hold_the_truth(share):
    """Leaked queries are 0.2 easier: the mean of the others lies 0.2 · share below that of all."""
    rng = np.random.default_rng(4)
    names = [f"q{n}" for n in range(120)]
    hits = []
    for _ in range(600):
        leaks = rng.random(120) < share
        values = rng.beta(1, 1.5, (1, 120)) + 0.2 * leaks
        clean = np.flatnonzero(~leaks)
        if 0 < len(clean) < 120:
            found = estimate_of_change(values, values[:, clean], names, [names[n] for n in clean])
            low, high = found.interval()
            hits.append(low <= -0.2 * share <= high)
    assert len(hits) > 590 and 0.93 <= np.mean(hits) <= 0.995


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Three seeds of ``base`` and of ``good``, 0.1 better, on test and on test.clean; leaked queries
    are 0.2 easier. The working directory holds them as runs/.
    """
    rng = np.random.default_rng(0)
    hard = rng.uniform(0.2, 0.6, 40)
    hard[:N_LEAKED] += 0.2
    for name, gain in (("base", 0.0), ("good", 0.1)):
        for seed in range(3):
            values = np.round(hard + gain + rng.normal(0, 0.03, 40) + rng.normal(0, 0.01), 6)
            run = tmp_path / f"runs/{name}/seed={seed}"
            options = {"seed": seed, "loss": name}
            write_run(run, values, report={"checkpoint": "best.ckpt"}, **options)
            report = {"checkpoint": "best.ckpt", "evaluated": {"judgements": "clean"}}
            monkeypatch.setattr(tested_runs, "QUERIES", QUERIES[N_LEAKED:])
            place = run / "splits/test.clean"
            write_run(place, values[N_LEAKED:], report=report, start=None, **options)
            (place / "config.yaml").unlink()
            monkeypatch.setattr(tested_runs, "QUERIES", QUERIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


SPLITS = ("test", "test.clean")


def compared(metrics=()):
    runs = ["runs/base", "runs/good"]
    by_split = {split: read_experiments(runs, split=split) for split in SPLITS}
    return compare(Groups("split", by_split), metrics)


def test_both_splits_stand_side_by_side(both):
    (result,) = compared()
    n_queries = {split: found.n_queries for split, found in result.groups.items()}
    assert n_queries == {"test": 40, "test.clean": 32}
    _, means = tables([result])
    of_splits = ["test, 40 queries", "test.clean, 32 queries", "test.clean − test"]
    assert means.header == ["experiment", "seeds", *of_splits, "95 % interval"]
    for row in means.rows:
        (found,) = read_experiments([f"runs/{row[0]}"])
        values = found.values("AP", QUERIES)
        whole, clean = values.mean(), values[:, N_LEAKED:].mean()
        cells = [cell.split(" ")[0] for cell in row[2:5]]
        assert cells == [f"{whole:.4f}", f"{clean:.4f}", f"{clean - whole:+.4f}"]
        low, high = map(float, row[5].split(" to "))
        assert low < clean - whole < high


def test_the_comparisons_of_all_splits_are_one_family(both):
    (result,) = compared()
    p_values = [found.comparisons[0].p for found in result.groups.values()]
    corrected = [found.comparisons[0].corrected for found in result.groups.values()]
    assert min(corrected) == pytest.approx(2 * min(p_values))
    assert max(corrected) == pytest.approx(max(2 * min(p_values), max(p_values)))
    comparisons, _ = tables([result])
    assert [row[0] for row in comparisons.rows] == list(SPLITS)
    assert "Holm's correction over 2 comparisons" in " ".join(footnotes([result]))


def test_every_format_has_both_splits(both, capsys):
    files = {"markdown": "a.md", "latex": "a.tex", "csv": "a.csv", "html": "a.html"}
    options = [word for form, file in files.items() for word in (f"--{form}", file)]
    assert main(["compare", "runs/base", "runs/good", "--split", *SPLITS, *options]) == 0
    printed = capsys.readouterr().out
    for file in ("a.md", "a.html"):
        assert "test.clean − test" in Path(file).read_text()
    assert "test.clean − test" in printed and "test.clean $-$ test" in Path("a.tex").read_text()
    lines = list(csv.DictReader(io.StringIO(Path("a.csv").read_text())))
    assert [(line["split"], line["experiment"]) for line in lines] == [
        (split, name) for split in SPLITS for name in ("base", "good")
    ]
    assert [line["change"] for line in lines[:2]] == ["", ""]
    for first, second in ((lines[0], lines[2]), (lines[1], lines[3])):
        change = float(second["mean"]) - float(first["mean"])
        assert float(second["change"]) == pytest.approx(change)
        assert float(second["change_low"]) < change < float(second["change_high"])


def test_one_split_is_compared_as_test_is(both, capsys):
    words = ["compare", "runs/base", "runs/good"]
    assert main([*words, "--split", "test.clean", "--csv", "a.csv"]) == 0
    printed = capsys.readouterr().out
    assert "AP on test.clean against base" in printed and "AP on test.clean, 32 queries" in printed
    lines = list(csv.DictReader(io.StringIO(Path("a.csv").read_text())))
    assert [line["split"] for line in lines] == ["test.clean"] * 2
    assert main([*words, "--split", "test"]) == 0
    of_test = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == of_test and " on test" not in of_test


def test_csv_of_test_alone_has_no_split(runs):
    header = as_csv(tested_runs.compared(["runs"])).splitlines()[0]
    assert header.startswith("metric,experiment,")


def test_results_of_other_judgements_are_not_compared(both, capsys):
    place = both / "good/seed=1/splits/test.clean"
    edit_metrics(place, test={"evaluated": {"judgements": "of another threshold"}})
    words = ["runs/base", "runs/good", "--split", *SPLITS]
    told = refuses_to_compare(capsys, words, "were tested on other judgements")
    assert told.startswith("ltr: test.clean: ")


def set_checkpoint(runs: Path, checkpoint: str) -> None:
    for place in runs.glob("good/*/splits/test.clean"):
        edit_metrics(place, test={"checkpoint": checkpoint})


def not_tested(runs: Path) -> None:
    shutil.rmtree(runs / "good/seed=2/splits")


BAD = {
    "not tested there": (
        not_tested,
        [*SPLITS],
        "runs/good/seed=2: a run must have been tested on test.clean to be compared; ltr test runs/good/seed=2 --split test.clean",
    ),
    "other weights": (
        lambda runs: set_checkpoint(runs, "last.ckpt"),
        [*SPLITS],
        "was by best.ckpt on test and by last.ckpt on",
    ),
    "no split": (None, ["test", "nope"], "must have been tested on nope to be compared"),
    "a path": (None, ["../x"], "the name of a split must be letters"),
    "a plan": (None, [*SPLITS, "--plan", "0.1"], "--plan is of one split, got test, test.clean"),
    "sets": (None, [*SPLITS, "--data", "a", "b"], "--data is of one split, got test, test.clean"),
    "no name": (None, [], "--split"),
}


def test_the_same_weights_may_be_named_from_another_folder(both):
    set_checkpoint(both, "/elsewhere/checkpoints/best.ckpt")
    assert main(["compare", "runs/base", "runs/good", "--split", *SPLITS]) == 0


@pytest.mark.parametrize("name", BAD)
def test_what_can_t_be_compared_is_one_line(both, capsys, name):
    spoil, words, message = BAD[name]
    if spoil is not None:
        spoil(both)
    refuses_to_compare(capsys, ["runs/base", "runs/good", "--split", *words], message)


def test_a_run_that_was_measured_on_a_split_alone_is_a_run(both):
    forget_test(both / "base/seed=0")
    (found,) = read_experiments(["runs/base/seed=0"], split="test.clean")
    assert len(found.runs) == 1 and found.split == "test.clean"
