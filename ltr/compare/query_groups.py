"""What a comparison is a table of: experiments, each tested on one or several groups of queries."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ltr.compare.experiment import Experiment
from ltr.compare.tested_run import Run, values_by_source
from ltr.errors import InputError


@dataclass(frozen=True)
class Groups:
    """The same experiments in each of several groups of queries, or in one.

    Attributes:
        by: what a group is: a ``split`` of the runs' data, or a ``set``, which is another data set or
            one of the sources that the runs were tested on together.
        experiments: by the name of the group; the same ones in the same order.
    """

    by: Literal["split", "set"]
    experiments: dict[str, list[Experiment]]

    @property
    def first(self) -> list[Experiment]:
        """The experiments in the first group."""
        return next(iter(self.experiments.values()))


def grouped(experiments: Sequence[Experiment]) -> Groups:
    """The experiments on each source; where they were tested on one collection, on its split.

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
    if not sources:
        return Groups("split", {runs[0].split: list(experiments)})
    by_source: dict[str, list[Experiment]] = {}
    for source in sources:
        by_source[source] = []
        for experiment in experiments:
            on_source = [_on_source(run, source) for run in experiment.runs]
            by_source[source].append(Experiment(experiment.name, on_source))
    return Groups("set", by_source)


def _on_source(run: Run, source: str) -> Run:
    """A run with its values of the queries of one source, and their means."""
    # Of all sources together are their names, the ceiling, and the metrics on dev before training.
    report = {
        name: entry for name, entry in run.report.items() if name not in ("sources", "ceiling")
    }
    results = {name: entry for name, entry in run.results.items() if name != "start"}
    by_query: dict[str, dict[str, float]] = {}
    for metric, values in run.by_query.items():
        by_query[metric] = values_by_source(values, run.sources)[source]
        counted = [value for value in by_query[metric].values() if not math.isnan(value)]
        report[metric] = math.fsum(counted) / len(counted) if counted else None
    evaluated = dict(run.report["evaluated"])
    for name in ("queries", "documents"):
        if f"{source} {name}" in evaluated:
            evaluated[name] = evaluated[f"{source} {name}"]
    report["evaluated"] = evaluated
    return replace(run, results=results | {"test": report}, by_query=by_query)
