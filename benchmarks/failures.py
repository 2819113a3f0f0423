"""What do failures cost, and how often should a run be saved?  python benchmarks/failures.py
[--mtbf 1h 1d] [--every 10m 1h] [--save SECONDS] [--start SECONDS]

Failures come at random: the time between two is exponential, with the mean ``--mtbf``. Each loses
the work since the last save, and a start, which can fail, too. Many runs are simulated with each
interval between two saves, and beside them stands the mean that Daly has derived. The seconds that
a save and a start take are measured by a run that is resumed for one step, where no option gives
them.

Daly (2006), A higher order estimate of the optimum checkpoint interval for restart dumps.
"""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from harness.machine import machine_line
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.tables import head, row

from ltr.checkpoint import CHECKPOINTS, LAST, read_checkpoint, write_checkpoint

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SAVES = 3  # are timed, and the median counts
AT_MOST = 20  # times the work: a run that takes longer is not simulated


class Costs(NamedTuple):
    """What a machine and a run bring along, in seconds.

    Attributes:
        save: of writing a checkpoint, in which nothing is trained.
        start: from a failure until the run trains again.
        mtbf: mean time between failures.
    """

    save: float
    start: float
    mtbf: float


def simulated(
    costs: Costs, every: float, n_intervals: int, runs: int, rng: np.random.Generator
) -> np.ndarray:
    """``[runs]``: the seconds that runs take, each of some intervals of work with a save behind it.

    Args:
        costs: of a save, a start and failures.
        every: seconds of work between two saves.
        n_intervals: of a run.
        runs: how many are simulated.
        rng: draws the times of failures.
    """
    seconds = np.zeros(runs)
    left = np.full(runs, n_intervals)  # intervals that are not saved yet
    start = np.zeros(runs)  # of the next attempt: the first one begins at once
    while (left > 0).any():
        until_failure = rng.exponential(costs.mtbf, runs)
        to_end = start + left * (every + costs.save)
        is_last = until_failure >= to_end
        saved = np.floor((until_failure - start) / (every + costs.save)).clip(0, left)
        is_running = left > 0
        seconds += np.where(is_running, np.minimum(until_failure, to_end), 0.0)
        left = np.where(is_last, 0, left - saved.astype(left.dtype))
        start[:] = costs.start
    return seconds


def expected(costs: Costs, every: float, n_intervals: int) -> float:
    """The mean of :func:`simulated` by Daly's formula."""
    stretch = math.exp(costs.start / costs.mtbf) * math.expm1((every + costs.save) / costs.mtbf)
    return costs.mtbf * stretch * n_intervals


def best_interval(costs: Costs) -> float:
    """Seconds of work between two saves that cost least: Young's formula, right where a save takes
    much less than the time between two failures.
    """
    return math.sqrt(2 * costs.save * costs.mtbf)


def seconds_of(text: str) -> float:
    """Seconds of a text such as 90, 90s, 15m, 12h or 7d."""
    if text[-1] in UNITS:
        return float(text[:-1]) * UNITS[text[-1]]
    return float(text)


def readable(seconds: float) -> str:
    """As :func:`seconds_of` reads it, in the largest unit of which there are at least two."""
    name = "s"
    for unit, n_seconds in UNITS.items():
        if seconds >= 2 * n_seconds:
            name = unit
    return f"{seconds / UNITS[name]:.3g}{name}"


def measured(data: str, backbone: str, starts: int = 2) -> tuple[float, float, int]:
    """Seconds of a save and of a start, and the bytes of a checkpoint, by a cross-encoder on this
    machine. The start is the last one, of a whole command that takes one more step of a run.
    """
    ranker = {
        "class_path": "ltr.models.PairWiseBertRanker",
        "init_args": {"backbone": backbone, "max_length": 64},
    }
    source = {
        "class_path": "ltr.datamodules.TripletDataModule",
        "init_args": {
            "path": data,
            "negatives": "bm25",
            "negatives_per_query": 1,
            "batch_size": 2,
            "evaluation": {"candidates": "bm25", "depth": 10},  # must be there, and is left out
        },
    }
    quiet = {"accelerator": "cpu", "devices": 1, "max_epochs": -1, "logger": False}
    config = {
        "model": {"ranker": ranker, "loss": "ltr.losses.SoftmaxLoss"},
        "data": source,
        "trainer": quiet | {"limit_val_batches": 0, "num_sanity_val_steps": 0},
        "best": {"monitor": None},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text(yaml.safe_dump(config))
        run = Path(folder, "run")
        seconds = 0.0
        for steps in range(1, starts + 1):
            words = ["fit", "--config", str(file), "--trainer.default_root_dir", str(run)]
            words += ["--trainer.max_steps", str(steps), "--ckpt_path", "last"]
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "ltr", *words], check=True, stdout=subprocess.PIPE
            )
            seconds = time.perf_counter() - begun
        checkpoint = read_checkpoint(run / CHECKPOINTS / LAST)
        copy = Path(folder, "copy.ckpt")
        saves = []
        for _ in range(SAVES):
            begun = time.perf_counter()
            write_checkpoint(checkpoint, copy)
            saves.append(time.perf_counter() - begun)
        return statistics.median(saves), seconds, copy.stat().st_size


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--mtbf",
        nargs="+",
        default=["1h", "4h", "1d", "7d", "33d", "264d"],
        help="mean times between failures of the machines together: 90s, 15m, 12h, 7d",
    )
    arguments.add_argument(
        "--every",
        nargs="+",
        default=["10s", "1m", "10m", "1h", "12h"],
        help="work between two saves",
    )
    arguments.add_argument("--save", help="how long it takes (default: measured)")
    arguments.add_argument("--start", help="how long it takes (default: measured)")
    arguments.add_argument("--work", default="7d", help="of a run without saves and failures")
    arguments.add_argument("--runs", type=int, default=2000, help="how many are simulated")
    add_data(arguments, MEDQUAD, LIVEQA)
    add_backbone(arguments)
    options = arguments.parse_args()
    runs = 20 if options.tiny else options.runs
    work = seconds_of("1d" if options.tiny else options.work)
    print(machine_line())
    if options.save is None or options.start is None:
        save, start, size = measured(
            options.data, options.backbone, starts=1 if options.tiny else 2
        )
        print(
            f"measured: a checkpoint of {size / 1e6:,.1f} MB is saved in {save:.3g} s, and a start takes {start:.3g} s"
        )
    if options.save is not None:
        save = seconds_of(options.save)
    if options.start is not None:
        start = seconds_of(options.start)
    print(
        f"a save takes {save:.3g} s, a start {start:.3g} s; {readable(work)} of work, {runs:,} runs; % of the time that is lost, simulated (by Daly's formula)\n"
    )
    names = [f"saved every {every}" for every in options.every]
    print(head(["a failure every", "best interval", "lost with it, %", *names]))
    rng = np.random.default_rng(0)
    for text in options.mtbf:
        costs = Costs(save, start, seconds_of(text))
        best = best_interval(costs)
        cells = []
        for every in (best, *map(seconds_of, options.every)):
            n_intervals = max(1, round(work / every))
            useful = n_intervals * every
            formula = expected(costs, every, n_intervals)
            if formula > AT_MOST * useful:  # it would be simulated for ever
                cells.append(f"over {100 * (1 - 1 / AT_MOST):.0f}")
                continue
            mean = simulated(costs, every, n_intervals, runs, rng).mean()
            cells.append(f"{lost(useful, mean)} ({lost(useful, formula)})")
        print(row([text, readable(best), *cells]), flush=True)


def lost(useful: float, seconds: float) -> str:
    """The share of the time that no work was done in, in percent."""
    return f"{100 * (1 - useful / seconds):.2g}"


if __name__ == "__main__":
    main()
