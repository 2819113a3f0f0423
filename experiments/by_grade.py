"""Which grades do the top ten documents have?  python experiments/by_grade.py
"runs/ladder-liveqa/*" --data data/medquad-liveqa

For each experiment the documents of each grade among the ten best of the test queries, and nDCG@10
if lower grades than ``--least`` counted as 0. Mean ± deviation over the seeds.
"""

import argparse
from collections import Counter
from typing import NamedTuple

import numpy as np

from ltr.compare.experiment import read_experiments
from ltr.compare.query_values import values_by_query
from ltr.compare.tested_run import Run
from ltr.data.collection import Collection, open_collection
from ltr.data.judged_lists import lists_of_ranking
from ltr.metrics import RankingMetric

DEPTH = 10


class OfRun(NamedTuple):
    """What a run has put on top."""

    n_docs: Counter[float | None]  # by grade; None for those that are not judged
    ndcg: float  # the mean over the queries


def top_of(run: Run, collection: Collection, least: float) -> OfRun:
    """The documents of each grade, and nDCG where only grades from ``least`` on count."""
    judged = collection.judgements("test")
    lists = lists_of_ranking(run.ranking, collection.queries, collection.corpus)
    n_docs: Counter[float | None] = Counter()
    for row in judged.query_rows.tolist():
        docs, grades = judged.of(row)
        grade_of = dict(zip(docs.tolist(), grades.tolist(), strict=True))
        n_docs.update(map(grade_of.get, lists.of(row)[0][:DEPTH].tolist()))
    metric = RankingMetric(f"nDCG@{DEPTH}")
    (values,) = values_by_query(lists, judged.zero_below(least), [metric])
    return OfRun(n_docs, float(np.nanmean(values)))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="folders of experiments, or patterns of them")
    parser.add_argument("--data", required=True, help="the collection that they ranked")
    parser.add_argument("--least", type=float, default=2.0, help="the lowest grade that counts")
    asked = parser.parse_args()
    collection = open_collection(asked.data)
    grades: list[float | None] = [*np.unique(collection.judgements("test").values).tolist(), None]
    names = ["not judged" if grade is None else f"grade {grade:g}" for grade in grades]
    columns = ["experiment", *names, f"nDCG@10, grade {asked.least:g} or more"]
    print(f"| {' | '.join(columns)} |")
    print("| --- " * len(columns) + "|")
    for experiment in read_experiments(asked.runs):
        of_runs = [top_of(run, collection, asked.least) for run in experiment.runs]
        cells = [experiment.name]
        for grade in grades:
            cells.append(f"{np.mean([of_run.n_docs[grade] for of_run in of_runs]):.0f}")
        values = np.array([of_run.ndcg for of_run in of_runs])
        ndcg = f"{values.mean():.4f}"
        if len(values) > 1:
            ndcg += f" ± {values.std(ddof=1):.4f}"
        print(f"| {' | '.join([*cells, ndcg])} |")


if __name__ == "__main__":
    main()
