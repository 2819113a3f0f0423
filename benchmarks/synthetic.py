"""Losses in the setting of a well-known notebook: python benchmarks/synthetic.py [SEEDS]

1,000 documents with 100 features and a hidden linear ranking, two epochs over lists of 16, a net of 10 hidden units
(``experiments/features/synthetic_*.yaml``); measured at the end, on 500 other documents as one list of 124,750 pairs. Every
seed is another task; under one seed all configurations see the same data, the same initial weights (where the net is the same)
and the same lists, so they are compared seed by seed. Runs lie in ``runs/features``; one that is there is read.
"""

import json
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from letor import train
from machine import described

from ltr.data.synthetic import synthetic_splits, true_weights
from ltr.metrics import swapped_pairs

SEEDS = range(max(2, int(sys.argv[1])) if len(sys.argv) > 1 else 8)
BASE = "synthetic_listnet"
CONFIGS = [BASE, *(f"synthetic_{name}" for name in ("ranknet", "ranknet_adjacent", "list_mle", "best"))]
MEASURES = ("swapped_pairs", "nDCG_exp", "nDCG")


def of_true_weights(seed: int) -> float:
    """Swapped pairs that the noise leaves to the best of rankers."""
    dev = synthetic_splits(seed)["dev"]
    scores, labels = torch.from_numpy(dev.features @ true_weights(seed))[None], torch.from_numpy(dev.labels)[None]
    return swapped_pairs(scores, labels, torch.ones_like(labels, dtype=torch.bool)).item()


def cell(values: list[float], digits: int) -> str:
    """Mean ± deviation."""
    return f"{statistics.fmean(values):,.{digits}f} ± {statistics.stdev(values):,.{digits}f}"


def main() -> None:
    """Print a table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = get_context("forkserver")
    context.set_forkserver_preload(["ltr.cli", "ltr.datamodules", "ltr.modules"])
    found: dict[str, list[dict]] = {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        runs = {
            name: [pool.submit(train, Path(f"experiments/features/{name}.yaml"), None, seed) for seed in SEEDS]
            for name in CONFIGS
        }
        for name, futures in runs.items():
            found[name] = [json.loads((future.result() / "metrics.json").read_text()) for future in futures]
    heads = ("configuration", "swapped pairs", "fewer than ListNet ± s.e.", "nDCG, 2^grade − 1", "nDCG, grade", "training, s")
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name, of_seeds in found.items():
        last = {measure: [one["validations"][-1][measure] for one in of_seeds] for measure in MEASURES}
        base = [one["validations"][-1]["swapped_pairs"] for one in found[BASE]]
        gains = [b - v for b, v in zip(base, last["swapped_pairs"], strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        paired = "" if name == BASE else f"{statistics.fmean(gains):,.0f} ± {error:,.0f}"
        seconds = statistics.fmean(one["fit"]["seconds"] for one in of_seeds)
        cells = [cell(last["swapped_pairs"], 0), paired, cell(last["nDCG_exp"], 4), cell(last["nDCG"], 4), f"{seconds:.1f}"]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"| the true weights | {cell([of_true_weights(seed) for seed in SEEDS], 0)} | | | | |")
    print(f"Seeds {SEEDS.start} to {SEEDS.stop - 1}. {described()}")


if __name__ == "__main__":
    main()
