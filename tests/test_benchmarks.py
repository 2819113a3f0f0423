"""Every script of benchmarks/ runs one tiny step; what it prints then means nothing, but that it
still runs does.
"""

import json
import math
import os
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from tests.child_processes import forkserver
from tests.world.encoders import bert

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py"))
# The options of a script beside --tiny; words in the values name what the fixture below makes.
TEXTS = {"--data": "collection", "--backbone": "backbone"}
OPTIONS = dict.fromkeys(SCRIPTS, TEXTS)
WITHOUT = ("attention", "budget", "check", "import_forms", "losses", "ranknet_factorised")
OPTIONS |= dict.fromkeys(WITHOUT, {})
OPTIONS |= {
    "corpus": {"--backbone": "backbone"},
    "forecast": {"": "base"},
    "gpu": {"--data": "collection", "--output": "runs", "--only": "section"},
    "letor": {"": "grid", "--runs": "runs"},
    "letor_reader": {"--data": "letor"},
    "planted": {"--data": "collection"},
    "quality_mined": TEXTS | {"--runs": "runs"},
    "synthetic": {"--runs": "runs"},
}
# The others are in `make test-long`.
EVERY_DAY = {"padding"}


def test_every_script_that_is_named_is_there():
    assert OPTIONS.keys() | EVERY_DAY == {*SCRIPTS}


@pytest.fixture
def made(tmp_path, backbone, collection_folder, letor_folder):
    """What the options name."""
    text = (ROOT / "experiments/features/lambdarank.yaml").read_text()
    text = text.replace("examples/lambdarank", str(letor_folder))
    base = tmp_path / "base.yaml"
    base.write_text(re.sub(r" +dev_share: .*\n", "", text))
    grid = tmp_path / "grid.yaml"
    axes = "{loss: {mse: {model.loss: ltr.losses.MSELoss}, ranknet: {}}}"
    grid.write_text(f"base: base.yaml\naxes: {axes}\n")
    places = {"backbone": backbone, "collection": collection_folder, "letor": letor_folder}
    return places | {"base": base, "grid": grid, "runs": tmp_path / "runs", "section": "micro"}


def run(script: str, arguments: list[str], output: Path) -> None:
    """In a process of its own: run a script as the command line does."""
    os.chdir(ROOT)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    sys.argv = [f"benchmarks/{script}.py", *arguments]
    runpy.run_module(script, run_name="__main__", alter_sys=True)


@pytest.mark.parametrize(
    "script",
    [pytest.param(one, marks=[pytest.mark.long] * (one not in EVERY_DAY)) for one in SCRIPTS],
)
def test_a_script_runs_one_tiny_step(script, made, tmp_path):
    arguments = ["--tiny"]
    for option, name in OPTIONS[script].items():
        arguments += [str(word) for word in (option, made[name]) if word]
    output = tmp_path / "output.txt"
    process = forkserver().Process(target=run, args=(script, arguments, output))
    process.start()
    process.join()
    said = output.read_text()
    assert process.exitcode == 0, said
    assert not re.search(r"\| (ltr|ours).*cannot run", said), said  # others may be absent
    has_numbers = re.search(r"^\|.*\d", said, re.MULTILINE) is not None
    assert has_numbers or script == "big_batch", f"no row with a number:\n{said}"


@pytest.mark.long
def test_every_section_on_a_gpu_is_tried_on_the_cpu(made, tmp_path):
    output = tmp_path / "output.txt"
    words = ["--tiny", "--data", str(made["collection"]), "--output", str(made["runs"])]
    words += ["--seconds", "36000"]  # on a busy machine, too, all sections have time
    process = forkserver().Process(target=run, args=("gpu", words, output))
    process.start()
    process.join()
    assert process.exitcode == 0, output.read_text()
    rows = [json.loads(line) for line in (made["runs"] / "gpu.jsonl").read_text().splitlines()]
    assert {row["section"] for row in rows} == {
        "machine", "equality", "training", "micro", "encoding", "searching", "commands", "compiled",
    }  # fmt: skip
    assert not [row for row in rows if "cannot_run" in row or "failed" in row]
    assert all(row["tiny"] for row in rows)
    assert {row["torch"] for row in rows} == {torch.__version__}
    assert all(row["device"] and row["ltr"] and row["date"] for row in rows)


@pytest.mark.parametrize("name", ["MiniLM", "ModernBERT-base", "Qwen3-0.6B"])
def test_the_operations_of_a_model_are_those_that_torch_counts(name, benchmark, tmp_path):
    """Of three texts of seven tokens. Tiny models have 16 dimensions, and two layers."""
    shapes = benchmark("harness.shapes")
    shapes.save_model(name, tmp_path, tiny=True)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    if hasattr(model, "pooler"):
        model.pooler = None
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(input_ids=torch.ones(3, 7, dtype=torch.int64))
    expected = shapes.flops_of_forward(str(tmp_path), tokens=21, squares=3 * 49)
    counted = counter.get_total_flops()
    assert counted - expected == pytest.approx(0, abs=0.02 * expected)


def test_a_side_takes_its_steps_in_this_process(benchmark, tmp_path):
    """Two behind the warm-up of three, each of which reads 3 + 1 tokens in 2 × 3 places."""
    sides = benchmark("harness.sides")
    model = bert()
    inputs = {
        "input_ids": torch.ones(2, 3, dtype=torch.int64),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
    }

    def reads(meter, setting, side):
        meter.watch(model)
        model(**inputs)
        while meter.step_ended():
            model(**inputs)

    common = {"device": "cpu", "data": "", "backbone": "", "max_length": 3, "batch": 2}
    setting = sides.Setting(**common, steps=2, turns=1, folder=tmp_path, warm_up=3)
    side = sides.Side("reads", reads, "float32")
    steps, _ = benchmark("harness.looks").steps_and_counts(side, setting)
    assert [(step.tokens, step.squares, step.with_padding) for step in steps] == [(4, 10, 6)] * 2


@pytest.fixture
def failures(benchmark) -> ModuleType:
    return benchmark("failures")


def test_a_run_without_failures_takes_its_work_and_its_saves(failures):
    """Five intervals of 100 s, each with a save of 10 s behind it."""
    costs = failures.Costs(save=10.0, start=60.0, mtbf=1e15)
    seconds = failures.simulated(costs, 100.0, 5, runs=3, rng=np.random.default_rng(0))
    assert seconds.tolist() == [550.0] * 3
    assert failures.expected(costs, 100.0, 5) == pytest.approx(550.0)


@pytest.mark.parametrize(
    ("save", "start", "every", "n_intervals"),
    [
        (10.0, 60.0, 300.0, 20),
        (120.0, 0.0, 600.0, 8),
        (1.0, 1800.0, 30.0, 50),
        (5.0, 60.0, 7200.0, 2),
    ],
)
def test_simulated_failures_cost_what_daly_has_derived(failures, save, start, every, n_intervals):
    """A failure every hour; within five standard errors of the mean of 4,000 runs."""
    costs = failures.Costs(save, start, mtbf=3600.0)
    seconds = failures.simulated(costs, every, n_intervals, 4000, np.random.default_rng(1))
    error = seconds.std() / math.sqrt(len(seconds))
    derived = failures.expected(costs, every, n_intervals)
    assert 0 < error < 0.02 * derived
    assert abs(seconds.mean() - derived) < 5 * error


def test_the_best_interval_is_that_of_young(failures):
    """A save of 2 s and a failure every 10,000 s: sqrt(2 · 2 · 10,000) = 200 s. In simulation, too,
    saving three times as often or as seldom costs more.
    """
    costs = failures.Costs(save=2.0, start=30.0, mtbf=1e4)
    assert failures.best_interval(costs) == 200.0
    per_second = {}
    for every in (200.0 / 3, 200.0, 600.0):
        n_intervals = round(60_000 / every)
        rng = np.random.default_rng(2)
        seconds = failures.simulated(costs, every, n_intervals, 4000, rng)
        per_second[every] = seconds.mean() / (every * n_intervals)
    assert min(per_second, key=per_second.get) == 200.0


def test_times_are_read_as_they_are_written(failures):
    times = {"90": 90.0, "90s": 90.0, "15m": 900.0, "2h": 7200.0, "7d": 604800.0}
    for text, seconds in times.items():
        assert failures.seconds_of(text) == seconds
        assert failures.seconds_of(failures.readable(seconds)) == seconds


@pytest.fixture
def watched(benchmark) -> ModuleType:
    return benchmark("harness.watched")


def test_a_command_that_sleeps_has_no_core(watched):
    took = watched.watched_command([sys.executable, "-S", "-c", "import time; time.sleep(1)"])
    assert took.seconds > 1 > took.busy > 0


def test_the_memory_of_a_command_is_seen(watched, benchmark):
    """More than this process has, as the system counts that in."""
    size = benchmark("harness.machine").resident("VmHWM") + 100_000_000
    took = watched.watched_command([sys.executable, "-S", "-c", f"b'x' * {size}"])
    assert size < took.peak < size + 100_000_000


def test_a_command_that_fails_is_shown(watched):
    with pytest.raises(SystemExit, match="(?s)SystemExit.* failed\nbad luck"):
        watched.watched_command([sys.executable, "-S", "-c", "raise SystemExit('bad luck')"])
