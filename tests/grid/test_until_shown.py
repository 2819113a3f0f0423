"""A grid whose seeds are trained one after the other: when it stops, what it says, what it refuses. No
cell is trained: a stand-in writes its results.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.compare.experiment import read_experiments
from ltr.compare.looks import Look
from ltr.compare.statistics import estimate
from ltr.errors import InputError
from tests.grid.grids import LOSSES, folder, write_grid  # noqa: F401
from tests.world.commands import refusal, run_ltr
from tests.world.tested_runs import QUERIES, compared_in_one_group, write_run

METRIC = "nDCG_exp@10"
GRID = "grid grids/losses.yaml --until_shown"
ROOT = Path("runs/losses")
SEEDS = [3, 1, 4, 5, 9, 2]  # in no order, so theirs is that of the file
THREE = {**LOSSES, "listnet": {"model.loss": "ltr.losses.ListNetLoss"}}


class StandIn:
    """Writes what ``ltr fit`` and ``ltr test`` would.

    Attributes:
        gains: by the name of an experiment; the others have none.
        made: the cells, in the order in which they were made.
        fails: a cell that refuses its input.
    """

    def __init__(self) -> None:
        self.gains: dict[str, float] = {}
        self.made: list[str] = []
        self.fails = ""

    def __call__(self, words: list[str], refusal_ends_program: bool) -> None:
        if words[0] == "test":
            return
        run = Path(words[words.index("--trainer.default_root_dir") + 1])
        seed = int(words[words.index("--seed_everything") + 1])
        cell = str(run.relative_to(ROOT))
        if cell == self.fails:
            raise InputError("ltr fit ended with code 2, see above")
        experiment = run.parent.name
        rng = np.random.default_rng([seed, *experiment.encode()])
        values = np.linspace(0.2, 0.6, len(QUERIES)) + self.gains.get(experiment, 0.0)
        values = values + rng.normal(0, 0.02) + rng.normal(0, 0.03, len(QUERIES))
        made = write_run(run / "made", values, seed=seed, name=METRIC, loss=f"Loss_{experiment}")
        shutil.copytree(made, run, dirs_exist_ok=True)
        shutil.rmtree(made)
        (run / "test.run").touch()
        self.made.append(cell)


@pytest.fixture
def stand_in(folder, monkeypatch):  # noqa: F811
    write_grid(folder, axes={"loss": LOSSES}, seeds=SEEDS)
    made = StandIn()
    monkeypatch.setattr("ltr.cli.grid.run_in_process", made)
    return made


def looks_of(told: str) -> list[str]:
    return [line for line in told.splitlines() if re.match(r"\d+ of \d+ seeds: ", line)]


def values_of(experiment: str, seeds: list[int]) -> np.ndarray:
    """``[S, Q]``, the seeds in this order."""
    (read,) = read_experiments([str(ROOT / experiment)])
    value_of = {run.seed: list(run.by_query[METRIC].values()) for run in read.runs}
    return np.array([value_of[seed] for seed in seeds])


def expected_looks(n_looks: int) -> list[bool]:
    """Whether each look shows that softmax differs from ranknet: by the p of each by itself."""
    shown = []
    for n_seeds in range(2, n_looks + 2):
        seeds = SEEDS[:n_seeds]
        difference = estimate(values_of("softmax", seeds), values_of("ranknet", seeds))
        look = Look(n_seeds, len(SEEDS))
        shown.append(look.cautious(difference).p <= look.level(0.05))
    return shown


def test_it_stops_at_the_first_look_that_shows_the_difference(stand_in, capfd):
    stand_in.gains = {"softmax": 0.1}
    assert run_ltr(GRID) == 0
    told = capfd.readouterr().out
    looks = looks_of(told)
    n_seeds = len(looks) + 1
    assert 2 < n_seeds < len(SEEDS)
    cells = [f"{loss}/seed={seed}" for seed in SEEDS[:n_seeds] for loss in LOSSES]
    assert stand_in.made == cells, "seed by seed, those of the file first"
    assert expected_looks(len(looks)) == [False] * (len(looks) - 1) + [True]
    level = Look(n_seeds, len(SEEDS)).level(0.05)
    assert looks[-1].startswith(f"{n_seeds} of 6 seeds: softmax − ranknet, {METRIC} +0.1")
    assert looks[-1].endswith(f", level {level:.2g}: better") and "open, chance" in looks[0]
    assert f"ended after {n_seeds} of 6 seeds: the difference is shown" in told
    # A second call takes the same looks, and trains nothing.
    assert run_ltr(GRID.replace("_", "-")) == 0
    assert looks_of(capfd.readouterr().out) == looks and stand_in.made == cells


def test_ltr_compare_counts_the_looks(stand_in, capfd):
    stand_in.gains = {"softmax": 0.1}
    assert run_ltr(GRID) == 0
    n_seeds = len(stand_in.made) // 2
    look = Look(n_seeds, len(SEEDS))
    both = [str(ROOT / loss) for loss in LOSSES]
    (result,) = compared_in_one_group(both)
    (found,) = result.comparisons
    seeds = SEEDS[:n_seeds]
    alone = estimate(values_of("softmax", seeds), values_of("ranknet", seeds))
    of_look = look.cautious(alone)
    assert found.look == look and found.verdict == "better"
    assert found.p == found.corrected == look.repeated_p(of_look.p) > alone.p
    assert found.interval(METRIC) == of_look.interval(1 - look.level(0.05))
    low, high = alone.interval()
    assert found.interval(METRIC)[0] < low < high < found.interval(METRIC)[1]
    assert found.detectable == of_look.detectable(look.level(0.05))
    (note,) = [note for note in result.notes if "one after the other" in note]
    assert f"{n_seeds} of at most 6" in note and f"{look.level(0.05):.2g}" in note
    assert not any("decided before the first look" in note for note in result.notes)
    # The interval of the gate is that of the look.
    bound = (found.interval(METRIC)[0] + low) / 2
    capfd.readouterr()
    with pytest.raises(SystemExit, match="3"):
        main(["compare", *both, "--gate", f"{METRIC} >= {bound:.5f} of ranknet"])
    assert f"{100 * (1 - look.level(0.05)):.3g} % interval" in capfd.readouterr().out
    # Other seeds are no look: p is that of one, and a line says so.
    shutil.rmtree(ROOT / f"softmax/seed={SEEDS[0]}")
    (result,) = compared_in_one_group(both)
    (found,) = result.comparisons
    assert found.look is None and found.p == found.difference.p
    assert any("p counts no looks" in note for note in result.notes)


@pytest.mark.long
def test_it_stops_where_the_budget_would_hardly_show_a_difference_and_may_go_on_all_the_same(
    stand_in, capfd
):
    assert run_ltr(GRID) == 0
    told = capfd.readouterr().out
    n_seeds = len(stand_in.made) // 2
    assert n_seeds < len(SEEDS) and "futile, chance 0." in looks_of(told)[-1]
    (result,) = compared_in_one_group([str(ROOT / loss) for loss in LOSSES])
    assert result.comparisons[0].verdict == f"not shown with {n_seeds} of 6 seeds"
    assert "would be shown by the whole budget with a chance below 0.15" in told
    assert run_ltr("grid grids/losses.yaml") == 0
    told = capfd.readouterr().out
    assert len(stand_in.made) == 12 and "6 of at most 6" in told
    behind = [f"{ROOT}/ranknet/seed={seed}" for seed in SEEDS[n_seeds:]]
    for words in (GRID, f"{GRID} --table"):
        line = refusal(capfd, words)
        assert (
            f"{min(behind)} was made without --until_shown, and {ROOT}/ranknet/seed=1 with" in line
        )
        assert "leave out --until_shown to train and compare all seeds, or compare the runs" in line
    assert len(stand_in.made) == 12


@pytest.mark.long
def test_the_page_trains_the_rest_by_the_command_that_it_names(stand_in, capfd):
    page = (Path(__file__).parents[2] / "docs/grid.md").read_text(encoding="utf-8")
    (looks,) = re.findall(r"^ltr (grid losses.yaml .*--until_shown)$", page, re.MULTILINE)
    (rest,) = re.findall(r"`ltr (grid losses.yaml .*)`\.", page)
    stand_in.gains = {"softmax": -0.01}  # what its first two seeds have more by chance
    assert run_ltr(looks.replace("losses.yaml", "grids/losses.yaml")) == 0
    assert len(stand_in.made) < 20 and "futile" in capfd.readouterr().out
    assert run_ltr(rest.replace("losses.yaml", "grids/losses.yaml")) == 0
    assert len({*stand_in.made}) == len(stand_in.made) == 20
    assert "10 of at most 10" in capfd.readouterr().out


def test_where_the_budget_is_spent_the_last_look_says_the_verdict(stand_in, capfd, monkeypatch):
    monkeypatch.setattr("ltr.grid.until_shown.FUTILE", 0.0)
    stand_in.gains = {"softmax": -0.03}  # what these seeds have more by chance
    assert run_ltr(GRID) == 0
    told = capfd.readouterr().out
    assert len(stand_in.made) == 12 and looks_of(told)[-1].endswith(": not shown")
    assert "ended after 6 seeds: the budget is spent" in told


def test_a_failed_run_ends_it_and_it_goes_on_where_it_was(stand_in, capfd):
    stand_in.gains = {"softmax": 0.1}
    stand_in.fails = f"softmax/seed={SEEDS[2]}"
    assert run_ltr(GRID) == 2
    told = capfd.readouterr()
    assert len(looks_of(told.out)) == 1 and "1 of 2 runs failed" in told.err
    assert run_ltr(f"{GRID} --table") == 0
    table = capfd.readouterr().out
    assert looks_of(table) == looks_of(told.out)
    assert f"seed {SEEDS[2]} is not there yet" in table and "2 of at most 6" in table
    assert len(stand_in.made) == 5
    stand_in.fails = ""
    assert run_ltr(GRID) == 0
    assert looks_of(capfd.readouterr().out)[0] == looks_of(told.out)[0]
    assert len({*stand_in.made}) == len(stand_in.made) > 5


@pytest.mark.long
def test_of_several_experiments_all_must_be_shown_and_holm_says_by_which_level(
    stand_in,
    folder,  # noqa: F811
    capfd,
):
    write_grid(folder, axes={"loss": THREE}, seeds=SEEDS)
    stand_in.gains = {"softmax": 0.3, "listnet": 0.15}
    assert run_ltr(GRID) == 0
    told = capfd.readouterr().out
    looks = looks_of(told)
    n_seeds = len(looks) // 2 + 1
    p_and_level = [
        [float(number) for number in re.search(r"p (\S+), level (\S+):", line).groups()]
        for line in looks[-2:]
    ]
    smaller, larger = sorted(p_and_level)
    look = Look(n_seeds, 6)
    assert smaller[1] == pytest.approx(look.level(0.05 / 2), rel=0.05)
    assert larger[1] == pytest.approx(look.level(0.05), rel=0.05)
    # The first on the axis is the baseline, listnet: ranknet is worse, and shown a look before.
    assert [line.rpartition(": ")[2] for line in looks[-2:]] == ["worse", "better"]
    assert looks[-4].endswith(": worse") and ": open, chance" in looks[-3]
    assert "every difference is shown" in told


REFUSED = {
    f"{GRID} --seeds 3": "--until_shown needs a budget of two seeds or more, in the grid file or by",
    f"{GRID} --only softmax": "--until_shown needs two experiments that are compared, got 1",
    f"{GRID} --folds 3": "--until_shown looks after each seed, and --folds has one",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_nothing_to_look_at_is_one_line(words, stand_in, capfd):
    assert REFUSED[words] in refusal(capfd, words)
    assert not Path("runs").exists()


def test_a_choice_that_leaves_one_experiment_has_nothing_to_look_at(
    stand_in,
    folder,  # noqa: F811
    capfd,
):
    write_grid(folder, axes={"model.lr": [0.1, 0.2]}, choose="model.lr", seeds=SEEDS)
    assert "needs two experiments that are compared, got 1" in refusal(capfd, GRID)


def test_a_budget_stays_as_it_was_before_the_first_look(stand_in, capfd):
    assert run_ltr(GRID) == 0
    line = refusal(capfd, f"{GRID} --seeds {' '.join(map(str, SEEDS))} 7")
    assert (
        f"{ROOT}/ranknet/seed=1 was made with a budget of the seeds 3, 1, 4, 5, 9, 2, and" in line
    )
    assert "that is 3, 1, 4, 5, 9, 2, 7 now" in line
    cell = ROOT / "ranknet/seed=3/cell.json"
    content = json.loads(cell.read_text())
    cell.write_text(json.dumps(content | {"until_shown": "all"}))
    line = refusal(capfd, GRID)
    assert f"{cell}: the file is damaged, until_shown must be a list" in line


OTHER_BUDGETS = {
    f"{GRID} --seeds 6 7 8": f"ranknet/seed=1 was made with a budget of the seeds {SEEDS}, and",
    f"{GRID} --seeds 6 7 8 --table": f"ranknet/seed=1 was made with a budget of the seeds {SEEDS}",
    f"{GRID} --seeds 6 7 8 --only listnet softmax": "softmax/seed=1 was made with a budget of",
}


@pytest.mark.parametrize("words", OTHER_BUDGETS)
def test_a_budget_of_other_seeds_is_another_budget(words, stand_in, folder, capfd):  # noqa: F811
    """Else each new one would look again, until some false difference is shown."""
    assert run_ltr(GRID) == 0
    made = [*stand_in.made]
    write_grid(folder, axes={"loss": THREE}, seeds=SEEDS)
    line = refusal(capfd, words)
    assert f"{ROOT}/{OTHER_BUDGETS[words].translate(str.maketrans('', '', '[]'))}" in line
    assert "give these seeds, or name another folder (--runs)" in line
    assert stand_in.made == made


def test_seeds_that_were_trained_before_all_looks_are_refused_whichever_they_are(stand_in, capfd):
    assert run_ltr("grid grids/losses.yaml --seeds 0 1") == 0
    for seeds in ("0 1 2", "7 8 9"):
        line = refusal(capfd, f"{GRID} --seeds {seeds}")
        assert f"{ROOT}/ranknet/seed=0 was made without --until_shown, so somebody may" in line
    assert len(stand_in.made) == 4


def test_another_budget_that_another_process_trains_meanwhile_is_refused(
    stand_in, capfd, monkeypatch
):
    def make(words: list[str], refusal_ends_program: bool) -> None:
        stand_in(words, refusal_ends_program)
        run = Path(words[words.index("--trainer.default_root_dir") + 1]) if len(words) > 2 else None
        if run is not None and run.name == "seed=4":
            other = run.parent / "seed=77"
            shutil.copytree(run, other)
            cell = json.loads((run / "cell.json").read_text())
            (other / "cell.json").write_text(json.dumps(cell | {"until_shown": [77, 78]}))

    monkeypatch.setattr("ltr.cli.grid.run_in_process", make)
    monkeypatch.setattr("ltr.grid.until_shown.FUTILE", 0.0)
    line = refusal(capfd, GRID)
    assert "seed=77 was made with a budget of the seeds 77, 78, and" in line


def test_a_cell_that_is_made_again_without_the_option_keeps_its_budget(stand_in, capfd):
    assert run_ltr(GRID) == 0
    n_seeds = len(stand_in.made) // 2
    runs = [ROOT / cell for cell in stand_in.made]
    for run in runs:
        (run / "per_query.tsv").unlink()  # as an interrupted test leaves it
    seeds = " ".join(map(str, SEEDS[:n_seeds]))
    assert run_ltr(f"grid grids/losses.yaml --seeds {seeds}") == 0
    assert len(stand_in.made) == 4 * n_seeds
    for run in runs:
        assert json.loads((run / "cell.json").read_text())["until_shown"] == SEEDS
    assert f"{n_seeds} of at most 6" in capfd.readouterr().out


def test_a_cell_of_which_nothing_was_trained_has_no_budget_to_keep(stand_in):
    run = ROOT / "ranknet/seed=3"
    run.mkdir(parents=True)
    (run / "cell.json").write_text(json.dumps({"until_shown": SEEDS}))
    assert run_ltr("grid grids/losses.yaml --seeds 3 4") == 0
    assert "until_shown" not in json.loads((run / "cell.json").read_text())


@pytest.mark.long
def test_a_large_budget_has_a_first_look(stand_in, capfd):
    """At a level of 2e-17, of which 1 − level / 2 is 1."""
    stand_in.gains = {"softmax": 0.2}
    assert run_ltr(f"{GRID} --seeds {' '.join(map(str, range(30)))}") == 0
    assert looks_of(capfd.readouterr().out)[0].startswith("2 of 30 seeds: softmax − ranknet")


def test_a_seed_behind_the_last_look_is_refused(stand_in, capfd):
    stand_in.gains = {"softmax": 0.1}
    assert run_ltr(GRID) == 0
    n_seeds = len(stand_in.made) // 2
    behind = ROOT / f"ranknet/seed={SEEDS[n_seeds]}"
    shutil.copytree(ROOT / "ranknet/seed=3", behind)
    cell = json.loads((behind / "cell.json").read_text())
    (behind / "cell.json").write_text(json.dumps(cell | {"seed": SEEDS[n_seeds]}))
    assert run_ltr(GRID) == 2
    line = capfd.readouterr().err
    assert f"{behind} was trained, and the look at {n_seeds} seeds would have ended the" in line
