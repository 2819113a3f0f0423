"""What the experiments on mined negatives share: runs that are made once and resumed, and tables with intervals."""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from ltr.compare.statistics import estimate, randomisation_p

MEASURES = ("nDCG@10", "RR@10", "AP", "R@100")


def parser(description: str) -> argparse.ArgumentParser:
    """The options of all; further ones are those of ltr fit."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, help="a collection")
    made.add_argument("--queries", type=int, help="training queries; all if left out")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--runs", type=Path, default=Path("runs/mined"), help="where the runs lie")
    made.add_argument("--table", action="store_true", help="train nothing")
    return made


def collection(asked: argparse.Namespace) -> tuple[Path, Path]:
    """The folder of the runs on this collection; and the collection, with its first n training queries, drawn once for all."""
    data, n = asked.data, asked.queries
    root = asked.runs / (data.name if n is None else f"{data.name}-{n}")
    root.mkdir(parents=True, exist_ok=True)
    folder = root / "data"
    if n is None:
        return root, data
    if not folder.exists():
        part = folder.with_suffix(".tmp")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(data, part)
        file = part / "qrels/train.tsv"
        header, *lines = file.read_text().splitlines(keepends=True)
        queries = sorted({line.split("\t")[0] for line in lines})
        kept = set(np.random.default_rng(0).permutation(queries)[:n].tolist())
        file.write_text(header + "".join(line for line in lines if line.split("\t")[0] in kept))
        part.rename(folder)
    return root, folder


def make(run: Path, config: Path, data: Path, seed: int, options: list[str]) -> None:
    """Train and test one run, unless it is there."""
    if (run / "test.run").is_file():
        return
    ltr, where = [sys.executable, "-m", "ltr"], ["--trainer.default_root_dir", str(run)]
    fit = [*ltr, "fit", "--config", str(config), "--data.path", str(data), "--seed_everything", str(seed), *where, *options]
    subprocess.run([*fit, "--trainer.limit_val_batches", "0", "--ckpt_path", "last"], check=True)
    subprocess.run([*ltr, "test", str(run)], check=True)


def row(runs: list[Path], before: np.ndarray | None) -> tuple[str, np.ndarray | None]:
    """The cells of a row of a table: metrics, seconds, the difference of nDCG@10 from another row; and its values ``[S, Q]``."""
    if not all((run / "test.run").is_file() for run in runs):
        return f"not yet |{' |' * (len(MEASURES) + 1)}", None
    results = [json.loads((run / "metrics.json").read_text()) for run in runs]
    cells = [spread([one["test"][measure] for one in results]) for measure in MEASURES]
    cells.append(spread([one["fit"]["seconds"] for one in results], 0))
    by_query = [per_query(run, "nDCG@10") for run in runs]
    now = np.array([[one[query] for query in by_query[0]] for one in by_query])
    return " | ".join([*cells, "" if before is None else compared(now, before)]) + " |", now


def spread(values: list[float], digits: int = 4) -> str:
    """Mean and deviation."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def per_query(run: Path, measure: str) -> dict[str, float]:
    """Query id and value, of a tested run."""
    header, *lines = (line.split("\t") for line in (run / "per_query.tsv").read_text().splitlines())
    at = header.index(measure)
    return {line[0]: float(line[at]) for line in lines if line[at] not in ("", "nan")}


def compared(now: np.ndarray, before: np.ndarray) -> str:
    """The mean difference with its 95 % interval and p over queries and seeds, and p over the queries of these very models."""
    found, models = estimate(now, before), randomisation_p(now.mean(axis=0) - before.mean(axis=0))
    low, high = found.interval()
    return f"{found.mean:+.4f} ({low:+.4f} to {high:+.4f}), p {found.p:.3f}; these models: p {models:.4f}"


def heading(first: str, against: str) -> str:
    """The first two lines of a table."""
    names = [first, *MEASURES, "training, s", f"nDCG@10 against {against}"]
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"
