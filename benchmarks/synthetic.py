"""Which loss recovers a hidden linear ranking?  python benchmarks/synthetic.py [--seeds N]

The setting of a well-known notebook: 1,000 documents with 100 features and a hidden linear ranking,
two epochs over lists of 16, a net of 10 hidden units (``experiments/grids/synthetic.yaml``);
measured at the end, on 500 other documents as one list of 124,750 pairs. Every seed is another
task. Under one seed all configurations get the same data, the same initial weights (where the net
is the same) and the same lists, so they are compared seed by seed. A run that is in
``runs/synthetic`` already is read.
"""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness.machine import machine_line
from harness.options import parser
from harness.runs import Run, train_all
from harness.tables import head, row

from ltr.data.synthetic import synthetic_splits, true_weights
from ltr.grid.definition import Grid
from ltr.metrics import swapped_pairs

GRID = Path("experiments", "grids", "synthetic.yaml")
BASE = "listnet"


def of_true_weights(seed: int) -> float:
    """Swapped pairs of the best possible ranker: those that the noise swaps."""
    dev = synthetic_splits(seed)["dev"]
    scores = torch.from_numpy(dev.features @ true_weights(seed))[None]
    labels = torch.from_numpy(dev.labels)[None]
    return swapped_pairs(scores, labels, torch.ones_like(labels, dtype=torch.bool)).item()


def metrics_of(run: Run) -> dict[str, Any]:
    """What a run's metrics.json holds."""
    return json.loads((run.folder / "metrics.json").read_text())


def at_the_end(runs: list[Run], measure: str) -> list[float]:
    """A metric of each run on dev after its last epoch."""
    return [metrics_of(run)["validations"][-1][measure] for run in runs]


def mean_cell(values: list[float], digits: int) -> str:
    """Mean ± deviation."""
    return f"{statistics.fmean(values):,.{digits}f} ± {statistics.stdev(values):,.{digits}f}"


def main() -> None:
    """Train what is missing, print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=8, help="number of seeds, 2 or more")
    arguments.add_argument(
        "--runs", type=Path, default=Path("runs"), help="the folder of the run folders"
    )
    options = arguments.parse_args()
    seeds = range(2 if options.tiny else max(2, options.seeds))
    grid = Grid.read(GRID)
    jobs = None
    short = ()
    configurations = {cell.names[0]: cell for cell in grid.cells()}
    if options.tiny:
        configurations = {BASE: configurations[BASE]}
        jobs = 1
        short = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2")
    runs: dict[str, list[Run]] = {}  # by seed
    for name, configuration in configurations.items():
        runs[name] = [
            Run(grid, replace(configuration, seed=seed), None, short, options.runs)
            for seed in seeds
        ]
    train_all([run for of_seeds in runs.values() for run in of_seeds], jobs)
    columns = [
        "configuration",
        "swapped pairs",
        "fewer than ListNet ± s.e.",
        "nDCG, 2^grade − 1",
        "nDCG, grade",
        "training, s",
    ]
    print(head(columns))
    base = at_the_end(runs[BASE], "swapped_pairs")
    for name, of_seeds in runs.items():
        swapped = at_the_end(of_seeds, "swapped_pairs")
        gains = [before - after for before, after in zip(base, swapped, strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        seconds = [metrics_of(run)["fit"]["seconds"] for run in of_seeds]
        cells = [
            name,
            mean_cell(swapped, 0),
            "" if name == BASE else f"{statistics.fmean(gains):,.0f} ± {error:,.0f}",
            mean_cell(at_the_end(of_seeds, "nDCG_exp"), 4),
            mean_cell(at_the_end(of_seeds, "nDCG"), 4),
            f"{statistics.fmean(seconds):.1f}",
        ]
        print(row(cells))
    print(
        f"| the true weights | {mean_cell([of_true_weights(seed) for seed in seeds], 0)} | | | | |"
    )
    print(f"Seeds {seeds.start} to {seeds.stop - 1}. {machine_line()}")


if __name__ == "__main__":
    main()
