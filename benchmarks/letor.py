"""Feature rankers beside boosted trees: python benchmarks/letor.py experiments/features/mq2008_*.yaml --seeds 0 1 2

Every configuration is trained and tested on every fold of its data under every seed, by the command line, into
``runs/features/NAME[/fold=K]/seed=N``; a run that is there already is read. The trees (LightGBM's lambdarank and XGBoost's
rank:ndcg, ``pip install -c constraints.txt -e '.[bench]'``) see the same queries and the same measures. All choose by the dev
split alone: ours the best epoch, the trees the best of their 300 stages; the rows "300 trees" choose nothing.

Prints, for each ranker, the measures of the test split (mean over folds, then mean ± deviation over seeds), the one that chose on
dev, and the seconds that training took for one fold.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from machine import described

from ltr.__main__ import main as ltr
from ltr.data.letor import FeatureSplit
from ltr.datamodules import FeatureDataModule
from ltr.datamodules.features import whole_list
from ltr.metrics import RankingMetric

TREES = 300


class Result(NamedTuple):
    """What one training gave: measures of the test split, the choosing measure on dev, and seconds."""

    test: dict[str, float]
    dev: float
    seconds: float


def folds_of(config: dict[str, Any]) -> list[int | None]:
    """The folds of the data that a configuration names."""
    path, data = Path(config["data"]["init_args"]["path"]), config["data"]["init_args"]
    if "fold" not in data:
        return [None]
    plan = path / "folds.json"
    names = json.loads(plan.read_text()) if plan.is_file() else [p.name for p in path.glob("Fold[0-9]*")]
    return sorted(int(name.removeprefix("Fold")) for name in names)


def train(config: Path, fold: int | None, seed: int) -> Path:
    """Fit and test one configuration, unless its run is there; its folder."""
    part = [] if fold is None else [f"fold={fold}"]
    folder = Path("runs", "features", config.stem, *part, f"seed={seed}")
    if not (folder / "test.run").is_file():
        torch.set_num_threads(1)
        folder.mkdir(parents=True, exist_ok=True)
        quiet = ["--trainer.default_root_dir", str(folder), "--trainer.enable_progress_bar", "false"]
        which = [] if fold is None else ["--data.init_args.fold", str(fold)]
        with open(folder / "output.txt", "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            begun = ["--ckpt_path", "last"] if (folder / "checkpoints/last.ckpt").is_file() else []
            code = ltr(["fit", "--config", str(config), "--seed_everything", str(seed), *which, *quiet, *begun])
            code = code or ltr(["test", "--config", str(folder / "config.yaml"), "--ckpt_path", "best"])
        if code:
            raise RuntimeError(f"{folder}: {(folder / 'output.txt').read_text().splitlines()[-1]}")
    return folder


def read(folder: Path, measure: str) -> Result:
    """What a run folder holds."""
    metrics = json.loads((folder / "metrics.json").read_text())
    test = {name: value for name, value in metrics["test"].items() if isinstance(value, float) and name != "seconds"}
    return Result(test, max(v[measure] for v in metrics["validations"]), metrics["fit"]["seconds"])


def measured(scores: np.ndarray, split: FeatureSplit, metrics: list[RankingMetric]) -> dict[str, float]:
    """The measures of one score per row, ``[R]``."""
    for metric in metrics:
        metric.reset()
    for query in range(len(split)):
        one = whole_list(split, query)
        lists = (scores[one.doc_rows], one.labels, np.ones(len(one.labels), dtype=bool), one.doc_rows)
        for metric in metrics:
            metric.update(*(torch.from_numpy(array)[None] for array in lists))
    return {metric.measure: metric.compute().item() for metric in metrics}


def table_of(split: FeatureSplit, n_features: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Features, labels and list sizes as trees want them."""
    rows = [split.rows(query) for query in range(len(split))]
    order = np.concatenate(rows)
    features = np.zeros((len(order), n_features), dtype=np.float32)
    features[:, : split.n_features] = split.features[order]
    return features, split.labels[order], [len(r) for r in rows]


def trees(config: dict[str, Any], fold: int | None, measure: str, metrics: list[RankingMetric]) -> Iterator[tuple[str, Result]]:
    """LightGBM and XGBoost, after 300 trees and after the number of them that is best on dev."""
    import lightgbm
    import xgboost

    which = {} if fold is None else {"fold": fold}
    data = FeatureDataModule(**config["data"]["init_args"] | which | {"normalise": None, "seed": 0})
    data.setup("test")
    splits = data.splits
    train, dev, test = (table_of(splits[name], data.n_features) for name in ("train", "dev", "test"))
    in_test = np.concatenate([splits["test"].rows(query) for query in range(len(splits["test"]))])
    name = measure.replace("nDCG_exp", "ndcg")  # both take the gain 2^grade - 1, and count an empty query as 1: the order is ours
    k = int(name.partition("@")[2])

    def result(predicted: np.ndarray, stages: list[float], stage: int, seconds: float) -> Result:
        scores = np.zeros(len(splits["test"].labels), dtype=np.float32)
        scores[in_test] = predicted
        return Result(measured(scores, splits["test"], metrics), stages[stage], seconds)

    for peer in ("LightGBM", "XGBoost"):
        begun, stages = time.perf_counter(), {}
        if peer == "LightGBM":
            options = {
                "n_estimators": TREES,
                "learning_rate": 0.05,
                "num_leaves": 31,
                "random_state": 0,
                "n_jobs": 1,
                "verbose": -1,
            }
            model = lightgbm.LGBMRanker(objective="lambdarank", **options)
            recorded = [lightgbm.record_evaluation(stages)]
            model.fit(
                *train[:2],
                group=train[2],
                eval_set=[dev[:2]],
                eval_group=[dev[2]],
                eval_metric="ndcg",
                eval_at=[k],
                callbacks=recorded,
            )
            curve = stages["valid_0"][name]
            predict = lambda n: model.predict(test[0], num_iteration=n)  # noqa: B023, E731
        else:
            options = {"objective": "rank:ndcg", "eta": 0.1, "max_depth": 6, "seed": 0, "nthread": 1, "eval_metric": name}
            matrices = [xgboost.DMatrix(x, y) for x, y, _ in (train, dev)]
            for matrix, (_, _, sizes) in zip(matrices, (train, dev), strict=True):
                matrix.set_group(sizes)
            model = xgboost.train(
                options, matrices[0], TREES, evals=[(matrices[1], "dev")], evals_result=stages, verbose_eval=False
            )
            curve = stages["dev"][name]
            predict = lambda n: model.predict(xgboost.DMatrix(test[0]), iteration_range=(0, n))  # noqa: B023, E731
        seconds, best = time.perf_counter() - begun, int(np.argmax(curve))
        yield f"{peer}, {TREES} trees", result(predict(TREES), curve, TREES - 1, seconds)
        yield f"{peer}, best on dev", result(predict(best + 1), curve, best, seconds)


def row(name: str, by_seed: list[list[Result]], measures: list[str]) -> str:
    """A line of the table: results by seed and fold."""

    def over(values: list[list[float]], digits: int) -> str:
        means = [statistics.fmean(folds) for folds in values]
        deviation = f" ± {statistics.stdev(means):.{digits}f}" if len(means) > 1 else ""
        return f"{statistics.fmean(means):.{digits}f}{deviation}"

    cells = [over([[r.test[m] for r in folds] for folds in by_seed], 4) for m in measures]
    cells += [over([[r.dev for r in folds] for folds in by_seed], 4), over([[r.seconds for r in folds] for folds in by_seed], 1)]
    return f"| {' | '.join([name, *cells])} |"


def run() -> None:
    """Parse the arguments, train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("configs", type=Path, nargs="+", help="configurations over the same data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time, one thread each")
    options = parser.parse_args()
    parsed = {config: yaml.safe_load(config.read_text()) for config in options.configs}
    first = parsed[options.configs[0]]
    folds, measure = folds_of(first), first["best"]["monitor"].removeprefix("val/")
    init = first["model"]["init_args"]
    metrics = [RankingMetric(name, max_grade=init.get("max_grade", 4.0)) for name in init["metrics"]]
    measures = [metric.measure for metric in metrics]

    jobs = [(config, fold, seed) for config in options.configs for seed in options.seeds for fold in folds]
    context = get_context("forkserver")
    context.set_forkserver_preload(["ltr.cli", "ltr.datamodules", "ltr.modules"])
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        futures = [pool.submit(train, *job) for job in jobs]
        for number, future in enumerate(as_completed(futures), 1):
            future.result()
            print(f"{number}/{len(jobs)} {future.result()}", end="\r", flush=True)
    print(f"\n| ranker | {' | '.join(measures)} | dev {measure} | training, s |\n|{' --- |' * (len(measures) + 3)}")
    folders = dict(zip(jobs, (future.result() for future in futures), strict=True))
    for config in options.configs:
        by_seed = [[read(folders[config, fold, seed], measure) for fold in folds] for seed in options.seeds]
        print(row(config.stem, by_seed, measures), flush=True)
    try:
        of_trees: dict[str, list[Result]] = {}
        for fold in folds:
            for name, result in trees(first, fold, measure, metrics):
                of_trees.setdefault(name, []).append(result)
        for name, results in of_trees.items():
            print(row(name, [results], measures))
    except ImportError as error:
        print(f"| trees: absent ({error}) |{' |' * (len(measures) + 2)}")
    for metric in metrics:
        print(f"{metric.measure}: {metric.convention}")
    print(f"Seeds {', '.join(map(str, options.seeds))}; trees are deterministic. {described()}")


if __name__ == "__main__":
    run()
