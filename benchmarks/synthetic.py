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

import torch
from harness.machine import machine_line
from harness.options import parser
from harness.runs import Run, train_all

from ltr.data.synthetic import synthetic_splits, true_weights
from ltr.grid import Grid
from ltr.metrics import swapped_pairs

GRID = Path("experiments", "grids", "synthetic.yaml")
BASE = "listnet"
MEASURES = ("swapped_pairs", "nDCG_exp", "nDCG")


def of_true_weights(seed: int) -> float:
    """Swapped pairs of the best possible ranker: those that the noise swaps."""
    dev = synthetic_splits(seed)["dev"]
    scores = torch.from_numpy(dev.features @ true_weights(seed))[None]
    labels = torch.from_numpy(dev.labels)[None]
    return swapped_pairs(scores, labels, torch.ones_like(labels, dtype=torch.bool)).item()


def cell(values: list[float], digits: int) -> str:
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
    cells = {one.names[0]: one for one in grid.cells()}
    if options.tiny:
        cells = {BASE: cells[BASE]}
        jobs = 1
        short = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2")
    runs = {
        (name, seed): Run(grid, replace(cell, seed=seed), None, short, options.runs)
        for name, cell in cells.items()
        for seed in seeds
    }
    train_all(list(runs.values()), jobs)
    found = {
        key: json.loads((run.folder / "metrics.json").read_text()) for key, run in runs.items()
    }
    heads = (
        "configuration",
        "swapped pairs",
        "fewer than ListNet ± s.e.",
        "nDCG, 2^grade − 1",
        "nDCG, grade",
        "training, s",
    )
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name in cells:
        last = {
            measure: [found[name, seed]["validations"][-1][measure] for seed in seeds]
            for measure in MEASURES
        }
        base = [found[BASE, seed]["validations"][-1]["swapped_pairs"] for seed in seeds]
        gains = [b - v for b, v in zip(base, last["swapped_pairs"], strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        paired = "" if name == BASE else f"{statistics.fmean(gains):,.0f} ± {error:,.0f}"
        seconds = statistics.fmean(found[name, seed]["fit"]["seconds"] for seed in seeds)
        cells = [
            cell(last["swapped_pairs"], 0),
            paired,
            cell(last["nDCG_exp"], 4),
            cell(last["nDCG"], 4),
            f"{seconds:.1f}",
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"| the true weights | {cell([of_true_weights(seed) for seed in seeds], 0)} | | | | |")
    print(f"Seeds {seeds.start} to {seeds.stop - 1}. {machine_line()}")


if __name__ == "__main__":
    main()
