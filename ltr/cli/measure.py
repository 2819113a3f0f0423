"""``ltr measure``: the metrics of rankings that lie in files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ltr.compare.experiment import Experiment
from ltr.compare.named_judgements import named_judgements
from ltr.compare.ranked_files import METRICS, measured_experiments, read_rankings
from ltr.compare.table_formats import print_tables
from ltr.compare.tables import Table
from ltr.data.console import table_console
from ltr.data.outputs import check_file
from ltr.data.splits import split_named
from ltr.data.whole_files import write_whole
from ltr.metrics import RankingMetric

WIDTH = 200  # letters of a line where no terminal says it


def measure(
    rankings: list[str],
    *,
    data: str | None = None,
    qrels: str | None = None,
    split: str = "test",
    metric: list[str] | None = None,
    empty: Literal["skip", "zero", "one"] = "skip",
    per_query: str | None = None,
) -> None:
    """Measure rankings that lie in files, as trec_eval does.

    Args:
        rankings: Files: a TREC run, or JSON lines, CSV or Parquet of query, document and score; run
            folders, whose test.run is measured; or glob patterns of either.
        data: The data set whose judgements measure them.
        qrels: Or a file of judgements.
        split: Of the data set.
        metric: Metrics, as nDCG@10 or AP(rel=2). None: nDCG@10, RR@10 and AP.
        empty: How a query without a relevant document counts: left out (skip), 0 (zero, as trec_eval
            has it) or 1 (one).
        per_query: Also write the values of each query to this file, separated by tabs.
    """
    check_file(per_query, "--per_query")
    judgements = named_judgements(data, qrels, split_named(split, "split"))
    names = list(dict.fromkeys(metric or METRICS))
    metrics = [RankingMetric(name, empty, judgements.max_grade) for name in names]
    read = read_rankings(rankings, judgements)
    experiments = measured_experiments(read, judgements, metrics)
    if per_query is not None:
        write_whole(Path(per_query), [_lines_of_queries(experiments, names)])
    rows = []
    for experiment in experiments:
        seeds = [experiment.means(name) for name in names]
        rows.append([experiment.name, *(f"{np.mean(values):.4f}" for values in seeds)])
    n_queries = len(judgements.query_ids)
    title = f"{judgements.source}, {n_queries:,} judged queries"
    notes = [f"{each.name}: {each.convention}" for each in metrics]
    notes += [f"{judgements.source}: {note}" for note in judgements.notes]
    notes += [f"{each.file}: {note}" for each in read for note in each.notes]
    print_tables([Table(title, ["ranking", *names], rows)], notes, table_console(WIDTH))


def _lines_of_queries(experiments: Sequence[Experiment], metrics: Sequence[str]) -> str:
    """A line for each ranking and query; an empty cell where a metric leaves the query out."""
    lines = ["\t".join(["ranking", "seed", "query", *metrics])]
    for experiment in experiments:
        for run in experiment.runs:
            for query in experiment.queries(metrics[0]):
                values = [run.by_query[metric][query] for metric in metrics]
                cells = ["" if np.isnan(value) else f"{value:.6f}" for value in values]
                lines.append("\t".join([experiment.name, str(run.seed), query, *cells]))
    return "\n".join(lines) + "\n"
