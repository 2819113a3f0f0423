"""The tables of a comparison."""

from ltr.compare.tables import footnotes, p_value, tables
from tests.world.tested_runs import MADE, compared, write_run


def test_p_values():
    told = {1.0: "1.000", 0.001: "0.001", 0.00099: "< 0.001", 0.0001: "< 0.001", 0.0: "< 0.0001"}
    assert {p: p_value(p) for p in told} == told


def test_columns_that_no_run_fills_are_left_out(tmp_path):
    for name, start in (("a", None), ("b", 0.3)):
        write_run(tmp_path / name, [0.5] * 40, loss=name, start=start)
    alone = tables(compared([str(tmp_path / "a")]))[0]
    assert alone.header == ["experiment", "seeds", "AP", "95 % interval", "ceiling", "training, s"]
    both = tables(compared([str(tmp_path / "a"), str(tmp_path / "b")]))[1]
    column = both.header.index("before training, dev")
    assert [cells[column] for cells in both.rows] == ["", "0.3000"]


def test_the_last_footnote_says_with_what_the_runs_were_tested(tmp_path):
    for seed, commit in ((1, "c2"), (0, "c1")):
        made = MADE | {"ltr": "1.0", "commit": commit, "packages": {"torch": "2"}}
        write_run(tmp_path / f"a/seed={seed}", [0.5] * 40, seed=seed, report={"made": made})
    lines = footnotes(compared([str(tmp_path / "a")]))
    assert lines[-1] == ("seeds 0, 1; ltr 1.0; commit c1, c2; machine x; date 2026-11-01; torch 2")


def test_a_plan_tells_several_baselines_apart(runs):
    found = compared(
        ["runs/base", "runs/good", "runs/same"], pairs=[("same", "base"), ("same", "good")]
    )
    comparisons, _, plan = tables(found, plan=0.01)
    names = ["same − base", "same − good"]
    assert [row[0] for row in plan.rows] == [row[0] for row in comparisons.rows] == names
