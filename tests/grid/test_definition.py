"""A grid file: which cells it names, and what in it is refused."""

from pathlib import Path

import pytest

from ltr.__main__ import main
from ltr.errors import InputError
from ltr.grid.definition import Grid
from tests.grid.grids import LOSSES, folder, steps, write_grid  # noqa: F401


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
    write_grid(
        folder,
        axes={"data.init_args.path": ["a/b.tsv", "c"], "model.margin": [None, 0.5]},
        seeds=[0],
    )
    names = [cell.names for cell in Grid.read(folder / "grids/losses.yaml").cells()]
    assert names == [
        ("path=b.tsv", "margin=null"),
        ("path=b.tsv", "margin=0.5"),
        ("path=c", "margin=null"),
        ("path=c", "margin=0.5"),
    ]


REFUSED = {
    "unknown": (
        {"axis": {}},
        "a grid must have base and axes, and perhaps baseline, choose, metrics, options, seeds; got axis, base, metrics",
    ),
    "no base": (
        {"axes": {"loss": LOSSES}, "base": "none.yaml"},
        "base grids/none.yaml is not there; paths count from the grid's file",
    ),
    "bad axis": (
        {"axes": {"loss": "ranknet"}},
        "the axis loss must be a list of values, or names with their options",
    ),
    "bad seeds": (
        {"axes": {"loss": LOSSES}, "seeds": 3},
        "seeds must be a list of whole numbers, got 3",
    ),
    "bad choice": (
        {"axes": {"loss": LOSSES}, "choose": "lr"},
        "choose must be one of the axes loss, got 'lr'",
    ),
    "a baseline of two axes": (
        {"axes": {"a": {"none": {}, "x": {}}, "b": {"none": {}, "y": {}}}, "baseline": "none"},
        "baseline 'none' must be a value of one axis, and is one of 2; give them other names",
    ),
    "a baseline that is chosen": (
        {
            "axes": {"loss": LOSSES, "lr": {"low": {}, "high": {}}},
            "choose": "lr",
            "baseline": "low",
        },
        "baseline 'low' is a value of the axis lr, of which one is chosen, so nothing is compared",
    ),
    "an empty base": (
        {"axes": {"loss": LOSSES}, "base": []},
        "base must name a configuration, got []",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_grid_is_one_line(case, folder, capsys):
    changes, text = REFUSED[case]
    write_grid(folder, **changes)
    assert main(["grid", "grids/losses.yaml"]) == 2
    told = capsys.readouterr().err
    assert (
        "grids/losses.yaml: " in told
        and text in told
        and told.count("\n") == 1
        and not Path("runs").exists()
    )


def test_a_baseline_and_a_chosen_name_are_found_as_they_are_written(folder):
    """Names are made fit for folders, and YAML reads true as a truth value."""
    axes = {"normed": {True: {}, False: {}}, "loss": {"a:b": {}, "c": {}}}
    write_grid(folder, axes=axes, seeds=[0], baseline=[False, "a:b"])
    grid = Grid.read(Path("grids/losses.yaml"))
    assert grid.baseline == ("false", "a_b")
    assert {cell.names for cell in grid.cells(only=["a:b"])} == {("a_b", "true"), ("a_b", "false")}


def test_values_with_dots_that_are_no_class_paths_keep_their_names(folder):
    write_grid(
        folder,
        axes={"data.path": ["a.jsonl", "b.jsonl"], "model.loss": ["ltr.losses.RankNetLoss"]},
        seeds=[0],
    )
    names = {cell.names for cell in Grid.read(Path("grids/losses.yaml")).cells()}
    loss = "loss=RankNetLoss"
    assert names == {("path=a.jsonl", loss), ("path=b.jsonl", loss)}


def test_values_that_differ_late_have_folders_of_their_own(folder):
    write_grid(
        folder,
        axes={
            "scale": {"k=0.5": {}, "k=1.5": {}, "a_b": {}},
            "model.lr": [0.1234567, 0.1234568, 0.1],
        },
        seeds=[1],
    )
    names = {one.folder.as_posix() for one in Grid.read(Path("grids/losses.yaml")).cells()}
    assert len(names) == 9 and "lr=0.1/k=0.5/seed=1" in names


def test_a_name_that_is_given_twice_is_refused(folder, capsys):
    Path("grids/losses.yaml").write_text(
        "base: ../base.yaml\naxes:\n  loss:\n    a: {}\n    a: {}\n"
    )
    assert main(["grid", "grids/losses.yaml"]) == 2
    assert "losses.yaml:5: a key must be given once, got 'a' again" in capsys.readouterr().err


def test_a_baseline_is_compared_with_its_neighbours(folder):
    axes = {"loss": {"hinge": {}, "logistic": {}}, "margin": {"constant": {}, "learnt": {}}}
    write_grid(folder, axes=axes, baseline="constant")
    grid = Grid.read(Path("grids/losses.yaml"))
    names = [
        ("hinge", "constant"),
        ("hinge", "learnt"),
        ("logistic", "constant"),
        ("logistic", "learnt"),
    ]
    assert grid.pairs_by_place(names) == ([(1, 0), (3, 2)], [])
    assert grid.pairs_by_place(names[:2] + names[3:]) == (
        [(1, 0)],
        ["logistic/learnt is not compared with constant, which is not there"],
    )
    write_grid(folder, axes=axes | {"model.lr": [1, 2]}, baseline="constant", choose="model.lr")
    chosen = [
        (*one, f"lr={n % 2 + 1}") for n, one in enumerate(names)
    ]  # other rates were best for the neighbours
    assert Grid.read(Path("grids/losses.yaml")).pairs_by_place(chosen) == ([(1, 0), (3, 2)], [])
    write_grid(folder, axes=axes)
    assert Grid.read(Path("grids/losses.yaml")).pairs_by_place(names) == (
        [(1, 0), (2, 0), (3, 0)],
        [],
    )


def test_a_grid_without_axes_is_its_base(folder):
    write_grid(folder, axes={}, seeds=[1])
    assert [str(cell.folder) for cell in Grid.read(folder / "grids/losses.yaml").cells()] == [
        "base/seed=1"
    ]
    write_grid(folder, axes=[1])
    with pytest.raises(InputError, match="must be names with their values"):
        Grid.read(folder / "grids/losses.yaml")
