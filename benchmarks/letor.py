"""How good are feature rankers beside boosted trees?  python benchmarks/letor.py
experiments/grids/mq2008.yaml

Every cell of the grid is trained and tested on every fold of its data, by the command line, into
``runs/GRID[/fold=K]/NAME/seed=N``. A run that is there already is read: remove its folder after a
change of the file. The trees (LightGBM's lambdarank and XGBoost's rank:ndcg,
``pip install -e '.[bench]'``) get the same queries and the same metrics. All choose on the dev
split alone: ours the epoch; the trees one of the settings below by its mean over the folds, and in
the rows "best stage" also the number of trees, which is 300 otherwise.

Prints, for each ranker, the metrics of the test split (mean over folds, then mean ± deviation over
seeds), the dev metric that chose, and the seconds of training for one fold. The best of many epochs
is too good on dev, more so for noisier configurations; to choose among configurations, look at the
mean of the last five epochs instead. A second table tests the differences from the grid's baseline,
over the queries of all folds and the seeds.
"""

import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from harness.machine import machine_line
from harness.options import parser
from harness.runs import Run, train_all

from ltr.compare.statistics import estimate, holm
from ltr.compare.tables import p_value
from ltr.data.letor import FeatureSplit
from ltr.datamodules import FeatureDataModule, Loading
from ltr.grid import Grid
from ltr.metrics import RankingMetric

TREES = 300
LATE = 5
LIGHTGBM = {
    "lr 0.1, 31 leaves": {"learning_rate": 0.1, "num_leaves": 31},
    "lr 0.05, 31 leaves": {"learning_rate": 0.05, "num_leaves": 31},
    "lr 0.03, 7 leaves of 50": {"learning_rate": 0.03, "num_leaves": 7, "min_data_in_leaf": 50},
}
XGBOOST = {
    "eta 0.3, depth 6": {"eta": 0.3, "max_depth": 6},
    "eta 0.1, depth 6": {"eta": 0.1, "max_depth": 6},
    "eta 0.05, depth 4": {"eta": 0.05, "max_depth": 4},
}


Table = tuple[np.ndarray, np.ndarray, list[int]]  # features, labels, documents of each query


class Result(NamedTuple):
    """Of one training: metrics of the test split; on dev the metric that chose, and its mean over
    the last epochs; seconds.
    """

    test: dict[str, float]
    dev: float
    late: float
    seconds: float


def folds_of(config: dict[str, Any]) -> list[int | None]:
    """The folds of the data that a configuration names."""
    path = Path(config["data"]["init_args"]["path"])
    data = config["data"]["init_args"]
    if "fold" not in data:
        return [None]
    plan = path / "folds.json"
    names = (
        json.loads(plan.read_text())
        if plan.is_file()
        else [p.name for p in path.glob("Fold[0-9]*")]
    )
    return sorted(int(name.removeprefix("Fold")) for name in names)


def read(folder: Path, measure: str) -> Result:
    """What a run folder holds."""
    metrics = json.loads((folder / "metrics.json").read_text())
    test = {
        name: value
        for name, value in metrics["test"].items()
        if isinstance(value, float) and name != "seconds"
    }
    curve = [validation[measure] for validation in metrics["validations"]]
    return Result(test, max(curve), statistics.fmean(curve[-LATE:]), metrics["fit"]["seconds"])


def measured(
    scores: np.ndarray, split: FeatureSplit, metrics: list[RankingMetric]
) -> dict[str, float]:
    """The metrics of one score per document, query after query."""
    for metric in metrics:
        metric.reset()
    at = 0
    for query in range(len(split)):
        one = split.whole(query)
        of_query = scores[at : at + len(one.labels)].astype(np.float32)
        at += len(of_query)
        lists = (of_query, one.labels, np.ones(len(one.labels), dtype=bool), one.doc_rows)
        for metric in metrics:
            metric.update(*(torch.from_numpy(array)[None] for array in lists))
    return {metric.measure: metric.compute().item() for metric in metrics}


def table_of(split: FeatureSplit, n_features: int) -> Table:
    """Features, labels and list sizes as trees want them."""
    rows = [split.rows(query) for query in range(len(split))]
    order = np.concatenate(rows)
    features = np.zeros((len(order), n_features), dtype=np.float32)
    features[:, : split.n_features] = split.features[order]
    return features, split.labels[order], [len(r) for r in rows]


def lightgbm_stages(
    setting: str, train: Table, dev: Table, k: int, n_trees: int
) -> tuple[list[float], Callable[[np.ndarray, int], np.ndarray]]:
    """nDCG@k of the dev split after each tree, and what predicts with the first n trees."""
    import lightgbm

    options = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [k],
        "num_threads": 1,
        "seed": 0,
        "verbose": -1,
    }
    sets = [lightgbm.Dataset(x, y, group=sizes) for x, y, sizes in (train, dev)]
    curve: dict = {}
    record = [lightgbm.record_evaluation(curve)]
    model = lightgbm.train(
        options | LIGHTGBM[setting], sets[0], n_trees, valid_sets=[sets[1]], callbacks=record
    )
    return curve["valid_0"][f"ndcg@{k}"], lambda x, n: model.predict(x, num_iteration=n)


def xgboost_stages(
    setting: str, train: Table, dev: Table, k: int, n_trees: int
) -> tuple[list[float], Callable[[np.ndarray, int], np.ndarray]]:
    """The same of XGBoost."""
    import xgboost

    options = {"objective": "rank:ndcg", "eval_metric": f"ndcg@{k}", "nthread": 1, "seed": 0}
    sets = [xgboost.DMatrix(x, y) for x, y, _ in (train, dev)]
    for matrix, (_, _, sizes) in zip(sets, (train, dev), strict=True):
        matrix.set_group(sizes)
    curve: dict = {}
    evals = {"evals": [(sets[1], "dev")], "evals_result": curve, "verbose_eval": False}
    model = xgboost.train(options | XGBOOST[setting], sets[0], n_trees, **evals)
    return curve["dev"][f"ndcg@{k}"], lambda x, n: model.predict(
        xgboost.DMatrix(x), iteration_range=(0, n)
    )


PEERS = {"LightGBM": (lightgbm_stages, LIGHTGBM), "XGBoost": (xgboost_stages, XGBOOST)}


def of_peer(
    peer: str,
    config: dict[str, Any],
    folds: list[int | None],
    measure: str,
    metrics: list[RankingMetric],
    n_trees: int,
) -> Iterator[str]:
    """Rows of the table: the setting that is best on dev, with all trees, and with the best number
    of them.
    """
    stages, settings = PEERS[peer]
    found: dict[tuple[str, str], list[Result]] = {}
    for fold in folds:
        which = {} if fold is None else {"fold": fold}
        data = FeatureDataModule(
            **config["data"]["init_args"] | which | {"normalise": None, "loading": Loading(seed=0)}
        )
        splits = {name: data.split(name) for name in ("train", "dev", "test")}
        n_features = max(split.n_features for split in splits.values())
        tables = {name: table_of(split, n_features) for name, split in splits.items()}
        for setting in settings:
            begun = time.perf_counter()
            curve, predict = stages(
                setting, tables["train"], tables["dev"], int(measure.partition("@")[2]), n_trees
            )
            seconds = time.perf_counter() - begun
            # Both take the gain 2^grade - 1 and count a query without a relevant document as 1: the
            # best stage is ours too.
            for rule, n in (
                (f"{n_trees} trees", n_trees),
                ("best stage", int(np.argmax(curve)) + 1),
            ):
                values = {
                    name: measured(predict(tables[name][0], n), splits[name], metrics)
                    for name in ("dev", "test")
                }
                found.setdefault((setting, rule), []).append(
                    Result(values["test"], values["dev"][measure], math.nan, seconds)
                )
    for rule in (f"{n_trees} trees", "best stage"):
        best = max(settings, key=lambda s: statistics.fmean(r.dev for r in found[s, rule]))  # noqa: B023
        yield row(
            f"{peer}, {best}, {rule}", [found[best, rule]], [metric.measure for metric in metrics]
        )


def row(name: str, by_seed: list[list[Result]], measures: list[str]) -> str:
    """A row of the table; ``by_seed`` has the results of each seed by fold."""

    def over(values: list[list[float]], digits: int) -> str:
        means = [statistics.fmean(folds) for folds in values]
        deviation = f" ± {statistics.stdev(means):.{digits}f}" if len(means) > 1 else ""
        return "" if math.isnan(means[0]) else f"{statistics.fmean(means):.{digits}f}{deviation}"

    cells = [over([[r.test[m] for r in folds] for folds in by_seed], 4) for m in measures]
    cells += [
        over([[getattr(r, column) for r in folds] for folds in by_seed], 4)
        for column in ("dev", "late")
    ]
    cells.append(over([[r.seconds for r in folds] for folds in by_seed], 1))
    return f"| {' | '.join([name, *cells])} |"


def by_query(folders: list[Path], measure: str) -> np.ndarray:
    """The metric of each test query of all folds; NaN where there is nothing to find."""
    values: list[float] = []
    for folder in folders:
        header, *lines = (
            line.split("\t") for line in (folder / "per_query.tsv").read_text().splitlines()
        )
        values += [float(line[header.index(measure)] or "nan") for line in lines]
    return np.asarray(values)


def compared(values: dict[str, np.ndarray], base: str, measure: str) -> Iterator[str]:
    """A table of the differences from one ranker over the queries of all folds and the seeds,
    ``[S, Q]`` each.
    """
    found = {name: estimate(own, values[base]) for name, own in values.items() if name != base}
    corrected = holm([one.p for one in found.values()])
    yield f"\n| {measure}, difference from {base} | mean | 95 % interval | p | p, Holm |\n|{' --- |' * 5}"
    for (name, one), p in zip(found.items(), corrected, strict=True):
        low, high = one.interval()
        yield f"| {name} | {one.mean:+.4f} | {low:+.4f} to {high:+.4f} | {p_value(one.p)} | {p_value(p)} |"
    detectable = statistics.median(one.detectable(0.05 / len(found)) for one in found.values())
    yield f"\nOver queries and seeds; Holm's correction over {len(found)}. This data could show a difference of {detectable:.3f}."


def main() -> None:
    """Parse the arguments, train what is missing, print the tables."""
    arguments = parser(__doc__)
    arguments.add_argument("grid", type=Path, help="a grid of one axis over feature vectors")
    arguments.add_argument("--seeds", type=int, nargs="+", help="default: those of the grid")
    arguments.add_argument(
        "--jobs", type=int, help="runs at a time, one thread each; default: as many as cores"
    )
    arguments.add_argument(
        "--runs", type=Path, default=Path("runs"), help="the folder of the run folders"
    )
    options = arguments.parse_args()
    if options.tiny:
        options.seeds = [0, 1]
        options.jobs = 1
    grid = Grid.read(options.grid)
    cells = {one.names[0]: one for one in grid.cells()}
    seeds = options.seeds or grid.seeds
    (base,), base_name = grid.base, next(iter(grid.baseline), next(iter(cells)))
    first = yaml.safe_load(base.read_text())
    measure = first["best"]["monitor"].removeprefix("val/")
    if not re.fullmatch(r"nDCG_exp@\d+", measure):
        arguments.error(
            f"best.monitor must be val/nDCG_exp@k, which the trees use too, got {first['best']['monitor']}"
        )
    folds = folds_of(first)[: 1 if options.tiny else None]
    model = first["model"]
    metrics = [
        RankingMetric(name, max_grade=model.get("max_grade", 4.0)) for name in model["metrics"]
    ]
    measures = [metric.measure for metric in metrics]

    short = ("--trainer.max_epochs", "1") if options.tiny else ()
    runs = {
        (name, fold, seed): Run(grid, replace(cell, seed=seed), fold, short, options.runs)
        for name, cell in cells.items()
        for seed in seeds
        for fold in folds
    }
    train_all(list(runs.values()), options.jobs)
    heads = ["ranker", *measures, f"dev {measure}, best", f"dev, last {LATE} epochs", "training, s"]
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name in cells:
        by_seed = [
            [read(runs[name, fold, seed].folder, measure) for fold in folds] for seed in seeds
        ]
        print(row(name, by_seed, measures), flush=True)
    for peer in PEERS:
        try:
            print(
                *of_peer(peer, first, folds, measure, metrics, 2 if options.tiny else TREES),
                sep="\n",
                flush=True,
            )
        except ImportError as error:
            print(f"| {peer}: absent ({error}) |{' |' * (len(heads) - 1)}")
    if len(cells) > 1 and len(seeds) > 1:
        values = {
            name: np.stack(
                [
                    by_query([runs[name, fold, seed].folder for fold in folds], measure)
                    for seed in seeds
                ]
            )
            for name in cells
        }
        counted = np.isfinite(np.stack([*values.values()])).all(axis=(0, 1))
        print(
            *compared({name: own[:, counted] for name, own in values.items()}, base_name, measure),
            sep="\n",
        )
    for metric in metrics:
        print(f"{metric.measure}: {metric.convention}")
    print(f"Seeds {', '.join(map(str, seeds))}; trees are deterministic. {machine_line()}")


if __name__ == "__main__":
    main()
