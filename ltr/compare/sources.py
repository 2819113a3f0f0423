"""Runs that were tested on several sources together, as results on each of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ltr.compare.run import Run
from ltr.compare.runs import Experiment
from ltr.errors import InputError


def by_source(experiments: Sequence[Experiment]) -> dict[str, list[Experiment]]:
    """The same experiments on each source, by its name; empty where they were tested on one
    collection.

    Raises:
        InputError: where two runs were not tested on the same sources.
    """
    runs = [run for experiment in experiments for run in experiment.runs]
    sources = runs[0].sources
    for run in runs:
        if run.sources != sources:
            tested = [", ".join(names) or "one collection" for names in (sources, run.sources)]
            raise InputError(
                f"{runs[0].folder} and {run.folder} were tested on other sources, {tested[0]} and {tested[1]}; test both on the same ones (ltr test RUN --data.path A B), and compare there (--data A B)"
            )
    experiments_of: dict[str, list[Experiment]] = {}
    for source in sources:
        experiments_of[source] = []
        for experiment in experiments:
            of_source = [_on_source(run, source) for run in experiment.runs]
            experiments_of[source].append(Experiment(experiment.name, of_source))
    return experiments_of


def _on_source(run: Run, source: str) -> Run:
    """A run with its values of the queries of one source, and their means."""
    prefix = f"{source}/"
    by_query: dict[str, dict[str, float]] = {}
    report = {name: entry for name, entry in run.test.items() if name not in ("sources", "ceiling")}
    for metric, values in run.by_query.items():
        of_source: dict[str, float] = {}
        for query, value in values.items():
            if query.startswith(prefix):
                of_source[query.removeprefix(prefix)] = value
        counted = [value for value in of_source.values() if not math.isnan(value)]
        by_query[metric] = of_source
        report[metric] = math.fsum(counted) / len(counted) if counted else None
    evaluated = run.test["evaluated"]
    of_texts: dict[str, str] = {}
    for name in ("queries", "documents"):
        if f"{source} {name}" in evaluated:
            of_texts[name] = evaluated[f"{source} {name}"]
    report["evaluated"] = evaluated | of_texts
    # Metrics on dev before training are of all sources.
    metrics = {name: entry for name, entry in run.metrics.items() if name != "start"}
    return replace(run, metrics=metrics | {"test": report}, by_query=by_query)
