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
from harness.tables import head, row

from ltr.compare.statistics import estimate, holm
from ltr.compare.tables import p_value
from ltr.data.letor import FeatureSplit
from ltr.datamodules import FeatureDataModule, Loading
from ltr.grid.definition import Grid
from ltr.metrics import RankingMetric

TREES = 300
LATE = 5  # epochs at the end
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


class Table(NamedTuple):
    """A split as trees want it."""

    features: np.ndarray
    labels: np.ndarray
    sizes: list[int]  # documents of each query


class Stages(NamedTuple):
    """Trees that were trained."""

    curve: list[float]  # nDCG@k of the dev split after each tree
    predict: Callable[[np.ndarray, int], np.ndarray]  # by the first n trees


class Result(NamedTuple):
    """Of one training.

    Attributes:
        test: metrics of the test split.
        dev: the metric that chose.
        late: the same, the mean over the last epochs.
        seconds: of the training.
    """

    test: dict[str, float]
    dev: float
    late: float
    seconds: float


def folds_of(config: dict[str, Any]) -> list[int | None]:
    """The folds of the data that a configuration names."""
    data = config["data"]["init_args"]
    if "fold" not in data:
        return [None]
    path = Path(data["path"])
    plan = path / "folds.json"
    if plan.is_file():
        names = list(json.loads(plan.read_text()))
    else:
        names = [folder.name for folder in path.glob("Fold[0-9]*")]
    return sorted(int(name.removeprefix("Fold")) for name in names)


def read_result(folder: Path, measure: str) -> Result:
    """What a run folder holds."""
    metrics = json.loads((folder / "metrics.json").read_text())
    test = {}
    for name, value in metrics["test"].items():
        if isinstance(value, float) and name != "seconds":
            test[name] = value
    curve = [validation[measure] for validation in metrics["validations"]]
    return Result(test, max(curve), statistics.fmean(curve[-LATE:]), metrics["fit"]["seconds"])


def measure_scores(
    scores: np.ndarray, split: FeatureSplit, metrics: list[RankingMetric]
) -> dict[str, float]:
    """The metrics of one score per document, query after query."""
    for metric in metrics:
        metric.reset()
    begin = 0
    for query in range(len(split)):
        labelled = split.whole(query)
        n_docs = len(labelled.labels)
        of_query = scores[begin : begin + n_docs].astype(np.float32)
        begin += n_docs
        lists = (of_query, labelled.labels, np.ones(n_docs, dtype=bool), labelled.doc_rows)
        for metric in metrics:
            metric.update(*(torch.from_numpy(array)[None] for array in lists))
    return {metric.name: metric.compute().item() for metric in metrics}


def table_of(split: FeatureSplit, n_features: int) -> Table:
    """Features, labels and list sizes as trees want them."""
    rows = [split.rows(query) for query in range(len(split))]
    order = np.concatenate(rows)
    features = np.zeros((len(order), n_features), dtype=np.float32)
    features[:, : split.n_features] = split.features[order]
    return Table(features, split.labels[order], [len(of_query) for of_query in rows])


def lightgbm_stages(setting: str, train: Table, dev: Table, k: int, n_trees: int) -> Stages:
    """LightGBM's trees, trained by its lambdarank."""
    import lightgbm

    options = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [k],
        "num_threads": 1,
        "seed": 0,
        "verbose": -1,
    }
    curve: dict = {}
    model = lightgbm.train(
        options | LIGHTGBM[setting],
        lightgbm.Dataset(train.features, train.labels, group=train.sizes),
        n_trees,
        valid_sets=[lightgbm.Dataset(dev.features, dev.labels, group=dev.sizes)],
        callbacks=[lightgbm.record_evaluation(curve)],
    )

    def predict(features: np.ndarray, n: int) -> np.ndarray:
        return model.predict(features, num_iteration=n)

    return Stages(curve["valid_0"][f"ndcg@{k}"], predict)


def xgboost_stages(setting: str, train: Table, dev: Table, k: int, n_trees: int) -> Stages:
    """XGBoost's trees, trained by its rank:ndcg."""
    import xgboost

    def matrix(table: Table) -> Any:
        matrix = xgboost.DMatrix(table.features, table.labels)
        matrix.set_group(table.sizes)
        return matrix

    options = {"objective": "rank:ndcg", "eval_metric": f"ndcg@{k}", "nthread": 1, "seed": 0}
    curve: dict = {}
    model = xgboost.train(
        options | XGBOOST[setting],
        matrix(train),
        n_trees,
        evals=[(matrix(dev), "dev")],
        evals_result=curve,
        verbose_eval=False,
    )

    def predict(features: np.ndarray, n: int) -> np.ndarray:
        return model.predict(xgboost.DMatrix(features), iteration_range=(0, n))

    return Stages(curve["dev"][f"ndcg@{k}"], predict)


PEERS = {"LightGBM": (lightgbm_stages, LIGHTGBM), "XGBoost": (xgboost_stages, XGBOOST)}


def rows_of_peer(
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
    train, settings = PEERS[peer]
    k = int(measure.partition("@")[2])
    all_trees = f"{n_trees} trees"
    best_stage = "best stage"
    results: dict[tuple[str, str], list[Result]] = {}  # by setting and rule: of each fold
    for fold in folds:
        splits = splits_of(config, fold)
        n_features = max(split.n_features for split in splits.values())
        tables = {name: table_of(split, n_features) for name, split in splits.items()}
        for setting in settings:
            start = time.perf_counter()
            stages = train(setting, tables["train"], tables["dev"], k, n_trees)
            seconds = time.perf_counter() - start
            # Both take the gain 2^grade - 1 and count a query without a relevant document as 1: the
            # best stage is ours too.
            best_n = int(np.argmax(stages.curve)) + 1
            for rule, n in ((all_trees, n_trees), (best_stage, best_n)):
                values = {}
                for name in ("dev", "test"):
                    scores = stages.predict(tables[name].features, n)
                    values[name] = measure_scores(scores, splits[name], metrics)
                result = Result(values["test"], values["dev"][measure], math.nan, seconds)
                results.setdefault((setting, rule), []).append(result)
    measures = [metric.name for metric in metrics]
    for rule in (all_trees, best_stage):
        on_dev = {}
        for setting in settings:
            on_dev[setting] = statistics.fmean(result.dev for result in results[setting, rule])
        best = max(on_dev, key=on_dev.__getitem__)
        yield result_row(f"{peer}, {best}, {rule}", [results[best, rule]], measures)


def splits_of(config: dict[str, Any], fold: int | None) -> dict[str, FeatureSplit]:
    """Train, dev and test of the data that a configuration names, as they are in the files."""
    options = config["data"]["init_args"] | {"normalise": None, "loading": Loading(seed=0)}
    if fold is not None:
        options["fold"] = fold
    data = FeatureDataModule(**options)
    return {name: data.split(name) for name in ("train", "dev", "test")}


def result_row(name: str, by_seed: list[list[Result]], measures: list[str]) -> str:
    """A row of the table; ``by_seed`` has the results of each seed by fold."""

    def cell(value: Callable[[Result], float], digits: int) -> str:
        """The mean over folds and seeds ± the deviation over the seeds; empty if it is NaN."""
        means = [statistics.fmean(map(value, folds)) for folds in by_seed]
        if math.isnan(means[0]):
            return ""
        mean = f"{statistics.fmean(means):.{digits}f}"
        if len(means) > 1:
            mean += f" ± {statistics.stdev(means):.{digits}f}"
        return mean

    cells = [name]
    for measure in measures:
        cells.append(cell(lambda result, measure=measure: result.test[measure], 4))
    cells.append(cell(lambda result: result.dev, 4))
    cells.append(cell(lambda result: result.late, 4))
    cells.append(cell(lambda result: result.seconds, 1))
    return row(cells)


def values_by_query(folders: list[Path], measure: str) -> np.ndarray:
    """The metric of each test query of all folds; NaN where there is nothing to find."""
    values: list[float] = []
    for folder in folders:
        lines = (folder / "per_query.tsv").read_text().splitlines()
        column = lines[0].split("\t").index(measure)
        for line in lines[1:]:
            values.append(float(line.split("\t")[column] or "nan"))
    return np.asarray(values)


def difference_table(values: dict[str, np.ndarray], base: str, measure: str) -> Iterator[str]:
    """A table of the differences from one ranker over the queries of all folds and the seeds,
    ``[S, Q]`` each.
    """
    estimates = {}
    for name, of_ranker in values.items():
        if name != base:
            estimates[name] = estimate(of_ranker, values[base])
    corrected = holm([difference.p for difference in estimates.values()])
    columns = [f"{measure}, difference from {base}", "mean", "95 % interval", "p", "p, Holm"]
    yield f"\n{head(columns)}"
    for (name, difference), p in zip(estimates.items(), corrected, strict=True):
        low, high = difference.interval()
        mean = f"{difference.mean:+.4f}"
        interval = f"{low:+.4f} to {high:+.4f}"
        yield row([name, mean, interval, p_value(difference.p), p_value(p)])
    level = 0.05 / len(estimates)
    detectable = statistics.median(
        difference.detectable(level) for difference in estimates.values()
    )
    yield (
        f"\nOver queries and seeds; Holm's correction over {len(estimates)}. "
        f"This data could show a difference of {detectable:.3f}."
    )


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
    cells = {cell.names[0]: cell for cell in grid.cells()}
    seeds = options.seeds or grid.seeds
    baseline = grid.baseline[0] if grid.baseline else next(iter(cells))
    (base,) = grid.base
    config = yaml.safe_load(base.read_text())
    measure = config["best"]["monitor"].removeprefix("val/")
    if not re.fullmatch(r"nDCG_exp@\d+", measure):
        arguments.error(
            f"best.monitor must be val/nDCG_exp@k, which the trees use too, got {config['best']['monitor']}"
        )
    folds = folds_of(config)
    n_trees = TREES
    short: tuple[str, ...] = ()
    if options.tiny:
        folds = folds[:1]
        n_trees = 2
        short = ("--trainer.max_epochs", "1")
    max_grade = config["model"].get("max_grade", 4.0)
    metrics = [RankingMetric(name, max_grade=max_grade) for name in config["model"]["metrics"]]
    measures = [metric.name for metric in metrics]

    runs: dict[tuple[str, int], list[Run]] = {}  # by name and seed: of each fold
    for name, cell in cells.items():
        for seed in seeds:
            with_seed = replace(cell, seed=seed)
            runs[name, seed] = [Run(grid, with_seed, fold, short, options.runs) for fold in folds]
    train_all([run for of_folds in runs.values() for run in of_folds], options.jobs)
    dev = [f"dev {measure}, best", f"dev, last {LATE} epochs"]
    columns = ["ranker", *measures, *dev, "training, s"]
    print(f"\n{head(columns)}")
    for name in cells:
        by_seed = []
        for seed in seeds:
            by_seed.append([read_result(run.folder, measure) for run in runs[name, seed]])
        print(result_row(name, by_seed, measures), flush=True)
    for peer in PEERS:
        try:
            rows = rows_of_peer(peer, config, folds, measure, metrics, n_trees)
            print(*rows, sep="\n", flush=True)
        except ImportError as error:
            print(f"| {peer}: absent ({error}) |{' |' * (len(columns) - 1)}")
    if len(cells) > 1 and len(seeds) > 1:
        values = {}
        for name in cells:
            of_seeds = []
            for seed in seeds:
                folders = [run.folder for run in runs[name, seed]]
                of_seeds.append(values_by_query(folders, measure))
            values[name] = np.stack(of_seeds)
        # Queries count where every run has a value.
        counts = np.isfinite(np.concatenate([*values.values()])).all(axis=0)
        counted = {name: of_ranker[:, counts] for name, of_ranker in values.items()}
        print(*difference_table(counted, baseline, measure), sep="\n")
    for metric in metrics:
        print(f"{metric.name}: {metric.convention}")
    print(f"Seeds {', '.join(map(str, seeds))}; trees are deterministic. {machine_line()}")


if __name__ == "__main__":
    main()
