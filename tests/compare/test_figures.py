"""Figures of a comparison: what they draw, and that a page can hold them."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex

from ltr.__main__ import main
from ltr.compare import figures
from ltr.compare.experiment import read_experiments
from tests.world.tested_runs import write_run


@pytest.fixture
def drawn(monkeypatch):
    """The axes of each figure."""
    axes_of_figures = []
    svg = figures._svg

    def keep(draw):
        def draw_and_keep(axes):
            draw(axes)
            axes_of_figures.append(axes)

        return svg(draw_and_keep)

    monkeypatch.setattr(figures, "_svg", keep)
    return axes_of_figures


def test_the_metric_before_training_is_at_step_0_and_the_legend_names_an_experiment_once(
    tmp_path, drawn
):
    for seed in (0, 1):
        write_run(tmp_path / f"a/seed={seed}", [0.5] * 40, seed=seed, start=0.25)
    (experiment,) = read_experiments([str(tmp_path / "a")])
    for run in experiment.runs:
        run.results["validations"] = [{"step": 10, "AP": 0.5}, {"step": 20, "AP": None}]
    assert figures.over_training([experiment], "AP") is not None
    lines = drawn[0].get_lines()
    assert [line.get_xydata().tolist() for line in lines] == [[[0, 0.25], [10, 0.5]]] * 2
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == ["a"]


def test_the_start_alone_is_no_curve_by_seconds(tmp_path, drawn):
    for seed in (0, 1):
        write_run(tmp_path / f"a/seed={seed}", [0.5] * 40, seed=seed, start=0.25)
    (experiment,) = read_experiments([str(tmp_path / "a")])
    for run in experiment.runs:
        run.results["validations"] = []
    assert figures.over_training([experiment], "AP", by="seconds") is None
    last = {"step": 20, "seconds": 7.5, "AP": 0.75}
    experiment.runs[1].results["validations"].append(last)
    assert figures.over_training([experiment], "AP", by="seconds") is not None
    lines = [line.get_xydata().tolist() for line in drawn[0].get_lines()]
    assert lines == [[[0, 0.25]], [[0, 0.25], [7.5, 0.75]]]
    assert drawn[0].get_xlabel() == "seconds of training"


def test_nothing_is_drawn_where_nothing_was_validated(tmp_path):
    write_run(tmp_path / "a", [0.5] * 40, start=None)
    assert figures.over_training(read_experiments([str(tmp_path / "a")]), "AP") is None


def test_differences_are_sorted_and_the_last_one_has_its_width(drawn):
    """Three queries fill the places 0 to 3."""
    figures.differences(np.array([0.1, -0.2, 0.3]), "AP", "a", "b", 0)
    (area,) = drawn[0].collections
    corners = area.get_paths()[0].vertices
    assert corners[:, 0].max() == 3 and drawn[0].get_xlim() == (0, 3)
    assert {0.3, 0.1, -0.2} <= set(corners[:, 1].tolist())
    assert corners[corners[:, 0] == 3][:, 1].min() == -0.2


def test_an_experiment_has_one_colour_of_its_own_in_all_figures(tmp_path, drawn):
    """The second one has no curve, and keeps its colour where its queries are compared."""
    rng = np.random.default_rng(0)
    for name, start in (("a", 0.25), ("b", None), ("c", 0.25)):
        write_run(tmp_path / name, rng.uniform(size=40), start=start)
    runs = [str(tmp_path / name) for name in "abc"]
    assert main(["compare", *runs, "--html", str(tmp_path / "page.html")]) == 0
    curves, b, c = drawn
    names = [text.get_text() for text in curves.get_legend().get_texts()]
    colours = [to_hex(line.get_color()) for line in curves.get_lines()]
    of_curves = dict(zip(names, colours, strict=True))
    of_b = to_hex(b.collections[0].get_facecolor()[0])
    of_c = to_hex(c.collections[0].get_facecolor()[0])
    assert list(of_curves) == ["a", "c"] and of_curves["c"] == of_c
    assert len({of_curves["a"], of_b, of_c}) == 3


def test_precision_begins_at_rank_1(drawn):
    figures.precision({"a": np.array([1.0, 0.5])})
    assert drawn[0].get_lines()[0].get_xydata().tolist() == [[1, 1.0], [2, 0.5]]


def test_a_name_may_begin_with_an_underscore(drawn):
    """matplotlib would leave it out of the legend."""
    values = np.array([1.0, 0.5])
    svg = figures.precision({"_a": values, "b": values, "_": values})
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == ["_a", "b", "_"]
    assert ">_a</text>" in svg


def test_a_figure_takes_its_colours_and_its_width_from_the_page():
    svg = figures.precision({"a <b> $x$": np.array([1.0, 0.5])})
    assert svg.startswith("<svg ") and "<metadata>" not in svg and "\n" not in svg
    assert "currentColor" in svg and "var(--faint)" in svg
    assert figures.INK not in svg and figures.FAINT not in svg
    assert not re.match(r"<svg [^>]*(width|height)=", svg) and "viewBox" in svg
    assert "a &lt;b&gt; $x$" in svg
