"""Which grades do the top ten documents have?  python experiments/by_grade.py
"runs/ladder-liveqa/*" --data data/medquad-liveqa

For each experiment the documents of each grade among the ten best of the test queries, and nDCG@10
if lower grades than ``--least`` counted as 0. Mean ± deviation over the seeds.
"""

import argparse
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from ltr.compare.documents import Ranking
from ltr.compare.experiment import read_experiments
from ltr.compare.tested_run import Run
from ltr.data.collection import Collection, open_collection
from ltr.metrics import NDCG, MeasuredLists

DEPTH = 10


class OfRun(NamedTuple):
    """What a run has put on top."""

    n_docs: Counter[float | None]  # by grade; None for those that are not judged
    ndcg: float  # the mean over the queries


def top_of(run: Run, collection: Collection, least: float) -> OfRun:
    """The documents of each grade, and nDCG where only grades from ``least`` on count."""
    judged = collection.judgements("test")
    ranking = Ranking(run, collection)
    n_docs: Counter[float | None] = Counter()
    values = []
    for row in judged.query_rows.tolist():
        top = ranking.top(collection.queries.ids[row], DEPTH, letters=0)
        n_docs.update(document.grade for document in top)
        _, grades = judged.of(row)
        ideal = np.sort(np.where(grades >= least, grades, 0.0))[::-1]
        if ideal[0] == 0:
            continue  # nothing to find
        gains = []
        for document in top:
            counts = document.grade is not None and document.grade >= least
            gains.append(document.grade if counts else 0.0)
        falling = torch.arange(len(gains), 0, -1.0)  # scores that keep the order
        lists = MeasuredLists(
            falling.unsqueeze(0), torch.tensor([gains]), ideal=torch.tensor([ideal.tolist()])
        )
        values.append(NDCG(DEPTH).per_query(lists).item())
    return OfRun(n_docs, float(np.mean(values)))


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
