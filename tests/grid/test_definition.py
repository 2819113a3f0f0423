"""A grid file: which cells it names, and what in it is refused."""

from itertools import product
from pathlib import Path

import pytest

from ltr.grid.definition import Grid
from tests.grid.grids import LOSSES, folder, write_grid  # noqa: F401
from tests.world.commands import refusal


def cells():
    return Grid.read(Path("grids/losses.yaml")).cells()


@pytest.mark.parametrize(
    ("only", "missing"),
    [
        (["ranknet"], ["ranknet/low", "ranknet/high"]),
        (["ranknet", "low"], ["ranknet/low"]),
        (["ranknet", "softmax", "high"], ["ranknet/high", "softmax/high"]),
        (["low", "high"], ["ranknet/low", "ranknet/high", "softmax/low", "softmax/high"]),
    ],
)
def test_only_asks_on_each_axis_that_has_one_of_its_names(folder, capfd, only, missing):
    rates = {"low": {"model.lr": 0.001}, "high": {"model.lr": 0.01}}
    write_grid(folder, axes={"loss": LOSSES, "rate": rates}, seeds=[0])
    grid = Grid.read(Path("grids/losses.yaml"))
    assert sorted(str(cell.experiment) for cell in grid.cells(only=only)) == sorted(missing)


def test_values_are_named_for_folders(folder):
    axes = {"data.init_args.path": ["a/b.tsv", "c"], "model.margin": [None, 0.5]}
    write_grid(folder, axes=axes, seeds=[0])
    expected = [*product(["path=b.tsv", "path=c"], ["margin=null", "margin=0.5"])]
    assert [cell.names for cell in cells()] == expected


TWO_AXES = {"a": {"none": {}, "x": {}}, "b": {"none": {}, "y": {}}}
RATES = {"loss": LOSSES, "lr": {"low": {}, "high": {}}}
REFUSED = {
    "unknown": (
        {"axis": {}, "axes": None},
        "a grid must have base and axes, and perhaps "
        "baseline, choose, metrics, options, seeds; got axis, base, metrics",
    ),
    "no base": (
        {"base": "none.yaml"},
        "base grids/none.yaml is not there; paths count from the grid's file",
    ),
    "a number as base": ({"base": 3}, "is not there; paths count from the grid's file"),
    "an empty base": ({"base": []}, "base must name a configuration, got []"),
    "bad axis": (
        {"axes": {"loss": "ranknet"}},
        "the axis loss must be a list of values, or names with their options",
    ),
    "axes without names": ({"axes": [1]}, "must be names with their values"),
    "equal folders": (
        {"axes": {"scale": {"k": {}, "k?": {}, "k!": {}}}},
        "the values of scale must have names of their own, fit for folders",
    ),
    "a folder above": ({"axes": {"scale": {"..": {}}}}, "fit for folders; got '..'"),
    "equal last parts": (
        {"axes": {"data.path": ["letor", "other/letor"]}},
        "fit for folders; got 'path=letor'",
    ),
    "bad seeds": ({"seeds": 3}, "seeds must be a list of whole numbers, got 3"),
    "bad choice": ({"choose": "lr"}, "choose must be one of the axes loss, got 'lr'"),
    "a list as choice": ({"choose": ["loss"]}, "choose must be one of the axes"),
    "an unknown baseline": (
        {"baseline": "rankent"},
        "baseline must be a value of an axis, ranknet, softmax, got 'rankent'",
    ),
    "a baseline of two axes": (
        {"axes": TWO_AXES, "baseline": "none"},
        "baseline 'none' must be a value of one axis, and is one of 2; give them other names",
    ),
    "a baseline that is chosen": (
        {"axes": RATES, "choose": "lr", "baseline": "low"},
        "baseline 'low' is a value of the axis lr, of which one is chosen, so nothing is compared",
    ),
    "seeds as options": ({"options": {"seed_everything": 5}}, "seeds are named by seeds"),
    "bad options": ({"options": "foo"}, "options must be names with their values, got 'foo'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_grid_is_one_line(case, folder, capsys):
    """What would lose a cell, or end a grid late, is refused first."""
    changes, text = REFUSED[case]
    content = {"axes": {"loss": LOSSES}} | changes
    write_grid(folder, **{name: value for name, value in content.items() if value is not None})
    line = refusal(capsys, "grid grids/losses.yaml")
    assert "grids/losses.yaml: " in line and text in line
    assert not Path("runs").exists()


def test_a_baseline_and_a_chosen_name_are_found_as_they_are_written(folder):
    """Names are made fit for folders, and YAML reads true as a truth value."""
    axes = {"normed": {True: {}, False: {}}, "loss": {"a:b": {}, "c": {}}}
    write_grid(folder, axes=axes, seeds=[0], baseline=[False, "a:b"])
    grid = Grid.read(Path("grids/losses.yaml"))
    assert grid.baseline == ("false", "a_b")
    assert {cell.names for cell in grid.cells(only=["a:b"])} == {("a_b", "true"), ("a_b", "false")}


def test_values_with_dots_that_are_no_class_paths_keep_their_names(folder):
    axes = {"data.path": ["a.jsonl", "b.jsonl"], "model.loss": ["ltr.losses.RankNetLoss"]}
    write_grid(folder, axes=axes, seeds=[0])
    loss = "loss=RankNetLoss"
    expected = [("path=a.jsonl", loss), ("path=b.jsonl", loss)]
    assert sorted(cell.names for cell in cells()) == expected


def test_values_that_differ_late_have_folders_of_their_own(folder):
    rates = [0.1234567, 0.1234568, 0.1]
    axes = {"scale": {"k=0.5": {}, "k=1.5": {}, "a_b": {}}, "model.lr": rates}
    write_grid(folder, axes=axes, seeds=[1])
    names = {one.folder.as_posix() for one in cells()}
    assert len(names) == 9 and "lr=0.1/k=0.5/seed=1" in names


def test_a_name_that_is_given_twice_is_refused(folder, capsys):
    text = "base: ../base.yaml\naxes:\n  loss:\n    a: {}\n    a: {}\n"
    Path("grids/losses.yaml").write_text(text)
    line = refusal(capsys, "grid grids/losses.yaml")
    assert "losses.yaml:5: a key must be given once, got 'a' again" in line


def test_a_baseline_is_compared_with_its_neighbours(folder):
    axes = {"loss": {"hinge": {}, "logistic": {}}, "margin": {"constant": {}, "learnt": {}}}
    write_grid(folder, axes=axes, baseline="constant")
    grid = Grid.read(Path("grids/losses.yaml"))
    names = [*product(axes["loss"], axes["margin"])]
    assert grid.pairs_by_place(names) == ([(1, 0), (3, 2)], [])
    assert grid.pairs_by_place(names[:2] + names[3:]) == (
        [(1, 0)],
        ["logistic/learnt is not compared with constant, which is not there"],
    )
    write_grid(folder, axes=axes | {"model.lr": [1, 2]}, baseline="constant", choose="model.lr")
    # Other rates were best for the neighbours.
    chosen = [(*one, f"lr={n % 2 + 1}") for n, one in enumerate(names)]
    assert Grid.read(Path("grids/losses.yaml")).pairs_by_place(chosen) == ([(1, 0), (3, 2)], [])
    write_grid(folder, axes=axes)
    pairs = [(1, 0), (2, 0), (3, 0)]
    assert Grid.read(Path("grids/losses.yaml")).pairs_by_place(names) == (pairs, [])


def test_a_grid_without_axes_is_its_base(folder):
    write_grid(folder, axes={}, seeds=[1])
    (cell,) = cells()
    assert str(cell.folder) == "base/seed=1"
