"""`ltr compare` on the command line."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.run.resumes import BASE
from tests.world.commands import run_ltr
from tests.world.tested_runs import compared_in_one_group


def test_the_command_prints_and_writes_its_tables(runs, capsys):
    files = {name: runs.parent / f"out.{name}" for name in ("markdown", "latex", "csv")}
    options = " ".join(f"--{name} {file}" for name, file in files.items())
    assert run_ltr(f"compare runs/base runs/good runs/same --plan 0.2 {options}") == 0
    told = capsys.readouterr().out
    for text in ("AP, 40 queries", "better", "Holm's correction over 2 comparisons"):
        assert text in told
    (found,) = compared_in_one_group(["runs/base", "runs/good", "runs/same"])
    low, high = found.comparisons[0].difference.interval()
    rows = list(csv.DictReader(open(files["csv"])))
    assert [row["experiment"] for row in rows] == ["base", "good", "same"]
    assert rows[0]["baseline"] == ""
    assert float(rows[1]["p_corrected"]) == found.comparisons[0].corrected
    assert float(rows[1]["difference_low"]) == low
    text = files["markdown"].read_text()
    interval = rf"\+0\.\d{{4}} \| \{low:+.4f} to \{high:+.4f}"
    assert re.search(rf"\| good \| better \| {interval} \| < 0\.001 ", text)
    needed = [found.comparisons[1].difference.queries_needed(0.2, n, 0.05 / 2) for n in (3, 5, 10)]
    assert f"| same | {' | '.join(str(n or 'no number') for n in needed)} |" in text and needed[2]
    tex = files["latex"].read_text()
    assert tex.count(r"\toprule") == 3 and r"95 \% interval" in tex and r"$\pm$" in tex


def test_where_the_output_is_closed_the_files_are_written(runs, monkeypatch):
    """Some schedulers close it."""
    monkeypatch.setattr("sys.stdout", None)
    assert run_ltr("compare runs/base runs/good --csv out.csv") == 0
    assert Path("out.csv").read_text().startswith("metric,experiment,")


@pytest.mark.usefixtures("programs_begin_warm")
def test_nobody_reads_the_table(runs):
    """As ``ltr compare … | true`` under pipefail: what a program does that SIGPIPE ends. The files
    are written.
    """
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "ltr", "compare", "runs/base", "runs/good", "--csv", "out.csv"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    assert Path("out.csv").is_file()


@pytest.mark.long
def test_it_starts_without_lightning(runs):
    """Lightning takes seconds to import, torch one."""
    code = "import sys; from ltr.__main__ import main; main(['compare', 'runs/base', 'runs/good'])"
    code += "; sys.exit('lightning' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.long
def test_a_real_run_can_be_compared(letor_folder, tmp_path, capsys):
    """Two seeds of a feature ranker under two losses, from fit to the table."""
    data = BASE["data"] | {"init_args": {"path": str(letor_folder), "batch_size": 4}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(BASE | {"data": data}))
    fit = f"fit --config {tmp_path / 'c.yaml'} --trainer.max_epochs 1"
    for loss in ("RankNetLoss", "ListNetLoss"):
        for seed in (1, 2):
            run = tmp_path / loss / f"seed={seed}"
            options = f"--seed_everything {seed} --model.loss ltr.losses.{loss}"
            assert run_ltr(f"{fit} {options} --trainer.default_root_dir {run}") == 0
            assert run_ltr(f"test {run}") == 0
    capsys.readouterr()
    assert run_ltr(f"compare {tmp_path}/*Loss --metric nDCG_exp@10 swapped_pairs") == 0
    told = capsys.readouterr().out
    made = json.loads((tmp_path / "RankNetLoss/seed=1/metrics.json").read_text())["test"]["made"]
    for text in (
        f"seeds 1, 2; ltr {made['ltr']}",
        f"torch {made['packages']['torch']}",
        made["date"],
        "ListNetLoss",
        "before training",
        "Holm's correction over 2 comparisons",
    ):
        assert text in told
