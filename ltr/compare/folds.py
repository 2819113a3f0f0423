"""The runs of a cross-validation as one: each query was tested once, by the run that had not
learnt from it.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ltr.compare.tested_run import Run, run_differences
from ltr.data.cross_validation import Fold
from ltr.data.files import digest_of_json
from ltr.errors import InputError


def joined_folds(runs: Sequence[Run]) -> list[Run]:
    """Those runs that tested a whole split, and for each seed one made of the runs of its folds.

    The joined run has the values of all queries, and their means. Its seconds of training are
    those of all folds together.

    Raises:
        InputError: if a fold is missing or there twice, or folds differ in more than their number.
    """
    whole = []
    folds_of_seed: dict[int, list[Run]] = {}
    for run in runs:
        if run.fold is None:
            whole.append(run)
        else:
            folds_of_seed.setdefault(run.seed, []).append(run)
    return whole + [_joined(folds) for folds in folds_of_seed.values()]


def _check_folds(folds: Sequence[Run]) -> None:
    """Check that each fold of a seed is there once, and that they differ in nothing else."""
    first = folds[0]
    assert first.fold is not None, "whole runs are none of these"
    n_folds = first.fold.of
    if [run.fold for run in folds] != [Fold(number, n_folds) for number in range(1, n_folds + 1)]:
        got = ", ".join(str(run.fold) for run in folds)
        raise InputError(
            f"{first.folder.parent}: each of the {n_folds} folds must be there once, got {got}; make those that are missing"
        )
    for run in folds[1:]:
        differences = run_differences(_without_fold(first), _without_fold(run))
        if run.report["conventions"] != first.report["conventions"]:
            differences.append("metrics")
        if differences:
            raise InputError(
                f"{first.folder} and {run.folder} are no folds of one cross-validation, they differ in {', '.join(differences[:3])}; make both again with the same options"
            )


def _joined(folds: Sequence[Run]) -> Run:
    """The runs of the folds of one seed as one run."""
    folds = sorted(folds, key=lambda run: run.fold.number if run.fold else 0)
    _check_folds(folds)
    first = folds[0]
    alone = _without_fold(first)
    results = dict(alone.results)
    results["test"] = _joined_report(folds)
    if all("fit" in run.results for run in folds):  # not of folds that were tested untrained
        results["fit"] = {"seconds": math.fsum(run.results["fit"]["seconds"] for run in folds)}
    if all("trained_with" in run.results for run in folds):
        data = [run.results["trained_with"]["data"] for run in folds]
        results["trained_with"] = results["trained_with"] | {"data": _digests_of_all(data)}
    by_query: dict[str, dict[str, float]] = {}
    for metric in first.by_query:
        by_query[metric] = {}
        for run in folds:
            twice = by_query[metric].keys() & run.by_query[metric].keys()
            if twice:
                raise InputError(
                    f"{run.folder}: each question must be tested in one fold, and {min(twice)!r} was tested in two; the data has changed, make all folds again"
                )
            by_query[metric] |= run.by_query[metric]
    return replace(alone, folder=first.folder.parent, results=results, by_query=by_query)


def _without_fold(run: Run) -> Run:
    """A run without what tells its fold from the others: the option, the digests of its data, and the
    metrics before training, on a dev split of its own.
    """
    config = copy.deepcopy(run.config)
    options = config.get("data", {}).get("init_args", {})
    if options.get("evaluation"):
        options["evaluation"]["fold"] = None
    results = {name: entry for name, entry in run.results.items() if name != "start"}
    if "trained_with" in results:
        results["trained_with"] = results["trained_with"] | {"data": {}}
    return replace(run, config=config, results=results)


def _joined_report(folds: Sequence[Run]) -> dict[str, Any]:
    """The test part of the metrics, of all queries."""
    report = {name: entry for name, entry in folds[0].report.items() if name != "fold"}
    for metric in report["conventions"]:
        values = []
        for run in folds:
            values += [value for value in run.by_query[metric].values() if not math.isnan(value)]
        report[metric] = math.fsum(values) / len(values) if values else None
    report["evaluated"] = _digests_of_all([run.report["evaluated"] for run in folds])
    if "queries" in report:
        report["queries"] = sum(run.report["queries"] for run in folds)
    report.pop("ceiling", None)
    if all(run.report.get("ceiling") for run in folds):
        report["ceiling"] = _joined_ceiling(folds)
    return report


def _joined_ceiling(folds: Sequence[Run]) -> dict[str, float | None]:
    """The mean ceiling of each metric, weighted by the queries that have a value."""
    ceiling: dict[str, float | None] = {}
    for metric in folds[0].by_query:
        highest = []
        weights = []
        for run in folds:
            value = run.report["ceiling"].get(metric)
            if value is not None:
                values = run.by_query[metric]
                highest.append(value)
                weights.append(sum(not math.isnan(each) for each in values.values()))
        total = sum(weights)
        if total:
            weighted = (value * weight for value, weight in zip(highest, weights, strict=True))
            ceiling[metric] = math.fsum(weighted) / total
    return ceiling


def _digests_of_all(digests_of_folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By name the digest that all folds share, else one of all their digests."""
    joined = {}
    for name in digests_of_folds[0]:
        of_folds = [digests.get(name) for digests in digests_of_folds]
        if all(digest == of_folds[0] for digest in of_folds):
            joined[name] = of_folds[0]
        else:
            joined[name] = digest_of_json(of_folds)[:32]  # as long as those of the folds
    return joined
