"""The ladder of negatives: the same encoder, loss and budget under five sources of negatives.

    python experiments/mined/ladder.py --data examples/medquad --queries 400 --seeds 0 1 2 3 4

Trains and tests what is not there yet in runs/mined/<set>/<rung>/seed=<n>, then prints the table: mean and deviation over the
seeds, and each rung against the one before, by a paired t-test over the queries of their nDCG@10 averaged over the seeds. A run
that was interrupted is resumed. Several may run at once, with seeds or rungs of their own; give each one thread and one core.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy import stats

RUNGS = {
    "in_batch": "documents of other queries only",
    "random": "and random negatives",
    "static": "and mined once",
    "refreshed": "and mined before each epoch",
    "medquad": "and margins from their distances",
}
MEASURES = ("nDCG@10", "RR@10", "AP", "R@100")


def with_queries(data: Path, n: int | None, folder: Path) -> Path:
    """The collection with its first n training queries, drawn once for all runs (a copy in the folder); without n as it is."""
    if n is None:
        return data
    if not folder.exists():
        shutil.copytree(data, folder.with_suffix(".tmp"))
        file = folder.with_suffix(".tmp") / "qrels/train.tsv"
        header, *lines = file.read_text().splitlines(keepends=True)
        queries = sorted({line.split("\t")[0] for line in lines})
        kept = set(np.random.default_rng(0).permutation(queries)[:n].tolist())
        file.write_text(header + "".join(line for line in lines if line.split("\t")[0] in kept))
        folder.with_suffix(".tmp").rename(folder)
    return folder


def make(run: Path, rung: str, data: Path, seed: int, options: list[str]) -> None:
    """Train and test one run, unless it is there."""
    if (run / "test.run").is_file():
        return
    config = Path(__file__).with_name(f"{rung}.yaml")
    ltr, where = [sys.executable, "-m", "ltr"], ["--trainer.default_root_dir", str(run)]
    fit = [*ltr, "fit", "--config", str(config), "--data.path", str(data), "--seed_everything", str(seed), *where, *options]
    subprocess.run([*fit, "--trainer.limit_val_batches", "0", "--ckpt_path", "last"], check=True)
    subprocess.run([*ltr, "test", str(run)], check=True)


def per_query(run: Path, measure: str) -> dict[str, float]:
    """Query id and value, of a tested run."""
    header, *lines = (line.split("\t") for line in (run / "per_query.tsv").read_text().splitlines())
    at = header.index(measure)
    return {line[0]: float(line[at]) for line in lines if line[at] not in ("", "nan")}


def averaged(runs: list[Path]) -> dict[str, float]:
    """nDCG@10 by query, the mean over the runs."""
    values = [per_query(run, "nDCG@10") for run in runs]
    return {query: statistics.mean(one[query] for one in values) for query in values[0]}


def table(root: Path, seeds: list[int], rungs: list[str]) -> None:
    """Print the rungs whose runs are all there."""
    print(f"\n{root}: {len(seeds)} seeds\n\n| negatives | {' | '.join(MEASURES)} | training, s | nDCG@10 against the row above |")
    print("|" + " --- |" * (len(MEASURES) + 3))
    before: dict[str, float] | None = None
    for rung in rungs:
        runs = [root / rung / f"seed={seed}" for seed in seeds]
        if not all((run / "test.run").is_file() for run in runs):
            print(f"| {RUNGS[rung]} | not yet |")
            continue
        results = [json.loads((run / "metrics.json").read_text()) for run in runs]
        cells = [spread([one["test"][measure] for one in results]) for measure in MEASURES]
        cells.append(spread([one["fit"]["seconds"] for one in results], 0))
        now = averaged(runs)
        cells.append("" if before is None else compared(now, before))
        before = now
        print(f"| {RUNGS[rung]} | {' | '.join(cells)} |")


def spread(values: list[float], digits: int = 4) -> str:
    """Mean and deviation."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def compared(now: dict[str, float], before: dict[str, float]) -> str:
    """The mean difference over the queries with its 95 % interval, and p of the paired t-test."""
    gaps = np.array([now[query] - before[query] for query in now])
    low, high = stats.t.interval(0.95, len(gaps) - 1, gaps.mean(), stats.sem(gaps))
    return f"{gaps.mean():+.4f} ({low:+.4f} to {high:+.4f}), p {stats.ttest_1samp(gaps, 0).pvalue:.3f}"


def main() -> None:
    """Make the runs, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a collection")
    parser.add_argument("--queries", type=int, help="training queries; all if left out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS))
    parser.add_argument("--runs", type=Path, default=Path("runs/mined"), help="where the runs lie")
    parser.add_argument("--table", action="store_true", help="train nothing")
    asked, options = parser.parse_known_args()
    name = asked.data.name if asked.queries is None else f"{asked.data.name}-{asked.queries}"
    root = asked.runs / name
    root.mkdir(parents=True, exist_ok=True)
    data = with_queries(asked.data, asked.queries, root / "data")
    for seed in asked.seeds:
        for rung in asked.rungs if not asked.table else ():
            make(root / rung / f"seed={seed}", rung, data, seed, options)
    table(root, asked.seeds, asked.rungs)


if __name__ == "__main__":
    main()
